"""Least squares of many curves g2(tau) in one compiled program: bounded Levenberg-Marquardt.

Each bin has its own parameters; all bins may share others. With J the derivatives of a bin's
parameters and of the shared ones, J^T W J of all bins is an arrow: a small block for each bin, and
a border for the shared parameters, which are eliminated by the Schur complement. Without shared
parameters each bin has its own damping and ends on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxkern.xpcs.model.twin import robust
from jaxkern.xpcs.onetime.models import DecayModel, exponential

#: number of curves that a call fits; their Jacobians remain in the cache
CHUNK = 256
MOST_ITERATIONS = 200
# Pivots of a matrix with unit diagonal below this are rounding errors.
_LEAST_PIVOT = 1e-13
# A step that lowers the cost by less than this fraction ends the search.
_LEAST_REDUCTION = 1e-14
_MOST_DAMPING = 1e12


@dataclass(frozen=True)
class FitPlan:
    """Static part of a fit: the program is compiled once for each plan and shape.

    Attributes:
      model: the model.
      local, shared: names of parameters of each bin, and of all bins. Shared "D" and "exponent"
        replace the rate, D q^exponent.
      logarithmic: names of parameters with a logarithmic scale.
      loss: index in `LOSSES`.
    """

    model: DecayModel
    local: tuple[str, ...]
    shared: tuple[str, ...]
    logarithmic: tuple[str, ...]
    loss: int

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters of the result."""
        return (*self.model.names, *(n for n in self.shared if n not in self.model.names))

    def parameters(self, vector: Any, log_q: Any) -> dict[str, Any]:
        """Return the parameters by name from a bin's and the shared ones [p] in the fit's scale."""
        names = (*self.local, *self.shared)
        result = {
            name: jnp.exp(vector[k]) if name in self.logarithmic else vector[k]
            for k, name in enumerate(names)
        }
        if "D" in self.shared:
            exponent = result.get("exponent", 2.0)
            result["rate"] = jnp.exp(vector[names.index("D")] + exponent * log_q)
        return result

    def report(self, vector: Any, log_q: Any) -> Any:
        values = self.parameters(vector, log_q)
        return jnp.stack([values[name] for name in self.names])

    def curve(self, vector: Any, log_q: Any, tau: Any) -> Any:
        values = self.parameters(vector, log_q)
        return self.model.function(tau, **{name: values[name] for name in self.model.names})


class Curves(NamedTuple):
    """The data of B bins: arrays that are mapped over chunks of bins."""

    g2: Any  # [B, n_tau]; 0 where the weight is 0
    weight: Any  # [B, n_tau] 1 / error; 0 for missing delays
    log_q: Any  # [B]
    parts: Any  # [B, K, n_tau] deviations of the parts from their mean; 0 where missing
    common: Any  # [B, n_tau] deviation of delays that the parts do not have
    start: Any  # [B, p] natural starting values; NaN for those to be estimated
    lower: Any  # [B, p] bounds in the fit's scale
    upper: Any  # [B, p]


class FittedCurves(NamedTuple):
    """Fitted values of B bins and of P parameters of the result."""

    vector: Any  # [B, p] in the fit's scale
    values: Any  # [B, P]
    variance: Any  # [B, P] diagonal of (J^T W J)^-1; infinite if not determined
    changes: Any  # [B, K + 1, P] changes with the deviations of each part, and with `common`
    curve: Any  # [B, n_tau]
    chi2: Any  # [B]
    cost: Any  # [B]
    converged: Any  # [B]
    iterations: Any  # [B]


