"""Sources of frames: their interface, arrays and events in memory, and dead pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import check_memory

#: largest number of frames and of pixels, whose indices are int32
MAX_INDEX = 2**31 - 1


class DetectorFileError(ValueError):
    """Error in a detector's file, or in a map of its bins, that contradicts its format.

    Example:
      >>> import jaxkern as jk
      >>> try:
      ...     jk.xpcs.EventFrames(pixel=[4], frame=[0], count=[1], frame_shape=(2, 2))
      ... except jk.xpcs.DetectorFileError as error:
      ...     print("pixel" in str(error))
      True
    """


class Events(NamedTuple):
    """Nonzero counts, ordered by frame.

    Args:
      pixel: [M] int32, row * W + column.
      frame: [M] int32, counted from the source's first frame.
      count: [M].

    Example:
      >>> import jaxkern as jk
      >>> frames = jk.xpcs.EventFrames(pixel=[3, 0], frame=[0, 2], count=[1, 5], frame_shape=(2, 2))
      >>> events = frames.events(1, 3)
      >>> events.pixel.tolist(), events.frame.tolist(), events.count.tolist()
      ([0], [2], [5])
    """

    pixel: NDArray[np.int32]
    frame: NDArray[np.int32]
    count: NDArray[Any]  # type: ignore[assignment]


class FrameSource:
    """Frames [N, H, W] that are read in parts; subclasses define `read` or `events`.

    Attributes:
      shape: (N, H, W).
      dtype: dtype of the counts of a dense frame.
      is_sparse: true if the source stores events, from which `read` forms frames.
      array: [N, H, W] if all frames are in memory or in a memory map, else None.
      words: [M] uint64 if the events are in memory or in a memory map as Rigaku words, else None:
        count in bits 0 to 11, pixel in 16 to 36, frame in 40 to 63.
      pixel_base: number that is subtracted from the pixels of `words`.
      columns: pixel, frame and count, [M] integers in any order, if the events are in memory or in
        memory maps as arrays, else None.
      dead: [H, W], true where the file marks a pixel as dead, so that its counts are invalid; None
        if it marks no pixel. Correlators leave these pixels out.
      linked: paths of the files that hold frames, other than the file `name`.
      generation: a number that changes if frames that were read before were replaced.
      metadata: entries of the file: "frame_time" and "count_time" in s, "energy" in keV, "distance"
        and "pixel_size" in m, "start_time". Unknown entries are missing.
        Read-only: sources assign another mapping.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> class Ramp(jk.xpcs.FrameSource):
      ...     shape, dtype = (6, 2, 2), np.dtype(np.uint16)
      ...     def read(self, first, stop):
      ...         return np.arange(first, stop, dtype=self.dtype).repeat(4).reshape(-1, 2, 2)
      >>> jk.xpcs.as_frames(Ramp()).read(4, 6)[:, 0, 0].tolist()
      [4, 5]
    """

    shape: tuple[int, int, int]
    dtype: np.dtype[Any]
    is_sparse: bool = False
    array: NDArray[Any] | None = None
    words: NDArray[np.uint64] | None = None
    pixel_base: int = 0
    columns: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None = None
    dead: NDArray[np.bool_] | None = None
    name: str = "frames"
    linked: tuple[str, ...] = ()
    generation: int = 0
    metadata: Mapping[str, Any] = MappingProxyType({})

    def read(self, first: int, stop: int) -> NDArray[Any]:
        """Return frames first .. stop - 1, [stop - first, H, W]."""
        events = self.events(first, stop)
        pixels = self.shape[1] * self.shape[2]
        frames = np.zeros((stop - first) * pixels, self.dtype)
        index = (events.frame.astype(np.int64) - first) * pixels + events.pixel
        ordered = np.sort(index)
        if (ordered[1:] == ordered[:-1]).any():
            np.add.at(frames, index, events.count)
            totals = [int(counts.sum(dtype=np.uint64)) for counts in (frames, events.count)]
            if self.dtype.kind != "f" and totals[0] != totals[1]:
                exact = np.zeros(len(frames), np.uint64)
                np.add.at(exact, index, events.count.astype(np.uint64))
                frame, pixel = divmod(int(np.flatnonzero(exact != frames)[0]), pixels)
                row, column = divmod(pixel, self.shape[2])
                where = f"{self.name}: frame {first + frame}, row {row}, column {column}"
                raise DetectorFileError(f"{where}: the sum of the counts overflows {self.dtype}")
        else:
            frames[index] = events.count
        return frames.reshape(stop - first, *self.shape[1:])

    def events(self, first: int, stop: int) -> Events:
        """Return the nonzero counts of frames first .. stop - 1, without dead pixels."""
        frames = self.read(first, stop).reshape(stop - first, self.shape[1] * self.shape[2])
        counted = frames != 0
        if self.dead is not None:
            counted &= ~self.dead.reshape(-1)
        frame, pixel = np.nonzero(counted)
        numbers = pixel.astype(np.int32), (frame + first).astype(np.int32)
        return Events(*numbers, frames[frame, pixel])

    @property
    def frame_bytes(self) -> int:
        """Size of a dense frame in bytes."""
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    def check_range(self, first: int, stop: int) -> None:
        """Raise IndexError for frames out of range."""
        if not 0 <= first <= stop <= self.shape[0]:
            raise IndexError(f"{self.name}: expected 0 to {self.shape[0]}, got {first} to {stop}")

    def joined(
        self, parts: Iterable[tuple[int, Callable[[int, int], NDArray[Any]]]], first: int, stop: int
    ) -> NDArray[Any]:
        """Return frames first .. stop - 1 of parts in sequence, each (number of frames, reader)."""
        pieces, start = [np.zeros((0, *self.shape[1:]), self.dtype)], 0
        for count, read in parts:
            begin, end = max(first - start, 0), min(stop - start, count)
            if begin < end:
                pieces.append(read(begin, end))
            start += count
        return pieces[1] if len(pieces) == 2 else np.concatenate(pieces)

    def close(self) -> None:
        """Close the files of the source."""

    def __len__(self) -> int:
        return self.shape[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "events" if self.is_sparse else self.dtype.name
        return f"{type(self).__name__}({self.name}, {' x '.join(map(str, self.shape))}, {kind})"


class ArrayFrames(FrameSource):
    """An array [N, H, W], or [N, P] with `frame_shape` (H, W), in memory or in a memory map."""

    def __init__(
        self, array: Any, frame_shape: tuple[int, int] | None = None, name: str = "frames"
    ):
        stored = array if isinstance(array, np.ndarray) else np.asarray(array)
        if stored.ndim == 2:
            height, width = frame_shape or (1, stored.shape[1])
            if height * width != stored.shape[1]:
                shapes = f"[N, {height * width}] or [N, {height}, {width}]"
                raise ValueError(f"{name}: expected the shape {shapes}, got {stored.shape}")
            stored = stored.reshape(len(stored), height, width)
        if stored.ndim != 3:
            raise ValueError(f"{name}: expected the shape [N, H, W] or [N, P], got {stored.shape}")
        if stored.dtype.kind not in "uif":
            raise ValueError(f"{name}: expected integers or floats, got {stored.dtype}")
        self._stored, self.name = stored, name
        self.shape, self.dtype = stored.shape, stored.dtype.newbyteorder("=")
        # Arrays of the other byte order are converted when they are read.
        self.array = stored if stored.dtype.isnative else None

    def read(self, first: int, stop: int) -> NDArray[Any]:
        self.check_range(first, stop)
        return np.asarray(self._stored[first:stop], self.dtype)


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

    Example:
      >>> import jaxkern as jk
      >>> frames = jk.xpcs.EventFrames(pixel=[3, 0], frame=[0, 2], count=[1, 5], frame_shape=(2, 2))
      >>> frames.shape, frames.read(2, 3).tolist()
      ((3, 2, 2), [[[5, 0], [0, 0]]])
    """

    is_sparse = True
    dtype = np.dtype(np.uint32)

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
        self.name = name
        height, width = check_frame_shape(name, frame_shape)
        ones = np.ones(np.shape(pixel), np.uint8)
        arrays = _columns(name, pixel, frame, ones if count is None else count)
        last = int(arrays["frame"].max()) if len(arrays["frame"]) else -1
        n = last + 1 if n_frames is None else int(n_frames)
        if not 0 <= n <= MAX_INDEX:
            raise DetectorFileError(f"{name}: expected 0 to {MAX_INDEX} frames, got {n}")
        _check_bounds(name, "pixel", arrays["pixel"], height * width)
        _check_bounds(name, "frame", arrays["frame"], n)
        _check_bounds(name, "count", arrays["count"], 2**32)
        columns = nonzero_events(**arrays)
        frames = columns.frame
        if (frames[1:] < frames[:-1]).any():
            order = np.argsort(frames, kind="stable")
            columns = Events(*(column[order] for column in columns))
        self.pixel = columns.pixel.astype(np.int32)
        self.frame = columns.frame.astype(np.int32)
        self.count = columns.count.astype(np.uint32)
        self.columns = (self.pixel, self.frame, self.count)
        self.shape = (n, height, width)
        self.metadata = dict(metadata or {})

    def events(self, first: int, stop: int) -> Events:
        self.check_range(first, stop)
        begin, end = np.searchsorted(self.frame, (first, stop))
        return Events(self.pixel[begin:end], self.frame[begin:end], self.count[begin:end])


