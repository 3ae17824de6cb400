"""Multi-tau and two-time correlations in plain NumPy, straight from their definitions.

O(N^2), with independent levels: each level sums neighbouring frames directly from the input. Whole
counts are summed as Python's integers (object arrays), which never overflow, and rounded to
float64 once: before they are divided, or after (two-time, by fractions). Floating-point counts
are summed in float64. Nothing is shared with the code under test: bins are looked up by pixel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np


@dataclass
class Selected:
    """Sums of neighbouring frames that are correlated.

    sums: [N, P], Python integers as objects, or float64. good: [N] good frames in each.
    """

    sums: np.ndarray
    good: list[int]


@dataclass
class PixelSums:
    """Sums of each pixel at each delay, not divided by anything.

    With s and c the sums of counts and of good frames of a level: G = sum s s', IP = sum s c',
    IF = sum c s', each [n_tau, P]; weight = sum c c', pairs = how many c c' are not 0.
    """

    delay: list[int]
    G: np.ndarray
    IP: np.ndarray
    IF: np.ndarray
    weight: list[int]
    pairs: list[int]


@dataclass
class MultiTau:
    delay: np.ndarray
    g2: np.ndarray
    g2_err: np.ndarray
    sums: PixelSums


@dataclass
class TwoTime:
    c2: np.ndarray
    g2: np.ndarray
    g2_parts: np.ndarray
    n_pairs: np.ndarray
    n_pairs_parts: np.ndarray


def exact(array):
    """Whole numbers as Python's integers, others as float64."""
    array = np.asarray(array)
    return array.astype(object) if array.dtype.kind in "uib" else array.astype(np.float64)


def select(frames, begin=0, end=None, stride=1, average=1, bad_frames=(), divided_by_mean_of=None):
    """frames [N, ...] as `Selected`, pixels flat; bad frames count from the first of all.

    divided_by_mean_of: [P], true at the pixels by whose mean each frame is divided, in float64; a
    frame without light is not changed.
    """
    frames = exact(frames).reshape(len(frames), -1)
    if divided_by_mean_of is not None:
        chosen = np.flatnonzero(divided_by_mean_of)
        mean = [float(sum(frame[chosen].tolist())) / len(chosen) for frame in frames]
        frames = frames.astype(np.float64) / np.array([m or 1.0 for m in mean])[:, None]
    end = len(frames) if end is None else end
    n = (end - begin) // (stride * average)
    bad = {int(b) for b in bad_frames}
    sums = np.zeros((n, frames.shape[1]), frames.dtype)
    good = [0] * n
    for k in range(n):
        for i in range(average):
            number = begin + (k * average + i) * stride
            if number not in bad:
                sums[k] = sums[k] + frames[number]
                good[k] += 1
    return Selected(sums, good)


