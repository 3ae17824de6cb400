"""Events in memory as a source of frames, and checks of events from files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.detectors.frames import DetectorFileError, Events, FrameSource

#: largest number of frames and of pixels, whose indices are int32
MAX_INDEX = 2**31 - 1


class EventFrames(FrameSource):
    """Events (pixel, frame, count) in memory, in any order.

    Args:
      pixel: [M] integers, row * W + column.
      frame: [M] integers, from 0.
      count: [M] integers of 0 or more; None for ones.
      frame_shape: (H, W).
      n_frames: number of frames; by default the last frame is that of the last event.

    Raises:
      DetectorFileError: arrays of other ranks, dtypes or different lengths, pixels or frames out of
        range, or negative counts. It is a ValueError.
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
            raise DetectorFileError(f"{name}: expected arrays of one length, got {lengths}")
        last = int(arrays["frame"].max(initial=0)) if lengths["frame"] else -1
        n = last + 1 if n_frames is None else int(n_frames)
        if not 0 <= n <= MAX_INDEX:
            raise DetectorFileError(f"{name}: expected 0 to {MAX_INDEX} frames, got {n}")
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
    """Events in memory or in memory maps that are not copied; correlators check their values.

    Args:
      pixel, frame, count: [M] integers, in any order.
      frame_shape: (H, W).
      n_frames: number of frames.

    Raises:
      DetectorFileError: arrays of other ranks, dtypes or different lengths. It is a ValueError.
    """

    is_sparse = True
    dtype = np.dtype(np.uint32)

    def __init__(
        self, pixel: Any, frame: Any, count: Any, frame_shape: tuple[int, int], n_frames: int
    ) -> None:
        super().__init__()
        self.name = "events"
        arrays = {"pixel": pixel, "frame": frame, "count": count}
        arrays = {key: _column(self.name, key, array) for key, array in arrays.items()}
        lengths = {key: len(array) for key, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise DetectorFileError(f"{self.name}: expected arrays of one length, got {lengths}")
        self.columns = (arrays["pixel"], arrays["frame"], arrays["count"])
        self.shape = (n_frames, *check_frame_shape(self.name, frame_shape))

    @cached_property
    def _ordered(self) -> EventFrames:
        assert self.columns is not None
        pixel, frame, count = self.columns
        # The sorting index, and the sorted columns before and after conversion to 4 bytes.
        needed = len(pixel) * (20 + sum(column.itemsize for column in self.columns))
        if needed > 2**28 and needed > (free := available_bytes()):
            raise MemoryError(
                f"sorting {len(pixel):,} events by frame needs {needed / 1e9:,.3g} GB, and "
                f"{free / 1e9:,.3g} GB of memory are free; use fewer events, or neither normalize= "
                "nor intensity_cut= nor overview=, which need this order"
            )
        return EventFrames(pixel, frame, count, self.shape[1:], self.shape[0], self.name)

    def events(self, first: int, stop: int) -> Events:
        return self._ordered.events(first, stop)


def check_frame_shape(name: str, shape: Any) -> tuple[int, int]:
    """Return (H, W) as integers after a check for 1 to 2^31 - 1 pixels."""
    try:
        height, width = (int(n) for n in shape)
    except (TypeError, ValueError, OverflowError):
        raise DetectorFileError(f"{name}: expected a shape (H, W), got {shape!r:.80}") from None
    if height < 1 or width < 1 or height * width > MAX_INDEX:
        raise DetectorFileError(
            f"{name}: expected frames of 1 to {MAX_INDEX} pixels, got {height} x {width}"
        )
    return height, width


def event_shape(
    name: str, stored: Any, frame_shape: tuple[int, int] | None
) -> tuple[tuple[int, int], int | None]:
    """Return (H, W) and the number of frames of a file that stores (N, H, W), or None."""
    if stored is None:
        if frame_shape is None:
            raise DetectorFileError(
                f"{name}: the file has events without the shape of the frames; pass "
                "frame_shape=(H, W)"
            )
        return check_frame_shape(name, frame_shape), None
    shape = np.asarray(stored)
    if shape.shape != (3,) or shape.dtype.kind not in "ui":
        raise DetectorFileError(f"{name}: expected the shape N, H and W, got {shape!s:.80}")
    return check_frame_shape(name, shape[1:]), int(shape[0])


def _column(name: str, key: str, values: Any) -> NDArray[Any]:
    array = np.asarray(values)
    if array.shape == (0,):
        return np.zeros(0, np.int64)  # np.array([]) is float64
    if array.ndim != 1 or array.dtype.kind not in "ui":
        raise DetectorFileError(
            f"{name}: {key}: expected integers [M], got {array.dtype} of the shape {array.shape}"
        )
    return array


def _check_bounds(name: str, key: str, array: NDArray[Any], stop: int) -> None:
    """Raise an error with the index of the first number that is not in 0 .. stop - 1."""
    if not array.size or (array.min() >= 0 and array.max() < stop):
        return
    index = int(np.flatnonzero((array < 0) | (array >= stop))[0])
    raise DetectorFileError(
        f"{name}: {key}: expected 0 to {stop - 1}, got {array[index]} in event {index}"
    )
