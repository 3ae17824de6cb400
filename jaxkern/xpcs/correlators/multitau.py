"""Multi-tau g2 of a whole run: which frames and pixels, in which turns, and what comes of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import whole_number
from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators.blocks import blocks, is_whole, summed
from jaxkern.xpcs.correlators.delays import pair_weights
from jaxkern.xpcs.correlators.frame_means import FrameMeans, intensity_limits
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.labels import BinLabels, multitau_result, time_step
from jaxkern.xpcs.correlators.numpy_sums import BinTotals, PixelSums, ordered_pixels
from jaxkern.xpcs.correlators.overview import OverviewSums
from jaxkern.xpcs.correlators.progress import CorrelationProgress, frame_bytes
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.opening import as_frames
from jaxkern.xpcs.detectors.qmap import QMap

# Pixels whose sums are made, and reduced to those of bins, at a time.
TILE = 4096


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
        bins NaN: mask it in `qmap`.
      qmap: the bins of the pixels.
      dpl: delays a level, see `multitau_delays`.
      normalize: divide each frame by its mean over the pixels with mask 1, in float64.
      bad_frames: numbers of frames, from the first of the source, that are left out of all sums
        and pairs.
      begin, end: the frames that are taken, `end` exclusive.
      stride: every n-th frame.
      average: so many neighbours are summed to one frame.
      intensity_cut: (low, high): frames whose light on the map's pixels is less than `low` or more
        than `high` times the median frame's are bad too; None is no limit.
      bins: the dynamic bins that are wanted; by default all.
      parts: g2 of so many equal parts of the run too, for samples that age.
      frame_time: from one frame to the next in s; by default what the source says.
      overview: mean image, intensity in time and static means too.
      progress: a bar on the terminal.

    Returns:
      A `MultiTauResult`, with the frames that were left out in `config["bad_frames"]`.

    Raises:
      ValueError: for arguments out of range, a map of another shape than the frames, fewer than 2
        frames (for each part), and counts that do not fit into 32 bits.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> frames = np.random.default_rng(0).poisson(2.0, (100, 8, 8)).astype(np.uint16)
      >>> qmap = jk.xpcs.QMap(np.repeat([[1, 2]], 8, 0).repeat(4, 1), q=[0.01, 0.02])
      >>> r = jk.xpcs.multitau(frames, qmap, frame_time=1e-3)
      >>> r
      MultiTauResult(2 bins of 64 pixels, 23 delays to 0.08 s, 100 frames)
      >>> r.g2.shape, r.q.tolist(), bool(abs(r.g2[0, 0] - 1) < 5 * r.g2_err[0, 0])
      ((23, 2), [0.01, 0.02], True)
    """
    source = as_frames(frames, qmap.shape)
    if source.shape[1:] != qmap.shape:
        raise ValueError(
            f"{source.name} has frames of {source.shape[1]} x {source.shape[2]} pixels, and the "
            f"map is {qmap.shape[0]} x {qmap.shape[1]}; wanted a map of the frames' shape"
        )
    qmap = qmap.without(source.dead)
    whole_number("dpl", dpl, 1)
    selection = FrameSelection(source.shape[0], begin, end, stride, average, bad_frames)
    least = 2 * max(whole_number("parts", parts, 0), 1)
    if selection.n < least:
        raise ValueError(
            f"begin, end, stride and average leave {selection.n} of the {source.shape[0]} frames "
            f"of {source.name}; wanted {least} or more"
        )
    limits = intensity_limits(intensity_cut)
    labels = BinLabels(qmap, bins)
    config = {"dpl": dpl, "normalize": bool(normalize), "intensity_cut": intensity_cut}
    step = time_step(frame_time, source)
    divisor = None
    with CorrelationProgress(progress, "multi-tau") as bar:
        if limits is not None or normalize:
            means = FrameMeans(source, qmap, selection, bar)
            divisor = means.divisors() if normalize else None
            if limits is not None:
                selection = selection.leaving_out(means.beyond(*limits))
        seen = OverviewSums(qmap, selection, is_whole(source)) if overview else None
        size = selection.n // max(parts, 1)
        ranges = [(0, selection.n), *((k * size, (k + 1) * size) for k in range(parts))]
        run = _Run(source, selection, ranges, qmap, dpl, divisor)
        sums = run.sums(ordered_pixels(qmap, labels.bins), seen, bar)
    whole, *others = (
        multitau_result(x, n_pairs, selection.part(*of), labels, step, config)
        for x, n_pairs, of in zip(sums, run.pairs, ranges, strict=True)
    )
    return replace(whole, overview=seen.overview() if seen else None, parts=tuple(others))


