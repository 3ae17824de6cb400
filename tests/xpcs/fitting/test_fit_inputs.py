"""Errors for wrong arguments of a fit, and warnings in its result."""

from __future__ import annotations

import h5py
import jax
import numpy as np
import pytest
import scipy.optimize
from support.errors import raises
from support.xpcs import fit_checks as checks
from support.xpcs import fit_problems as problems
from support.xpcs import words
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.xpcs.fitting.solver import covariance
from jaxkern.xpcs.fitting.verdict import rank_warnings

N = 40


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=61)


def fit(case, data=None, **arguments):
    return checks.fit(
        model_of(case), case.data if data is None else data, **{"p0": problems.START, **arguments}
    )


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"data": np.ones((3, 40, 39))}, "(3, 40, 39)"),
        ({"data": np.ones((2, 40, 40))}, "(2, 40, 40) (3, 40, 40)"),
        ({"data": np.ones((3, 40, 40), complex)}, "complex128"),
        ({"data": "c2.h5"}, ".npy"),
        ({"sigma": np.ones(4)}, "sigma (3,) (4,)"),
        ({"sigma": np.ones((3, 40, 1, 1))}, "sigma (3, 40, 1, 1)"),
        ({"sigma": -1.0}, "sigma -1"),
        ({"sigma": [0.1, np.nan, 0.1]}, "sigma nan"),
        ({"sigma": -np.ones((3, 40, 40))}, "sigma -1"),
        ({"sigma": 1.0, "weights": 1.0}, "sigma weights both"),
        ({"sigma": np.full((3, 40, 40), np.nan)}, "sigma nan"),
        ({"sigma": jk.xpcs.as_source([-np.eye(40)] * 3)}, "sigma -1"),
        ({"weights": -1.0}, "weights -1"),
        ({"weights": np.full((3, 40, 40), np.nan)}, "weights nan"),
        ({"p0": [1.0, 2.0]}, "p0 (2,) [7] D0"),
        ({"p0": {"D_0": 1.0}}, "'D_0' 'D0'"),
        ({"p0": {"D0": np.nan}}, "p0 nan"),
        ({"p0": {"D0": 1.0}, "strict_bounds": True}, "p0 D0 100 100000 1;"),
        ({"contrast0": 3.0, "strict_bounds": True}, "contrast[0] 3;"),
        ({"contrast0": [0.1, 0.2]}, "contrast0 3 angles"),
        ({"bounds": {"beta_0": (0, 1)}}, "bounds 'beta_0' 'beta'"),
        ({"bounds": {"beta": (1, 0)}}, "beta 1 0"),
        ({"bounds": (np.zeros(5), np.ones(5))}, "lower bounds (5,)"),
        ({"bounds": [(0, 1)] * 7}, "bounds (lower, upper) 7"),
        ({"hold": ["D1"]}, "hold 'D1'"),
        ({"hold": [0]}, "hold got 0"),
        ({"bounds": 3.0}, "bounds (lower, upper) 3.0"),
        ({"bounds": {"D0": 3.0}}, "bounds['D0'] 3.0"),
        ({"bounds": {"D0": ("a", "b")}}, "bounds['D0'] numbers 'a'"),
        ({"p0": {"D0": "x"}}, "p0['D0'] numbers 'x'"),
        ({"contrast0": "x"}, "contrast0 numbers 'x'"),
        ({"x_scale": [1.0, 2.0]}, "x_scale (2,) 13"),
        ({"hold": "D0"}, "hold 'D0' ['D0']"),
        ({"search": "everywhere"}, "search 'everywhere' auto"),
        ({"loss": "hubert"}, "loss 'hubert' linear"),
        ({"f_scale": 0.0}, "f_scale 0.0"),
        ({"scaling": "each"}, "scaling 'each'"),
        ({"strategy": "FAST"}, "strategy 'FAST' 'memory' 'stream'"),
        ({"symmetric": "maybe"}, "symmetric 'maybe'"),
        ({"multistart": 0}, "multistart 0"),
        ({"multistart": 1.5}, "multistart 1.5"),
        ({"seed": 0.5}, "seed 0.5"),
        ({"max_nfev": 1.5}, "max_nfev 1.5"),
        ({"data": np.ones((3, 40, 40), np.uint16)}, "uint16 quantization (step, zero)"),
        (
            {"data": jk.xpcs.as_source([np.ones((40, 40), np.uint16)] * 3)},
            "uint16 quantization (step, zero)",
        ),
        (
            {"data": np.ones((3, 40, 40), np.uint16), "quantization": (0.0, 1.0)},
            "quantization (0.0, 1.0)",
        ),
        ({"keep": np.ones(39, bool)}, "keep [40] (39,)"),
        ({"keep": slice(38, None)}, "keep 2 of 40"),
        ({"quantization": (1.0, 0.0)}, "quantization uint16 float64"),
        (
            {
                "data": jk.xpcs.as_source([np.ones((40, 40), np.uint16)] * 3),
                "quantization": (0.1, 1.0),
            },
            "DatasetsSource",
        ),
        ({"checkpoint_frequency": 0}, "checkpoint_frequency 0"),
        ({"on_bad_chunk": "ignore"}, "on_bad_chunk 'ignore'"),
        ({"chunk_points": 0}, "chunk_points 0"),
        ({"chunk_points": 1e6}, "chunk_points 1000000.0"),
        ({"retries": -1}, "retries -1"),
    ],
)
def test_wrong_arguments(case, arguments, facts):
    """Messages name the argument, the value and what was expected."""
    with raises((ValueError, TypeError), *words(facts)):
        fit(case, **arguments)


