"""Flow directions, parameters at bounds, and parameters that the data do not determine.

Data are speckles and photons simulated in NumPy, without the package.
"""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems

import jaxkern as jk
from jaxkern.xpcs.fitting import fit as fitting
from jaxkern.xpcs.fitting.parameters import PeriodicBounds
from jaxkern.xpcs.fitting.passes import PassProgram
from jaxkern.xpcs.fitting.sampling import RowSample, resolve_noise, sample_rows
from jaxkern.xpcs.fitting.search import _ThinnedProblem
from jaxkern.xpcs.fitting.verdict import undetermined

N = 60
PHI = np.linspace(0.0, 157.5, 8)
RATES = {"D0": 8000.0, "alpha": 0.0, "gamma_dot_t0": 1.5e-3, "beta": 0.0}
HELD = ["D_offset", "gamma_dot_t_offset"]


def truth(phi0, **changes):
    values = {**RATES, "D_offset": 0.0, "gamma_dot_t_offset": 0.0, "phi0": phi0, **changes}
    names = ("D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0")
    return np.array([values[name] for name in names])


def photons(physics, mean=1.0, pixels=400, modes=1, seed=0, phi=PHI, n=N):
    """Simulate C2 [n_phi, n, n] of complex Gaussian speckles with Poisson counts."""
    draw = np.random.default_rng(seed)
    squared = problems.correlation(physics, np.ones(len(phi)), np.zeros(len(phi)), n, phi)
    c2 = np.empty_like(squared)
    for angle, g1 in enumerate(np.sqrt(np.maximum(squared, 0.0))):
        values, vectors = np.linalg.eigh(g1)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        light = np.zeros((n, pixels))
        for _ in range(modes):
            field = root @ draw.normal(size=(n, 2 * pixels))
            light += (field[:, :pixels] ** 2 + field[:, pixels:] ** 2) / (2 * modes)
        counts = draw.poisson(mean * light).astype(float)
        frame = counts.mean(1)
        c2[angle] = counts @ counts.T / pixels / np.outer(frame, frame)
    return c2


def fit(data, **options):
    arguments = {"p0": {**RATES, "D_offset": 0.0}, "hold": HELD, **options}
    return checks.fit(checks.flow(N, PHI), data, **arguments)


def angle_between(phi0, flow):
    """Return the degrees between two flow directions, which are equal to their reverse."""
    return abs((phi0 - flow + 90.0) % 180.0 - 90.0)


@pytest.mark.parametrize("flow", [90.0, 37.0])
def test_a_flow_in_any_direction_is_found(flow):
    data = photons(truth(flow), seed=int(flow) % 7)
    result = fit(data)
    assert result.success, result.message
    assert angle_between(result.as_dict["phi0"], flow) < 5
    assert -90 <= result.as_dict["phi0"] <= 90
    assert abs(result.as_dict["D0"] - 8000) < 5 * result.perr[result.names.index("D0")]
    # The direction does not depend on that of the start.
    turned = fit(data, p0={**RATES, "D_offset": 0.0, "phi0": flow + 120.0})
    assert angle_between(turned.as_dict["phi0"], result.as_dict["phi0"]) < 0.1
    # From the defaults, the rates are far off too.
    defaults = fit(data, p0=None)
    assert angle_between(defaults.as_dict["phi0"], flow) < 6


def test_bounds_narrower_than_half_a_turn_are_respected():
    data = photons(truth(37.0))
    result = fit(data, bounds={"phi0": (-10.0, 10.0)})
    assert result.as_dict["phi0"] == pytest.approx(10.0, abs=1e-3)
    assert not result.success
    assert "phi0 is at its upper bound 10" in result.message
    allowed = fit(data, bounds={"phi0": (-10.0, 10.0)}, allow_bounds=True)
    assert "upper bound" not in allowed.message
    assert any("phi0 is at its upper bound 10" in line for line in allowed.warnings)
    other = fit(data, bounds={"phi0": (170.0, 230.0)}, p0={**RATES, "D_offset": 0, "phi0": 200})
    assert other.as_dict["phi0"] == pytest.approx(217.0, abs=6)
    full = fit(data, bounds={"phi0": (90.0, 270.0)}, p0={**RATES, "D_offset": 0, "phi0": 100})
    assert full.as_dict["phi0"] == pytest.approx(217.0, abs=6)


def test_a_good_start_is_not_moved(monkeypatch):
    moved = []
    search = fitting.find_starts

    def spy(start, problem, effort):
        starts, text = search(start, problem, effort)
        moved.append(starts[0] is not start)
        return starts, text

    monkeypatch.setattr(fitting, "find_starts", spy)
    data = photons(truth(4.0))
    fit(data)
    assert moved == [False]
    assert angle_between(fit(photons(truth(80.0))).as_dict["phi0"], 80.0) < 5
    assert moved == [False, True]


