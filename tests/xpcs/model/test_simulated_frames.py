"""Simulated frames and photons, and physics fitted to them."""

from __future__ import annotations

import importlib.util
import sys
import unittest.mock
from pathlib import Path

import jax
import numpy as np
import pytest
from scipy.optimize import curve_fit
from support.errors import raises
from support.xpcs import words

import jaxkern as jk


def load(*parts):
    """Import a program of the repository."""
    path = Path(__file__).parents[3].joinpath(*parts)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    # The modules next to it, such as the harness of the benchmarks.
    with unittest.mock.patch.object(sys, "path", [*sys.path, str(path.parent)]):
        spec.loader.exec_module(module)
    return module


def diagonals(c):
    """Return the means [N - 1, n_bins] of the diagonals above the main one."""
    return c.g2[1:]


def correlated(frames, **how):
    return jk.xpcs.twotime(frames, frames.qmap, progress=False, **how)


LAG = np.arange(40)
FALLING = np.exp(-((LAG / 15.0) ** 1.5))


@pytest.mark.parametrize("kind", ["rates", "lags", "not on a circle", "frames"])
def test_fields_have_the_requested_correlation(kind):
    between = np.abs(np.subtract.outer(LAG, LAG))
    g1, dynamics = {
        "rates": (np.exp(-0.08 * LAG), [0.08]),
        "lags": (FALLING, FALLING[None]),
        # Circulant embedding of this one has negative eigenvalues.
        "not on a circle": (np.cos(LAG / 9), np.cos(LAG / 9)[None]),
        "frames": (FALLING, FALLING[between][None]),
    }[kind]
    n = 40 if kind == "rates" else None
    frames = jk.xpcs.simulate_frames(
        dynamics, n_frames=n, pixels=4000, photons=8.0, modes=2, seed=1, progress=False
    )
    measured = diagonals(correlated(frames))[:, 0]
    # 4,000 pixels determine the contrast of a pair of frames to about 1%.
    np.testing.assert_allclose(measured, 1 + g1[1:] ** 2 / 2, atol=0.025)
    counts = np.asarray(frames.array, np.float64)
    assert counts.mean() == pytest.approx(8.0, rel=0.02)
    assert counts.var() == pytest.approx(8.0 + 8.0**2 / 2, rel=0.06)


def test_bins_and_mean_counts_of_a_detector():
    bins = np.array([[1, 1, 0], [2, 2, 2]])
    mask = np.array([[1, 1, 1], [1, 0, 1]])
    light = np.array([[1.0, 4.0, 9.0], [0.0, 2.0, 3.0]])
    out = np.full((500, 2, 3), 7, np.uint8)
    how = {"n_frames": 500, "photons": light, "modes": 50, "frame_time": 0.1, "out": out}
    frames = jk.xpcs.simulate_frames([0.5, 0.7], qmap=jk.xpcs.QMap(bins, mask=mask), **how)
    assert frames.array is out
    assert frames.metadata == {"frame_time": 0.1}
    expected = np.where(frames.qmap.used, light, 0)
    np.testing.assert_allclose(out.mean(axis=0), expected, atol=0.35)
    assert not out[:, expected == 0].any()


def test_a_seed_is_reproducible():
    def run(seed):
        return jk.xpcs.simulate_frames([0.1], n_frames=20, pixels=9, seed=seed).array

    def seeds():
        keys = jax.random.key(3), jax.random.PRNGKey(4)
        return [3, *keys, np.random.SeedSequence(3), np.random.default_rng(3)]

    runs, same = ([run(seed) for seed in seeds()] for _ in range(2))
    np.testing.assert_array_equal(runs, same)
    assert len({frames.tobytes() for frames in runs}) == len(runs)