@pytest.mark.parametrize("strategy", ["memory", "stream"])
def test_a_negative_sigma_in_a_file(case, tmp_path, strategy):
    sigma = np.full((3, N, N), 0.004)
    sigma[2, 3, 30] = -0.004
    np.save(tmp_path / "sigma.npy", sigma)
    with raises(ValueError, "-0.004"):
        fit(case, sigma=tmp_path / "sigma.npy", strategy=strategy, symmetric=True)


def test_bounds_of_scipy(case):
    lower, upper = np.transpose(model_of(case).bounds)
    lower[1] = -0.9
    result = fit(case, bounds=scipy.optimize.Bounds(lower, upper))
    assert result.popt[7] == pytest.approx(-0.9, abs=1e-4)


def test_several_processes_have_no_checkpoints(case, monkeypatch):
    """They would resume from different states, and one process would wait for ever."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with raises(ValueError, "enable_checkpoints", "2 processes"):
        fit(case, streaming=jk.xpcs.StreamingOptions(enable_checkpoints=True))


def test_held_parameters_of_a_fit_with_too_few_points():
    """Three frames, three points, three parameters: infinite errors, but no NaN."""
    short = problems.simulate(3, phi=problems.PHI[:1])
    model = checks.flow(3, short.phi, jk.xpcs.Static)
    start = {"D0": 2e4, "alpha": -1.0, "D_offset": 5e3}
    result = checks.fit(model, short.data, 1.0, start, hold=["alpha", "D_offset"])
    assert np.isinf(result.perr[:3]).all()
    assert (result.pcov[3:] == 0).all()
    assert any("3 independent points cannot determine" in line for line in result.warnings)


def test_objects_of_wrong_types():
    with raises(TypeError, "tuple"):
        checks.fit((), np.ones((1, 8, 8)))
    with raises(TypeError, "object"):
        jk.xpcs.as_source(object())
    with raises(ValueError, "(4, 5)"):
        jk.xpcs.as_source([np.ones((4, 4)), np.ones((4, 5))])


def test_a_parameter_at_its_bound_is_reported(case):
    result = fit(case, bounds={"alpha": (-0.9, 2.0), "contrast": (0.0, 0.9)})
    assert result.popt[7] == pytest.approx(-0.9, abs=1e-4)
    assert any("alpha is at its lower bound -0.9" in line for line in result.warnings)
    assert sum("bound" in line for line in result.warnings) == 1


def test_a_rank_deficient_fit_names_the_parameters():
    """Two rates of which only the sum matters, and a parameter without effect."""
    import jax.numpy as jnp

    n = 40
    t = np.arange(n) * 1.0
    geometry = jk.xpcs.Geometry(0.0054, None, 1.0, t, 0.0)

    def phases(p):
        return (p[0] + p[1]) * jnp.asarray(t) * 0.01 + 0.0 * p[2], jnp.zeros((1, n))

    model = jk.xpcs.CustomModel(geometry, phases, ["fast", "slow", "idle"], shear_power=0)
    clean = 1 + 0.3 * np.exp(-2 * np.abs(np.subtract.outer(t, t)) * 0.05)
    noise = np.triu(np.random.default_rng(0).normal(size=(n, n)) * 0.003, 1)
    result = checks.fit(model, (clean + noise + noise.T)[None], p0=[2.0, 2.0, 1.0])
    assert result.physics[:2].sum() == pytest.approx(5.0, rel=0.05)
    assert any("fast, slow trade off" in line for line in result.warnings)
    assert any("do not depend on idle" in line for line in result.warnings)
    assert np.isinf(result.perr[2:]).all()
    assert np.isfinite(result.perr[:2]).all()


def test_repeated_tradeoffs_are_reported_once():
    result = covariance(np.ones((3, 3)))
    assert len(result.tradeoffs) == 2
    assert len(set(rank_warnings(result, ["a", "b", "c"]))) == len(
        rank_warnings(result, ["a", "b", "c"])
    )


def test_correlated_pairs_are_reported_in_one_line():
    draw = np.random.default_rng(1)
    columns = draw.normal(size=(200, 12))
    for first, second, off in ((0, 1, 1e-2), (3, 7, 1e-4), (4, 9, 1e-3)):
        columns[:, second] = columns[:, first] + off * draw.normal(size=200)
    result = covariance(columns.T @ columns)
    assert len(result.nearly) == 3
    lines = rank_warnings(result, [f"p{k}" for k in range(12)])
    assert len(lines) == 1
    assert "p3 and p7" in lines[0]
    assert "3 " in lines[0]


def test_a_wave_along_the_rows_is_reported(case):
    wave = 0.02 * np.sin(np.arange(N) / 4)
    result = fit(case, case.data + wave[:, None] + wave)
    assert any("not normalized" in line for line in result.warnings)
    assert not any("correlated" in line for line in fit(case).warnings)


def test_the_printed_result(case):
    result = fit(case)
    text = str(result)
    for part in ("converged", "contrast[2]", "gamma_dot_t_offset", "1/s", "chi2", "compile"):
        assert part in text
    assert result.as_dict["D0"] == result.popt[6]
    assert result.names[6:] == model_of(case).parameter_names
    stopped = fit(case, max_nfev=2)
    assert not stopped.success
    assert "NOT converged" in str(stopped)
    with raises(RuntimeError, "did not converge"):
        jk.xpcs.curve_fit(model_of(case), case.data, problems.START, **checks.options(max_nfev=2))


@pytest.mark.parametrize("half", [np.triu, np.tril])
@pytest.mark.parametrize("kind", ["array", "device", "source", "uint16"])
def test_data_with_one_triangle(case, half, kind):
    """Zeros in the other triangle would be fitted as correlations."""
    data, options = np.stack([half(matrix) for matrix in case.data]), {}
    if kind == "uint16":
        data, options = np.round(data * 1e4).astype(np.uint16), {"quantization": (1e-4, 0.0)}
    where = "above" if half is np.triu else "below"
    argument = {"device": jax.numpy.asarray, "source": list}.get(kind, np.asarray)(data)
    with raises(ValueError, f"{where} the diagonal at angle 0"):
        fit(case, argument, **options)
    if kind == "array":
        with raises(ValueError, "triangle", "angle 0"):
            jk.xpcs.log_likelihood(model_of(case), problems.TRUTH, 0.3, 1.0, data, 0.01)


def test_a_group_is_read_in_natural_order(tmp_path):
    with h5py.File(tmp_path / "g.h5", "w") as file:
        for k in range(12):
            file[f"c2/{k + 1}"] = np.full((4, 4), float(k))
        source = jk.xpcs.as_source(file["c2"])
        assert [source.read(k, 0, 1)[0, 0] for k in range(12)] == list(range(12))
