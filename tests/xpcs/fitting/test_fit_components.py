"""Fits of two-component data: through solver, scaling and jackknife to the truth."""

from __future__ import annotations

import numpy as np
import pytest
from support.xpcs.component_oracle import TRUTH

from jaxkern import xpcs
from jaxkern.xpcs.analysis import run
from jaxkern.xpcs.fitting.passes import PassProgram

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
    options = {"scaling": "constant", "hold": HOLD, "progress": False, "search": "local"}
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


def test_the_search_reaches_the_minimum_of_the_truth():
    model = xpcs.TwoComponent(xpcs.Geometry(0.0054, None, 0.1, 0.1 * np.arange(120), [0.0, 70.0]))
    truth = np.array([5e3, -0.3, 100, 2e3, 0.2, 50, 200, 0.3, 0, 0.6, 0, 0, 0, 5.0])
    data = xpcs.simulate(model, truth, 0.3, 1.0, noise=1e-3, seed=5)
    options = {"hold": ("v_offset", "f1", "f2", "f3"), "progress": False}
    near = xpcs.fit(model, data, 1e-3, truth, search="local", **options)
    fitted = xpcs.fit(model, data, 1e-3, **options)
    assert fitted.cost < near.cost * (1 + 1e-5)
    # With a constant fraction the components have no order.
    assert fitted.success, fitted.message
    assert any("can be exchanged (D0_ref" in line for line in fitted.warnings)
    same, exchanged = model.alternatives([*truth[:6], 180, 0.3, 20, 0.3, 0, 0, 0.3, 5.0])
    assert same[8] == 0
    assert same[9] == pytest.approx(0.6, abs=1e-3)
    assert same[6] * 6 ** same[7] == pytest.approx(180 * 6**0.3 + 20, rel=0.01)
    curves = [np.asarray(xpcs.g2(model, p)) for p in (same, exchanged)]
    np.testing.assert_allclose(*curves, atol=1e-6)


def test_minima_that_thinned_data_cannot_tell_apart():
    t = 50 / 120 * np.arange(120)
    model = xpcs.TwoComponent(xpcs.Geometry(0.0054, None, t[1], t, [0.0, 30.0, 75.0]))
    truth = np.array([6e3, 0.1, 200, 2e3, -0.15, 100, 60, 0.4, 10, 0.6, -0.02, 0.5, 0.1, 3.0])
    data = xpcs.simulate(model, truth, 0.3, 1.0, noise=0.02)
    options = {"scaling": "constant", "progress": False}
    near = xpcs.fit(model, data, 0.02, truth, search="local", **options)
    far = xpcs.fit(model, data, 0.02, truth * np.where(np.arange(14) % 2, 0.7, 1.3), **options)
    # The best minimum of the thinned data is another one.
    assert far.cost == pytest.approx(near.cost, rel=1e-6)
    assert far.start_costs[0] > 1.004 * near.cost
    assert np.argmin(far.start_costs) == 1
    assert "4 fitted to all data" in far.search


def test_the_derivatives_of_the_search(measurement):
    model, _ = measurement
    program, i, j = PassProgram(model, "linear", True), np.arange(1, 60), np.arange(40, 99)
    slopes = program.host_tables(TRUTH).correlation_slopes(i, j)[1]
    for k, value in enumerate(TRUTH):
        step = 1e-5 * max(abs(value), 0.1) * np.eye(14)[k]
        high, low = (
            program.phases((TRUTH + sign * step)[None], np.arange(120)).correlation(i, j)[0]
            for sign in (1, -1)
        )
        change = (high - low) / (2 * step[k])
        np.testing.assert_allclose(slopes[:, k], change, rtol=1e-5, atol=1e-6 * abs(change).max())


def test_frame_0_has_no_weight(measurement):
    model, data = measurement
    spoiled = data.copy()
    spoiled[:, 0], spoiled[:, :, 0] = np.nan, np.nan
    options = {"p0": TRUTH, "scaling": "auto", "hold": HOLD, "progress": False}
    options["search"] = "local"
    results = [xpcs.fit(model, part, 1e-3, **options) for part in (data, spoiled)]
    assert np.array_equal(*(result.popt for result in results))
    stream = xpcs.StreamingOptions(strategy="stream", chunk_points=32 * 120)
    assert np.array_equal(
        xpcs.fit(model, data, 1e-3, streaming=stream, **options).popt, results[0].popt
    )
    assert results[0].count == 3 * 119 * 118


def test_isotropic_fit_is_that_of_constant_scaling():
    t = 0.1 * np.arange(40)
    geometry = xpcs.Geometry(0.0054, None, 0.1, t, [0.0, 90.0])
    isotropic = xpcs.StaticIsotropic(geometry)
    data = xpcs.simulate(isotropic, [2e4, 0.3, 50.0], 0.3, 1.0, noise=1e-3)
    result = xpcs.fit(isotropic, data, progress=False)
    same = xpcs.fit(xpcs.Static(geometry), data, scaling="constant", progress=False)
    assert result.names == same.names
    assert np.array_equal(result.popt, same.popt)


def test_command_line(tmp_path):
    """`model: two_component` from the settings to a fit of the simulated file."""
    settings = {
        "analysis.model": "two_component",
        "data_files.file": str(tmp_path / "data.h5"),
        "simulation.frames": 60,
        "simulation.phi": [0.0, 40.0],
        "simulation.parameters": {"v0": 400.0, "D0_ref": 3e3},
        "simulation.noise": 1e-3,
        "initial_parameters.values": {"v0": 350.0, "D0_ref": 3e3},
        "initial_parameters.hold": ["f1", "f2", "f3", "v_beta", "v_offset", "phi0_het"],
        "scaling": "constant",
    }
    path = tmp_path / "fit.yaml"
    path.write_text("{}")
    config = xpcs.load_config(path, settings)
    run.simulate_data(config, tmp_path)
    with run.open_measurement(config, tmp_path) as measurement:
        result = run.fit_measurement(config, measurement, tmp_path, progress=False)
    error = np.sqrt(result.pcov[result.names.index("v0"), result.names.index("v0")])
    assert abs(result.as_dict["v0"] - 400.0) < 5 * error < 20