def _solve(matrix: Any, rhs: Any) -> tuple[Any, Any]:
    """Solve positive definite systems [B, p, p] for [B, p, m]; also return where they are regular.

    Elimination without pivoting in plain operations, which XLA fuses over the bins.
    """
    size = matrix.shape[-1]
    norms = jnp.sqrt(jnp.maximum(jnp.diagonal(matrix, axis1=-2, axis2=-1), 0.0))
    norms = jnp.where(norms > 0, norms, 1.0)[..., None]
    rows = jnp.concatenate([matrix / norms / jnp.swapaxes(norms, -1, -2), rhs / norms], axis=-1)
    regular = jnp.ones(matrix.shape[:-2], bool)
    for k in range(size):
        pivot = rows[..., k, k]
        valid = pivot > _LEAST_PIVOT
        regular &= valid
        row = rows[..., k, :] / jnp.where(valid, pivot, jnp.inf)[..., None]
        rows = (rows - rows[..., k : k + 1] * row[..., None, :]).at[..., k, :].set(row)
    return rows[..., size:] / norms, regular


def _solve_arrow(hessian: Any, rhs: Any, free: Any, damping: Any, local: int) -> tuple[Any, Any]:
    """Solve for [B, p, m], of which the first `local` rows belong to the bin, the others to all.

    `hessian` [B, p, p] and `rhs` [B, p, m] are summed over the bins for the shared parameters.
    Parameters that are not `free` [B, p] do not change.
    """
    size = hessian.shape[-1]
    diagonal = jnp.eye(size)
    both = free[:, :, None] & free[:, None, :]
    hessian = jnp.where(both, hessian * (1.0 + damping[..., None, None] * diagonal), 0.0)
    hessian += jnp.where(free, 0.0, 1.0)[..., None] * diagonal
    rhs = jnp.where(free[..., None], rhs, 0.0)
    if local == size:
        return _solve(hessian, rhs)
    border = hessian[:, :local, local:]
    inner, regular = _solve(
        hessian[:, :local, :local], jnp.concatenate([border, rhs[:, :local]], axis=-1)
    )
    to_shared, to_rhs = inner[..., : size - local], inner[..., size - local :]
    total = hessian[:, local:, local:].sum(0)
    schur = total - jnp.einsum("bls,blt->st", border, to_shared)
    shared, well = _solve(
        schur[None], (rhs[:, local:].sum(0) - jnp.einsum("bls,blm->sm", border, to_rhs))[None]
    )
    well &= jnp.all(jnp.diagonal(schur) > _LEAST_PIVOT * jnp.diagonal(total))
    own = to_rhs - to_shared @ shared
    shared = jnp.broadcast_to(shared, (len(own), *shared.shape[1:]))
    return jnp.concatenate([own, shared], axis=1), regular & well


class _Point(NamedTuple):
    x: Any  # [B, p]
    cost: Any  # [B]
    hessian: Any  # [B, p, p] J^T W J
    gradient: Any  # [B, p] J^T W (g2 - curve)


class _Search(NamedTuple):
    point: _Point
    damping: Any  # [B], or [1] for all bins together
    growth: Any
    done: Any
    iterations: Any


