"""Statistics of measured seconds: what describes one list of them, and what compares two."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxkern.core.arguments import check_integer, check_number

Outcome = Literal["faster", "slower", "no difference shown"]
LEAST_SAMPLES = 5


@dataclasses.dataclass(frozen=True)
class Samples:
    """Seconds, one number a measurement, and what is said of them."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        given = np.asarray(self.seconds, dtype=np.float64)
        if given.ndim != 1 or given.size == 0 or not np.all(np.isfinite(given)) or given.min() < 0:
            raise ValueError(
                f"the samples are {self.seconds!r:.80}; wanted one or more finite numbers of "
                "seconds, none below 0"
            )

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def mean(self) -> float:
        return float(np.mean(self.seconds))

    @property
    def std(self) -> float:
        """The standard deviation of a sample (n - 1); NaN for a single one."""
        return float(np.std(self.seconds, ddof=1)) if len(self.seconds) > 1 else float("nan")

    @property
    def min(self) -> float:
        return min(self.seconds)

    @property
    def max(self) -> float:
        return max(self.seconds)

    @property
    def p90(self) -> float:
        return self.percentile(90)

    def percentile(self, q: float) -> float:
        """The q-th percentile, interpolated linearly between samples."""
        return float(np.percentile(self.seconds, q))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio of medians with its bootstrap interval, NaN where there are too few samples."""

    value: float
    low: float
    high: float
    confidence: float
    samples: int

    def outcome(self, least_change: float = 0.0) -> Outcome:
        """What a ratio of times after / before shows.

        Only an interval that lies beyond ``1 - least_change`` or ``1 + least_change`` as a whole
        shows a difference, and only from `LEAST_SAMPLES` samples on.
        """
        if self.samples < LEAST_SAMPLES:
            return "no difference shown"
        if self.high < 1 - least_change:
            return "faster"
        return "slower" if self.low > 1 + least_change else "no difference shown"

    @property
    def inverse(self) -> Ratio:
        """The same comparison the other way round: a speedup from a ratio of times."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low, self.confidence, self.samples)

    def __str__(self) -> str:
        if self.samples < LEAST_SAMPLES:
            return f"{self.value:.3g}"
        return f"{self.value:.3g} ({self.low:.3g} to {self.high:.3g})"


def ratio_of_medians(
    after: Sequence[float],
    before: Sequence[float],
    *,
    paired: bool = False,
    confidence: float = 0.95,
    resamples: int = 4000,
    block: int | None = None,
    seed: int = 0,
) -> Ratio:
    """``median(after) / median(before)`` with a percentile bootstrap interval (Efron 1979).

    Samples that were measured one after the other are alike, because a machine is slow for a while:
    they are drawn in blocks of neighbours, of which the last and the first are two (Politis and
    Romano 1992), which widens the interval accordingly.

    Fewer than `LEAST_SAMPLES` samples have no interval.

    Args:
      paired: the i-th samples of both were measured in the same round: rounds are drawn, so that
        what slows a whole round cancels.
      block: how many neighbours are drawn together; by default the square root of the number of
        samples, and 1 where they are paired.
      seed: of the resampling, so that the same samples always give the same interval.

    Raises:
      ValueError: samples that are missing, not above 0, or of different number where paired; a
        number out of its range.
    """
    confidence = check_number("confidence", confidence, 0, 1)
    resamples, seed = check_integer("resamples", resamples, 1), check_integer("seed", seed, 0)
    block = None if block is None else check_integer("block", block, 1)
    over, under = np.asarray(after, np.float64), np.asarray(before, np.float64)
    for name, given in (("after", over), ("before", under)):
        if given.ndim != 1 or given.size == 0 or not np.all(np.isfinite(given)) or given.min() <= 0:
            raise ValueError(f"{name} is {given!r:.80}; wanted seconds above 0")
    if paired and len(over) != len(under):
        raise ValueError(f"paired samples of {len(over)} and {len(under)} rounds; wanted as many")
    value, samples = float(np.median(over) / np.median(under)), min(len(over), len(under))
    if samples < LEAST_SAMPLES:
        return Ratio(value, math.nan, math.nan, confidence, samples)
    generator = np.random.default_rng(seed)
    block = (1 if paired else None) if block is None else block
    drawn = _draws(generator, resamples, len(over), block)
    other = drawn if paired else _draws(generator, resamples, len(under), block)
    ratios = np.median(over[drawn], axis=1) / np.median(under[other], axis=1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return Ratio(value, float(low), float(high), confidence, samples)


def _draws(
    generator: np.random.Generator, resamples: int, count: int, block: int | None
) -> np.ndarray:
    """Indices [resamples, count] of samples, in runs of ``block`` neighbours, the last one cut.

    Runs go on at the beginning, so that samples at the ends are drawn as often as others.
    """
    length = round(count**0.5) if block is None else min(block, count)
    starts = generator.integers(count, size=(resamples, -(-count // length)))
    runs = (starts[:, :, None] + np.arange(length)) % count
    return runs.reshape(resamples, -1)[:, :count]