@pytest.mark.parametrize("power", [2, 4])
def test_the_gradient_of_the_search(x64, power):
    """J^T r must be minus half the derivative of chi2, from differences."""
    flow = jk.xpcs.LaminarFlow(checks.flow(N, PHI).geometry, shear_power=power)
    data = photons(truth(20.0))
    good = np.ones(N, bool)
    rows = sample_rows(good)
    sample = RowSample(rows, data[:, rows], good)
    noise = resolve_noise(None, None, data.shape, sample)
    program = PassProgram(flow, "linear", True)
    x = truth(30.0, D_offset=500.0, gamma_dot_t_offset=1e-4)
    here = SimpleNamespace(sample=sample)
    problem = SimpleNamespace(data=here, noise=noise, program=program)
    thinned = _ThinnedProblem(problem, x, np.ones(7, bool))
    result = thinned(x)
    for k, step in enumerate(1e-4 * np.maximum(np.abs(x), [0, 0.1, 0, 0, 0.1, 0, 0])):
        shift = step * np.eye(7)[k]
        slope = (thinned(x + shift).cost - thinned(x - shift).cost) / (2 * step)
        assert -2 * result.jtr[k] == pytest.approx(slope, rel=1e-4, abs=1e-6 * result.cost / step)


def test_the_undetermined_combination_is_named():
    """With alpha = 0, D0 and D_offset are one rate, and only their sum is determined."""
    data = photons(truth(37.0))
    result = fit(data, hold=["alpha", "gamma_dot_t_offset"], p0={**RATES, "D_offset": 500.0})
    assert not result.success
    direction = result.message.split("chi2 changes least along ")[1].split(")")[0]
    names, ratio = direction.split(" = ")
    assert names == "D0 : D_offset"
    first, second = map(float, ratio.split(" : "))
    assert first == 1
    assert second == pytest.approx(-1, abs=0.01)


def test_a_static_sample_does_not_determine_a_flow():
    still = photons(truth(0.0, D0=20.0, gamma_dot_t0=1e-9), modes=3)
    result = fit(still, p0=None, hold=[])
    assert not result.success
    assert "do not determine" in result.message
    assert "gamma_dot_t0 = " in result.message.split("do not determine")[1]


def test_the_contrast_of_coherent_light_is_not_clipped():
    """Half of the estimates of a contrast of 1 exceed it: a bound at 1 would bias the diffusion."""
    static = checks.flow(N, PHI, jk.xpcs.Static)
    data = photons(truth(0.0, D0=3000.0, gamma_dot_t0=1e-9), mean=0.1, pixels=500)
    start = {"D0": 3000.0, "alpha": 0.0, "D_offset": 0.0}

    def rate(bounds):
        options = {"bounds": bounds, "errors": "independent"}
        result = checks.fit(static, data, p0=start, hold=["alpha", "D_offset"], **options)
        return result.as_dict["D0"]

    free = rate({"contrast": (-np.inf, np.inf), "offset": (-np.inf, np.inf)})
    assert rate(None) == pytest.approx(free, rel=1e-4)
    assert rate({"contrast": (0.0, 1.0)}) < 0.99 * free


def test_parameters_that_are_not_determined():
    lower = np.array([100.0, -1e5, -2.0, -90.0, -np.inf])
    upper = np.array([1e5, 1e5, 2.0, 90.0, np.inf])
    bounds = PeriodicBounds(lower, upper, np.array([np.inf] * 3 + [180.0, np.inf]))
    free = np.ones(5, bool)

    def names(x, errors):
        return undetermined(np.array(x), np.array(errors), bounds, free)

    # The true values are zero, and well determined.
    assert names([2e4, 1e-3, 1e-6, 1e-4, 1e-6], [100.0, 2000.0, 0.1, 3.0, 1.0]) == []
    errors = [1.7e7, 3e5, 12.0, 95.0, np.inf]
    assert names([99999.0, 10.0, 0.1, 80.0, 1.0], errors) == [0, 1, 2, 3, 4]
    assert names([2e4, 10.0, 0.1, 5.0, 1.0], [np.nan, 1.0, 1.0, 1.0, 1.0]) == [0]


def test_held_parameters_are_marked():
    result = fit(photons(truth(0.0)))
    lines = str(result).splitlines()
    assert any("D_offset" in line and "held" in line and "+/-" not in line for line in lines)
    assert result.held == tuple(HELD)
