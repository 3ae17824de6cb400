"""Two-time correlations and residuals of a model; differentiable in every float argument."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import to_integers
from jaxkern.xpcs.model import checks, component_twin, ops
from jaxkern.xpcs.model.components import Components
from jaxkern.xpcs.model.models import Model


def _inputs(model: Model, params: Any, contrast: Any, offset: Any) -> tuple[Any, ...]:
    """Return phases A and X [1 or n_phi, n_t], contrast and offset [n_phi].

    Models of components have B, A and P [1 or n_phi, C, n_t] in place of A and X.
    """
    if not isinstance(model, Model):
        raise TypeError(f"model: expected a Model, such as LaminarFlow, got {type(model).__name__}")
    A, *others = model.checked_phases(params)
    contrast = checks.per_angle(contrast, "contrast", model.geometry.n_phi, A.dtype)
    offset = checks.per_angle(offset, "offset", model.geometry.n_phi, A.dtype)
    return jnp.atleast_2d(A), *others, contrast, offset


def g2(model: Model, params: Any, contrast: Any = 0.5, offset: Any = 1.0) -> jax.Array:
    """Compute the two-time correlation ``offset + contrast exp(-2 |dA|) sinc(dX)^shear_power``.

    That of a model of components is ``offset + contrast |sum of the components|^2``, see
    `Components`.

    Args:
      model: a `Model`, which computes the phases A [n_t] and X [n_phi, n_t].
      params: its parameters [p], in its units.
      contrast, offset: one number, or one for each angle [n_phi].

    Returns:
      [n_phi, n_t, n_t], f64 (f32 in JAX's 32-bit mode).

    Raises:
      ValueError: for arguments of a wrong shape.

    Source: He et al., PNAS 121 (2024) e2401162121.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, 2e6, .1, .1 * np.arange(50), [0., 90.])
      >>> model = jk.xpcs.LaminarFlow(geometry)
      >>> jk.xpcs.g2(model, model.defaults, contrast=.3, offset=1.).shape
      (2, 50, 50)
    """
    return _g2(model, params, contrast, offset)


@functools.partial(jax.jit, static_argnums=0)
def _g2(model: Model, params: Any, contrast: Any, offset: Any) -> jax.Array:
    inputs = _inputs(model, params, contrast, offset)
    if isinstance(model, Components):
        return ops.component_g2(*inputs, batch_dims=1)
    return ops.two_time_g2(*inputs, batch_dims=1, shear_power=model.shear_power)


def g2_at(model: Model, params: Any, contrast: Any, offset: Any, index: Any) -> jax.Array:
    """Compute g2 at single points.

    Args:
      model: a `Model` whose phase A is the same for all angles.
      params, contrast, offset: as in `g2`.
      index: integers [M, 3] of (phi, i, j).

    Returns:
      [M]; NaN for a point outside of the matrices, if the index is a tracer.

    Raises:
      IndexError: for a point outside of the matrices.
      ValueError: for arguments of a wrong shape or dtype.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.))
      >>> jk.xpcs.g2_at(model, model.defaults, .5, 1., [[0, 3, 3]]).tolist()
      [1.5]
    """
    if checks.is_concrete(index):
        points = np.asarray(index)
        limits = (model.geometry.n_phi, model.geometry.n_t, model.geometry.n_t)
        if points.ndim == 2 and points.shape[1] == 3 and points.dtype.kind in "iu":
            for at in np.flatnonzero(((points < 0) | (points >= np.array(limits))).any(axis=1)):
                raise IndexError(f"index[{at}]: expected >= 0 and < {limits}, got {points[at]}")
    return _g2_at(model, params, contrast, offset, index)


@functools.partial(jax.jit, static_argnums=0)
def _g2_at(model: Model, params: Any, contrast: Any, offset: Any, index: Any) -> jax.Array:
    *phases, contrast, offset = _inputs(model, params, contrast, offset)
    points = jnp.asarray(index)
    if points.ndim != 2 or points.shape[1] != 3 or not jnp.issubdtype(points.dtype, jnp.integer):
        raise ValueError(
            f"index: expected integers [M, 3] of (phi, i, j), got {points.dtype}{points.shape}"
        )
    points = to_integers(points, "index")  # a point that exceeds int32 must not wrap around
    if isinstance(model, Components):
        return _components_at(model, phases, contrast, offset, points)
    A, X = phases
    if A.shape[0] != 1:
        raise ValueError(f"g2_at: expected A [n_t] for all angles, got {A.shape}; index g2 instead")
    X = jnp.broadcast_to(X, (contrast.shape[0], X.shape[1]))
    operands = A[0], X, contrast, offset, points
    return ops.two_time_g2_at(*operands, shear_power=model.shear_power)


def _components_at(
    model: Components, phases: list[Any], contrast: Any, offset: Any, points: Any
) -> jax.Array:
    limits = jnp.asarray([model.geometry.n_phi, *[model.geometry.n_t] * 2], points.dtype)
    inside = jnp.all((points >= 0) & (points < limits), axis=1)
    phi, i, j = jnp.moveaxis(jnp.clip(points, 0, limits - 1), 1, 0)
    first, second = (
        [table[phi if len(table) > 1 else 0, :, frame].T for table in phases] for frame in (i, j)
    )
    differences = (a - b for a, b in zip(first[1:], second[1:], strict=True))
    f = component_twin.correlation(first[0] + second[0], *differences)
    return jnp.where(inside, offset[phi] + contrast[phi] * f, jnp.nan)


def residual(
    model: Model, params: Any, contrast: Any, offset: Any, data: Any, sigma: Any
) -> jax.Array:
    """Compute (data - g2) / sigma; 0 on the diagonal and where sigma <= 1e-10.

    It is also 0 in the rows and columns of frames that a model does not use: frame 0 of a
    `TwoComponent` model.

    Args:
      model, params, contrast, offset: as in `g2`.
      data: measured correlations [n_phi, n_t, n_t], floats.
      sigma: their standard deviations: one number, [n_phi], or the shape of the data.

    Returns:
      [n_phi, n_t, n_t], f64 (f32 in JAX's 32-bit mode).

    Raises:
      ValueError: for arguments of a wrong shape, and for a negative or NaN sigma.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.))
      >>> data = jk.xpcs.g2(model, model.defaults, .3, 1.)
      >>> r = jk.xpcs.residual(model, model.defaults, .3, 1., data, .01)
      >>> r.shape, bool((abs(r) < 1e-3).all())
      ((1, 50, 50), True)
    """
    measured, deviations = checks.check_measured(model, data, sigma)
    if not jnp.issubdtype(measured.dtype, jnp.floating):
        raise ValueError(f"data: expected floats, got {measured.dtype}; pass zero + step * data")
    measured = measured.astype(jnp.result_type(float))
    return _residual(model, params, contrast, offset, measured, deviations)


@functools.partial(jax.jit, static_argnums=0)
def _residual(
    model: Model, params: Any, contrast: Any, offset: Any, data: Any, sigma: Any
) -> jax.Array:
    operands = *_inputs(model, params, contrast, offset), data, sigma
    static, op = {"sigma_rank": sigma.ndim - 1}, ops.component_residual
    if not isinstance(model, Components):
        static["shear_power"], op = model.shear_power, ops.two_time_residual
    r: jax.Array = op(*operands, batch_dims=1, **static)
    for frame in model.unused_frames:
        r = r.at[:, frame, :].set(0.0).at[:, :, frame].set(0.0)
    return r