def test_wrong_arguments():
    qmap = jk.xpcs.QMap([[1, 2]])
    for dynamics, options, facts in [
        ([0.1], {}, "n_frames None"),
        ([-0.1], {"n_frames": 5}, "rates -0.1"),
        (np.ones((1, 4, 5)), {}, "[n_bins] (1, 4, 5)"),
        (np.ones((1, 4)), {"n_frames": 5}, "n_frames 4 5"),
        ([[[1.0, 2.0], [2.0, 1.0]]], {}, "eigenvalue"),
        ([0.1], {"n_frames": 5, "qmap": qmap}, "bins 2 1"),
        ([0.1], {"n_frames": 5, "photons": -1}, "photons -1"),
        ([0.1], {"n_frames": 5, "photons": 1e4, "dtype": np.uint8}, "wider dtype uint8"),
        ([0.1], {"n_frames": 5, "modes": 0}, "modes 0"),
        ([0.1], {"n_frames": 5, "params": [1.0]}, "params model"),
        ([0.1], {"n_frames": 5, "out": np.zeros((5, 1, 9))}, "out (5, 1, 9)"),
    ]:
        with raises(ValueError, *words(facts)):
            jk.xpcs.simulate_frames(dynamics, **options)


def test_diffusion_from_frames_by_multi_tau():
    """Fit D = 0.02 / q^2 a frame at three q to g2 with its errors."""
    q = np.array([1.0, 1.5, 2.0])
    frames = jk.xpcs.simulate_frames(
        0.02 * q**2, n_frames=600, pixels=150, photons=0.5, modes=2, seed=2, progress=False
    )
    r = jk.xpcs.multitau(frames, frames.qmap, progress=False)
    for column, truth in enumerate(0.02 * q**2):
        used = r.delay < 4 / truth
        best, covariance = curve_fit(
            lambda lag, rate, contrast, base: base + contrast * np.exp(-2 * rate * lag),
            r.delay[used],
            r.g2[used, column],
            [2 * truth, 0.3, 1.0],
            r.g2_err[used, column],
            absolute_sigma=True,
        )
        errors = np.sqrt(np.diag(covariance))
        # Neighbouring delays share noise, so errors of the fit are too small.
        assert abs(best[0] - truth) < 8 * errors[0]
        assert abs(best[0] - truth) < 0.15 * truth
        assert abs(best[1] - 0.5) < 0.05


def test_diffusion_and_shear_from_frames_by_two_time():
    t = 1.0 * np.arange(100)
    geometry = jk.xpcs.Geometry(0.0054, 2e5, 1.0, t, [0.0, 60.0, 90.0])
    model = jk.xpcs.LaminarFlow(geometry)
    truth = np.array([2000.0, 0.0, 0.0, 1e-3, 0.0, 0.0, 3.0])
    frames = jk.xpcs.simulate_frames(model, truth, photons=3.0, modes=2, seed=4, progress=False)
    data = correlated(frames).fit_data(0.0054)
    second = jk.xpcs.Geometry(data.q, 2e5, data.dt, data.t, data.phi)
    assert second == geometry
    held = ["alpha", "D_offset", "beta", "gamma_dot_t_offset"]
    fit = jk.xpcs.fit(
        jk.xpcs.LaminarFlow(second), data.data, p0=1.2 * truth, hold=held, progress=False
    )
    assert fit.success, fit.message
    assert fit.errors.startswith("jackknife")
    expected = [*[0.5] * 3, *[1.0] * 3, *truth]
    # An error from ten blocks has itself an error of a quarter.
    for name, value, error, right in zip(fit.names, fit.popt, fit.perr, expected, strict=True):
        assert abs(value - right) <= 4 * error, name
    errors = dict(zip(fit.names, fit.perr, strict=True))
    assert errors["D0"] < 0.1 * 2000
    assert errors["gamma_dot_t0"] < 0.1 * 1e-3
    assert errors["contrast[0]"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("photons", "rate"), [(0.3, 0.1), (0.08, 0.08)])
def test_errors_of_g2_are_those_of_200_runs(photons, rate):
    """The cases have 150 photons and 51 correlation times a pixel, and 41 of both."""
    n, runs = 512, 200
    frames = jk.xpcs.simulate_frames(
        np.full(runs, rate), n_frames=n, pixels=150, photons=photons, modes=2, seed=6
    )
    r = jk.xpcs.multitau(frames, frames.qmap)
    shorter = r.delay <= n // 8
    spread = r.g2.std(axis=1, ddof=1)[shorter]
    estimate = np.sqrt((r.g2_err**2).mean(axis=1))[shorter]
    # 200 runs determine a spread to 5%; delays share noise, so their mean is hardly better.
    assert (np.abs(estimate / spread - 1) < 0.2).all(), estimate / spread
    expected = 1 + np.exp(-2 * rate * r.delay[shorter]) / 2
    assert (np.abs(r.g2.mean(axis=1)[shorter] - expected) < 4 * spread / np.sqrt(runs)).all()


