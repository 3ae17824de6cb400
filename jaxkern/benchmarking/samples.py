"""Statistics of measured times: figures of one sample, and comparison of two."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from jaxkern.core.arguments import check_integer, check_number

Outcome = Literal["faster", "slower", "no difference shown"]
MIN_SAMPLES = 5


@dataclasses.dataclass(frozen=True)
class Samples:
    """Measured times in seconds, one per measurement, and their statistics."""

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        values = np.asarray(self.seconds, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.isfinite(values).all() or values.min() < 0:
            raise ValueError(f"seconds: expected finite numbers >= 0, got {self.seconds!r:.80}")

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
        """Sample standard deviation (n - 1); NaN for a single sample."""
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
        """Return the q-th percentile, with linear interpolation."""
        return float(np.percentile(self.seconds, q))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio of medians with its bootstrap interval, which is NaN for too few samples."""

    value: float
    low: float
    high: float
    confidence: float
    samples: int

    def outcome(self, least_change: float = 0.0) -> Outcome:
        """Judge a ratio of times after / before.

        There is a difference only if the entire interval is below ``1 - least_change`` or above
        ``1 + least_change``, and there are at least `MIN_SAMPLES` samples.
        """
        if self.samples < MIN_SAMPLES:
            return "no difference shown"
        if self.high < 1 - least_change:
            return "faster"
        return "slower" if self.low > 1 + least_change else "no difference shown"

    @property
    def inverse(self) -> Ratio:
        """The inverse ratio: a speedup from a ratio of times."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low, self.confidence, self.samples)

    def __str__(self) -> str:
        if self.samples < MIN_SAMPLES:
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
    """Return ``median(after) / median(before)`` with a percentile bootstrap interval (Efron 1979).

    Successive samples are correlated, and therefore drawn in circular blocks of neighbors (Politis
    and Romano 1992). With fewer than `MIN_SAMPLES` samples there is no interval.

    Args:
      after, before: times in seconds, above 0.
      paired: True if the i-th samples of both were measured in the same round. Rounds are drawn, so
        that a slowdown of an entire round cancels.
      confidence: coverage of the interval.
      resamples: number of bootstrap resamples.
      block: number of neighbors in a block; by default the square root of the number of samples,
        and 1 if paired.
      seed: seed of the resampling.

    Raises:
      ValueError: for missing or nonpositive samples, paired samples of different lengths, or an
        invalid argument.
    """
    confidence = check_number("confidence", confidence, 0, 1)
    resamples, seed = check_integer("resamples", resamples, 1), check_integer("seed", seed, 0)
    block = None if block is None else check_integer("block", block, 1)
    over, under = np.asarray(after, np.float64), np.asarray(before, np.float64)
    for name, values in (("after", over), ("before", under)):
        finite = values.ndim == 1 and values.size and np.isfinite(values).all()
        if not finite or values.min() <= 0:
            raise ValueError(f"{name}: expected seconds above 0, got {values!r:.80}")
    if paired and len(over) != len(under):
        raise ValueError(f"paired samples: expected one length, got {len(over)} and {len(under)}")
    value, samples = float(np.median(over) / np.median(under)), min(len(over), len(under))
    if samples < MIN_SAMPLES:
        return Ratio(value, math.nan, math.nan, confidence, samples)
    generator = np.random.default_rng(seed)
    block = 1 if paired and block is None else block
    indices = draw_blocks(generator, resamples, len(over), block)
    other = indices if paired else draw_blocks(generator, resamples, len(under), block)
    ratios = np.median(over[indices], axis=1) / np.median(under[other], axis=1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return Ratio(value, float(low), float(high), confidence, samples)


def draw_blocks(
    generator: np.random.Generator, resamples: int, count: int, block: int | None
) -> np.ndarray:
    """Draw indices [resamples, count] of samples in circular blocks, so that all are as likely."""
    length = round(count**0.5) if block is None else min(block, count)
    starts = generator.integers(count, size=(resamples, -(-count // length)))
    blocks = (starts[:, :, None] + np.arange(length)) % count
    return blocks.reshape(resamples, -1)[:, :count]
