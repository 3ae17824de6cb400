"""Which frames of a run are correlated: a part of them, every n-th, sums of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import available_bytes

_FRAME_BYTES = 32  # of numbers for each frame, with what is held beside them while they are made


class FrameSelection:
    """Frames `begin` to `end` (exclusive), every `stride`-th, `average` neighbours summed.

    What is correlated is N = (end - begin) // (stride * average) sums; sum k holds the frames
    begin + (k * average + i) * stride, i < average. Frames that fill no sum are left out.

    Args:
      total: how many frames there are.
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
                f"begin is {begin} and end {end}; wanted 0 <= begin <= end <= {total}, the number "
                "of frames"
            )
        bad = np.unique(np.asarray([] if bad_frames is None else bad_frames))
        if bad.size and (bad.dtype.kind not in "ui" or bad[0] < 0 or bad[-1] >= total):
            raise ValueError(
                f"bad_frames is {bad_frames!r:.80}; wanted whole numbers from 0 to {total - 1}"
            )
        self.bad = bad.astype(np.int64)
        self.n = (self.end - self.begin) // (self.stride * self.average)

    def leaving_out(self, bad_frames: NDArray[Any]) -> FrameSelection:
        """The same with more bad frames."""
        bad = np.union1d(self.bad, bad_frames)
        return FrameSelection(self.total, self.begin, self.end, self.stride, self.average, bad)

    def part(self, first: int, stop: int) -> FrameSelection:
        """Sums first .. stop - 1."""
        length = self.stride * self.average
        begin, end = (self.begin + k * length for k in (first, stop))
        return FrameSelection(self.total, begin, end, self.stride, self.average, self.bad)

    @property
    def bad_within(self) -> NDArray[np.int64]:
        """The bad frames that would otherwise be in a sum."""
        from_begin = self.bad - self.begin
        inside = (from_begin >= 0) & (from_begin < self.n * self.average * self.stride)
        within: NDArray[np.int64] = self.bad[inside & (from_begin % self.stride == 0)]
        return within

    def check_memory(self, frames: int) -> None:
        """Raises MemoryError where there is no room for numbers of each of so many frames."""
        needed = frames * _FRAME_BYTES
        if needed > 2**28 and needed > (free := available_bytes()):
            raise MemoryError(
                f"numbers for each of {frames:,} frames take {needed / 1e9:,.3g} GB, and "
                f"{free / 1e9:,.3g} GB of memory are left; wanted fewer frames (begin=, end=). "
                "multitau_events needs none without bad_frames, stride, average, intensity_cut, "
                "normalize and overview"
            )

    def bad_places(self) -> NDArray[np.bool_]:
        """[N * average] which of the frames that are taken are bad."""
        self.check_memory(self.n * self.average)
        places = np.zeros(self.n * self.average, bool)
        places[(self.bad_within - self.begin) // self.stride] = True
        return places

    def config(self) -> dict[str, Any]:
        """What results say of it."""
        return {
            "begin": self.begin,
            "end": self.end,
            "stride": self.stride,
            "average": self.average,
            "bad_frames": self.bad_within.tolist(),
        }

    @property
    def good_counts_differ(self) -> bool:
        return bool(len(self.bad_within))

    def good_counts(self) -> NDArray[np.uint32]:
        """[N] how many good frames each sum holds."""
        self.check_memory(self.n)
        counts = np.full(self.n, self.average, np.uint32)
        within = (self.bad_within - self.begin) // (self.stride * self.average)
        np.subtract.at(counts, within, 1)
        return counts
