"""Flow directions, parameters at bounds, and parameters that the data do not determine.

Would catch a flow that is found only within 10 degrees of 0, a fit at a bound or without
information that says success, and bounds of the contrast that bias the diffusion. Data are speckles
and photons simulated in NumPy, without the package.
"""

from __future__ import annotations

import numpy as np
import pytest
from support.xpcs import fit_problems as problems

import jaxkern as jk
from jaxkern.xpcs.fitting import fit as fitting
from jaxkern.xpcs.fitting.noise import resolve_noise
from jaxkern.xpcs.fitting.pass_program import PassProgram, PassSettings
from jaxkern.xpcs.fitting.result import undetermined
from jaxkern.xpcs.fitting.screening import _Thinned
from jaxkern.xpcs.fitting.starting import RowSample, sample_rows

N = 60
PHI = np.linspace(0.0, 157.5, 8)
RATES = {"D0": 8000.0, "alpha": 0.0, "gamma_dot_t0": 1.5e-3, "beta": 0.0}
HELD = ["D_offset", "gamma_dot_t_offset"]


def truth(phi0, **changes):
    given = {**RATES, "D_offset": 0.0, "gamma_dot_t_offset": 0.0, "phi0": phi0, **changes}
    names = ("D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0")
    return np.array([given[name] for name in names])


def photons(physics, mean=1.0, pixels=400, modes=1, seed=0, phi=PHI, n=N):
    """C2 [n_phi, n, n] of complex Gaussian speckles and Poisson counts."""
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


def model(phi=PHI, n=N, kind=jk.xpcs.LaminarFlow):
    t = problems.DT * np.arange(n)
    return kind(jk.xpcs.Geometry(problems.Q, problems.GAP, problems.DT, t, phi))


def fit(data, **options):
    given = {"p0": {**RATES, "D_offset": 0.0}, "hold": HELD, "progress": False, **options}
    return jk.xpcs.fit(model(), data, **given)


def away(phi0, flow):
    """Degrees between two directions of a flow, of which the reverse is the same."""
    return abs((phi0 - flow + 90.0) % 180.0 - 90.0)


@pytest.mark.parametrize("flow", [90.0, 37.0])
def test_a_flow_in_any_direction_is_found(flow):
    data = photons(truth(flow), seed=int(flow) % 7)
    found = fit(data)
    assert found.success, found.message
    assert away(found.as_dict["phi0"], flow) < 5
    assert -90 <= found.as_dict["phi0"] <= 90
    assert abs(found.as_dict["D0"] - 8000) < 5 * found.perr[found.names.index("D0")]
    # The direction is not taken from the start, which may be of any turn.
    turned = fit(data, p0={**RATES, "D_offset": 0.0, "phi0": flow + 120.0})
    assert away(turned.as_dict["phi0"], found.as_dict["phi0"]) < 0.1
    # With no start at all, so that the rates are far off too.
    defaults = fit(data, p0=None)
    assert away(defaults.as_dict["phi0"], flow) < 6


def test_bounds_of_a_part_of_a_turn_are_kept():
    data = photons(truth(37.0))
    found = fit(data, bounds={"phi0": (-10.0, 10.0)})
    assert found.as_dict["phi0"] == pytest.approx(10.0, abs=1e-3)
    assert not found.success
    assert "phi0 is at its upper bound 10" in found.message
    allowed = fit(data, bounds={"phi0": (-10.0, 10.0)}, allow_bounds=True)
    assert "upper bound" not in allowed.message
    assert any("phi0 is at its upper bound 10" in line for line in allowed.warnings)
    other = fit(data, bounds={"phi0": (170.0, 230.0)}, p0={**RATES, "D_offset": 0, "phi0": 200})
    assert other.as_dict["phi0"] == pytest.approx(217.0, abs=6)
    full = fit(data, bounds={"phi0": (90.0, 270.0)}, p0={**RATES, "D_offset": 0, "phi0": 100})
    assert full.as_dict["phi0"] == pytest.approx(217.0, abs=6)


