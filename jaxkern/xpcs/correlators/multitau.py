"""Multi-tau g2 of frames or events, and of a source that grows during the measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators.checks import (
    HotPixels,
    PreparedRun,
    check_hot_pixels,
    dark_bins,
    rows_and_columns,
    takes_options_of,
)
from jaxkern.xpcs.correlators.frame_sums import (
    OverviewSums,
    frame_sums,
    intensity_limits,
    mean_divisors,
)
from jaxkern.xpcs.correlators.multitau_sums import (
    PixelSums,
    Ranges,
    bytes_per_pixel,
    event_sums,
    in_place_sums,
    make_pixel_sums,
    pixel_tiles,
)
from jaxkern.xpcs.correlators.native import CorrelationProgress, native_module
from jaxkern.xpcs.correlators.results import (
    MAX_DELAYS,
    BinSums,
    MultiTauResult,
    check_groups,
    combine_groups,
    g2_of_groups,
    g2_result,
    multitau_delays,
)
from jaxkern.xpcs.correlators.selection import (
    BLOCK_BYTES,
    COUNT_DTYPES,
    BinLabels,
    BinnedPixels,
    FrameSelection,
    frame_blocks,
    has_integer_counts,
    is_contiguous,
    selected_frames,
    time_step,
)
from jaxkern.xpcs.detectors.frames import MAX_INDEX, FrameSource, RawEvents
from jaxkern.xpcs.detectors.opening import frames_and_map, without_dead_pixels
from jaxkern.xpcs.detectors.qmap import QMap

# Share of the free memory for the sums of pixels. The rest is for blocks of frames and other data.
_SHARE = 1 / 3


def multitau(
    frames: Any,
    qmap: QMap,
    dpl: int = 4,
    normalize: bool = False,
    bad_frames: Sequence[int] | NDArray[Any] | None = None,
    begin: int = 0,
    end: int | None = None,
    stride: int = 1,
    average: int = 1,
    *,
    intensity_cut: tuple[float | None, float | None] | None = None,
    mask: Any = None,
    hot_pixels: HotPixels = "ignore",
    bins: Sequence[int] | NDArray[Any] | None = None,
    parts: int = 0,
    groups: int = 0,
    frame_time: float | None = None,
    overview: bool = False,
    progress: bool = True,
) -> MultiTauResult:
    """Compute g2 of the dynamic bins of a map at multi-tau delays.

    Each level of delays correlates sums of neighbouring frames, which are twice as long as those of
    the level before. With the sums s of a pixel, k < n, and <> the mean over the pixels of a static
    bin,

        G  = sum of s[k] s[k + t] / n,   IP = sum of s[k] / n,   IF = sum of s[k + t] / n
        g2 = mean over the dynamic bin's static bins of <G> / (<IP> <IF>)

    The error of g2 is the standard error of G / (IP IF) over the dynamic bin's pixels; the ratio of
    a pixel without counts is 0. Sums of integer counts are exact.

    Args:
      frames: an array [N, H, W] or [N, P], a `FrameSource` or a path. A sparse source is correlated
        as events, see `multitau_events`.
      qmap: the bins of the pixels.
      dpl: delays per level, at most 64, see `multitau_delays`.
      normalize: divide each frame by its mean over the pixels with mask 1, in float64.
      bad_frames: numbers of frames, counted from the first frame of the source, that are left out
        of all sums and pairs.
      begin, end: the range of frames; `end` is exclusive.
      stride: use every n-th frame.
      average: sum this many neighbouring frames to one.
      intensity_cut: (low, high). Frames whose counts on the map's pixels are less than `low` or
        more than `high` times those of the median frame are bad, too. None means no limit.
      mask: [H, W], true where a pixel is good, in addition to the mask of `qmap`.
      hot_pixels: "report" warns of pixels whose mean or variance differs from that of their static
        bin by more than photon statistics explain; "mask" leaves them out, after another pass over
        the frames.
      bins: the dynamic bins to correlate; by default all.
      parts: also compute g2 of this many equal parts of the run, for samples that age.
      groups: also compute g2 of this many groups of neighbouring pixels of each bin, such as 32,
        from which fits of g2 estimate errors.
      frame_time: time between frames in s, before stride and average; by default the source's.
      overview: also compute the mean image, intensity over time and static means.
      progress: show a progress bar on the terminal.

    Raises:
      ValueError: arguments out of range, a map of another shape than the frames, fewer than 2
        frames (in each part), a map or mask that leaves no pixel, correlations that are all NaN,
        or a pixel of the map whose integer counts are negative or sum to 2^32 - 1 or more.
      MemoryError: the frames of one sum (`average`) do not fit into memory.

    Warns:
      CorrelationWarning: bins without pixels or counts, correlations that are NaN, and hot pixels.
        The texts are also in `warnings` of the result.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> frames = np.random.default_rng(0).poisson(2.0, (100, 8, 8)).astype(np.uint16)
      >>> qmap = jk.xpcs.QMap(np.repeat([[1, 2]], 8, 0).repeat(4, 1), q=[0.01, 0.02])
      >>> r = jk.xpcs.multitau(frames, qmap, frame_time=1e-3)
      >>> r
      MultiTauResult(2 bins of 64 pixels, 21 delays to 0.08 s, 100 frames)
      >>> r.g2.shape, r.q.tolist(), bool(abs(r.g2[0, 0] - 1) < 5 * r.g2_err[0, 0])
      ((21, 2), [0.01, 0.02], True)
    """
    with (
        frames_and_map(frames, qmap, mask) as (source, masked),
        CorrelationProgress(progress, "multi-tau") as bar,
    ):
        check_integer("dpl", dpl, 1, MAX_DELAYS)
        selection = FrameSelection(source.shape[0], begin, end, stride, average, bad_frames)
        least = 2 * max(check_integer("parts", parts, 0), 1)
        selection.check_length(source, least, f" (2 for each of {parts} parts)" * (parts > 1))
        run = PreparedRun(
            source, qmap, masked, selection, bar, bins=bins, mask=mask, hot_pixels=hot_pixels,
            intensity_cut=intensity_cut, frame_time=frame_time, overview=overview,
        )  # fmt: skip
        run.apply_cut(normalize)
        selection, size = run.selection, selection.n // max(parts, 1)
        ranges = [(0, selection.n), *((k * size, (k + 1) * size) for k in range(parts))]
        selections = [selection, *(selection.part(*bounds) for bounds in ranges[1:])]
        pixels = BinnedPixels.from_map(run.qmap, run.labels.bins)
        pixel_groups = None
        if check_groups(groups):
            pixels, pixel_groups = pixels.grouped(groups)
        native = native_module() if source.is_sparse and run.divisor is None else None
        with rows_and_columns(qmap.shape[1]):
            if native is None:
                sums = _dense_sums(run, ranges, pixels, dpl)
            else:
                if run.sums is not None:
                    run.sums.add_all(source, selection)
                sums = event_sums(native, run, ranges, pixels, dpl)
        group_curves = None
        if pixel_groups is not None:
            parts_of_bins, bins = sums[0], run.labels.bins
            sums = [combine_groups(s, pixel_groups, run.qmap.n_static) for s in sums]
            group_curves = g2_of_groups(parts_of_bins, sums[0], pixel_groups, run.qmap, bins)
        config = {"dpl": dpl, "normalize": bool(normalize), "intensity_cut": run.cut}
        result, *part_results = (
            g2_result(sums_of_part, part, run.labels, run.time_step, config)
            for sums_of_part, part in zip(sums, selections, strict=True)
        )
        run.check_nan(result.g2, result.n_pairs[:, None])
    run.messages += dark_bins(sums[0], run.labels)
    return run.complete(replace(result, parts=tuple(part_results), g2_groups=group_curves))


@takes_options_of(multitau)
def multitau_events(
    pixel: Any, frame: Any, count: Any, n_frames: int, qmap: QMap, *arguments: Any, **options: Any
) -> MultiTauResult:
    """Compute g2 of events, bit-identical to `multitau` of the frames that they form.

    The work is proportional to the number of events, not to frames times pixels. With `normalize`,
    and without the native kernels, frames are formed block by block.

    Args:
      pixel: [M] integers, row * W + column.
      frame: [M] integers, in any order.
      count: [M] integers of 0 or more; counts of one pixel in one frame are added.
      n_frames: the number of frames, including those without events.
      qmap: the bins of the pixels.
      **options: all others, as in `multitau`.

    Raises:
      ValueError: as in `multitau`; the pixel or frame of an event is out of range, or its count is
        negative (with the index of the event).

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> rng = np.random.default_rng(0)
      >>> pixel, frame = rng.integers(0, 64, 5000), rng.integers(0, 1000, 5000)
      >>> qmap = jk.xpcs.QMap(np.ones((8, 8), int))
      >>> r = jk.xpcs.multitau_events(pixel, frame, np.ones(5000, int), 1000, qmap)
      >>> r
      MultiTauResult(1 bins of 64 pixels, 34 delays to 768 frames, 1000 frames)
    """
    n_frames = check_integer("n_frames", n_frames, 0, MAX_INDEX)
    source = RawEvents(pixel, frame, count, qmap.shape, n_frames)
    return multitau(source, qmap, *arguments, **options)


def _dense_sums(run: PreparedRun, ranges: Ranges, pixels: BinnedPixels, dpl: int) -> list[BinSums]:
    """Return the sums of the frames of each range of sums, and add all frames to the overview."""
    source, selection, divisor = run.source, run.selection, run.divisor
    average, integer_counts = selection.average, has_integer_counts(source) and divisor is None
    missing = selection.missing_counts()
    native, array = native_module() if len(pixels) else None, source.array
    readable = array is not None and array.dtype in COUNT_DTYPES and is_contiguous(array)
    if native is not None and readable:
        if run.sums is not None:
            run.sums.add_all(source, selection)
        return in_place_sums(native, run, ranges, pixels, dpl)
    size = sum(
        bytes_per_pixel(stop - first, dpl, integer_counts, bool(missing[first:stop].any()))
        for first, stop in ranges
    )
    most_pixels = max(int(_SHARE * available_bytes() / size), 1)
    groups = pixels.split(pixel_tiles(pixels), most_pixels)
    if len(groups) > 1:
        run.messages.append(
            f"the sums of {len(pixels):,} pixels do not fit into the free memory, so all frames "
            f"are read {len(groups)} times, a part of the pixels each time"
        )
    sums: list[BinSums | None] = [None] * len(ranges)
    run.bar.begin(selection.n * average * len(groups), source.frame_bytes)
    for number, group in enumerate(groups):
        states = [
            make_pixel_sums(group, dpl, average, missing[first:stop], integer_counts)
            for first, stop in ranges
        ]
        for at, block, bad, factors in frame_blocks(source, selection, divisor):
            if run.sums is not None and number == 0:
                run.sums.add(block, bad)
            for state, (first, stop) in zip(states, ranges, strict=True):
                first, stop = max(first - at, 0) * average, min((stop - at) * average, len(block))
                if first < stop:
                    own = None if factors is None else factors[first:stop]
                    state.add(block[first:stop], bad[first:stop], own)
            run.bar.advance(len(block))
        sums = [state.bin_sums(before) for state, before in zip(states, sums, strict=True)]
    return cast("list[BinSums]", sums)


class LiveMultiTau:
    """g2 of a growing source: `update` adds new frames, and `result` is available at any time.

    A result is bit-identical to `multitau` of the same frames. All frames are read again if the
    `dead` pixels or the earlier frames of the source change. Events are converted to frames.

    Args:
      qmap: the bins of the pixels.
      most_frames: largest number of frames; the memory grows with its logarithm.
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
        self._qmap = qmap.with_mask(mask)
        check_hot_pixels(hot_pixels)
        intensity_limits(intensity_cut)  # raises early
        self._cut, self._dpl, self._normalize = intensity_cut, dpl, bool(normalize)
        self._choices: Any = {"hot_pixels": hot_pixels, "bins": bins, "frame_time": frame_time}
        self._dead: NDArray[np.bool_] | None = None
        self._state: PixelSums | None = None
        self._generation = self._seen = 0

    def update(self, source: FrameSource) -> int:
        """Add the new frames of `source`, and return its number of frames."""
        marks = [np.zeros(0) if x is None or not x.any() else x for x in (self._dead, source.dead)]
        same = self._generation == source.generation and np.array_equal(marks[0], marks[1])
        if self._state is None or not same:
            if source.shape[0] == 0:
                return 0
            self._begin(source)
        selection = self._all
        size = max(BLOCK_BYTES // max(source.frame_bytes * selection.average, 1), 1)
        frames = max(min(source.shape[0], self._most) - selection.begin, 0)
        available = frames // (selection.stride * selection.average)
        assert self._state is not None
        while self._seen < available:
            first, stop = self._seen, min(self._seen + size, available)
            counts = selected_frames(source, selection, first, stop)
            bad, divisor = selection.part(first, stop).bad_mask(), None
            if self._normalize:
                qmap = self._labels.qmap
                divisor = mean_divisors(frame_sums(counts, [qmap.mask.ravel()])[0], qmap)
            with rows_and_columns(self._qmap.shape[1]):
                self._state.add(counts, bad, divisor)
            self._overview.add(counts, bad)
            self._seen = stop
        return source.shape[0]

    @property
    def n_frames(self) -> int:
        """Number of frames, or sums of frames, that were added."""
        return self._seen

    def result(self) -> MultiTauResult:
        """Return g2 of the frames added so far; ValueError for fewer than 2."""
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
        """Return g2 of a complete source, read again for an intensity cut or to mask hot pixels."""
        total, selection = min(self.update(source), self._most), self._all
        if self._seen < 2 or (self._cut is None and self._choices["hot_pixels"] != "mask"):
            result = self.result()
            part, bar = selection.part(0, self._seen), CorrelationProgress(False, "")
            run = PreparedRun(source, self._qmap, self._labels.qmap, part, bar, **self._choices)
            run.sums = self._overview
            run.check_nan(result.g2, result.n_pairs[:, None])
            return run.complete(result)
        bad = selection.bad[selection.bad < total]
        frames = (bad, selection.begin, total, selection.stride, selection.average)
        arguments = (source, self._qmap, self._dpl, self._normalize, *frames)
        options = {**self._choices, "intensity_cut": self._cut}
        return multitau(*arguments, **options, overview=True, progress=False)

    def _begin(self, source: FrameSource) -> None:
        qmap, average = without_dead_pixels(self._qmap, source), self._all.average
        self._dead, self._generation, self._seen = source.dead, source.generation, 0
        self._labels = BinLabels(qmap, self._choices["bins"])
        self._time_step = time_step(self._choices["frame_time"], source)
        integer_counts = has_integer_counts(source)
        self._overview = OverviewSums(qmap, integer_counts, average)
        pixels, missing = BinnedPixels.from_map(qmap, self._labels.bins), self._all.missing_counts()
        exact = integer_counts and not self._normalize
        self._state = make_pixel_sums(pixels, self._dpl, average, missing, exact)
