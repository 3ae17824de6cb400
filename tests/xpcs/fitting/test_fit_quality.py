"""The checks of a fit: right results have success=True, wrong ones have False.

Wrong are bad data, minima and models. Right fits are of white noise, or of speckles, whose noise is
correlated over time.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from support.errors import raises, warns
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk

N = 40
# Moves alpha from -0.7 to 0.
BENT = np.array([1, 0, 1, 1, 1, 1, 1])


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=61)


def fit(case, data=None, **arguments):
    data = case.data if data is None else data
    return checks.fit(
        model_of(case), data, **{"p0": problems.START, "symmetric": True, **arguments}
    )


def with_pair(case, value):
    data = case.data.copy()
    data[1, 5, 30] = data[1, 30, 5] = value
    return data


@pytest.mark.parametrize(
    "arguments",
    [
        {"sigma": 0.0},
        {"sigma": np.inf},
        {"sigma": [0.0, np.inf, 0.0]},
        {"sigma": np.full((3, N, N), np.inf)},
        {"weights": 0.0},
    ],
)
def test_no_point_with_weight(case, arguments):
    result = fit(case, **arguments)
    assert not result.success
    assert "no point has weight" in result.message
    assert not any("depend on" in line for line in result.warnings)


@pytest.mark.parametrize("sigma", [None, 0.01, 0.02])
def test_a_wrong_minimum_is_no_success(sigma):
    """With alpha held at 0 the fit converges in a wrong minimum on every CPU.

    The minimum that a distant start leads to depends on the last bits, so only the property is
    tested there: a fit that misses the best minimum is not a success.
    """
    case = problems.simulate(N, 0.0085, seed=61)
    right = fit(case, sigma=sigma)
    assert right.success
    wrong = fit(case, sigma=sigma, hold=["alpha"], p0=problems.START * BENT)
    assert wrong.chi2 > 1.4 * right.chi2
    assert wrong.status > 0
    assert not wrong.success
    assert "residuals are not noise" in wrong.message
    assert "converged but is NOT reliable" in str(wrong)
    # A fit that misses the minimum fails the check, from every start.
    low, high = np.transpose(model_of(case).bounds)
    for seed in range(6):
        start = low + (high - low) * np.random.default_rng(seed).random(7)
        result = fit(case, p0=start, sigma=sigma)
        assert not (result.success and result.chi2 > 1.4 * right.chi2), start


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("step", [2, 3])
def test_no_three_neighbouring_frames_are_used(step, masked):
    """Every second or third frame is left out, by the mask or as NaN; sigma is that of the rest."""
    case = problems.simulate(90, seed=62)
    keep = np.arange(90) % step > 0
    data = case.data.copy()
    if not masked:
        data[:, ~keep] = data[:, :, ~keep] = np.nan
    options = {"keep": keep if masked else None}
    with contextlib.nullcontext() if masked else warns(RuntimeWarning, "frames 0,"):
        right = fit(case, data, **options)
    assert np.array_equal(right.keep, keep)
    np.testing.assert_allclose(right.sigma, case.noise, rtol=0.15)
    assert right.success
    with contextlib.nullcontext() if masked else warns(RuntimeWarning, "frames 0,"):
        wrong = fit(case, data, hold=["alpha"], p0=problems.START * BENT, **options)
    assert not wrong.success
    assert "residuals are not noise" in wrong.message


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "sigma"), [(0.0085, 0.01), (0.004, 0.01), (0.004, None), (0.012, None)]
)
def test_fits_from_distant_starts(noise, sigma):
    """A fit from 3 to 10 times off, or from anywhere within the bounds, succeeds only in the best
    minimum."""
    case = problems.simulate(N, noise, seed=61)
    low, high = np.transpose(model_of(case).bounds)
    best = fit(case, sigma=sigma).chi2
    for seed in range(16 if sigma else 20):
        draw = np.random.default_rng(seed)
        if sigma:
            start = problems.TRUTH * draw.uniform(3, 10, 7) ** draw.choice([-1, 1], 7)
            start[-1] = draw.uniform(-9, 9)
            start = np.clip(start, low + 1e-9, high - 1e-9)
        else:
            start = low + (high - low) * draw.random(7)
        result = fit(case, p0=start, sigma=sigma)
        assert not (result.success and result.chi2 > 1.4 * best), start


def test_the_scale_of_sigma(case):
    """Only with absolute_sigma: too small fails the fit, too large is a warning."""
    for sigma in (0.001, 0.02):
        assert fit(case, sigma=sigma).success
    right = fit(case, sigma=case.noise, absolute_sigma=True)
    assert right.success
    assert not any("sigma is too" in line for line in right.warnings)
    small = fit(case, sigma=0.001, absolute_sigma=True)
    assert not small.success
    assert "sigma is too small" in small.message
    large = fit(case, sigma=0.02, absolute_sigma=True)
    assert large.success
    assert any("sigma is too large" in line for line in large.warnings)


def test_an_outlier_pair_is_located(case):
    result = fit(case, with_pair(case, 30.0))
    assert result.reduced_chi2 > 1e4
    assert not result.success
    assert "limits) 1 (phi 40:" in result.message
    assert "5 (" in result.message.split("worst frames")[1]
    assert "30 (" in result.message.split("worst frames")[1]
    with raises(RuntimeError, "not noise"):
        jk.xpcs.curve_fit(
            model_of(case), with_pair(case, 30.0), problems.START, **checks.options(symmetric=True)
        )


def test_an_outlier_outside_of_the_sampled_rows_is_located():
    """It is searched for in a run over all data."""
    case = problems.simulate(300, 0.02, seed=3, phi=problems.PHI[:1])
    data = case.data.copy()
    data[0, 4, 201] = data[0, 201, 4] = -80.0
    result = checks.fit(model_of(case), data, p0=problems.TRUTH, strategy="stream")
    assert not result.success
    assert "-80 at angle 0, frames 4, 201" in result.message


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_a_flipped_bit_in_a_file(case, tmp_path, strategy):
    np.save(tmp_path / "c2.npy", with_pair(case, 5e69))
    result = fit(case, tmp_path / "c2.npy", strategy=strategy)
    assert not result.success
    assert "30 (" in result.message.split("worst frames")[1]


def test_three_bad_frames_are_located(case):
    data = case.data.copy()
    for frame in (11, 12, 30):
        data[:, frame] += 0.03
        data[:, :, frame] += 0.03
    result = fit(case, data)
    assert 2 < result.reduced_chi2 < 6
    assert not result.success
    frames = result.message.split("worst frames")[1]
    assert all(f" {frame} (" in frames for frame in (11, 12, 30))
    keep = np.ones(N, bool)
    keep[[11, 12, 30]] = False
    assert fit(case, data, keep=keep).success


def test_a_run_of_bad_frames_is_no_correlated_noise():
    case = problems.simulate(100, seed=1)
    data = case.data.copy()
    data[:, 50:65] += 0.02
    data[:, :, 50:65] += 0.02
    result = fit(case, data, p0=problems.TRUTH)
    assert not result.success
    frames = result.message.split("worst frames")[1]
    assert all(50 <= int(part.split(" (")[0]) < 65 for part in frames.split(") ")[1].split("), "))


@pytest.mark.parametrize("sigma", [None, 0.004])
def test_a_robust_loss_with_a_huge_value(case, sigma):
    """The costs of all other points are rounding errors of 1e30, so the solver does not move."""
    result = fit(case, with_pair(case, 1e30), sigma=sigma, loss="huber")
    np.testing.assert_allclose(result.physics, problems.START, rtol=1e-2)
    assert not result.success
    assert "not noise" in result.message


def test_robust_losses_tolerate_outliers(case):
    data = case.data.copy()
    draw = np.random.default_rng(0)
    for i, j in draw.integers(0, N, (8, 2)):
        data[:, i, j] += 1
        data[:, j, i] += 1
    assert not fit(case, data).success
    assert fit(case, data, loss="cauchy").success
    assert fit(case, data, loss="huber").success


def test_an_angle_of_another_sample(case):
    data = case.data.copy()
    other = np.array([1e3, 0, 0, 1e-6, 0, 0, 0])
    data[2] += problems.correlation(other, [0.3], [1.0], N, case.phi[2:])[0]
    data[2] -= problems.correlation(case.physics, case.contrast, case.offset, N)[2]
    result = fit(case, data)
    assert not result.success
    assert "worst angles" in result.message


def test_noise_free_data_are_no_misfit(case):
    clean = problems.correlation(case.physics, case.contrast, case.offset, N)
    for data in (clean, clean.astype(np.float32)):
        assert fit(case, data).success
        assert fit(case, data, sigma=1.0).success


def speckles(model, params, mean, pixels, seed, modes=3):
    """Simulate C2 [n_phi, n, n] of speckles of contrast 1 / modes, with Poisson counts."""
    draw = np.random.default_rng(seed)
    c2 = np.asarray(jk.xpcs.g2(model, params, 1.0, 0.0), np.float64)
    n = c2.shape[1]
    result = np.empty_like(c2)
    for angle, squared in enumerate(c2):
        root = np.linalg.cholesky(np.sqrt(squared) + 1e-5 * np.eye(n))
        fields = root @ draw.normal(size=(2 * modes, n, pixels))
        counts = draw.poisson(mean * (fields**2).mean(0)).astype(float)
        frame = counts.mean(1)
        result[angle] = counts @ counts.T / pixels / np.outer(frame, frame)
    return result


@pytest.mark.parametrize(("mean", "rate"), [(0.05, 3e4), (20.0, 3e4), (20.0, 3e3)])
def test_speckle_noise_is_noise(mean, rate):
    """It is correlated over time, so that reduced chi2 is up to 4 in right fits."""
    t = 0.1 * np.arange(60)
    model = jk.xpcs.Static(jk.xpcs.Geometry(0.0054, None, 0.1, t, [0.0, 60.0]))
    for seed in range(2):
        data = speckles(model, [rate, -0.1, 100.0], mean, 400, seed)
        start = {"D0": rate, "alpha": -0.1, "D_offset": 100.0}
        result = checks.fit(model, data, p0=start, hold=["D_offset"])
        assert result.success, result.message


def stretched(exponent):
    def shape(lags):
        return np.exp(-((0.05 * lags) ** exponent))

    return shape


@pytest.mark.parametrize(
    ("shape", "right"),
    [
        (stretched(1.0), True),
        (stretched(0.6), False),
        (stretched(1.5), False),
        (lambda lags: 0.6 * np.exp(-0.2 * lags) + 0.4 * np.exp(-0.01 * lags), False),
    ],
)
def test_averages_by_lag_reject_wrong_models(shape, right):
    """These misfits of a few percent are below the noise of single points."""
    n, angles, pixels = 150, 4, 300
    draw = np.random.default_rng(3)
    g1 = shape(np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(float))
    root = np.linalg.cholesky(g1 + 1e-9 * np.eye(n))
    fields = root @ draw.normal(size=(angles, 4, n, pixels))
    counts = draw.poisson(2.0 * (fields**2).mean(1)).astype(float)
    total = counts.sum(2)
    data = pixels * counts @ counts.swapaxes(1, 2) / (total[:, :, None] * total[:, None, :])
    t, phi = np.arange(float(n)), np.linspace(0, 90, angles)
    model = jk.xpcs.Static(jk.xpcs.Geometry(0.0054, None, 1.0, t, phi))
    start = {"D0": 0.1 / 0.0054**2, "alpha": 0.0, "D_offset": 0.0}
    result = checks.fit(model, data, p0=start, hold=["alpha", "D_offset"])
    assert result.success == right, result.message
    assert not any("neighbouring" in line for line in result.warnings)
    if not right:
        assert "averaged by lag" in result.message
        assert " lag 1 s" in result.message or " lags " in result.message


def test_averages_by_age_reject_a_constant_rate():
    """The rate falls by a third over the run; the message has the ages."""
    t, phi = 0.5 * np.arange(150), [0.0, 30.0, 60.0, 90.0]
    model = jk.xpcs.Static(jk.xpcs.Geometry(0.0054, None, 0.5, t, phi))
    data = speckles(model, [5e4, -0.2, 0.0], 2.0, 300, 5)
    start = {"D0": 3e4, "alpha": 0.0, "D_offset": 0.0}
    wrong = checks.fit(model, data, p0=start, hold=["alpha", "D_offset"])
    assert not wrong.success
    assert "rise from the age 0 s to 74.5 s" in wrong.message
    right = checks.fit(model, data, p0=start, hold=["D_offset"])
    assert right.success, right.message


@pytest.mark.slow
def test_right_fits_of_speckles_are_rarely_rejected():
    """From dim to bright, and from fast to slow dynamics, at most 2% are rejected.

    Only the check of the residuals matters here: dim frames do not determine the rate of slow
    dynamics, and such a fit is rightly no success.
    """
    rejected, fits = [], 0
    for frames, angles, seeds in ((40, 1, 4), (100, 3, 2)):
        t, phi = 0.1 * np.arange(frames), np.linspace(0, 90, angles)
        model = jk.xpcs.Static(jk.xpcs.Geometry(0.0054, None, 0.1, t, phi))
        for rate in (3e4, 3e3, 5e2):
            for mean in (0.05, 2.0, 20.0):
                for seed in range(seeds):
                    data = speckles(model, [rate, -0.1, 100.0], mean, 500, seed)
                    start = {"D0": rate, "alpha": -0.1, "D_offset": 100.0}
                    held = ["alpha", "D_offset"]
                    result = checks.fit(model, data, p0=start, hold=held)
                    fits += 1
                    determined = mean > 1 and rate > 1e3
                    if "not noise" in result.message or (determined and not result.success):
                        rejected.append((frames, rate, mean, seed, result.message))
    assert len(rejected) <= 0.02 * fits, rejected


def test_noise_without_a_decay():
    """The fit ended at finite errors with success."""
    t, noise = 0.1 * np.arange(60), np.random.default_rng(1).normal(0, 0.01, (2, 60, 60))
    model = jk.xpcs.Static(jk.xpcs.Geometry(0.0054, None, 0.1, t, [0.0, 60.0]))
    result = jk.xpcs.fit(model, 1 + noise, 0.01, progress=False)
    assert not result.success
    assert "the data show no decay" in result.message


def test_another_minimum_that_is_as_good():
    """Shear that decorrelates within a frame determines neither its rate nor its direction."""
    t, noise = 0.1 * np.arange(60), np.random.default_rng(2).normal(0, 0.01, (4, 60, 60))
    model = jk.xpcs.LaminarFlow(jk.xpcs.Geometry(0.0054, 2e6, 0.1, t, [0.0, 45.0, 90.0, 135.0]))
    simple = {"alpha": 0.0, "D_offset": 0.0, "beta": 0.0, "gamma_dot_t_offset": 0.0}
    truth = [1e4, 0.0, 0.0, 0.05, 0.0, 0.0, -3.0]
    data = np.asarray(jk.xpcs.g2(model, truth, 0.2, 1.0), float) + noise
    result = jk.xpcs.fit(model, data, 0.01, p0=simple, hold=list(simple), progress=False)
    assert not result.success
    assert "another minimum is nearly as good (gamma_dot_t0 = " in result.message
