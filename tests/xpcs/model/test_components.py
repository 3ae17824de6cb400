"""Models of components against mpmath: a wrong sign, weight or frame shows here.

c2 follows the formulas of the heterodyne package, with its smooth absolute value: the kernels have
|A_i - A_j| instead, which differs by up to q^2/2 1e-6 (1e-11 for these q).
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.xpcs.component_oracle import TRUTH, Heterodyne
from support.xpcs.two_time_oracle import dense_normal_equations
from support.xpcs.two_time_problems import assert_normalized, measured

from jaxkern import xpcs
from jaxkern.xpcs.model.models import Parameter

N, PHI = 37, np.array([0.0, 40.0, 85.0])
T = 0.1 * np.arange(N)
pytestmark = pytest.mark.usefixtures("x64")


@functools.cache
def problem():
    """Return the model, its oracle, and exact c2 at TRUTH."""
    model = xpcs.TwoComponent(xpcs.Geometry(0.0054, None, 0.1, T, PHI))
    oracle = Heterodyne(0.0054, 0.1, T, PHI)
    return model, oracle, oracle.g2(TRUTH, 0.3, 1.1)


def test_parameters():
    model = problem()[0]
    assert model.parameter_names == (
        *("D0_ref", "alpha_ref", "D_offset_ref", "D0_sample", "alpha_sample", "D_offset_sample"),
        *("v0", "v_beta", "v_offset", "f0", "f1", "f2", "f3", "phi0_het"),
    )
    assert model.defaults.tolist() == [1e4, 0, 0, 1e4, 0, 0, 1e3, 1, 0, 0.5, 0, 0, 0, 0]
    diffusion = [[0, 1e6], [-2, 2], [-1e4, 1e4]]
    velocity, fraction = [[0, 1e6], [0, 2], [-100, 100]], [[0, 1], *[[-1, 1]] * 3]
    expected = [*diffusion, *diffusion, *velocity, *fraction, [-10, 10]]
    assert model.bounds.tolist() == expected


def test_c2_is_that_of_mpmath(backend):
    model, _, exact = problem()
    assert np.abs(xpcs.g2(model, TRUTH, 0.3, 1.1) - exact).max() < 2e-11
    index = np.array([[0, 3, 3], [1, 0, 36], [2, 20, 7]])
    assert np.abs(xpcs.g2_at(model, TRUTH, 0.3, 1.1, index) - exact[tuple(index.T)]).max() < 2e-11
    small = xpcs.g2_at(model, TRUTH, 0.3, 1.1, index.astype(np.uint8))
    np.testing.assert_array_equal(small, xpcs.g2_at(model, TRUTH, 0.3, 1.1, index))
    with raises(IndexError, "index[0]", "(3, 37, 37)"):
        xpcs.g2_at(model, TRUTH, 0.3, 1.1, [[3, 0, 0]])


@pytest.mark.parametrize(
    "change",
    [
        {9: 0.0, 12: -0.5},  # no sample
        {9: 1.0, 10: 0.9, 12: 0.9},  # no reference
        {0: 0.0, 2: -50.0},  # a rate below 0 counts as 0
        {1: -1.5, 4: -0.7, 7: 0.0},  # rates that diverge at t = 0
        {8: -100.0, 13: -10.0},
    ],
)
def test_c2_at_limits(change):
    model, oracle, _ = problem()
    params = TRUTH.copy()
    for k, value in change.items():
        params[k] = value
    assert np.abs(xpcs.g2(model, params, 0.3, 1.1) - oracle.g2(params, 0.3, 1.1)).max() < 2e-10
    slopes = jax.jacfwd(lambda p: xpcs.g2(model, p, 0.3, 1.1))(jnp.asarray(params))
    assert np.isfinite(slopes).all()


def test_normal_equations(backend):
    """Those of a dense Jacobian, which equals finite differences in 50 digits at some points."""
    model, oracle, exact = problem()
    data = measured(exact, 0.01, symmetric=True)

    @jax.jit
    def slopes(v):
        return jax.jacfwd(lambda v: xpcs.g2(model, v[2:], v[0], v[1]))(v)

    jacobian = np.asarray(slopes(np.array([0.3, 1.1, *TRUTH])))
    for angle, i, j in ((0, 1, 2), (1, 30, 4), (2, 9, 36)):
        expected = np.array(oracle.slopes(TRUTH, 0.3, 1.1, angle, i, j))
        size = np.abs(jacobian[angle]).max((0, 1))
        assert np.all(np.abs(jacobian[angle, i, j] - expected) <= 1e-9 * size)
    keep = np.ones(N, bool)
    keep[11] = False
    used = keep.copy()
    used[0] = False  # the model does not use frame 0
    sigma = np.random.default_rng(3).uniform(0.01, 0.02, data.shape)
    sigma[1, 5, 7] = 0.0
    cases = (
        {"symmetric": "auto"},
        {"symmetric": True, "loss": "cauchy", "f_scale": 2.0},
        {"symmetric": False, "sigma": sigma},
    )
    for options in cases:
        deviation = options.pop("sigma", 0.01)
        ne = xpcs.normal_equations(
            model, TRUTH, 0.3, 1.1, data, deviation, scaling="constant", keep=keep, **options
        )
        robust = {key: options[key] for key in ("loss", "f_scale") if key in options}
        c2 = xpcs.g2(model, TRUTH, 0.3, 1.1)
        dense = dense_normal_equations(np.asarray(c2), jacobian, data, deviation, used, **robust)
        assert_normalized(ne.jtj, dense["jtj"])
        scale = np.sqrt(np.diag(dense["jtj"]) * dense["chi2"])
        assert np.all(np.abs(ne.jtr - dense["jtr"]) <= 1e-11 * scale)
        for name in ("chi2", "cost", "count"):
            assert abs(getattr(ne, name) / dense[name] - 1) < 1e-12
        assert ne.mirrored == (0 if deviation is sigma else ne.count)


def test_residual_leaves_out_frame_0(backend):
    model, _, exact = problem()
    data = measured(exact, 0.01)
    r = np.asarray(xpcs.residual(model, TRUTH, 0.3, 1.1, data, 0.01))
    expected = (data - exact) / 0.01
    for angle in expected:
        angle[0], angle[:, 0] = 0, 0
        np.fill_diagonal(angle, 0)
    assert np.abs(r - expected).max() < 1e-8
    value, slope = jax.value_and_grad(xpcs.log_likelihood, 1)(
        model, TRUTH, 0.3, 1.1, data, 0.01, symmetric=False
    )
    assert abs(value / (-0.5 * (expected**2).sum()) - 1) < 1e-8
    gradient = jax.grad(
        lambda p: -0.5 * jnp.sum(xpcs.residual(model, p, 0.3, 1.1, data, 0.01) ** 2)
    )(jnp.asarray(TRUTH))
    assert np.all(np.abs(slope - gradient) <= 1e-8 * np.abs(gradient).max())


def three():
    """Return the functions of three components, of which one may have no weight at first."""
    t, one = jnp.asarray(T), jnp.ones(N)

    def first(p):
        return jnp.sqrt(1 - p[0]) * one, p[1] * t, 0 * t

    def second(p):
        return jnp.sqrt(0.5) * p[0] * one, p[2] * t**2, p[3] * t

    def third(p):
        return p[4] * one + 0.3 * (t > 1.0), 0 * t, jnp.outer(jnp.asarray(PHI), p[3] * t)

    return first, second, third


def test_three_components(backend):
    """Any number of components, also with a weight of 0, where the derivative is not 0."""
    parameters = [Parameter(name, "", 0.5, 0.0, 1.0) for name in "abcde"]
    model = xpcs.Components(xpcs.Geometry(0.01, None, 0.1, T, PHI), three(), parameters)
    params = jnp.array([0.3, 0.4, 0.05, 0.7, 0.0])

    def dense(p):
        tables = [function(p) for function in three()]
        total = 0
        for weight, decay, phase in tables:
            phase = jnp.atleast_2d(phase)
            size = weight[:, None] * weight * jnp.exp(-jnp.abs(decay[:, None] - decay))
            total = total + size * jnp.exp(1j * (phase[:, :, None] - phase[:, None]))
        return 1.0 + 0.3 * jnp.abs(total) ** 2

    c2 = jax.jit(dense)(params)
    assert np.abs(xpcs.g2(model, params, 0.3, 1.0) - c2).max() < 1e-14
    data = measured(c2, 0.01)
    ne = xpcs.normal_equations(
        model, params, 0.3, 1.0, data, 0.01, scaling="fixed", symmetric=False
    )
    jacobian = np.asarray(jax.jit(jax.jacfwd(dense))(params))
    expected = dense_normal_equations(np.asarray(c2), jacobian, data, 0.01)
    assert_normalized(ne.jtj, expected["jtj"])
    assert expected["jtj"][4, 4] > 0


def test_bad_functions():
    geometry = xpcs.Geometry(0.01, None, 0.1, T, PHI)
    parameter = Parameter("a", "", 0.5, 0.0, 1.0)
    with raises(ValueError, "functions", "one function", "[]"):
        xpcs.Components(geometry, [], [parameter])
    with raises(ValueError, "parameters", "different names", "['a', 'a']"):
        xpcs.Components(geometry, [three()[0]], [parameter, parameter])
    model = xpcs.Components(geometry, [lambda p: (p, p)], [parameter])
    with raises(ValueError, "functions[0]", "(weight, decay, phase)", "[(1,), (1,)]"):
        xpcs.g2(model, [0.5])


def test_photons_have_the_correlation_of_the_model():
    """The field of two components is complex; real speckles would have another g2."""
    t = 0.1 * np.arange(6)
    model = xpcs.TwoComponent(xpcs.Geometry(0.0054, None, 0.1, t, [0.0]))
    params = TRUTH.copy()
    params[6:9] = 4e3, 0.0, 0.0  # a turn in three frames
    c2 = xpcs.simulate_photons(model, params, photons=20.0, pixels=100_000, modes=1, seed=3)
    off = ~np.eye(6, dtype=bool)
    assert np.abs(c2 - xpcs.g2(model, params, 1.0, 1.0))[0, off].max() < 0.05
