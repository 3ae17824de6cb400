"""What a result says beside its numbers: which bins, their q and phi, and the time of a frame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_number
from jaxkern.xpcs.correlators.delays import multitau_delays, pair_numbers, pair_weights
from jaxkern.xpcs.correlators.g2 import BinSums, g2_of_sums
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap


class BinLabels:
    """Some dynamic bins of a map, with their q, phi and numbers of pixels.

    Args:
      bins: numbers from 1; None for all.

    Raises:
      ValueError: for bins that the map does not have, or twice the same.
    """

    def __init__(self, qmap: QMap, bins: Any = None) -> None:
        self.qmap = qmap
        every = np.arange(1, qmap.n_dynamic + 1)
        chosen = every if bins is None else np.atleast_1d(np.asarray(bins))
        unique = np.unique(chosen)
        if chosen.ndim != 1 or not np.isin(chosen, every).all() or len(unique) != len(chosen):
            raise ValueError(
                f"bins is {bins!r:.80}; wanted dynamic bins from 1 to {qmap.n_dynamic}, each once"
            )
        self.bins: NDArray[np.int64] = chosen.astype(np.int64)
        index = self.bins - 1
        self.q = None if qmap.q is None else qmap.q[index]
        self.phi = None if qmap.phi is None else qmap.phi[index]
        self.n_pixels = qmap.pixels_of_bin[index]


def asked_time(frame_time: float) -> float:
    """A time from frame to frame in s.

    Raises:
      ValueError: for one that is not above 0, or not finite.
    """
    step = check_number("frame_time", frame_time, 0.0)
    if not 0 < step < math.inf:
        raise ValueError(f"frame_time is {frame_time!r}; wanted s above 0, from frame to frame")
    return step


def time_step(frame_time: float | None, source: FrameSource) -> float | None:
    """From one frame to the next in s: what was asked for, else what the source says, else None.

    Raises:
      ValueError: as `asked_time`; a source's that is not above 0 is none.
    """
    if frame_time is not None:
        return asked_time(frame_time)
    told = source.metadata.get("frame_time")
    return float(told) if told is not None and 0 < told < math.inf else None


def g2_result(
    sums: BinSums,
    selection: FrameSelection,
    labels: BinLabels,
    frame_time: float | None,
    config: Mapping[str, Any],
) -> MultiTauResult:
    """The multi-tau result of a selection's sums.

    Args:
      frame_time: from one frame of the source to the next, in s.
      config: what was asked beside the selection, with "dpl".
    """
    dpl = config["dpl"]
    delay = multitau_delays(selection.n, dpl)
    n_pairs = pair_numbers(selection.n, dpl)
    if selection.good_counts_differ:
        n_pairs = pair_weights(selection.good_counts(), dpl)[1]
    step = None if frame_time is None else frame_time * selection.stride * selection.average
    g2, g2_err = g2_of_sums(sums, labels.qmap, labels.bins)
    return MultiTauResult(
        delay=delay,
        tau=None if step is None else (delay * step).astype(np.float64),
        bins=labels.bins,
        g2=g2,
        g2_err=g2_err,
        q=labels.q,
        phi=labels.phi,
        n_pixels=labels.n_pixels,
        n_pairs=n_pairs,
        n_frames=selection.n,
        frame_time=step,
        qmap=labels.qmap,
        overview=None,
        config={**config, **selection.config()},
    )
