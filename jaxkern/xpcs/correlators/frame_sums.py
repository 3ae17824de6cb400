"""Sums of frames over time and over pixels: intensity limits, normalization, overviews."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_number
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.native import CorrelationProgress, native_module
from jaxkern.xpcs.correlators.results import Overview
from jaxkern.xpcs.correlators.selection import (
    FrameSelection,
    event_blocks,
    exact_sums,
    frame_blocks,
    has_integer_counts,
)
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

Limits = tuple[float, float]


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of sums of frames of a dtype, in which integers are exact."""
    return np.dtype(np.float64 if dtype.kind == "f" else np.int64)


def frame_sums(
    frames: NDArray[Any],
    masks: Sequence[NDArray[np.bool_]],
    image: NDArray[Any] | None = None,
    bad: NDArray[np.bool_] | None = None,
    squares: NDArray[np.float64] | None = None,
) -> NDArray[Any]:
    """Return the totals [masks, T] of frames [T, P] over the pixels of up to two masks [P].

    Args:
      frames: as returned by `selected_frames`.
      image: [P] of `sum_dtype`, to which all good frames are added.
      bad: [T], true for frames that are not added to the image.
      squares: [P], to which the squares of the counts of all good frames are added.
    """
    native = native_module()
    if native is not None:
        marked = None if bad is None else bad.view(np.uint8)
        as_bytes = [mask.view(np.uint8) for mask in masks]
        return np.asarray(
            native.frame_sums(frames, as_bytes, image, marked, num_threads(), squares)
        )
    if image is not None:
        good = frames if bad is None or not bad.any() else frames[~bad]
        image += good.sum(axis=0, dtype=image.dtype)
        if squares is not None:
            squares += np.einsum("tp,tp->p", good, good, dtype=np.float64)
    totals = np.zeros((len(masks), len(frames)), sum_dtype(frames.dtype))
    for total, mask in zip(totals, masks, strict=True):
        inside = frames if mask.all() else np.take(frames, np.flatnonzero(mask), axis=1)
        total[:] = inside.sum(axis=1, dtype=total.dtype)
    return totals


class FrameMeans:
    """Sums of each frame of a selection over pixels of a map, from a pass over the frames."""

    def __init__(
        self, source: FrameSource, qmap: QMap, selection: FrameSelection, bar: CorrelationProgress
    ) -> None:
        selection.check_memory(selection.n * selection.average)
        self._selection = selection
        masks = [qmap.used.ravel(), qmap.mask.ravel()]
        self._masked = int(qmap.mask.sum())
        bar.begin(selection.n * selection.average, source.frame_bytes)
        if source.is_sparse and has_integer_counts(source):
            self._map_totals, self._mask_totals = _event_totals(source, qmap, selection)
            return
        totals = []
        for _, block in frame_blocks(source, selection):
            totals.append(frame_sums(block, masks))
            bar.advance(len(block))
        self._map_totals, self._mask_totals = np.concatenate(totals, axis=1)

    def outside_range(self, low: float, high: float) -> NDArray[np.int64]:
        """Return the numbers of the good frames outside `low` to `high` times their median.

        Frames with NaN are outside, and do not enter the median.
        """
        totals = self._map_totals
        good = ~self._selection.bad_mask()
        known = totals[good & ~np.isnan(totals)]
        median = np.median(known) if len(known) else 0.0
        inside = (totals >= low * median) & (totals <= high * median)
        outside = np.flatnonzero(good & ~inside)
        return (self._selection.begin + outside * self._selection.stride).astype(np.int64)

    def divisors(self) -> NDArray[np.float64]:
        """Return each frame's mean [N * average] over the pixels with mask 1; 1 where that is 0."""
        mean = self._mask_totals / max(self._masked, 1)
        return np.where(mean == 0, 1.0, mean)


