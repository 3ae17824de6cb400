"""Profile likelihoods against refits with SciPy.

A bug would be a scale of chi2 that differs from that of the errors, others not refitted, or an
interval that ends at a bound without saying so.
"""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.optimize import brentq, least_squares
from support.errors import raises
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems

import jaxkern as jk

N, NOISE = 40, 0.004
HOLD = {"alpha": 0.0, "D_offset": 0.0}


@pytest.fixture(scope="module")
def static():
    """Return a model, noisy data of one angle, and the fit of D0, contrast and offset."""
    t = problems.DT * np.arange(N)
    model = jk.xpcs.Static(jk.xpcs.Geometry(problems.Q, None, problems.DT, t, [0.0]))
    physics = np.array([2000.0, 0.0, 0.0, 1e-12, 0.0, 0.0, 0.0])
    clean = problems.correlation(physics, [0.3], [1.0], N, np.zeros(1))
    error = np.triu(NOISE * np.random.default_rng(3).normal(size=clean.shape), 1)
    data = clean + error + np.swapaxes(error, 1, 2)
    return model, data


def fitted(static, **options):
    options = {"p0": {"D0": 1500.0, **HOLD}, "hold": list(HOLD), "errors": "independent"} | options
    return checks.fit(*static, **options)


def scipy_chi2(data, value, scale):
    """Return the least chi2 with D0 held, of the points above the diagonal."""
    i, j = np.triu_indices(N, 1)
    f = np.exp(-(problems.Q**2) * value * problems.DT * np.abs(i - j))

    def residual(x):
        return (x[0] * f + x[1] - data[0, i, j]) / scale

    return 2 * least_squares(residual, [0.3, 1.0], xtol=1e-14, ftol=1e-14, gtol=1e-14).cost


@pytest.mark.parametrize("absolute", [False, True])
def test_intervals_are_those_of_scipy_refits(static, absolute):
    data = static[1]
    result = fitted(static, sigma=0.006, absolute_sigma=absolute)
    profile = result.profile("D0", progress=False)
    best = result.as_dict["D0"]
    freedom = N * (N - 1) / 2 - 3
    least = scipy_chi2(data, best, 1.0)
    scale = 0.006 if absolute else np.sqrt(least / freedom)
    least = scipy_chi2(data, best, scale)
    for value, delta in zip(profile.values, profile.delta_chi2, strict=True):
        assert scipy_chi2(data, value, scale) - least == pytest.approx(delta, rel=1e-3, abs=1e-4)
    for level, limit in ((0.68, 1.0), (0.95, 3.84)):
        for end, sign in zip(profile.intervals[level], (-1, 1), strict=True):
            far = best + sign * 4 * np.sqrt(limit) * result.perr[result.names.index("D0")]
            expected = brentq(lambda v, c=least + limit: scipy_chi2(data, v, scale) - c, best, far)
            assert end - best == pytest.approx(expected - best, rel=0.01)
    assert profile.notes == ()
    assert profile.nfev < 60


@pytest.mark.parametrize(
    "options", [{}, {"errors": "jackknife"}, {"loss": "soft_l1", "f_scale": 1.0}]
)
def test_a_linear_parameter_has_a_symmetric_interval(static, options):
    result = fitted(static, **options)
    k = result.names.index("offset[0]")
    profile = result.profile("offset[0]", progress=False)
    for level, errors in ((0.68, 1.0), (0.95, 1.96)):
        ends = np.array(profile.intervals[level]) - result.popt[k]
        np.testing.assert_allclose(ends, np.array([-errors, errors]) * result.perr[k], rtol=0.05)
    assert profile.plot().axes[0].get_xlabel() == "offset[0]"
    assert "68%" in str(profile)


def test_a_bound_leaves_the_interval_open(static):
    best = fitted(static)
    error, value = best.perr[best.names.index("D0")], best.as_dict["D0"]
    bounds = {"D0": (value - 10 * error, value + 1.5 * error)}
    result = fitted(static, p0={"D0": value, **HOLD}, bounds=bounds)
    profile = result.profile("D0", progress=False)
    assert np.isfinite(profile.intervals[0.68]).all()
    low, high = profile.intervals[0.95]
    assert (np.isfinite(low), high) == (True, np.inf)
    assert "upper end" in profile.notes[0]
    assert f"its bound {value + 1.5 * error:g}" in profile.notes[0]
    assert profile.values.max() == value + 1.5 * error


def test_a_refit_reports_a_lower_minimum():
    case = problems.simulate(N, NOISE, seed=61)
    wrong = checks.fit(
        checks.model_of(case), case.data, p0=problems.START, errors="independent", max_nfev=3
    )
    error = wrong.perr[wrong.names.index("D0")]
    near = wrong.as_dict["D0"] + 0.01 * error
    profile = wrong.profile("D0", [near], progress=False)
    assert any("fit again from these" in note for note in profile.notes)
    assert len(profile.values) == 2


def test_names_values_and_results_without_data(static):
    result = fitted(static)
    with raises(ValueError, "expected one of the parameters"):
        result.profile("D1")
    with raises(ValueError, "'alpha', which is held"):
        result.profile("alpha")
    with raises(ValueError, "values: expected"):
        result.profile("D0", [-1.0], progress=False)
    with raises(ValueError, "fit again"):
        pickle.loads(pickle.dumps(result)).profile("D0")


def test_a_single_parameter(static):
    result = fitted(static, scaling="fixed", contrast0=0.3, offset0=1.0)
    profile = result.profile("D0", progress=False)
    ends = np.array(profile.intervals[0.68]) - result.popt[0]
    np.testing.assert_allclose(ends, [-result.perr[0], result.perr[0]], rtol=0.1)
