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
import jax
import numpy as np

import jaxkern as jk
from jaxkern.pipeline import Pipeline

BATCH = 64
COUNT = 48 * BATCH
BAR = 0.95
RNG = np.random.default_rng(0)
PIXELS = RNG.integers(0, 256, (COUNT, 128, 128, 3), np.uint8)
NUMBERS = np.arange(COUNT, dtype=np.int32)
CHAIN = jk.image.Compose(
    [
        jk.image.RandomResizedCrop(112),
        jk.image.RandomHorizontalFlip(0.5),
        jk.image.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
    ]
)


def halved(batch: dict[str, Any]) -> dict[str, Any]:
    """Halve the image; NumPy releases the GIL for it."""
    return {**batch, "image": batch["image"] >> 1}


def rows(first: int, last: int) -> Pipeline:
    source = {"image": PIXELS[first:last], "number": NUMBERS[first:last]}
    return jk.from_source(source, BATCH, shuffle=True)


WORKS: dict[str, tuple[Callable[[Pipeline], Pipeline], Callable[[Pipeline], Pipeline]]] = {
    "rows in native threads": (lambda pipe: pipe, lambda pipe: pipe),
    "augmented in native threads": (lambda pipe: pipe, lambda pipe: pipe >> CHAIN),
    "a NumPy function before the mixture": (lambda pipe: pipe >> halved, lambda pipe: pipe),
    "a NumPy function after the mixture": (lambda pipe: pipe, lambda pipe: pipe >> halved),
}


def epoch(pipe: Pipeline) -> None:
    for batch in pipe:
        jax.block_until_ready(batch)


def numbers(pipe: Pipeline) -> list[int]:
    return sorted(int(n) for batch in pipe for n in np.asarray(batch["number"]))


def main() -> None:
    options = harness.parse(__doc__, rounds=(25, 3))
    found, record = [], {}
    for work, (before, after) in harness.progress(WORKS.items(), "works"):
        third = COUNT // 3
        parts = [before(rows(at, at + third)) for at in range(0, COUNT, third)]
        mixture = after(jk.mix([(part, 1) for part in parts], stop="last"))
        pipes = {"mixture": mixture, "alone": after(before(rows(0, COUNT)))}
        if any(numbers(pipe) != NUMBERS.tolist() for pipe in pipes.values()):
            raise ValueError(f"an epoch of {work} does not contain every record once")
        arms = {name: lambda pipe=pipe: epoch(pipe) for name, pipe in pipes.items()}
        count = options.rounds
        samples = harness.interleave(arms, count, warmup=1, turn_seconds=0)
        found.append(harness.Row(work, samples, "mixture", ["alone"], BAR))
        record[work] = {"samples": samples}
    text = "\n".join(harness.rates(found, COUNT))
    title = "A mixture of three sources compared with a single source"
    harness.write("mixtures", title, text, record, quick=options.quick)


if __name__ == "__main__":
    main()
