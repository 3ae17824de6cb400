"""Simulated frames, and what is found again from them: would catch fields without the g1 that was
asked for, counts that are not Poisson, pixels outside the bins with light, correlators or fits that
lose a factor of the physics, and errors of g2 that do not hold.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.optimize import curve_fit

import jaxkern as jk


def diagonals(c):
    """[N - 1, n_bins] means of the diagonals above the first, whose photons see themselves."""
    return c.g2[1:]


def correlated(frames, **how):
    return jk.xpcs.twotime(frames, frames.qmap, progress=False, **how)


LAG = np.arange(40)
FALLING = np.exp(-((LAG / 15.0) ** 1.5))


@pytest.mark.parametrize("kind", ["rates", "lags", "not on a circle", "frames"])
def test_fields_have_the_correlation_that_was_asked_for(kind):
    between = np.abs(np.subtract.outer(LAG, LAG))
    g1, dynamics = {
        "rates": (np.exp(-0.08 * LAG), [0.08]),
        "lags": (FALLING, FALLING[None]),
        # One that a circle of frames does not close: its spectrum has numbers below 0.
        "not on a circle": (np.cos(LAG / 9), np.cos(LAG / 9)[None]),
        "frames": (FALLING, FALLING[between][None]),
    }[kind]
    n = 40 if kind == "rates" else None
    frames = jk.xpcs.simulate_frames(
        dynamics, n_frames=n, pixels=4000, photons=8.0, modes=2, seed=1, progress=False
    )
    found = diagonals(correlated(frames))[:, 0]
    # 4,000 pixels know the contrast of a pair of frames to about 1%.
    np.testing.assert_allclose(found, 1 + g1[1:] ** 2 / 2, atol=0.025)
    counts = np.asarray(frames.array, np.float64)
    assert counts.mean() == pytest.approx(8.0, rel=0.02)
    assert counts.var() == pytest.approx(8.0 + 8.0**2 / 2, rel=0.06)


def test_bins_and_light_of_a_detector():
    bins = np.array([[1, 1, 0], [2, 2, 2]])
    mask = np.array([[1, 1, 1], [1, 0, 1]])
    light = np.array([[1.0, 4.0, 9.0], [0.0, 2.0, 3.0]])
    out = np.full((500, 2, 3), 7, np.uint8)
    frames = jk.xpcs.simulate_frames(
        [0.5, 0.7],
        qmap=jk.xpcs.QMap(bins, mask=mask),
        n_frames=500,
        photons=light,
        modes=50,
        frame_time=0.1,
        out=out,
    )
    assert frames.array is out
    assert frames.metadata == {"frame_time": 0.1}
    expected = np.where(frames.qmap.used, light, 0)
    np.testing.assert_allclose(out.mean(axis=0), expected, atol=0.35)
    assert not out[:, expected == 0].any()


def test_a_seed_is_a_run():
    def run(seed):
        return jk.xpcs.simulate_frames([0.1], n_frames=20, pixels=9, seed=seed).array

    seeds = [
        lambda: 3,
        lambda: jax.random.key(3),
        lambda: jax.random.PRNGKey(4),
        lambda: np.random.SeedSequence(3),
        lambda: np.random.default_rng(3),
    ]
    runs = [run(seed()) for seed in seeds]
    for made, seed in zip(runs, seeds, strict=True):
        np.testing.assert_array_equal(made, run(seed()))
    assert len({made.tobytes() for made in runs}) == len(seeds)


def test_what_is_refused():
    qmap = jk.xpcs.QMap([[1, 2]])
    for given, how, message in [
        ([0.1], {}, "n_frames is None"),
        ([-0.1], {"n_frames": 5}, "wanted rates of 0 or more"),
        (np.ones((1, 4, 5)), {}, r"shape \(1, 4, 5\); wanted \[n_bins\]"),
        (np.ones((1, 4)), {"n_frames": 5}, "of 4 frames"),
        ([[[1.0, 2.0], [2.0, 1.0]]], {}, "eigenvalue"),
        ([0.1], {"n_frames": 5, "qmap": qmap}, "1 bins and the qmap 2"),
        ([0.1], {"n_frames": 5, "photons": -1}, "photons is -1"),
        ([0.1], {"n_frames": 5, "photons": 1e4, "dtype": np.uint8}, "wider dtype"),
        ([0.1], {"n_frames": 5, "modes": 0}, "modes is 0"),
        ([0.1], {"n_frames": 5, "params": [1.0]}, "without a model"),
        ([0.1], {"n_frames": 5, "out": np.zeros((5, 1, 9))}, "out has the shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            jk.xpcs.simulate_frames(given, **how)


def test_diffusion_from_frames_by_way_of_multi_tau():
    """D = 0.02 / q^2 a frame at three q, fitted to g2 with its errors."""
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
        # Values of neighbouring delays share their noise: errors of the fit are too small.
        assert abs(best[0] - truth) < 8 * errors[0]
        assert abs(best[0] - truth) < 0.15 * truth
        assert abs(best[1] - 0.5) < 0.05


def test_diffusion_and_shear_from_frames_by_way_of_two_time():
    t = 1.0 * np.arange(100)
    geometry = jk.xpcs.Geometry(0.0054, 2e5, 1.0, t, [0.0, 60.0, 90.0])
    model = jk.xpcs.LaminarFlow(geometry)
    truth = np.array([2000.0, 0.0, 0.0, 1e-3, 0.0, 0.0, 3.0])
    frames = jk.xpcs.simulate_frames(model, truth, photons=3.0, modes=2, seed=4, progress=False)
    data = correlated(frames).fit_data(0.0054)
    again = jk.xpcs.Geometry(data.q, 2e5, data.dt, data.t, data.phi)
    assert again == geometry
    held = ["alpha", "D_offset", "beta", "gamma_dot_t_offset"]
    fit = jk.xpcs.fit(
        jk.xpcs.LaminarFlow(again), data.data, p0=1.2 * truth, hold=held, progress=False
    )
    assert fit.success, fit.message
    assert fit.errors.startswith("jackknife")
    expected = [*[0.5] * 3, *[1.0] * 3, *truth]
    # An error that is taken from ten blocks is itself known to a quarter.
    for name, value, error, right in zip(fit.names, fit.popt, fit.perr, expected, strict=True):
        assert abs(value - right) <= 4 * error, name
    errors = dict(zip(fit.names, fit.perr, strict=True))
    assert errors["D0"] < 0.1 * 2000
    assert errors["gamma_dot_t0"] < 0.1 * 1e-3
    assert errors["contrast[0]"] < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(("photons", "rate"), [(0.3, 0.1), (0.08, 0.08)])
def test_errors_of_g2_are_those_of_200_runs(photons, rate):
    """150 photons and 51 correlation times a pixel, and 41 of both."""
    n, runs = 512, 200
    frames = jk.xpcs.simulate_frames(
        np.full(runs, rate), n_frames=n, pixels=150, photons=photons, modes=2, seed=6
    )
    r = jk.xpcs.multitau(frames, frames.qmap)
    shorter = r.delay <= n // 8
    spread = r.g2.std(axis=1, ddof=1)[shorter]
    told = np.sqrt((r.g2_err**2).mean(axis=1))[shorter]
    # 200 runs know a spread to 5%; the mean over delays to little less, since they share noise.
    assert (np.abs(told / spread - 1) < 0.2).all(), told / spread
    expected = 1 + np.exp(-2 * rate * r.delay[shorter]) / 2
    assert (np.abs(r.g2.mean(axis=1)[shorter] - expected) < 4 * spread / np.sqrt(runs)).all()


@pytest.mark.slow
def test_errors_of_diffusion_hold_over_runs():
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
    # The mean square of 40 pulls is 1 to a quarter, and errors from ten blocks have wide tails.
    assert 0.4 < np.mean(np.square(pulls)) < 2.2, pulls
    assert abs(np.mean(pulls)) < 0.6, pulls
