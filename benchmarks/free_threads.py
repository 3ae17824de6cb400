"""Worker threads that run a Python function, on free-threaded Python, with and without the GIL.

Two numbers of worker threads take turns, one epoch each, in a process without the GIL and in one
with it. The batches are compared first.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
from typing import Any

import harness
import numpy as np

import jaxkern as jk

BATCH, BAR = 16, 1.7
ROWS = {"x": np.arange(640, dtype=np.int64)}


def collatz(batch: dict[str, Any]) -> dict[str, Any]:
    """Count the steps from each number to 1: work of the interpreter alone."""
    counts = []
    for start in batch["x"].tolist():
        steps = 0
        for number in range(start + 1, start + 201):
            while number != 1:
                number = 3 * number + 1 if number % 2 else number // 2
                steps += 1
        counts.append(steps)
    return {**batch, "steps": np.array(counts, np.int32)}


def measure(rounds: int) -> dict[str, harness.Samples]:
    """Return the seconds of epochs with one and with two worker threads."""
    pipes = {f"{n}": jk.from_source(ROWS, BATCH, num_workers=n) >> collatz for n in (1, 2)}
    one, two = ([np.asarray(batch["steps"]) for batch in pipe] for pipe in pipes.values())
    np.testing.assert_array_equal(one, two)
    epochs = {name: functools.partial(iter, pipe) for name, pipe in pipes.items()}
    return harness.interleave_epochs(epochs, rounds)


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(15, 3))
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        sys.exit("expected free-threaded Python, 3.13t or later: make bench-freethreaded")
    rows = []
    for name, gil in (("without the GIL", "0"), ("with the GIL", "1")):
        samples = harness.call("free_threads", "measure", bench.rounds, PYTHON_GIL=gil)
        row = harness.Row(name, samples, "2", ["1"], BAR if gil == "0" else 0)
        rows.append(row.cells(count=len(ROWS["x"])))
    header = f"interpreter | 1 worker, records/s | 2 workers | {harness.RATIO}"
    bench.write(harness.table(header, "lrrrrl", rows))


if __name__ == "__main__":
    main()
