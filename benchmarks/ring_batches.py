"""Batches of 64 from 4,096 u8 images 256x256x3 in RAM, by native threads and other methods.

All methods deliver the same records in the same order, which is checked first (a pipeline has a
different order, which is checked too); then the methods take turns. A turn is an epoch, from the
first request to the last batch, including the start and end of threads; only torch's processes
persist. Grain and torch deliver NumPy arrays, the others jax.Arrays. Everything is measured with
the default allocator, which maps each large array again, and with freed memory kept.

`--small` measures small rows and the 32x32 images of CIFAR only, against NumPy and jitted JAX.
"""

from __future__ import annotations

import functools
import itertools
import queue
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import harness
import image_augment
import jax
import numpy as np
import peers

import jaxkern as jk

COUNT, BATCH, SIDE, SIZE = 4096, 64, 256, 224
BYTES = SIDE * SIDE * 3
# Rows of a batch, and their bytes; an epoch has this number of batches.
SMALL, SMALL_BATCHES = ((4096, 16), (128, 784), (64, 1)), 500
# CIFAR: images of an epoch, images of a batch, side, padding before the crop, and the bar.
CIFAR, CIFAR_BATCH, CIFAR_SIDE, PADDING, CIFAR_BAR = 50_000, 512, 32, 4, 2.5


