"""Time to transfer a small batch to Python as a jax.Array: the ring compared with a queue.

    python benchmarks/ring_handover.py [build/bench/native-ring.json]

One thread puts and gets, so that no time is spent waiting; the batches are compared first. With the
file that build/bench/bench_ring wrote, the result contains the time between two native threads.
"""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import harness
import jax
import numpy as np

import jaxkern as jk

COUNT = 32  # batches per turn
BAR_NATIVE_US, BAR_PYTHON_US = 2.0, 15.0
Way = tuple[Callable[[Any], Any], Callable[[], jax.Array]]  # stores a batch; returns the next one


def ways(batch: np.ndarray) -> dict[str, Way]:
    ring = jk.ring.Ring(batch, capacity=2 * COUNT)
    programs = jk.ring.Ring(batch, capacity=2 * COUNT)
    waiting: queue.Queue[np.ndarray] = queue.Queue()
    token = programs.token()
    pop = jax.jit(lambda token: jk.ring.pop(programs, token)[0])
    return {
        "ring.get": (ring.put, ring.get),
        "jitted ring.pop": (programs.put, lambda: pop(token).block_until_ready()),
        "queue.Queue + device_put": (waiting.put, lambda: jax.device_put(waiting.get())),
    }


def turn(way: Way, batches: list[np.ndarray]) -> tuple[float, float]:
    """Return the microseconds per batch of put and get."""
    put, get = way
    start = time.perf_counter()
    for batch in batches:
        put(batch)
    middle = time.perf_counter()
    for _ in batches:
        get()
    end = time.perf_counter()
    return (middle - start) * 1e6 / len(batches), (end - middle) * 1e6 / len(batches)


def main() -> None:
    options = harness.parse(
        __doc__,
        ("native", {"nargs": "?", "type": Path, "help": "output of bench_ring --json"}),
        rounds=(200, 20),
    )
    batches = [np.full((16, 16), i, np.float32) for i in range(COUNT)]
    arms = ways(batches[0])
    for put, get in arms.values():
        for batch in batches:
            put(batch)
        for batch in batches:
            np.testing.assert_array_equal(get(), batch)
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for _ in harness.progress(range(options.rounds + 1), "timing"):
        for name, way in arms.items():
            times[name].append(turn(way, batches))
    rows = (
        [name, *(f"{median(pair[i] for pair in pairs[1:]):.1f}" for i in range(2))]
        for name, pairs in times.items()
    )
    lines = harness.table("a batch of 1 KiB | put, us | get as a jax.Array, us", "lll", rows)
    native = json.loads(options.native.read_text())["rows"] if options.native else []
    if native:
        cells = ((r["capacity"], f"{r['us']:.2f}") for r in native)
        lines += ["", *harness.table("slots | between two native threads, us a batch", "ll", cells)]
    bars = f"{BAR_PYTHON_US:g} us for ring.get, {BAR_NATIVE_US:g} us between native threads"
    lines += ["", f"Bars: {bars}."]
    record = {"microseconds": times, "native": native}
    title = "Transfer of a batch through the ring"
    harness.write("ring-handover", title, lines, record, quick=options.quick)


if __name__ == "__main__":
    main()
