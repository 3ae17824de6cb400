"""Native kernels and the native ring, without Python or XLA.

    python benchmarks/native.py image build/bench/bench_image

``make bench-native`` builds the programs. Calls from Python are measured here: of images, the
overhead of a call, as the time of an 8x8 image inside jit; of the ring, the time to transfer a
batch of 1 KiB to Python, compared with a queue. One thread puts and gets, so that no time is spent
waiting.
"""

from __future__ import annotations

import queue
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import harness
import image_augment
import jax
import numpy as np
from photographs import crops

import jaxkern as jk

BATCHES = 32  # that a turn of the ring transfers


def calls_inside_jit(rounds: int) -> tuple[list[str], dict[str, float]]:
    """Return a sentence on the overhead of a call, and the microseconds of the calls."""
    jk.performance.tune_host_allocator()
    normalize = jk.image.Compose([image_augment.NORMALIZE])
    large = jax.numpy.asarray(crops()[:, :224, :224])
    tiny = large[:1, :8, :8]
    empty = jax.jit(lambda x: x + 1).lower(tiny).compile()
    arms = {
        "a jitted x + 1": lambda: empty(tiny),
        "one image of 8x8": image_augment.jitted(normalize, tiny, [{}]),
        "64 images of 224x224": image_augment.jitted(normalize, large, [{}]),
    }
    samples = harness.interleave(arms, rounds)
    us = {name: 1e6 * samples[name].median for name in arms}
    nothing, one, many = us.values()
    sentence = (
        f"FFI overhead: {one - nothing:.2f} us a call. Normalizing and casting 64 images inside "
        f"jit takes {many / len(large):.2f} us an image."
    )
    return [sentence], us


def transfers_to_python(rounds: int) -> tuple[list[str], dict[str, Any]]:
    """Return a table of the microseconds per batch of put and get, and all of them."""
    batches = [np.full((16, 16), i, np.float32) for i in range(BATCHES)]
    rings = [jk.ring.Ring(batches[0], capacity=2 * BATCHES) for _ in range(2)]
    waiting: queue.Queue[np.ndarray] = queue.Queue()
    token = rings[1].token()
    pop = jax.jit(lambda token: jk.ring.pop(rings[1], token)[0])
    arms: dict[str, tuple[Callable[[Any], Any], Callable[[], jax.Array]]] = {
        "ring.get": (rings[0].put, rings[0].get),
        "jitted ring.pop": (rings[1].put, lambda: pop(token).block_until_ready()),
        "queue.Queue + device_put": (waiting.put, lambda: jax.device_put(waiting.get())),
    }
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in arms}
    for turn in harness.progress(range(rounds + 1), "timing"):
        for name, (put, get) in arms.items():
            start = time.perf_counter()
            for batch in batches:
                put(batch)
            middle = time.perf_counter()
            received = [get() for _ in batches]
            end = time.perf_counter()
            if turn == 0:  # compiles
                np.testing.assert_array_equal(received, batches)
                continue
            times[name].append((1e6 * (middle - start) / BATCHES, 1e6 * (end - middle) / BATCHES))
    rows = (
        [name, *(f"{median(pair[i] for pair in pairs):.1f}" for i in range(2))]
        for name, pairs in times.items()
    )
    header = "a batch of 1 KiB | put, us | get as a jax.Array, us"
    lines = harness.table(header, "lrr", rows)
    return [*lines, "", "Bars: 15 us for ring.get, 2 us between native threads."], times


def main() -> None:
    choices = {"choices": ("image", "xpcs", "ring")}
    program = {"type": Path, "metavar": "PROGRAM", "help": "build/bench/bench_KIND"}
    bench = harness.Benchmark(__doc__, {"kind": choices, "program": program})
    kind, command = bench.options.kind, [bench.options.program.absolute()]
    if bench.quick and kind != "ring":
        command += ["--repetitions", "2"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    more, times = [], {}
    if kind == "image":
        more, times = calls_inside_jit(5 if bench.quick else 25)
    elif kind == "ring":
        more, times = transfers_to_python(20 if bench.quick else 200)
    bench.write([lines, *more], name=f"native-{kind}", microseconds=times)


if __name__ == "__main__":
    main()