def make_images(count: int) -> np.ndarray:
    """Return distinct images, half of each smooth."""
    random = np.random.default_rng(0)
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for i in range(count):
        images[i] = random.integers(0, 256, 3, np.uint8)
        images[i, : SIDE // 2] += np.arange(SIDE, dtype=np.uint8)[:, None]
        images[i, :, 0, 0] = random.integers(0, 256, SIDE, np.uint8)
    return images


def kernel_alone(aug: Any, images: np.ndarray, params: Any) -> Iterator[jax.Array]:
    """Yield the batches of an epoch by the compiled chain, from up to 8 batches in memory."""
    apply = jax.jit(aug.apply)
    ready = [
        jax.numpy.asarray(batch)
        for batch in images[: 8 * BATCH].reshape(-1, BATCH, *images.shape[1:])
    ]
    for i in range(len(images) // BATCH):
        rows = jax.tree.map(lambda x, i=i: x[i * BATCH : (i + 1) * BATCH], params)
        yield apply(ready[i % len(ready)], rows).block_until_ready()


class Methods:
    """Methods that yield the batches of an epoch, in `order`, except for the pipelines."""

    def __init__(self, count: int):
        self.images = make_images(count)
        self.order = np.random.default_rng(1).permutation(count)
        self.aug = image_augment.chain()
        self.producer = jk.image.ChainProducer(self.aug, self.images[0], seed=0, epoch=0)
        self.params = jax.tree.map(np.asarray, image_augment.draw(self.aug, count))
        boxes, flips = image_augment.boxes_and_flips(self.params)
        self.work = peers.Work(self.images, boxes, flips, SIZE, BATCH, self.order)
        source = {"image": self.images, "record": np.arange(count, dtype=np.int32)}
        self.pipe = jk.from_source(source, BATCH, shuffle=True)
        self.augmenting = self.pipe >> self.aug

    def pipeline(self, augment: bool = False, field: str = "image") -> Iterator[Any]:
        pipe = self.augmenting if augment else self.pipe
        pipe.epoch = 0
        for batch in pipe:
            yield batch[field]

    def assembly(self, augment: bool = False) -> Iterator[Any]:
        producers = {"image": self.producer} if augment else {}
        images = {"image": self.images}
        with jk.ring.Assembly(
            images, self.order, BATCH, workers=2, capacity=4, producers=producers
        ) as batches:
            for batch in batches:
                yield batch["image"]

    def one_thread(self) -> Iterator[np.ndarray]:
        reused = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
        for records in self.work.batches():
            np.take(self.images, records, axis=0, out=reused, mode="clip")
            yield reused

    def python_thread(self) -> Iterator[jax.Array]:
        waiting: queue.Queue[Any] = queue.Queue(4)

        def produce() -> None:
            for records in self.work.batches():
                waiting.put(self.images[records])
            waiting.put(None)

        thread = threading.Thread(target=produce)
        thread.start()
        while (batch := waiting.get()) is not None:
            yield jax.device_put(batch).block_until_ready()
        thread.join()

    def expected(self, batches: Iterable[np.ndarray], augment: bool) -> Iterator[Any]:
        """Yield the batches of records as NumPy arrays, augmented by the compiled chain."""
        apply = jax.jit(self.aug.apply)
        for records in batches:
            images = self.images[records]
            params = jax.tree.map(lambda x, records=records: x[records], self.params)
            yield np.asarray(apply(images, params)) if augment else images


def check_epoch(name: str, batches: Iterator[Any], expected: Iterator[Any], limit: float) -> None:
    """End the benchmark if the batches of an epoch differ by more than ``limit`` levels of 255."""
    for got, want in itertools.zip_longest(batches, expected):
        if got is None or want is None:
            raise SystemExit(f"{name} has another number of batches")
        if got.dtype != want.dtype:
            raise SystemExit(f"{name}: expected {want.dtype}, got {got.dtype}")
        scale = 1.0 if want.dtype == np.uint8 else image_augment.LEVELS
        harness.check_levels(name, got, want, limit, scale=scale)


def methods(m: Methods) -> dict[str, peers.Arm]:
    """Return the available methods, after a comparison of their values."""
    optional: peers.Peers = {
        "torch DataLoader with OpenCV, 2 workers": (
            lambda work: peers.torch_loader(work, peers.OpenCV(work)), False
        ),
    }  # fmt: skip
    for n in (2, 16):  # one per core, and Grain's default
        optional[f"Grain, {n} threads"] = (
            lambda work, n=n: peers.grain(work, work.images.__getitem__, n), False
        )  # fmt: skip
        optional[f"Grain with OpenCV, {n} threads"] = (
            lambda work, n=n: peers.grain(work, peers.OpenCV(work), n), False
        )  # fmt: skip
    arms: dict[str, peers.Arm] = {
        "assembly": m.assembly,
        "one thread, reused buffer": m.one_thread,
        "Python thread, queue.Queue, device_put": m.python_thread,
        "pipeline": m.pipeline,
        "assembly, augmented": functools.partial(m.assembly, augment=True),
        "pipeline, augmented": functools.partial(m.pipeline, augment=True),
        **peers.available(optional, m.work),
    }
    order = [np.asarray(records) for records in m.pipeline(field="record")]
    for name, arm in arms.items():
        batches = order if name.startswith("pipeline") else m.work.batches()
        expected = m.expected(batches, augment="augmented" in name or "OpenCV" in name)
        check_epoch(name, arm(), expected, peers.LEVELS if "OpenCV" in name else 0)
    arms["the kernel alone, 2 threads"] = lambda: kernel_alone(m.aug, m.images, m.params)
    return arms


def compare_methods(epochs: dict[str, peers.Arm], rounds: int) -> list[harness.Row]:
    samples = harness.interleave_epochs(epochs, rounds)
    raw, augmented = "assembly", "assembly, augmented"
    gather, kernel = "one thread", "the kernel alone"
    # A name, our arm, the first words of other arms, and the bar.
    compared = [
        ("Grain (threads), raw", raw, "Grain, ", 12),
        ("Grain (threads) with OpenCV, augmented", augmented, "Grain with", 8),
        ("torch DataLoader with OpenCV, augmented", augmented, "torch", 8),
        ("Python thread, queue.Queue, device_put", raw, "Python thread", 2),
        ("one-thread gather into a reused buffer", raw, gather, 0.8),
        ("the same, by a pipeline", "pipeline", gather, 0.8),
        ("the augmentation kernel alone", augmented, kernel, 0.85),
        ("the same, by a pipeline", "pipeline, augmented", kernel, 0.85),
    ]
    rows = []
    for name, ours, start, bar in compared:
        if theirs := [arm for arm in epochs if arm.startswith(start)]:
            rows.append(harness.Row(name, samples, ours, theirs, bar))
    return rows


def compare_with_memory_kept(count: int, rounds: int) -> list[harness.Row]:
    """Compare in this process with freed memory kept; no rows if that is not possible."""
    # Before JAX starts threads, which have separate heaps.
    if not jk.performance.tune_host_allocator():
        return []
    return compare_methods(methods(Methods(count)), rounds)


def seconds_of(rounds: int, *arms: peers.Arm) -> list[Any]:
    """Return the median elapsed and CPU seconds of an epoch of each arm; they take turns."""
    times: dict[Any, list[tuple[float, float]]] = {arm: [] for arm in arms}
    for _ in range(rounds):
        for arm, measured in times.items():
            start = time.perf_counter(), time.process_time()
            for batch in arm():
                batch.block_until_ready()
            measured.append((time.perf_counter() - start[0], time.process_time() - start[1]))
    return [np.median(np.array(each), axis=0) for each in times.values()]


def crop_in_jax(images: Any, top: Any, left: Any, flip: Any) -> Any:
    """Crop padded images, flip and normalize them, as users of JAX write it."""
    sides = (PADDING, PADDING)
    padded = jax.numpy.pad(images, ((0, 0), sides, sides, (0, 0)))

    def one(image: Any, top: Any, left: Any, flip: Any) -> Any:
        crop = jax.lax.dynamic_slice(image, (top, left, 0), (CIFAR_SIDE, CIFAR_SIDE, 3))
        return jax.numpy.where(flip, crop[:, ::-1], crop)

    return jax.vmap(one)(padded, top, left, flip) * peers.SCALE + peers.BIAS


def small_images(rounds: int, count: int) -> list[str]:
    """Return a table of images per second and per CPU second, compared with jitted JAX."""
    side, count = CIFAR_SIDE, count // CIFAR_BATCH * CIFAR_BATCH
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), np.uint8)
    crop, flip = jk.image.RandomCrop(side, padding=PADDING), jk.image.RandomHorizontalFlip()
    aug = jk.image.Compose([crop, flip, image_augment.NORMALIZE])
    pipe = jk.from_source({"image": images}, CIFAR_BATCH, shuffle=True) >> aug
    first = images[:CIFAR_BATCH]
    params = image_augment.draw(aug, CIFAR_BATCH, (side, side))
    expected = crop_in_jax(first, params[0]["top"], params[0]["left"], params[1]["flip"])
    got = aug.apply(first, params)
    harness.check_levels("32x32", got, expected, 0.01, scale=image_augment.LEVELS)

    @jax.jit
    def augment(key: Any, images: Any) -> Any:
        corners, flips = jax.random.split(key)
        top, left = jax.random.randint(corners, (2, CIFAR_BATCH), 0, 2 * PADDING + 1)
        return crop_in_jax(images, top, left, jax.random.bernoulli(flips, 0.5, (CIFAR_BATCH,)))

    def by_jax() -> Iterator[jax.Array]:
        order = np.random.default_rng().permutation(count).reshape(-1, CIFAR_BATCH)
        for k, records in enumerate(order):
            yield augment(jax.random.key(k), np.take(images, records, axis=0))

    def piped() -> Iterator[jax.Array]:
        for batch in pipe:
            yield batch["image"]

    for arm in (piped, by_jax):
        next(arm())  # compiles
    rows = []
    for unit, ours, theirs in zip(("", "CPU "), *seconds_of(rounds, piped, by_jax), strict=True):
        ratio = theirs / ours
        rates = (f"{count / seconds:,.0f}" for seconds in (theirs, ours))
        verdict = harness.at_least(ratio, CIFAR_BAR)
        rows.append([f"images a {unit}second", *rates, f"{ratio:.2f}", f"{CIFAR_BAR:g}", verdict])
    header = " | np.take and jitted JAX | pipeline | ratio | bar | "
    return harness.table(header, "lrrrrl", rows)


