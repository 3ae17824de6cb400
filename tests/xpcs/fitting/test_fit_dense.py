"""Fits compared with SciPy's fits of the dense problem: sums, weights, masks and errors."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from support.errors import raises
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import assert_same_optimum, model_of

import jaxkern as jk

TIGHT = {"ftol": 1e-14, "xtol": 1e-12, "gtol": None}


@pytest.mark.parametrize("mirrored", [True, False])
def test_individual_scales(mirrored):
    case = problems.simulate(mirrored=mirrored)
    n = case.data.shape[1]
    points = None if mirrored else ~np.eye(n, dtype=bool)
    start = np.concatenate([case.contrast, case.offset, problems.START])
    lower = np.concatenate([[0] * 3, [0.5] * 3, [100, -2, -1e5, 1e-6, -2, -0.1, -10]])
    upper = np.concatenate([[1] * 3, [1.5] * 3, [1e5, 2, 1e5, 0.5, 2, 0.1, 10]])
    dense = problems.dense_fit(case, start, bounds=(lower, upper), points=points)
    result = checks.fit(model_of(case), case.data, 1.0, problems.START, **TIGHT)
    assert result.success
    assert_same_optimum(result, dense)
    pairs = 2 if mirrored else 1
    assert result.chi2 == pytest.approx(2 * dense.cost * pairs, rel=1e-9)
    assert result.count == 3 * n * (n - 1)
    assert result.independent_count == len(dense.fun)
    assert result.reduced_chi2 == pytest.approx(2 * dense.cost / (len(dense.fun) - 13), rel=1e-9)


def test_absolute_sigma_and_pointwise_sigma():
    case = problems.simulate(seed=2)
    draw = np.random.default_rng(9)
    sigma = 0.004 * np.exp(0.3 * draw.normal(size=case.data.shape))
    sigma = np.sqrt(sigma * np.swapaxes(sigma, 1, 2))
    dense = problems.dense_fit(case, sigma=sigma)
    how = {"absolute_sigma": True, **TIGHT}
    result = checks.fit(model_of(case), case.data, sigma, problems.TRUTH, **how)
    inverse = np.linalg.inv(dense.jac.T @ dense.jac)
    np.testing.assert_allclose(result.perr_independent, np.sqrt(np.diag(inverse)), rtol=1e-3)
    weighted = checks.fit(
        model_of(case), case.data, p0=problems.TRUTH, weights=sigma**-2.0, **TIGHT
    )
    np.testing.assert_allclose(weighted.popt, result.popt, rtol=1e-5)
    per_angle = checks.fit(
        model_of(case), case.data, [0.004, 0.008, 0.002], problems.TRUTH, **TIGHT
    )
    sigma = np.array([0.004, 0.008, 0.002])[:, None, None]
    assert_same_optimum(per_angle, problems.dense_fit(case, sigma=sigma))


@pytest.mark.parametrize("loss", ["soft_l1", "huber", "cauchy", "arctan"])
def test_robust_losses_reach_scipys_optimum(loss):
    case = problems.simulate(seed=3)
    data = case.data.copy()
    spots = np.random.default_rng(4).integers(0, 40, (3, 60, 2))
    for k in range(3):
        i, j = spots[k].T
        data[k, i, j] += 0.2
        data[k, j, i] = data[k, i, j]
    bad = replace(case, data=data)
    dense = problems.dense_fit(bad, sigma=0.004, loss=loss, f_scale=1.5)
    result = checks.fit(model_of(bad), data, 0.004, problems.TRUTH, loss=loss, f_scale=1.5, **TIGHT)
    assert result.cost == pytest.approx(2 * 2 * dense.cost, rel=1e-7)
    np.testing.assert_array_less(np.abs(result.popt - dense.x), 0.02 * result.perr)
    plain = checks.fit(model_of(bad), data, 0.004, problems.TRUTH, **TIGHT)
    off, off_plain = (np.abs(r.popt - case.truth)[:6].max() for r in (result, plain))
    assert off < off_plain


def test_shared_fixed_and_auto_scales():
    case = problems.simulate(same_scales=True, seed=5)
    start = np.concatenate([[0.3], [1.0], problems.START])
    dense = problems.dense_fit(case, start, basis=np.ones((3, 1)))
    for scaling in ("constant", "auto"):
        result = checks.fit(
            model_of(case), case.data, 1.0, problems.START, scaling=scaling, **TIGHT
        )
        assert result.names[:3] == ("contrast", "offset", "D0")
        assert_same_optimum(result, dense)
        np.testing.assert_array_equal(result.contrast, np.full(3, result.popt[0]))
    fixed = checks.fit(
        model_of(case), case.data, 1.0, problems.START, 0.3, 1.0, scaling="fixed", **TIGHT
    )
    assert fixed.names == model_of(case).parameter_names
    np.testing.assert_array_less(np.abs(fixed.popt - problems.TRUTH), 5 * fixed.perr)


def test_masked_frames_have_no_weight():
    case = problems.simulate(seed=6)
    data = case.data.copy()
    keep = np.ones(40, bool)
    keep[[3, 17, 18]] = False
    data[:, ~keep] = np.nan
    data[:, :, ~keep] = np.nan
    used = keep & (np.arange(40) >= 2) & (np.arange(40) < 38)
    points = np.triu(np.outer(used, used), 1)
    dense = problems.dense_fit(case, points=points)
    result = checks.fit(model_of(case), data, 1.0, problems.TRUTH, keep=used, **TIGHT)
    assert result.success_rate == 1.0
    assert result.independent_count == len(dense.fun)
    assert_same_optimum(result, dense)
    sliced = checks.fit(model_of(case), case.data, keep=slice(2, 38))
    np.testing.assert_array_equal(np.flatnonzero(sliced.keep), np.arange(2, 38))


def test_held_parameters_do_not_change():
    case = problems.simulate(seed=7)
    start = {"D0": 15000.0, "alpha": -0.8, "D_offset": 5000.0, "gamma_dot_t0": 4e-3, "beta": -0.8}
    start["gamma_dot_t_offset"] = 1e-3
    result = checks.fit(
        model_of(case), case.data, 1.0, start, hold=["D_offset", "gamma_dot_t_offset"], **TIGHT
    )
    assert result.as_dict["D_offset"] == 5000.0
    assert result.pcov[8, 8] == 0.0
    free = [k for k in range(13) if result.names[k] not in ("D_offset", "gamma_dot_t_offset")]
    np.testing.assert_array_less(np.abs(result.popt - case.truth)[free], 5 * result.perr[free])


def test_fifty_truths_are_recovered():
    """The pulls (deviation / standard error) of 50 fits have a variance of 1 and no outliers."""
    draw = np.random.default_rng(11)
    pulls = []
    for seed in range(50):
        low = [15000, -1.2, 3000, 4e-3, -1.2, 0.8e-3, -6]
        physics = draw.uniform(low, [30000, -0.8, 7000, 8e-3, -0.8, 1.5e-3, 6])
        case = problems.simulate(32, 0.002, seed=100 + seed, physics=physics)
        start = physics * draw.uniform(0.8, 1.25, 7)
        result = checks.fit(model_of(case), case.data, p0=start)
        assert result.success
        pulls.append((result.popt - case.truth) / result.perr_independent)
    assert np.abs(pulls).max() < 5
    assert 0.85 < np.sqrt(np.mean(np.square(pulls))) < 1.15


def test_the_precision_of_the_caller_does_not_matter():
    case = problems.simulate(seed=8)
    assert jax.config.jax_enable_x64 is False
    first = checks.fit(model_of(case), case.data, p0=problems.START)
    with jax.enable_x64(True):
        second = checks.fit(model_of(case), case.data, p0=problems.START)
    np.testing.assert_array_equal(first.popt, second.popt)
    assert jax.numpy.ones(1).dtype == np.float32


def test_multistart_finds_the_best():
    case = problems.simulate(seed=9)
    poor = [1e5, 1.9, -50.0, 0.4, 1.5, 0.05, 9.0]
    # Half of the starts of this seed end in the best minimum, on each CPU.
    result = checks.fit(model_of(case), case.data, 1.0, poor, multistart=8, seed=0)
    good = checks.fit(model_of(case), case.data, 1.0, problems.TRUTH)
    assert len(result.start_costs) == 8
    assert result.cost == min(result.start_costs)
    assert result.cost == pytest.approx(good.cost, rel=1e-4)


def test_curve_fit_returns_popt_and_pcov():
    case = problems.simulate(seed=10)
    popt, pcov = jk.xpcs.curve_fit(model_of(case), case.data, problems.START, search="local")
    result = checks.fit(model_of(case), case.data, p0=problems.START)
    np.testing.assert_array_equal(popt, result.popt)
    np.testing.assert_array_equal(pcov, result.pcov)


def test_drawn_starts_where_the_model_overflows_are_skipped():
    import jax.numpy as jnp

    n = 40
    t = np.arange(n) * 1.0
    geometry = jk.xpcs.Geometry(0.0054, None, 1.0, t, 0.0)

    def phases(p):
        return jnp.where(p[0] > 0.2, jnp.nan, p[0]) * jnp.asarray(t), jnp.zeros((1, n))

    model = jk.xpcs.CustomModel(geometry, phases, ["rate"], bounds=[(0.0, 1.0)], shear_power=0)
    data = 1 + 0.3 * np.exp(-0.1 * np.abs(np.subtract.outer(t, t)))
    result = checks.fit(model, data[None], 0.01, [0.1], multistart=6, seed=2)
    assert result.physics[0] == pytest.approx(0.05, rel=1e-6)
    assert np.isinf(result.start_costs).any()
    with raises(ValueError, "cost nan at", "0.5]"):
        checks.fit(model, data[None], 0.01, [0.5])
