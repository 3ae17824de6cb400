"""Overheads of jaxkern: import, tracing and compiling, memory, tools that are not in use.

    python benchmarks/overheads.py

Import times are measured in new processes, compile times with new functions in one process. Memory
is the peak of a process minus the input and the output of the call. A jitted call is timed in
processes that have used `watch_compiles` and in others that have not, in turns.
"""

from __future__ import annotations

import statistics
import time

import harness
import image_augment as bench
import jax
import jax.numpy as jnp
import numpy as np

import jaxkern as jk
from jaxkern.core.threads import schedulable_cpus

IMPORT_BAR_MS, COMPILE_BAR_MS, MEMORY_BAR_MIB, WATCH_BAR_US = 60.0, 60.0, 4.0, 1.0


def process(code: str) -> str:
    """Return the output of code in a new Python process."""
    return harness.in_new_python("-c", code, JAXKERN_BACKEND="native")


def imports(rounds: int) -> dict[str, list[float]]:
    """Return seconds of `import jax`, and of `import jaxkern` after it, in new processes."""
    code = (
        "import time; a = time.perf_counter(); import jax; b = time.perf_counter(); import jaxkern;"
        "print(b - a, time.perf_counter() - b)"
    )
    found: dict[str, list[float]] = {"jax": [], "jaxkern after jax": []}
    process(code)  # once for the file cache
    for _ in harness.progress(range(rounds), "imports"):
        for seconds, value in zip(found.values(), process(code).split(), strict=True):
            seconds.append(float(value))
    return found


def compiles(rounds: int) -> dict[str, list[float]]:
    """Seconds from a new function to a compiled program: an empty one, and one with the op."""
    images = jnp.asarray(bench.photographs())
    aug = bench.chain(antialias=False)
    keys = jk.random.record_keys(0, 0, np.arange(len(images)))
    params = jax.jit(lambda k: aug.sample(k, images.shape[1:3]))(keys)
    found: dict[str, list[float]] = {"empty": [], "apply": []}

    def measure(make) -> float:
        jax.clear_caches()
        start = time.perf_counter()
        jax.jit(make()).lower(images, params).compile()
        return time.perf_counter() - start

    for _ in harness.progress(range(rounds), "compiling"):
        found["empty"].append(measure(lambda: lambda x, p: x))
        found["apply"].append(measure(lambda: lambda x, p: aug.apply(x, p)))
    return found


_MEMORY = """
import sys
sys.path.insert(0, {folder!r})
import jax, jax.numpy as jnp, numpy as np
import image_augment as bench, jaxkern as jk
antialias = {antialias}
images = jnp.asarray(np.tile(bench.photographs(), (8, 1, 1, 1)))
aug = bench.chain(antialias=antialias)
keys = jk.random.record_keys(0, 0, np.arange(len(images)))
params = jax.jit(lambda k: aug.sample(k, images.shape[1:3]))(keys)
fn = jax.jit(aug.apply)
compiled = fn.lower(images, params).compile()
with jk.benchmarking.ResourceMeter() as meter:
    out = compiled(images, params).block_until_ready()
print(meter.used.peak_bytes - meter.used.start_bytes - out.nbytes)
"""


def memory() -> dict[str, float]:
    """MiB of the process's peak beyond the result, of a call on 512 images."""
    from pathlib import Path

    found = {}
    for antialias in (False, True):
        code = _MEMORY.format(folder=str(Path(__file__).parent), antialias=antialias)
        found[f"antialias={antialias}"] = int(process(code)) / 2**20
    return found


_CALLS = """
import time
import jax, jax.numpy as jnp, jaxkern as jk
fn, x = jax.jit(lambda x: x + 1), jnp.ones(4)
if {watched}:
    with jk.performance.watch_compiles():
        fn(x)
jax.block_until_ready(fn(x))
best = float("inf")
for _ in range(400):
    begin = time.perf_counter()
    for _ in range(100):
        y = fn(x)
    y.block_until_ready()
    best = min(best, (time.perf_counter() - begin) / 100)
print(best)
"""


def watches(rounds: int) -> dict[str, list[float]]:
    """Seconds of a jitted call, the least of a process, after a watch and without one."""
    found: dict[str, list[float]] = {"never watched": [], "watched before": []}
    for _ in harness.progress(range(rounds), "watches"):
        for name, seconds in found.items():
            seconds.append(float(process(_CALLS.format(watched=name == "watched before"))))
    return found


def main() -> None:
    quick = harness.parse(__doc__).quick
    imported, compiled = imports(5 if quick else 15), compiles(5 if quick else 15)
    beyond = memory()
    watched = watches(3 if quick else 9)
    extra = {
        "import jaxkern beyond import jax, ms": (
            1e3 * statistics.median(imported["jaxkern after jax"]),
            IMPORT_BAR_MS,
        ),
        "tracing and compiling apply beyond an empty function, ms": (
            1e3 * (statistics.median(compiled["apply"]) - statistics.median(compiled["empty"])),
            COMPILE_BAR_MS,
        ),
        "a jitted call after watch_compiles beyond one without, us": (
            1e6
            * (
                statistics.median(watched["watched before"])
                - statistics.median(watched["never watched"])
            ),
            WATCH_BAR_US,
        ),
    }
    threads = schedulable_cpus()
    for name, mib in beyond.items():
        extra[f"memory beyond input and output, {name}, MiB a thread"] = (
            mib / threads,
            MEMORY_BAR_MIB,
        )
    cells = (
        (name, f"{value:.1f}", f"{bar:g}", harness.at_most(value, bar))
        for name, (value, bar) in extra.items()
    )
    text = "\n".join(harness.table("| measured | bar |", "lrrl", cells))
    record = {
        "seconds": {"import": imported, "compile": compiled},
        "watch_seconds": watched,
        "memory_mib": beyond,
        "results": {name: {"value": v, "bar": b} for name, (v, b) in extra.items()},
    }
    harness.write("overheads", "Overheads", text, record, quick=quick)


if __name__ == "__main__":
    main()
