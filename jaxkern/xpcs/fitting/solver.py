"""Least squares from normal equations alone: SciPy's trust region on a compressed problem.

With R^T R = J^T J the small problem J_c = [R; 0], f_c = [-R^-T J^T r; sqrt(cost - |R^-T J^T r|^2)]
has the cost, gradient and Gauss-Newton matrix of the full one, so that
`scipy.optimize.least_squares` makes the same steps as with the full Jacobian.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NormalPoint:
    """Normal equations at one point, with r = (data - model) / sigma and J = d(model) / sigma."""

    jtj: Array  # J^T J [p, p]; for a robust loss with the weights rho'
    jtr: Array  # J^T r [p], with the same weights
    cost: float  # sum of r^2, or of rho for a robust loss
    # The sums by angle that these came from (`AngleSums`), if the caller needs them later.
    sums: Any = None

    def is_finite(self) -> bool:
        return bool(
            np.isfinite(self.cost) and np.isfinite(self.jtj).all() and np.isfinite(self.jtr).all()
        )


class StartNotFinite(ValueError):
    """A start at which the model or its derivatives are not finite."""


# The status of the best point of an unfinished solver: SciPy's for one stopped by its caller.
UNFINISHED = -2


@dataclass(frozen=True)
class Solution:
    """The point where the solver stopped, or the best one so far."""

    x: Array  # the free parameters [p]
    cost: float  # at x, as in `NormalPoint`
    status: int = UNFINISHED  # as in `scipy.optimize.least_squares`
    message: str = ""
    nfev: int = 0  # evaluated points
    costs: tuple[float, ...] = ()  # of these, in order
    # The normal equations at x; None for a solution that was read from a checkpoint.
    point: NormalPoint | None = None


def normalized(jtj: Array) -> tuple[Array, Array]:
    """Return jtj scaled to a unit diagonal, and the column norms (1 for a zero column)."""
    norms = np.sqrt(np.maximum(np.diag(jtj), 0.0))
    norms = np.where(norms > 0, norms, 1.0)
    return jtj / norms[:, None] / norms[None, :], norms


def rank_threshold(size: int) -> float:
    """Return the relative size of eigenvalues of the normalized J^T J that are rounding errors."""
    return 4.0 * size * float(np.finfo(np.float64).eps)


def compress(point: NormalPoint) -> tuple[Array, Array]:
    """Return f_c [p+1] and J_c [p+1, p] with the cost, gradient and Gauss-Newton matrix of a point.

    If J^T J is singular to rounding, eigenvectors replace the Cholesky factor, and directions that
    the data do not determine become zero rows.
    """
    size = len(point.jtr)
    # J^T J squares the condition number, so its columns are scaled to unit norm.
    scaled, norms = normalized(point.jtj)
    gradient = point.jtr / norms
    try:
        lower = np.linalg.cholesky(scaled)
        if np.diag(lower).min() ** 2 < rank_threshold(size):
            raise np.linalg.LinAlgError
        factor = lower.T
        head = -np.linalg.solve(lower, gradient)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh(scaled)
        significant = values > rank_threshold(size) * values[-1]
        root = np.sqrt(np.where(significant, values, 0.0))
        factor = root[:, None] * vectors.T
        head = -np.where(significant, vectors.T @ gradient, 0.0) / np.where(significant, root, 1.0)
    rest = max(point.cost - float(head @ head), 0.0)
    residual = np.append(head, np.sqrt(rest))
    jacobian = np.vstack([factor * norms, np.zeros((1, size))])
    return residual, jacobian


class _Stop(Exception):
    """Ends SciPy's solver, which cannot be stopped in another way before SciPy 1.16."""


