"""Where frames come from: an interface for dense and sparse detectors, and arrays behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray


class DetectorFileError(ValueError):
    """A detector's file, or a map of its bins, that is not what its format says."""


class Events(NamedTuple):
    """Counts that are not zero, ordered by frame.

    pixel: [M] int32, row * W + column. frame: [M] int32, from the source's first. count: [M].
    """

    pixel: NDArray[np.int32]
    frame: NDArray[np.int32]
    count: NDArray[Any]  # type: ignore[assignment]


class FrameSource:
    """Frames [N, H, W] that are read by parts; subclasses define `read` or `events`.

    Attributes:
      shape: (N, H, W).
      dtype: of a dense frame's counts.
      is_sparse: whether `events` is what the file holds, and `read` makes frames of them.
      array: [N, H, W] where all frames lie in memory or in a memory map, else None.
      words: [M] uint64 where events lie in memory or in a memory map as Rigaku's words, else None:
        count in bits 0 to 11, pixel in 16 to 36, frame in 40 to 63.
      pixel_base: what is subtracted from the pixels of `words`.
      columns: pixel, frame and count, [M] whole numbers in any order, where events lie so in memory
        or in memory maps, else None.
      dead: [H, W], true where the file marks a pixel as dead, whose counts mean nothing; None where
        it marks none. Correlators leave these pixels out.
      linked: paths of the other files that the frames lie in, besides the one that `name` is.
      generation: a number that changes where frames that were read before have become others.
      metadata: what the file says: "frame_time" and "count_time" in s, "energy" in keV, "distance"
        and "pixel_size" in m, "start_time", as far as it is known.
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

    def __init__(self) -> None:
        self.metadata: Mapping[str, Any] = {}

    def read(self, first: int, stop: int) -> NDArray[Any]:
        """Frames first .. stop - 1, [stop - first, H, W]."""
        events = self.events(first, stop)
        pixels = self.shape[1] * self.shape[2]
        frames = np.zeros((stop - first) * pixels, self.dtype)
        place = (events.frame.astype(np.int64) - first) * pixels + events.pixel
        ordered = np.sort(place)
        if (ordered[1:] == ordered[:-1]).any():
            np.add.at(frames, place, events.count)
            if self.dtype.kind != "f" and _total(frames) != _total(events.count):
                exact = np.zeros(len(frames), np.uint64)
                np.add.at(exact, place, events.count.astype(np.uint64))
                frame, pixel = divmod(int(np.flatnonzero(exact != frames)[0]), pixels)
                row, column = divmod(pixel, self.shape[2])
                raise DetectorFileError(
                    f"{self.name}: the counts in frame {first + frame}, row {row}, column {column} "
                    f"add up to more than {self.dtype} holds"
                )
        else:
            frames[place] = events.count
        return frames.reshape(stop - first, *self.shape[1:])

    def events(self, first: int, stop: int) -> Events:
        """The counts of frames first .. stop - 1 that are not zero, without dead pixels."""
        frames = self.read(first, stop).reshape(stop - first, self.shape[1] * self.shape[2])
        counted = frames != 0
        if self.dead is not None:
            counted &= ~self.dead.reshape(-1)
        frame, pixel = np.nonzero(counted)
        return Events(
            pixel.astype(np.int32), (frame + first).astype(np.int32), frames[frame, pixel]
        )

    @property
    def frame_bytes(self) -> int:
        """Bytes of a dense frame."""
        return self.shape[1] * self.shape[2] * self.dtype.itemsize

    def check_range(self, first: int, stop: int) -> None:
        """Raises IndexError for frames that are not there."""
        if not 0 <= first <= stop <= self.shape[0]:
            raise IndexError(
                f"frames {first} to {stop} of {self.name}, which has {self.shape[0]} frames"
            )

    def close(self) -> None:
        """Gives back what the source holds open."""

    def __len__(self) -> int:
        return self.shape[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        kind = "events" if self.is_sparse else self.dtype.name
        return f"{type(self).__name__}({self.name}, {' x '.join(map(str, self.shape))}, {kind})"


class ArrayFrames(FrameSource):
    """An array [N, H, W], or [N, P] with `frame_shape` (H, W), in memory or in a memory map."""

    def __init__(
        self, array: Any, frame_shape: tuple[int, int] | None = None, name: str = "frames"
    ):
        super().__init__()
        found = array if isinstance(array, np.ndarray) else np.asarray(array)
        if found.ndim == 2:
            height, width = frame_shape or (1, found.shape[1])
            if height * width != found.shape[1]:
                raise ValueError(
                    f"{name} has the shape {found.shape}, and a frame {height} x {width}; wanted "
                    f"[N, {height * width}] or [N, {height}, {width}]"
                )
            found = found.reshape(len(found), height, width)
        if found.ndim != 3:
            raise ValueError(f"{name} has the shape {found.shape}; wanted [N, H, W] or [N, P]")
        if found.dtype.kind not in "uif":
            raise ValueError(f"{name} is {found.dtype}; wanted whole or floating-point counts")
        self._stored, self.name = found, name
        self.shape, self.dtype = found.shape, found.dtype.newbyteorder("=")
        # Others than those of this machine are turned around as they are read.
        self.array = found if found.dtype.isnative else None

    def read(self, first: int, stop: int) -> NDArray[Any]:
        self.check_range(first, stop)
        return np.asarray(self._stored[first:stop], self.dtype)


def _total(counts: NDArray[Any]) -> int:
    return int(counts.sum(dtype=np.uint64))


# Largest numbers of signed and unsigned integers, and of counters of 12 bits.
_WIDTHS = (7, 8, 12, 15, 16, 31, 32)


def sentinel_pixels(
    shape: tuple[int, int, int], dtype: np.dtype[Any], read: Callable[[int], NDArray[Any]]
) -> NDArray[np.bool_] | None:
    """Returns [H, W], true for pixels that hold a sentinel in the first, middle and last frame.

    The largest number of `dtype` is one, as are negative numbers and, of floating-point frames, NaN
    and infinity. The largest number of a narrower integer is one where no other count in these
    frames exceeds half of it: a detector of 16 bits may be stored as 32. A sentinel stays the same
    in all three frames.

    Args:
      read: returns frame k, [H, W].
    """
    n = shape[0]
    if not n:
        return None
    frames = [np.asarray(read(k)) for k in sorted({0, n // 2, n - 1})]
    if dtype.kind == "f":
        marked = np.all([~np.isfinite(frame) for frame in frames], axis=0)
        return marked if marked.any() else None
    most = int(np.iinfo(dtype).max)
    marked = np.all([(frame == most) | (frame < 0) for frame in frames], axis=0)
    # From the widest on: a narrower one is compared with what is left.
    for width in reversed(_WIDTHS):
        sentinel = 2**width - 1
        if sentinel >= most:
            continue
        here = np.all([frame == sentinel for frame in frames], axis=0)
        if here.any() and all(
            int(frame.max(initial=0, where=~(here | marked))) <= sentinel // 2 for frame in frames
        ):
            marked |= here
    return marked if marked.any() else None


def mark_sentinels(source: FrameSource) -> None:
    """Adds the pixels with sentinels to a source's dead pixels."""

    def frame(number: int) -> NDArray[Any]:
        return np.asarray(source.read(number, number + 1)[0])

    found = sentinel_pixels(source.shape, source.dtype, frame)
    if found is not None:
        source.dead = found if source.dead is None else source.dead | found
