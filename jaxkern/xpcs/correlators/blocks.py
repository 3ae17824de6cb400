"""Frames of a selection in blocks, as kernels read them: what dense correlations go over."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.mapped import check_mapped
from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource

#: what kernels read: whole counts in at most 32 bits, or floating-point numbers
COUNT_DTYPES = tuple(np.dtype(name) for name in ("u1", "u2", "u4", "i4", "f4", "f8"))
#: whole counts of a pixel add up to less, so that all sums of their products fit 63 bits
MOST_COUNTS = 2**32 - 1
BLOCK_BYTES = 32 * 2**20
_WIDE = {"f": np.float64, "i": np.int64, "u": np.uint64}


def as_counts(frames: NDArray[Any], name: str = "frames") -> NDArray[Any]:
    """Frames in a dtype that kernels read: themselves, or a copy in the next wider one.

    Raises:
      ValueError: where whole numbers of 64 bits do not fit 32.
    """
    native = frames.dtype.newbyteorder("=")
    if native in COUNT_DTYPES:
        return frames.astype(native, copy=False)
    if native.kind == "f":
        return frames.astype(np.float32 if native.itemsize < 4 else np.float64)
    wanted = np.dtype(np.uint32 if native.kind == "u" else np.int32)
    least, most = int(frames.min(initial=0)), int(frames.max(initial=0))
    if least < np.iinfo(wanted).min or most > np.iinfo(wanted).max:
        raise ValueError(
            f"{name} is {frames.dtype} and has counts from {least} to {most}; wanted whole counts "
            f"that fit {wanted}, or floating-point ones"
        )
    return frames.astype(wanted)


def is_whole(source: FrameSource) -> bool:
    """Whether a source's counts are whole numbers."""
    return source.dtype.kind != "f"


def selected_frames(
    source: FrameSource, selection: FrameSelection, first: int, stop: int
) -> NDArray[Any]:
    """The frames of a selection's sums first .. stop - 1, [(stop - first) * average, H * W].

    Bad ones too. Pixels of a frame lie together. Where the frames are in memory and nothing has to
    be changed, it is a view.

    Raises:
      MemoryError: where there is no room for them, as for the frames of a very long sum.
    """
    step, count = selection.stride, (stop - first) * selection.average
    begin = selection.begin + first * selection.average * step
    end = begin + max(count - 1, 0) * step + min(count, 1)
    if source.array is not None:
        frames = source.array[begin:end:step]
        check_mapped(source.name, frames)
    elif step >= 8:  # reading what is then thrown away takes longer than single frames do
        _check_room(source, selection, count)
        frames = np.concatenate([source.read(k, k + 1) for k in range(begin, end, step)])
    else:
        _check_room(source, selection, end - begin)
        frames = source.read(begin, end)[::step]
    wanted = (count, *source.shape[1:])
    if frames.shape != wanted:
        raise ValueError(
            f"{source!r} gave frames of the shape {frames.shape}; wanted {wanted}, as it says"
        )
    flat = as_counts(frames.reshape(count, -1), source.name)
    return flat if pixels_together(flat) else flat.copy()


def _check_room(source: FrameSource, selection: FrameSelection, count: int) -> None:
    """Raises where memory has no room for so many frames, and what is made of them."""
    needed = 2 * count * source.frame_bytes
    if needed > 4 * BLOCK_BYTES and needed > (free := available_bytes()):
        raise MemoryError(
            f"{count:,} frames of {source.name}, of which sums of {selection.average:,} are made, "
            f"take {needed / 1e9:,.3g} GB and {free / 1e9:,.3g} GB of memory are left: give a "
            "smaller average="
        )


def pixels_together(frames: NDArray[Any]) -> bool:
    """Whether kernels read frames [N, ...] where they lie: of a frame every pixel behind the one
    before, and frames whole pixels apart, which a field of records need not be."""
    if frames.size == 0:
        return True
    apart = frames.strides[0] % frames.itemsize == 0
    return bool(apart and frames.flags.aligned and frames[0].flags.c_contiguous)


def frame_blocks(
    source: FrameSource,
    selection: FrameSelection,
    n_bytes: int | None = None,
    size: int | None = None,
) -> Iterator[tuple[int, NDArray[Any]]]:
    """All frames of a selection in order: (number of the first sum, `selected_frames`).

    Frames that are not in memory are read by a thread of their own, a block ahead.

    Args:
      n_bytes: about how much of the source a block holds; by default `BLOCK_BYTES`.
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
    """Sums of `average` neighbours of frames [T * average, P], [T, P]; bad ones count as zeros.

    In the frames' own dtype where one frame is a sum, else in 64 bits.

    Args:
      bad: [T * average].
      divisor: [T * average] what each frame is divided by.
    """
    if divisor is not None:
        frames = frames / divisor[:, None]
    if bad.any():
        frames = frames.copy()
        frames[bad] = 0
    if average == 1:
        return frames
    wide = _WIDE[frames.dtype.kind]
    of_sum = frames.reshape(len(frames) // average, average, frames.shape[1])
    return np.asarray(of_sum.sum(axis=1, dtype=wide))
