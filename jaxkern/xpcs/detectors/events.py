"""Events in memory as a source of frames, and the checks that events of every file pass."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.detectors.frames import DetectorFileError, Events, FrameSource

#: frames and pixels are numbered in int32
MAX_INDEX = 2**31 - 1


class EventFrames(FrameSource):
    """Events (pixel, frame, count) in memory, in any order.

    Args:
      pixel: [M] whole numbers, row * W + column.
      frame: [M] whole numbers, from 0.
      count: [M] whole numbers of 0 or more; ones where it is None.
      frame_shape: (H, W).
      n_frames: how many frames there are; by default the last one with an event is the last.

    Raises:
      DetectorFileError: for arrays of other ranks, dtypes or different lengths, pixels or frames
        that are not there, and negative counts. It is a ValueError.
    """

    is_sparse = True

    def __init__(
        self,
        pixel: Any,
        frame: Any,
        count: Any,
        frame_shape: tuple[int, int],
        n_frames: int | None = None,
        name: str = "events",
        metadata: Mapping[str, Any] | None = None,
    ):
        super().__init__()
        self.name = name
        height, width = check_frame_shape(name, frame_shape)
        arrays = {"pixel": _column(name, "pixel", pixel), "frame": _column(name, "frame", frame)}
        ones = np.ones(len(arrays["pixel"]), np.uint8)
        arrays["count"] = ones if count is None else _column(name, "count", count)
        lengths = {key: len(array) for key, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DetectorFileError(f"{name} holds {lengths} numbers; wanted as many of each")
        last = int(arrays["frame"].max(initial=0)) if lengths["frame"] else -1
        n = last + 1 if n_frames is None else int(n_frames)
        if not 0 <= n <= MAX_INDEX:
            raise DetectorFileError(f"{name} has {n} frames; wanted 0 to {MAX_INDEX}")
        _check_bounds(name, "pixel", arrays["pixel"], height * width)
        _check_bounds(name, "frame", arrays["frame"], n)
        _check_bounds(name, "count", arrays["count"], 2**32)
        if not arrays["count"].all():
            counted = arrays["count"] > 0
            arrays = {key: array[counted] for key, array in arrays.items()}
        frames = arrays["frame"]
        if (frames[1:] < frames[:-1]).any():
            order = np.argsort(frames, kind="stable")
            arrays = {key: array[order] for key, array in arrays.items()}
        self.pixel = arrays["pixel"].astype(np.int32)
        self.frame = arrays["frame"].astype(np.int32)
        self.count = arrays["count"].astype(np.uint32)
        self.columns = (self.pixel, self.frame, self.count)
        self.shape = (n, height, width)
        self.dtype = np.dtype(np.uint32)
        self.metadata = dict(metadata or {})

    def events(self, first: int, stop: int) -> Events:
        self.check_range(first, stop)
        begin, end = np.searchsorted(self.frame, (first, stop))
        return Events(self.pixel[begin:end], self.frame[begin:end], self.count[begin:end])


class RawEvents(FrameSource):
    """Events in memory or in memory maps that stay as they are; correlators check them.

    Args:
      pixel, frame, count: [M] whole numbers, in any order.
      frame_shape: (H, W).
      n_frames: how many frames there are.

    Raises:
      DetectorFileError: for arrays of other ranks, dtypes or different lengths. It is a ValueError.
    """

    is_sparse = True
    dtype = np.dtype(np.uint32)

    def __init__(
        self, pixel: Any, frame: Any, count: Any, frame_shape: tuple[int, int], n_frames: int
    ) -> None:
        super().__init__()
        self.name = "events"
        given = {"pixel": pixel, "frame": frame, "count": count}
        of_pixel, of_frame, of_count = (_column(self.name, key, x) for key, x in given.items())
        lengths = {"pixel": len(of_pixel), "frame": len(of_frame), "count": len(of_count)}
        if len(set(lengths.values())) > 1:
            raise DetectorFileError(f"{self.name} holds {lengths} numbers; wanted as many of each")
        self.columns = (of_pixel, of_frame, of_count)
        self.shape = (n_frames, *check_frame_shape(self.name, frame_shape))

    @cached_property
    def _ordered(self) -> EventFrames:
        assert self.columns is not None
        pixel, frame, count = self.columns
        # Their order, and what is ordered by it, before and after it becomes 4 bytes a number.
        needed = len(pixel) * (20 + sum(column.itemsize for column in self.columns))
        if needed > 2**28 and needed > (free := available_bytes()):
            raise MemoryError(
                f"{len(pixel):,} events in the order of frames take {needed / 1e9:,.3g} GB and "
                f"{free / 1e9:,.3g} GB of memory are left; wanted fewer, or neither normalize= nor "
                "intensity_cut= nor overview=, which go from frame to frame"
            )
        return EventFrames(pixel, frame, count, self.shape[1:], self.shape[0], self.name)

    def events(self, first: int, stop: int) -> Events:
        return self._ordered.events(first, stop)


def check_frame_shape(name: str, given: Any) -> tuple[int, int]:
    """(H, W) as numbers, of at least one and at most 2^31 - 1 pixels."""
    try:
        height, width = (int(n) for n in given)
    except (TypeError, ValueError, OverflowError):
        raise DetectorFileError(
            f"{name} has frames of the shape {given!r:.80}; wanted (H, W)"
        ) from None
    if height < 1 or width < 1 or height * width > MAX_INDEX:
        raise DetectorFileError(
            f"{name} has frames of {height} x {width} pixels; wanted 1 to {MAX_INDEX} pixels"
        )
    return height, width


def shape_of_events(
    name: str, said: Any, frame_shape: tuple[int, int] | None
) -> tuple[tuple[int, int], int | None]:
    """(H, W) and the number of frames, as the file says: (N, H, W) or nothing."""
    if said is None:
        if frame_shape is None:
            raise DetectorFileError(
                f"{name} holds events and does not say of which shape the frames are; give "
                "frame_shape=(H, W)"
            )
        return check_frame_shape(name, frame_shape), None
    told = np.asarray(said)
    if told.shape != (3,) or told.dtype.kind not in "ui":
        raise DetectorFileError(f"{name} says the shape {told!s:.80}; wanted N, H and W")
    return check_frame_shape(name, told[1:]), int(told[0])


def _column(name: str, key: str, given: Any) -> NDArray[Any]:
    array = np.asarray(given)
    if array.shape == (0,):
        return np.zeros(0, np.int64)  # no events have no dtype: np.array([]) is float64
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise DetectorFileError(
            f"{name}: {key} is {array.dtype} of the shape {array.shape}; wanted whole numbers [M]"
        )
    return array


def _check_bounds(name: str, key: str, array: NDArray[Any], stop: int) -> None:
    """Raises where a number is not from 0 to stop - 1, with the place of the first."""
    if not array.size or (array.min() >= 0 and array.max() < stop):
        return
    place = int(np.flatnonzero((array < 0) | (array >= stop))[0])
    raise DetectorFileError(
        f"{name}: {key} is {array[place]} in event {place}; wanted 0 to {stop - 1}"
    )
