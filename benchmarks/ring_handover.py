"""Time to transfer a small batch to Python as a jax.Array: the ring compared with a queue.

    python benchmarks/ring_handover.py [build/bench/native-ring.json]

One thread puts and gets, so that no time is spent waiting; the batches are compared first. With the
file that build/bench/bench_ring wrote, the result contains the time between two native threads.
"""

from __future__ import annotations

import json
import queue
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import jax
import numpy as np

import jaxkern as jk

COUNT = 32  # batches a turn
BAR_NATIVE_US, BAR_PYTHON_US = 2.0, 15.0


class Way:
    """One way: ``put`` stores a batch, ``get`` returns the next one as a jax.Array."""

    def __init__(self, name: str, put: Callable[[Any], Any], get: Callable[[], jax.Array]):
        self.name, self.put, self.get = name, put, get
        self.put_us: list[float] = []
        self.get_us: list[float] = []

    def turn(self, batches: list[np.ndarray], timed: bool = True) -> None:
        start = time.perf_counter()
        for batch in batches:
            self.put(batch)
        middle = time.perf_counter()
        for _ in batches:
            self.get()
        end = time.perf_counter()
        if timed:
            self.put_us.append((middle - start) * 1e6 / len(batches))
            self.get_us.append((end - middle) * 1e6 / len(batches))


def ways(batch: np.ndarray) -> list[Way]:
    ring = jk.ring.Ring(batch, capacity=2 * COUNT)
    programs = jk.ring.Ring(batch, capacity=2 * COUNT)
    waiting: queue.Queue[np.ndarray] = queue.Queue()
    token = programs.token()
    pop = jax.jit(lambda token: jk.ring.pop(programs, token)[0])
    return [
        Way("ring.get", ring.put, ring.get),
        Way("jitted ring.pop", programs.put, lambda: pop(token).block_until_ready()),
        Way("queue.Queue + device_put", waiting.put, lambda: jax.device_put(waiting.get())),
    ]


def compare(all_ways: list[Way], batches: list[np.ndarray]) -> None:
    for way in all_ways:
        for batch in batches:
            way.put(batch)
        for batch in batches:
            np.testing.assert_array_equal(way.get(), batch)


def main() -> None:
    options = harness.parse(
        __doc__, ("native", {"nargs": "?", "type": Path, "help": "output of bench_ring --json"})
    )
    batches = [np.full((16, 16), i, np.float32) for i in range(COUNT)]
    all_ways = ways(batches[0])
    compare(all_ways, batches)
    for way in all_ways:
        way.turn(batches, timed=False)
    for _ in harness.progress(range(20 if options.quick else 200), "timing"):
        for way in all_ways:
            way.turn(batches)
    rows = [
        {
            "way": way.name,
            "put_us": statistics.median(way.put_us),
            "get_us": statistics.median(way.get_us),
        }
        for way in all_ways
    ]
    lines = harness.table(
        "a batch of 1 KiB | put, us | get as a jax.Array, us",
        "lll",
        ((r["way"], f"{r['put_us']:.1f}", f"{r['get_us']:.1f}") for r in rows),
    )
    native = json.loads(options.native.read_text())["rows"] if options.native else []
    if native:
        cells = ((r["capacity"], f"{r['us']:.2f}") for r in native)
        lines += ["", *harness.table("slots | between two native threads, us a batch", "ll", cells)]
    lines += [
        "",
        f"Bars: {BAR_PYTHON_US:g} us for ring.get, {BAR_NATIVE_US:g} us between native threads.",
    ]
    record = {"rows": rows, "native": native}
    title = "Transfer of a batch through the ring"
    harness.write("ring-handover", title, "\n".join(lines), record, quick=options.quick)


if __name__ == "__main__":
    main()