class _Run:
    """Goes over the frames, for some ranges of a selection's sums at once."""

    def __init__(
        self,
        source: FrameSource,
        selection: FrameSelection,
        ranges: Sequence[tuple[int, int]],
        qmap: QMap,
        dpl: int,
        divisor: NDArray[np.float64] | None,
    ) -> None:
        self._source, self._selection, self._ranges = source, selection, ranges
        self._qmap, self._dpl, self._divisor = qmap, dpl, divisor
        self._whole = is_whole(source) and divisor is None
        self._good, self._bad = selection.good_counts(), selection.bad_places()
        weights = [pair_weights(self._good[slice(*x)], dpl) for x in ranges]
        self._weights = [weight for weight, _ in weights]
        #: [n_tau] of each range, how many pairs of sums have good frames in both
        self.pairs = [pairs for _, pairs in weights]

    def sums(
        self, pixels: NDArray[np.int32], seen: OverviewSums | None, bar: CorrelationProgress
    ) -> list[BinSums]:
        """Sums of the bins of some pixels, as `ordered_pixels` gives them, of each range."""
        result = [BinTotals(self._qmap, weight, self._whole) for weight in self._weights]
        tiles = [pixels[k : k + TILE] for k in range(0, len(pixels), TILE)]
        passes = list(self._passes(tiles)) or [[]]
        frames = self._selection.n * self._selection.average
        bar.begin(len(passes) * frames, frame_bytes(self._source) / len(passes))
        for number, group in enumerate(passes):
            states = [[PixelSums(x, self._dpl, self._whole) for x in group] for _ in self._ranges]
            for first, block in blocks(self._source, self._selection):
                if seen is not None and number == 0:
                    seen.add(first, block)
                for (begin, end), of_range in zip(self._ranges, states, strict=True):
                    self._add(of_range, block, first, begin, end)
                bar.advance(len(block))
            for total, of_range in zip(result, states, strict=True):
                for state in of_range:
                    total.add(state)
        return [total.bin_sums() for total in result]

    def _add(
        self, states: list[PixelSums], block: NDArray[Any], first: int, begin: int, end: int
    ) -> None:
        """Adds what a block that begins with sum `first` has of the sums begin .. end - 1."""
        average = self._selection.average
        begin, end = max(begin, first), min(end, first + len(block) // average)
        if begin >= end:
            return
        inside = block[(begin - first) * average : (end - first) * average]
        frames = slice(begin * average, end * average)
        divisor = None if self._divisor is None else self._divisor[frames]
        for state in states:
            taken = summed(inside[:, state.pixels], average, self._bad[frames], divisor)
            state.add(taken, self._good[begin:end])

    def _passes(self, tiles: list[NDArray[np.int32]]) -> Iterator[list[NDArray[np.int32]]]:
        """Tiles whose sums are made in one pass over the frames."""
        if self._source.array is not None:  # passes cost nothing
            yield from ([tile] for tile in tiles)
            return
        of_pixel = PixelSums.bytes_of_pixel(self._selection.n, self._dpl) * len(self._ranges)
        most = max(int(available_bytes() // 3 // (of_pixel * TILE)), 1)
        for k in range(0, len(tiles), most):
            yield tiles[k : k + most]
