"""A search for the flow direction in which a fit starts, on thinned data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import FitProblem
from jaxkern.xpcs.fitting.passes import MAX_VALUE
from jaxkern.xpcs.fitting.sampling import sigma_rows
from jaxkern.xpcs.fitting.solver import NormalPoint, compress, solve

Array = NDArray[np.float64]

# Number of evenly spaced directions, and of passes over the thinned data from each.
_DIRECTIONS, _PASSES = 4, 12
# Largest number of thinned points of all angles; the minimum number of bands may exceed it.
_POINTS, _LEAST_BANDS = 2000, 8
_LAGS_PER_DECADE = 8
# Another direction must lower chi2 by this multiple of chi2 a degree of freedom: 5 sigma squared.
_EVIDENCE = 25.0


def best_direction(start: Array, problem: FitProblem) -> Array:
    """Return the start [p], with other physics if another flow direction fits far better.

    From the wrong direction a fit ends without shear, or at a bound. Unless the start's direction
    fits thinned data better than the others by more than the first step would gain, these are
    fitted from each direction. The start moves to the fit from its own direction, if that turned
    away, or to another one that is better by five standard deviations of chi2.
    """
    layout, bounds, free = problem.layout, problem.bounds, problem.free
    physics = slice(2 * layout.n_scales, layout.size)
    periodic = np.flatnonzero(bounds.unbound & free)
    if not periodic.size or layout.n_phi < 2:
        return start
    moving, index = free[physics], int(periodic[0])
    thinned = _ThinnedProblem(problem, start[physics], moving)
    starts = np.tile(start, (_DIRECTIONS, 1))
    starts[:, index] += bounds.period[index] / _DIRECTIONS * np.arange(_DIRECTIONS)
    starts = starts[:, physics][:, moving]
    points = [thinned(x) for x in starts]
    costs = np.array([point.cost if point.is_finite() else np.inf for point in points])
    if not np.isfinite(costs[0]):
        return start  # the fit reports it
    step = compress(points[0])[0][:-1]
    if costs[1:].min() - costs[0] > step @ step:
        return start
    options: Any = {"ftol": 1e-3, "xtol": 1e-3, "max_nfev": _PASSES}
    options["bounds"] = tuple(bound[physics][moving] for bound in bounds.solver)
    finite = [x for x, cost in zip(starts, costs, strict=True) if cost < np.inf]
    solutions = [s for s in (solve(thinned, x, **options) for x in finite) if s is not None]
    own, best = solutions[0], min(solutions, key=lambda solution: solution.cost)
    freedom = int((thinned.weights > 0).sum()) - len(best.x) - 2 * layout.n_phi
    if not own.cost - best.cost > _EVIDENCE * best.cost / max(freedom, 1):
        best = own
    # The full fit takes different steps, and may not converge to the direction found here.
    turned = abs(best.x - starts[0])[moving[: index - physics.start].sum()]
    if best is own and turned < 0.5 * bounds.period[index] / _DIRECTIONS:
        return start
    better = start.copy()
    better[np.flatnonzero(moving) + physics.start] = best.x
    return bounds.wrap(better)


class _ThinnedProblem:
    """The normal equations of sampled rows that are averaged over bins of the lag.

    Contrast and offset of each angle are eliminated: they are the least-squares solution for the
    physics. The m bins have the frames `rows` and `columns` [m], the means `values` [n_phi, m], and
    the `weights` [n_phi, m], 1 / sigma of the means, or 0 without points.
    """

    def __init__(self, problem: FitProblem, physics: Array, moving: NDArray[np.bool_]) -> None:
        """Average some of the sampled rows; the solver varies the physics [p] that are `moving`."""
        self._program, self._physics, self._moving = problem.program, physics.copy(), moving
        sample = problem.data.sample
        n_phi, n_rows, n = sample.values.shape
        edges = np.unique(np.geomspace(1, n, int(_LAGS_PER_DECADE * np.log10(n)) + 2).astype(int))
        bands = n_rows // 3
        chosen = min(bands, max(_LEAST_BANDS, _POINTS // (n_phi * len(edges))))
        middles = 3 * np.linspace(0, bands - 1, chosen).round().astype(int) + 1
        sigma = sigma_rows(problem.noise.sigma, sample.rows[middles])
        c2 = sample.values[:, middles]
        used = sample.good & (sample.rows[middles][:, None] != np.arange(n))
        used = used & (np.abs(c2) < MAX_VALUE) & (sigma > 1e-10) & np.isfinite(sigma)
        weight = np.where(used, sigma, np.inf) ** -2.0
        c2 = np.where(used, c2, 0.0)
        parts = []
        for k, row in enumerate(sample.rows[middles]):
            lag = np.arange(n) - row
            # The two sides of the diagonal have separate bins, because their ages differ.
            number = np.searchsorted(edges, np.abs(lag), side="right") * np.where(lag < 0, -1, 1)
            starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
            total = np.add.reduceat(weight[:, k], starts, axis=1)
            mean = np.add.reduceat(weight[:, k] * c2[:, k], starts, axis=1)
            columns = (starts + np.append(starts[1:], n) - 1) // 2
            parts.append((np.full(len(starts), row), columns, total, mean))
        self.rows, self.columns, total, mean = (
            np.concatenate(part, axis=-1) for part in zip(*parts, strict=True)
        )
        self.values, self.weights = mean / np.where(total > 0, total, 1.0), np.sqrt(total)

    def __call__(self, x: Array) -> NormalPoint:
        self._physics[self._moving] = x
        with np.errstate(all="ignore"):
            f, slopes = self._correlation()
        if not (np.isfinite(f).all() and np.isfinite(slopes).all()):
            return NormalPoint(np.eye(len(x)), np.zeros(len(x)), np.inf)
        weight = self.weights
        f, slopes, target = f * weight, slopes * weight[:, None], self.values * weight
        # Solve for contrast and offset by least squares; project f and 1 out of r and slopes.
        basis = np.stack([f, weight], axis=1)
        gram = basis @ basis.transpose(0, 2, 1)
        inverse = np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
        scales = inverse @ (basis @ target[..., None])  # [n_phi, 2, 1]
        r = target - (scales.transpose(0, 2, 1) @ basis)[:, 0]
        slopes *= scales[:, :1]
        slopes -= (slopes @ basis.transpose(0, 2, 1)) @ inverse @ basis
        jacobian = np.moveaxis(slopes, 1, 2).reshape(-1, slopes.shape[1])[:, self._moving]
        flat = r.ravel()
        return NormalPoint(jacobian.T @ jacobian, jacobian.T @ flat, float(flat @ flat))

    def _correlation(self) -> tuple[Array, Array]:
        """Return g1^2 [n_phi, m] of the points, and its derivatives [n_phi, p, m]."""
        tables, n_phi = self._program.host_tables(self._physics), len(self.values)
        f, slopes = tables.correlation_slopes(self.columns, self.rows)
        shape = n_phi, *slopes.shape[1:]
        return np.broadcast_to(f, self.values.shape), np.broadcast_to(slopes, shape)
