"""4,096 u8 images 256x256x3 in RAM, random order, batches of 64, by native threads and otherwise.

    python benchmarks/ring_batches.py            # prints, and writes benchmarks/results/
    python benchmarks/ring_batches.py --quick    # fewer rounds, writes nothing

Every way delivers the same records in the same order, checked first; ways take turns. A turn is an
epoch, from the first batch that is asked for to the last one delivered, threads started and ended.
Grain delivers NumPy arrays, the others jax.Arrays.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import harness
import jax
import numpy as np
import peers

import jaxkern as jk

COUNT, BATCH, SIDE, SIZE = 4096, 64, 256, 224
BYTES = SIDE * SIDE * 3
MEAN, STD = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
GRAIN_THREADS = (2, 16)  # one a core, and Grain's default
# The consumer needs the interpreter for some microseconds a batch; a spinning thread gives it up
# every 5 ms only, and the slots must hold what is made meanwhile.
SPIN_CAPACITY = 32

Epoch = Callable[[], Iterator[Any]]


@dataclass
class Row:
    """A comparison: ours over theirs (the fastest of them), and the bar that it has to reach."""

    name: str
    ours: harness.Arm
    theirs: list[harness.Arm]
    bar: float

    @property
    def best(self) -> harness.Arm:
        return min(self.theirs, key=lambda arm: arm.median)

    @property
    def ratio(self) -> float:
        return self.best.median / self.ours.median


class Ways:
    """Each way to get the epoch's batches."""

    def __init__(self, images: np.ndarray, order: np.ndarray):
        self.images, self.order = images, order
        self.aug = jk.image.Compose(
            [
                jk.image.RandomResizedCrop(SIZE, antialias=False),
                jk.image.RandomHorizontalFlip(0.5),
                jk.image.Normalize(MEAN.tolist(), STD.tolist()),
            ]
        )
        self.producer = jk.image.ChainProducer(self.aug, images[0], seed=0, epoch=0)
        keys = jk.random.record_keys(0, 0, np.arange(COUNT))
        drawn = jax.jit(lambda k: self.aug.sample(k, (SIDE, SIDE)))(keys)
        self.params = jax.tree.map(np.asarray, drawn)
        self.boxes = np.stack([self.params[0][k] for k in ("top", "left", "height", "width")], 1)
        self.flips = self.params[1]["flip"]
        self.reused = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)

    def records(self) -> Iterator[np.ndarray]:
        for begin in range(0, COUNT, BATCH):
            yield self.order[begin : begin + BATCH]

    def assembly(self, augment: bool = False, workers: int = 2, capacity: int = 4) -> Iterator[Any]:
        producers = {"image": self.producer} if augment else {}
        with jk.ring.Assembly(
            {"image": self.images}, self.order, BATCH, workers=workers, capacity=capacity,
            producers=producers,
        ) as batches:  # fmt: skip
            for batch in batches:
                yield batch["image"]

    def one_thread(self) -> Iterator[np.ndarray]:
        for records in self.records():
            np.take(self.images, records, axis=0, out=self.reused, mode="clip")
            yield self.reused

    def python_thread(self) -> Iterator[jax.Array]:
        waiting: queue.Queue[Any] = queue.Queue(4)

        def produce() -> None:
            for records in self.records():
                waiting.put(self.images[records])
            waiting.put(None)

        thread = threading.Thread(target=produce)
        thread.start()
        while (batch := waiting.get()) is not None:
            yield jax.device_put(batch).block_until_ready()
        thread.join()

    def grain(self, threads: int, augment: bool = False) -> Iterator[np.ndarray]:
        import grain

        images, order = self.images, self.order

        class Records:
            def __len__(self) -> int:
                return COUNT

            def __getitem__(self, place: Any) -> Any:
                record = int(order[place])
                return (images[record], record) if augment else images[record]

        records = grain.MapDataset.source(Records())
        if augment:
            records = records.map(self._opencv())
        options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 * BATCH)
        yield from records.batch(BATCH).to_iter_dataset(options)

    def kernel(self, batches: list[jax.Array], compiled: Any) -> Iterator[jax.Array]:
        """The augmentation alone, on batches that lie ready."""
        for place, params in enumerate(self.batch_params()):
            yield compiled(batches[place % len(batches)], params).block_until_ready()

    def batch_params(self) -> Iterator[Any]:
        """What each batch's records drew."""
        for records in self.records():
            yield jax.tree.map(lambda x, chosen=records: x[chosen], self.params)

    def _opencv(self) -> Callable[[Any], np.ndarray]:
        import cv2

        cv2.setNumThreads(1)
        scale = (1 / (255 * STD)).astype(np.float32)
        bias = (-MEAN / STD).astype(np.float32)

        def one(record: Any) -> np.ndarray:
            image, number = record
            top, left, height, width = self.boxes[number]
            crop = image[top : top + height, left : left + width]
            resized = cv2.resize(crop, (SIZE, SIZE), interpolation=cv2.INTER_LINEAR)
            if self.flips[number]:
                resized = cv2.flip(resized, 1)
            out: np.ndarray = np.multiply(resized, scale, dtype=np.float32)
            out += bias
            return out

        return one


