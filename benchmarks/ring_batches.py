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

import ctypes
import functools
import gc
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import harness
import jax
import numpy as np
import peers
from ring_ways import (
    BATCH,
    COUNT,
    SIDE,
    SIZE,
    Epoch,
    Ways,
    compare,
    drained,
    process_spins,
    thread_spins,
)

import jaxkern as jk
from jaxkern.benchmarking import Samples
from jaxkern.core.memory import anonymous_bytes

BYTES = SIDE * SIDE * 3
GRAIN_THREADS = (2, 16)  # one a core, and Grain's default
# The consumer needs the interpreter for some microseconds a batch; a spinning thread gives it up
# every 5 ms only, and the slots must hold what is made meanwhile.
SPIN_CAPACITY = 32
SPIN_EPOCHS = 4
SLOTS = 4


def made_images(count: int = COUNT) -> np.ndarray:
    """Distinct images whose content is smooth in part."""
    random = np.random.default_rng(0)
    images = np.empty((count, SIDE, SIDE, 3), np.uint8)
    for i in range(count):
        images[i] = random.integers(0, 256, 3, np.uint8)
        images[i, : SIDE // 2] += np.arange(SIDE, dtype=np.uint8)[:, None]
        images[i, :, 0, 0] = random.integers(0, 256, SIDE, np.uint8)
    return images


def made_ways() -> Ways:
    return Ways(made_images(), np.random.default_rng(1).permutation(COUNT))


def in_fresh_process(work: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function in a new Python process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(work, *arguments).result()


def found(ways: Ways) -> tuple[dict[str, Epoch], list[str], dict[str, float]]:
    """Return the available methods, the missing ones, and the differences of the values."""
    raw: dict[str, Epoch] = {
        "assembly": ways.assembly,
        "one thread, reused buffer": ways.one_thread,
        "Python thread, queue.Queue, device_put": ways.python_thread,
    }
    augmented: dict[str, Epoch] = {
        "assembly, augmented": functools.partial(ways.assembly, augment=True)
    }
    missing = []

    def has(what: str, *packages: str) -> bool:
        try:
            for package in packages:
                __import__(package)
        except ImportError as error:
            missing.append(f"{what}: not installed ({error})")
            return False
        return True

    if has("Grain", "grain"):
        for threads in GRAIN_THREADS:
            raw[f"Grain, {threads} threads"] = functools.partial(ways.grain, threads)
    if has("Grain with OpenCV", "grain", "cv2"):
        for threads in GRAIN_THREADS:
            way = functools.partial(ways.grain, threads, augment=True)
            augmented[f"Grain with OpenCV, {threads} threads"] = way
    if has("torch DataLoader with OpenCV", "torch", "cv2"):
        augmented["torch DataLoader with OpenCV, 2 workers"] = ways.torch_loader

    apply = jax.jit(ways.aug.apply)

    def reference(orders: Iterator[np.ndarray], augment: bool) -> Iterator[Any]:
        for records in orders:
            params = jax.tree.map(lambda x, chosen=records: x[chosen], ways.params)
            images = ways.images[records]
            yield apply(images, params) if augment else images

    errors = {}
    for augment, table in ((False, raw), (True, augmented)):
        for name, epoch in table.items():
            levels = peers.LEVELS if "OpenCV" in name else 0
            expected = functools.partial(reference, ways.records(), augment)
            errors[name] = compare(name, epoch, expected, levels)
        name = "pipeline, augmented" if augment else "pipeline"
        table[name] = functools.partial(ways.pipeline, augment)
        order = list(ways.pipeline_order())
        expected = functools.partial(reference, iter(order), augment)
        errors[name] = compare(name, table[name], expected, 0)
    ready = [jax.numpy.asarray(ways.images[r]) for r in itertools.islice(ways.records(), 8)]
    kernel = functools.partial(ways.kernel, ready, apply)
    return {**raw, **augmented, "the kernel alone, 2 threads": kernel}, missing, errors


def compared(epochs: dict[str, Epoch], rounds: int) -> list[harness.Row]:
    """All ways in turns."""
    arms = {name: drained(epoch) for name, epoch in epochs.items()}
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


def with_memory_kept(rounds: int) -> list[harness.Row] | None:
    """Compare in this process with freed memory kept; return None if that is not possible."""
    if (
        not jk.performance.tune_host_allocator()
    ):  # before JAX starts threads, which have separate heaps
        return None
    return compared(found(made_ways())[0], rounds)


def while_spinning(ways: Ways, rounds: int) -> list[harness.Row]:
    """Compare one native worker while a Python thread, or another process, computes constantly."""
    table = []
    for label, augment in (("raw", False), ("augmented", True)):
        spinning = {"a process spins": process_spins, "a thread spins": thread_spins}
        seconds: dict[str, list[float]] = {name: [] for name in spinning}
        for _ in harness.progress(range(rounds), "spinning"):
            for name, spins in spinning.items():
                with spins():
                    seconds[name].append(_later_epochs(ways, augment))
        name = f"{label}, 1 worker: a Python thread spins, against another process that does"
        samples = {name: Samples(tuple(found)) for name, found in seconds.items()}
        table.append(harness.Row(name, samples, "a thread spins", ["a process spins"], 0.9))
    return table


def _later_epochs(ways: Ways, augment: bool) -> float:
    """Return the seconds of an epoch after a first one, which touches the memory of all slots."""
    batches = ways.assembly(augment, 1, SPIN_CAPACITY, SPIN_EPOCHS + 1)
    _touch(batches, SPIN_CAPACITY)
    for _ in itertools.islice(batches, COUNT // BATCH - SPIN_CAPACITY):
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
    ways = Ways(made_images(COUNT // 4), np.arange(COUNT // 4))
    few = np.arange(COUNT // 4) % 8
    small = functools.partial(jk.ring.Assembly, {"image": ways.images[:8]}, few, 2)
    with small(producers={"image": ways.producer} if augment else {}) as batches:
        list(batches)  # programs and memory of threads, which are allocated once
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # so that slots do not reuse freed memory
    before, most = anonymous_bytes(), 0
    for batch in ways.assembly(augment):
        del batch
        most = max(most, anonymous_bytes() - before)
    slots = 4 * BATCH * (SIZE * SIZE * 3 * 4 if augment else BYTES)
    return {"added_mib": most / 2**20, "slots_mib": slots / 2**20}


def consumer_wait(ways: Ways) -> dict[str, float]:
    """Return the fraction of time that a consumer waits which needs 1.2 times the producer's time.

    The producer's time is measured again in every turn, since the machine's speed changes.
    """
    shares, calls, works = [], [], []
    order = np.tile(ways.order, 2)
    for _ in range(9):
        with jk.ring.Assembly({"image": ways.images}, order, BATCH, workers=1) as batches:
            _touch(batches, SLOTS)
            begin = time.perf_counter()
            taken = 0
            while taken < COUNT // BATCH:  # polls, to be as busy as the consumer
                try:
                    batches.get(0)
                    taken += 1
                except TimeoutError:
                    pass
            works.append(work := 1.2 * (time.perf_counter() - begin) / taken)
            time.sleep(0.1)  # nobody is ahead of the first batches
            first, begin, asked = batches.stats().consumer_wait, time.perf_counter(), 0.0
            for _ in range(COUNT // BATCH - SLOTS):
                before = time.perf_counter()
                batch = batches.get()
                taken_at = time.perf_counter()
                asked += taken_at - before
                while time.perf_counter() < taken_at + work:
                    pass
                del batch
            whole = time.perf_counter() - begin
            shares.append((batches.stats().consumer_wait - first) / whole)
            calls.append(asked / whole)
    return {
        "share": statistics.median(shares),
        "most": max(shares),
        "share_of_get": statistics.median(calls),
        "work_seconds": statistics.median(works),
    }


def notes_of(held: dict[str, dict[str, float]], wait: dict[str, float]) -> list[str]:
    """Memory and the consumer's wait in words."""
    lines = []
    for name, sizes in held.items():
        beyond = sizes["added_mib"] - sizes["slots_mib"]
        lines.append(
            f"Memory, {name}: {sizes['added_mib']:.1f} MiB, of which {sizes['slots_mib']:.1f} are "
            f"the slots: {beyond:+.1f} (at most 8: {'reached' if beyond <= 8 else '**not**'}).\n"
        )
    verdict = "reached" if wait["share"] < 0.01 else "**not**"
    lines.append(
        f"A consumer that takes 1.2 of the producer's time waits for {100 * wait['share']:.2f}% of "
        f"its time (median of 9 epochs, at most {100 * wait['most']:.2f}; bar 1: {verdict}); its "
        f"calls of get take {100 * wait['share_of_get']:.2f}%."
    )
    return lines


def main() -> None:
    options = harness.parse(__doc__, rounds=(7, 3))
    rounds = options.rounds
    ways = made_ways()
    epochs, missing, errors = found(ways)
    held = {
        name: in_fresh_process(memory, augment)
        for name, augment in (("raw", False), ("augmented", True))
    }
    wait = consumer_wait(ways)
    tables = {"as a program starts": compared(epochs, rounds)}
    if table := in_fresh_process(with_memory_kept, rounds):
        tables["freed memory kept"] = table
    tables["while Python computes"] = while_spinning(ways, rounds)
    lines = []
    for state, table in tables.items():
        lines += [f"## {state[0].upper()}{state[1:]}", "", *harness.rates(table, COUNT), ""]
    first = tables["as a program starts"][0]
    rate = COUNT * BYTES / first.samples[first.ours].median / 1e9
    lines += [f"Raw batches: {rate:.1f} GB/s of images read, and as many written.", ""]
    lines += [*(f"{name} is missing." for name in missing), *notes_of(held, wait)]
    text = "\n".join(lines)
    note = (
        f"{COUNT:,} u8 images {SIDE}x{SIDE}x3, random order, batches of {BATCH}. Medians of "
        "interleaved epochs."
    )
    record = {
        "images": COUNT,
        "tables": {
            state: {
                "samples": table[0].samples,
                "ratios": harness.ratios(table),
            }
            for state, table in tables.items()
        },
        "largest_difference_in_levels": errors,
        "memory": held,
        "consumer_wait": wait,
        "missing": missing,
    }
    packages = ["grain", "opencv-python-headless", "torch"]
    harness.write(
        "ring-batches", "Batches from RAM", text, record, packages, note, quick=options.quick
    )


if __name__ == "__main__":
    main()
