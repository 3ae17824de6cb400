"""The direction that a fit starts in: a search over thinned data, cheap beside one pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.noise import Noise
from jaxkern.xpcs.fitting.parameters import FitLayout, Turns
from jaxkern.xpcs.fitting.pass_program import PassProgram
from jaxkern.xpcs.fitting.solver import NormalPoint, compress, solve
from jaxkern.xpcs.fitting.starting import RowSample, rows_of
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]

# Directions of the search, evenly over a period, and passes over the thinned data from each.
_DIRECTIONS, _PASSES = 4, 12
# Points of the thinned data of all angles, at most, but no fewer bands of rows than this.
_POINTS, _LEAST_BANDS = 2000, 8
_LAGS_PER_DECADE = 8
# Another direction is taken where chi2 a degree of freedom says so by this many sigma, squared.
_EVIDENCE = 25.0
# What is larger was never measured, and its square may overflow.
_NO_NUMBER = 1e100


def best_direction(
    start: Array,
    layout: FitLayout,
    turns: Turns,
    free: NDArray[np.bool_],
    sample: RowSample,
    noise: Noise,
    model: Model,
    program: PassProgram,
) -> Array:
    """The start [p], with other physics where a flow in another direction fits far better.

    From the wrong direction a fit ends without shear, or at a bound. So sampled rows, averaged over
    bins of the lag, are compared with the model in directions evenly spread over the period, with
    contrast and offset that follow linearly. Where the start's own direction is better than the
    others by more than the first step of its fit would gain, it is right. Otherwise these few
    points are fitted from each direction: from the start's own unless another fit is better by five
    standard deviations of chi2. The start moves to that fit if it is another one, or turned away.
    """
    physics = slice(2 * layout.n_scales, layout.size)
    around = np.flatnonzero(turns.free & free)
    if not around.size or layout.n_phi < 2:
        return start
    moving, place = free[physics], int(around[0])
    thinned = _Thinned.of(sample, noise, model, program, start[physics], moving)
    starts = np.tile(start, (_DIRECTIONS, 1))
    starts[:, place] += turns.period[place] / _DIRECTIONS * np.arange(_DIRECTIONS)
    starts = starts[:, physics][:, moving]
    points = [thinned(x) for x in starts]
    costs = np.array([point.cost if point.is_finite() else np.inf for point in points])
    if not np.isfinite(costs[0]):
        return start  # the fit itself tells
    step = compress(points[0])[0][:-1]
    if costs[1:].min() - costs[0] > step @ step:
        return start
    lower, upper = (bound[physics][moving] for bound in turns.bounds())
    how: Any = {"lower": lower, "upper": upper, "ftol": 1e-3, "xtol": 1e-3, "max_nfev": _PASSES}
    found = [
        solve(thinned, x, **how) for x, cost in zip(starts, costs, strict=True) if cost < np.inf
    ]
    own, best = found[0], min(found, key=lambda solution: solution.point.cost)
    freedom = thinned.points - len(best.x) - 2 * layout.n_phi
    if not own.point.cost - best.point.cost > _EVIDENCE * best.point.cost / max(freedom, 1):
        best = own
    # The full fit has other steps, and may not come round as these points did.
    moved = abs(best.x - starts[0])[moving[: place - physics.start].sum()]
    if best is own and moved < 0.5 * turns.period[place] / _DIRECTIONS:
        return start
    better = start.copy()
    better[np.flatnonzero(moving) + physics.start] = best.x
    return turns.wrap(better)


@dataclass
class _Thinned:
    """The sampled rows averaged over bins of the lag, and J^T J, J^T r and chi2 of them.

    Contrast and offset of each angle are the best ones for given physics: they are projected out.
    """

    model: Model
    program: PassProgram
    rows: NDArray[np.intp]  # [m] of each bin's pair of frames, as are the columns
    columns: NDArray[np.intp]
    values: Array  # [n_phi, m]
    weights: Array  # [n_phi, m]: 1 / sigma of the mean, 0 where nothing counts
    physics: Array  # [p], of which the `moving` ones [p] are the solver's
    moving: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        sample: RowSample,
        noise: Noise,
        model: Model,
        program: PassProgram,
        physics: Array,
        moving: NDArray[np.bool_],
    ) -> _Thinned:
        """Averages rows of the sample; fewer of them where there are many angles."""
        n_phi, n_rows, n = sample.values.shape
        edges = np.unique(np.geomspace(1, n, int(_LAGS_PER_DECADE * np.log10(n)) + 2).astype(int))
        bands = n_rows // 3
        chosen = min(bands, max(_LEAST_BANDS, _POINTS // (n_phi * len(edges))))
        middles = 3 * np.linspace(0, bands - 1, chosen).round().astype(int) + 1
        sigma = noise.sigma if isinstance(noise.sigma, np.ndarray) else None
        if sigma is None:
            sigma = rows_of(noise.sigma, sample.rows[middles])
        else:
            sigma = np.broadcast_to(sigma[:, None, None], (n_phi, chosen, n))
        found = sample.values[:, middles]
        counts = sample.good & (sample.rows[middles][:, None] != np.arange(n))
        counts = counts & (np.abs(found) < _NO_NUMBER) & (sigma > 1e-10) & np.isfinite(sigma)
        weight = np.where(counts, sigma, np.inf) ** -2.0
        found = np.where(counts, found, 0.0)
        parts = []
        for k, row in enumerate(sample.rows[middles]):
            lag = np.arange(n) - row
            # Bins of either side of the diagonal: their ages differ.
            number = np.searchsorted(edges, np.abs(lag), side="right") * np.where(lag < 0, -1, 1)
            starts = np.flatnonzero(np.diff(number, prepend=number[0] - 1))
            total = np.add.reduceat(weight[:, k], starts, axis=1)
            mean = np.add.reduceat(weight[:, k] * found[:, k], starts, axis=1)
            columns = (starts + np.append(starts[1:], n) - 1) // 2
            parts.append((np.full(len(starts), row), columns, total, mean))
        rows, columns, total, mean = (
            np.concatenate([part[k] for part in parts], axis=-1) for k in range(4)
        )
        value = mean / np.where(total > 0, total, 1.0)
        return cls(model, program, rows, columns, value, np.sqrt(total), physics.copy(), moving)

    @property
    def points(self) -> int:
        return int((self.weights > 0).sum())

    def __call__(self, x: Array) -> NormalPoint:
        self.physics[self.moving] = x
        with np.errstate(all="ignore"):
            f, slopes = self._correlation()
        if not (np.isfinite(f).all() and np.isfinite(slopes).all()):
            return NormalPoint(np.eye(len(x)), np.zeros(len(x)), np.inf)
        weight = self.weights
        f, slopes, target = f * weight, slopes * weight[:, None], self.values * weight
        # Contrast and offset are the least squares of f and 1; r and the slopes lose their part.
        basis = np.stack([f, weight], axis=1)
        gram = basis @ basis.transpose(0, 2, 1)
        inverse = np.linalg.pinv(gram, rcond=1e-10, hermitian=True)
        scales = inverse @ (basis @ target[..., None])  # [n_phi, 2, 1]
        r = target - (scales.transpose(0, 2, 1) @ basis)[:, 0]
        slopes *= scales[:, :1]
        slopes -= (slopes @ basis.transpose(0, 2, 1)) @ inverse @ basis
        jacobian = np.moveaxis(slopes, 1, 2).reshape(-1, slopes.shape[1])[:, self.moving]
        flat = r.ravel()
        return NormalPoint(jacobian.T @ jacobian, jacobian.T @ flat, float(flat @ flat))

    def _correlation(self) -> tuple[Array, Array]:
        """g1^2 [n_phi, m] of the points, and its slopes [n_phi, p, m] by the physics."""
        model, tables = self.model, self.program.tables_at(self.physics)
        dA, dX, slope_A, slope_X = (
            table[..., self.columns] - table[..., self.rows] for table in map(np.asarray, tables)
        )
        power = model.shear_power
        sinc = np.sinc(dX / np.pi)
        flow = sinc**power
        f = np.broadcast_to(np.exp(-2.0 * np.abs(dA)) * flow, self.values.shape)
        slopes = np.zeros((len(f), len(model.parameters), f.shape[1]))
        by_A = -2.0 * np.sign(dA) * f
        slopes[:, list(model.columns_A)] += by_A[:, None] * slope_A
        if power:
            small = np.abs(dX) < 1e-4
            x = np.where(small, 1.0, dX)
            derivative = np.where(small, -dX / 3.0, (np.cos(x) - sinc) / x)
            by_X = np.exp(-2.0 * np.abs(dA)) * power * sinc ** (power - 1) * derivative
            slopes[:, list(model.columns_X)] += by_X[:, None] * slope_X
        return f, slopes