def drained(epoch: Epoch) -> Callable[[], None]:
    def run() -> None:
        for batch in epoch():
            del batch  # the next one may take its place

    return run


def spinning(run: Callable[[], None]) -> Callable[[], None]:
    """The same while a Python thread computes all the time."""

    def both() -> None:
        stop = threading.Event()

        def spin() -> None:
            while not stop.is_set():
                sum(range(20_000))

        thread = threading.Thread(target=spin)
        thread.start()
        try:
            run()
        finally:
            stop.set()
            thread.join()

    return both


def compare(name: str, epoch: Epoch, wanted: Epoch, levels: float) -> float:
    """Checks whole epochs; ``levels`` is in 1/255 of the range; returns the largest difference."""
    worst, count = 0.0, 0
    for got, want in itertools.zip_longest(epoch(), wanted()):
        if got is None or want is None:
            raise SystemExit(f"{name} has another number of batches")
        a, b = np.asarray(got), np.asarray(want)
        if a.shape != b.shape or a.dtype != b.dtype:
            raise SystemExit(f"{name} gives {a.dtype}{a.shape}; wanted {b.dtype}{b.shape}")
        scale = 1.0 if a.dtype == np.uint8 else STD * 255
        worst = max(worst, float(np.abs((a.astype(np.float32) - b) * scale).max()))
        count += len(a)
    if count != COUNT or not worst <= levels:
        raise SystemExit(f"{name} has {count} images that differ by up to {worst:.2f} levels")
    return worst


