"""Selection of frames of a run, and the selected frames in blocks that kernels can read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.mapped import check_mapped
from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.detectors.frames import FrameSource

_FRAME_BYTES = 32  # memory for the numbers of one frame, including temporary arrays


class FrameSelection:
    """Frames `begin` to `end` (exclusive), every `stride`-th, with `average` neighbours summed.

    There are N = (end - begin) // (stride * average) sums. Sum k is over the frames
    begin + (k * average + i) * stride, i < average. Frames that do not fill a sum are left out.

    Args:
      total: number of frames of the source.
      bad_frames: numbers of frames, counted from the source's first, that are left out.
    """

    def __init__(
        self,
        total: int,
        begin: int = 0,
        end: int | None = None,
        stride: int = 1,
        average: int = 1,
        bad_frames: Sequence[int] | NDArray[Any] | None = None,
    ):
        end = total if end is None else end
        self.total = total
        self.begin = check_integer("begin", begin, 0)
        self.end = check_integer("end", end, 0)
        self.stride = check_integer("stride", stride, 1)
        self.average = check_integer("average", average, 1)
        if not self.begin <= self.end <= total:
            raise ValueError(
                f"begin, end: expected 0 <= begin <= end <= {total}, the number of frames, got "
                f"{begin} and {end}"
            )
        bad = np.unique(np.asarray([] if bad_frames is None else bad_frames))
        if bad.size and (bad.dtype.kind not in "ui" or bad[0] < 0 or bad[-1] >= total):
            raise ValueError(
                f"bad_frames: expected integers from 0 to {total - 1}, got {bad_frames!r:.80}"
            )
        self.bad = bad.astype(np.int64)
        self.n = (self.end - self.begin) // (self.stride * self.average)

    def with_bad_frames(self, bad_frames: NDArray[Any]) -> FrameSelection:
        """Return this selection with more bad frames."""
        bad = np.union1d(self.bad, bad_frames)
        return FrameSelection(self.total, self.begin, self.end, self.stride, self.average, bad)

    def part(self, first: int, stop: int) -> FrameSelection:
        """Return the selection of the sums first .. stop - 1."""
        length = self.stride * self.average
        begin, end = (self.begin + k * length for k in (first, stop))
        return FrameSelection(self.total, begin, end, self.stride, self.average, self.bad)

    @property
    def bad_selected(self) -> NDArray[np.int64]:
        """The bad frames that would otherwise be in a sum."""
        from_begin = self.bad - self.begin
        inside = (from_begin >= 0) & (from_begin < self.n * self.average * self.stride)
        selected: NDArray[np.int64] = self.bad[inside & (from_begin % self.stride == 0)]
        return selected

    def check_memory(self, frames: int) -> None:
        """Raise MemoryError if arrays with numbers for `frames` frames do not fit into memory."""
        needed = frames * _FRAME_BYTES
        if needed > 2**28 and needed > (free := available_bytes()):
            raise MemoryError(
                f"arrays for {frames:,} frames need {needed / 1e9:,.3g} GB, and "
                f"{free / 1e9:,.3g} GB of memory are free; select fewer frames (begin=, end=). "
                "multitau_events does not need these arrays without bad_frames, stride, average, "
                "intensity_cut, normalize and overview"
            )

    def bad_mask(self) -> NDArray[np.bool_]:
        """Return a mask [N * average] of the selected frames, true for bad ones."""
        self.check_memory(self.n * self.average)
        mask = np.zeros(self.n * self.average, bool)
        mask[(self.bad_selected - self.begin) // self.stride] = True
        return mask

    def config(self) -> dict[str, Any]:
        """Return the selection as entries of a result's `config`."""
        return {
            "begin": self.begin,
            "end": self.end,
            "stride": self.stride,
            "average": self.average,
            "bad_frames": self.bad_selected.tolist(),
        }

    @property
    def good_counts_differ(self) -> bool:
        """True if some sum holds a bad frame."""
        return bool(len(self.bad_selected))

    def good_counts(self) -> NDArray[np.uint32]:
        """Return the number of good frames [N] in each sum."""
        self.check_memory(self.n)
        counts = np.full(self.n, self.average, np.uint32)
        sums = (self.bad_selected - self.begin) // (self.stride * self.average)
        np.subtract.at(counts, sums, 1)
        return counts


#: dtypes that kernels read: integers of at most 32 bits, or floating-point numbers
COUNT_DTYPES = tuple(np.dtype(name) for name in ("u1", "u2", "u4", "i4", "f4", "f8"))
#: the integer counts of a pixel must sum to less, so that all sums of products fit into 63 bits
COUNT_LIMIT = 2**32 - 1
BLOCK_BYTES = 32 * 2**20
_WIDE = {"f": np.float64, "i": np.int64, "u": np.uint64}


