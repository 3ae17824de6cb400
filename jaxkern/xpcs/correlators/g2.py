"""Multi-tau delays, and g2 with its errors from sums over the pixels of bins."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.correlators.selection import BinLabels, FrameSelection
from jaxkern.xpcs.detectors.qmap import QMap

#: largest number of delays per level in the kernels
MAX_DELAYS = 64


def multitau_delays(n_frames: int, dpl: int = 4) -> NDArray[np.int64]:
    """Return the multi-tau delays of `n_frames` frames, in frames.

    Level 0 has the delays 1 .. 2 dpl, level L >= 1 has (dpl + 1 .. 2 dpl) 2^L. The list ends before
    the first delay that is not less than (n_frames // 2^L) 2^L.

    Example:
      >>> import jaxkern as jk
      >>> jk.xpcs.multitau_delays(30).tolist()
      [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24]
    """
    check_integer("n_frames", n_frames, 0)
    check_integer("dpl", dpl, 1)
    return np.array([t << level for level, t in _levels(n_frames, dpl)], np.int64)


def _levels(n_frames: int, dpl: int) -> Iterator[tuple[int, int]]:
    """Yield the level of each delay, and the delay in sums of that level."""
    level = 0
    while True:
        for t in range(dpl + 1 if level else 1, 2 * dpl + 1):
            if t >= n_frames >> level:
                return
            yield level, t
        level += 1


def pair_numbers(n_frames: int, dpl: int) -> NDArray[np.int64]:
    """Return the number of pairs of sums at each delay if no frame is bad."""
    return np.array([(n_frames >> level) - t for level, t in _levels(n_frames, dpl)], np.int64)


def good_pair_numbers(good: NDArray[np.uint32], dpl: int) -> NDArray[np.int64]:
    """Return the number of pairs with c c' > 0 at each delay; c is `good` [N] at level 0."""
    pairs = []
    c, level = good.astype(np.int64), 0
    while len(c):
        for t in range(dpl + 1 if level else 1, min(2 * dpl, len(c) - 1) + 1):
            pairs.append(int(np.count_nonzero(c[:-t] * c[t:])))
        full = len(c) // 2 * 2
        c, level = c[0:full:2] + c[1:full:2], level + 1
    return np.array(pairs, np.int64)


@dataclass(frozen=True, eq=False)
class BinSums:
    """Sums over pixels at each delay, from which g2 and its errors follow.

    With s a sum of counts and c the number of good frames in it, a pixel has G = sum s s',
    IP = sum s c', IF = sum c s' and W = sum c c' at each delay. Its ratio is G W / (IP IF), or 0 if
    it has no counts. For integer counts, sums are exact integers, rounded to float64 once.
    """

    weight: NDArray[np.float64]  # [n_tau] W; 0 at delays without pairs
    sums: NDArray[np.float64]  # [3, n_tau, n_static] G, IP and IF over the pixels of static bins
    mean: NDArray[np.float64]  # [n_tau, n_dynamic] mean ratio of a dynamic bin's pixels
    squares: NDArray[np.float64]  # [n_tau, n_dynamic] sum of squared distances from that mean
    pixels: NDArray[np.int64]  # [n_dynamic] number of pixels
    carried: Any = None  # unrounded sums to which further pixels can be added


def g2_of_sums(
    sums: BinSums, qmap: QMap, bins: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return g2 and its standard errors [n_tau, n_bins]; NaN where they have no pixels or pairs."""
    # Static bins in the order of dynamic bins: bin b has edges[b] .. edges[b + 1] - 1; empty
    # static bins are in bin 0.
    order = np.argsort(qmap.dynamic_of_static, kind="stable")
    edges = np.searchsorted(qmap.dynamic_of_static[order], np.arange(qmap.n_dynamic + 2))
    ratios = static_ratios(sums, qmap)[:, order]
    g2 = np.full((len(sums.weight), len(bins)), np.nan)
    error = g2.copy()
    for column, number in enumerate(bins):
        pixels = int(sums.pixels[number - 1])
        if not pixels:
            continue
        bin_ratios = ratios[:, edges[number] : edges[number + 1]]
        # fsum rounds once, so that the order of the static bins does not matter.
        g2[:, column] = [math.fsum(row) / len(row) for row in bin_ratios.tolist()]
        if pixels > 1:
            error[:, column] = np.sqrt(sums.squares[:, number - 1] / (pixels - 1) / pixels)
    empty = sums.weight == 0
    g2[empty] = error[empty] = np.nan
    return g2, error


def static_ratios(sums: BinSums, qmap: QMap) -> NDArray[np.float64]:
    """Return <G> / (<IP> <IF>) [n_tau, n_static] of static bins; 0 without counts."""
    G, IP, IF = sums.sums
    denominator = IP * IF
    numerator = G * (sums.weight[:, None] * qmap.pixels_of_static)
    ratios = np.zeros(denominator.shape)
    with np.errstate(invalid="ignore"):  # infinite counts give NaN
        np.divide(numerator, denominator, out=ratios, where=denominator != 0)
    return ratios


def g2_result(
    sums: BinSums,
    selection: FrameSelection,
    labels: BinLabels,
    frame_time: float | None,
    config: Mapping[str, Any],
) -> MultiTauResult:
    """Return the result for a selection; `config` has arguments that are not the selection's."""
    dpl = config["dpl"]
    delay = multitau_delays(selection.n, dpl)
    n_pairs = pair_numbers(selection.n, dpl)
    if selection.good_counts_differ:
        n_pairs = good_pair_numbers(selection.good_counts(), dpl)
    step = selection.time_step(frame_time)
    g2, g2_err = g2_of_sums(sums, labels.qmap, labels.bins)
    tau = None if step is None else (delay * step).astype(np.float64)
    fields = labels.fields(selection, frame_time, config)
    return MultiTauResult(delay=delay, tau=tau, g2=g2, g2_err=g2_err, n_pairs=n_pairs, **fields)
