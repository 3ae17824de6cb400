"""Multi-tau g2 of frames that are still being taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.correlators.bin_checks import (
    check_empty_bins,
    nan_bins,
    rows_and_columns,
    warn_of,
)
from jaxkern.xpcs.correlators.blocks import BLOCK_BYTES, is_whole, selected_frames
from jaxkern.xpcs.correlators.delays import MOST_DELAYS, multitau_delays
from jaxkern.xpcs.correlators.frame_sums import frame_sums, intensity_limits
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.hot_pixels import (
    HotPixels,
    check_hot_pixels,
    hot_pixel_messages,
    suspect_pixels,
)
from jaxkern.xpcs.correlators.labels import BinLabels, g2_result, time_step
from jaxkern.xpcs.correlators.multitau import multitau
from jaxkern.xpcs.correlators.native_sums import NativeSums, native_module
from jaxkern.xpcs.correlators.numpy_sums import NumpySums
from jaxkern.xpcs.correlators.overview import GrowingOverview
from jaxkern.xpcs.correlators.pixels import BinnedPixels
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap


class LiveMultiTau:
    """g2 of a source that grows: what came is added, and a result can be asked for at any time.

    A result has the bits that `multitau` gives of the same frames. Where the source's `dead` pixels
    become others, as of a file in which a pixel is at its limit in the first frames alone, and
    where a file is replaced by one with other frames, all frames are read again. Events are made
    frames block by block, and take the time of frames.

    Args:
      qmap: the bins of the pixels.
      most_frames: how many frames may come; the memory grows with its logarithm (a pixel takes 1 kB
        for 100,000 frames).
      dpl, normalize, bad_frames, begin, stride, average, bins, frame_time: as of `multitau`; bad
        frames may be of those that have not come.
      intensity_cut, mask, hot_pixels: as of `multitau`; the median frame and the hot pixels are
        known at the end, so that `finish` leaves them out, and `result` has all.

    Raises:
      ValueError: arguments out of range; from `update`, frames of another shape than the map's.

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
        check_integer("dpl", dpl, 1, MOST_DELAYS)
        self._all = FrameSelection(self._most, begin, None, stride, average, bad_frames)
        self._qmap, self._bins, self._frame_time = qmap.with_mask(mask), bins, frame_time
        self._hot_pixels = check_hot_pixels(hot_pixels)
        intensity_limits(intensity_cut)  # refused before frames come
        self._cut = intensity_cut
        self._dead: NDArray[np.bool_] | None = None
        self._generation = 0
        self._config: dict[str, Any] = {
            "dpl": dpl,
            "normalize": bool(normalize),
            "intensity_cut": None,
        }
        self._state: NativeSums | NumpySums | None = None
        self._seen = 0

    def update(self, source: FrameSource) -> int:
        """Adds the frames that `source` has more than at the last time; returns how many it has."""
        same = self._generation == source.generation and _alike(self._dead, source.dead)
        if self._state is None or not same:
            if source.shape[0] == 0:
                return 0
            self._begin(source)
        size = max(BLOCK_BYTES // max(source.frame_bytes * self._all.average, 1), 1)
        there = self._selection(source.shape[0]).n
        while self._seen < there:
            self._add(source, self._seen, min(self._seen + size, there))
        return source.shape[0]

    @property
    def n_frames(self) -> int:
        """How many frames, or sums of frames, were added."""
        return self._seen

    def result(self) -> MultiTauResult:
        """g2 of what was added.

        Raises:
          ValueError: fewer than two frames were.
        """
        if self._seen < 2 or self._state is None:
            raise ValueError(f"{self._seen} frames were added; wanted 2 or more")
        selection = self._all.part(0, self._seen)
        with rows_and_columns(self._qmap.shape[1]):
            found = self._state.bin_sums()
        sums = _reached(found, len(multitau_delays(self._seen, self._dpl)))
        result = g2_result(sums, selection, self._labels, self._time_step, self._config)
        return replace(result, overview=self._overview.overview())

    def finish(self, source: FrameSource) -> MultiTauResult:
        """g2 of all of a source that is complete: what `multitau` gives of it.

        With an intensity cut, and to mask hot pixels, the frames are read once more.

        Raises:
          ValueError: fewer than two frames are there.
        """
        total = min(self.update(source), self._most)
        if self._seen < 2 or (self._cut is None and self._hot_pixels != "mask"):
            return self._checked(self.result(), source)
        told = self._all
        return multitau(
            source,
            self._qmap,
            self._dpl,
            self._config["normalize"],
            told.bad[told.bad < total],
            told.begin,
            total,
            told.stride,
            told.average,
            intensity_cut=self._cut,
            hot_pixels=self._hot_pixels,
            bins=self._bins,
            frame_time=self._frame_time,
            overview=True,
            progress=False,
        )

    def _checked(self, result: MultiTauResult, source: FrameSource) -> MultiTauResult:
        """The result with what is doubtful about its bins and pixels."""
        assert result.overview is not None
        selection = self._all.part(0, self._seen)
        notes = check_empty_bins(self._qmap, self._labels, self._dead, None, source.name)
        finite = (np.isfinite(result.g2) | (result.n_pairs == 0)[:, None]).all(axis=0)
        notes += nan_bins(finite, self._labels, source, selection)
        if self._hot_pixels == "report":
            good = int(selection.good_counts().sum(dtype=np.int64))
            found = suspect_pixels(result.overview, result.qmap, good, is_whole(source))
            result.config["hot_pixels"] = found.places(result.qmap)
            notes += hot_pixel_messages(found, result.qmap, masked=False)
        return replace(result, warnings=warn_of(notes))

    @property
    def _dpl(self) -> int:
        return int(self._config["dpl"])

    def _selection(self, total: int) -> FrameSelection:
        """The sums of frames that are there."""
        length = self._all.stride * self._all.average
        return self._all.part(0, max(min(total, self._most) - self._all.begin, 0) // length)

    def _begin(self, source: FrameSource) -> None:
        qmap = self._qmap
        if source.shape[1:] != qmap.shape:
            raise ValueError(
                f"{source.name} has frames of {source.shape[1]} x {source.shape[2]} pixels, and "
                f"the map is {qmap.shape[0]} x {qmap.shape[1]}; wanted a map of the frames' shape"
            )
        self._dead, self._generation, self._seen = source.dead, source.generation, 0
        qmap = qmap.without(self._dead)
        self._labels = BinLabels(qmap, self._bins)
        self._time_step = time_step(self._frame_time, source)
        self._mask = qmap.mask.ravel()
        whole = is_whole(source) and not self._config["normalize"]
        pixels = BinnedPixels.of(qmap, self._labels.bins)
        missing = self._all.average - self._all.good_counts()
        self._overview = GrowingOverview(qmap, is_whole(source))
        native = native_module() if len(pixels) else None
        if native is None:
            self._state = NumpySums(pixels, self._dpl, self._all.average, missing, whole)
        else:
            self._state = NativeSums(native, pixels, self._dpl, self._all.average, missing, whole)

    def _add(self, source: FrameSource, first: int, stop: int) -> None:
        assert self._state is not None
        selection = self._all.part(first, stop)
        frames, bad = selected_frames(source, self._all, first, stop), selection.bad_places()
        divisor = None
        if self._config["normalize"]:
            mean = frame_sums(frames, [self._mask])[0] / max(int(self._mask.sum()), 1)
            divisor = np.where(mean == 0, 1.0, mean)
        with rows_and_columns(self._qmap.shape[1]):
            self._state.add(frames, bad, divisor)
        self._overview.add(frames, bad, selection)
        self._seen = stop


def _alike(one: NDArray[np.bool_] | None, other: NDArray[np.bool_] | None) -> bool:
    if one is None or other is None:
        return not any(dead is not None and dead.any() for dead in (one, other))
    return bool(np.array_equal(one, other))


def _reached(sums: BinSums, delays: int) -> BinSums:
    """The sums at the first delays, which frames have reached."""
    at = slice(delays)
    return BinSums(sums.weight[at], sums.sums[:, at], sums.mean[at], sums.squares[at], sums.pixels)