def small_rows(rounds: int) -> list[str]:
    """Return a table of the time and the CPU time per small batch, with NumPy's as the limit.

    NumPy takes the records in an order that it is given, and in one that it draws for each epoch,
    as a loop without jaxkern does.
    """
    lines = [
        "| batch | pipeline, us (CPU) | NumPy take, device_put, us (CPU) | times faster | "
        "with NumPy's permutation, us (CPU) | times faster |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for rows, size in SMALL:
        array = np.random.default_rng(0).integers(0, 256, (SMALL_BATCHES * rows, size), np.uint8)
        pipe = jk.from_source({"x": array}, rows, shuffle=True)
        [order] = jk.from_source({"n": np.arange(len(array))}, len(array), shuffle=True)
        chosen = np.asarray(order["n"]).reshape(SMALL_BATCHES, rows)

        def taken(array: np.ndarray = array, chosen: np.ndarray = chosen) -> Iterator[jax.Array]:
            for records in chosen:
                yield jax.device_put(np.take(array, records, axis=0))

        def piped(pipe: jk.Pipeline = pipe) -> Iterator[jax.Array]:
            pipe.epoch = 0
            for batch in pipe:
                yield batch["x"]

        def shuffled(array: np.ndarray = array, rows: int = rows) -> Iterator[jax.Array]:
            order = np.random.default_rng().permutation(len(array)).reshape(-1, rows)
            yield from taken(array, order)

        check_epoch(f"rows of {size} bytes", piped(), map(np.asarray, taken()), 0)
        medians = [
            seconds / SMALL_BATCHES * 1e6
            for seconds in seconds_of(3 * rounds, piped, taken, shuffled)
        ]
        cells = [f"{wall:.0f} ({cpu:.0f})" for wall, cpu in medians]
        for arm in (2, 1):
            ratio = medians[arm][0] / medians[0][0]
            cells.insert(arm + 1, f"{ratio:.2f} (bar 1: {harness.at_least(ratio, 1)})")
        lines.append(f"| {rows:,} x {size} B | {' | '.join(cells)} |")
    return lines


def main() -> None:
    small = {"action": "store_true", "help": "only small rows and images"}
    bench = harness.Benchmark(__doc__, {"--small": small}, rounds=(7, 3))
    title = f"## Crop, flip and normalize of 32x32 images, batches of {CIFAR_BATCH}"
    cifar = small_images(bench.rounds, CIFAR // 10 if bench.quick else CIFAR)
    lines = ["## Small rows", "", *small_rows(bench.rounds), "", title, "", *cifar]
    if bench.options.small:
        bench.title = "Small rows and small images from RAM"
        bench.write(lines, note="Medians of epochs in turns.", name="small-batches")
        return
    count = 2560 if bench.quick else COUNT
    m = Methods(count)
    tables = {
        "As a program starts": compare_methods(methods(m), bench.rounds),
        "Freed memory kept": harness.call(
            "ring_batches", "compare_with_memory_kept", count, bench.rounds
        ),
    }
    for title, rows in tables.items():
        table = harness.rates(rows, count) if rows else ["Not possible here."]
        lines += ["", f"## {title}", "", *table]
    rate = count * BYTES / tables["As a program starts"][0].samples["assembly"].median / 1e9
    lines += ["", f"Raw batches: {rate:.1f} GB/s of images read, and as many written."]
    rows = {title: [row.samples for row in rows] for title, rows in tables.items()}
    bench.write(lines, peers.PACKAGES, "Random order. Medians of interleaved epochs.", rows=rows)


if __name__ == "__main__":
    main()
