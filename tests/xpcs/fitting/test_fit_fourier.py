"""Contrast and baseline as Fourier series in phi, compared with SciPy's dense fit of them.

Would catch: a wrong chain rule from angles to coefficients, in values, errors or bounds.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.errors import raises, warns
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk

PHI = np.array([-20.0, 0.0, 35.0, 70.0, 110.0, 150.0, 200.0, 250.0])
ORDER = 2
CONTRAST = np.array([0.3, 0.05, -0.02, 0.03, 0.01])
OFFSET = np.array([1.0, -0.01, 0.02, 0.005, 0.01])
NAMES = ("c0", "c1", "s1", "c2", "s2")
TIGHT = {"ftol": 1e-14, "xtol": 1e-12, "gtol": None}


def series(phi, order=ORDER):
    radians = np.deg2rad(phi)
    waves = [f(m * radians) for m in range(1, order + 1) for f in (np.cos, np.sin)]
    return np.stack([np.ones(len(phi)), *waves], axis=1)


@pytest.fixture(scope="module")
def case():
    base = problems.simulate(phi=PHI, seed=81)
    contrast, offset = series(PHI) @ CONTRAST, series(PHI) @ OFFSET
    noise = base.data - problems.correlation(base.physics, base.contrast, base.offset, 40, PHI)
    data = problems.correlation(base.physics, contrast, offset, 40, PHI) + noise
    return replace(base, data=data, contrast=contrast, offset=offset)


def fit(case, **options):
    options = {"p0": problems.START, "scaling": "fourier", **TIGHT, **options}
    return checks.fit(model_of(case), case.data, 1.0, **options)


@pytest.fixture(scope="module")
def fitted(case):
    return fit(case)


def test_scipys_optimum_and_covariance(case, fitted):
    """To 1e-3 of the standard errors, and the errors to 1e-3."""
    truth = np.concatenate([CONTRAST, OFFSET, problems.TRUTH])
    dense = problems.dense_fit(case, truth, basis=series(PHI))
    checks.assert_same_optimum(fitted, dense)
    names = [f"{scale}[{name}]" for scale in ("contrast", "offset") for name in NAMES]
    assert fitted.names[:10] == tuple(names)
    np.testing.assert_array_less(np.abs(fitted.popt - truth), 5 * fitted.perr)
    assert fitted.success


def test_contrast_and_baseline_of_the_angles(case, fitted):
    for k, name in enumerate(("contrast", "offset")):
        part = slice(5 * k, 5 * k + 5)
        value, error = getattr(fitted, name), getattr(fitted, f"{name}_error")
        np.testing.assert_allclose(value, series(PHI) @ fitted.popt[part], rtol=1e-12)
        covariance = series(PHI) @ fitted.pcov[part, part] @ series(PHI).T
        np.testing.assert_allclose(error, np.sqrt(np.diag(covariance)), rtol=1e-9)
        np.testing.assert_array_less(np.abs(value - getattr(case, name)), 5 * error)
    shown = f"at angle 7: contrast {fitted.contrast[7]:.6g} +/- {fitted.contrast_error[7]:.2g}"
    assert shown in str(fitted)


@pytest.mark.parametrize(
    ("frames", "options", "rtol"),
    # Curvatures of a robust loss are differences over steps that depend on the scaling.
    [
        (40, {}, 1e-3),
        (40, {"loss": "huber", "f_scale": 0.004}, 5e-3),
        (13, {"hold": ["phi0", "beta"]}, 1e-3),
    ],
    ids=["frames", "robust", "angles"],
)
def test_as_many_coefficients_as_angles_are_individual_scaling(frames, options, rtol):
    """The same minimum, and the same errors of all jackknives."""
    case = problems.simulate(frames, phi=PHI[:5], seed=82)
    many, one = (fit(case, scaling=scaling, **options) for scaling in ("fourier", "individual"))
    assert many.errors == one.errors
    assert many.cost == pytest.approx(one.cost, rel=1e-10)
    np.testing.assert_allclose(many.popt[10:], one.popt[10:], rtol=1e-5)
    np.testing.assert_allclose(many.perr[10:], one.perr[10:], rtol=rtol)
    for name in ("contrast", "offset"):
        np.testing.assert_allclose(getattr(many, name), getattr(one, name), rtol=1e-6)
        errors = (getattr(result, f"{name}_error") for result in (many, one))
        np.testing.assert_allclose(*errors, rtol=rtol)


def test_streamed_and_sharded_data_and_a_profile(case, fitted):
    streamed = fit(case, strategy="stream", chunk_points=4000)
    mesh = jax.make_mesh((4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    with jax.enable_x64(True):
        data = jax.device_put(case.data, jax.NamedSharding(mesh, jax.P("d")))
    for result in (streamed, fit(replace(case, data=data))):
        np.testing.assert_array_less(np.abs(result.popt - fitted.popt), 1e-6 * fitted.perr)
        np.testing.assert_allclose(result.pcov, fitted.pcov, rtol=1e-5, atol=1e-9)
    low, high = fitted.profile("contrast[s1]", progress=False).intervals[0.68]
    value, error = fitted.as_dict["contrast[s1]"], fitted.perr[2]
    np.testing.assert_allclose([value - low, high - value], error, rtol=0.05)


def test_an_excluded_angle_has_the_contrast_of_the_series(case):
    data = case.data.copy()
    data[3] = np.nan
    with warns(RuntimeWarning, "row blocks are excluded"):
        result = fit(replace(case, data=data))
    assert np.isfinite(result.perr).all()
    assert abs(result.contrast[3] - case.contrast[3]) < 5 * result.contrast_error[3]


def test_bounds_allow_all_values_of_the_angles_within_them(case):
    """The bounds of coefficients are reached by angles at theirs, and not exceeded."""
    bounds = {"contrast": (0.1, 0.4), "contrast[s2]": (-0.3, 0.0)}
    result = fit(case, bounds=bounds)
    lower, upper = (bound[:5] for bound in result._problem[0].bounds.solver)
    corners = np.array(list(itertools.product([0.1, 0.4], repeat=8)))
    coefficients = np.linalg.lstsq(series(PHI), corners.T)[0]
    np.testing.assert_allclose(coefficients.min(1)[:4], lower[:4], atol=1e-9)
    np.testing.assert_allclose(coefficients.max(1)[:4], upper[:4], atol=1e-9)
    assert (lower[4], upper[4]) == (-0.3, 0.0)
    assert result.popt[4] == pytest.approx(0.0, abs=1e-4)  # the truth is positive


@pytest.mark.parametrize(
    ("phi", "order", "words"),
    [
        (PHI[:3], 2, ("5 coefficients", "3 angles", "lower order", 'scaling="individual"')),
        ([0.0, 90.0, 180.0, 270.0, 360.0], 2, ("5 angles, which determine 4",)),
        (PHI, 0, ("fourier_order", "0")),
    ],
)
def test_angles_that_do_not_determine_the_series(phi, order, words):
    case = problems.simulate(12, phi=np.array(phi))
    with raises(ValueError, *words):
        fit(case, fourier_order=order)


@pytest.mark.slow
def test_the_posterior_uses_the_series():
    """Draws near the fit; a wrong contrast of an angle would be far away."""
    phi = np.array([0.0, 50.0, 100.0])
    model = checks.flow(24, phi, jk.xpcs.Static)
    contrast = series(phi, 1) @ [0.3, 0.1, -0.05]
    draw = np.triu(np.random.default_rng(84).normal(0, 0.004, (3, 24, 24)), 1)
    clean = jk.xpcs.simulate(model, [2e4, -1.0, 5000.0], contrast, 1.0)
    data = clean + draw + np.swapaxes(draw, 1, 2)
    options = {"scaling": "fourier", "fourier_order": 1, "hold": ["D_offset"]}
    result = checks.fit(model, data, 0.004, [2e4, -1.0, 5000.0], **options)
    sampled = jk.xpcs.posterior(model, data, result, chains=1, draws=100, progress=False)
    assert sampled.names[:4] == ("contrast[c0]", "contrast[c1]", "contrast[s1]", "offset[c0]")
    distance = np.abs(sampled.samples[0].mean(0) - sampled.fitted)
    assert (distance < np.sqrt(result.inflation) * result.perr_independent[[*range(8)]]).all()