def solve(
    evaluate: Callable[[Array], NormalPoint | None], x0: Array, **options: Any
) -> Solution | None:
    """Minimize cost / 2 from x0 [p]; None if `evaluate` returns None to stop.

    `options` are those of `scipy.optimize.least_squares`, such as bounds and ftol. SciPy evaluates
    the residual at a trial point, and the Jacobian only at the last trial point, after accepting
    it. Hence one evaluation serves both, and the point of the last Jacobian is the solution.
    """
    from scipy.optimize import least_squares

    trial: NormalPoint | None = None
    accepted: NormalPoint | None = None
    costs: list[float] = []

    def residual(x: Array) -> Array:
        nonlocal trial
        trial = evaluate(x.copy())
        if trial is None:
            raise _Stop
        costs.append(trial.cost)
        if trial.is_finite():
            return compress(trial)[0]
        if len(costs) == 1:
            raise StartNotFinite(
                f"start: expected finite model values, got the cost {trial.cost} at {x.tolist()}"
            )
        # SciPy shortens a step that leads to a residual that is not finite.
        return np.full(len(x) + 1, np.inf)

    def jacobian(_: Array) -> Array:
        nonlocal accepted
        assert trial is not None
        accepted = trial
        return compress(trial)[1]

    # The trust region moves a start at a bound inside, so the first point may differ from x0.
    options = {"method": "trf", "x_scale": "jac", **options}
    try:
        optimum: Any = least_squares(residual, np.array(x0, np.float64), jacobian, **options)
    except _Stop:
        return None
    assert accepted is not None
    end = optimum.x, accepted.cost, int(optimum.status), str(optimum.message)
    return Solution(*end, len(costs), tuple(costs), accepted)


@dataclass(frozen=True)
class Covariance:
    """(J^T J)^-1, and the directions that the data do not determine."""

    inverse: Array  # (J^T J)^-1 [p, p]; infinite for parameters that the data do not determine
    # For each direction without information, the indices of its parameters.
    tradeoffs: tuple[tuple[int, ...], ...]
    # Pairs of parameters with a |correlation| above 0.999, and the correlation.
    nearly: tuple[tuple[int, int, float], ...]


def covariance(jtj: Array, *, active: NDArray[np.bool_] | None = None) -> Covariance:
    """Invert J^T J [p, p], with zeros for parameters not `active`, and find null directions."""
    free = np.arange(len(jtj)) if active is None else np.flatnonzero(active)
    inverse = np.zeros(jtj.shape)
    if free.size == 0:
        return Covariance(inverse, (), ())
    unit, norms = normalized(jtj[np.ix_(free, free)])
    values, vectors = np.linalg.eigh(unit)
    null = values <= 10 * rank_threshold(len(free)) * max(values[-1], np.finfo(float).tiny)
    scaled = np.where(null, 0.0, 1.0 / np.where(null, 1.0, values))
    part = (vectors * scaled) @ vectors.T / norms[:, None] / norms[None, :]
    tradeoffs: list[tuple[int, ...]] = []
    for column in np.flatnonzero(null):
        weight = np.abs(vectors[:, column])
        members = np.flatnonzero(weight > 0.05 * weight.max())
        tradeoffs.append(tuple(free[members].tolist()))
        part[members, :] = part[:, members] = np.inf
    inverse[np.ix_(free, free)] = part
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt(np.diag(part))
        correlation = part / spread[:, None] / spread[None, :]
    nearly = tuple(
        (int(free[a]), int(free[b]), float(correlation[a, b]))
        for a, b in np.argwhere(np.triu(np.abs(correlation) > 0.999, 1))
    )
    return Covariance(inverse, tuple(tradeoffs), nearly)


def weakest_direction(jtj: Array, free: NDArray[np.bool_]) -> tuple[NDArray[np.intp], Array]:
    """Return the direction in which chi2 changes least: indices of parameters, and their changes.

    It is the eigenvector of the smallest eigenvalue of J^T J [p, p] with a unit diagonal, without
    members below a tenth of its largest one. The first change is 1.
    """
    indices = np.flatnonzero(free)
    unit, norms = normalized(jtj[np.ix_(indices, indices)])
    vector = np.linalg.eigh(unit)[1][:, 0]
    members = np.flatnonzero(np.abs(vector) > 0.1 * np.abs(vector).max())
    change = vector[members] / norms[members]
    return indices[members], change / change[0]
