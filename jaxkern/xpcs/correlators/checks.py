"""Checks for bins and pixels whose correlation is doubtful: empty bins, NaN, hot pixels."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.correlators.bins import BinLabels, time_step
from jaxkern.xpcs.correlators.frame_sums import FrameMeans, OverviewSums, intensity_limits
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.native import CorrelationProgress
from jaxkern.xpcs.correlators.results import MultiTauResult, Overview, TwoTimeResult
from jaxkern.xpcs.correlators.selection import FrameSelection, frame_blocks, has_integer_counts
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

_Result = TypeVar("_Result", MultiTauResult, TwoTimeResult)

_SHOWN = 10  # bins that a message lists
_MOST_EMPTY = 0.01  # share of a bin's frames that may have no counts without a message


class CorrelationWarning(UserWarning):
    """Warning about pixels or bins whose correlation is doubtful or NaN."""


@contextmanager
def rows_and_columns(width: int) -> Iterator[None]:
    """Add the row and the column to errors of the kernels, which name a pixel by its number."""
    try:
        yield
    except ValueError as error:
        match = re.search(r"pixel (\d+) has", str(error))
        if match is None:
            raise
        row, column = divmod(int(match[1]), width)
        raise ValueError(f"row {row}, column {column}: {error}") from error


def issue_warnings(messages: Sequence[str], stacklevel: int = 3) -> tuple[str, ...]:
    """Issue a `CorrelationWarning` for each message, and return the messages."""
    for message in messages:
        warnings.warn(message, CorrelationWarning, stacklevel=stacklevel)
    return tuple(messages)


def check_empty_bins(
    qmap: QMap,
    labels: BinLabels,
    dead: NDArray[np.bool_] | None,
    mask: NDArray[np.bool_] | None,
    name: str,
) -> list[str]:
    """Return a message for each reason why some of the bins have no pixels.

    Args:
      qmap: the map including dead and masked pixels.
      labels: the bins of the map without these pixels.
      dead: [H, W], true for pixels that the file marks as dead.
      mask: [H, W], true for good pixels, as given by the caller.
      name: name of the frames.
    """
    empty = labels.bins[labels.n_pixels == 0]
    if not len(empty):
        return []
    bins = np.where(qmap.static > 0, qmap.dynamic, 0)
    good = bins > 0
    reasons: dict[str, NDArray[np.int64]] = {}
    steps = [("the map has no pixels in them", good)]
    good = good & qmap.mask
    steps.append(("the map's mask is 0 in all of their pixels", good))
    if mask is not None:
        good = good & mask
        steps.append(("the mask is 0 in all of their pixels where the map's mask is 1", good))
    if dead is not None:
        good = good & ~dead
        steps.append((f"{name} marks all of their other pixels as dead", good))
    steps.append(("all of their other pixels are masked as hot pixels", good & False))
    unexplained = empty
    for reason, remaining in steps:
        removed = np.bincount(bins[remaining], minlength=qmap.n_dynamic + 1)[unexplained] == 0
        if removed.any():
            reasons[reason] = unexplained[removed]
            unexplained = unexplained[~removed]
    texts = [
        f"bins {_list_bins(numbers)} have no pixels: {why}" for why, numbers in reasons.items()
    ]
    if len(empty) == len(labels.bins):
        inverted = ""
        for title, array in (("The map's mask", qmap.mask), ("The mask", mask)):
            if array is not None and array.any() and not (array & (bins > 0)).any():
                inverted = (
                    f". {title} is 1 in {int(array.sum()):,} pixels, all outside of the bins; is "
                    "it inverted (expected 1 for good pixels)?"
                )
        raise ValueError(f"no pixels to correlate: {'; '.join(texts)}{inverted}")
    return [f"{text}; their correlations are NaN" for text in texts]


def dark_bins(sums: BinSums, labels: BinLabels) -> list[str]:
    """Return a message if bins with pixels have no counts at any delay."""
    if not sums.weight.any():  # all frames are bad
        return []
    counts = np.zeros(labels.qmap.n_dynamic + 1)
    np.add.at(counts, labels.qmap.dynamic_of_static, np.abs(sums.sums[1:]).sum(axis=(0, 1)))
    dark = labels.bins[(counts[labels.bins] == 0) & (labels.n_pixels > 0)]
    if not len(dark):
        return []
    return [f"bins {_list_bins(dark)} have no counts in any frame; their g2 is 0"]


def empty_frames(result: TwoTimeResult) -> list[str]:
    """Return a message if more than 1% of the good frames have no counts in some bin."""
    assert result.n_empty is not None
    assert result.n_pairs is not None
    frames = result.n_empty + result.n_pairs[0]
    share = result.n_empty / np.maximum(frames, 1)
    many = int((share > _MOST_EMPTY).sum())
    if not many:
        return []
    k = int(np.argmax(share))
    worst = f"{100 * share[k]:.3g}%"
    numbers = f"({result.n_empty[k]:,} of {frames[k]:,})"
    where = f"bin {result.bins[k]} has no counts in {worst} of the frames {numbers}"
    if many > 1:
        where = (
            f"{many} of {len(result.bins)} bins have no counts in more than 1% of the frames, "
            f"bin {result.bins[k]} in {worst} {numbers}"
        )
    return [
        f"{where}: C(t1, t2) is NaN in these frames, and averages skip them; to have fewer of "
        "them, sum neighbouring frames (average) or use larger bins"
    ]


def nan_bins(
    finite: NDArray[np.bool_], labels: BinLabels, source: FrameSource, selection: FrameSelection
) -> list[str]:
    """Return a message that names the pixels if correlations of floating-point frames are NaN.

    Args:
      finite: [n_bins], true where a bin's correlation is finite at all delays with pairs of frames.
    """
    invalid = ~finite & (labels.n_pixels > 0)
    if has_integer_counts(source) or not invalid.any():
        return []
    qmap = labels.qmap
    inside = qmap.used & np.isin(qmap.dynamic, labels.bins[invalid])
    numbers = np.flatnonzero(inside)
    has_nan, first = np.zeros(len(numbers), bool), ""
    bad = selection.bad_mask()
    for number, block in frame_blocks(source, selection):
        begin = number * selection.average
        counts = np.take(block, numbers, axis=1)
        counts = np.where(bad[begin : begin + len(block), None], 0, counts)
        unknown = ~np.isfinite(counts)
        if not first and unknown.any():
            frame, k = (int(indices[0]) for indices in np.nonzero(unknown))
            row, column = divmod(int(numbers[k]), qmap.shape[1])
            in_source = selection.begin + (begin + frame) * selection.stride
            first = f"frame {in_source} has {counts[frame, k]} in row {row}, column {column}"
        has_nan |= unknown.any(axis=0)
    if not first:
        first = "sums of their counts overflow"
    elif has_nan.sum() > 1:
        first += f", and {int(has_nan.sum()) - 1:,} more pixels of these bins have such counts"
    text = f"the correlations of bins {_list_bins(labels.bins[invalid])} are NaN: {first}"
    if invalid.sum() == (labels.n_pixels > 0).sum():
        raise ValueError(f"{source.name}: {text}; mask these pixels, or leave these frames out")
    return [f"{text}; mask these pixels (mask=, --mask, --hot-pixels mask)"]


def _list_bins(bins: NDArray[np.int64]) -> str:
    shown = ", ".join(map(str, bins[:_SHOWN].tolist()))
    return f"[{shown}]" if len(bins) <= _SHOWN else f"[{shown}, ...] ({len(bins):,} bins)"


#: the treatment of hot pixels
HotPixels = Literal["ignore", "report", "mask"]
HOT_PIXELS = ("ignore", "report", "mask")
#: least number of pixels in a group in which pixels are compared
MIN_PIXELS = 30
#: one of this many images without a hot pixel has a false alarm
IMAGES = 1000
_TESTS = 3  # too many counts, too few, too uneven

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SuspectPixels:
    """Pixels whose counts differ from those of their bin.

    Attributes:
      pixel: [n] row * W + column, ascending.
      reason: [n] description of what is wrong with each.
    """

    pixel: NDArray[np.int64]
    reason: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.pixel)

    def places(self, qmap: QMap) -> list[list[int]]:
        """Return [row, column] of each pixel."""
        width = qmap.shape[1]
        return [[p // width, p % width] for p in self.pixel.tolist()]


def check_hot_pixels(value: Any) -> HotPixels:
    """Check the treatment of hot pixels and return it."""
    if value not in HOT_PIXELS:
        raise ValueError(f"hot_pixels: expected one of {', '.join(HOT_PIXELS)}, got {value!r:.80}")
    return value  # type: ignore[no-any-return]


def suspect_pixels(
    overview: Overview, qmap: QMap, frames: int, integer_counts: bool
) -> SuspectPixels:
    """Find the pixels of a map whose counts are not explained by photon statistics.

    Pixels are compared by robust statistics of their static bin. Of each pixel, the sum X of its
    counts and the sum Y of their squares over all frames are compared with the other pixels of its
    static bin. Static bins of fewer than `MIN_PIXELS` pixels are joined within their dynamic bin.

    The mean m and the variance v of X are those of the pixels within the limits that follow from m
    and v, beginning with the middle half of the pixels. The variance not explained by photons of
    gain q, v - q m, is attributed to speckles and to differences in sensitivity; s is its square
    root. A sum of exponentially distributed intensities with the mean m and the standard deviation
    s exceeds m + (L - 1) s, or falls below m - sqrt(2 L) s, with a probability of at most exp(-L).
    So does a Poisson variable of mean m exceed m + sqrt(2 L q m) + q L / 3 (Bernstein's
    inequality). L is such that one image in `IMAGES` has a false alarm. Y has a limit of the same
    kind, which detects bursts of counts in pixels whose sum is as expected.

    Args:
      overview: means with `mean_square`.
      frames: the number of good frames in the means.
      integer_counts: true if counts are integer numbers of photons, so that the gain is at least 1.
    """
    assert overview.mean_square is not None
    pixels = qmap.pixels.astype(np.int64)
    means = overview.mean_image.ravel()[pixels]
    squares = overview.mean_square.ravel()[pixels]
    finite = np.isfinite(means) & np.isfinite(squares)
    reasons = {int(p): "counts that are not finite (NaN or inf)" for p in pixels[~finite]}
    pixels, means, squares = pixels[finite], means[finite], squares[finite]
    if frames and len(pixels):
        group = _groups(qmap, pixels)
        limits = _Limits(means * frames, squares * frames, group, frames, integer_counts)
        sizes = np.bincount(group)
        for k in np.flatnonzero(limits.suspect & (sizes[group] >= MIN_PIXELS)):
            mean = limits.mean[group[k]] / frames
            text = f"{means[k]:.4g} counts in a frame, its bin {mean:.4g}"
            if limits.uneven[k]:
                text = f"{np.sqrt(squares[k]):.4g} counts rms in a frame and a mean of {text}"
            reasons[int(pixels[k])] = text
    ordered = sorted(reasons)
    return SuspectPixels(np.array(ordered, np.int64), tuple(reasons[p] for p in ordered))


def hot_pixel_messages(suspects: SuspectPixels | None, qmap: QMap, masked: bool) -> list[str]:
    """Describe the first few suspect pixels in a message, if there are any."""
    if not suspects:
        return []
    width = qmap.shape[1]
    some = [
        f"row {p // width}, column {p % width} ({why})"
        for p, why in zip(suspects.pixel[:5].tolist(), suspects.reason, strict=False)
    ]
    more = f", and {len(suspects) - len(some):,} more" if len(suspects) > len(some) else ""
    count = "1 pixel differs" if len(suspects) == 1 else f"{len(suspects):,} pixels differ"
    done = "masked" if masked else 'to leave them out: hot_pixels="mask" (--hot-pixels mask)'
    return [f"{count} from the other pixels of their static bins: {'; '.join(some)}{more}; {done}"]


class PreparedRun:
    """Checks and choices that `multitau` and `twotime` share.

    Attributes:
      qmap: the map without dead, masked and hot pixels.
      selection: the frames; `apply_cut` adds bad frames.
      labels: the bins.
      time_step: time between frames in s, or None.
      messages: descriptions of doubtful bins and pixels.
    """

    def __init__(
        self,
        source: FrameSource,
        qmap: QMap,
        masked: QMap,
        selection: FrameSelection,
        bins: Any,
        mask: NDArray[np.bool_] | None,
        hot_pixels: HotPixels,
        intensity_cut: Any,
        frame_time: float | None,
    ) -> None:
        self._source, self._hot_pixels = source, hot_pixels
        self._limits = intensity_limits(intensity_cut)
        self._suspects: SuspectPixels | None = None
        self.qmap, self.selection = masked, selection
        if hot_pixels == "mask":
            sums = OverviewSums(masked, selection, has_integer_counts(source))
            sums.add_all(source)
            self._suspects = self._find_suspects(sums)
            self.qmap = masked.without(self._suspects.pixel)
        self.labels = BinLabels(self.qmap, bins)
        self.messages = check_empty_bins(qmap, self.labels, source.dead, mask, source.name)
        self.time_step = time_step(frame_time, source)

    def _find_suspects(self, sums: OverviewSums) -> SuspectPixels:
        frames = int(self.selection.good_counts().sum(dtype=np.int64))
        integer_counts = has_integer_counts(self._source)
        return suspect_pixels(sums.overview(), self.qmap, frames, integer_counts)

    def apply_cut(self, bar: CorrelationProgress, divide: bool) -> NDArray[np.float64] | None:
        """Mark frames outside the intensity cut as bad; return the frames' means if `divide`."""
        if self._limits is None and not divide:
            return None
        means = FrameMeans(self._source, self.qmap, self.selection, bar)
        if self._limits is not None:
            bad = means.outside_range(*self._limits)
            self.selection = self.selection.with_bad_frames(bad)
        return means.divisors() if divide else None

    def check_nan(self, g2: NDArray[np.float64], n_pairs: NDArray[np.int64]) -> None:
        """Add a message on bins whose g2 [n_tau, n_bins] is NaN at a delay with pairs of frames."""
        finite = (np.isfinite(g2) | (n_pairs == 0)).all(axis=0)
        self.messages += nan_bins(finite, self.labels, self._source, self.selection)

    def complete(self, result: _Result, sums: OverviewSums | None, overview: bool) -> _Result:
        """Return a result with its hot pixels, warnings and, if requested, overview."""
        if sums is not None and self._hot_pixels == "report":
            self._suspects = self._find_suspects(sums)
        if self._suspects is not None:
            result.config["hot_pixels"] = self._suspects.places(self.qmap)
        masked = self._hot_pixels == "mask"
        self.messages += hot_pixel_messages(self._suspects, self.qmap, masked)
        means = sums.overview() if sums is not None and overview else None
        return replace(result, overview=means, warnings=issue_warnings(self.messages, 4))


