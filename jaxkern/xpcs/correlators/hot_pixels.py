"""Hot pixels: counts that no photons explain, by robust statistics of the pixels of a bin.

Of each pixel, the sum X of its counts and the sum Y of their squares over all frames are compared
with the other pixels of its static bin. Static bins of fewer than `MIN_PIXELS` pixels are joined
within their dynamic bin.

The mean m and the variance v of X are those of the pixels within the limits that follow from m and
v, beginning with the middle half of the pixels. What photons of gain q do not explain, v - q m, is
attributed to speckles and to differences in sensitivity; s is its root. A sum of exponentially
distributed intensities with the mean m and the standard deviation s exceeds m + (L - 1) s, or falls
below m - sqrt(2 L) s, with a probability of at most exp(-L). So does a Poisson variable of mean m
exceed m + sqrt(2 L q m) + q L / 3 (Bernstein's inequality). L is such that one image in `IMAGES`
has a false alarm. Y has a limit of the same kind, with which bursts of counts are found in pixels
whose sum is as expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.correlators.blocks import is_whole
from jaxkern.xpcs.correlators.overview import OverviewSums
from jaxkern.xpcs.correlators.results import Overview
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

#: what to do about hot pixels
HotPixels = Literal["ignore", "report", "mask"]
HOT_PIXELS = ("ignore", "report", "mask")
#: pixels of a group that are compared with each other
MIN_PIXELS = 30
#: images without a hot pixel, of which one has a false alarm
IMAGES = 1000
_TESTS = 3  # too many counts, too few, too uneven

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SuspectPixels:
    """Pixels whose counts differ from those of their bin.

    Attributes:
      pixel: [n] row * W + column, ascending.
      reason: [n] what is wrong with each, in words.
    """

    pixel: NDArray[np.int64]
    reason: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.pixel)

    def places(self, qmap: QMap) -> list[list[int]]:
        """Returns [row, column] of each."""
        width = qmap.shape[1]
        return [[p // width, p % width] for p in self.pixel.tolist()]


def check_hot_pixels(value: Any) -> HotPixels:
    """Returns what to do about hot pixels.

    Raises:
      ValueError: for anything but "ignore", "report" and "mask".
    """
    if value not in HOT_PIXELS:
        raise ValueError(f"hot_pixels: expected one of {', '.join(HOT_PIXELS)}, got {value!r:.80}")
    return value  # type: ignore[no-any-return]


def suspect_pixels(overview: Overview, qmap: QMap, frames: int, whole: bool) -> SuspectPixels:
    """Finds the pixels of a map whose counts no photons explain.

    Args:
      overview: with `mean_square`.
      frames: the number of good frames in the means.
      whole: true if counts are whole numbers of photons, so that the gain is at least 1.
    """
    assert overview.mean_square is not None
    pixels = qmap.pixels.astype(np.int64)
    means = overview.mean_image.ravel()[pixels]
    squares = overview.mean_square.ravel()[pixels]
    finite = np.isfinite(means) & np.isfinite(squares)
    found = {int(p): "counts that are not finite (NaN or inf)" for p in pixels[~finite]}
    pixels, means, squares = pixels[finite], means[finite], squares[finite]
    if frames and len(pixels):
        group = _groups(qmap, pixels)
        limits = _Limits(means * frames, squares * frames, group, frames, whole)
        sizes = np.bincount(group)
        for k in np.flatnonzero(limits.suspect & (sizes[group] >= MIN_PIXELS)):
            mean = limits.mean[group[k]] / frames
            text = f"{means[k]:.4g} counts in a frame, its bin {mean:.4g}"
            if limits.uneven[k]:
                text = f"{np.sqrt(squares[k]):.4g} counts rms in a frame and a mean of {text}"
            found[int(pixels[k])] = text
    ordered = sorted(found)
    return SuspectPixels(np.array(ordered, np.int64), tuple(found[p] for p in ordered))


def find_suspects(
    sums: OverviewSums, source: FrameSource, selection: FrameSelection, qmap: QMap
) -> SuspectPixels:
    """Finds them from the sums over a selection's frames."""
    frames = int(selection.good_counts().sum(dtype=np.int64))
    return suspect_pixels(sums.overview(), qmap, frames, is_whole(source))


def mask_suspects(
    source: FrameSource, selection: FrameSelection, qmap: QMap
) -> tuple[SuspectPixels, QMap]:
    """Finds them by a pass over the frames; returns the map without them, too."""
    sums = OverviewSums(qmap, selection, is_whole(source))
    sums.add_all(source)
    found = find_suspects(sums, source, selection, qmap)
    return found, qmap.without(found.pixel)


def hot_pixel_messages(found: SuspectPixels | None, qmap: QMap, masked: bool) -> list[str]:
    """Describes some of the pixels, with their rows and columns; no message if there are none."""
    if not found:
        return []
    width = qmap.shape[1]
    some = [
        f"row {p // width}, column {p % width} ({why})"
        for p, why in zip(found.pixel[:5].tolist(), found.reason, strict=False)
    ]
    more = f", and {len(found) - len(some):,} more" if len(found) > len(some) else ""
    what = "1 pixel differs" if len(found) == 1 else f"{len(found):,} pixels differ"
    done = "masked" if masked else 'to leave them out: hot_pixels="mask" (--hot-pixels mask)'
    return [f"{what} from the other pixels of their static bins: {'; '.join(some)}{more}; {done}"]