@pytest.mark.slow
def test_errors_of_diffusion_over_runs():
    """The pulls of D from frames, two-time matrices and fits, of 40 runs."""
    t = 1.0 * np.arange(80)
    geometry = jk.xpcs.Geometry(0.01, None, 1.0, t, [0.0, 45.0, 90.0, 135.0])
    model = jk.xpcs.Static(geometry)
    truth = np.array([1500.0, 0.0, 0.0])
    pulls = []
    for seed in range(40):
        frames = jk.xpcs.simulate_frames(
            model, truth, photons=1.0, pixels=600, modes=2, seed=seed, progress=False
        )
        data = correlated(frames).fit_data().data
        fit = jk.xpcs.fit(model, data, p0=truth, hold=["alpha", "D_offset"], progress=False)
        pulls.append((fit.physics[0] - truth[0]) / fit.perr[fit.names.index("D0")])
    # The mean square of 40 pulls is 1 to a quarter; errors from ten blocks have wide tails.
    assert 0.4 < np.mean(np.square(pulls)) < 2.2, pulls
    assert abs(np.mean(pulls)) < 0.6, pulls


def flow(n):
    t = 1.0 * np.arange(n)
    return jk.xpcs.LaminarFlow(jk.xpcs.Geometry(0.0054, 2e5, 1.0, t, [0.0, 60.0, 90.0]))


PHYSICS = np.array([5000.0, -0.3, 0.0, 1e-3, 0.1, 0.0, 3.0])


def test_the_mean_of_photons_is_the_correlation_of_the_model():
    model = flow(30)
    runs = np.array(
        [jk.xpcs.simulate_photons(model, PHYSICS, pixels=2000, modes=2, seed=k) for k in range(9)]
    )
    expected = np.asarray(jk.xpcs.g2(model, PHYSICS, 0.5, 1.0))
    off = ~np.eye(30, dtype=bool)
    error = runs.std(axis=0, ddof=1)[:, off] / 3
    pulls = (runs.mean(axis=0) - expected)[:, off] / error
    assert np.sqrt(np.mean(pulls**2)) < 1.5
    assert np.abs((runs.mean(axis=0) - expected)[:, off]).max() < 0.05
    # On the diagonal, a mean of 1 photon adds a shot noise of 1 to the speckles.
    np.testing.assert_allclose(runs[:, :, ~off].mean(), 1.0 + 0.5 + 1.0, atol=0.02)
    np.testing.assert_array_equal(runs, np.swapaxes(runs, 2, 3))


def test_noise_of_neighbouring_points_is_correlated():
    """Frames share their speckles, so neighbouring points share noise."""
    model = flow(60)
    data = jk.xpcs.simulate_photons(model, PHYSICS, photons=20, seed=1)
    noise = data - np.asarray(jk.xpcs.g2(model, PHYSICS, 1 / 3, 1.0))
    upper = np.triu(np.ones((60, 60), bool), 3)[:, :-1]
    left, right = noise[:, :, :-1][:, upper], noise[:, :, 1:][:, upper]
    assert np.corrcoef(left.ravel(), right.ravel())[0, 1] > 0.6


def test_photons_of_a_seed_are_reproducible():
    model = flow(20)
    one, same, other = (jk.xpcs.simulate_photons(model, PHYSICS, seed=k) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize("name", ["photons", "pixels", "modes"])
def test_photons_need_positive_numbers(name):
    with raises(ValueError, f"{name}", "0"):
        jk.xpcs.simulate_photons(flow(10), PHYSICS, **{name: 0})


@pytest.mark.slow
def test_coverage_of_intervals():
    """In 100 fits of 7 x 200^2 points, 68% intervals contain 60 to 76% of the true values."""
    study = load("benchmarks", "xpcs_errors.py")
    study.PIXELS = 300  # half as many, to save time
    pulls = study.pulls(20.0, 100, seed=1000)
    assert 0.60 < study.coverage(pulls["jackknife"]) < 0.76
    assert study.coverage(pulls["independent"]) < 0.5