def rows(rounds: int) -> tuple[list[Row], list[str], dict[str, float]]:
    random = np.random.default_rng(0)
    images = np.empty((COUNT, SIDE, SIDE, 3), np.uint8)
    for i in range(COUNT):
        images[i] = random.integers(0, 256, 3, np.uint8)
        images[i, : SIDE // 2] += np.arange(SIDE, dtype=np.uint8)[:, None]
        images[i, :, 0, 0] = random.integers(0, 256, SIDE, np.uint8)
    ways = Ways(images, random.permutation(COUNT))

    def arm(name: str, epoch: Epoch) -> harness.Arm:
        return harness.Arm(name, drained(epoch))

    epochs: dict[str, Epoch] = {
        "assembly": ways.assembly,
        "one thread, reused buffer": ways.one_thread,
        "Python thread, queue.Queue, device_put": ways.python_thread,
    }
    augmented: dict[str, Epoch] = {"assembly, augmented": lambda: ways.assembly(augment=True)}
    missing = []
    for package, table, augment in (("grain", epochs, False), ("cv2", augmented, True)):
        try:
            __import__("grain")
            __import__(package)
        except ImportError as error:
            missing.append(f"Grain{', OpenCV' * augment}: not installed ({error})")
            continue
        for threads in GRAIN_THREADS:
            name = f"Grain{', OpenCV' * augment}, {threads} threads"
            table[name] = lambda threads=threads, augment=augment: ways.grain(threads, augment)

    errors = {}
    for name, epoch in epochs.items():
        errors[name] = compare(name, epoch, ways.one_thread, 0)
    apply = jax.jit(ways.aug.apply)

    def reference() -> Iterator[Any]:
        for records, params in zip(ways.records(), ways.batch_params(), strict=True):
            yield apply(images[records], params)

    for name, epoch in augmented.items():
        errors[name] = compare(name, epoch, reference, 0 if "assembly" in name else peers.LEVELS)

    arms = {name: arm(name, epoch) for name, epoch in {**epochs, **augmented}.items()}
    ready = [jax.numpy.asarray(images[r]) for r in itertools.islice(ways.records(), 8)]
    arms["kernel"] = arm("the kernel alone, 2 threads", lambda: ways.kernel(ready, apply))
    for augment in (False, True):
        label = "augmented" if augment else "raw"
        one = drained(lambda augment=augment: ways.assembly(augment, 1, SPIN_CAPACITY))
        arms[f"{label} quiet"] = harness.Arm(f"1 worker, {label}", one)
        arms[f"{label} spin"] = harness.Arm(f"1 worker, {label}, spinning", spinning(one))
    harness.interleave(list(arms.values()), rounds, warmup=1, least=0)

    raw, aug = arms["assembly"], arms["assembly, augmented"]
    table = [
        Row("one-thread gather into a reused buffer", raw,
            [arms["one thread, reused buffer"]], 0.8),
        Row("Python thread, queue.Queue, device_put", raw,
            [arms["Python thread, queue.Queue, device_put"]], 2),
        Row("the augmentation kernel alone", aug, [arms["kernel"]], 0.85),
        Row("raw, a Python thread spins, against none", arms["raw spin"], [arms["raw quiet"]], 0.9),
        Row("augmented, a Python thread spins, against none", arms["augmented spin"],
            [arms["augmented quiet"]], 0.9),
    ]  # fmt: skip
    grain = [a for a in arms.values() if a.name.startswith("Grain")]
    if plain := [a for a in grain if "OpenCV" not in a.name]:
        table.insert(0, Row("Grain (threads), raw", raw, plain, 12))
    if opencv := [a for a in grain if "OpenCV" in a.name]:
        table.insert(1, Row("Grain (threads) with OpenCV, augmented", aug, opencv, 8))
    return table, missing, errors


def report(table: list[Row], missing: list[str]) -> str:
    lines = [
        "| against | theirs, images/s | ours, images/s | ratio (quartiles) | bar | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in table:
        low = row.best.spread[0] / row.ours.spread[1]
        high = row.best.spread[1] / row.ours.spread[0]
        verdict = "reached" if row.ratio >= row.bar else "**below**"
        lines.append(
            f"| {row.name} | {COUNT / row.best.median:,.0f} | {COUNT / row.ours.median:,.0f} "
            f"| {row.ratio:.2f} ({low:.2f} to {high:.2f}) | {row.bar:g} | {verdict} |"
        )
    rate = COUNT * BYTES / table[0].ours.median / 1e9
    lines += [f"| {name} | missing | | | | |" for name in missing]
    return "\n".join(
        [*lines, "", f"Raw batches: {rate:.1f} GB/s of images read, and as many written."]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few rounds, and write nothing")
    options = parser.parse_args()
    kept = jk.performance.tune_host_allocator()
    table, missing, errors = rows(3 if options.quick else 15)
    text = report(table, missing)
    print(text)
    if options.quick:
        return
    machine = harness.machine()
    versions = harness.versions(
        "jaxkern", "jax", "jaxlib", "numpy", "grain", "opencv-python-headless"
    )
    head = (
        f"# Batches from RAM\n\n{COUNT:,} u8 images {SIDE}x{SIDE}x3, random order, batches of "
        f"{BATCH}. {machine['cpu']}, {machine['cores']} cores; "
        f"{', '.join(f'{k} {v}' for k, v in versions.items())}. Medians of interleaved epochs; "
        f"freed memory kept for all arms: {kept}.\n\n"
    )
    arms = {arm.name: arm for row in table for arm in (row.ours, *row.theirs)}
    record = {
        "machine": machine,
        "versions": versions,
        "allocator_keeps_memory": kept,
        "images": COUNT,
        "seconds": {
            name: {"median": arm.median, "quartiles": arm.spread, "all": arm.seconds}
            for name, arm in arms.items()
        },
        "ratios": {row.name: {"ratio": row.ratio, "bar": row.bar} for row in table},
        "largest_difference_in_levels": errors,
        "missing": missing,
    }
    path = harness.write("ring-batches", record, head + text + "\n")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
