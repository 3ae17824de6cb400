"""Events in memory as arguments of the native kernels, and in blocks of frames."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.mapped import check_mapped
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource

_BLOCK_EVENTS = 2**22


@dataclass(frozen=True, eq=False)
class EventMemory:
    """All events of a source, in memory or in memory maps, as Rigaku words or as columns.

    Attributes:
      words, pixel_base: see `FrameSource`; `words` is None for columns.
      mapped: true if the words are in a read-only memory map of a file.
      columns: pixel, frame and count, [M] integers of any width and stride; None for words.
      n_frames, frame_pixels: the numbers of frames of the source and of pixels of a frame.
    """

    words: NDArray[np.uint64] | None
    pixel_base: int
    mapped: bool
    columns: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None
    n_frames: int
    frame_pixels: int

    @classmethod
    def from_source(cls, source: FrameSource) -> Self:
        """Return the events of a source, without a copy if they are in memory."""
        shape = source.shape[0], source.shape[1] * source.shape[2]
        words = source.words
        if words is not None and words.flags.c_contiguous:
            check_mapped(source.name, words)
            return cls(words, source.pixel_base, _read_only_map(words), None, *shape)
        columns = source.columns or source.events(0, source.shape[0])
        for column in columns:
            check_mapped(source.name, column)
        pixel, frame, count = map(_readable, columns)
        return cls(None, 0, False, (pixel, frame, count), *shape)

    @property
    def size(self) -> int:
        """Number of events."""
        if self.words is not None:
            return len(self.words)
        return 0 if self.columns is None else len(self.columns[0])

    @property
    def event_bytes(self) -> int:
        """Bytes of one event."""
        return 8 if self.words is not None else sum(x.itemsize for x in self.columns or ())

    def arguments(self) -> tuple[Any, ...]:
        """Return the first arguments of the native kernels."""
        return self.words, self.pixel_base, self.mapped, *(self.columns or (None, None, None))

    def frames(self, selection: FrameSelection) -> tuple[Any, ...]:
        """Return their next arguments: n_frames, n_sums, first_frame, sum, good, frame_pixels."""
        good = selection.good_counts() if selection.good_counts_differ else None
        sums = None
        if selection.stride > 1 or selection.average > 1 or good is not None:
            selection.check_memory(self.n_frames)
            sums = np.full(self.n_frames, -1, np.int32)
            count = selection.n * selection.average
            at = selection.begin + np.arange(count) * selection.stride
            sums[at] = np.arange(count) // selection.average
            sums[selection.bad_selected] = -1
        return self.n_frames, selection.n, selection.begin, sums, good, self.frame_pixels


def _read_only_map(array: NDArray[Any]) -> bool:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            return owner.mode == "r"
        owner = owner.base
    return False


def _readable(column: NDArray[Any]) -> NDArray[Any]:
    """Return a column that kernels can read, a copy if its byte order or strides require one."""
    native = column.astype(column.dtype.newbyteorder("="), copy=False)
    steps = native.flags.aligned and native.strides[0] % native.itemsize == 0
    return native if steps else native.copy()


def event_blocks(
    source: FrameSource, selection: FrameSelection
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]]:
    """Yield all events of a selection, including bad frames, in blocks of some millions.

    A block is (position, pixel, count), each [M]. The position of a frame is its index among the
    frames of the selection.
    """
    stop = selection.begin + selection.n * selection.average * selection.stride
    stop = min(stop, source.shape[0])
    step, first = 1, selection.begin
    while first < stop:
        step = min(step, stop - first)
        pixel, frame, count = source.events(first, first + step)
        position = frame.astype(np.int64) - selection.begin
        if selection.stride > 1:
            selected = position % selection.stride == 0
            position = position[selected] // selection.stride
            pixel, count = pixel[selected], count[selected]
        yield position, pixel, count
        first += step
        step = max(int(step * min(_BLOCK_EVENTS / max(len(frame), 1), 16)), 1)


def exact_sums(numbers: NDArray[Any], counts: NDArray[Any], length: int) -> NDArray[np.int64]:
    """Return exact sums [length] of integer counts, each added at its number."""
    # bincount adds in float64, in which sums of 2^37 numbers of 16 bits are exact.
    low = np.bincount(numbers, counts & 0xFFFF, minlength=length).astype(np.int64)
    if int(counts.max(initial=0)) >= 1 << 16:
        low += np.bincount(numbers, counts >> 16, minlength=length).astype(np.int64) << 16
    return low