@partial(jax.jit, static_argnums=0)
def fit_curves(plan: FitPlan, tau: Any, f_scale: Any, grid: Any, data: Curves) -> FittedCurves:
    """Fit all bins in one program."""
    local = len(plan.local)
    total: Callable[[Any], Any] = (lambda x: x.sum(keepdims=True)) if plan.shared else (lambda x: x)
    held = data.upper <= data.lower

    def weights(residual: Any) -> tuple[Any, Any]:
        value, slope = robust(plan.loss, (residual / f_scale) ** 2)
        return f_scale**2 * value, slope

    def evaluate(x: Any) -> tuple[_Point, Any]:
        curve = jax.vmap(plan.curve, (0, 0, None))(x, data.log_q, tau)
        jacobian = jax.vmap(jax.jacfwd(plan.curve), (0, 0, None))(x, data.log_q, tau)
        residual = jnp.where(data.weight > 0, (data.g2 - curve) * data.weight, 0.0)
        cost, slope = weights(residual)
        jacobian = jnp.where(data.weight[..., None] > 0, jacobian * data.weight[..., None], 0.0)
        weighted = jacobian * slope[..., None]
        hessian = jnp.einsum("bti,btj->bij", weighted, jacobian)
        gradient = jnp.einsum("bti,bt->bi", weighted, residual)
        return _Point(x, cost.sum(1), hessian, gradient), (curve, residual, jacobian)

    def step(search: _Search) -> _Search:
        point = search.point
        x, gradient = point.x, point.gradient
        slope = gradient
        if plan.shared:
            shared = jnp.broadcast_to(gradient[:, local:].sum(0), gradient[:, local:].shape)
            slope = jnp.concatenate([gradient[:, :local], shared], axis=1)
        blocked = ((x <= data.lower) & (slope < 0)) | ((x >= data.upper) & (slope > 0))
        free = ~(blocked | held)
        damping = jnp.broadcast_to(search.damping, x.shape[:1])
        change, _ = _solve_arrow(point.hessian, gradient[..., None], free, damping, local)
        target = jnp.clip(x + change[..., 0], data.lower, data.upper)
        change = target - x
        curvature = jnp.einsum("bi,bij,bj->b", change, point.hessian, change)
        expected = total(2.0 * (gradient * change).sum(1) - curvature)
        other, _ = evaluate(target)
        before, after = total(point.cost), total(other.cost)
        better = (after <= before) & ~search.done  # False for NaN
        ratio = (before - after) / jnp.where(expected > 0, expected, 1.0)
        shrink = jnp.maximum(1.0 / 3.0, 1.0 - (2.0 * ratio - 1.0) ** 3)
        damping = jnp.where(better, search.damping * shrink, search.damping * search.growth)
        growth = jnp.where(better, 2.0, 2.0 * search.growth)
        done = search.done | (expected <= _LEAST_REDUCTION * before) | (damping > _MOST_DAMPING)

        def chosen(new: Any, old: Any) -> Any:
            return jnp.where(better.reshape(-1, *[1] * (new.ndim - 1)), new, old)

        point = jax.tree.map(chosen, other, point)
        iterations = search.iterations + ~search.done
        return _Search(point, jnp.maximum(damping, 1e-12), growth, done, iterations)

    def unfinished(search: _Search) -> Any:
        return ~search.done.all() & (search.iterations.max() < MOST_ITERATIONS)

    first, _ = evaluate(_start(plan, tau, grid, data))
    ones = jnp.ones_like(total(first.cost))
    invalid = ~jnp.isfinite(total(first.cost))
    zeros = jnp.zeros(ones.shape, jnp.int32)
    begin = _Search(first, 1e-3 * ones, 2.0 * ones, invalid, zeros)
    end = lax.while_loop(unfinished, step, begin)
    x = end.point.x
    point, (curve, residual, jacobian) = evaluate(x)

    # Errors. The columns of the identity for each bin's own parameters and for shared ones give
    # the blocks of the inverse; a deviation of g2 moves the parameters by one Newton step.
    information = jnp.diagonal(point.hessian, axis1=1, axis2=2)
    shared = jnp.broadcast_to(information[:, local:].sum(0), information[:, local:].shape)
    without = jnp.concatenate([information[:, :local], shared], axis=1) <= 0.0
    covariance, regular = _inverse(point.hessian, ~(held | without), local)
    _, change = jax.jvp(lambda r: weights(r)[1] * r, (residual,), (jnp.ones_like(residual),))
    change = jnp.maximum(change, 0.05 * weights(residual)[1])
    newton = jnp.einsum("bti,bt,btj->bij", jacobian, change, jacobian)
    deviations = jnp.concatenate([data.parts, data.common[:, None]], axis=1)
    deviations = deviations * (data.weight * change)[:, None]
    moved, _ = _solve_arrow(
        newton,
        jnp.einsum("bti,bkt->bik", jacobian, deviations),
        ~held,
        jnp.zeros(len(x)),
        local,
    )
    report = jax.vmap(plan.report)(x, data.log_q)
    slopes = jax.vmap(jax.jacfwd(plan.report))(x, data.log_q)  # [B, P, p]
    variance = jnp.einsum("bri,bij,brj->br", slopes, covariance, slopes)
    unknown = ((slopes != 0) & (without & ~held)[:, None]).any(2)
    determined = (regular & jnp.isfinite(point.cost))[:, None] & ~unknown
    everywhere = jnp.broadcast_to(end.done & ~invalid, x.shape[:1])
    return FittedCurves(
        x,
        report,
        jnp.where(determined, variance, jnp.inf),
        jnp.einsum("bri,bik->bkr", slopes, moved),
        curve,
        (residual**2).sum(1),
        point.cost,
        everywhere,
        jnp.broadcast_to(end.iterations, x.shape[:1]),
    )


