"""The search for other minima, and starts outside of the bounds.

The oracle of the best minimum is a fit that starts at the truth.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises, warns
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems

import jaxkern as jk
from jaxkern.xpcs.fitting import fit as fitting

N, PHI = 100, np.array([-80.0, -45.0, -5.0, 20.0, 35.0, 60.0, 85.0])
SIGMA = 0.01


def slow_flow(seed=0):
    """Simulate a flow whose decay is far slower than that of the default parameters."""
    t = np.arange(N) * problems.DT
    geometry = jk.xpcs.Geometry(problems.Q, problems.GAP, problems.DT, t, PHI)
    physics = np.array([1.7e3, -0.2, 150.0, 1.5e-4, 0.36, 0.0, -51.0])
    contrast, offset = np.linspace(0.15, 0.4, len(PHI)), np.full(len(PHI), 1.0)
    clean = problems.correlation(physics, contrast, offset, N, PHI)
    noise = np.triu(np.random.default_rng(seed).normal(size=clean.shape) * SIGMA, 1)
    return jk.xpcs.LaminarFlow(geometry), clean + noise + noise.transpose(0, 2, 1), physics


def far_starts(count=2):
    """Draw starts within the bounds, amplitudes in the logarithm."""
    draw = np.random.default_rng(4)
    for _ in range(count):
        u = draw.random(7)
        yield {
            "D0": 100 * 1e3 ** u[0], "alpha": 4 * u[1] - 2, "D_offset": 1e3 * (u[2] - 0.5),
            "gamma_dot_t0": 1e-6 * 5e5 ** u[3], "beta": 4 * u[4] - 2, "phi0": 180 * u[6] - 90,
        }  # fmt: skip


def test_the_best_minimum_is_found_from_anywhere():
    model, data, truth = slow_flow()
    best = checks.fit(model, data, SIGMA, truth)
    assert best.success, best.message
    local, auto = [], []
    for p0 in [None, *far_starts()]:
        local.append(checks.fit(model, data, SIGMA, p0))
        auto.append(checks.fit(model, data, SIGMA, p0, search="auto"))
    assert sum(result.cost > best.cost * (1 + 1e-5) for result in local) >= 1
    assert not any(result.success for result in local if result.cost > best.cost * (1 + 1e-5))
    for result in auto:
        assert result.cost == pytest.approx(best.cost, rel=1e-5)
        assert result.success, result.message
        assert "1348 compared on thinned data" in result.search
    wide = checks.fit(model, data, SIGMA, search="wide")
    assert wide.cost == pytest.approx(best.cost, rel=1e-5)
    assert "14340 compared" in str(wide)


def test_a_search_over_held_and_static_parameters():
    model, data, truth = slow_flow()
    result = checks.fit(model, data, SIGMA, search="auto", hold=["beta", "phi0"],
                        p0={"beta": 0.36, "phi0": -51.0, "D0": 9e4})  # fmt: skip
    assert result.as_dict["beta"] == 0.36
    assert result.success, result.message
    t = np.arange(N) * problems.DT
    static = jk.xpcs.Static(jk.xpcs.Geometry(problems.Q, None, problems.DT, t, [0.0]))
    still = np.concatenate([truth[:3], [0.0, 0.0, 0.0, 0.0]])
    clean = problems.correlation(still, np.array([0.3]), np.array([1.0]), N, np.zeros(1))
    noise = np.triu(np.random.default_rng(1).normal(size=clean.shape) * SIGMA, 1)
    single = checks.fit(static, clean + noise + noise.transpose(0, 2, 1), SIGMA, search="auto")
    assert single.success, single.message
    assert "577 compared" in single.search


def test_held_parameters_keep_their_values():
    model, data, truth = slow_flow()
    p0 = {**dict(zip(model.parameter_names, truth, strict=True)), "gamma_dot_t_offset": 0.5}
    result = checks.fit(model, data, SIGMA, {**p0, "D0": 9e4}, search="auto", multistart=3,
                        hold=["beta", "gamma_dot_t_offset"], max_nfev=3)  # fmt: skip
    assert result.as_dict["beta"] == truth[4]
    assert result.as_dict["gamma_dot_t_offset"] == 0.5  # outside of its bounds
    assert len(result.start_costs) >= 3


def test_starts_without_finite_derivatives_are_skipped():
    t = np.arange(N) * 1.0
    geometry = jk.xpcs.Geometry(problems.Q, None, 1.0, t, 0.0)

    def phases(p):
        # Below 0.4 the rate is constant, and its derivative is 0 / 0.
        rate = 0.05 + jnp.sqrt(jnp.maximum(p[0] - 0.4, 0.0))
        return rate * jnp.asarray(t), jnp.zeros((1, N))

    model = jk.xpcs.CustomModel(geometry, phases, ["x"], bounds=[(0.0, 1.0)], shear_power=0)
    data = 1 + 0.3 * np.exp(-2 * 0.06 * np.abs(np.subtract.outer(t, t)))
    result = checks.fit(model, data[None], 0.01, [0.9], search="auto")
    assert result.physics[0] == pytest.approx(0.4001, abs=1e-6)


def test_ctrl_c_during_the_search(monkeypatch):
    model, data, _ = slow_flow()

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fitting, "find_starts", interrupted)
    with pytest.raises(jk.xpcs.FitInterrupted) as stopped:
        checks.fit(model, data, SIGMA, search="auto")
    assert stopped.value.result is None


def test_the_direction_of_a_robust_fit():
    model, data, truth = slow_flow()
    turned = dict(zip(model.parameter_names, truth, strict=True)) | {"phi0": 39.0}
    result = checks.fit(model, data, SIGMA, turned, loss="soft_l1")
    assert abs(result.as_dict["phi0"] + 51.0) < 1.0


def test_outliers_do_not_mislead_a_robust_fit():
    model, data, truth = slow_flow()
    data[:, 20, 50] = data[:, 50, 20] = 50.0
    result = checks.fit(model, data, SIGMA, truth, search="auto", loss="cauchy")
    clean = checks.fit(model, slow_flow()[1], SIGMA, truth, loss="cauchy")
    np.testing.assert_array_less(np.abs(result.physics - clean.physics)[3:], clean.perr[-4:])


def test_a_start_outside_of_the_bounds():
    model, data, truth = slow_flow()
    outside = {**dict(zip(model.parameter_names, truth, strict=True)), "D0": 1.0}
    with warns(RuntimeWarning, "p0", "D0", "100 .. 100000", "got 1"):
        result = checks.fit(model, data, SIGMA, outside, search="auto")
    assert result.success, result.message
    with raises(ValueError, "p0", "D0", "100 .. 100000", "got 1"):
        checks.fit(model, data, SIGMA, outside, strict_bounds=True)
