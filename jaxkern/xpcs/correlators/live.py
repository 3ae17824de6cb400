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
    check_empty_bins,
    check_hot_pixels,
    hot_pixel_messages,
    issue_warnings,
    nan_bins,
    rows_and_columns,
    suspect_pixels,
)
from jaxkern.xpcs.correlators.frame_sums import GrowingOverview, frame_sums, intensity_limits
from jaxkern.xpcs.correlators.g2 import MAX_DELAYS, BinSums, g2_result, multitau_delays
from jaxkern.xpcs.correlators.multitau import multitau
from jaxkern.xpcs.correlators.multitau_sums import JaxSums, NativeSums, make_pixel_sums
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.correlators.selection import (
    BLOCK_BYTES,
    FrameSelection,
    has_integer_counts,
    selected_frames,
)
from jaxkern.xpcs.detectors.frames import FrameSource
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
        self._cut = intensity_cut
        self._dead: NDArray[np.bool_] | None = None
        self._generation = 0
        self._config: dict[str, Any] = {
            "dpl": dpl,
            "normalize": bool(normalize),
            "intensity_cut": None,
        }
        self._state: NativeSums | JaxSums | None = None
        self._seen = 0

    def update(self, source: FrameSource) -> int:
        """Add the new frames of `source`, and return its number of frames."""
        same = self._generation == source.generation and _same_pixels(self._dead, source.dead)
        if self._state is None or not same:
            if source.shape[0] == 0:
                return 0
            self._begin(source)
        size = max(BLOCK_BYTES // max(source.frame_bytes * self._all.average, 1), 1)
        available = self._selection(source.shape[0]).n
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
        selection = self._all.part(0, self._seen)
        with rows_and_columns(self._qmap.shape[1]):
            sums = self._state.bin_sums()
        at = slice(len(multitau_delays(self._seen, self._dpl)))
        arrays = sums.weight[at], sums.sums[:, at], sums.mean[at], sums.squares[at]
        sums = BinSums(*arrays, sums.pixels)
        result = g2_result(sums, selection, self._labels, self._time_step, self._config)
        return replace(result, overview=self._overview.overview())

    def finish(self, source: FrameSource) -> MultiTauResult:
        """Return g2 of a complete source, bit-identical to `multitau`.

        The frames are read again for an intensity cut and to mask hot pixels.

        Raises:
          ValueError: the source has fewer than 2 frames.
        """
        total = min(self.update(source), self._most)
        if self._seen < 2 or (self._cut is None and self._hot_pixels != "mask"):
            return self._checked(self.result(), source)
        selection = self._all
        return multitau(
            source,
            self._qmap,
            self._dpl,
            self._config["normalize"],
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

    def _checked(self, result: MultiTauResult, source: FrameSource) -> MultiTauResult:
        """Return the result with warnings about its bins and pixels."""
        assert result.overview is not None
        selection = self._all.part(0, self._seen)
        messages = check_empty_bins(self._qmap, self._labels, self._dead, None, source.name)
        finite = (np.isfinite(result.g2) | (result.n_pairs == 0)[:, None]).all(axis=0)
        messages += nan_bins(finite, self._labels, source, selection)
        if self._hot_pixels == "report":
            good = int(selection.good_counts().sum(dtype=np.int64))
            suspects = suspect_pixels(
                result.overview, result.qmap, good, has_integer_counts(source)
            )
            result.config["hot_pixels"] = suspects.places(result.qmap)
            messages += hot_pixel_messages(suspects, result.qmap, masked=False)
        return replace(result, warnings=issue_warnings(messages))

    @property
    def _dpl(self) -> int:
        return int(self._config["dpl"])

    def _selection(self, total: int) -> FrameSelection:
        """Return the sums of frames that `total` frames fill."""
        length = self._all.stride * self._all.average
        return self._all.part(0, max(min(total, self._most) - self._all.begin, 0) // length)

    def _begin(self, source: FrameSource) -> None:
        qmap = self._qmap
        if source.shape[1:] != qmap.shape:
            raise ValueError(
                f"qmap: expected {source.shape[1]} x {source.shape[2]} pixels, as the frames of "
                f"{source.name}, got {qmap.shape[0]} x {qmap.shape[1]}"
            )
        self._dead, self._generation, self._seen = source.dead, source.generation, 0
        qmap = qmap.without(self._dead)
        self._labels = BinLabels(qmap, self._bins)
        self._time_step = time_step(self._frame_time, source)
        self._mask = qmap.mask.ravel()
        integer_counts = has_integer_counts(source) and not self._config["normalize"]
        pixels = BinnedPixels.from_map(qmap, self._labels.bins)
        missing = self._all.average - self._all.good_counts()
        self._overview = GrowingOverview(qmap, has_integer_counts(source))
        self._state = make_pixel_sums(pixels, self._dpl, self._all.average, missing, integer_counts)

    def _add(self, source: FrameSource, first: int, stop: int) -> None:
        assert self._state is not None
        selection = self._all.part(first, stop)
        frames, bad = selected_frames(source, self._all, first, stop), selection.bad_mask()
        divisor = None
        if self._config["normalize"]:
            mean = frame_sums(frames, [self._mask])[0] / max(int(self._mask.sum()), 1)
            divisor = np.where(mean == 0, 1.0, mean)
        with rows_and_columns(self._qmap.shape[1]):
            self._state.add(frames, bad, divisor)
        self._overview.add(frames, bad, selection)
        self._seen = stop


def _same_pixels(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> bool:
    if one is None or other is None:
        return not any(dead is not None and dead.any() for dead in (one, other))
    return bool(np.array_equal(one, other))
