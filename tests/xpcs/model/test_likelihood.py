"""The log-likelihood: mirrored pairs, gradient, number of passes and errors."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.xpcs.two_time_problems import PARAMS, assert_scaled, cases, flow, measured, native_only

import jaxkern as jk
from jaxkern import xpcs

pytestmark = pytest.mark.usefixtures("x64", "backend")


N = 40
#: parameters, contrast and offset
AT = PARAMS, np.array(0.3), np.array([1.0, 1.01, 0.99])


def case(symmetric=True):
    model, reference = flow(N)
    data = measured(reference.g2(1.01 * PARAMS, 0.31, 1.0), symmetric=symmetric)
    return model, reference, data


@functools.cache
def slopes_of_residuals(symmetric):
    """Return the gradient from residuals, whose derivatives are tested in extended precision."""
    model, _, data = case(symmetric)
    pairs = 0.25 if symmetric else 0.5

    def value(*v):
        return -pairs * jnp.sum(xpcs.residual(model, *v, data, 0.01) ** 2)

    with jk.backend("auto"):
        return jax.jit(jax.grad(value, (0, 1, 2)))(*AT)


def exact(reference, data, sigma, symmetric):
    """Compute the sum over pairs, or points, with the oracle."""

    def value(params, contrast, offset):
        r = (data - reference.g2(params, contrast, offset)) / sigma
        return -np.sum(np.triu(r, 1) ** 2) / 2 - (
            0 if symmetric else np.sum(np.tril(r, -1) ** 2) / 2
        )

    return value


@cases(
    "symmetric option",
    native=[(False, "auto"), (False, "fixed"), (True, "auto"), (True, "fixed")],
    jax=[(True, "auto")],
)
def test_value_and_gradient(symmetric, option):
    model, reference, data = case(symmetric)
    option = symmetric if option == "fixed" else option
    expected = exact(reference, data, 0.01, symmetric)

    def fn(*v):
        return xpcs.log_likelihood(model, *v, data, 0.01, symmetric=option)

    value, slopes = jax.value_and_grad(fn, (0, 1, 2))(*AT)
    assert_scaled(value, expected(*AT), 1e-11)
    assert_scaled(fn(*AT), value, 1e-13)
    for actual, slope in zip(slopes, slopes_of_residuals(symmetric), strict=True):
        np.testing.assert_allclose(actual, slope, rtol=1e-9, atol=1e-9 * np.abs(slope).max())
    moved = jax.jvp(fn, AT, tuple(np.ones_like(v) for v in AT))[1]
    total = sum(float(jnp.sum(s)) for s in slopes)
    np.testing.assert_allclose(moved, total, rtol=1e-9)


@native_only
def test_batches_and_jit():
    model, _, data = case()
    fn = jax.value_and_grad(lambda p, c: xpcs.log_likelihood(model, p, c, 1.0, data, 0.01), (0, 1))
    points = np.stack([PARAMS, 1.05 * PARAMS, 0.9 * PARAMS])
    contrasts = np.array([0.3, 0.31, 0.29])
    values, slopes = jax.jit(jax.vmap(fn))(points, contrasts)
    for k in range(3):
        value, slope = fn(jnp.asarray(points[k]), jnp.asarray(contrasts[k]))
        np.testing.assert_allclose(values[k], value, rtol=1e-12)
        np.testing.assert_allclose(slopes[0][k], slope[0], rtol=1e-9)
        np.testing.assert_allclose(slopes[1][k], slope[1], rtol=1e-9)


@native_only
def test_one_pass():
    """Value and gradient call only the fused kernel, once."""
    model, _, data = case()
    fn = jax.value_and_grad(lambda p: xpcs.log_likelihood(model, p, 0.3, 1.0, data, 0.01))
    text = jax.jit(fn).lower(jnp.asarray(PARAMS)).compile().as_text()
    assert text.count('custom_call_target="jaxkern.two_time_') == 1
    assert text.count('custom_call_target="jaxkern.two_time_normal_equations.v1"') == 1


@cases("symmetric", native=[(False,), (True,)], jax=[])
def test_curvature_is_the_inverse_covariance(symmetric):
    """At the truth without noise the Hessian is -J^T J, or half of it if pairs count once."""
    model, reference, _ = case()
    data = reference.g2(PARAMS, 0.3, 1.0)
    data = measured(data, 0.0, symmetric)
    if not symmetric:
        data[:, 0, 1] += 1e-9
    hessian = jax.hessian(
        lambda p: xpcs.log_likelihood(model, p, 0.3, 1.0, data, 0.01, symmetric=symmetric)
    )(jnp.asarray(PARAMS))
    ne = xpcs.normal_equations(
        model, PARAMS, 0.3, 1.0, data, 0.01, scaling="fixed", symmetric=symmetric
    )
    scale = np.sqrt(np.diag(ne.jtj))
    expected = -ne.jtj / np.outer(scale, scale) * (0.5 if symmetric else 1.0)
    assert_scaled(hessian / np.outer(scale, scale), expected, 1e-5)


def test_masks_and_quantized_data():
    model, reference, data = case(symmetric=False)
    step, zero = 1e-4, 0.5
    stored = np.clip(np.round((data - zero) / step), 0, 65535).astype(np.uint16)
    keep = np.arange(N) % 7 != 0
    value = xpcs.log_likelihood(
        model, PARAMS, 0.3, 1.0, stored, 0.01, keep=keep, quantization=(step, zero)
    )
    r = (zero + step * stored - reference.g2(PARAMS, 0.3, 1.0)) / 0.01
    r = r[:, keep][:, :, keep] * (1 - np.eye(keep.sum()))
    assert_scaled(value, -np.sum(r**2) / 2, 1e-10)


@pytest.mark.parametrize("which", ["data", "sigma"])
def test_no_gradient_by_data_or_sigma(which):
    model, _, data = case()

    def fn(data, sigma):
        return xpcs.log_likelihood(model, PARAMS, 0.3, 1.0, data, sigma)

    with raises(TypeError, "params, contrast and offset"):
        jax.grad(fn, ["data", "sigma"].index(which))(jnp.asarray(data), jnp.asarray(0.01))