def _groups(qmap: QMap, pixels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the group [P] of each pixel, from 0: its static bin, or its dynamic bin if small."""
    static = qmap.static.ravel()[pixels].astype(np.int64)
    dynamic = qmap.dynamic.ravel()[pixels].astype(np.int64)
    small = np.bincount(static)[static] < MIN_PIXELS
    key = np.where(small, dynamic, dynamic.max() + 1 + static)
    number: NDArray[np.int64] = np.cumsum(np.bincount(key) > 0) - 1
    return number[key]


class _Limits:
    """Pixels outside the limits of their groups.

    Attributes:
      suspect: [P] bool, true outside.
      uneven: [P] bool, true if the sum is within its limits and the sum of squares is not.
      mean: [groups] mean of X.
    """

    def __init__(
        self, x: Array, y: Array, group: NDArray[np.int64], frames: int, integer_counts: bool
    ) -> None:
        level = float(np.log(_TESTS * IMAGES * len(x)))
        sizes = np.bincount(group)
        # NumPy sorts 16-bit integers by radix sort, ten times as fast as wider ones.
        narrow = group.astype(np.uint16) if len(sizes) <= 1 << 16 else group
        order = np.argsort(narrow, kind="stable")
        x, y = x[order], y[order]
        gain = _gains(x, y, sizes, frames, integer_counts)
        self.mean, low, high, relative = _robust_limits(x, sizes, gain, level)
        # The largest count of a frame, for intensities as wide as the group's or as one speckle's.
        frame_level = level + float(np.log(frames))
        brightest = np.maximum(self.mean, 0) / frames * (1 + (frame_level - 1) * relative)
        count = brightest + _shot_noise(brightest, gain, frame_level)
        root = np.sqrt(np.maximum(y, 0))
        rms = _robust_limits(root, sizes, np.zeros_like(gain), level)[2]
        jump = gain * count  # the contribution of one more photon to Y
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
    """Return mean, low limit, high limit and relative standard deviation (at least 1) of groups.

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
    """Return the limits and the relative standard deviation without the photons' own variance."""
    positive = np.maximum(mean, 0)
    excess = np.maximum(variance - gain * positive, 0)
    # Add three standard errors, but do not exceed the variance of one speckle.
    uncertainty = 3 * np.sqrt((8 * variance**2 + gain**3 * positive) / n)
    most = mean + 3 * np.sqrt(variance / n) + 9 * gain / n
    spread = np.maximum(np.sqrt(excess), np.minimum(np.sqrt(excess + uncertainty), most))
    spread = np.maximum(spread, np.where(positive > 9 * gain / n, 0, most))
    bright = most + (level - 1) * spread
    high = bright + _shot_noise(bright, gain, level)
    dark = mean - np.sqrt(2 * level) * spread
    low = np.where(dark > 0, dark - np.sqrt(2 * level * gain * np.maximum(dark, 0)), -np.inf)
    low = np.where(low > 0, low, -np.inf)
    relative = np.divide(spread, positive, where=positive > 0, out=np.ones_like(mean))
    return low, high, np.maximum(relative, 1)


def _shot_noise(mean: Array, gain: Array, level: float) -> Array:
    """Return the excess over the mean that photons reach with probability exp(-level) at most."""
    return np.sqrt(2 * level * gain * np.maximum(mean, 0)) + gain * level / 3


def _gains(
    x: Array, y: Array, sizes: NDArray[np.int64], frames: int, integer_counts: bool
) -> Array:
    """Return the counts of a photon [groups]: the median of variance over mean of lit pixels."""
    variance = np.maximum(y - x**2 / frames, 0)
    ratio = np.divide(variance, x, where=x > 0, out=np.full(len(x), np.nan))
    gain: Array = np.nan_to_num(_quantiles(ratio, sizes, (0.5,))[0])
    if integer_counts:
        gain = np.maximum(gain, 1.0)
    return gain


def _quantiles(x: Array, sizes: NDArray[np.int64], at: tuple[float, ...]) -> Array:
    """Return quantiles [at, groups] of each group's values, without NaN; NaN if all are NaN."""
    quantiles = np.empty((len(at), len(sizes)))
    ends = np.cumsum(sizes)
    starts = ends - sizes
    counts = np.add.reduceat(~np.isnan(x), starts, dtype=np.int64)
    # A sort of each slice takes a tenth of the time of np.lexsort.
    for i, (start, end, n) in enumerate(
        zip(starts.tolist(), ends.tolist(), counts.tolist(), strict=True)
    ):
        values = np.sort(x[start:end])  # NaN is last
        for k, part in enumerate(at):
            quantiles[k, i] = values[int(part * max(n - 1, 0))]
    return quantiles