class RawEvents(FrameSource):
    """Integers [M] in memory or in memory maps, not copied; correlators check their values."""

    is_sparse = True
    dtype = np.dtype(np.uint32)
    name = "events"

    def __init__(
        self, pixel: Any, frame: Any, count: Any, frame_shape: tuple[int, int], n_frames: int
    ) -> None:
        arrays = _columns(self.name, pixel, frame, count)
        self.columns = (arrays["pixel"], arrays["frame"], arrays["count"])
        self.shape = (n_frames, *check_frame_shape(self.name, frame_shape))

    @cached_property
    def _ordered(self) -> EventFrames:
        assert self.columns is not None
        pixel, frame, count = self.columns
        # The sorting index, and the sorted columns before and after conversion to 4 bytes.
        check_memory(
            f"indices that sort {len(pixel):,} events by frame",
            len(pixel) * (20 + sum(column.itemsize for column in self.columns)),
            "use fewer events, or neither normalize= nor intensity_cut= nor overview=",
            minimum=2**28,
        )
        return EventFrames(pixel, frame, count, self.shape[1:], self.shape[0], self.name)

    def events(self, first: int, stop: int) -> Events:
        return self._ordered.events(first, stop)


def nonzero_events(
    pixel: NDArray[np.int32], frame: NDArray[np.int32], count: NDArray[Any]
) -> Events:
    """Return the events whose counts are not 0."""
    if count.all():
        return Events(pixel, frame, count)
    counted = count != 0
    return Events(pixel[counted], frame[counted], count[counted])