def test_a_start_that_is_good_is_not_moved(monkeypatch):
    moved = []
    search = fitting.best_direction

    def spy(start, **rest):
        found = search(start, **rest)
        moved.append(found is not start)
        return found

    monkeypatch.setattr(fitting, "best_direction", spy)
    data = photons(truth(4.0))
    fit(data)
    assert moved == [False]
    assert away(fit(photons(truth(80.0))).as_dict["phi0"], 80.0) < 5
    assert moved == [False, True]


@pytest.mark.parametrize("power", [2, 4])
def test_the_gradient_of_the_search(x64, power):
    """J^T r is minus half the derivative of chi2, by differences."""
    flow = jk.xpcs.LaminarFlow(model().geometry, shear_power=power)
    data = photons(truth(20.0))
    good = np.ones(N, bool)
    rows = sample_rows(good)
    sample = RowSample(rows, data[:, rows], good)
    noise = resolve_noise(None, None, data.shape, sample)
    program = PassProgram(flow, PassSettings("linear", True))
    x = truth(30.0, D_offset=500.0, gamma_dot_t_offset=1e-4)
    thinned = _Thinned.of(sample, noise, flow, program, x, np.ones(7, bool))
    found = thinned(x)
    for k, step in enumerate(1e-4 * np.maximum(np.abs(x), [0, 0.1, 0, 0, 0.1, 0, 0])):
        shift = step * np.eye(7)[k]
        slope = (thinned(x + shift).cost - thinned(x - shift).cost) / (2 * step)
        assert -2 * found.jtr[k] == pytest.approx(slope, rel=1e-4, abs=1e-6 * found.cost / step)


def test_a_still_sample_does_not_determine_a_flow():
    still = photons(truth(0.0, D0=20.0, gamma_dot_t0=1e-9), modes=3)
    found = fit(still, p0=None, hold=[])
    assert not found.success
    assert "do not determine" in found.message
    assert "gamma_dot_t0 = " in found.message.split("do not determine")[1]


def test_the_contrast_of_coherent_light_is_not_cut():
    """At a contrast of 1 half of the estimates lie above it: a bound at 1 moves the diffusion."""
    static = model(kind=jk.xpcs.Static)
    data = photons(truth(0.0, D0=3000.0, gamma_dot_t0=1e-9), mean=0.1, pixels=500)
    start = {"D0": 3000.0, "alpha": 0.0, "D_offset": 0.0}

    def rate(bounds):
        options = {"bounds": bounds, "errors": "independent", "progress": False}
        found = jk.xpcs.fit(static, data, p0=start, hold=["alpha", "D_offset"], **options)
        return found.as_dict["D0"]

    free = rate({"contrast": (-np.inf, np.inf), "offset": (-np.inf, np.inf)})
    assert rate(None) == pytest.approx(free, rel=1e-4)
    assert rate({"contrast": (0.0, 1.0)}) < 0.99 * free


def test_what_is_not_determined():
    lower = np.array([100.0, -1e5, -2.0, -90.0, -np.inf])
    upper = np.array([1e5, 1e5, 2.0, 90.0, np.inf])
    turns = jk.xpcs.fitting.parameters.Turns(
        np.arange(5) == 3, np.array([np.inf] * 3 + [180.0, np.inf]), lower, upper
    )
    free = np.ones(5, bool)

    def names(x, errors):
        return undetermined(np.array(x), np.array(errors), turns, free)

    # Zero in truth, and well known.
    assert names([2e4, 1e-3, 1e-6, 1e-4, 1e-6], [100.0, 2000.0, 0.1, 3.0, 1.0]) == []
    assert names([99999.0, 10.0, 0.1, 80.0, 1.0], [1.7e7, 3e5, 12.0, 95.0, np.inf]) == [
        0,
        1,
        2,
        3,
        4,
    ]
    assert names([2e4, 10.0, 0.1, 5.0, 1.0], [np.nan, 1.0, 1.0, 1.0, 1.0]) == [0]


def test_held_parameters_are_said_to_be_held():
    found = fit(photons(truth(0.0)))
    lines = str(found).splitlines()
    assert any("D_offset" in line and "held" in line and "+/-" not in line for line in lines)
    assert found.held == tuple(HELD)
