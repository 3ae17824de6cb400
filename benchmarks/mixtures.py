"""A mixture of three sources compared with a single source.

    python benchmarks/mixtures.py            # prints, and writes benchmarks/results/
    python benchmarks/mixtures.py --quick    # few rounds, writes nothing

The sources are thirds of the single source, so that an epoch of each arm reads the same records,
which is checked first. The arms take turns, one epoch each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import numpy as np
from peers import MEAN, STD

import jaxkern as jk
from jaxkern.pipeline import Pipeline

BATCH, BAR = 64, 0.95
COUNT = 48 * BATCH
PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 128, 128, 3), np.uint8)
NUMBERS = np.arange(COUNT, dtype=np.int32)
CHAIN = jk.image.Compose(
    [
        jk.image.RandomResizedCrop(112),
        jk.image.RandomHorizontalFlip(0.5),
        jk.image.Normalize(MEAN.tolist(), STD.tolist()),
    ]
)
Change = Callable[[Pipeline], Pipeline]


def halved(batch: dict[str, Any]) -> dict[str, Any]:
    """Halve the image; NumPy releases the GIL for it."""
    return {**batch, "image": batch["image"] >> 1}


def rows(first: int, last: int) -> Pipeline:
    source = {"image": PIXELS[first:last], "number": NUMBERS[first:last]}
    return jk.from_source(source, BATCH, shuffle=True)


# What is applied to every source, and to the mixture.
WORKS: dict[str, tuple[Change, Change]] = {
    "rows in native threads": (lambda pipe: pipe, lambda pipe: pipe),
    "augmented in native threads": (lambda pipe: pipe, lambda pipe: pipe >> CHAIN),
    "a NumPy function before the mixture": (lambda pipe: pipe >> halved, lambda pipe: pipe),
    "a NumPy function after the mixture": (lambda pipe: pipe, lambda pipe: pipe >> halved),
}


def main() -> None:
    options = harness.parse(__doc__, rounds=(25, 3))
    table, record = [], {}
    third = COUNT // 3
    for work, (before, after) in harness.progress(WORKS.items(), "works"):
        parts = [(before(rows(at, at + third)), 1) for at in range(0, COUNT, third)]
        mixture = after(jk.mix(parts, stop="last"))
        pipes = {"mixture": mixture, "alone": after(before(rows(0, COUNT)))}
        for pipe in pipes.values():
            if sorted(n for b in pipe for n in np.asarray(b["number"])) != NUMBERS.tolist():
                raise ValueError(f"an epoch of {work} does not contain every record once")
        arms = {name: harness.drained(pipe.__iter__) for name, pipe in pipes.items()}
        samples = harness.interleave(arms, options.rounds, warmup=1, turn_seconds=0)
        table.append(harness.Row(work, samples, "mixture", ["alone"], BAR))
        record[work] = {"samples": samples}
    title = "A mixture of three sources compared with a single source"
    harness.write("mixtures", title, harness.rates(table, COUNT), record, quick=options.quick)


if __name__ == "__main__":
    main()
