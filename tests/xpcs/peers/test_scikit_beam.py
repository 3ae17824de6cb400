"""g2 and two-time correlations compared with scikit-beam, where the definitions agree.

It averages neighbours where we sum them (the same g2), has a delay 0, and normalizes by means of
regions. With one static bin a dynamic one its g2 is ours at every delay that both have, but for the
last of our levels (8, 16, 32, ... at 4 delays a level), which it takes from sums twice as long.
"""

from __future__ import annotations

import numpy as np
import pytest
from skbeam.core.correlation import multi_tau_auto_corr, two_time_corr

import jaxkern as jk

SHAPE = (10, 12)


def case(n):
    rng = np.random.default_rng(n)
    frames = rng.poisson(rng.gamma(2.0, 2.0, (n, 1, 1)) * rng.gamma(2.0, 1.0, SHAPE))
    dynamic = np.zeros(SHAPE, int)
    dynamic[:5, 2:], dynamic[5:, :7] = 1, 2
    return frames.astype(np.uint16), dynamic


@pytest.mark.parametrize(("n", "levels", "dpl"), [(256, 5, 4), (512, 4, 8), (64, 1, 32)])
def test_multitau(n, levels, dpl):
    frames, dynamic = case(n)
    theirs, lags = multi_tau_auto_corr(levels, 2 * dpl, dynamic, frames)
    ours = jk.xpcs.multitau(frames, jk.xpcs.QMap(dynamic), dpl=dpl, progress=False)
    common, in_theirs, in_ours = np.intersect1d(lags, ours.delay, return_indices=True)
    assert len(common) == len(lags) - 1  # all but the delay 0
    same = ~np.isin(common, 2 * dpl * 2 ** np.arange(levels))
    common, in_theirs, in_ours = common[same], in_theirs[same], in_ours[same]
    assert len(common) >= levels * dpl - 1
    np.testing.assert_allclose(theirs[in_theirs], ours.g2[in_ours], rtol=1e-9)


def test_two_time():
    """Its matrix of one level, at lags of one buffer, is ours without smoothing."""
    n = 24
    frames, dynamic = case(n)
    theirs = two_time_corr(dynamic, frames, n, num_bufs=n, num_levels=1)
    c2 = np.asarray(theirs[0] if isinstance(theirs, tuple) else theirs.g2)
    ours = jk.xpcs.twotime(frames, jk.xpcs.QMap(dynamic), smoothing="none").c2
    above = np.triu_indices(n, 1)
    assert c2.shape == ours.shape
    np.testing.assert_allclose(c2[:, above[0], above[1]], ours[:, above[0], above[1]], rtol=1e-9)