def _groups(qmap: QMap, pixels: NDArray[np.int64]) -> NDArray[np.int64]:
    """[P] numbers from 0 of the groups: static bins, small ones joined in their dynamic bin."""
    static = qmap.static.ravel()[pixels].astype(np.int64)
    dynamic = qmap.dynamic.ravel()[pixels].astype(np.int64)
    small = np.bincount(static)[static] < MIN_PIXELS
    key = np.where(small, -dynamic, static)
    return np.unique(key, return_inverse=True)[1].reshape(-1).astype(np.int64)


class _Limits:
    """Which pixels lie beyond the limits of their groups.

    Attributes:
      suspect: [P] bool.
      uneven: [P] bool, those whose sum is within its limits and whose sum of squares is not.
      mean: [groups] of X.
    """

    def __init__(
        self, x: Array, y: Array, group: NDArray[np.int64], frames: int, whole: bool
    ) -> None:
        level = float(np.log(_TESTS * IMAGES * len(x)))
        gain = _gains(x, y, group, frames, whole)
        self.mean, low, high, relative = _robust_limits(x, group, gain, level)
        # The largest count of a frame: intensities of the group's width, or of one speckle's.
        of_frame = level + float(np.log(frames))
        brightest = np.maximum(self.mean, 0) / frames * (1 + (of_frame - 1) * relative)
        count = brightest + _shot_noise(brightest, gain, of_frame)
        root = np.sqrt(np.maximum(y, 0))
        rms = _robust_limits(root, group, np.zeros_like(gain), level)[2]
        jump = gain * count  # one more photon adds as much to Y
        squares = rms**2 + np.sqrt(2 * level * jump) * rms + jump * level / 3
        outside = (x < low[group]) | (x > high[group])
        self.uneven = (y > squares[group]) & ~outside
        self.suspect = outside | self.uneven


def _robust_limits(
    x: Array, group: NDArray[np.int64], gain: Array, level: float
) -> tuple[Array, Array, Array, Array]:
    """Mean, low limit, high limit and relative standard deviation (1 at least) of each group."""
    quarter, three_quarters = _quantiles(x, group, (0.25, 0.75))
    inside = (x >= quarter[group]) & (x <= three_quarters[group])
    first = True
    while True:
        n = np.maximum(np.bincount(group, inside, len(gain)), 1)
        mean = np.bincount(group, np.where(inside, x, 0.0), len(gain)) / n
        distance = np.where(inside, x - mean[group], 0.0)
        variance = np.bincount(group, distance**2, len(gain)) / n
        if first:
            # Of the middle half alone; 1.35 is its width for a normal distribution.
            variance = np.maximum(variance, ((three_quarters - quarter) / 1.35) ** 2)
            first = False
        low, high, relative = _limits(n, mean, variance, gain, level)
        more = inside | ((x >= low[group]) & (x <= high[group]))
        if (more == inside).all():
            return mean, low, high, relative
        inside = more


def _limits(
    n: Array, mean: Array, variance: Array, gain: Array, level: float
) -> tuple[Array, Array, Array]:
    """Low limit, high limit and relative standard deviation of what varies beside photons."""
    light = np.maximum(mean, 0)
    excess = np.maximum(variance - gain * light, 0)
    # Three standard errors more, but not beyond the variance of one speckle.
    unsure = 3 * np.sqrt((8 * variance**2 + gain**3 * light) / n)
    most = mean + 3 * np.sqrt(variance / n) + 9 * gain / n
    spread = np.maximum(np.sqrt(excess), np.minimum(np.sqrt(excess + unsure), most))
    spread = np.maximum(spread, np.where(light > 9 * gain / n, 0, most))
    bright = most + (level - 1) * spread
    high = bright + _shot_noise(bright, gain, level)
    dark = mean - np.sqrt(2 * level) * spread
    low = np.where(dark > 0, dark - np.sqrt(2 * level * gain * np.maximum(dark, 0)), -np.inf)
    low = np.where(low > 0, low, -np.inf)
    relative = np.maximum(np.divide(spread, light, where=light > 0, out=np.ones_like(mean)), 1)
    return low, high, relative


def _shot_noise(mean: Array, gain: Array, level: float) -> Array:
    """By how much a sum of photons exceeds its mean with a probability of at most exp(-level)."""
    return np.sqrt(2 * level * gain * np.maximum(mean, 0)) + gain * level / 3


def _gains(x: Array, y: Array, group: NDArray[np.int64], frames: int, whole: bool) -> Array:
    """[groups] counts of a photon: the median of variance over mean in time, of lit pixels."""
    n_groups = int(group.max()) + 1
    lit = x > 0
    gain = np.zeros(n_groups)
    if lit.any():
        variance = np.maximum(y[lit] - x[lit] ** 2 / frames, 0)
        median = _quantiles(variance / x[lit], group[lit], (0.5,), n_groups)[0]
        gain = np.nan_to_num(median)
    return np.maximum(gain, 1.0) if whole else gain


def _quantiles(
    x: Array, group: NDArray[np.int64], at: tuple[float, ...], n_groups: int | None = None
) -> list[Array]:
    """Quantiles of each group; NaN in a group without members."""
    n_groups = int(group.max()) + 1 if n_groups is None else n_groups
    order = np.lexsort((x, group))
    sizes = np.bincount(group, minlength=n_groups)
    starts = np.cumsum(sizes) - sizes
    found = []
    for part in at:
        place = np.minimum(starts + (part * np.maximum(sizes - 1, 0)).astype(np.int64), len(x) - 1)
        found.append(np.where(sizes > 0, x[order[place]], np.nan))
    return found
