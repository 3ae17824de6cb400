"""g2, residuals and their derivatives, compared with an oracle and mpmath."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from support.errors import raises
from support.xpcs import two_time_oracle as oracle
from support.xpcs.two_time_problems import (
    PARAMS,
    PHI,
    assert_scaled,
    cases,
    flow,
    measured,
    native_only,
)

from jaxkern import xpcs
from jaxkern.xpcs.model import ops

pytestmark = pytest.mark.usefixtures("x64", "backend")
CONTRAST, OFFSET = np.array([0.3, 0.25, 0.4]), np.array([1.0, 1.1, 0.9])
POWERS = [0, 2, 4]
# Differences: zero, tiny, on both sides of a switch between series and quotient, zeros of sinc,
# and large.
NEAR = [0, 1e-300, 1e-160, 1e-9, 1e-4, 1e-2, 0.05, 0.1, 0.2, 0.2499, 0.25, 0.3, 0.4999, 0.5]
FAR = [0.501, 0.7, 0.99, 1.0, 1.01, 2.0, 3.141592653589793, 6.28, 31.4, 1e3, 1e5]
DIFFERENCES = np.array([*NEAR, *FAR])


def phases(n=53, seed=0):
    random = np.random.default_rng(seed)
    return np.cumsum(random.uniform(0, 0.08, n)), np.cumsum(random.uniform(0, 0.5, n))


@pytest.mark.parametrize("power", POWERS)
def test_g2_of_a_model(power):
    model, reference = flow(power=power)
    actual = xpcs.g2(model, PARAMS, CONTRAST, OFFSET)
    assert actual.dtype == np.float64
    assert_scaled(actual, reference.g2(PARAMS, CONTRAST, OFFSET), 1e-12)


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("decay", [0.0, 1e-3])
def test_sinc_to_full_precision(power, decay):
    """f and its slopes by the phase differences are compared with mpmath."""
    x = np.concatenate([DIFFERENCES, -DIFFERENCES])
    A = np.zeros(x.size)
    A[1:] = decay
    # Row 0 has all differences, exactly: x_0 - x_j = -x_j.
    f = ops.two_time_g2(A, x, 1.0, 0.0, shear_power=power)[0]
    unit = np.zeros(x.size)
    unit[0] = 1.0
    zero = np.zeros(x.size)
    h = ops.two_time_g2_tangent(A, x, 1.0, zero, unit, 0.0, 0.0, shear_power=power)[0]
    a = ops.two_time_g2_tangent(A, x, 1.0, unit, zero, 0.0, 0.0, shear_power=power)[0]
    for j in range(1, x.size):
        with mp.workdps(400):
            y = -mp.mpf(float(x[j]))
            E = mp.exp(-2 * mp.mpf(float(A[j])))
            sinc = mp.sin(y) / y if y else mp.mpf(1)
            slope = (y * mp.cos(y) - mp.sin(y)) / y**2 if y else mp.mpf(0)
            exact = E * sinc**power
            exact_h = E * power * sinc ** max(power - 1, 0) * slope
        large = max(1.0, abs(x[j]))
        assert abs(float(f[j]) - float(exact)) < 4e-15
        assert abs(float(h[j]) - float(exact_h)) < 4e-14 * (abs(float(exact_h)) + 1e-2 / large)
        # sign(A_0 - A_j) is -1, or 0 where the phases are equal.
        assert abs(float(a[j]) - (2 * float(exact) if decay else 0.0)) < 8e-15


@pytest.mark.parametrize("power", POWERS)
def test_tangent_and_cotangent(power):
    A, X = phases()
    n, random = A.size, np.random.default_rng(1)
    dA, dX, G = random.normal(size=n), random.normal(size=n), random.normal(size=(n, n))
    D = A[:, None] - A, X[:, None] - X
    f, (a, h) = oracle.correlation(*D, power), oracle.slopes(*D, power)
    expected = 0.7 + 0.2 * f + 0.4 * (a * (dA[:, None] - dA) + h * (dX[:, None] - dX))
    actual = ops.two_time_g2_tangent(A, X, 0.4, dA, dX, 0.2, 0.7, shear_power=power)
    assert_scaled(actual, expected)

    bars = ops.two_time_g2_cotangent(A, X, 0.4, G, shear_power=power)
    flows = 0.4 * G * a, 0.4 * G * h
    for bar, flow_of in zip(bars[:2], flows, strict=True):
        assert_scaled(bar, flow_of.sum(1) - flow_of.sum(0), 1e-12 if np.any(flow_of) else 0)
    assert_scaled(bars[2], np.sum(G * f))
    assert_scaled(bars[3], np.sum(G))


@pytest.mark.parametrize("order", ["falling", "shuffled", "equal"])
def test_phases_in_any_order(order):
    """A need not increase: the slope has the sign of A_i - A_j, and is 0 for equal phases."""
    A, X = phases()
    if order == "falling":
        A, X = A[::-1].copy(), X[::-1].copy()
    elif order == "shuffled":
        A = np.random.default_rng(3).permutation(A)
    else:
        A, X = np.repeat(A[::9], 9)[: A.size], np.repeat(X[::9], 9)[: A.size]
    D = A[:, None] - A, X[:, None] - X
    a, h = oracle.slopes(*D, 4)
    dA, dX = np.random.default_rng(4).normal(size=(2, A.size))
    assert_scaled(
        ops.two_time_g2(A, X, 0.4, 1.0, shear_power=4), 1.0 + 0.4 * oracle.correlation(*D, 4)
    )
    actual = ops.two_time_g2_tangent(A, X, 0.4, dA, dX, 0.0, 0.0, shear_power=4)
    assert_scaled(actual, 0.4 * (a * (dA[:, None] - dA) + h * (dX[:, None] - dX)))


def test_strong_decay_does_not_overflow():
    A = np.array([0.0, 1.0, 400.0, 800.0, 1e5, 1e5 + 1e-6, 3e8])
    X = np.linspace(0, 1, A.size)
    actual = ops.two_time_g2(A, X, 1.0, 0.0, shear_power=4)
    expected = oracle.correlation(A[:, None] - A, X[:, None] - X, 4)
    np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-300)


@cases("angle", native=[(0,), (2,)], jax=[(2,)])
def test_derivatives_of_a_model(angle):
    """Compare jacfwd and grad of g2 with finite differences in 60 digits."""
    model, reference = flow(20)

    def c2(contrast, offset, params):
        return xpcs.g2(model, params, contrast, offset)

    forward = jax.jit(jax.jacfwd(c2, (0, 1, 2)))(0.3, 1.1, PARAMS)
    rows = jnp.stack([forward[0], forward[1], *jnp.moveaxis(forward[2], -1, 0)], -1)
    at = jax.jit(jax.grad(lambda c, o, p, i, j: c2(c, o, p)[angle, i, j], (0, 1, 2)))
    points = [(0, 1), (3, 3), (2, 19), (19, 0), (7, 8), (15, 11)]
    for i, j in points:
        exact = [float(v) for v in reference.exact_jacobian(PARAMS, 0.3, 1.1, angle, i, j)]
        if i == j:
            exact[2:] = [0.0] * 7
        largest = np.max(np.abs(rows), axis=(0, 1, 2))
        assert np.all(np.abs(rows[angle, i, j] - np.array(exact)) <= 2e-12 * largest)
        slopes = at(0.3, 1.1, PARAMS, i, j)
        back = np.array([*slopes[:2], *slopes[2]])
        assert np.all(np.abs(back - np.array(exact)) <= 2e-12 * largest)


@native_only
def test_second_derivatives():
    """Forward over reverse, and reverse over reverse, of a sum of g2."""
    model, _ = flow(12)
    weights = np.random.default_rng(0).normal(size=(3, 12, 12))
    total = lambda p: jnp.sum(weights * xpcs.g2(model, p, 0.3, 1.0))  # noqa: E731
    slope = jax.jit(jax.grad(total))
    hessian = np.asarray(jax.jit(jax.jacfwd(jax.grad(total)))(PARAMS))
    assert_scaled(jax.jit(jax.jacrev(jax.grad(total)))(PARAMS), hessian, 1e-10)
    step = 1e-6 * np.maximum(np.abs(PARAMS), 1e-3)
    for k in range(7):
        moved = step[k] * np.eye(7)[k]
        column = (np.asarray(slope(PARAMS + moved)) - np.asarray(slope(PARAMS - moved))) / (
            2 * step[k]
        )
        scale = np.sqrt(np.abs(np.diag(hessian)) * np.abs(hessian[k, k]))
        assert np.all(np.abs(column - hessian[k]) <= 1e-5 * (scale + np.abs(hessian[k]).max()))


@cases("kind", native=[("scalar",), ("angles",), ("points",)], jax=[("points",)])
def test_residual(kind):
    model, reference = flow()
    c2 = reference.g2(PARAMS, CONTRAST, OFFSET)
    data = measured(c2)
    random = np.random.default_rng(2)
    sigma = {
        "scalar": 0.02,
        "angles": np.array([0.01, 0.02, 0.0]),
        "points": random.uniform(0.01, 0.02, c2.shape) * (random.uniform(size=c2.shape) > 0.1),
    }[kind]
    sigma_of_points = np.broadcast_to(
        np.reshape(sigma, (-1, 1, 1)) if kind == "angles" else sigma, c2.shape
    )
    counts = (sigma_of_points > 1e-10) & ~np.eye(70, dtype=bool)
    expected = np.where(counts, data - c2, 0) / np.where(counts, sigma_of_points, 1)
    # Values without weight are arbitrary.
    broken = np.where(counts, data, np.nan)
    assert_scaled(xpcs.residual(model, PARAMS, CONTRAST, OFFSET, broken, sigma), expected, 1e-11)

    def square(data, sigma, params, contrast, offset):
        r = xpcs.residual(model, params, contrast, offset, data, sigma)
        return jnp.sum(weights * r), r

    weights = random.normal(size=c2.shape)
    gradient = jax.jit(jax.grad(square, (0, 1, 2, 3, 4), has_aux=True))
    slopes, _ = gradient(broken, jnp.asarray(sigma), PARAMS, CONTRAST, OFFSET)
    flowing = np.where(counts, weights, 0) / np.where(counts, sigma_of_points, 1)
    assert_scaled(slopes[0], flowing)
    by_sigma = -flowing * expected
    if kind != "points":
        by_sigma = by_sigma.sum((1, 2)) if kind == "angles" else by_sigma.sum()
    assert_scaled(slopes[1], by_sigma, 1e-11)
    at = jnp.asarray(PARAMS), CONTRAST, OFFSET
    pulled = jax.jit(lambda ct: jax.vjp(lambda *v: xpcs.g2(model, *v), *at)[1](ct))(-flowing)
    for actual, back in zip(slopes[2:], pulled, strict=True):
        assert_scaled(actual, back, 1e-11)


def test_residual_with_tangents_of_nan():
    """As of sigma = sqrt(variance) at a variance of 0; points without weight are ignored."""
    model, _ = flow(40)
    data = measured(xpcs.g2(model, PARAMS, CONTRAST, OFFSET))
    sigma = np.where(np.random.default_rng(3).uniform(size=data.shape) > 0.1, 0.02, 0.0)
    counts = (sigma > 0) & ~np.eye(40, dtype=bool)
    r = lambda data, sigma: xpcs.residual(model, PARAMS, CONTRAST, OFFSET, data, sigma)  # noqa: E731
    along = np.where(counts, 1.0, np.nan), np.where(counts, 2.0, np.inf)
    expected, moved = jax.jit(lambda *v: jax.jvp(r, v, along))(data, sigma)
    slope = (1 - 2 * expected) / np.where(counts, sigma, 1.0)
    assert_scaled(moved, np.where(counts, slope, 0.0), 1e-11)
    ct = np.where(counts, 1.0, np.nan)
    for back in jax.jit(lambda *v: jax.vjp(r, *v)[1](ct))(data, sigma):
        assert np.isfinite(back).all()


def test_g2_at():
    model, reference = flow()
    c2 = reference.g2(PARAMS, CONTRAST, OFFSET)
    index = np.random.default_rng(5).integers(0, (3, 70, 70), (500, 3))
    actual = xpcs.g2_at(model, PARAMS, CONTRAST, OFFSET, index)
    assert_scaled(actual, c2[tuple(index.T)])
    weights = np.random.default_rng(6).normal(size=500)

    def slopes(*at):
        one = jax.grad(lambda *v: weights @ xpcs.g2_at(model, *v, index), (0, 1, 2))(*at)
        two = jax.grad(lambda *v: weights @ xpcs.g2(model, *v)[tuple(index.T)], (0, 1, 2))(*at)
        return one, two

    for actual, expected in zip(*jax.jit(slopes)(PARAMS, CONTRAST, OFFSET), strict=True):
        assert_scaled(actual, expected, 1e-11)


def test_g2_at_outside_is_nan():
    """The index is a tracer."""
    model, _ = flow()
    wild = [[0, 0, 70], [0, -1, 0], [3, 0, 0], [-1, 5, 5], [2**31 - 1, -(2**31), 7]]
    values = jax.jit(lambda index: xpcs.g2_at(model, PARAMS, 0.3, 1.0, index))(
        jnp.asarray([*wild, [2, 69, 69]], jnp.int32)
    )
    assert np.isnan(values[:-1]).all()
    assert values[-1] == 1.3
    for far in ([0, 2**32, 0], [-(2**32), 0, 0]):
        value = jax.jit(lambda i: xpcs.g2_at(model, PARAMS, 0.3, 1.0, i))(jnp.asarray([far]))
        assert np.isnan(value).all()


@cases("n", native=[(n,) for n in (2, 3, 4, 5, 31, 32, 33, 127, 128, 129, 161)], jax=[(2,), (33,)])
def test_sizes(n):
    model, reference = flow(n)
    actual = xpcs.g2(model, PARAMS, CONTRAST, OFFSET)
    assert_scaled(actual, reference.g2(PARAMS, CONTRAST, OFFSET))


def test_32_bit_mode(backend):
    """The result for f32 operands is accurate to the rounding of f32 phases."""
    model, reference = flow(40)

    def slope_of(p):
        return jax.grad(lambda p: jnp.sum(xpcs.g2(model, p, CONTRAST, OFFSET)))(p)

    with jax.enable_x64(False):
        actual = xpcs.g2(model, PARAMS, CONTRAST, OFFSET)
        data = xpcs.residual(model, PARAMS, CONTRAST, OFFSET, actual, 0.01)
        slope = slope_of(jnp.asarray(PARAMS))
    assert actual.dtype == data.dtype == slope.dtype == np.float32
    assert np.abs(data).max() < 2.5e-5  # two roundings of the residual, over sigma
    expected = reference.g2(PARAMS, CONTRAST, OFFSET)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    exact = slope_of(jnp.asarray(PARAMS))
    np.testing.assert_allclose(slope, exact, rtol=2e-4, atol=1e-4 * np.abs(exact[6]))


def test_phases_may_differ_by_angle():
    """The diffusion phase of a custom model can differ between angles."""
    geometry = xpcs.Geometry(0.01, None, 0.1, 0.1 * np.arange(30), PHI)
    rates = np.array([1.0, 2.0, 3.0])

    def phases_of(p):
        return p[0] * rates[:, None] * geometry.t, jnp.zeros((1, 30))

    model = xpcs.CustomModel(geometry, phases_of, ["rate"], shear_power=0)
    actual = xpcs.g2(model, [0.2], 0.5, 1.0)
    A = 0.2 * rates[:, None] * geometry.t
    expected = 1 + 0.5 * np.exp(-2 * np.abs(A[:, :, None] - A[:, None, :]))
    assert_scaled(actual, expected)
    with raises(ValueError, "g2_at"):
        xpcs.g2_at(model, [0.2], 0.5, 1.0, [[0, 1, 2]])
