"""The second check of a fit: residuals averaged by lag and age must be compatible with noise.

A misfit of a few percent is far below the noise of single points, and far above the noise of an
average over thousands of them. The residuals z are averaged in logarithmic bins of the lag, with
Legendre polynomials in the age as weights. The standard error of an average c is estimated from the
scatter between parts u of the data: blocks of frames t1 at one angle, in which the model decays.

The fit has already adjusted its parameters to the noise. With H = J^T J, s_u = the share of part u
in J^T z, and J_c of the weighted Jacobian, part u changes the weighted sum of the residuals by

    h[u, c] = (weighted sum of z over the points of u) - J_c H^-1 s_u.

t[c] = sum_u h[u, c] in units of its standard error is compared with Student's t distribution. The
degrees of freedom are the effective number of parts, less one and the shared parameters.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import FitProblem
from jaxkern.xpcs.fitting.passes import MAX_VALUE, PassPoint, correlation, correlation_slopes
from jaxkern.xpcs.fitting.sampling import rows_of_angle

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

# False-alarm probability by the degree of the weight; divided by the number of bins of the lag
# (Bonferroni).
LEVELS = (2e-3, 5e-4, 5e-4)
# Number of bins of the age; the weight is constant in each.
_AGES = 12
# Largest number of points that are read; the minimum number of rows may exceed it.
_POINTS, _LEAST_ROWS = 2**18, 24
# Ratio of neighbouring edges of the bins of the lag.
_RATIO = 1.6
# Largest correlation of the model between the ends of a block, and minimum number of its frames.
_MAX_CORRELATION, _LEAST_FRAMES = float(np.exp(-4.0)), 3
# The scatter between blocks underestimates the variance by up to this factor: neighbours share some
# noise, and contrast and offset of an angle with few blocks absorb a part of it.
_WIDER = 1.25
# Cells with fewer degrees of freedom are skipped.
_LEAST_FREEDOM = 4.0
# Residuals of robust fits are clipped at this number of standard deviations.
_CUT = 8.0


def misfit(
    problem: FitProblem, tables: tuple[Array, ...], point: PassPoint, floor: float
) -> str | None:
    """Return the reason that averages are not noise, with the worst lags and ages, or None.

    `tables` are those at the point; averages up to `floor` are rounding errors.
    """
    averages, geometry = _averages(problem, tables, point), problem.model.geometry
    if averages is None:
        return None
    t, mean, limit, edges = averages
    excess = np.where(np.abs(mean) > floor, np.abs(t) / limit, 0.0)
    worst = np.argsort(-excess, axis=None, kind="stable")[:4]
    outliers = [np.unravel_index(k, t.shape) for k in worst if excess.flat[k] > 1.0]
    if not outliers:
        return None
    begin, end = float(geometry.t[0]), float(geometry.t[-1])
    weights = (
        f"mean over the ages {begin:.3g} to {end:.3g} s",
        f"rise from the age {begin:.3g} s to {end:.3g} s",
        f"rise from the age {(begin + end) / 2:.3g} s to both ends of the run",
    )
    texts = []
    for degree, k in outliers:
        first, last = geometry.dt * edges[k], geometry.dt * (edges[k + 1] - 1)
        lags = f"lag {first:.3g} s" if first == last else f"lags {first:.3g} to {last:.3g} s"
        value = f"{t[degree, k]:+.3g} (at most {limit[degree, k]:.3g})"
        texts.append(f"{lags}, {weights[degree]}: {value}")
    return (
        "the residuals averaged by lag and age are not noise, so the model does not describe the "
        f"data: in standard errors, {'; '.join(texts)}. Plot the cuts along "
        "the lag, and try other models or starts"
    )


def _averages(
    problem: FitProblem, tables: tuple[Array, ...], point: PassPoint
) -> tuple[Array, Array, Array, Indices] | None:
    """Read some rows of the data and return the averages of their residuals; None without points.

    Returns t, the averages in units of sigma, and the largest |t| compatible with noise, each
    [degree of the weight, bins], and the edges of the bins of the lag in frames.
    """
    data, sigma, layout = problem.data, problem.noise.sigma, problem.layout
    rows = _rows_to_read(data.shape, data.frames)
    mask, first, second, cell, edges = _pairs(rows, data.frames)
    n_cells = _AGES * (len(edges) - 1)
    free = problem.free[-len(point.physics) :]
    A, X, along_A, along_X = tables
    tables = (A, X, along_A, along_X) if A.ndim > 1 else (A[None], X, along_A[None], along_X)
    # Sums over all angles, and by blocks: of residuals and points [blocks, cells], and J^T z.
    normal, jacobian = np.zeros((layout.size, layout.size)), np.zeros((layout.size, n_cells))
    z_sums, counts, scores = [], [], []
    for angle in range(data.shape[0]):
        measured = rows_of_angle(data.source, angle, rows)
        if isinstance(sigma, np.ndarray):
            noise = np.broadcast_to(sigma[angle], measured.shape)
        else:
            noise = rows_of_angle(sigma, angle, rows)
        z, noise = measured.ravel()[mask], noise.ravel()[mask]
        good = np.isfinite(z) & np.isfinite(noise) & (noise > 1e-10)
        if not good.any():
            continue
        noise, cells = noise[good], cell[good]
        i, j = first[good], second[good]
        own_tables = [table[angle % len(table)] for table in tables]
        slopes = _jacobian(problem, own_tables, i, j, float(point.contrast[angle]), free)
        fitted = point.offset[angle] + point.contrast[angle] * slopes[0]
        slopes /= noise
        # The squares of huge numbers, as of a flipped bit, must not overflow.
        z = np.clip((z[good] - fitted) / noise, -MAX_VALUE, MAX_VALUE)
        if problem.solver.loss != "linear":
            cut = _CUT * 1.4826 * float(np.median(np.abs(z)))
            z = np.clip(z, -cut, cut)
        block = _blocks(own_tables[0], own_tables[1], problem.model.shear_power)[i]
        n_blocks = int(block.max()) + 1
        shape, size = (n_blocks, n_cells), n_blocks * n_cells
        index = block * n_cells + cells
        z_sums.append(np.bincount(index, z, size).reshape(shape))
        counts.append(np.bincount(index, minlength=size).reshape(shape).astype(np.float64))
        at, own = layout.of_angle(angle)
        normal[np.ix_(at, at)] += (slopes @ slopes.T)[own, own]
        jacobian[at] += [np.bincount(cells, row, n_cells) for row in slopes[own]]
        scores.append(np.zeros((n_blocks, layout.size)))
        scores[-1][:, at] = np.transpose([np.bincount(block, k * z, n_blocks) for k in slopes[own]])
    if not z_sums:
        return None
    # The fit has adjusted the free parameters.
    score, free = np.concatenate(scores)[:, problem.free], problem.free
    normal, jacobian = normal[np.ix_(free, free)], jacobian[free]
    norms = np.sqrt(np.maximum(np.diag(normal), np.finfo(float).tiny))
    inverse = np.linalg.pinv(normal / np.outer(norms, norms), rcond=1e-10, hermitian=True)
    inverse /= np.outer(norms, norms)
    h = np.concatenate(z_sums) - score @ inverse @ jacobian
    shared = int(free[2 * layout.n_scales :].sum()) + (2 if layout.scaling == "constant" else 0)
    return *_statistics(h, np.concatenate(counts), shared), edges


def _rows_to_read(shape: tuple[int, int, int], frames: NDArray[np.bool_]) -> Indices:
    """Return rows of used frames, evenly spread; all of them if they are few."""
    n_phi, n, _ = shape
    used = np.flatnonzero(frames)
    count = min(len(used), max(_LEAST_ROWS, _POINTS // (n_phi * n)))
    chosen: Indices = used[np.linspace(0, len(used) - 1, count).round().astype(np.intp)]
    return chosen


def _pairs(
    rows: Indices, frames: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], Indices, Indices, Indices, Indices]:
    """Return the points of the rows that are read, each pair of frames once.

    Returns a mask of these points in the flattened rows, their frames (first < second), the indices
    age * (bins of the lag) + bin of their averages, and the edges of the bins in frames.
    """
    n = len(frames)
    edges = [1]
    while edges[-1] < n:
        edges.append(max(edges[-1] + 1, round(edges[-1] * _RATIO)))
    edges[-1] = n
    row, column = np.repeat(rows, n), np.tile(np.arange(n), len(rows))
    is_row = np.zeros(n, bool)
    is_row[rows] = True
    # A point left of the diagonal is skipped if its mirror image is in another row.
    mask = ((column > row) | ((column < row) & ~is_row[column])) & frames[column]
    row, column = row[mask], column[mask]
    first, second = np.minimum(row, column), np.maximum(row, column)
    bins = np.searchsorted(edges, np.arange(n), side="right") - 1
    age = _AGES * (first + second) // (2 * n - 1)
    return mask, first, second, age * (len(edges) - 1) + bins[second - first], np.asarray(edges)


def _jacobian(
    problem: FitProblem,
    tables: Sequence[Array],
    i: Indices,
    j: Indices,
    contrast: float,
    free: NDArray[np.bool_],
) -> Array:
    """Return the derivatives [2 + p, points] of g2 by contrast, offset and free physics."""
    A, X, along_A, along_X = tables
    model = problem.model
    jacobian = np.zeros((2 + len(free), len(i)))
    jacobian[1] = 1.0
    jacobian[0], *slopes = correlation_slopes(A[j] - A[i], X[j] - X[i], model.shear_power)
    columns = model.columns_A, model.columns_X
    for slope, rows, indices in zip(slopes, (along_A, along_X), columns, strict=True):
        for row, column in zip(rows, indices, strict=True):
            if free[column]:
                jacobian[2 + column] += contrast * slope * (row[j] - row[i])
    return jacobian


def _blocks(A: Array, X: Array, shear_power: int) -> Indices:
    """Return the index of the block of each frame [n]."""
    starts, n = [0], len(A)
    while True:
        start, later = starts[-1], np.arange(min(starts[-1] + _LEAST_FRAMES, n), n)
        remaining = correlation(A[later] - A[start], X[later] - X[start], shear_power)
        decayed = np.flatnonzero(remaining <= _MAX_CORRELATION)
        if not decayed.size:
            # The frames after the last start are too few for a block, and join the previous one.
            return np.searchsorted(starts[1:-1], np.arange(n), side="right")
        starts.append(int(later[decayed[0]]))


def _statistics(h: Array, count: Array, shared: int) -> tuple[Array, Array, Array]:
    """Return `_averages` from sums [parts, ages * bins]; t is 0 with too few degrees of freedom."""
    from scipy.special import stdtrit

    # From sums over ages to weighted ones [parts, degree, bins].
    weights = np.polynomial.legendre.legvander((np.arange(_AGES) + 0.5) / _AGES * 2 - 1, 2).T
    h, count = (
        np.einsum("da,uab->udb", w, v.reshape(len(v), _AGES, -1))
        for w, v in ((weights, h), (weights**2, count))
    )
    total, points = h.sum(0), count.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = count / points
        n_effective = np.nan_to_num(1.0 / (weight**2).sum(0))
        freedom = n_effective - 1 - shared
        variance = ((h - weight * total) ** 2).sum(0) * n_effective / freedom * _WIDER
        t, mean = total / np.sqrt(variance), total / points
    usable = (freedom >= _LEAST_FREEDOM) & np.isfinite(t)
    levels = np.array(LEVELS) / np.maximum(usable.sum(1), 1)
    limit = -stdtrit(np.where(usable, freedom, 1.0), levels[:, None] / 2)
    return np.where(usable, t, 0.0), np.where(usable, mean, 0.0), limit
