"""Sums of frames over time and over pixels: intensity limits, normalization, overviews."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
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

#: parts of the run in which static means are computed
PARTS = 10


def frame_sums(
    frames: NDArray[Any],
    masks: Sequence[NDArray[np.bool_]],
    image: NDArray[Any] | None = None,
    bad: NDArray[np.bool_] | None = None,
    squares: NDArray[np.float64] | None = None,
) -> NDArray[Any]:
    """Return totals [masks, T] of frames [T, P] over masks [P]; add good frames to the images."""
    native = native_module()
    if native is not None:
        marked = None if bad is None else bad.view(np.uint8)
        inside = [mask.view(np.uint8) for mask in masks]
        return np.asarray(native.frame_sums(frames, inside, image, marked, num_threads(), squares))
    if image is not None:
        good = frames if bad is None or not bad.any() else frames[~bad]
        image += good.sum(axis=0, dtype=image.dtype)
        if squares is not None:
            squares += np.einsum("tp,tp->p", good, good, dtype=np.float64)
    totals = np.zeros((len(masks), len(frames)), "f8" if frames.dtype.kind == "f" else "i8")
    for total, mask in zip(totals, masks, strict=True):
        used = frames if mask.all() else np.take(frames, np.flatnonzero(mask), axis=1)
        total[:] = used.sum(axis=1, dtype=total.dtype)
    return totals


def frame_totals(
    source: FrameSource, qmap: QMap, selection: FrameSelection, bar: CorrelationProgress
) -> NDArray[Any]:
    """Return sums [2, N * average] of each frame over the map's pixels, and over its mask."""
    length, masks = selection.n * selection.average, [qmap.used.ravel(), qmap.mask.ravel()]
    selection.check_memory(length)
    bar.begin(length, source.frame_bytes)
    if source.is_sparse and has_integer_counts(source):
        sums = np.zeros((2, length), np.int64)
        for position, pixel, count in event_blocks(source, selection):
            for total, mask in zip(sums, masks, strict=True):
                inside = mask[pixel]
                total += exact_sums(position[inside], count[inside], length)
        return sums
    totals = []
    for _, block, *_ in frame_blocks(source, selection):
        totals.append(frame_sums(block, masks))
        bar.advance(len(block))
    return np.concatenate(totals, axis=1)


def mean_divisors(totals: NDArray[Any], qmap: QMap) -> NDArray[np.float64]:
    """Return the means of frames with these totals over the map's mask; 1 where a mean is 0."""
    mean = totals / max(int(qmap.mask.sum()), 1)
    return np.where(mean == 0, 1.0, mean)


def intensity_limits(cut: Any) -> tuple[float, float] | None:
    """Return the factors (low, high) of an `intensity_cut`; None becomes 0 or infinity."""
    if cut is None:
        return None
    if not isinstance(cut, tuple | list) or len(cut) != 2:
        raise ValueError(f"intensity_cut: expected (low, high) or None, got {cut!r:.80}")
    low = 0.0 if cut[0] is None else check_number("intensity_cut's low", cut[0], 0)
    high = np.inf if cut[1] is None else check_number("intensity_cut's high", cut[1], low)
    return low, high


