"""From sums over the pixels of bins to g2 and its errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.qmap import QMap


@dataclass(frozen=True, eq=False)
class BinSums:
    """What g2 and its errors are made of: sums over pixels at each delay.

    With s a sum of counts and c the good frames in it, a pixel has at a delay G = sum s s',
    IP = sum s c', IF = sum c s', and W = sum c c'. Its ratio is G W / (IP IF), and 0 without light.

    Attributes:
      weight: [n_tau] W; 0 at delays without pairs.
      sums: [3, n_tau, n_static] G, IP and IF, summed over the pixels of static bins; of whole
        counts these are the exact integers, rounded to float64 once.
      mean: [n_tau, n_dynamic] mean of the ratios of a dynamic bin's pixels.
      squares: [n_tau, n_dynamic] sum of their squared distances from that mean.
      pixels: [n_dynamic] how many pixels of a dynamic bin there are.
      carried: what sums of further pixels go on from, of the kind that made these; or None.
    """

    weight: NDArray[np.float64]
    sums: NDArray[np.float64]
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    pixels: NDArray[np.int64]
    carried: Any = None


def g2_of_sums(
    sums: BinSums, qmap: QMap, bins: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """g2 and its errors, each [n_tau, n_bins], of some dynamic bins, all of whose pixels are there.

    g2 is the mean over a dynamic bin's static bins of <G> / (<IP> <IF>), the error the standard
    deviation of the pixels' ratios, one degree of freedom less, over the root of their number.
    NaN in bins without pixels and at delays without pairs; the error also of one pixel.
    """
    # Static bins by dynamic bin: those of bin b are edges[b] .. edges[b + 1] - 1, of 0 the empty.
    order = np.argsort(qmap.dynamic_of_static, kind="stable")
    edges = np.searchsorted(qmap.dynamic_of_static[order], np.arange(qmap.n_dynamic + 2))
    ratios = static_ratios(sums, qmap)[:, order]
    g2 = np.full((len(sums.weight), len(bins)), np.nan)
    error = g2.copy()
    for column, number in enumerate(bins):
        pixels = int(sums.pixels[number - 1])
        if not pixels:
            continue
        of_bin = ratios[:, edges[number] : edges[number + 1]]
        # Rounded once, whatever the order of the static bins.
        g2[:, column] = [math.fsum(row) / len(row) for row in of_bin.tolist()]
        if pixels > 1:
            error[:, column] = np.sqrt(sums.squares[:, number - 1] / (pixels - 1) / pixels)
    empty = sums.weight == 0
    g2[empty] = error[empty] = np.nan
    return g2, error


def static_ratios(sums: BinSums, qmap: QMap) -> NDArray[np.float64]:
    """[n_tau, n_static] <G> / (<IP> <IF>) over the pixels of static bins; 0 without light."""
    G, IP, IF = sums.sums
    below = IP * IF
    above = G * (sums.weight[:, None] * qmap.pixels_of_static)
    ratios = np.zeros(below.shape)
    with np.errstate(invalid="ignore"):  # frames with an infinity give NaN
        np.divide(above, below, out=ratios, where=below != 0)
    return ratios
