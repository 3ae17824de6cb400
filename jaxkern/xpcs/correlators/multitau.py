"""Multi-tau g2 of a whole run: which frames and pixels, in which turns, and what comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.correlators.bin_checks import (
    check_empty_bins,
    dark_bins,
    nan_bins,
    rows_and_columns,
    warn_of,
)
from jaxkern.xpcs.correlators.blocks import is_whole
from jaxkern.xpcs.correlators.delays import MOST_DELAYS
from jaxkern.xpcs.correlators.frame_sums import FrameMeans, intensity_limits
from jaxkern.xpcs.correlators.hot_pixels import (
    HotPixels,
    check_hot_pixels,
    find_suspects,
    hot_pixel_messages,
    mask_suspects,
)
from jaxkern.xpcs.correlators.labels import BinLabels, g2_result, time_step
from jaxkern.xpcs.correlators.native_sums import native_module
from jaxkern.xpcs.correlators.overview import OverviewSums
from jaxkern.xpcs.correlators.pixels import BinnedPixels
from jaxkern.xpcs.correlators.progress import CorrelationProgress
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.correlators.run_sums import DenseSums, EventSums
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.opening import frames_and_map
from jaxkern.xpcs.detectors.qmap import QMap


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
    frame_time: float | None = None,
    overview: bool = False,
    progress: bool = True,
) -> MultiTauResult:
    """g2 of the dynamic bins of a map at multi-tau delays, of all frames of a run.

    A level of delays correlates sums of neighbouring frames, each level sums twice as long as the
    one before. With s the sums of a pixel, k < n and <> the mean over a static bin's pixels,

        G  = sum of s[k] s[k + t] / n,   IP = sum of s[k] / n,   IF = sum of s[k + t] / n
        g2 = mean over the dynamic bin's static bins of <G> / (<IP> <IF>)

    and the error of g2 is the standard error of G / (IP IF) over the dynamic bin's pixels, 0 in
    one without light. Whole counts are summed exactly. Frames in memory and in memory maps are
    read where they are, others in blocks, by a thread of their own, in as many passes as the
    memory that is free asks for.

    Args:
      frames: an array [N, H, W] or [N, P], a `FrameSource` or a path. A pixel of NaN makes its
        bins NaN, with a warning that names it. Events of a sparse source are correlated as they
        are, as by `multitau_events`.
      qmap: the bins of the pixels.
      dpl: delays a level, at most 64, see `multitau_delays`.
      normalize: divide each frame by its mean over the pixels with mask 1, in float64.
      bad_frames: numbers of frames, from the first of the source, that are left out of all sums
        and pairs.
      begin, end: the frames that are taken, `end` exclusive.
      stride: every n-th frame.
      average: so many neighbours are summed to one frame.
      intensity_cut: (low, high): frames whose light on the map's pixels is less than `low` or more
        than `high` times the median frame's are bad too; None is no limit.
      mask: [H, W], true where a pixel is good, besides the mask of `qmap`.
      hot_pixels: "report" warns of pixels whose mean or variance differs from their static bin's
        beyond what photons explain, "mask" leaves them out, after one more pass over the frames.
      bins: the dynamic bins that are wanted; by default all.
      parts: g2 of so many equal parts of the run too, for samples that age.
      frame_time: from one frame to the next in s; by default what the source says.
      overview: mean image, intensity in time and static means too.
      progress: a bar on the terminal.

    Returns:
      A `MultiTauResult`, with the frames that were left out in `config["bad_frames"]`, and what is
      doubtful in `warnings`. Each of these is issued as a `CorrelationWarning` too: bins without
      pixels or counts, correlations that are NaN, and hot pixels.

    Raises:
      ValueError: for arguments out of range, a map of another shape than the frames, fewer than 2
        frames (for each part), a map or mask that leaves no pixel, correlations that are all NaN,
        and a pixel of the map with whole counts below 0, or that sum to 2^32 - 1 or more.
      MemoryError: where the frames of one sum (`average`) have no room.

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
    check_hot_pixels(hot_pixels)
    with (
        frames_and_map(frames, qmap, mask) as (source, living),
        CorrelationProgress(progress, "multi-tau") as bar,
    ):
        check_integer("dpl", dpl, 1, MOST_DELAYS)
        selection = FrameSelection(source.shape[0], begin, end, stride, average, bad_frames)
        least = 2 * max(check_integer("parts", parts, 0), 1)
        of_parts = f", 2 for each of {parts} parts" if parts > 1 else ""
        if selection.n < least:
            raise ValueError(
                f"begin, end, stride and average leave {selection.n} of the {source.shape[0]} "
                f"frames of {source.name}; wanted {least} or more{of_parts}"
            )
        limits = intensity_limits(intensity_cut)
        suspects = None
        if hot_pixels == "mask":
            suspects, living = mask_suspects(source, selection, living)
        labels = BinLabels(living, bins)
        notes = check_empty_bins(qmap, labels, source.dead, mask, source.name)
        step = time_step(frame_time, source)
        divisor = None
        if limits is not None or normalize:
            means = FrameMeans(source, living, selection, bar)
            divisor = means.divisors() if normalize else None
            if limits is not None:
                selection = selection.leaving_out(means.beyond(*limits))
        summed = overview or hot_pixels == "report"
        seen = OverviewSums(living, selection, is_whole(source)) if summed else None
        size = selection.n // max(parts, 1)
        ranges = [(k * size, (k + 1) * size) for k in range(parts)]
        pieces = [selection, *(selection.part(*of) for of in ranges)]
        ranges.insert(0, (0, selection.n))
        pixels = BinnedPixels.of(living, labels.bins)
        native = native_module() if source.is_sparse and divisor is None else None
        run: EventSums | DenseSums
        if native is not None:
            run = EventSums(native, source, selection, ranges, pixels, dpl)
        else:
            run = DenseSums(source, selection, ranges, pixels, dpl, divisor)
        with rows_and_columns(qmap.shape[1]):
            sums = run.run(seen, bar)
        asked = None if intensity_cut is None else tuple(intensity_cut)
        config = {"dpl": dpl, "normalize": bool(normalize), "intensity_cut": asked}
        whole, *others = (
            g2_result(*of_piece, labels, step, config)
            for of_piece in zip(sums, pieces, strict=True)
        )
        finite = (np.isfinite(whole.g2) | (whole.n_pairs == 0)[:, None]).all(axis=0)
        notes += nan_bins(finite, labels, source, selection)
    if seen is not None and hot_pixels == "report":
        suspects = find_suspects(seen, source, selection, living)
    if suspects is not None:
        whole.config["hot_pixels"] = suspects.places(living)
    notes += dark_bins(sums[0], labels)
    notes += hot_pixel_messages(suspects, living, hot_pixels == "mask")
    return replace(
        whole,
        overview=seen.overview() if seen is not None and overview else None,
        parts=tuple(others),
        warnings=warn_of(notes),
    )