class OverviewSums:
    """Sums of frames, added in order, for an `Overview`; exact for integer counts.

    Static bins are summed in `PARTS` parts of `length` sums of frames. If the length is unknown, a
    part is one sum of frames, and when 2 * PARTS of them are full, each two neighbours are merged.
    """

    def __init__(
        self, qmap: QMap, integer_counts: bool, average: int, length: int | None = None
    ) -> None:
        self._qmap, self._average, self._grows = qmap, average, length is None
        self._used, pixels = qmap.used.ravel(), qmap.used.size
        dtype = np.dtype(np.int64 if integer_counts else np.float64)
        self._image: NDArray[Any] = np.zeros(pixels, dtype)  # of all parts but the last
        self._last_image, self._squares = np.zeros(pixels, dtype), np.zeros(pixels)
        self._edges = [part * (length or 0) // PARTS for part in range(PARTS + 1)]
        if length is None:
            self._edges = list(range(2 * PARTS + 1))
        self._part = self._seen = 0
        self._static: NDArray[Any] = np.zeros((len(self._edges) - 1, qmap.n_static), dtype)
        self._good = np.zeros(len(self._edges) - 1, np.int64)
        self._intensity = [np.zeros(0)]

    def add(self, frames: NDArray[Any], bad: NDArray[np.bool_]) -> None:
        """Add the next frames [T * average, H * W] without those in `bad`."""
        average, first = self._average, 0
        counts = average - bad.reshape(-1, average).sum(axis=1)
        while first < len(counts):
            while self._seen == self._edges[self._part + 1]:
                self._end_part()
            stop = min(first + self._edges[self._part + 1] - self._seen, len(counts))
            at = slice(first * average, stop * average)
            sums = (self._last_image, bad[at], self._squares)
            (totals,) = frame_sums(frames[at], [self._used], *sums)
            totals[bad[at]] = 0
            pixels = counts[first:stop] * self._qmap.n_pixels
            self._intensity.append(_divide(totals.reshape(-1, average).sum(axis=1), pixels))
            self._good[self._part] += counts[first:stop].sum()
            self._seen += stop - first
            first = stop

    def _end_part(self) -> None:
        self._static[self._part] = self._static_sums()
        self._image += self._last_image
        self._last_image[:] = 0
        self._part += 1
        if self._grows and self._part == 2 * PARTS:
            for sums in (self._static, self._good):
                sums[:PARTS] = sums[::2] + sums[1::2]
                sums[PARTS:] = 0
            self._edges, self._part = [2 * edge for edge in self._edges], PARTS

    def _static_sums(self) -> NDArray[Any]:
        pixels = self._qmap.pixels_of_static
        sums: NDArray[Any] = np.zeros(len(pixels), self._image.dtype)
        filled = np.flatnonzero(pixels)
        if len(filled):  # the map's pixels are ordered by static bin
            first = (np.cumsum(pixels) - pixels)[filled]
            sums[filled] = np.add.reduceat(self._last_image[self._qmap.pixels], first)
        return sums

    def add_all(self, source: FrameSource, selection: FrameSelection) -> None:
        """Add all frames of a selection, or their events."""
        if not (source.is_sparse and has_integer_counts(source)):
            for _, block, bad, _ in frame_blocks(source, selection):
                self.add(block, bad)
            return
        bad, counts = selection.bad_mask(), selection.good_counts().astype(np.int64)
        self._good += [counts[a:b].sum() for a, b in pairwise(self._edges)]
        intensity, static = np.zeros(selection.n, np.int64), self._qmap.static.ravel()
        for position, pixel, count in event_blocks(source, selection):
            good = ~bad[position]
            number = position[good] // self._average
            pixel, count = pixel[good], count[good]
            self._image += exact_sums(pixel, count, len(self._image))
            squares = count.astype(np.float64) ** 2
            self._squares += np.bincount(pixel, squares, minlength=len(self._squares))
            inside = self._used[pixel]
            number, pixel, count = number[inside], pixel[inside], count[inside]
            intensity += exact_sums(number, count, len(intensity))
            part = np.searchsorted(self._edges[1:], number, "right")
            at = part * self._static.shape[1] + static[pixel] - 1
            sums = exact_sums(at, count, self._static.size)
            self._static += sums.reshape(self._static.shape)
        self._intensity = [_divide(intensity, counts * self._qmap.n_pixels)]

    def overview(self) -> Overview:
        """Return the means of the frames added so far; NaN without good frames or pixels."""
        qmap, rows = self._qmap, self._part + 1 if self._grows else PARTS
        pixels, good, static = qmap.pixels_of_static, self._good[:rows], self._static[:rows].copy()
        static[self._part] += self._static_sums()
        return Overview(
            _divide(self._image + self._last_image, good.sum()).reshape(qmap.shape),
            np.concatenate(self._intensity),
            _divide(static.sum(axis=0), pixels * good.sum()),
            _divide(static, pixels * good[:, None]),
            _divide(self._squares, good.sum()).reshape(qmap.shape),
        )


def _divide(sums: Any, counts: Any) -> NDArray[np.float64]:
    """Return sums / counts, NaN where counts are 0."""
    means = np.full(np.shape(sums), np.nan)
    counts = np.broadcast_to(counts, means.shape)
    np.divide(sums, counts, out=means, where=counts != 0)
    return means
