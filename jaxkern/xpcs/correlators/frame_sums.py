"""Sums of frames over time and over pixels: too much light, and what normalizes a frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_number
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.blocks import frame_blocks, is_whole
from jaxkern.xpcs.correlators.event_memory import event_blocks, exact_sums
from jaxkern.xpcs.correlators.native_sums import native_module
from jaxkern.xpcs.correlators.progress import CorrelationProgress
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

Limits = tuple[float, float]


def sum_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype of sums of frames of a dtype: whole counts are exact."""
    return np.dtype(np.float64 if dtype.kind == "f" else np.int64)


def frame_sums(
    frames: NDArray[Any],
    masks: Sequence[NDArray[np.bool_]],
    image: NDArray[Any] | None = None,
    bad: NDArray[np.bool_] | None = None,
    squares: NDArray[np.float64] | None = None,
) -> NDArray[Any]:
    """The totals [masks, T] of frames [T, P] over the pixels of up to two masks [P].

    Args:
      frames: as `selected_frames` gives them.
      image: [P] of `sum_dtype`, to which all frames are added.
      bad: [T] those that are not added to the image.
      squares: [P] to which the squares of all counts in the image are added.
    """
    native = native_module()
    if native is not None:
        marked = None if bad is None else bad.view(np.uint8)
        as_bytes = [mask.view(np.uint8) for mask in masks]
        found = native.frame_sums(frames, as_bytes, image, marked, num_threads(), squares)
        return np.asarray(found)
    if image is not None:
        good = frames if bad is None or not bad.any() else frames[~bad]
        image += good.sum(axis=0, dtype=image.dtype)
        if squares is not None:
            squares += np.einsum("tp,tp->p", good, good, dtype=np.float64)
    totals = np.zeros((len(masks), len(frames)), sum_dtype(frames.dtype))
    for total, mask in zip(totals, masks, strict=True):
        chosen = frames if mask.all() else np.take(frames, np.flatnonzero(mask), axis=1)
        total[:] = chosen.sum(axis=1, dtype=total.dtype)
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
        if source.is_sparse and is_whole(source):
            self._of_map, self._of_mask = _totals_of_events(source, qmap, selection)
            return
        found = []
        for _, block in frame_blocks(source, selection):
            found.append(frame_sums(block, masks))
            bar.advance(len(block))
        self._of_map, self._of_mask = np.concatenate(found, axis=1)

    def beyond(self, low: float, high: float) -> NDArray[np.int64]:
        """Numbers of the good frames outside `low` to `high` times the median good frame; those
        with a NaN are outside, and no part of the median."""
        good = ~self._selection.bad_places()
        known = self._of_map[good & ~np.isnan(self._of_map)]
        median = np.median(known) if len(known) else 0.0
        inside = (self._of_map >= low * median) & (self._of_map <= high * median)
        found = np.flatnonzero(good & ~inside)
        return (self._selection.begin + found * self._selection.stride).astype(np.int64)

    def divisors(self) -> NDArray[np.float64]:
        """[N * average] each frame's mean over the pixels with mask 1; 1 for one without light."""
        mean = self._of_mask / max(self._masked, 1)
        return np.where(mean == 0, 1.0, mean)


def _totals_of_events(
    source: FrameSource, qmap: QMap, selection: FrameSelection
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """[N * average] sums of each frame over the map's pixels, and over those with mask 1."""
    length = selection.n * selection.average
    sums = np.zeros((2, length), np.int64)
    for place, pixel, count in event_blocks(source, selection):
        for total, wanted in zip(sums, (qmap.used, qmap.mask), strict=True):
            inside = wanted.ravel()[pixel]
            total += exact_sums(place[inside], count[inside], length)
    return sums[0], sums[1]


def intensity_limits(given: Any) -> Limits | None:
    """The factors (low, high) of an `intensity_cut`, 0 and infinity where they are None.

    Raises:
      ValueError: for anything but a pair of numbers of which the first is not above the second.
    """
    if given is None:
        return None
    if not isinstance(given, tuple | list) or len(given) != 2:
        raise ValueError(
            f"intensity_cut is {given!r:.80}; wanted (low, high), factors of the median frame's "
            "light, None for no limit"
        )
    low = 0.0 if given[0] is None else check_number("intensity_cut's low", given[0], 0)
    high = np.inf if given[1] is None else check_number("intensity_cut's high", given[1], low)
    return low, high
