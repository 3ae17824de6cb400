"""Standard errors by the jackknife, compared with SciPy's refits of the remaining data."""

from __future__ import annotations

import json
from dataclasses import replace

import jax
import numpy as np
import pytest
from support.errors import raises, warns
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk

# Rates that change slowly, so that all frames have about the same information.
SMOOTH = np.array([5000.0, -0.3, 300.0, 1e-3, 0.1, 1e-4, 3.0])
HOLD = ("D_offset", "gamma_dot_t_offset")
TIGHT = {"ftol": 1e-14, "xtol": 1e-12, "gtol": None}


def power(matrix, exponent):
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * values**exponent) @ vectors.T


def weighted_jackknife(jacobian, residual, blocks, refits=None):
    """Return the covariance from the Jacobian [m, p] and the residuals at the optimum.

    `blocks` are masks [m] of the points of each block. `refits` [B, p] are changes of the
    parameters that replace the steps.
    """
    scale = np.linalg.norm(jacobian, axis=0)
    J = jacobian / scale
    H = J.T @ J
    changes = []
    for number, block in enumerate(blocks):
        remaining = H - J[block].T @ J[block]
        part = power(H, -0.5) @ remaining @ power(H, -0.5)
        if refits is None:
            step = np.linalg.solve(remaining, J[~block].T @ residual[~block])
        else:
            step = refits[number] * scale
        changes.append(power(H, -0.5) @ power(part, 0.5) @ power(H, 0.5) @ step / scale)
    changes = np.array(changes) - np.mean(changes, axis=0)
    return len(blocks) / (len(blocks) - 1) * changes.T @ changes


def dense_without(case, x, points):
    """Fit points [n_phi, n, n] with SciPy; return x, Jacobian, data - model and free indices."""
    count, n, _ = case.data.shape
    free = np.r_[: 2 * count, 2 * count + np.array([0, 1, 3, 4, 6])]
    full = x.copy()

    def residual(part):
        full[free] = part
        model = problems.correlation(full[2 * count :], *full[: 2 * count].reshape(2, -1), n,
                                     case.phi)  # fmt: skip
        return (model - case.data)[points]

    from scipy.optimize import least_squares

    result = least_squares(
        residual, x[free], jac="3-point", x_scale="jac", ftol=1e-15, xtol=1e-13, gtol=1e-15
    )
    return result.x, result.jac, -result.fun, free


def assert_covariance(pcov, expected, free, rtol):
    deviation = np.sqrt(np.diag(expected))
    np.testing.assert_allclose(np.sqrt(np.diag(pcov))[free], deviation, rtol=rtol)
    scaled = (pcov[np.ix_(free, free)] - expected) / np.outer(deviation, deviation)
    assert np.abs(scaled).max() < 2 * rtol


@pytest.mark.parametrize("mirrored", [True, False])
def test_equals_refits_without_blocks_of_frames(mirrored):
    """10 blocks of the 38 used frames, left out of rows and columns, refitted by SciPy."""
    phi = np.array([0.0, 60.0])
    case = problems.simulate(40, 1e-4, seed=1, physics=SMOOTH, phi=phi, mirrored=mirrored)
    keep = np.ones(40, bool)
    keep[[5, 23]] = False
    result = checks.fit(model_of(case), case.data, 1.0, SMOOTH, hold=HOLD, keep=keep, **TIGHT)
    assert result.errors == "jackknife over 10 blocks of 3.8 frames"
    both = np.outer(keep, keep) & ~np.eye(40, dtype=bool)
    points = np.broadcast_to(np.triu(both) if mirrored else both, case.data.shape)
    x, J, r, free = dense_without(case, result.popt, points)
    angle, i, j = np.nonzero(points)
    left_out, refits = [], []
    for block in np.array_split(np.flatnonzero(keep), 10):
        out = np.isin(i, block) | np.isin(j, block)
        rest = points.copy()
        rest[angle[out], i[out], j[out]] = False
        left_out.append(out)
        if mirrored:
            refits.append(dense_without(case, result.popt, rest)[0] - x)
    if mirrored:
        refitted = weighted_jackknife(J, r, left_out, np.array(refits))
        assert_covariance(result.pcov, refitted, free, 5e-3)
    assert_covariance(result.pcov, weighted_jackknife(J, r, left_out), free, 1e-3)
    assert (result.pcov[[6, 9]] == 0).all()
    inverse = np.linalg.inv(J.T @ J) * (r @ r) / (len(r) - len(free))
    np.testing.assert_allclose(result.perr_independent[free], np.sqrt(np.diag(inverse)), rtol=1e-3)
    sigma = np.sqrt((r @ r) / (len(r) - len(free)))
    physics = [4, 5, 7, 8, 10]
    ratios = (result.perr[physics] / result.perr_independent[physics]) ** 2 * sigma**2
    assert result.inflation == pytest.approx(ratios.mean(), rel=1e-3)