def check_frame_shape(name: str, shape: Any) -> tuple[int, int]:
    """Return (H, W) as integers after a check for 1 to 2^31 - 1 pixels."""
    try:
        height, width = (int(n) for n in shape)
    except (TypeError, ValueError, OverflowError):
        raise DetectorFileError(f"{name}: expected a shape (H, W), got {shape!r:.80}") from None
    if height < 1 or width < 1 or height * width > MAX_INDEX:
        raise DetectorFileError(f"{name}: expected 1 to {MAX_INDEX} pixels, got {height} x {width}")
    return height, width


def event_shape(
    name: str, stored: Any, frame_shape: tuple[int, int] | None
) -> tuple[tuple[int, int], int | None]:
    """Return (H, W) and the number of frames of a file that stores (N, H, W), or None."""
    if stored is None:
        if frame_shape is None:
            raise DetectorFileError(f"{name} has no shape of the frames; pass frame_shape=(H, W)")
        return check_frame_shape(name, frame_shape), None
    shape = np.asarray(stored)
    if shape.shape != (3,) or shape.dtype.kind not in "ui":
        raise DetectorFileError(f"{name}: expected the shape N, H and W, got {shape!s:.80}")
    return check_frame_shape(name, shape[1:]), int(shape[0])


def _columns(name: str, pixel: Any, frame: Any, count: Any) -> dict[str, NDArray[Any]]:
    """Return arrays of events by name, after a check that they are integers of one length."""
    arrays = {"pixel": np.asarray(pixel), "frame": np.asarray(frame), "count": np.asarray(count)}
    for key, array in arrays.items():
        if array.shape == (0,):
            arrays[key] = np.zeros(0, np.int64)  # np.array([]) is float64
        elif array.ndim != 1 or array.dtype.kind not in "ui":
            got = f"{array.dtype} {array.shape}"
            raise DetectorFileError(f"{name}: {key}: expected integers [M], got {got}")
    lengths = {key: len(array) for key, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DetectorFileError(f"{name}: expected arrays of one length, got {lengths}")
    return arrays


def _check_bounds(name: str, key: str, array: NDArray[Any], stop: int) -> None:
    """Raise an error with the index of the first number that is not in 0 .. stop - 1."""
    if not array.size or (array.min() >= 0 and array.max() < stop):
        return
    index = int(np.flatnonzero((array < 0) | (array >= stop))[0])
    got = f"{array[index]} in event {index}"
    raise DetectorFileError(f"{name}: {key}: expected 0 to {stop - 1}, got {got}")


# Largest numbers of signed and unsigned integers, and of counters of 12 bits.
_WIDTHS = (7, 8, 12, 15, 16, 31, 32)


def mark_sentinels(
    source: FrameSource, read: Callable[[int, int], NDArray[Any]] | None = None
) -> None:
    """Add the pixels with a sentinel in the first, middle and last frame to a source's dead pixels.

    Sentinels, which mark dead pixels, are the largest number of the dtype, negative numbers and, in
    floating-point frames, NaN and infinity. The largest number of a narrower integer is a sentinel
    if all other counts in these frames are at most half of it, since a detector of 16 bits may be
    stored in 32. A sentinel is the same in all three frames. `read` replaces the source's method.
    """
    n = source.shape[0]
    if not n:
        return
    read = read or source.read
    frames = [np.asarray(read(k, k + 1)[0]) for k in sorted({0, n // 2, n - 1})]
    if source.dtype.kind == "f":
        marked = np.all([~np.isfinite(frame) for frame in frames], axis=0)
    else:
        most = int(np.iinfo(source.dtype).max)
        marked = np.all([(frame == most) | (frame < 0) for frame in frames], axis=0)
        # Begin with the widest: a narrower one is compared with the pixels not marked yet.
        for width in reversed(_WIDTHS):
            sentinel = 2**width - 1
            if sentinel >= most:
                continue
            equal = np.all([frame == sentinel for frame in frames], axis=0)
            if equal.any() and all(
                frame.max(initial=0, where=~(equal | marked)) <= sentinel // 2 for frame in frames
            ):
                marked |= equal
    if marked.any():
        source.dead = marked if source.dead is None else source.dead | marked
