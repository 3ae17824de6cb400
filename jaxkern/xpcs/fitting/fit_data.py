"""What a fit needs of its data, wherever they lie, and the way through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files.sources import Source
from jaxkern.xpcs.fitting.checkpoint import PartialPass
from jaxkern.xpcs.fitting.options import StreamingOptions
from jaxkern.xpcs.fitting.passes import (
    BadBlocks,
    BadDataError,
    Pass,
    PassContext,
    PassPoint,
    WholePass,
)
from jaxkern.xpcs.fitting.starting import (
    BANDS,
    RowSample,
    frames_without_numbers,
    listed,
    mirrored_angles,
)
from jaxkern.xpcs.fitting.strategy import Strategy
from jaxkern.xpcs.model.twin import ROW_BLOCK

Array = NDArray[np.float64]

# Points that are sampled for estimates, at most, beyond a least number of rows.
_SAMPLE_POINTS = 600_000
_LEAST_BANDS = 8


def sample_bands(shape: tuple[int, int, int]) -> int:
    """Into how many bands of rows the sample for estimates goes."""
    n_phi, n, _ = shape
    return min(BANDS, max(_LEAST_BANDS, _SAMPLE_POINTS // (3 * n_phi * n)))


class FitData:
    """What `fit` needs to know of its data; either in the host's reach or on devices."""

    shape: tuple[int, int, int]
    dtype: Any
    sample: RowSample
    strategy: Strategy
    chunk_rows: int
    step_zero: tuple[float, float]
    sharding: Any = None

    def __init__(self, frames: NDArray[np.bool_]) -> None:
        self.frames = frames  # [n]: those that count at some angle
        self.keep = frames  # the same, or [n_phi, n] where angles differ
        self._all_mirrored = False
        self.ways: list[Any] = []

    def bad_blocks(self, silent: Sequence[int] = ()) -> BadBlocks:
        """Nothing excluded yet but the angles without signal.

        Raises:
          BadDataError: when no other angle is there.
        """
        n_phi, n, _ = self.shape
        rows = range(0, n, ROW_BLOCK)
        used = [b for b, first in enumerate(rows) if self.frames[first : first + ROW_BLOCK].any()]
        bad = BadBlocks(ROW_BLOCK, n_phi * len(used))
        for angle in silent:
            bad.excluded |= {(angle, block) for block in used}
            value = np.nanmedian(self.sample.values[angle])
            bad.reasons.append(f"angle {angle} has the value {value:g} wherever it was looked at")
        if silent and len(bad.excluded) >= bad.total:
            raise BadDataError(f"no row can be used: {bad.reasons[0]}, and so on")
        return bad

    def leave_out_empty_frames(self, on_bad_chunk: str) -> tuple[int, ...]:
        """Masks frames at the angles where they hold no number; returns them, counted from 0.

        Raises:
          BadDataError: where the fit shall fail on them, or when fewer than 3 others are left.
        """
        candidates = frames_without_numbers(self.sample)
        if not candidates.size:
            return ()
        searched: NDArray[np.bool_] = np.logical_or.reduce(np.isfinite(self.sample.values), (1, 2))
        numbers = np.array([self._numbers_in(int(k)) for k in candidates]) | ~searched
        empty = [int(k) for k in candidates[~numbers.all(axis=1)]]
        if not empty:
            return ()
        if on_bad_chunk == "raise":
            raise BadDataError(
                f"frames {listed(empty)} (counted from 0) hold no finite number; "
                "on_bad_chunk='exclude' leaves such frames out, keep masks bad frames"
            )
        keep = np.tile(self.frames, (len(searched), 1))
        keep[:, candidates] &= numbers.T
        frames: NDArray[np.bool_] = np.logical_or.reduce(keep[searched], axis=0)
        if int(frames.sum()) < 3:
            raise BadDataError(f"{len(empty)} frames hold no finite number; fewer than 3 are left")
        keep[~searched] = frames
        self.frames = frames
        self.keep = keep if (keep != frames).any() else frames
        self.sample = self._sample()
        return tuple(empty)

    def _sample(self) -> RowSample:
        """Rows of frames that count."""
        raise NotImplementedError

    def _numbers_in(self, frame: int) -> NDArray[np.bool_]:
        """[n_phi]: whether the frame's row holds a finite number off the diagonal."""
        raise NotImplementedError

    def each_angle(self, rows: NDArray[np.intp]) -> Iterator[Array]:
        """Yield the values [len(rows), n] of each angle in turn; NaN for rows that fail to read."""
        raise NotImplementedError

    def find_largest(self, centers: Array) -> tuple[int, int, int, float] | None:
        """The point furthest from its angle's center: angle, frames i and j, value.

        One run over the data, in constant memory; None where they cannot be searched.
        """
        del centers
        return None

    def mirrored(self, sigma: Array | Source, symmetric: Any) -> NDArray[np.bool_]:
        """[n_phi]: whose data and sigma are mirrored, as given or as found."""
        n_phi = self.shape[0]
        if symmetric == "auto":
            found = self._find_mirrored()
            if not isinstance(sigma, np.ndarray):
                found &= mirrored_angles(sigma)
        else:
            found = np.full(n_phi, bool(symmetric))
        self._all_mirrored = bool(found.all())
        return found

    def _find_mirrored(self) -> NDArray[np.bool_]:
        raise NotImplementedError

    def way(
        self, context: PassContext, bad: BadBlocks, streaming: StreamingOptions, **told: Any
    ) -> Pass:
        """The passes over these data."""
        raise NotImplementedError

    @property
    def n_batches(self) -> int:
        """Chunks that the kernel was given so far."""
        return sum(way.n_chunks for way in self.ways)


class WholeFirst:
    """All data in one call, until it turns out that some of them must be left out.

    Without chunks, as of data on devices, that fails the fit in its first pass; later it is the
    model that overflows.
    """

    def __init__(self, whole: WholePass, bad: BadBlocks, chunked: Pass | None = None) -> None:
        self._whole, self._bad, self._chunked = whole, bad, chunked
        self._first = True

    def states(self, point: PassPoint, x: Array, partial: PartialPass | None = None) -> Array:
        if self._chunked is None or not (self._bad.excluded or partial is not None):
            states = self._whole.states(point, x)
            finite = np.isfinite(states).all(axis=1)
            first, self._first = self._first, False
            if finite.all() or (self._chunked is None and not first):
                return states
            if self._chunked is None:
                raise BadDataError(
                    f"the sums of angles {np.flatnonzero(~finite).tolist()} are not finite: data on"
                    " devices must not hold NaN (a NumPy array or file may; or mask frames with "
                    "keep)"
                )
        return self._chunked.states(point, x, partial)
