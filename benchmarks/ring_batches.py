"""Batches of 64 from 4,096 u8 images 256x256x3 in RAM, by native threads and other methods.

    python benchmarks/ring_batches.py            # prints, and writes benchmarks/results/
    python benchmarks/ring_batches.py --quick    # fewer rounds, writes nothing

All methods deliver the same records in the same order, which is checked first (a pipeline has a
different order, which is checked too); then the methods take turns. A turn is an epoch, from the
first request to the last batch, including the start and end of threads; only torch's processes
persist. Grain and torch deliver NumPy arrays, the others jax.Arrays. Everything is measured with
the default allocator, which maps each large array again, and with freed memory kept.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import multiprocessing
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import harness
import jax
import numpy as np
import peers
from image_augment import chain
from peers import BOX, STD

import jaxkern as jk
from jaxkern.benchmarking import Samples
from jaxkern.core.memory import anonymous_bytes

COUNT, BATCH, SIDE, SIZE = 4096, 64, 256, 224
BYTES = SIDE * SIDE * 3
GRAIN_THREADS = (2, 16)  # one per core, and Grain's default
# The consumer needs the interpreter for some microseconds per batch, but a spinning thread releases
# it only every 5 ms. The slots must hold what is made in the meantime.
SPIN_CAPACITY, SPIN_EPOCHS, SLOTS = 32, 4, 4


def make_images(count: int) -> np.ndarray:
    """Return distinct images, half of each smooth."""
    random = np.random.default_rng(0)
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for i in range(count):
        images[i] = random.integers(0, 256, 3, np.uint8)
        images[i, : SIDE // 2] += np.arange(SIDE, dtype=np.uint8)[:, None]
        images[i, :, 0, 0] = random.integers(0, 256, SIDE, np.uint8)
    return images


def in_fresh_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function in a new Python process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(work, *arguments).result()


class Methods:
    """Methods that yield the batches of an epoch, in `order`, except for the pipelines."""

    def __init__(self, images: np.ndarray, order: np.ndarray):
        self.images, self.order, self.aug = images, order, chain(antialias=False)
        self.producer = jk.image.ChainProducer(self.aug, images[0], seed=0, epoch=0)
        keys = jk.random.record_keys(0, 0, np.arange(len(images)))
        drawn = jax.jit(lambda k: self.aug.sample(k, (SIDE, SIDE)))(keys)
        self.params = jax.tree.map(np.asarray, drawn)
        boxes = np.stack([self.params[0][k] for k in BOX], 1)
        self.work = peers.Work(images, boxes, self.params[1]["flip"], SIZE, BATCH, order)
        source = {"image": images, "record": np.arange(len(images), dtype=np.int32)}
        self.pipe = jk.from_source(source, BATCH, shuffle=True)
        self.augmenting = self.pipe >> self.aug

    def pipeline(self, augment: bool = False, field: str = "image") -> Iterator[Any]:
        pipe = self.augmenting if augment else self.pipe
        pipe.epoch = 0
        for batch in pipe:
            yield batch[field]

    def assembly(
        self, augment: bool = False, workers: int = 2, capacity: int = 4, times: int = 1
    ) -> Iterator[Any]:
        producers = {"image": self.producer} if augment else {}
        with jk.ring.Assembly(
            {"image": self.images}, np.tile(self.order, times), BATCH, workers=workers,
            capacity=capacity, producers=producers,
        ) as batches:  # fmt: skip
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

    def augmented(self, images: Callable[[int, Any], Any], batches: Any = None) -> Iterator[Any]:
        """Augment images(number, records) of every batch in this thread by the compiled chain."""
        apply = jax.jit(self.aug.apply)
        for number, records in enumerate(self.work.batches() if batches is None else batches):
            params = jax.tree.map(lambda x, chosen=records: x[chosen], self.params)
            yield apply(images(number, records), params).block_until_ready()


def compare(name: str, batches: Iterator[Any], expected: Iterator[Any], levels: float) -> float:
    """Return the largest difference in whole epochs, in 1/255 of the range."""
    worst = 0.0
    for got, want in itertools.zip_longest(batches, expected):
        if got is None or want is None:
            raise SystemExit(f"{name} has another number of batches")
        a, b = np.asarray(got), np.asarray(want)
        if a.shape != b.shape or a.dtype != b.dtype:
            raise SystemExit(f"{name}: expected {b.dtype}{b.shape}, got {a.dtype}{a.shape}")
        scale = 1.0 if a.dtype == np.uint8 else STD * 255
        worst = max(worst, float(np.abs((a.astype(np.float32) - b) * scale).max()))
    return harness.within(name, worst, levels, "levels")


def methods(m: Methods) -> tuple[dict[str, peers.Arm], list[str], dict[str, float]]:
    """Return the available methods, the missing ones, and the differences of their values."""
    raw: dict[str, peers.Arm] = {
        "assembly": m.assembly,
        "one thread, reused buffer": m.one_thread,
        "Python thread, queue.Queue, device_put": m.python_thread,
    }
    augmented: dict[str, peers.Arm] = {"assembly, augmented": lambda: m.assembly(augment=True)}
    optional: dict[str, tuple[str, Any, bool]] = {}
    for n in GRAIN_THREADS:
        optional[f"Grain, {n} threads"] = (
            "grain", lambda work, n=n: peers.grain(work, work.images.__getitem__, n), False
        )  # fmt: skip
        optional[f"Grain with OpenCV, {n} threads"] = (
            "grain", lambda work, n=n: peers.grain(work, peers.OpenCV(work), n), False
        )  # fmt: skip
    optional["torch DataLoader with OpenCV, 2 workers"] = ("torch", peers.torch_loader, False)
    others, missing = peers.available(optional, m.work)
    for name, arm in others.items():
        (augmented if "OpenCV" in name else raw)[name] = arm
    errors = {}
    order = [np.asarray(records) for records in m.pipeline(field="record")]
    for augment, table in ((False, raw), (True, augmented)):
        own = "pipeline, augmented" if augment else "pipeline"
        table[own] = functools.partial(m.pipeline, augment)
        for name, arm in table.items():
            batches = order if name == own else m.work.batches()
            expected = (m.images[records] for records in batches)
            if augment:
                batches = iter(order) if name == own else m.work.batches()
                expected = m.augmented(lambda _, records: m.images[records], batches)
            levels = peers.LEVELS if "OpenCV" in name else 0
            errors[name] = compare(name, arm(), expected, levels)
    ready = [jax.numpy.asarray(m.images[r]) for r in itertools.islice(m.work.batches(), 8)]
    augmented["the kernel alone, 2 threads"] = lambda: m.augmented(lambda n, _: ready[n % 8])
    return {**raw, **augmented}, missing, errors


def compared(epochs: dict[str, peers.Arm], rounds: int) -> list[harness.Row]:
    arms = {name: harness.drained(epoch) for name, epoch in epochs.items()}
    samples = harness.interleave(arms, rounds, warmup=1, turn_seconds=0)

    def those(*starts: str) -> list[str]:
        return [name for name in arms if name.startswith(starts)]

    raw, augmented = "assembly", "assembly, augmented"
    gather, kernel = those("one thread"), those("the kernel alone")
    compared = [
        ("Grain (threads), raw", raw, those("Grain, "), 12),
        ("Grain (threads) with OpenCV, augmented", augmented, those("Grain with"), 8),
        ("torch DataLoader with OpenCV, augmented", augmented, those("torch"), 8),
        ("Python thread, queue.Queue, device_put", raw, those("Python thread"), 2),
        ("one-thread gather into a reused buffer", raw, gather, 0.8),
        ("the same, by a pipeline", "pipeline", gather, 0.8),
        ("the augmentation kernel alone", augmented, kernel, 0.85),
        ("the same, by a pipeline", "pipeline, augmented", kernel, 0.85),
    ]
    return [harness.Row(name, samples, *rest) for name, *rest in compared if rest[1]]


def with_memory_kept(count: int, rounds: int) -> list[harness.Row] | None:
    """Compare in this process with freed memory kept; return None if that is not possible."""
    # Before JAX starts threads, which have separate heaps.
    if not jk.performance.tune_host_allocator():
        return None
    return compared(methods(all_methods(count))[0], rounds)


def all_methods(count: int) -> Methods:
    return Methods(make_images(count), np.random.default_rng(1).permutation(count))


@contextlib.contextmanager
def thread_spins() -> Iterator[None]:
    """Run a Python thread that releases the interpreter only every 5 ms."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            sum(range(20_000))

    thread = threading.Thread(target=spin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def process_spins() -> Iterator[None]:
    """Run the same load in another process, which does not need this interpreter's lock."""
    code = "print(flush=True)\nwhile True: sum(range(20_000))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            yield
        finally:
            other.kill()


def while_spinning(m: Methods, rounds: int) -> list[harness.Row]:
    """Compare one native worker while a Python thread, or another process, computes constantly."""
    table = []
    for label, augment in (("raw", False), ("augmented", True)):
        spinning = {"a process spins": process_spins, "a thread spins": thread_spins}
        seconds: dict[str, list[float]] = {name: [] for name in spinning}
        for _ in harness.progress(range(rounds), "spinning"):
            for name, spins in spinning.items():
                with spins():
                    seconds[name].append(_later_epochs(m, augment))
        name = f"{label}, 1 worker: a Python thread spins, against another process that does"
        samples = {name: Samples(tuple(values)) for name, values in seconds.items()}
        table.append(harness.Row(name, samples, "a thread spins", ["a process spins"], 0.9))
    return table


def _later_epochs(m: Methods, augment: bool) -> float:
    """Return the seconds of an epoch after a first one, which touches the memory of all slots."""
    batches = m.assembly(augment, 1, SPIN_CAPACITY, SPIN_EPOCHS + 1)
    _touch(batches, SPIN_CAPACITY)
    for _ in itertools.islice(batches, len(m.order) // BATCH - SPIN_CAPACITY):
        pass
    begin = time.perf_counter()
    for batch in batches:
        del batch
    return (time.perf_counter() - begin) / SPIN_EPOCHS


def _touch(batches: Iterator[Any], slots: int) -> None:
    """Hold ``slots`` batches at once, so that all slots are written; the ring reuses the slot that
    was released last."""
    touched = list(itertools.islice(batches, slots))
    del touched


def memory(augment: bool) -> dict[str, float]:
    """Return the memory that an epoch adds to a new process, and that of the slots, in MiB."""
    m = Methods(make_images(COUNT // 4), np.arange(COUNT // 4))
    few = np.arange(COUNT // 4) % 8
    producers = {"image": m.producer} if augment else {}
    with jk.ring.Assembly({"image": m.images[:8]}, few, 2, producers=producers) as batches:
        list(batches)  # programs and memory of threads, which are allocated once
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that slots do not reuse freed memory
    before, most = anonymous_bytes(), 0
    for batch in m.assembly(augment):
        del batch
        most = max(most, anonymous_bytes() - before)
    slots = SLOTS * BATCH * (SIZE * SIZE * 3 * 4 if augment else BYTES)
    return {"added_mib": most / 2**20, "slots_mib": slots / 2**20}


def consumer_wait(m: Methods) -> dict[str, float]:
    """Return the fraction of time that a consumer waits which needs 1.2 times the producer's time.

    The producer's time is measured again in every turn, since the machine's speed changes.
    """
    shares, calls = [], []
    order = np.tile(m.order, 2)
    for _ in range(9):
        with jk.ring.Assembly({"image": m.images}, order, BATCH, workers=1) as batches:
            _touch(batches, SLOTS)
            begin, delivered = time.perf_counter(), 0
            while delivered < len(m.order) // BATCH:  # polls, to be as busy as the consumer
                with contextlib.suppress(TimeoutError):
                    batches.get(0)
                    delivered += 1
            work = 1.2 * (time.perf_counter() - begin) / delivered
            time.sleep(0.1)  # so that the slots are full
            first, begin, in_get = batches.stats().consumer_wait, time.perf_counter(), 0.0
            for _ in range(len(m.order) // BATCH - SLOTS):
                before = time.perf_counter()
                batch = batches.get()
                after = time.perf_counter()
                in_get += after - before
                while time.perf_counter() < after + work:
                    pass
                del batch
            total = time.perf_counter() - begin
            shares.append((batches.stats().consumer_wait - first) / total)
            calls.append(in_get / total)
    median = statistics.median
    return {"share": median(shares), "most": max(shares), "share_of_get": median(calls)}


def notes(held: dict[str, dict[str, float]], wait: dict[str, float]) -> list[str]:
    lines = []
    for name, sizes in held.items():
        beyond = sizes["added_mib"] - sizes["slots_mib"]
        lines.append(
            f"Memory, {name}: {sizes['added_mib']:.1f} MiB, of which {sizes['slots_mib']:.1f} are "
            f"the slots: {beyond:+.1f} (at most 8: {harness.at_most(beyond, 8)}).\n"
        )
    lines.append(
        f"A consumer that takes 1.2 of the producer's time waits for {wait['share']:.2%} of its "
        f"time (median of 9 epochs, at most {wait['most']:.2%}; bar 1%: "
        f"{harness.at_most(wait['share'], 0.01)}); its calls of get take "
        f"{wait['share_of_get']:.2%}."
    )
    return lines


def main() -> None:
    options = harness.parse(__doc__, rounds=(7, 3))
    count = 2560 if options.quick else COUNT
    rounds, m = options.rounds, all_methods(count)
    epochs, missing, errors = methods(m)
    states = (("raw", False), ("augmented", True))
    held = {name: in_fresh_process(memory, augment) for name, augment in states}
    wait = consumer_wait(m)
    tables = {"As a program starts": compared(epochs, rounds)}
    if table := in_fresh_process(with_memory_kept, count, rounds):
        tables["Freed memory kept"] = table
    tables["While Python computes"] = while_spinning(m, rounds)
    lines = []
    for state, table in tables.items():
        lines += [f"## {state}", "", *harness.rates(table, count), ""]
    first = tables["As a program starts"][0]
    rate = count * BYTES / first.samples[first.ours].median / 1e9
    lines += [f"Raw batches: {rate:.1f} GB/s of images read, and as many written.", ""]
    lines += [*(f"Missing: {name}.\n" for name in missing), *notes(held, wait)]
    note = (
        f"{count:,} u8 images {SIDE}x{SIDE}x3, random order, batches of {BATCH}. Medians of "
        "interleaved epochs."
    )
    record = {
        "tables": {state: harness.record(table) for state, table in tables.items()},
        "largest_difference_in_levels": errors,
        "memory": held,
        "consumer_wait": wait,
        "missing": missing,
    }
    title = "Batches from RAM"
    harness.write("ring-batches", title, lines, record, peers.PACKAGES, note, options.quick)


if __name__ == "__main__":
    main()
