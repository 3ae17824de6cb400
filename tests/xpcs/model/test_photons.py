"""Simulated photons: would catch fields without the model's dynamics, counts that are not Poisson,
and errors of fits that do not hold for the correlated noise of speckles.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import jaxkern as jk


def flow(n):
    t = 1.0 * np.arange(n)
    return jk.xpcs.LaminarFlow(jk.xpcs.Geometry(0.0054, 2e5, 1.0, t, [0.0, 60.0, 90.0]))


PHYSICS = np.array([5000.0, -0.3, 0.0, 1e-3, 0.1, 0.0, 3.0])


def test_the_mean_is_the_models_correlation():
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
    # On the diagonal each of the mean of 1 photon is correlated with itself, beside the speckles.
    np.testing.assert_allclose(runs[:, :, ~off].mean(), 1.0 + 0.5 + 1.0, atol=0.02)
    np.testing.assert_array_equal(runs, np.swapaxes(runs, 2, 3))


def test_noise_of_neighbours_is_correlated():
    """Frames share their speckles; the differences of simulate's points share nothing."""
    model = flow(60)
    data = jk.xpcs.simulate_photons(model, PHYSICS, photons=20, seed=1)
    noise = data - np.asarray(jk.xpcs.g2(model, PHYSICS, 1 / 3, 1.0))
    upper = np.triu(np.ones((60, 60), bool), 3)[:, :-1]
    left, right = noise[:, :, :-1][:, upper], noise[:, :, 1:][:, upper]
    assert np.corrcoef(left.ravel(), right.ravel())[0, 1] > 0.6


def test_a_seed_is_a_data_set():
    model = flow(20)
    one, same, other = (jk.xpcs.simulate_photons(model, PHYSICS, seed=k) for k in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other).any()


@pytest.mark.parametrize("name", ["photons", "pixels", "modes"])
def test_numbers_that_are_not_above_zero(name):
    with pytest.raises(ValueError, match=f"{name} is 0; wanted a number above 0"):
        jk.xpcs.simulate_photons(flow(10), PHYSICS, **{name: 0})


@pytest.mark.slow
@pytest.mark.parametrize("photons", [0.5, 20.0])
def test_intervals_hold_the_truth(photons):
    """100 runs of 7 x 200^2 from photons: 68% intervals hold 60 to 76% of the truths."""
    path = Path(__file__).parents[3] / "benchmarks" / "xpcs_errors.py"
    spec = importlib.util.spec_from_file_location("xpcs_errors", path)
    study = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(study)
    study.PIXELS = 300  # half of the study's, for time
    found = study.pulls(photons, 100, seed=1000)
    assert 0.60 < study.coverage(found["jackknife"]) < 0.76
    assert study.coverage(found["independent"]) < 0.5
