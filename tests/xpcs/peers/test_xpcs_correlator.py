"""Two-time correlations, full and in bins, compared with xpcs-correlator.

Its matrices are ours without smoothing, from counts and from events. Its g2 divides the mean of a
diagonal's products by the mean of its divisors and is another mean than ours.
"""

from __future__ import annotations

import numpy as np
import pytest
import xpcscorr

import jaxkern as jk

SHAPE = (12, 14)
LOCAL = {"dask_cluster_type": None}


def case(n=80, occupancy=0.2):
    rng = np.random.default_rng(n)
    frames = (rng.poisson(1.0, (n, *SHAPE)) * (rng.random((n, *SHAPE)) < occupancy)).astype(
        np.uint16
    )
    # A frame without light has no C at all in the peer's.
    frames[:, 1, 3], frames[:, 8, 2] = 1, 2
    dynamic = np.zeros(SHAPE, int)
    dynamic[:6, 2:], dynamic[6:, :9] = 1, 2
    return frames, dynamic


def by_pixel(frames):
    """Counts, frames and the begin of each pixel, ordered by pixel, then by frame."""
    flat = frames.reshape(len(frames), -1).T
    pixel, frame = np.nonzero(flat)
    begins = np.searchsorted(pixel, np.arange(flat.shape[0] + 1))
    return flat[pixel, frame].astype(np.int32), frame.astype(np.int32), begins.astype(np.int64)


def sparse(frames, dynamic, form, **options):
    return xpcscorr.correlator_sparse_pixel_chunked(
        *by_pixel(frames), frames_shape=frames.shape, roimask=dynamic, ttcf_format=form,
        extra_options=LOCAL, **options,
    )  # fmt: skip


def test_full_matrices():
    frames, dynamic = case()
    qmap = jk.xpcs.QMap(dynamic)
    ours = jk.xpcs.twotime(frames, qmap, smoothing="none", progress=False)
    theirs = xpcscorr.correlator_dense_reference(frames, dynamic, ttcf_format="t1,t2")
    np.testing.assert_allclose(theirs.ttcf, ours.c2, rtol=1e-12)
    pixel, frame = np.nonzero(frames.reshape(len(frames), -1).T)
    events = jk.xpcs.twotime_events(
        pixel, frame, frames.reshape(len(frames), -1)[frame, pixel], len(frames), qmap,
        smoothing="none", progress=False,
    )  # fmt: skip
    # The kernel for events does not write the lower triangle.
    kernel = sparse(frames, dynamic, "t1,t2")
    above = np.triu_indices(len(frames))
    for result in (kernel.ttcf, events.c2):
        np.testing.assert_allclose(
            result[:, above[0], above[1]], ours.c2[:, above[0], above[1]], rtol=1e-6
        )


@pytest.mark.parametrize("form", [("t1t2", 8), ("t1t2", 13), ("age-lag", 7, 10, 4)])
def test_bins(form):
    """Its full matrix in our bins; its own end at N - 1 and keep their first triangle only."""
    frames, dynamic = case()
    ours = jk.xpcs.twotime(
        frames, jk.xpcs.QMap(dynamic), smoothing="none", form=form, progress=False
    )
    theirs = xpcscorr.correlator_dense_reference(frames, dynamic, ttcf_format="t1,t2").ttcf
    t1, t2 = np.triu_indices(len(frames))
    x, y = (t1, t2) if form[0] == "t1t2" else ((t1 + t2) / 2, t2 - t1)
    pairs, *_ = np.histogram2d(x, y, (ours.t1, ours.t2))
    for c2, full in zip(ours.c2, theirs, strict=True):
        sums, *_ = np.histogram2d(x, y, (ours.t1, ours.t2), weights=full[t1, t2])
        there = pairs > 0
        np.testing.assert_allclose(c2[there], sums[there] / pairs[there], rtol=1e-9)
        assert form[0] == "t1t2" or np.isnan(c2[~there]).all()
