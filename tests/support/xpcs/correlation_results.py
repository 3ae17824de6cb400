"""Results of correlations for tests of what takes them, made by the oracle and not by jaxkern."""

from __future__ import annotations

from functools import cache

import numpy as np

from jaxkern import xpcs
from jaxkern.xpcs.correlators.results import MultiTauResult, Overview, TwoTimeResult
from support.xpcs import correlator_oracle as oracle

N = 17
SHAPE = (6, 8)
#: of a grid of 2 q and 3 phi, of which the cell (q0, phi1) is empty
CELLS = [0, 2, 3, 4, 5]
Q, PHI = [0.004, 0.006], [-30.0, 10.0, 50.0]


def frames(n=N, seed=0):
    return np.random.default_rng(seed).poisson(1.5, (n, *SHAPE)).astype(np.uint8)


def maps():
    """dynamic and static bins and the mask; bins 1 to 5, each of two static ones."""
    dynamic = np.zeros(SHAPE, int)
    for b in range(5):
        dynamic[1:, b] = b + 1
    dynamic[1:, 5] = 3
    half = np.arange(SHAPE[0])[:, None] >= 3
    static = np.where(dynamic > 0, 2 * dynamic - 1 + half, 0)
    mask = np.ones(SHAPE, bool)
    mask[2, 1] = mask[4, 4] = False
    return dynamic, static, mask


def qmap(labelled=True):
    q = [Q[g // 3] for g in CELLS] if labelled else None
    phi = [PHI[g % 3] for g in CELLS] if labelled else None
    return xpcs.QMap(*maps(), q, phi)


def overview(counts, bins):
    """Means in float64, static bin by static bin; NaN of parts without frames."""

    def means(part):
        inside = [bins.used & (bins.static == s) for s in range(1, bins.n_static + 1)]
        return [part[:, pixels].mean() if len(part) else np.nan for pixels in inside]

    return Overview(
        counts.mean(axis=0),
        counts[:, bins.used].mean(axis=1),
        np.array(means(counts)),
        np.array([means(part) for part in np.array_split(counts, 10)]),
    )


@cache
def exact_multitau(n, average):
    return oracle.multitau(frames(n), *maps(), average=average)


@cache
def exact_twotime(n, bad_frames):
    return oracle.twotime(frames(n), *maps(), bad_frames=bad_frames)


def multitau(n=N, frame_time=1e-3, bins=(1, 2, 3, 4, 5), labelled=True, average=1, **more):
    counts, of = frames(n), qmap(labelled)
    result = exact_multitau(n, average)
    summed = counts[: n // average * average].reshape(-1, average, *SHAPE).sum(axis=1)
    step = None if frame_time is None else frame_time * average
    columns = np.array(bins) - 1
    return MultiTauResult(
        delay=result.delay,
        tau=None if step is None else result.delay * step,
        bins=np.array(bins),
        g2=result.g2[:, columns],
        g2_err=result.g2_err[:, columns],
        q=of.q[columns] if labelled else None,
        phi=of.phi[columns] if labelled else None,
        n_pixels=of.pixels_of_bin[columns],
        n_pairs=np.array(result.sums.pairs),
        n_frames=n // average,
        frame_time=step,
        qmap=of,
        overview=overview(summed, of),
        config={
            "dpl": 4,
            "normalize": False,
            "begin": 0,
            "end": n,
            "stride": 1,
            "average": average,
            "bad_frames": np.array([], np.int64),
            **more,
        },
    )


def twotime(n=N, frame_time=1e-3, bins=(4, 1, 5), form="full", bad_frames=(), labelled=True):
    of = qmap(labelled)
    result = exact_twotime(n, tuple(bad_frames))
    columns = np.array(bins) - 1
    edges = np.arange(n + 1.0)
    c2 = result.c2[columns]
    if form != "full":
        edges = np.linspace(0, n, form[1] + 1)
        c2 = np.stack([oracle.t1t2(c, edges) for c in c2])
    return TwoTimeResult(
        c2=c2,
        g2=result.g2[:, columns],
        g2_parts=result.g2_parts[:, :, columns],
        bins=np.array(bins),
        t1=edges,
        t2=edges,
        q=of.q[columns] if labelled else None,
        phi=of.phi[columns] if labelled else None,
        n_pixels=of.pixels_of_bin[columns],
        n_frames=n,
        frame_time=frame_time,
        qmap=of,
        overview=None,
        config={
            "smoothing": "static",
            "form": form,
            "begin": 0,
            "end": n,
            "stride": 1,
            "average": 1,
            "bad_frames": np.array(bad_frames, np.int64),
        },
    )
