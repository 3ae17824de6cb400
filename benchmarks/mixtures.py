"""A mixture of three sources compared with a single source.

The sources are thirds of the single source, so that an epoch of each arm reads the same records,
which is checked first. The arms take turns, one epoch each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import image_augment
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Pipeline

BATCH, BAR = 64, 0.95
COUNT = 48 * BATCH
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 128, 128, 3), np.uint8)
RECORDS = np.arange(COUNT, dtype=np.int32)


def halved(batch: dict[str, Any]) -> dict[str, Any]:
    """Halve the image; NumPy releases the GIL for it."""
    return {**batch, "image": batch["image"] >> 1}


def rows(first: int, last: int) -> Pipeline:
    source = {"image": PIXELS[first:last], "record": RECORDS[first:last]}
    return jk.from_source(source, BATCH, shuffle=True)


def unchanged(pipe: Pipeline) -> Pipeline:
    return pipe


# Functions of every source, and of the mixture.
CASES: dict[str, tuple[Callable[[Pipeline], Pipeline], Callable[[Pipeline], Pipeline]]] = {
    "rows in native threads": (unchanged, unchanged),
    "augmented in native threads": (unchanged, lambda pipe: pipe >> image_augment.chain(112)),
    "a NumPy function before the mixture": (lambda pipe: pipe >> halved, unchanged),
    "a NumPy function after the mixture": (unchanged, lambda pipe: pipe >> halved),
}


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(25, 3))
    table = []
    third = COUNT // 3
    for case, (before, after) in harness.progress(CASES.items(), "cases"):
        parts = [(before(rows(at, at + third)), 1) for at in range(0, COUNT, third)]
        mixture = after(jk.mix(parts, stop="last"))
        pipes = {"mixture": mixture, "alone": after(before(rows(0, COUNT)))}
        for pipe in pipes.values():
            if sorted(n for b in pipe for n in np.asarray(b["record"])) != RECORDS.tolist():
                raise ValueError(f"an epoch of {case} does not contain every record once")
        samples = harness.interleave_epochs({n: p.__iter__ for n, p in pipes.items()}, bench.rounds)
        table.append(harness.Row(case, samples, "mixture", ["alone"], BAR))
    bench.write(harness.rates(table, COUNT))


if __name__ == "__main__":
    main()