def as_counts(frames: NDArray[Any], name: str = "frames") -> NDArray[Any]:
    """Return frames in a dtype that kernels read, a copy if their own dtype is another.

    Raises:
      ValueError: 64-bit integers do not fit into 32 bits.
    """
    native = frames.dtype.newbyteorder("=")
    if native in COUNT_DTYPES:
        return frames.astype(native, copy=False)
    if native.kind == "f":
        return frames.astype(np.float32 if native.itemsize < 4 else np.float64)
    target = np.dtype(np.uint32 if native.kind == "u" else np.int32)
    least, most = int(frames.min(initial=0)), int(frames.max(initial=0))
    if least < np.iinfo(target).min or most > np.iinfo(target).max:
        raise ValueError(
            f"{name}: expected counts that fit into {target}, or floating-point counts, got "
            f"{frames.dtype} from {least} to {most}"
        )
    return frames.astype(target)


def has_integer_counts(source: FrameSource) -> bool:
    """True if a source's counts are integers."""
    return source.dtype.kind != "f"


def selected_frames(
    source: FrameSource, selection: FrameSelection, first: int, stop: int
) -> NDArray[Any]:
    """Return the frames of a selection's sums first .. stop - 1, [(stop - first) * average, H * W].

    Bad frames are included. The pixels of a frame are contiguous. The array is a view if the frames
    are in memory in a dtype that kernels read.

    Raises:
      MemoryError: the frames do not fit into memory, such as those of a very long sum.
    """
    step, count = selection.stride, (stop - first) * selection.average
    begin = selection.begin + first * selection.average * step
    end = begin + max(count - 1, 0) * step + min(count, 1)
    if source.array is not None:
        frames = source.array[begin:end:step]
        check_mapped(source.name, frames)
    elif step >= 8:  # reading single frames is faster than reading all of them
        _check_room(source, selection, count)
        frames = np.concatenate([source.read(k, k + 1) for k in range(begin, end, step)])
    else:
        _check_room(source, selection, end - begin)
        frames = source.read(begin, end)[::step]
    shape = (count, *source.shape[1:])
    if frames.shape != shape:
        raise ValueError(f"{source!r}: expected frames of shape {shape}, got {frames.shape}")
    flat = as_counts(frames.reshape(count, -1), source.name)
    return flat if is_contiguous(flat) else flat.copy()


def _check_room(source: FrameSource, selection: FrameSelection, count: int) -> None:
    """Raise MemoryError if `count` frames and their sums do not fit into memory."""
    needed = 2 * count * source.frame_bytes
    if needed > 4 * BLOCK_BYTES and needed > (free := available_bytes()):
        raise MemoryError(
            f"{source.name}: {count:,} frames for sums of {selection.average:,} need "
            f"{needed / 1e9:,.3g} GB, and {free / 1e9:,.3g} GB of memory are free; use a smaller "
            "average="
        )


def is_contiguous(frames: NDArray[Any]) -> bool:
    """True if kernels can read frames [N, ...] in place.

    Each frame must be contiguous, and the stride between frames a multiple of the itemsize, which
    it may not be in a field of a structured array.
    """
    if frames.size == 0:
        return True
    divisible = frames.strides[0] % frames.itemsize == 0
    return bool(divisible and frames.flags.aligned and frames[0].flags.c_contiguous)


def frame_blocks(
    source: FrameSource,
    selection: FrameSelection,
    n_bytes: int | None = None,
    size: int | None = None,
) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield all frames of a selection in order, as (number of the first sum, `selected_frames`).

    A thread reads frames that are not in memory, one block ahead.

    Args:
      n_bytes: approximate size of a block in the source; by default `BLOCK_BYTES`.
      size: sums in a block; by default as many as fit.
    """
    if size is None:
        sum_bytes = max(source.frame_bytes * selection.average, 1)
        size = max((n_bytes or BLOCK_BYTES) // sum_bytes, 1)
    ranges = [(k, min(k + size, selection.n)) for k in range(0, selection.n, size)]
    if source.array is not None:
        for first, stop in ranges:
            yield first, selected_frames(source, selection, first, stop)
        return
    with ThreadPoolExecutor(1, "jaxkern-frames") as reader:
        ahead = None
        for number, (first, stop) in enumerate(ranges):
            now = ahead or reader.submit(selected_frames, source, selection, first, stop)
            if number + 1 < len(ranges):
                ahead = reader.submit(selected_frames, source, selection, *ranges[number + 1])
            yield first, now.result()


def summed(
    frames: NDArray[Any],
    average: int,
    bad: NDArray[np.bool_],
    divisor: NDArray[np.float64] | None = None,
) -> NDArray[Any]:
    """Return sums [T, P] of `average` neighbouring frames [T * average, P].

    The dtype is that of the frames if `average` is 1, else it has 64 bits.

    Args:
      bad: [T * average], true for frames that count as zeros.
      divisor: [T * average], the number that each frame is divided by.
    """
    if divisor is not None:
        frames = frames / divisor[:, None]
    if bad.any():
        frames = frames.copy()
        frames[bad] = 0
    if average == 1:
        return frames
    grouped = frames.reshape(len(frames) // average, average, frames.shape[1])
    return np.asarray(grouped.sum(axis=1, dtype=_WIDE[frames.dtype.kind]))
