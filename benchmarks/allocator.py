"""Page faults of calls under ``tune_host_allocator``, in fresh processes.

    python benchmarks/allocator.py               # prints, and writes benchmarks/results/
    python benchmarks/allocator.py --runs 2      # fewer processes, writes nothing

A process calls a jitted `x + 1` and a native op with results of several sizes. The heap grows in
the first calls; of the last 20 of 40 calls, at most 5% may fault. A call counts as faulting if its
page faults exceed 1% of the pages of its result.
"""

from __future__ import annotations

import resource
from importlib import metadata
from typing import Any

import harness

SIZES_MIB = (16, 38, 64, 154)
CALLS, LAST = 40, 20


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(tuned: bool) -> list[Any]:
    """Return True if memory is kept, and (name, MiB, pages, faults per call) in this process."""
    import jax
    import jax.numpy as jnp

    import jaxkern as jk

    kept = jk.performance.tune_host_allocator() if tuned else False
    normalize = jk.image.Compose([jk.image.Normalize([0.5] * 3, [0.2] * 3)])
    add, native = jax.jit(lambda x: x + 1), jax.jit(lambda x: normalize.apply(x, ({},)))
    rows = []
    for size in SIZES_MIB:
        images = jnp.zeros(((size << 20) // 786432, 256, 256, 3), "u1")
        for name, call, x in (("XLA", add, jnp.zeros(size << 18)), ("jaxkern", native, images)):
            counts = []
            for _ in range(CALLS):
                before = faults()
                result = call(x).block_until_ready()
                counts.append(faults() - before)
                pages = result.nbytes // 4096
                del result
            rows.append([name, size, pages, counts])
    return [kept, rows]


def process(tuned: bool) -> list[Any]:
    without = ["MALLOC_", "XLA_", "GLIBC_TUNABLES"]
    return harness.call("allocator", "measure", tuned, without=without, JAXKERN_BACKEND="native")


def main() -> None:
    processes = {"type": int, "default": 20, "help": "results are written for at least 20"}
    options = harness.parse(__doc__, ("--runs", processes))
    runs = 2 if options.quick else options.runs
    plain = process(False)[1]
    tuned = [process(True) for _ in harness.progress(range(runs), "processes")]
    rows = []
    for i, (name, size, pages, counts) in enumerate(plain):
        bad = [sum(c > pages / 100 for c in cases[i][3][-LAST:]) for _, cases in tuned]
        verdict = "kept" if sum(bad) <= LAST * runs / 20 else "**not kept**"
        median = f"{sorted(counts[-LAST:])[LAST // 2]:,}"
        rows.append([f"{size} MiB", name, median, sum(bad), max(bad), verdict])
    header = (
        f"result | of | faults a call, untuned | tuned: faulting calls of {LAST * runs} "
        "| most in one process | "
    )
    kept = sum(kept for kept, _ in tuned)
    summary = f"tune_host_allocator returned True in {kept} of {runs} processes."
    lines = [*harness.table(header, "rlrrrl", rows), "", summary]
    name = f"allocator-jax-{metadata.version('jax')}"
    record = {"untuned": plain, "tuned": tuned}
    harness.write(name, "Memory kept between calls", lines, record, note="", quick=runs < 20)


if __name__ == "__main__":
    main()