def delays(n, dpl=4):
    """The delays of n frames, with the level and the delay in sums of each: (delay, level, t)."""
    result = []
    level = 0
    while True:
        for t in range(dpl + 1 if level else 1, 2 * dpl + 1):
            if t * 2**level >= (n // 2**level) * 2**level:
                return result
            result.append((t * 2**level, level, t))
        level += 1


def pixel_sums(selected, dpl=4):
    """`PixelSums` of all pixels at all delays."""
    (n, pixels), known = selected.sums.shape, delays(len(selected.sums), dpl)
    sums, weight, pairs = np.zeros((3, len(known), pixels), selected.sums.dtype), [], []
    for i, (_, level, t) in enumerate(known):
        m, width = n >> level, 1 << level
        s = selected.sums[: m * width].reshape(m, width, pixels).sum(axis=1)
        c = np.array(selected.good, object)[: m * width].reshape(m, width, 1).sum(axis=1)
        early, late = slice(0, m - t), slice(t, m)
        for k, (x, y) in enumerate(((s, s), (s, c), (c, s))):
            sums[k, i] = (x[early] * y[late]).sum(axis=0)
        weights = c[early] * c[late]
        weight.append(weights.sum())
        pairs.append(int((weights > 0).sum()))
    return PixelSums([delay for delay, *_ in known], *sums, weight, pairs)


def ratio(G, IP, IF, weight, pixels=1):
    """<G> / (<IP> <IF>) over `pixels` pixels, of their exact sums, each rounded once; 0 if dark."""
    below = float(IP) * float(IF)
    return float(G) * (float(weight) * pixels) / below if below else 0.0


def multitau(
    frames,
    dynamic,
    static=None,
    mask=None,
    dpl=4,
    normalize=False,
    bad_frames=(),
    begin=0,
    end=None,
    stride=1,
    average=1,
):
    """g2 and its errors, [n_tau, n_bins] with the bins 1 .. dynamic.max().

    frames: [N, H, W] or [N, P]; dynamic, static, mask: [H, W] or [P]. NaN for bins without pixels
    and delays without a pair of good frames, and for the error of one pixel.
    """
    dynamic = np.ravel(dynamic)
    static = dynamic if static is None else np.ravel(static)
    mask = np.ones(dynamic.shape, bool) if mask is None else np.ravel(mask).astype(bool)
    of = mask if normalize else None
    selected = select(frames, begin, end, stride, average, bad_frames, divided_by_mean_of=of)
    sums = pixel_sums(selected, dpl)
    n_bins = int(dynamic.max(initial=0))
    g2 = np.full((len(sums.delay), n_bins), np.nan)
    g2_err = g2.copy()
    for i, weight in enumerate(sums.weight):
        if weight == 0:
            continue
        for b in range(1, n_bins + 1):
            inside = [p for p in range(len(dynamic)) if mask[p] and dynamic[p] == b and static[p]]
            if not inside:
                continue
            values = []
            for s in sorted({static[p] for p in inside}):
                of_bin = [p for p in inside if static[p] == s]
                G, IP, IF = (sum(a[i, p] for p in of_bin) for a in (sums.G, sums.IP, sums.IF))
                values.append(ratio(G, IP, IF, weight, len(of_bin)))
            g2[i, b - 1] = math.fsum(values) / len(values)
            ratios = [ratio(sums.G[i, p], sums.IP[i, p], sums.IF[i, p], weight) for p in inside]
            if len(ratios) > 1:
                g2_err[i, b - 1] = np.std(ratios, ddof=1) / math.sqrt(len(ratios))
    return MultiTau(np.array(sums.delay, np.int64), g2, g2_err, sums)


def twotime(
    frames,
    dynamic,
    static=None,
    mask=None,
    smoothing="static",
    begin=0,
    end=None,
    stride=1,
    average=1,
    bad_frames=(),
):
    """The full C [n_bins, N, N] of the bins 1 .. dynamic.max(), and the means of its diagonals.

    g2 is [N, n_bins]; g2_parts [5, N // 5, n_bins] of five equal parts in time; n_pairs and
    n_pairs_parts how many numbers each is the mean of. NaN for bins without pixels, for sums of
    frames of which none is good, and for frames without counts in the bin.
    """
    dynamic = np.ravel(dynamic)
    static = dynamic if static is None else np.ravel(static)
    mask = np.ones(dynamic.shape, bool) if mask is None else np.ravel(mask).astype(bool)
    selected = select(frames, begin, end, stride, average, bad_frames)
    sums, n = selected.sums, len(selected.sums)
    n_bins = int(dynamic.max(initial=0))
    c2 = np.full((n_bins, n, n), np.nan)
    for b in range(1, n_bins + 1):
        inside = [p for p in range(len(dynamic)) if mask[p] and dynamic[p] == b and static[p]]
        # w = I times a factor of (static bin, frame): sum_p w w' is that of I I' times two factors.
        products, totals = [], []
        for s in sorted({static[p] for p in inside}):
            I = sums[:, [p for p in inside if static[p] == s]]  # noqa: E741
            P, light = I.shape[1], [sum(row) for row in I.tolist()]
            factor = [_over(P, x) if smoothing == "static" and x else 1 for x in light]
            products.append(
                [[_dot(I[t], I[u]) * factor[t] * factor[u] for u in range(n)] for t in range(n)]
            )
            totals.append([light[t] * factor[t] for t in range(n)])
        for t in range(n if inside else 0):
            for u in range(n):
                if selected.good[t] and selected.good[u]:
                    below = sum(x[t] for x in totals) * sum(x[u] for x in totals)
                    above = sum(x[t][u] for x in products) * len(inside)
                    c2[b - 1, t, u] = float(_over(above, below)) if below else math.nan
    g2 = np.full((n, n_bins), np.nan)
    g2_parts = np.full((5, n // 5, n_bins), np.nan)
    n_pairs, n_pairs_parts = np.zeros(g2.shape, int), np.zeros(g2_parts.shape, int)
    for b in range(n_bins):
        for lag in range(n):
            g2[lag, b] = _mean(np.diagonal(c2[b], lag))
            n_pairs[lag, b] = np.isfinite(np.diagonal(c2[b], lag)).sum()
        for part in range(5):
            inside = slice(part * (n // 5), (part + 1) * (n // 5))
            for lag in range(n // 5):
                diagonal = np.diagonal(c2[b, inside, inside], lag)
                g2_parts[part, lag, b] = _mean(diagonal)
                n_pairs_parts[part, lag, b] = np.isfinite(diagonal).sum()
    return TwoTime(c2, g2, g2_parts, n_pairs, n_pairs_parts)


def t1t2(c, edges):
    """[n, n] means of a full C [N, N] over the pairs t1 <= t2 with t1 and t2 between the edges."""
    return _binned(c, edges, edges, lambda t1, t2: (t1, t2))


def age_lag(c, ages, lags):
    """[n_age, n_lag] means over the pairs t1 <= t2 by age (t1 + t2) / 2 and lag t2 - t1."""
    return _binned(c, ages, lags, lambda t1, t2: ((t1 + t2) / 2, t2 - t1))


def _binned(c, first, second, place):
    values = {}
    for t1 in range(len(c)):
        for t2 in range(t1, len(c)):
            x, y = place(t1, t2)
            i, j = (int(np.searchsorted(e, v, "right")) - 1 for e, v in ((first, x), (second, y)))
            if 0 <= i < len(first) - 1 and 0 <= j < len(second) - 1:
                values.setdefault((i, j), []).append(c[t1, t2])
    result = np.full((len(first) - 1, len(second) - 1), np.nan)
    for at, actual in values.items():
        result[at] = _mean(actual)
    return result


def _mean(values):
    """Of what is not NaN."""
    known = [float(v) for v in values if not math.isnan(v)]
    return math.fsum(known) / len(known) if known else math.nan


def _dot(a, b):
    return sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))


def _over(above, below):
    whole = isinstance(above, int | Fraction) and isinstance(below, int | Fraction)
    return Fraction(above) / Fraction(below) if whole else above / below
