"""Multi-tau g2 of a source that grows during the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.correlators.bins import BinLabels, BinnedPixels, time_step
from jaxkern.xpcs.correlators.checks import (
    HotPixels,
    PreparedRun,
    check_hot_pixels,
    rows_and_columns,
)
from jaxkern.xpcs.correlators.frame_sums import (
    OverviewSums,
    frame_sums,
    intensity_limits,
    mean_divisors,
)
from jaxkern.xpcs.correlators.g2 import MAX_DELAYS, BinSums, g2_result, multitau_delays
from jaxkern.xpcs.correlators.multitau import multitau
from jaxkern.xpcs.correlators.multitau_sums import PixelSums, make_pixel_sums
from jaxkern.xpcs.correlators.native import CorrelationProgress
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.correlators.selection import (
    BLOCK_BYTES,
    FrameSelection,
    has_integer_counts,
    selected_frames,
)
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.opening import without_dead_pixels
from jaxkern.xpcs.detectors.qmap import QMap


class LiveMultiTau:
    """g2 of a growing source: `update` adds new frames, and `result` is available at any time.

    A result is bit-identical to `multitau` of the same frames. All frames are read again if the
    `dead` pixels of the source change (a pixel may be at its limit in the first frames only), or if
    a file is replaced by one with other frames. Events are converted to frames block by block and
    take as much time as frames.

    Args:
      qmap: the bins of the pixels.
      most_frames: largest number of frames; the memory grows with its logarithm (1 kB per pixel for
        100,000 frames).
      dpl, normalize, bad_frames, begin, stride, average, bins, frame_time: see `multitau`;
        `bad_frames` may include frames that do not exist yet.
      intensity_cut, mask, hot_pixels: see `multitau`; the median frame and the hot pixels are
        known at the end, so that only `finish` leaves them out.

    Raises:
      ValueError: arguments out of range; from `update`, frames of another shape than the map.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> frames = np.random.default_rng(0).poisson(2.0, (100, 8, 8)).astype(np.uint8)
      >>> qmap = jk.xpcs.QMap(np.ones((8, 8), int))
      >>> live = jk.xpcs.LiveMultiTau(qmap, most_frames=1000)
      >>> for n in (30, 100):
      ...     live.update(jk.xpcs.as_frames(frames[:n]))
      ...     print(live.result())
      30
      MultiTauResult(1 bins of 64 pixels, 14 delays to 24 frames, 30 frames)
      100
      MultiTauResult(1 bins of 64 pixels, 21 delays to 80 frames, 100 frames)
    """

    def __init__(
        self,
        qmap: QMap,
        most_frames: int = 1_000_000,
        dpl: int = 4,
        normalize: bool = False,
        bad_frames: Sequence[int] | NDArray[Any] | None = None,
        begin: int = 0,
        stride: int = 1,
        average: int = 1,
        *,
        intensity_cut: tuple[float | None, float | None] | None = None,
        mask: Any = None,
        hot_pixels: HotPixels = "ignore",
        bins: Sequence[int] | NDArray[Any] | None = None,
        frame_time: float | None = None,
    ) -> None:
        self._most = check_integer("most_frames", most_frames, 2)
        check_integer("dpl", dpl, 1, MAX_DELAYS)
        self._all = FrameSelection(self._most, begin, None, stride, average, bad_frames)
        self._qmap, self._bins, self._frame_time = qmap.with_mask(mask), bins, frame_time
        self._hot_pixels = check_hot_pixels(hot_pixels)
        intensity_limits(intensity_cut)  # raises early
        self._cut, self._dpl, self._normalize = intensity_cut, dpl, bool(normalize)
        self._dead: NDArray[np.bool_] | None = None
        self._state: PixelSums | None = None
        self._generation = self._seen = 0

    def update(self, source: FrameSource) -> int:
        """Add the new frames of `source`, and return its number of frames."""
        same = self._generation == source.generation and _same_pixels(self._dead, source.dead)
        if self._state is None or not same:
            if source.shape[0] == 0:
                return 0
            self._begin(source)
        selection = self._all
        size = max(BLOCK_BYTES // max(source.frame_bytes * selection.average, 1), 1)
        frames = max(min(source.shape[0], self._most) - selection.begin, 0)
        available = frames // (selection.stride * selection.average)
        while self._seen < available:
            self._add(source, self._seen, min(self._seen + size, available))
        return source.shape[0]

    @property
    def n_frames(self) -> int:
        """Number of frames, or sums of frames, that were added."""
        return self._seen

    def result(self) -> MultiTauResult:
        """Return g2 of the frames added so far.

        Raises:
          ValueError: fewer than 2 frames were added.
        """
        if self._seen < 2 or self._state is None:
            raise ValueError(f"expected at least 2 frames, got {self._seen}")
        with rows_and_columns(self._qmap.shape[1]):
            sums = self._state.bin_sums()
        at = slice(len(multitau_delays(self._seen, self._dpl)))
        arrays = sums.weight[at], sums.sums[:, at], sums.mean[at], sums.squares[at]
        sums = BinSums(*arrays, sums.pixels)
        config = {"dpl": self._dpl, "normalize": self._normalize, "intensity_cut": None}
        selection = self._all.part(0, self._seen)
        result = g2_result(sums, selection, self._labels, self._time_step, config)
        return replace(result, overview=self._overview.overview())

    def finish(self, source: FrameSource) -> MultiTauResult:
        """Return g2 of a complete source, bit-identical to `multitau`.

        The frames are read again for an intensity cut and to mask hot pixels.

        Raises:
          ValueError: the source has fewer than 2 frames.
        """
        total, selection = min(self.update(source), self._most), self._all
        if self._seen < 2 or (self._cut is None and self._hot_pixels != "mask"):
            result = self.result()
            part, bar = selection.part(0, self._seen), CorrelationProgress(False, "")
            choices = (self._bins, None, self._hot_pixels, None, self._frame_time, True)
            run = PreparedRun(source, self._qmap, self._labels.qmap, part, bar, *choices)
            run.sums = self._overview
            run.check_nan(result.g2, result.n_pairs[:, None])
            return run.complete(result)
        return multitau(
            source,
            self._qmap,
            self._dpl,
            self._normalize,
            selection.bad[selection.bad < total],
            selection.begin,
            total,
            selection.stride,
            selection.average,
            intensity_cut=self._cut,
            hot_pixels=self._hot_pixels,
            bins=self._bins,
            frame_time=self._frame_time,
            overview=True,
            progress=False,
        )

    def _begin(self, source: FrameSource) -> None:
        qmap, average = without_dead_pixels(self._qmap, source), self._all.average
        self._dead, self._generation, self._seen = source.dead, source.generation, 0
        self._labels = BinLabels(qmap, self._bins)
        self._time_step = time_step(self._frame_time, source)
        integer_counts = has_integer_counts(source)
        self._overview = OverviewSums(qmap, integer_counts, average)
        pixels, missing = BinnedPixels.from_map(qmap, self._labels.bins), self._all.missing_counts()
        exact = integer_counts and not self._normalize
        self._state = make_pixel_sums(pixels, self._dpl, average, missing, exact)

    def _add(self, source: FrameSource, first: int, stop: int) -> None:
        assert self._state is not None
        frames = selected_frames(source, self._all, first, stop)
        bad, divisor = self._all.part(first, stop).bad_mask(), None
        if self._normalize:
            qmap = self._labels.qmap
            divisor = mean_divisors(frame_sums(frames, [qmap.mask.ravel()])[0], qmap)
        with rows_and_columns(self._qmap.shape[1]):
            self._state.add(frames, bad, divisor)
        self._overview.add(frames, bad)
        self._seen = stop


def _same_pixels(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> bool:
    marked = (False if dead is None or not dead.any() else dead for dead in (one, other))
    return bool(np.array_equal(*marked))
