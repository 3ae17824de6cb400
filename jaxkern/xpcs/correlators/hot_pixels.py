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
    key = np.where(small, dynamic, dynamic.max() + 1 + static)
    number: NDArray[np.int64] = np.cumsum(np.bincount(key) > 0) - 1
    return number[key]


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
        sizes = np.bincount(group)
        # NumPy sorts 16-bit integers by their digits, ten times as fast as others.
        narrow = group.astype(np.uint16) if len(sizes) <= 1 << 16 else group
        order = np.argsort(narrow, kind="stable")
        x, y = x[order], y[order]
        gain = _gains(x, y, sizes, frames, whole)
        self.mean, low, high, relative = _robust_limits(x, sizes, gain, level)
        # The largest count of a frame: intensities of the group's width, or of one speckle's.
        of_frame = level + float(np.log(frames))
        brightest = np.maximum(self.mean, 0) / frames * (1 + (of_frame - 1) * relative)
        count = brightest + _shot_noise(brightest, gain, of_frame)
        root = np.sqrt(np.maximum(y, 0))
        rms = _robust_limits(root, sizes, np.zeros_like(gain), level)[2]
        jump = gain * count  # one more photon adds as much to Y
        squares = rms**2 + np.sqrt(2 * level * jump) * rms + jump * level / 3
        outside = (x < np.repeat(low, sizes)) | (x > np.repeat(high, sizes))
        uneven = (y > np.repeat(squares, sizes)) & ~outside
        self.uneven = np.empty(len(x), bool)
        self.uneven[order] = uneven
        self.suspect = np.empty(len(x), bool)
        self.suspect[order] = outside | uneven


def _robust_limits(
    x: Array, sizes: NDArray[np.int64], gain: Array, level: float
) -> tuple[Array, Array, Array, Array]:
    """Mean, low limit, high limit and relative standard deviation (1 at least) of each group.

    The values of a group are adjacent in `x`; `sizes` is the number of values of each group.
    """
    starts = np.cumsum(sizes) - sizes
    low, high = _quantiles(x, sizes, (0.25, 0.75))
    # 1.35 is the width of the middle half of a normal distribution.
    least = ((high - low) / 1.35) ** 2
    inside = (x >= np.repeat(low, sizes)) & (x <= np.repeat(high, sizes))
    while True:
        n = np.maximum(np.add.reduceat(inside, starts, dtype=np.float64), 1)
        mean = np.add.reduceat(x * inside, starts) / n
        distance = (x - np.repeat(mean, sizes)) * inside
        variance = np.maximum(np.add.reduceat(distance**2, starts) / n, least)
        least = np.zeros_like(least)  # only the first variance is that of the middle half
        low, high, relative = _limits(n, mean, variance, gain, level)
        more = inside | ((x >= np.repeat(low, sizes)) & (x <= np.repeat(high, sizes)))
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


def _gains(x: Array, y: Array, sizes: NDArray[np.int64], frames: int, whole: bool) -> Array:
    """[groups] counts of a photon: the median of variance over mean in time, of lit pixels."""
    variance = np.maximum(y - x**2 / frames, 0)
    ratio = np.divide(variance, x, where=x > 0, out=np.full(len(x), np.nan))
    gain: Array = np.nan_to_num(_quantiles(ratio, sizes, (0.5,))[0])
    if whole:
        gain = np.maximum(gain, 1.0)
    return gain


def _quantiles(x: Array, sizes: NDArray[np.int64], at: tuple[float, ...]) -> Array:
    """[at, groups] quantiles of each group's values that are not NaN; NaN if there are none."""
    found = np.empty((len(at), len(sizes)))
    ends = np.cumsum(sizes)
    starts = ends - sizes
    counts = np.add.reduceat(~np.isnan(x), starts, dtype=np.int64)
    # A sort of each slice takes a tenth of the time of np.lexsort.
    for i, (start, end, n) in enumerate(
        zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True)
    ):
        values = np.sort(x[start:end])  # NaN last
        for k, part in enumerate(at):
            found[k, i] = values[int(part * max(n - 1, 0))]
    return found
