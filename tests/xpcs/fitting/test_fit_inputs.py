"""Wrong arguments of a fit, each named with what was wanted; and warnings in the result."""

from __future__ import annotations

import h5py
import jax
import numpy as np
import pytest
import scipy.optimize
from support.xpcs import fit_problems as problems
from support.xpcs.fit_checks import model_of

import jaxkern as jk
from jaxkern.xpcs.fitting.result import rank_warnings
from jaxkern.xpcs.fitting.solver import covariance

N = 40


@pytest.fixture(scope="module")
def case():
    return problems.simulate(N, seed=61)


def fit(case, data=None, **arguments):
    return jk.xpcs.fit(
        model_of(case),
        case.data if data is None else data,
        **{"p0": problems.START, "progress": False, **arguments},
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data": np.ones((3, 40, 39))}, r"\(3, 40, 39\); wanted \[n_phi, n, n\]"),
        ({"data": np.ones((2, 40, 40))}, r"\(2, 40, 40\); wanted \(3, 40, 40\)"),
        ({"data": np.ones((3, 40, 40), complex)}, "complex128; wanted real"),
        ({"data": "c2.h5"}, "only .npy files are opened by their path"),
        ({"sigma": np.ones(4)}, r"sigma has the shape \(4,\); wanted a number, \[3\]"),
        ({"sigma": np.ones((3, 40, 1, 1))}, r"sigma has the shape \(3, 40, 1, 1\)"),
        ({"sigma": -1.0}, "sigma holds -1"),
        ({"sigma": [0.1, np.nan, 0.1]}, "sigma holds nan"),
        ({"sigma": -np.ones((3, 40, 40))}, "sigma holds -1"),
        ({"sigma": 1.0, "weights": 1.0}, "both sigma and weights"),
        ({"sigma": np.full((3, 40, 40), np.nan)}, "sigma holds nan"),
        ({"sigma": jk.xpcs.as_source([-np.eye(40)] * 3)}, "sigma holds -1"),
        ({"weights": -1.0}, "weights holds -1"),
        ({"weights": np.full((3, 40, 40), np.nan)}, "weights holds nan"),
        ({"p0": [1.0, 2.0]}, r"p0 has the shape \(2,\); wanted \[7\].*D0"),
        ({"p0": {"D_0": 1.0}}, "'D_0'.*did you mean 'D0'"),
        ({"p0": {"D0": np.nan}}, "wanted finite numbers"),
        ({"p0": {"D0": 1.0}}, r"D0 = 1, outside its bounds 100 \.\. 100000"),
        ({"contrast0": 3.0}, r"contrast\[0\] = 3, outside its bounds"),
        ({"contrast0": [0.1, 0.2]}, "contrast0 is .*3 angles"),
        ({"bounds": {"beta_0": (0, 1)}}, "'beta_0'.*did you mean 'beta'"),
        ({"bounds": {"beta": (1, 0)}}, "bounds of beta are 1 and 0; wanted lower < upper"),
        ({"bounds": (np.zeros(5), np.ones(5))}, r"lower bounds have the shape \(5,\)"),
        ({"bounds": [(0, 1)] * 7}, r"bounds has 7 entries; wanted a pair \(lower, upper\)"),
        ({"hold": ["D1"]}, "hold names the parameter 'D1'"),
        ({"loss": "hubert"}, "loss is 'hubert'; wanted one of linear"),
        ({"f_scale": 0.0}, "f_scale is 0.0"),
        ({"scaling": "each"}, "scaling is 'each'"),
        ({"strategy": "FAST"}, "strategy is 'FAST'; wanted one of STANDARD"),
        ({"symmetric": "maybe"}, "symmetric is 'maybe'"),
        ({"multistart": 0}, "multistart is 0"),
        ({"multistart": 1.5}, "multistart is 1.5; expected an integer from 1"),
        ({"seed": 0.5}, "seed is 0.5; expected an integer from 0"),
        ({"max_nfev": 1.5}, "max_nfev is 1.5; expected an integer"),
        ({"hold": "D0"}, r"hold is 'D0'; wanted a sequence of names, such as \['D0'\]"),
        ({"data": np.ones((3, 40, 40), np.uint16)}, r"uint16, and quantization is missing; give"),
        (
            {"data": jk.xpcs.as_source([np.ones((40, 40), np.uint16)] * 3)},
            "uint16, and quantization is missing",
        ),
        (
            {"data": np.ones((3, 40, 40), np.uint16), "quantization": (0.0, 1.0)},
            r"quantization is \(0.0, 1.0\); wanted \(step, zero\), step not 0",
        ),
        ({"keep": np.ones(39, bool)}, r"keep has the shape \(39,\)"),
        ({"start_frame": 38}, "leave 2 of 40 frames"),
        ({"quantization": (1.0, 0.0)}, "quantization is given for data of float64"),
        (
            {
                "data": jk.xpcs.as_source([np.ones((40, 40), np.uint16)] * 3),
                "quantization": (0.1, 1.0),
            },
            "beside a DatasetsSource",
        ),
    ],
)
def test_wrong_arguments(case, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit(case, **arguments)


@pytest.mark.parametrize("strategy", ["STANDARD", "STREAMING"])
def test_negative_sigma_of_a_file_is_told(case, tmp_path, strategy):
    sigma = np.full((3, N, N), 0.004)
    sigma[2, 3, 30] = -0.004
    np.save(tmp_path / "sigma.npy", sigma)
    with pytest.raises(ValueError, match=r"sigma holds -0\.004"):
        fit(case, sigma=tmp_path / "sigma.npy", strategy=strategy, symmetric=True)


def test_bounds_of_scipy(case):
    lower, upper = np.transpose(model_of(case).bounds)
    lower[1] = -0.9
    found = fit(case, bounds=scipy.optimize.Bounds(lower, upper))
    assert found.popt[7] == pytest.approx(-0.9, abs=1e-4)


def test_no_model():
    with pytest.raises(TypeError, match="model is a tuple; wanted a Model"):
        jk.xpcs.fit((), np.ones((1, 8, 8)))


def test_several_processes_have_no_checkpoints(case, monkeypatch):
    """Where logs of different lengths would be resumed, and one process wait for ever."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match="enable_checkpoints is set in a fit of 2 processes"):
        fit(case, streaming=jk.xpcs.StreamingOptions(enable_checkpoints=True))


def test_too_few_points_leave_held_parameters_alone():
    """Three frames, three points, three parameters: infinite errors, but no NaN."""
    short = problems.simulate(3, phi=problems.PHI[:1])
    t = problems.DT * np.arange(3)
    model = jk.xpcs.Static(jk.xpcs.Geometry(problems.Q, None, problems.DT, t, short.phi))
    start = {"D0": 2e4, "alpha": -1.0, "D_offset": 5e3}
    found = jk.xpcs.fit(model, short.data, 1.0, start, hold=["alpha", "D_offset"], progress=False)
    assert np.isinf(found.perr[:3]).all()
    assert (found.pcov[3:] == 0).all()
    assert any("3 independent points cannot determine" in line for line in found.warnings)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"checkpoint_frequency": 0}, "checkpoint_frequency is 0"),
        ({"max_checkpoint_overhead": 0.0}, "max_checkpoint_overhead is 0.0"),
        ({"on_bad_chunk": "ignore"}, "on_bad_chunk is 'ignore'"),
        ({"chunk_points": 0}, "chunk_points is 0"),
        ({"chunk_points": 1e6}, "chunk_points is 1000000.0; expected an integer"),
        ({"retries": -1}, "retries is -1; expected an integer from 0"),
    ],
)
def test_wrong_streaming_options(options, message):
    with pytest.raises(ValueError, match=message):
        jk.xpcs.StreamingOptions(**options)


def test_what_is_no_data():
    with pytest.raises(TypeError, match="data is a object; wanted an array"):
        jk.xpcs.as_source(object())
    with pytest.raises(ValueError, match=r"data set 1 has the shape \(4, 5\)"):
        jk.xpcs.as_source([np.ones((4, 4)), np.ones((4, 5))])


def test_a_parameter_at_its_bound_is_reported(case):
    found = fit(case, bounds={"alpha": (-0.9, 2.0), "contrast": (0.0, 0.9)})
    assert found.popt[7] == pytest.approx(-0.9, abs=1e-4)
    assert any("alpha is at its lower bound -0.9" in line for line in found.warnings)
    assert sum("bound" in line for line in found.warnings) == 1


def test_a_rank_deficient_fit_names_the_parameters():
    """Two rates that only enter as their sum, and a parameter without any effect."""
    import jax.numpy as jnp

    n = 40
    t = np.arange(n) * 1.0
    geometry = jk.xpcs.Geometry(0.0054, None, 1.0, t, 0.0)

    def phases(p):
        return (p[0] + p[1]) * jnp.asarray(t) * 0.01 + 0.0 * p[2], jnp.zeros((1, n))

    model = jk.xpcs.CustomModel(geometry, phases, ["fast", "slow", "idle"], shear_power=0)
    clean = 1 + 0.3 * np.exp(-2 * np.abs(np.subtract.outer(t, t)) * 0.05)
    noise = np.triu(np.random.default_rng(0).normal(size=(n, n)) * 0.003, 1)
    found = jk.xpcs.fit(model, (clean + noise + noise.T)[None], p0=[2.0, 2.0, 1.0], progress=False)
    assert found.physics[:2].sum() == pytest.approx(5.0, rel=0.05)
    assert any("fast, slow trade off" in line for line in found.warnings)
    assert any("do not depend on idle" in line for line in found.warnings)
    assert np.isinf(found.perr[2:]).all()
    assert np.isfinite(found.perr[:2]).all()


def test_parameters_that_trade_off_twice_are_named_once():
    found = covariance(np.ones((3, 3)))
    assert len(found.tradeoffs) == 2
    assert len(set(rank_warnings(found, ["a", "b", "c"]))) == len(
        rank_warnings(found, ["a", "b", "c"])
    )


def test_pairs_that_can_hardly_be_told_apart_are_one_line():
    draw = np.random.default_rng(1)
    columns = draw.normal(size=(200, 12))
    for first, second, off in ((0, 1, 1e-2), (3, 7, 1e-4), (4, 9, 1e-3)):
        columns[:, second] = columns[:, first] + off * draw.normal(size=200)
    found = covariance(columns.T @ columns)
    assert len(found.nearly) == 3
    lines = rank_warnings(found, [f"p{k}" for k in range(12)])
    assert len(lines) == 1
    assert "p3 and p7" in lines[0]
    assert "3 " in lines[0]


def test_a_wave_along_the_rows_is_reported(case):
    wave = 0.02 * np.sin(np.arange(N) / 4)
    found = fit(case, case.data + wave[:, None] + wave)
    assert any("not normalized" in line for line in found.warnings)
    assert not any("correlated" in line for line in fit(case).warnings)


def test_the_result_reads_well(case):
    found = fit(case)
    text = str(found)
    for part in ("converged", "contrast[2]", "gamma_dot_t_offset", "1/s", "chi2", "compile"):
        assert part in text
    assert found.as_dict["D0"] == found.popt[6]
    assert found.names[6:] == model_of(case).parameter_names
    stopped = fit(case, max_nfev=2)
    assert not stopped.success
    assert "NOT converged" in str(stopped)
    with pytest.raises(RuntimeError, match="did not converge"):
        jk.xpcs.curve_fit(model_of(case), case.data, problems.START, max_nfev=2, progress=False)


@pytest.mark.parametrize("half", [np.triu, np.tril])
@pytest.mark.parametrize("kind", ["array", "device", "source", "uint16"])
def test_one_triangle_is_refused(case, half, kind):
    """Its zeros would be read as correlations."""
    data, options = np.stack([half(matrix) for matrix in case.data]), {}
    if kind == "uint16":
        data, options = np.round(data * 1e4).astype(np.uint16), {"quantization": (1e-4, 0.0)}
    where = "above" if half is np.triu else "below"
    given = {"device": jax.numpy.asarray, "source": list}.get(kind, np.asarray)(data)
    with pytest.raises(ValueError, match=f"only {where} the diagonal at angle 0; wanted both"):
        fit(case, given, **options)
    if kind == "array":
        with pytest.raises(ValueError, match="data has one triangle only at angle 0"):
            jk.xpcs.log_likelihood(model_of(case), problems.TRUTH, 0.3, 1.0, data, 0.01)


def test_a_group_is_read_in_natural_order(tmp_path):
    with h5py.File(tmp_path / "g.h5", "w") as file:
        for k in range(12):
            file[f"c2/{k + 1}"] = np.full((4, 4), float(k))
        source = jk.xpcs.as_source(file["c2"])
        assert [source.read(k, 0, 1)[0, 0] for k in range(12)] == list(range(12))
