"""Events as the native kernels take them, and what is summed of them frame by frame."""

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
    """All events of a source, in memory or in memory maps: Rigaku's words, or columns.

    Attributes:
      words, pixel_base: as of `FrameSource`; or None,
      mapped: whether the words lie in a read-only memory map of a file.
      columns: pixel, frame and count, [M] whole numbers of any width and stride; or None.
      n_frames, frame_pixels: of the source.
    """

    words: NDArray[np.uint64] | None
    pixel_base: int
    mapped: bool
    columns: tuple[NDArray[Any], NDArray[Any], NDArray[Any]] | None
    n_frames: int
    frame_pixels: int

    @classmethod
    def of(cls, source: FrameSource) -> Self:
        """Where they lie; else they are read."""
        shape = source.shape[0], source.shape[1] * source.shape[2]
        words = source.words
        if words is not None and words.flags.c_contiguous:
            check_mapped(source.name, words)
            return cls(words, source.pixel_base, _read_only_map(words), None, *shape)
        given = source.columns or source.events(0, source.shape[0])
        for column in given:
            check_mapped(source.name, column)
        pixel, frame, count = map(_readable, given)
        return cls(None, 0, False, (pixel, frame, count), *shape)

    @property
    def size(self) -> int:
        """How many events there are."""
        if self.words is not None:
            return len(self.words)
        return 0 if self.columns is None else len(self.columns[0])

    @property
    def event_bytes(self) -> int:
        """Of one event."""
        return 8 if self.words is not None else sum(x.itemsize for x in self.columns or ())

    def arguments(self) -> tuple[Any, ...]:
        """The native kernels' first arguments."""
        return self.words, self.pixel_base, self.mapped, *(self.columns or (None, None, None))

    def frames(self, selection: FrameSelection) -> tuple[Any, ...]:
        """Their next ones: n_frames, n_sums, first_frame, sum, good, frame_pixels."""
        good = selection.good_counts() if selection.good_counts_differ else None
        sums = None
        if selection.stride > 1 or selection.average > 1 or good is not None:
            selection.check_memory(self.n_frames)
            sums = np.full(self.n_frames, -1, np.int32)
            count = selection.n * selection.average
            at = selection.begin + np.arange(count) * selection.stride
            sums[at] = np.arange(count) // selection.average
            sums[selection.bad_within] = -1
        return self.n_frames, selection.n, selection.begin, sums, good, self.frame_pixels


def _read_only_map(array: NDArray[Any]) -> bool:
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if isinstance(owner, np.memmap):
            return owner.mode == "r"
        owner = owner.base
    return False


def _readable(column: NDArray[Any]) -> NDArray[Any]:
    """A column as kernels read it: whole numbers of this machine, whole steps apart, or a copy."""
    native = column.astype(column.dtype.newbyteorder("="), copy=False)
    steps = native.flags.aligned and native.strides[0] % native.itemsize == 0
    return native if steps else native.copy()


def event_blocks(
    source: FrameSource, selection: FrameSelection
) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]]:
    """All events of a selection, bad frames' too, in blocks of some millions.

    Place, pixel and count, each [M]; the place of a frame is its number among those that the
    selection takes.
    """
    stop = selection.begin + selection.n * selection.average * selection.stride
    stop = min(stop, source.shape[0])
    step, first = 1, selection.begin
    while first < stop:
        step = min(step, stop - first)
        pixel, frame, count = source.events(first, first + step)
        place = frame.astype(np.int64) - selection.begin
        if selection.stride > 1:
            taken = place % selection.stride == 0
            place, pixel, count = place[taken] // selection.stride, pixel[taken], count[taken]
        yield place, pixel, count
        first += step
        step = max(int(step * min(_BLOCK_EVENTS / max(len(frame), 1), 16)), 1)


def exact_sums(numbers: NDArray[Any], counts: NDArray[Any], length: int) -> NDArray[np.int64]:
    """[length] sums of whole counts by number, exact."""
    # bincount adds in float64, where sums of 2^37 halves of 32 bits are exact.
    low = np.bincount(numbers, counts & 0xFFFF, minlength=length).astype(np.int64)
    if int(counts.max(initial=0)) >= 1 << 16:
        low += np.bincount(numbers, counts >> 16, minlength=length).astype(np.int64) << 16
    return low
