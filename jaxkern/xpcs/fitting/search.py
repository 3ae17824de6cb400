"""A search for the starts of a fit, on thinned data.

From a distant start a trust region may end in a poor minimum, or at a bound. A pass over a
thousandth of the data costs almost nothing, so many starts are compared there, and the best ones
are fitted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.evaluation import EVIDENCE, FitProblem
from jaxkern.xpcs.fitting.parameters import PeriodicBounds, spread
from jaxkern.xpcs.fitting.passes import MAX_VALUE, HostTables
from jaxkern.xpcs.fitting.sampling import sigma_rows
from jaxkern.xpcs.fitting.solver import NormalPoint, Solution, StartNotFinite, compress, solve
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]

Search = Literal["auto", "local", "wide"]

# Largest number of thinned points of all angles; the minimum number of bands may exceed it.
_POINTS, _LEAST_BANDS = 2000, 8
_LAGS_PER_DECADE = 8
# Points whose phases are computed in one call.
_CHUNK = 64
# Passes of a short fit.
_SHORT = 6
# Range of the phases that a drawn power law adds over n_t frames: this value to n_t.
_LEAST_PHASE = 0.2
# Number of evenly spaced flow directions.
_DIRECTIONS = 4
# With a chi2 above this multiple of the degrees of freedom, more starts are fitted.
_POOR = 3.0
# Minima of thinned data are fitted to all data if their chi2 exceeds the lowest one by less than
# this multiple of chi2 a degree of freedom: bins of the lag make larger errors than noise.
_DOUBT = 100.0


@dataclass(frozen=True)
class Effort:
    """Numbers of starts and fits."""

    drawn: int  # starts within the bounds, for each varied parameter
    short: int  # fits to thinned data of a few passes, from the best starts
    thinned: int  # the best of these that continue, with at most `passes` passes
    thinned_if_poor: int  # the same while no fit is good
    full: int  # fits to all data
    passes: int


EFFORTS = {
    "local": Effort(0, 0, _DIRECTIONS, _DIRECTIONS, 1, 12),
    "auto": Effort(192, 24, 4, 10, 4, 30),
    "wide": Effort(2048, 200, 48, 128, 6, 80),
}


def find_starts(start: Array, problem: FitProblem, effort: Effort) -> tuple[list[Array], str]:
    """Return starts [p] of fits to all data, the most promising first, and what was tried.

    The candidates are the given start, the same in other flow directions, because from a wrong one
    a fit ends without shear, and points that fill the bounds evenly. Those with the lowest chi2 are
    fitted to thinned data, and from the best minimum the model's `alternatives`. The minimum of the
    given start remains the first unless another one is better by five standard deviations of chi2;
    others that may be better in all data follow.
    """
    layout, bounds, free = problem.layout, problem.bounds, problem.free
    physics = slice(2 * layout.n_scales, layout.size)
    moving = free[physics]
    periodic = np.flatnonzero(bounds.unbound & free) if layout.n_phi > 1 else free[:0]
    if not moving.any() or not (effort.drawn or periodic.size):
        return [start], "the start"
    thinned = _ThinnedProblem(problem, start[physics], moving)
    turned = np.tile(start, (_DIRECTIONS if periodic.size else 1, 1))
    if periodic.size:
        turned[:, periodic[0]] += bounds.period[periodic[0]] / _DIRECTIONS * np.arange(len(turned))
    cube = _even_points(effort.drawn * int(moving.sum()), int(moving.sum()))
    drawn = spread(cube, start, bounds, layout, free)
    _scale_by_effect(drawn[:, physics], cube, moving, problem.model, bounds, physics)
    candidates = np.concatenate([turned, drawn])[:, physics][:, moving]
    costs = thinned.costs(candidates)
    first = thinned(candidates[0])
    if not first.is_finite():
        return [start], "the start"  # the fit reports it
    step = compress(first)[0][:-1]
    if not effort.drawn and costs[1:].min() - costs[0] > step @ step:
        return [start], "the start"  # the first step gains more than other directions
    order = [0, *(k for k in np.argsort(costs, kind="stable") if k and np.isfinite(costs[k]))]
    options: Any = {"ftol": 1e-4, "xtol": 1e-4}
    options["bounds"] = tuple(bound[physics][moving] for bound in bounds.solver)
    freedom = int((thinned.weights > 0).sum()) - int(moving.sum()) - 2 * layout.n_phi

    def fitted(points: Any, passes: int) -> Iterator[Solution]:
        for x in points:
            # A model may be finite where its derivatives are not.
            with contextlib.suppress(StartNotFinite):
                solution = solve(thinned, x, max_nfev=passes, **options)
                assert solution is not None
                yield solution

    points = list(candidates[order[: effort.short or None]])
    n_fits = len(points) if effort.short else 0
    if effort.short:
        own, *others = fitted(points, _SHORT)
        others.sort(key=lambda solution: solution.cost)
        points = [solution.x for solution in (own, *others)]
    solutions: list[Solution] = []
    for solution in fitted(points[: effort.thinned_if_poor], effort.passes):
        solutions.append(solution)
        good = min(s.cost for s in solutions) < _POOR * freedom
        if good and len(solutions) >= effort.thinned:
            break
    if effort.drawn:
        best = min(solutions, key=lambda solution: solution.cost)
        similar = problem.model.alternatives(thinned.full(best.x[None])[0])
        points = [np.clip(other[moving], *options["bounds"]) for other in similar]
        solutions += fitted(points, effort.passes)
    minima = _minima(solutions, freedom)[: effort.full]
    starts = []
    for minimum in minima:
        better = start.copy()
        better[np.flatnonzero(moving) + physics.start] = minimum.x
        starts.append(bounds.wrap(better))
    n_fits += len(solutions)
    text = f"{len(costs)} compared on thinned data, {n_fits} fitted there"
    own = solutions[0]
    if minima[0] is own and periodic.size and not effort.drawn:
        # The full fit takes other steps, and may not converge to the direction found here.
        turn = abs(own.x - candidates[0])[moving[: periodic[0] - physics.start].sum()]
        if turn < 0.5 * bounds.period[periodic[0]] / _DIRECTIONS:
            return [start], "the start"
    if problem.solver.loss != "linear" and effort.drawn:
        # Outliers, which the loss tolerates, can shift the minima of chi2.
        starts = [start, *starts[: effort.full - 1]]
    return starts, text


def _minima(solutions: list[Solution], freedom: int) -> list[Solution]:
    """Return the minima that may be the best one, without repetitions.

    The first solution, which is that of the user's start, has preference over others that are not
    significantly better.
    """
    best = min(solutions, key=lambda solution: solution.cost)
    unit = best.cost / max(freedom, 1)
    order = sorted(solutions, key=lambda solution: solution.cost)
    if solutions[0].cost - best.cost <= EVIDENCE * unit:
        order = [solutions[0], *(solution for solution in order if solution is not solutions[0])]
    minima: list[Solution] = []
    for solution in order:
        if solution.cost - best.cost > _DOUBT * unit:
            continue
        assert solution.point is not None
        jtj = solution.point.jtj
        steps = [solution.x - other.x for other in minima]
        # In units of chi2: the same minimum, if its quadratic form says so.
        if all(step @ jtj @ step > EVIDENCE * unit for step in steps):
            minima.append(solution)
    return minima


def _scale_by_effect(
    drawn: Array, cube: Array, moving: Any, model: Model, bounds: PeriodicBounds, physics: slice
) -> None:
    """Replace scales of power laws in drawn physics [k, p], and offsets in every second one by 0.

    Most values within the bounds are too small or too large for an effect on the data. The phases
    that those drawn here add over all frames are uniform in the logarithm.
    """
    geometry = model.geometry
    drawn[::2, [k for k in model.offsets if moving[k]]] = 0.0
    for k, factor in model.power_laws:
        if moving[k]:
            powers = geometry.times ** drawn[:, k + 1, None]
            least, column = _LEAST_PHASE, cube[:, np.count_nonzero(moving[:k])]
            phase = least * (geometry.n_t / least) ** column
            value = phase / (factor * geometry.dt * powers.sum(axis=1))
            drawn[:, k] = np.clip(value, bounds.lower[physics][k], bounds.upper[physics][k])


def _chunks(points: Array) -> list[Array]:
    """Return parts [64, p] of points [k, p], the last of which are repeated."""
    count = -(-len(points) // _CHUNK)
    padded = points[np.minimum(np.arange(count * _CHUNK), len(points) - 1)]
    return np.split(padded, count)


def _even_points(count: int, dimensions: int) -> Array:
    """Return a Latin hypercube [count, dimensions]: each coordinate takes `count` even values."""
    draw = np.random.default_rng(0)
    columns = [draw.permutation(count) for _ in range(dimensions)]
    return (np.stack(columns, axis=1) + 0.5) / max(count, 1)


class _ThinnedProblem:
    """The normal equations of sampled rows that are averaged over bins of the lag.

    Contrast and offset of each angle are eliminated: they are the least-squares solution for the
    physics. The m bins have the frames `rows` and `columns` [m], the means `values` [n_phi, m], and
    the `weights` [n_phi, m], 1 / sigma of the means, or 0 without points.
    """

    def __init__(self, problem: FitProblem, physics: Array, moving: NDArray[np.bool_]) -> None:
        """Average some of the sampled rows; the solver varies the physics [p] that are `moving`."""
        self._program, self._physics, self.moving = problem.program, physics.copy(), moving
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
        tables, weight = self._tables(x), self.weights
        with np.errstate(all="ignore"):
            f, slopes = tables.correlation_slopes(self.columns, self.rows)
        if not (np.isfinite(f).all() and np.isfinite(slopes).all()):
            return NormalPoint(np.eye(len(x)), np.zeros(len(x)), np.inf)
        r, basis, inverse, scales = self._project(f)
        shape = len(weight), *slopes.shape[1:]
        slopes = np.broadcast_to(slopes, shape) * weight[:, None] * scales[:, :1]
        slopes -= (slopes @ basis.transpose(0, 2, 1)) @ inverse @ basis
        jacobian = np.moveaxis(slopes, 1, 2).reshape(-1, slopes.shape[1])[:, self.moving]
        flat = r.ravel()
        return NormalPoint(jacobian.T @ jacobian, jacobian.T @ flat, float(flat @ flat))

    def costs(self, points: Array) -> Array:
        """Return chi2 at points [k, m], or infinity where the model is not finite.

        Contrasts are at least 0.
        """
        frames, index = np.unique([self.columns, self.rows], return_inverse=True)
        w, y = self.weights**2, self.values
        total = np.maximum(w.sum(-1), 1e-300)
        y = y - ((w * y).sum(-1) / total)[:, None]
        costs = []
        for part in _chunks(self.full(points)):
            with np.errstate(all="ignore"):
                f = self._program.phases(part, frames).correlation(*index.reshape(2, -1))
                f = f - ((w * f).sum(-1) / total)[..., None]
                norm = np.maximum((w * f * f).sum(-1), 1e-300)
                gain = np.maximum((w * f * y).sum(-1), 0.0) ** 2 / norm
            cost = ((w * y * y).sum(-1) - gain).sum(-1)
            costs.append(np.where(np.isfinite(cost), cost, np.inf))
        return np.concatenate(costs)[: len(points)]

    def full(self, points: Array) -> Array:
        """Return the physics [k, p] of points [k, m]."""
        physics = np.tile(self._physics, (len(points), 1))
        physics[:, self.moving] = points
        return physics

    def _tables(self, x: Array) -> HostTables:
        self._physics[self.moving] = x
        return self._program.host_tables(self._physics)

    def _project(self, f: Array) -> tuple[Array, Array, Array, Array]:
        """Solve for contrast and offset by least squares, [n_phi, 2, 1].

        Returns the residuals, f and 1 with their weights, the inverse of the normal equations, and
        the solution.
        """
        weight = self.weights
        basis = np.stack([f * weight, weight], axis=1)
        inverse = np.linalg.pinv(basis @ basis.transpose(0, 2, 1), rcond=1e-10, hermitian=True)
        target = self.values * weight
        scales = inverse @ (basis @ target[..., None])
        return target - (scales.transpose(0, 2, 1) @ basis)[:, 0], basis, inverse, scales