def _inverse(hessian: Any, free: Any, local: int) -> tuple[Any, Any]:
    """Return the blocks [B, p, p] of the inverse, of each bin's and the shared parameters."""
    bins, size, _ = hessian.shape
    eye = jnp.where(free[..., None], jnp.eye(size), 0.0)
    damping = jnp.zeros(bins)
    if local == size:
        return _solve_arrow(hessian, eye, free, damping, local)
    # A shared parameter is one right-hand side for all bins, so it is given to the first bin only.
    shared = eye[:, :, local:] * (jnp.arange(bins) == 0)[:, None, None]
    columns, regular = _solve_arrow(hessian, shared, free, damping, local)
    own, _ = _solve_arrow(
        hessian[:, :local, :local], eye[:, :local, :local], free[:, :local], damping, local
    )
    border = columns[:, :local]
    schur = columns[:, local:]
    scale, _ = _solve(schur, jnp.swapaxes(border, 1, 2))
    upper = jnp.concatenate([own + border @ scale, border], axis=2)
    lower = jnp.concatenate([jnp.swapaxes(border, 1, 2), schur], axis=2)
    return jnp.concatenate([upper, lower], axis=1), regular


def _start(plan: FitPlan, tau: Any, grid: Any, data: Curves) -> Any:
    """Return starting values [B, p] in the fit's scale.

    For each shape of the grid, contrast and baseline follow from linear least squares. For a
    user's function the shape is that of an exponential.
    """
    shape = plan.model.shape or exponential
    shapes = jax.vmap(lambda point: shape(tau, *point))(grid)  # [n, n_tau]
    weight = data.weight**2
    s0, sy = weight.sum(1, keepdims=True), (weight * data.g2).sum(1, keepdims=True)
    s1, s2 = weight @ shapes.T, weight @ (shapes**2).T  # [B, n]
    sxy = (weight * data.g2) @ shapes.T
    spread = s0 * s2 - s1**2
    valid = spread > 1e-9 * s0 * s2
    contrast = jnp.where(valid, (s0 * sxy - s1 * sy) / jnp.where(valid, spread, 1.0), 0.0)
    gain = jnp.where(contrast > 0, contrast**2 * spread / jnp.where(s0 > 0, s0, 1.0), 0.0)
    best = jnp.argmax(gain, axis=1)[:, None]
    contrast, mean = (jnp.take_along_axis(x, best, 1) for x in (contrast, s1))
    baseline = (sy - contrast * mean) / jnp.where(s0 > 0, s0, 1.0)
    names = plan.model.names if plan.model.shape else ("rate",)
    values: dict[str, Any] = dict(zip(names, grid[best[:, 0]].T, strict=False))
    values |= {"contrast": contrast[:, 0], "baseline": baseline[:, 0]}
    columns = []
    used = jnp.any(data.weight > 0, axis=1)
    for k, name in enumerate((*plan.local, *plan.shared)):
        estimate = values.get(name, jnp.ones(len(data.g2)))
        if name == "D":
            estimate = values["rate"] / jnp.exp(2.0 * data.log_q)
        if name == "exponent":
            estimate = jnp.full(len(data.g2), 2.0)
        if name in plan.shared:
            middle = jnp.nanmedian(jnp.where(used, estimate, jnp.nan))
            estimate = jnp.full(len(data.g2), middle)
        column = jnp.where(jnp.isnan(data.start[:, k]), estimate, data.start[:, k])
        columns.append(jnp.log(column) if name in plan.logarithmic else column)
    return jnp.clip(jnp.stack(columns, axis=1), data.lower, data.upper)
