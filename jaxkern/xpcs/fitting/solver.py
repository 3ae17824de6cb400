"""Least squares from normal equations alone: SciPy's trust region on a compressed problem.

A pass over the data gives J^T J, J^T r and the cost at a point. With R^T R = J^T J the small
problem

    J_c = [R; 0],   f_c = [-R^-T J^T r; sqrt(cost - |R^-T J^T r|^2)]

has the cost, gradient and Gauss-Newton matrix of the full one, so that
`scipy.optimize.least_squares` takes the steps on it that it would take on the full Jacobian.
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
    """The normal equations at one point, with r = (data - model) / sigma and J = d(model) / sigma.

    jtj [p, p] is J^T J, jtr [p] is J^T r and `cost` the sum of r^2 (for a robust loss the sum of
    rho, with the weights rho' in jtj and jtr).
    """

    jtj: Array
    jtr: Array
    cost: float

    def is_finite(self) -> bool:
        return bool(
            np.isfinite(self.cost) and np.isfinite(self.jtj).all() and np.isfinite(self.jtr).all()
        )


class StartNotFinite(ValueError):
    """A start at which the model or its derivatives are not finite."""


Evaluate = Callable[[Array], NormalPoint]


@dataclass(frozen=True)
class Solution:
    """Where the solver stopped. `status` and `message` are those of SciPy's least_squares."""

    x: Array
    point: NormalPoint
    status: int
    message: str
    nfev: int
    costs: tuple[float, ...]  # of the evaluated points, in order


def normalized(jtj: Array) -> tuple[Array, Array]:
    """jtj with unit diagonal, and the column norms that were divided out (1 for a zero column)."""
    norms = np.sqrt(np.maximum(np.diag(jtj), 0.0))
    norms = np.where(norms > 0, norms, 1.0)
    return jtj / norms[:, None] / norms[None, :], norms


def rank_threshold(size: int) -> float:
    """Eigenvalues of the normalized J^T J below this part of the largest are rounding errors."""
    return 4.0 * size * float(np.finfo(np.float64).eps)


def compress(point: NormalPoint) -> tuple[Array, Array]:
    """(f_c [p+1], J_c [p+1, p]) with the cost, the gradient and the Gauss-Newton matrix of `point`.

    The columns are scaled to unit norm before factorizing, since J^T J squares the condition
    number. Where it is singular to rounding, eigenvectors take the place of the Cholesky factor
    and directions that the data do not determine get zero rows.
    """
    size = len(point.jtr)
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
        kept = values > rank_threshold(size) * values[-1]
        root = np.sqrt(np.where(kept, values, 0.0))
        factor = root[:, None] * vectors.T
        head = -np.where(kept, vectors.T @ gradient, 0.0) / np.where(kept, root, 1.0)
    rest = max(point.cost - float(head @ head), 0.0)
    residual = np.append(head, np.sqrt(rest))
    jacobian = np.vstack([factor * norms, np.zeros((1, size))])
    return residual, jacobian


class _Compressed:
    """The functions that SciPy calls; both of one point come from one pass."""

    def __init__(self, evaluate: Evaluate) -> None:
        self._evaluate = evaluate
        # The last point, and the last one that SciPy accepted: it ends on either.
        self._last: tuple[bytes, NormalPoint] | None = None
        self._accepted: tuple[bytes, NormalPoint] | None = None
        self.costs: list[float] = []

    def point(self, x: Array) -> NormalPoint:
        key = x.tobytes()
        for known in (self._last, self._accepted):
            if known is not None and known[0] == key:
                return known[1]
        point = self._evaluate(x.copy())
        if not self.costs and not point.is_finite():
            raise StartNotFinite(
                f"the cost is {point.cost} at the start {x.tolist()}; give a start where the model "
                "is finite"
            )
        self.costs.append(point.cost)
        self._last = (key, point)
        return point

    def residual(self, x: Array) -> Array:
        point = self.point(x)
        if not point.is_finite():
            # SciPy shortens a step that leads to a residual that is not finite.
            return np.full(len(x) + 1, np.inf)
        return compress(point)[0]

    def jacobian(self, x: Array) -> Array:
        point = self.point(x)
        self._accepted = (x.tobytes(), point)
        return compress(point)[1]


def solve(
    evaluate: Evaluate,
    x0: Array,
    *,
    lower: Any = -np.inf,
    upper: Any = np.inf,
    x_scale: Any = "jac",
    **options: Any,
) -> Solution:
    """Minimizes cost / 2 from `x0` within bounds; one call of `evaluate` a visited point.

    Args:
      evaluate: the pass over the data, x [p] -> `NormalPoint`.
      x0: start [p], within the bounds.
      lower, upper: bounds [p].
      x_scale, options: ftol, xtol, gtol and max_nfev, as in `scipy.optimize.least_squares`.

    Raises:
      ValueError: for a start outside the bounds.
      StartNotFinite: for a start with a cost that is not finite.

    Example:
      >>> import numpy as np
      >>> t = np.arange(5.0); data = 2 * np.exp(-0.3 * t)
      >>> def evaluate(x):
      ...     e = np.exp(-x[1] * t); r = data - x[0] * e
      ...     j = np.stack([e, -x[0] * t * e], axis=1)
      ...     return NormalPoint(j.T @ j, j.T @ r, r @ r)
      >>> solve(evaluate, np.array([1.0, 1.0])).x.round(6)
      array([2. , 0.3])
    """
    from scipy.optimize import least_squares

    problem = _Compressed(evaluate)
    # The trust region moves a start that lies on a bound inside, so the first point may not be x0.
    found: Any = least_squares(
        problem.residual,
        np.asarray(x0, np.float64),
        jac=problem.jacobian,
        bounds=(lower, upper),
        method="trf",
        x_scale=x_scale,
        **options,
    )
    return Solution(
        x=found.x,
        point=problem.point(found.x),
        status=int(found.status),
        message=str(found.message),
        nfev=len(problem.costs),
        costs=tuple(problem.costs),
    )


@dataclass(frozen=True)
class Covariance:
    """(J^T J)^-1 and what the data do not determine.

    `tradeoffs` holds, for each direction without information, the indices of the parameters that
    take part in it; their rows and columns of `inverse` are infinite.
    """

    inverse: Array
    tradeoffs: tuple[tuple[int, ...], ...]
    nearly: tuple[tuple[int, int, float], ...]  # pairs of parameters with |correlation| near 1


def covariance(jtj: Array, *, active: NDArray[np.bool_] | None = None) -> Covariance:
    """Inverts J^T J [p, p], with unit columns, and names the directions it does not determine.

    `active` marks parameters that count as free; others get zero rows and columns.
    """
    full = len(jtj)
    free = np.arange(full) if active is None else np.flatnonzero(active)
    inverse = np.zeros((full, full))
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
        tradeoffs.append(tuple(int(free[m]) for m in members))
        part[members, :] = np.inf
        part[:, members] = np.inf
    inverse[np.ix_(free, free)] = part
    with np.errstate(invalid="ignore", divide="ignore"):
        spread = np.sqrt(np.diag(part))
        correlation = part / spread[:, None] / spread[None, :]
    rows, columns = np.nonzero(np.triu(np.abs(correlation) > 0.999, 1))
    nearly = tuple(
        (int(free[a]), int(free[b]), float(correlation[a, b]))
        for a, b in zip(rows, columns, strict=True)
    )
    return Covariance(inverse, tuple(tradeoffs), nearly)
