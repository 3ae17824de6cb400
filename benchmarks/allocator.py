"""Page faults of calls under ``tune_host_allocator``, in fresh processes.

    python benchmarks/allocator.py               # prints, and writes benchmarks/results/
    python benchmarks/allocator.py --runs 2      # fewer processes, writes nothing

A process calls a jitted `x + 1` and a native op with results of several sizes. The heap grows in
the first calls; of the last 20 of 40 calls, at most 5% may fault. A call counts as faulting if its
page faults exceed 1% of the pages of its result.
"""

from __future__ import annotations

import json
from importlib import metadata
from typing import Any

import harness

SIZES_MIB = (16, 38, 64, 154)
CALLS, LAST = 40, 20

_CHILD = """
import json, resource, sys
import jax, jax.numpy as jnp
import jaxkern as jk
sizes, calls, tuned = json.loads(sys.argv[1])
kept = jk.performance.tune_host_allocator() if tuned else False
normalize = jk.image.Compose([jk.image.Normalize([.5] * 3, [.2] * 3)])
add, native = jax.jit(lambda x: x + 1), jax.jit(lambda x: normalize.apply(x, ({},)))
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
found = []
for size in sizes:
    operands = jnp.zeros(size << 18), jnp.zeros(((size << 20) // 786432, 256, 256, 3), "u1")
    for name, call, x in zip(("XLA", "jaxkern"), (add, native), operands):
        counts = []
        for _ in range(calls):
            before = faults()
            result = call(x).block_until_ready()
            counts.append(faults() - before)
            pages = result.nbytes // 4096
            del result
        found.append([name, size, pages, counts])
print(json.dumps([kept, found]))
"""


def process(tuned: bool) -> list[Any]:
    """Run a new process; return True if memory is kept, and (name, MiB, pages, faults per call)."""
    printed = harness.in_new_python(
        "-c",
        _CHILD,
        json.dumps([SIZES_MIB, CALLS, tuned]),
        without=["MALLOC_", "XLA_", "GLIBC_TUNABLES"],
        JAXKERN_BACKEND="native",
    )
    return json.loads(printed)


def faulting(pages: int, counts: list[int]) -> int:
    return sum(count > pages / 100 for count in counts[-LAST:])


def main() -> None:
    options = harness.parse(
        __doc__,
        (
            "--runs",
            {"type": int, "default": 20, "help": "processes; results are written for at least 20"},
        ),
    )
    runs = 2 if options.quick else options.runs
    plain = process(False)[1]
    tuned = [process(True) for _ in harness.progress(range(runs), "processes")]
    lines = [
        f"| result | of | faults a call, untuned | tuned: faulting calls of {LAST * runs} "
        "| most in one process | |",
        "|--:|---|--:|--:|--:|---|",
    ]
    for i, (name, size, pages, counts) in enumerate(plain):
        bad = [faulting(pages, found[i][3]) for _, found in tuned]
        verdict = "kept" if sum(bad) <= LAST * runs / 20 else "**not kept**"
        lines.append(
            f"| {size} MiB | {name} | {sorted(counts[-LAST:])[LAST // 2]:,} | {sum(bad)} "
            f"| {max(bad)} | {verdict} |"
        )
    honest = sum(kept for kept, _ in tuned)
    lines += ["", f"tune_host_allocator returned True in {honest} of {runs} processes."]
    text = "\n".join(lines)
    name = f"allocator-jax-{metadata.version('jax')}"
    record = {"untuned": plain, "tuned": tuned}
    harness.write(name, "Memory kept between calls", text, record, note="", quick=runs < 20)


if __name__ == "__main__":
    main()
