"""Sums over frames and pixels beside a correlation: mean image, intensity in time, static means."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.correlators.blocks import frame_blocks, is_whole
from jaxkern.xpcs.correlators.event_memory import event_blocks, exact_sums
from jaxkern.xpcs.correlators.frame_sums import frame_sums
from jaxkern.xpcs.correlators.results import Overview
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

#: of the static means in time
PARTS = 10


class OverviewSums:
    """Adds up blocks of a selection's frames, in any order; whole counts exactly.

    Args:
      whole: whether counts are whole numbers.
    """

    def __init__(self, qmap: QMap, selection: FrameSelection, whole: bool) -> None:
        self._qmap, self._selection = qmap, selection
        self._bad, self._used = selection.bad_places(), qmap.used.ravel()
        self._dtype = np.dtype(np.int64 if whole else np.float64)
        self._edges = [part * selection.n // PARTS for part in range(PARTS + 1)]
        self._images = np.zeros((PARTS, qmap.shape[0] * qmap.shape[1]), self._dtype)
        self._squares = np.zeros(qmap.shape[0] * qmap.shape[1])
        self._intensity = np.zeros(selection.n, self._dtype)

    def add(self, first: int, frames: NDArray[Any]) -> None:
        """Adds the frames [T * average, H * W] of the sums first .. first + T - 1."""
        average = self._selection.average
        stop = first + len(frames) // average
        for part, (begin, end) in enumerate(zip(self._edges[:-1], self._edges[1:], strict=True)):
            begin, end = max(begin, first), min(end, stop)
            if begin < end:
                inside = frames[(begin - first) * average : (end - first) * average]
                bad = self._bad[begin * average : end * average]
                (light,) = frame_sums(inside, [self._used], self._images[part], bad, self._squares)
                light[bad] = 0
                self._intensity[begin:end] = light.reshape(-1, average).sum(axis=1)

    def add_events(
        self, place: NDArray[np.int64], pixel: NDArray[Any], count: NDArray[Any]
    ) -> None:
        """Adds events [M] of the selection's frames, numbered from 0; they are whole counts."""
        good = ~self._bad[place]
        if not good.all():
            place, pixel, count = place[good], pixel[good], count[good]
        number = place // self._selection.average
        inside = self._qmap.used.ravel()[pixel]
        self._intensity += exact_sums(number[inside], count[inside], len(self._intensity))
        of_part = np.searchsorted(self._edges[1:], number, "right")
        for part in np.unique(of_part):
            at = of_part == part
            self._images[part] += exact_sums(pixel[at], count[at], self._images.shape[1])
        squares = count.astype(np.float64) ** 2
        self._squares += np.bincount(pixel, squares, minlength=len(self._squares))

    def add_all(self, source: FrameSource) -> None:
        """Adds all frames of the selection, or their events."""
        if source.is_sparse and is_whole(source):
            for events in event_blocks(source, self._selection):
                self.add_events(*events)
        else:
            for first, block in frame_blocks(source, self._selection):
                self.add(first, block)

    def overview(self) -> Overview:
        """Means of what was added; NaN where there were no good frames, or no pixels."""
        qmap, counts = self._qmap, self._selection.good_counts().astype(np.int64)
        good = np.array(
            [counts[a:b].sum() for a, b in zip(self._edges[:-1], self._edges[1:], strict=True)]
        )
        pixels = qmap.pixels_of_static
        of_static = np.zeros((PARTS, qmap.n_static), self._dtype)
        some = np.flatnonzero(pixels)
        if len(some):  # the map's pixels are ordered by static bin
            first = np.cumsum(pixels) - pixels
            of_static[:, some] = np.add.reduceat(self._images[:, qmap.pixels], first[some], axis=1)
        return Overview(
            _over(self._images.sum(axis=0), good.sum()).reshape(qmap.shape),
            _over(self._intensity, counts * qmap.n_pixels),
            _over(of_static.sum(axis=0), pixels * good.sum()),
            _over(of_static, pixels * good[:, None]),
            _over(self._squares, good.sum()).reshape(qmap.shape),
        )


class GrowingOverview:
    """Sums of frames for an `Overview`, of which nobody knows how many come.

    The sums of static bins are kept for parts in time of equal lengths, `PARTS` or more; of twice
    as many neighbours become one.
    """

    def __init__(self, qmap: QMap, whole: bool) -> None:
        self._qmap, self._used = qmap, qmap.used.ravel()
        self._dtype = np.dtype(np.int64 if whole else np.float64)
        self._image: NDArray[Any] = np.zeros(qmap.shape[0] * qmap.shape[1], self._dtype)
        self._squares = np.zeros(len(self._image))
        self._light: list[NDArray[np.float64]] = []
        self._length, self._filled = 1, 0  # sums of frames in a part, and in the last one
        self._static: list[NDArray[Any]] = []
        self._good: list[int] = []
        static = qmap.static.ravel()[qmap.pixels]
        self._starts = np.flatnonzero(np.diff(static, prepend=-1))
        self._there = static[self._starts] - 1

    def add(self, frames: NDArray[Any], bad: NDArray[np.bool_], selection: FrameSelection) -> None:
        """Adds the frames [T * average, H * W] of a selection that follows on what was added."""
        average, counts = selection.average, selection.good_counts()
        first = 0
        while first < len(counts):
            if not self._static or self._filled == self._length:
                self._next_part()
            stop = min(first + self._length - self._filled, len(counts))
            at = slice(first * average, stop * average)
            image = np.zeros_like(self._image)
            (light,) = frame_sums(frames[at], [self._used], image, bad[at], self._squares)
            light[bad[at]] = 0
            pixels = counts[first:stop] * np.float64(self._qmap.n_pixels)
            self._light.append(_over(light.reshape(-1, average).sum(axis=1), pixels))
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
        """Means of what was added so far."""
        good = np.array(self._good, np.float64)
        parts = np.full((len(good), self._qmap.n_static), np.nan)
        pixels = self._qmap.pixels_of_static[self._there]
        parts[:, self._there] = _over(np.array(self._static), pixels * good[:, None])
        whole = parts[0].copy()
        whole[self._there] = _over(sum(self._static), pixels * good.sum())
        image = _over(self._image, np.full(self._image.shape, good.sum()))
        squares = _over(self._squares, good.sum())
        return Overview(
            image.reshape(self._qmap.shape),
            np.concatenate(self._light),
            whole,
            parts,
            squares.reshape(self._qmap.shape),
        )


def _over(above: Any, below: Any) -> NDArray[np.float64]:
    means = np.full(np.shape(above), np.nan)
    below = np.broadcast_to(below, means.shape)
    np.divide(above, below, out=means, where=below != 0)
    return means
