"""The Gaussian log-likelihood of two-time correlations, with its gradient from the same pass.

With r = (data - g2) / sigma and J the derivative of g2 / sigma, the gradient of the log-likelihood
-chi2 / 2 is J^T r. One pass computes both sums.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.xpcs.model import checks
from jaxkern.xpcs.model.models import Model, Tables
from jaxkern.xpcs.model.normal import accumulate, unpack


def log_likelihood(
    model: Model,
    params: Any,
    contrast: Any,
    offset: Any,
    data: Any,
    sigma: Any,
    *,
    symmetric: bool | str = "auto",
    keep: Any = None,
    quantization: Any = None,
    inflation: Any = 1.0,
) -> jax.Array:
    """Compute the Gaussian log-likelihood -sum(r^2) / 2 of the data, r = (data - g2) / sigma.

    Each mirrored pair of symmetric data is counted once, so the covariance of a posterior is that
    of a fit, 2 inv(J^T J). If only ``mirrored`` of ``count`` points are mirrored, the sum is
    multiplied by 1 - mirrored / (2 count). The diagonal and points with sigma <= 1e-10 have no
    weight.

    The noise of speckles is correlated, which a sum over points ignores: its posterior is too
    narrow, like the errors of independent noise. ``inflation=fit.inflation`` divides the sum by the
    ratio of the variances of a fit's jackknife to those of independent noise.

    The constant -sum(log(sigma sqrt(2 pi))) is omitted.

    Works under jit, vmap, jvp and grad with respect to params, contrast and offset, also in
    NumPyro (``numpyro.factor("c2", jk.xpcs.log_likelihood(...))``). Value and gradient need one
    pass over the data; a value alone needs a cheaper pass.

    Args:
      model: a `Model` with p parameters.
      params: its parameters [p].
      contrast, offset: one number, or one for each angle [n_phi].
      data: measured correlations [n_phi, n_t, n_t], f64, f32, f16, or quantized u16.
      sigma: their standard deviations: one number, [n_phi], or the shape of the data.
      symmetric: True, False or "auto", as in `normal_equations`.
      keep: mask of used frames, [n_t] or [n_phi, n_t]; all by default.
      quantization: (step, zero), or [n_phi, 2], of u16 data; a value is zero + step * data.
      inflation: positive divisor of the sum, such as `FitResult.inflation`.

    Returns:
      A scalar, f64 (f32 in JAX's 32-bit mode).

    Raises:
      ValueError: for arguments of a wrong shape, unknown options, a negative or NaN sigma, and an
        inflation that is not positive.
      TypeError: if differentiated with respect to data, sigma or quantization.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.))
      >>> data = jk.xpcs.g2(model, model.defaults, .3, 1.)
      >>> value, slope = jax.value_and_grad(jk.xpcs.log_likelihood, 1)(
      ...     model, model.defaults, .3, 1., data, .01)
      >>> abs(float(value)) < 1e-3, slope.shape
      (True, (3,))
    """
    n_phi, n_t, dtype = model.geometry.n_phi, model.geometry.n_t, jnp.result_type(float)
    measured = checks.check_data(data, (n_phi, n_t, n_t))
    deviations, _ = checks.check_sigma(sigma, n_phi, measured.shape, dtype)
    scale = checks.check_quantization(quantization, measured, n_phi, dtype)
    frames = checks.check_keep(keep, n_phi, n_t)
    contrasts = checks.per_angle(contrast, "contrast", n_phi, dtype)
    offsets = checks.per_angle(offset, "offset", n_phi, dtype)
    params = jnp.asarray(params, dtype)
    operands = (params, contrasts, offsets, measured, deviations, scale, frames)
    divisor = jnp.asarray(inflation, dtype)
    if divisor.shape != () or (checks.is_concrete(divisor) and not float(divisor) > 0):
        raise ValueError(f"inflation: expected a number > 0, got {inflation!r}")
    value: jax.Array = _value(model, symmetric, *operands) / divisor
    return value


def _sums(model: Model, symmetric: Any, tables: Tables, operands: Sequence[Any]) -> Any:
    _, contrast, offset, data, sigma, quantization, keep = operands
    state = accumulate(
        tables,
        contrast,
        offset,
        data,
        sigma,
        shear_power=model.shear_power,
        symmetric=symmetric,
        keep=keep,
        quantization=quantization if data.dtype == jnp.uint16 else None,
    )
    _, rhs, sums = unpack(state, 2 + len(tables.columns_A) + len(tables.columns_X))
    chi2, _, count, mirrored = jnp.sum(sums, axis=0)
    weight = 1.0 - mirrored / (2.0 * jnp.maximum(count, 1.0))
    return -0.5 * weight * chi2, weight, rhs


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
@functools.partial(jax.jit, static_argnums=(0, 1))
def _value(model: Model, symmetric: Any, *operands: Any) -> jax.Array:
    A, X = model.checked_phases(operands[0])
    none_A = jnp.zeros((*A.shape[:-1], 0, A.shape[-1]), A.dtype)
    none_X = jnp.zeros((X.shape[0], 0, X.shape[1]), X.dtype)
    tables = Tables(A, X, none_A, none_X, (), (), len(model.parameters))
    value: jax.Array = _sums(model, symmetric, tables, operands)[0]
    return value


@functools.partial(jax.jit, static_argnums=(0, 1))
def _value_and_slopes(model: Model, symmetric: Any, *operands: Any) -> tuple[Any, ...]:
    """Return the value and its gradients for params [p], contrast and offset [n_phi]."""
    tables = model.tables(operands[0])
    value, weight, rhs = _sums(model, symmetric, tables, operands)
    by_table = operands[1] @ rhs[:, 2:]
    columns = jnp.asarray((*tables.columns_A, *tables.columns_X), jnp.int32)
    by_params = jnp.zeros_like(operands[0]).at[columns].add(by_table)
    return value, weight * by_params, weight * rhs[:, 1], weight * rhs[:, 0]


def _jvp(model: Model, symmetric: Any, primals: Any, tangents: Any) -> tuple[Any, Any]:
    nonzero = [not isinstance(t, jax.custom_derivatives.SymbolicZero) for t in tangents]
    if any(nonzero[3:6]):
        raise TypeError(
            "log_likelihood: expected tangents of params, contrast and offset only, got one of "
            "data, sigma or quantization; for these, sum the squares of jaxkern.xpcs.residual"
        )
    value, *slopes = _value_and_slopes(model, symmetric, *primals)
    change = jnp.zeros_like(value)
    for slope, tangent, is_nonzero in zip(slopes, tangents[:3], nonzero[:3], strict=True):
        if is_nonzero:
            change = change + jnp.vdot(slope, tangent)
    return value, change


_value.defjvp(_jvp, symbolic_zeros=True)