def test_equals_refits_without_angles_if_frames_are_few():
    phi = np.linspace(0, 80, 5)
    case = problems.simulate(20, 1e-4, seed=2, physics=SMOOTH, phi=phi)
    result = checks.fit(model_of(case), case.data, 1.0, SMOOTH, hold=HOLD, **TIGHT)
    assert (result.errors, result.error_passes) == ("jackknife over 5 angles", 0)
    points = np.broadcast_to(np.triu(np.ones((20, 20), bool), 1), case.data.shape)
    x, J, r, free = dense_without(case, result.popt, points)
    angle = np.nonzero(points)[0]
    # Contrast and offset of the angles are projected out, which leaves the physics.
    J_scales, J_physics = J[:, :10], J[:, 10:]
    solve = np.linalg.pinv(J_scales)
    reduced = J_physics - J_scales @ (solve @ J_physics)
    refits = []
    for k in range(5):
        rest = points.copy()
        rest[k] = False
        refits.append((dense_without(case, result.popt, rest)[0] - x)[10:])
    physics = weighted_jackknife(reduced, r, [angle == k for k in range(5)], np.array(refits))
    assert_covariance(result.pcov, physics, free[10:], 5e-3)
    follow = -solve @ J_physics
    own = np.linalg.inv(J_scales.T @ J_scales)
    scales = follow @ physics @ follow.T + result.inflation * own
    assert_covariance(result.pcov, scales, free[:10], 5e-3)


def test_equals_the_formula_without_angles_for_coefficients_of_a_series():
    phi = np.linspace(0, 240, 7)
    basis = np.stack([np.ones(7), np.cos(np.deg2rad(phi)), np.sin(np.deg2rad(phi))], 1)
    case = problems.simulate(20, 1e-4, seed=2, physics=SMOOTH, phi=phi, same_scales=True)
    options = {"scaling": "fourier", "fourier_order": 1, **TIGHT}
    result = checks.fit(model_of(case), case.data, 1.0, SMOOTH, **options)
    assert result.errors == "jackknife over 7 angles"
    dense = problems.dense_fit(case, result.popt, basis=basis)
    blocks = np.repeat(np.arange(7), 190) == np.arange(7)[:, None]
    covariance = weighted_jackknife(dense.jac, -dense.fun, blocks)
    assert_covariance(result.pcov, covariance, np.arange(13), 1e-2)


@pytest.mark.parametrize("loss", ["huber", "cauchy"])
def test_robust_losses_by_full_refits(loss):
    """Steps with the weights rho' alone would give at most half of these errors."""
    model = checks.flow(60, [0.0, 45.0, 85.0])
    physics = SMOOTH * [1, 1, 0, 1, 1, 0, 1]
    data = jk.xpcs.simulate_photons(model, physics, photons=20, seed=3)
    how = {"hold": HOLD, "loss": loss, "symmetric": True}
    result = checks.fit(model, data, 0.01, physics, **how)
    assert result.error_passes == 10 + 2 + 5
    changes = []
    for block in np.array_split(np.arange(60), 10):
        keep = ~np.isin(np.arange(60), block)
        start = result.physics, result.contrast, result.offset
        rest = checks.fit(model, data, 0.01, *start, keep=keep, errors="independent", **how)
        changes.append(rest.popt - result.popt)
    usual = np.sqrt(10 * 0.9 * np.var(changes, axis=0))
    ratio = (result.perr / np.where(usual > 0, usual, 1))[usual > 0]
    assert 0.85 < np.median(ratio) < 1.15
    assert ratio.min() > 0.5


@pytest.mark.parametrize("scaling", ["individual", "constant"])
def test_excluded_angles_are_not_part_of_the_jackknife(scaling):
    phi = np.linspace(0, 80, 6)
    case = problems.simulate(20, 1e-3, seed=2, physics=SMOOTH, phi=phi, same_scales=True)
    how = {"p0": SMOOTH, "hold": HOLD, "scaling": scaling, **TIGHT}
    data = case.data.copy()
    data[5] = np.nan
    with warns(RuntimeWarning, "row blocks"):
        result = checks.fit(model_of(case), data, 1.0, **how)
    rest = replace(case, data=case.data[:5], phi=phi[:5])
    alone = checks.fit(model_of(rest), rest.data, 1.0, **how)
    assert result.errors == alone.errors == "jackknife over 5 angles"
    np.testing.assert_allclose(result.perr[-7:], alone.perr[-7:], rtol=1e-3)
    if scaling == "individual":
        assert np.isinf(result.perr[[5, 11]]).all()
    data[4] = np.nan
    with warns(RuntimeWarning, "row blocks"):
        four = checks.fit(model_of(case), data, 1.0, **how)
    assert four.errors == "jackknife over 6 blocks of 3.33 frames"


def test_too_little_data_for_a_jackknife():
    case = problems.simulate(12, seed=5)
    result = checks.fit(model_of(case), case.data, 1.0, problems.TRUTH)
    assert result.errors == "independent"
    assert result.pcov.tobytes() == result.pcov_independent.tobytes()
    assert any("got 12 frames and 3 angles" in w for w in result.warnings)
    with raises(ValueError, "'bootstrap'"):
        checks.fit(model_of(case), case.data, errors="bootstrap")


