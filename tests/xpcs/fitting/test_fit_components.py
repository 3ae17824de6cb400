"""Fits of two-component data: through solver, scaling and jackknife to the truth."""

from __future__ import annotations

import numpy as np
import pytest
from support.xpcs.component_oracle import TRUTH

from jaxkern import xpcs

pytestmark = pytest.mark.usefixtures("x64")
# f0 and f2 have the same effect, since only f0 exp(-f1 f2) matters.
HOLD = ("f2",)


@pytest.fixture(scope="module")
def measurement():
    t = 0.1 * np.arange(120)
    model = xpcs.TwoComponent(xpcs.Geometry(0.0054, None, 0.1, t, [0.0, 40.0, 80.0]))
    return model, xpcs.simulate(model, TRUTH, 0.3, 1.0, noise=1e-3, seed=5)


def test_fit_reaches_the_truth(measurement):
    model, data = measurement
    options = {"scaling": "constant", "hold": HOLD, "progress": False}
    options["solver"] = xpcs.SolverOptions(allow_bounds=True)
    near = xpcs.fit(model, data, p0=TRUTH, **options)
    start = TRUTH * np.where(np.arange(14) % 2, 1.3, 0.7)
    start[11] = TRUTH[11]
    fitted = xpcs.fit(model, data, p0=start, **options)
    assert fitted.success, fitted.message
    assert abs(fitted.chi2 / near.chi2 - 1) < 1e-6
    free = np.array([name not in HOLD for name in model.parameter_names])
    errors = np.sqrt(np.diag(fitted.pcov))
    pulls = (fitted.popt[2:] - TRUTH)[free] / errors[2:][free]
    assert np.abs(pulls).max() < 5
    assert fitted.errors.startswith("jackknife over 10 blocks")


def test_frame_0_has_no_weight(measurement):
    model, data = measurement
    spoiled = data.copy()
    spoiled[:, 0], spoiled[:, :, 0] = np.nan, np.nan
    options = {"p0": TRUTH, "scaling": "auto", "hold": HOLD, "progress": False}
    results = [xpcs.fit(model, part, 1e-3, **options) for part in (data, spoiled)]
    assert np.array_equal(*(result.popt for result in results))
    assert results[0].count == 3 * 119 * 118
