"""The second check of a fit: residuals averaged by lag and age must be compatible with noise.

A misfit of a few percent is far below the noise of single points, and far above the noise of an
average over thousands of them. The residuals are averaged in logarithmic bins of the lag with three
weights: 1, one that rises with the age from -1 to 1, and one that contrasts the middle of the run
with its ends (Legendre polynomials). The standard error of an average is estimated from the scatter
between independent parts of the data. A part is a block of frames t1 at one angle. The fitted model
decays within a block, because the noise of speckles is correlated over that time.

The fit has already adjusted its parameters to the noise. With the sums H = J^T J, s_u = the share
of part u in J^T z, and J_c of the weighted Jacobian for average c, part u changes the weighted sum
of the residuals z by

    h[u, c] = (weighted sum of z over the points of u) - J_c H^-1 s_u.

t[c] = sum_u h[u, c] in units of its standard error is compared with Student's t distribution. The
degrees of freedom are the effective number of parts, less one and the shared parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import FitProblem
from jaxkern.xpcs.fitting.parameters import FitLayout
from jaxkern.xpcs.fitting.passes import (
    MAX_VALUE,
    PassPoint,
    correlation,
    correlation_slopes,
)
from jaxkern.xpcs.fitting.sampling import rows_of_angle
from jaxkern.xpcs.model.models import Geometry

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


@dataclass(frozen=True)
class Cell:
    """An average of residuals."""

    lags: tuple[int, int]  # the first and the last lag, in frames
    # Degree of the weight as a polynomial in the age: 0 for the mean, 1 for a trend, 2 for the
    # middle of the run.
    degree: int
    mean: float  # the average of the residuals, in units of sigma
    t: float  # the average in units of its standard error
    limit: float  # largest |t| that is compatible with noise

    @property
    def excess(self) -> float:
        return abs(self.t) / self.limit


def misfit(cells: Sequence[Cell], geometry: Geometry, floor: float) -> str | None:
    """Return the reason that averages are not noise, with the worst lags and ages, or None."""
    outliers = [cell for cell in cells if cell.excess > 1.0 and abs(cell.mean) > floor]
    if not outliers:
        return None
    outliers.sort(key=lambda cell: -cell.excess)
    begin, end = float(geometry.t[0]), float(geometry.t[-1])
    weights = (
        f"mean over the ages {begin:.3g} to {end:.3g} s",
        f"rise from the age {begin:.3g} s to {end:.3g} s",
        f"rise from the age {(begin + end) / 2:.3g} s to both ends of the run",
    )

    def describe(cell: Cell) -> str:
        first, last = (geometry.dt * lag for lag in cell.lags)
        lags = f"lag {first:.3g} s" if first == last else f"lags {first:.3g} to {last:.3g} s"
        return f"{lags}, {weights[cell.degree]}: {cell.t:+.3g} (at most {cell.limit:.3g})"

    return (
        "the residuals averaged by lag and age are not noise, so the model does not describe the "
        f"data: in standard errors, {'; '.join(map(describe, outliers[:4]))}. Plot the cuts along "
        "the lag, and try other models or starts"
    )


def averages(
    problem: FitProblem, tables: tuple[Array, Array, Array, Array], point: PassPoint
) -> list[Cell]:
    """Read some rows of the data and return the averages of their residuals."""
    data, sigma, shear_power = problem.data, problem.noise.sigma, problem.model.shear_power
    A, X, along_A, along_X = tables
    if A.ndim == 1:
        A, along_A = A[None], along_A[None]
    rows = _rows_to_read(data.shape, data.frames)
    pairs = _Pairs.from_rows(rows, data.frames)
    free = problem.free[-len(point.physics) :]
    parts = []
    for angle in range(data.shape[0]):
        measured = rows_of_angle(data.source, angle, rows)
        if isinstance(sigma, np.ndarray):
            noise = np.broadcast_to(sigma[angle], measured.shape)
        else:
            noise = rows_of_angle(sigma, angle, rows)
        z, noise = measured.ravel()[pairs.mask], noise.ravel()[pairs.mask]
        good = np.isfinite(z) & np.isfinite(noise) & (noise > 1e-10)
        if not good.any():
            continue
        noise = noise[good]
        i, j = pairs.first[good], pairs.second[good]
        of_angle = [table[angle if len(table) > 1 else 0] for table in (A, X, along_A, along_X)]
        jacobian = _jacobian(problem, of_angle, i, j, float(point.contrast[angle]), free)
        fitted = point.offset[angle] + point.contrast[angle] * jacobian[0]
        jacobian /= noise
        # The squares of huge numbers, as of a flipped bit, must not overflow.
        z = np.clip((z[good] - fitted) / noise, -MAX_VALUE, MAX_VALUE)
        if problem.solver.loss != "linear":
            cut = _CUT * 1.4826 * float(np.median(np.abs(z)))
            z = np.clip(z, -cut, cut)
        unit = _blocks(of_angle[0], of_angle[1], shear_power)[i]
        parts.append(
            _AnglePart.from_points(angle, z, jacobian, unit, pairs.cell[good], pairs.n_cells)
        )
    return _cells(parts, problem.layout, problem.free, pairs.edges) if parts else []


def _rows_to_read(shape: tuple[int, int, int], frames: NDArray[np.bool_]) -> Indices:
    """Return rows of used frames, evenly spread; all of them if they are few."""
    n_phi, n, _ = shape
    used = np.flatnonzero(frames)
    count = min(len(used), max(_LEAST_ROWS, _POINTS // (n_phi * n)))
    chosen: Indices = used[np.linspace(0, len(used) - 1, count).round().astype(np.intp)]
    return chosen


@dataclass(frozen=True)
class _Pairs:
    """The points of the rows that are read, each pair of frames once."""

    mask: NDArray[np.bool_]  # True for these points in the flattened rows
    first: Indices  # the frames, first < second
    second: Indices
    cell: Indices  # index of the average, age * (bins of the lag) + bin
    edges: Indices  # of the bins of the lag, in frames

    @property
    def n_cells(self) -> int:
        return _AGES * (len(self.edges) - 1)

    @classmethod
    def from_rows(cls, rows: Indices, frames: NDArray[np.bool_]) -> _Pairs:
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
        cell = age * (len(edges) - 1) + bins[second - first]
        return cls(mask, first, second, cell, np.asarray(edges))


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


@dataclass(frozen=True)
class _AnglePart:
    """Sums of one angle."""

    angle: int
    z: Array  # sums of residuals over ages and lags [blocks, cells]; count: of points
    count: Array
    jacobian: Array  # sums [2 + p, cells]
    scores: Array  # J^T z [blocks, 2 + p]
    normal: Array  # J^T J [2 + p, 2 + p]

    @classmethod
    def from_points(
        cls, angle: int, z: Array, jacobian: Array, unit: Indices, cell: Indices, cells: int
    ) -> _AnglePart:
        units = int(unit.max()) + 1
        shape, index = (units, cells), unit * cells + cell
        return cls(
            angle,
            np.bincount(index, z, minlength=units * cells).astype(np.float64).reshape(shape),
            np.bincount(index, minlength=units * cells).reshape(shape).astype(np.float64),
            np.stack([np.bincount(cell, row, minlength=cells) for row in jacobian]),
            np.stack([np.bincount(unit, row * z, minlength=units) for row in jacobian], axis=1),
            jacobian @ jacobian.T,
        )


def _cells(
    parts: Sequence[_AnglePart], layout: FitLayout, free: NDArray[np.bool_], edges: Indices
) -> list[Cell]:
    """Return the averages over all angles that have enough degrees of freedom."""
    from scipy.special import stdtrit

    p, scales = len(layout.physics_names), layout.n_scales
    normal = np.zeros((layout.size, layout.size))
    jacobian = np.zeros((layout.size, parts[0].jacobian.shape[1]))
    gradients = []
    for part in parts:
        # Indices of an angle's contrast, offset and physics among all parameters.
        pair = [] if scales == 0 else [part.angle % scales, scales + part.angle % scales]
        at, used = [*pair, *range(2 * scales, 2 * scales + p)], slice(0 if pair else 2, None)
        normal[np.ix_(at, at)] += part.normal[used, used]
        jacobian[at] += part.jacobian[used]
        gradient = np.zeros((len(part.scores), layout.size))
        gradient[:, at] = part.scores[:, used]
        gradients.append(gradient)
    scores = np.concatenate(gradients)[:, free]
    normal, jacobian = normal[np.ix_(free, free)], jacobian[free]
    norms = np.sqrt(np.maximum(np.diag(normal), np.finfo(float).tiny))
    inverse = np.linalg.pinv(normal / np.outer(norms, norms), rcond=1e-10, hermitian=True)
    inverse /= np.outer(norms, norms)
    h = np.concatenate([part.z for part in parts]) - scores @ inverse @ jacobian
    count = np.concatenate([part.count for part in parts])
    # From sums over ages to weighted ones [parts, degree, bins].
    weights = np.polynomial.legendre.legvander((np.arange(_AGES) + 0.5) / _AGES * 2 - 1, 2).T
    h, count = (
        np.einsum("da,uab->udb", w, v.reshape(len(v), _AGES, -1))
        for w, v in ((weights, h), (weights**2, count))
    )
    shared = int(free[2 * scales :].sum()) + (2 if layout.scaling == "constant" else 0)
    total, points = h.sum(0), count.sum(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        weight = count / points
        n_effective = np.nan_to_num(1.0 / (weight**2).sum(0))
        freedom = n_effective - 1 - shared
        variance = ((h - weight * total) ** 2).sum(0) * n_effective / freedom * _WIDER
        t, mean = total / np.sqrt(variance), total / points
    usable = (freedom >= _LEAST_FREEDOM) & np.isfinite(t)
    levels = np.array(LEVELS) / np.maximum(usable.sum(1), 1)
    return [
        Cell(
            lags=(int(edges[b]), int(edges[b + 1]) - 1),
            degree=int(d),
            mean=float(mean[d, b]),
            t=float(t[d, b]),
            limit=float(-stdtrit(freedom[d, b], levels[d] / 2)),
        )
        for d, b in np.argwhere(usable)
    ]
