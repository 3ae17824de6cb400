"""Overheads of jaxkern: import, tracing and compiling, memory, tools that are not in use.

    python benchmarks/overheads.py            # prints, and writes benchmarks/results/
    python benchmarks/overheads.py --quick    # fewer processes, writes nothing

Import times are measured in new processes, compile times with new functions in one process. Memory
is the peak of a process minus the input and the output of the call. A jitted call is timed in
processes that have used `watch_compiles` and in others that have not, in turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import harness

IMPORT_BAR_MS, COMPILE_BAR_MS, MEMORY_BAR_MIB, WATCH_BAR_US = 60.0, 60.0, 4.0, 1.0
IMPORTS = (
    "import time; a = time.perf_counter(); import jax; b = time.perf_counter(); import jaxkern;"
    "print(time.perf_counter() - b)"
)


def call(function: str, argument: bool) -> float:
    return float(harness.call("overheads", function, argument, JAXKERN_BACKEND="native"))


def inputs(copies: int, antialias: bool) -> tuple[Any, Any, Any]:
    """Return the chain of image_augment.py, images, and parameters."""
    import image_augment as bench
    import jax
    import jax.numpy as jnp
    import numpy as np

    import jaxkern as jk

    images = jnp.asarray(np.tile(bench.photographs(), (copies, 1, 1, 1)))
    aug = bench.chain(antialias=antialias)
    keys = jk.random.record_keys(0, 0, np.arange(len(images)))
    return aug, images, jax.jit(lambda k: aug.sample(k, images.shape[1:3]))(keys)


def compiles(rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of compiling new functions: empty ones, and ones with the op."""
    import jax

    aug, images, params = inputs(1, antialias=False)

    def seconds(function: Callable[..., Any]) -> float:
        jax.clear_caches()
        start = time.perf_counter()
        jax.jit(function).lower(images, params).compile()
        return time.perf_counter() - start

    pairs = [
        (seconds(lambda x, p: x), seconds(lambda x, p: aug.apply(x, p)))
        for _ in harness.progress(range(rounds), "compiling")
    ]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def memory(antialias: bool) -> float:
    """Return MiB per thread of this process's peak beyond the result of a call on 512 images."""
    import jax

    import jaxkern as jk
    from jaxkern.core.threads import schedulable_cpus

    aug, images, params = inputs(8, antialias)
    compiled = jax.jit(aug.apply).lower(images, params).compile()
    with jk.benchmarking.ResourceMeter() as meter:
        out = compiled(images, params).block_until_ready()
    beyond = meter.used.peak_bytes - meter.used.start_bytes - out.nbytes
    return float(beyond / 2**20 / schedulable_cpus())


def jitted_call(watched: bool) -> float:
    """Return the seconds of a jitted call, the least of this process, perhaps after a watch."""
    import jax
    import jax.numpy as jnp

    import jaxkern as jk

    fn, x = jax.jit(lambda x: x + 1), jnp.ones(4)
    if watched:
        with jk.performance.watch_compiles():
            fn(x)
    jax.block_until_ready(fn(x))
    best = float("inf")
    for _ in range(400):
        start = time.perf_counter()
        for _ in range(100):
            y = fn(x)
        y.block_until_ready()
        best = min(best, (time.perf_counter() - start) / 100)
    return best


def main() -> None:
    options = harness.parse(__doc__, rounds=(15, 5))
    processes = harness.progress(range(options.rounds + 1), "imports")
    # The first process fills the file cache.
    imports = [float(harness.in_new_python("-c", IMPORTS)) for _ in processes][1:]
    empty, apply = compiles(options.rounds)
    watches = harness.progress(range(options.rounds // 2 + 1), "watches")
    calls = [(call("jitted_call", False), call("jitted_call", True)) for _ in watches]
    added = [median(pair[i] for pair in calls) for i in range(2)]
    values = [
        ("import jaxkern beyond import jax, ms", 1e3 * median(imports), IMPORT_BAR_MS),
        (
            "tracing and compiling apply beyond an empty function, ms",
            1e3 * (median(apply) - median(empty)), COMPILE_BAR_MS,
        ),
        (
            "a jitted call after watch_compiles beyond one without, us",
            1e6 * (added[1] - added[0]), WATCH_BAR_US,
        ),
    ]  # fmt: skip
    for antialias in (False, True):
        name = f"memory beyond input and output, antialias={antialias}, MiB a thread"
        values.append((name, call("memory", antialias), MEMORY_BAR_MIB))
    rows = ((n, f"{v:.1f}", f"{bar:g}", harness.at_most(v, bar)) for n, v, bar in values)
    lines = harness.table(" | measured | bar | ", "lrrl", rows)
    record = {"import": imports, "compile": {"empty": empty, "apply": apply}, "calls": calls}
    harness.write("overheads", "Overheads", lines, record, quick=options.quick)


if __name__ == "__main__":
    main()
