"""The delays of multi-tau correlation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer

#: a level, of the kernels
MOST_DELAYS = 64


def multitau_delays(n_frames: int, dpl: int = 4) -> NDArray[np.int64]:
    """The delays, in frames, of `n_frames` frames with `dpl` delays a level.

    Level 0 has 1 .. 2 dpl, level L >= 1 has (dpl + 1 .. 2 dpl) 2^L. The list ends before the first
    delay that is not below (n_frames // 2^L) 2^L.

    Example:
      >>> import jaxkern as jk
      >>> jk.xpcs.multitau_delays(30).tolist()
      [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24]
    """
    check_integer("n_frames", n_frames, 0)
    check_integer("dpl", dpl, 1)
    return np.array([t << level for level, t in _levels(n_frames, dpl)], np.int64)


def _levels(n_frames: int, dpl: int) -> Iterator[tuple[int, int]]:
    """The level of each delay, and the delay in sums of that level."""
    level = 0
    while True:
        for t in range(dpl + 1 if level else 1, 2 * dpl + 1):
            if t >= n_frames >> level:
                return
            yield level, t
        level += 1


def pair_numbers(n_frames: int, dpl: int) -> NDArray[np.int64]:
    """Of each delay how many pairs of sums there are, where no frame is bad."""
    return np.array([(n_frames >> level) - t for level, t in _levels(n_frames, dpl)], np.int64)


def pair_weights(
    good: NDArray[np.integer[Any]], dpl: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Of each delay: sum of c c' over its pairs of sums, and how many pairs have c c' above 0.

    Args:
      good: [N] c of level 0, the good frames in each sum.
    """
    weights, pairs = [], []
    c, level = good.astype(np.int64), 0
    while len(c):
        for t in range(dpl + 1 if level else 1, min(2 * dpl, len(c) - 1) + 1):
            products = c[:-t] * c[t:]
            weights.append(int(products.sum()))  # at most the square of all frames
            pairs.append(int(np.count_nonzero(products)))
        full = len(c) // 2 * 2
        c, level = c[0:full:2] + c[1:full:2], level + 1
    return np.array(weights, np.float64), np.array(pairs, np.int64)