@pytest.mark.parametrize("angles", [4, 5])
def test_correlations_longer_than_a_block(angles):
    """A decay of 30 frames and blocks of 6: angles are left out if there are five."""
    phi = np.linspace(0, 80, angles)
    slow = SMOOTH * [0.15, 1, 0, 0.15, 1, 0, 1]
    case = problems.simulate(60, 1e-3, seed=8, physics=slow, phi=phi)
    bounds = {"D0": (1.0, 1e5)}
    result = checks.fit(model_of(case), case.data, p0=slow, hold=HOLD, bounds=bounds)
    notes = [w for w in result.warnings if "% after 6 frames" in w]
    if angles == 5:
        assert (result.errors, notes) == ("jackknife over 5 angles", [])
    else:
        assert result.errors == "jackknife over 10 blocks of 6 frames"
        assert len(notes) == 1
        A, X = problems.phases(slow, 60, phi)
        f = np.exp(-2 * (A[6:] - A[:-6])) * np.sinc((X[:, 6:] - X[:, :-6]) / np.pi) ** 4
        assert f"{f.mean():.0%}" in notes[0]


def test_rows_that_turn_bad_in_the_passes_for_errors():
    case = problems.simulate(64, seed=6)
    how = {"p0": problems.START, "strategy": "stream"}
    how["streaming"] = jk.xpcs.StreamingOptions(retries=0)
    good = checks.fit(model_of(case), case.data, errors="independent", **how)

    def on_read(*_):
        if source.reads > 3 * 48 + 3 * good.nfev + 10:
            raise OSError("gone")

    source = checks.WatchedSource(case.data, on_read)
    result = checks.fit(model_of(case), source, **how)
    assert result.success_rate == 1.0
    assert result.popt.tobytes() == good.popt.tobytes()
    assert result.errors == "independent"
    assert result.pcov.tobytes() == good.pcov.tobytes()
    assert any("after the fit" in w and "angle 1, rows 0 to 31" in w for w in result.warnings)


def test_both_errors_are_printed_and_saved(tmp_path):
    case = problems.simulate(40, seed=7)
    model = model_of(case)
    result = checks.fit(model, case.data, p0=problems.START)
    line = next(line for line in str(result).splitlines() if " D0 " in line)
    assert f"+/- {result.perr[6]:.2g} ({result.perr_independent[6]:.2g})" in line
    assert "errors: jackknife over 10 blocks of 4 frames (in brackets: for indep" in str(result)
    text, binary = jk.xpcs.save_result(tmp_path, result, model.geometry)
    saved, arrays = json.loads(text.read_text()), np.load(binary)
    parameter = saved["parameters"]["D0"]
    assert parameter["error"] == pytest.approx(result.perr[6])
    assert parameter["error_independent"] == pytest.approx(result.perr_independent[6])
    assert (saved["errors"], saved["error_passes"]) == (result.errors, 10)
    assert saved["inflation"] == pytest.approx(result.inflation)
    np.testing.assert_array_equal(arrays["perr_independent"], result.perr_independent)
    np.testing.assert_array_equal(arrays["pcov_independent"], result.pcov_independent)
    alone = checks.fit(model, case.data, p0=problems.START, errors="independent")
    assert alone.pcov.tobytes() == result.pcov_independent.tobytes()
    assert "(" not in next(line for line in str(alone).splitlines() if " D0 " in line)


def test_the_inflation_widens_the_posterior_like_the_errors():
    """The curvature of the likelihood with the fit's inflation gives the errors of the physics."""
    model = checks.flow(60, [0.0, 45.0, 85.0])
    physics = SMOOTH * [1, 1, 0, 1, 1, 0, 1]
    data = jk.xpcs.simulate_photons(model, physics, photons=20, seed=4)
    result = checks.fit(model, data, p0=physics, hold=HOLD)
    assert result.inflation > 10
    free = np.array([0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 12])
    with jax.enable_x64(True):

        def likelihood(part, inflation):
            x = jax.numpy.asarray(result.popt).at[free].set(part)
            return jk.xpcs.log_likelihood(
                model, x[6:], x[:3], x[3:6], data, result.sigma, symmetric=True, inflation=inflation
            )

        value, slope = jax.value_and_grad(likelihood)(result.popt[free], result.inflation)
        plain, plain_slope = jax.value_and_grad(likelihood)(result.popt[free], 1.0)
        np.testing.assert_allclose(value * result.inflation, plain, rtol=1e-12)
        np.testing.assert_allclose(slope * result.inflation, plain_slope, rtol=1e-9)
        at = result.physics, result.contrast, result.offset
        sums = jk.xpcs.normal_equations(model, *at, data, result.sigma, symmetric=True)
        with raises(ValueError, "inflation", "0.0"):
            likelihood(result.popt[free], 0.0)
    curvature = np.asarray(sums.jtj)[np.ix_(free, free)] / 2 / result.inflation
    scale = np.sqrt(np.diag(curvature))
    posterior = np.diag(np.linalg.inv(curvature / np.outer(scale, scale))) / scale**2
    assert np.mean((result.perr[free] ** 2 / posterior)[6:]) == pytest.approx(1.0, rel=1e-6)