def _event_totals(
    source: FrameSource, qmap: QMap, selection: FrameSelection
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sums [N * average] of each frame over the map's pixels, and over those with mask 1."""
    length = selection.n * selection.average
    sums = np.zeros((2, length), np.int64)
    for position, pixel, count in event_blocks(source, selection):
        for total, mask in zip(sums, (qmap.used, qmap.mask), strict=True):
            inside = mask.ravel()[pixel]
            total += exact_sums(position[inside], count[inside], length)
    return sums[0], sums[1]


def intensity_limits(cut: Any) -> Limits | None:
    """Return the factors (low, high) of an `intensity_cut`; None becomes 0 or infinity."""
    if cut is None:
        return None
    if not isinstance(cut, tuple | list) or len(cut) != 2:
        raise ValueError(f"intensity_cut: expected (low, high) or None, got {cut!r:.80}")
    low = 0.0 if cut[0] is None else check_number("intensity_cut's low", cut[0], 0)
    high = np.inf if cut[1] is None else check_number("intensity_cut's high", cut[1], low)
    return low, high


#: parts of the run in which static means are computed
PARTS = 10


class OverviewSums:
    """Sums of blocks of a selection's frames, in any order; exact for integer counts.

    Args:
      integer_counts: true if counts are integers.
    """

    def __init__(self, qmap: QMap, selection: FrameSelection, integer_counts: bool) -> None:
        self._qmap, self._selection = qmap, selection
        self._bad, self._used = selection.bad_mask(), qmap.used.ravel()
        self._dtype = np.dtype(np.int64 if integer_counts else np.float64)
        self._edges = [part * selection.n // PARTS for part in range(PARTS + 1)]
        self._images = np.zeros((PARTS, qmap.shape[0] * qmap.shape[1]), self._dtype)
        self._squares = np.zeros(qmap.shape[0] * qmap.shape[1])
        self._intensity = np.zeros(selection.n, self._dtype)

    def add(self, first: int, frames: NDArray[Any]) -> None:
        """Add the frames [T * average, H * W] of the sums first .. first + T - 1."""
        average = self._selection.average
        stop = first + len(frames) // average
        for part, (begin, end) in enumerate(zip(self._edges[:-1], self._edges[1:], strict=True)):
            begin, end = max(begin, first), min(end, stop)
            if begin < end:
                inside = frames[(begin - first) * average : (end - first) * average]
                bad = self._bad[begin * average : end * average]
                (totals,) = frame_sums(inside, [self._used], self._images[part], bad, self._squares)
                totals[bad] = 0
                self._intensity[begin:end] = totals.reshape(-1, average).sum(axis=1)

    def add_events(
        self, position: NDArray[np.int64], pixel: NDArray[Any], count: NDArray[Any]
    ) -> None:
        """Add events [M] with integer counts, see `event_blocks`."""
        good = ~self._bad[position]
        if not good.all():
            position, pixel, count = position[good], pixel[good], count[good]
        number = position // self._selection.average
        inside = self._qmap.used.ravel()[pixel]
        self._intensity += exact_sums(number[inside], count[inside], len(self._intensity))
        part_of_event = np.searchsorted(self._edges[1:], number, "right")
        for part in np.unique(part_of_event):
            at = part_of_event == part
            self._images[part] += exact_sums(pixel[at], count[at], self._images.shape[1])
        squares = count.astype(np.float64) ** 2
        self._squares += np.bincount(pixel, squares, minlength=len(self._squares))

    def add_all(self, source: FrameSource) -> None:
        """Add all frames of the selection, or their events."""
        if source.is_sparse and has_integer_counts(source):
            for events in event_blocks(source, self._selection):
                self.add_events(*events)
        else:
            for first, block in frame_blocks(source, self._selection):
                self.add(first, block)

    def overview(self) -> Overview:
        """Return the means; NaN where there are no good frames or no pixels."""
        qmap, counts = self._qmap, self._selection.good_counts().astype(np.int64)
        good = np.array(
            [counts[a:b].sum() for a, b in zip(self._edges[:-1], self._edges[1:], strict=True)]
        )
        pixels = qmap.pixels_of_static
        static_sums = np.zeros((PARTS, qmap.n_static), self._dtype)
        filled = np.flatnonzero(pixels)
        if len(filled):  # the map's pixels are ordered by static bin
            first = (np.cumsum(pixels) - pixels)[filled]
            static_sums[:, filled] = np.add.reduceat(self._images[:, qmap.pixels], first, axis=1)
        return Overview(
            _divide(self._images.sum(axis=0), good.sum()).reshape(qmap.shape),
            _divide(self._intensity, counts * qmap.n_pixels),
            _divide(static_sums.sum(axis=0), pixels * good.sum()),
            _divide(static_sums, pixels * good[:, None]),
            _divide(self._squares, good.sum()).reshape(qmap.shape),
        )


class GrowingOverview:
    """Sums of an unknown number of frames for an `Overview`.

    The sums of static bins are stored for parts of equal lengths in time. When there are
    2 * `PARTS` of them, each two neighbours are merged.
    """

    def __init__(self, qmap: QMap, integer_counts: bool) -> None:
        self._qmap, self._used = qmap, qmap.used.ravel()
        self._dtype = np.dtype(np.int64 if integer_counts else np.float64)
        self._image: NDArray[Any] = np.zeros(qmap.shape[0] * qmap.shape[1], self._dtype)
        self._squares = np.zeros(len(self._image))
        self._intensity: list[NDArray[np.float64]] = []
        self._length, self._filled = 1, 0  # sums of frames in a part, and in the last part
        self._static: list[NDArray[Any]] = []
        self._good: list[int] = []
        static = qmap.static.ravel()[qmap.pixels]
        self._starts = np.flatnonzero(np.diff(static, prepend=-1))
        self._filled_bins = static[self._starts] - 1

    def add(self, frames: NDArray[Any], bad: NDArray[np.bool_], selection: FrameSelection) -> None:
        """Add the frames [T * average, H * W] of the selection after those added before."""
        average, counts = selection.average, selection.good_counts()
        first = 0
        while first < len(counts):
            if not self._static or self._filled == self._length:
                self._next_part()
            stop = min(first + self._length - self._filled, len(counts))
            at = slice(first * average, stop * average)
            image = np.zeros_like(self._image)
            (totals,) = frame_sums(frames[at], [self._used], image, bad[at], self._squares)
            totals[bad[at]] = 0
            pixels = counts[first:stop] * np.float64(self._qmap.n_pixels)
            self._intensity.append(_divide(totals.reshape(-1, average).sum(axis=1), pixels))
            self._image += image
            self._static[-1] += np.add.reduceat(image[self._qmap.pixels], self._starts)
            self._good[-1] += int(counts[first:stop].sum())
            self._filled += stop - first
            first = stop

    def _next_part(self) -> None:
        if len(self._static) == 2 * PARTS:
            self._static = [
                a + b for a, b in zip(self._static[::2], self._static[1::2], strict=True)
            ]
            self._good = [a + b for a, b in zip(self._good[::2], self._good[1::2], strict=True)]
            self._length *= 2
        self._static.append(np.zeros(len(self._starts), self._dtype))
        self._good.append(0)
        self._filled = 0

    def overview(self) -> Overview:
        """Return the means of the frames added so far."""
        good = np.array(self._good, np.float64)
        parts = np.full((len(good), self._qmap.n_static), np.nan)
        pixels = self._qmap.pixels_of_static[self._filled_bins]
        parts[:, self._filled_bins] = _divide(np.array(self._static), pixels * good[:, None])
        means = parts[0].copy()
        means[self._filled_bins] = _divide(sum(self._static), pixels * good.sum())
        image = _divide(self._image, np.full(self._image.shape, good.sum()))
        squares = _divide(self._squares, good.sum())
        return Overview(
            image.reshape(self._qmap.shape),
            np.concatenate(self._intensity),
            means,
            parts,
            squares.reshape(self._qmap.shape),
        )


def _divide(sums: Any, counts: Any) -> NDArray[np.float64]:
    """Return sums / counts, NaN where counts are 0."""
    means = np.full(np.shape(sums), np.nan)
    counts = np.broadcast_to(counts, means.shape)
    np.divide(sums, counts, out=means, where=counts != 0)
    return means
