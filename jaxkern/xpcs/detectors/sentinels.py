"""Counts that mark a pixel as dead: the largest number of an integer type, negative ones, NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.frames import FrameSource

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
