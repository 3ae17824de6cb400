"""Models: phases, tables and rates compared with an oracle, and errors for bad input."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from support.errors import raises
from support.xpcs import words
from support.xpcs.two_time_oracle import Flow
from support.xpcs.two_time_problems import PARAMS, PHI, assert_scaled, flow

from jaxkern import xpcs
from jaxkern.xpcs.model import ops

T = 0.1 * np.arange(40)
pytestmark = pytest.mark.usefixtures("x64")


def test_phases_of_flow():
    model, oracle = flow()
    A, X = model.phases(PARAMS)
    expected_A, expected_X = oracle.phases(PARAMS.tolist())
    assert_scaled(A, expected_A, 1e-14)
    assert_scaled(X, expected_X, 1e-14)


def test_phases_are_exact_to_rounding():
    model, oracle = flow(25)
    A, X = oracle.phases([mp.mpf(p) for p in PARAMS], mp.mpf, mp.power, mp.cos, mp.pi)
    got_A, got_X = model.phases(PARAMS)
    for k in (1, 7, 24):
        assert abs(float(got_A[k]) / float(A[k]) - 1) < 1e-14
        assert abs(float(got_X[1, k]) / float(X[1][k]) - 1) < 1e-14


def test_static_is_the_flow_without_shear():
    geometry = xpcs.Geometry(0.0054, None, 0.1, T, PHI)
    model = xpcs.Static(geometry)
    A, X = model.phases(PARAMS[:3])
    assert_scaled(A, Flow(0.0054, 1.0, 0.1, T, PHI).phases(PARAMS[:3].tolist())[0], 1e-14)
    assert not np.any(X)
    assert model.shear_power == 0
    assert xpcs.g2(model, PARAMS[:3]).shape == (3, 40, 40)


def test_dt_and_t_are_independent():
    model = xpcs.LaminarFlow(xpcs.Geometry(0.0054, 2e6, 0.2, 0.1 + T, PHI))
    oracle = Flow(0.0054, 2e6, 0.2, 0.1 + T, PHI)
    assert_scaled(model.phases(PARAMS)[1], oracle.phases(PARAMS.tolist())[1], 1e-14)


@pytest.mark.parametrize("column", range(7))
def test_tables_are_derivatives(column):
    """Compare with finite differences in 60 digits."""
    model, oracle = flow(25)
    tables = model.tables(PARAMS)
    exact = [mp.mpf(float(p)) for p in PARAMS]
    with mp.workdps(60):
        step = mp.mpf(10) ** -20 * max(abs(exact[column]), mp.mpf("1e-3"))
        sides = []
        for sign in (1, -1):
            moved = [*exact[:column], exact[column] + sign * step, *exact[column + 1 :]]
            sides.append(oracle.phases(moved, mp.mpf, mp.power, mp.cos, mp.pi))
        slope_A = [
            float((u - v) / (2 * step)) for u, v in zip(sides[0][0], sides[1][0], strict=True)
        ]
        slope_X = [
            [float((u - v) / (2 * step)) for u, v in zip(*rows, strict=True)]
            for rows in zip(sides[0][1], sides[1][1], strict=True)
        ]
    if column in tables.columns_A:
        assert_scaled(tables.tangents_A[tables.columns_A.index(column)], slope_A, 1e-13)
    else:
        assert not np.any(slope_A)
    if column in tables.columns_X:
        assert_scaled(tables.tangents_X[:, tables.columns_X.index(column)], slope_X, 1e-13)
    else:
        assert not np.any(slope_X)


def test_floor_of_the_rates():
    """A rate is at least 1e-10, and its derivatives are 0 there."""
    model, oracle = flow(20)
    params = np.array([100.0, -1.0, -1e4, 0.01, 0.5, -0.1, 0.0])
    A, X = model.phases(params)
    expected_A, expected_X = oracle.phases(params.tolist())
    assert_scaled(A, expected_A, 1e-14)
    assert_scaled(X, expected_X, 1e-14)
    tables = model.tables(params)
    assert not np.any(tables.tangents_A)
    assert np.all(np.isfinite(tables.tangents_X))


@pytest.mark.parametrize("column", range(7))
def test_nan_parameters(column):
    """A parameter of NaN gives a rate of NaN, not one at its floor."""
    model, _ = flow(20)
    A, X = model.phases(np.where(np.arange(7) == column, np.nan, PARAMS))
    assert np.isnan(A[1:] if column < 3 else X[:, 1:]).all()


def test_names_units_defaults_bounds():
    model, _ = flow()
    assert model.parameter_names == (
        *("D0", "alpha", "D_offset", "gamma_dot_t0", "beta", "gamma_dot_t_offset", "phi0"),
    )
    assert model.defaults.tolist() == [1000.0, 0.5, 10.0, 0.01, 0.5, 0.0, 0.0]
    assert model.bounds.tolist() == [
        *([100, 1e5], [-2, 2], [-1e5, 1e5], [1e-6, 0.5], [-2, 2], [-0.1, 0.1], [-90, 90])
    ]
    assert model.units[0] == "Angstrom^2/s"
    assert len(model.units) == 7


def test_equal_models_share_a_compiled_function():
    traced = []

    def run(model, params):
        traced.append(model)
        return xpcs.g2(model, params)

    jitted = jax.jit(run, static_argnums=0)
    for _ in range(3):
        jitted(flow(30)[0], PARAMS)
    jitted(flow(30, power=2)[0], PARAMS)
    assert len(traced) == 2
    assert flow(30)[0] != flow(31)[0]


def test_custom_model():
    """A flow that is written by a user has the tables of `LaminarFlow`."""
    model, _ = flow()
    rows = {name: getattr(model, name) for name in ("units", "defaults", "bounds", "periods")}
    columns = {"columns_A": ["D0", "alpha", "D_offset"], "columns_X": [3, 4, 5, "phi0"]}
    parameters = model.parameter_names
    mine = xpcs.CustomModel(
        model.geometry, lambda p: model.phases(p), parameters, **rows, **columns
    )
    assert mine.parameters == model.parameters
    for actual, expected in zip(mine.tables(PARAMS), model.tables(PARAMS), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_custom_model_uses_all_parameters_by_default():
    geometry = xpcs.Geometry(0.01, None, 0.1, T, [0.0, 1.0])
    model = xpcs.CustomModel(
        geometry, lambda p: (p[0] * T, p[1] * jnp.ones((2, 1)) * T), ["rate", "shear"]
    )
    tables = model.tables([2.0, 3.0])
    assert tables.columns_A == tables.columns_X == (0, 1)
    np.testing.assert_array_equal(tables.tangents_A, [T, 0 * T])
    np.testing.assert_array_equal(tables.tangents_X, [[0 * T, T]] * 2)
    assert model.units == ("", "")
    assert model.bounds.tolist() == [[-np.inf, np.inf]] * 2


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"q": 0.0}, "q 0.0"),
        ({"gap": -1.0}, "gap -1.0 Angstrom"),
        ({"dt": float("nan")}, "dt nan"),
        ({"t": [0.0]}, "t 2 1"),
        ({"t": [-0.1, 0.0, 0.1]}, "t[0]=-0.1"),
        ({"t": [0.0, 1.0, 1.0]}, "t[1]=1 t[2]=1"),
        ({"t": [[0.0, 1.0]]}, "t (1, 2)"),
        ({"t": [0.0, float("inf")]}, "t: finite"),
        ({"phi": []}, "phi 40 0"),
        ({"phi": [float("nan")]}, "phi: finite"),
    ],
)
def test_bad_geometry(change, facts):
    good = {"q": 0.01, "gap": 1e6, "dt": 0.1, "t": T, "phi": PHI}
    with raises(ValueError, *words(facts)):
        xpcs.Geometry(**{**good, **change})


@pytest.mark.parametrize(
    ("make", "facts"),
    [
        (lambda g: xpcs.LaminarFlow(g, shear_power=3), "shear_power 3 (0, 2, 4)"),
        (lambda g: xpcs.LaminarFlow(xpcs.Geometry(1, None, 1, T, 0)), "gap Angstrom"),
        (lambda g: xpcs.LaminarFlow(g).phases([1.0, 2.0]), "params (2,) (7,)"),
        (lambda g: xpcs.CustomModel(g, None, ["a", "a"]), "parameter_names different"),
        (lambda g: xpcs.CustomModel(g, None, "ab"), "parameter_names list"),
        (lambda g: xpcs.CustomModel(g, None, ["a"], defaults=[1, 2]), "defaults (1,) (2,)"),
        (lambda g: xpcs.CustomModel(g, None, ["a"], bounds=[(2, 1)]), "bounds low high"),
        (lambda g: xpcs.CustomModel(g, None, ["a"], columns_A=["b"]), "columns_A 'b'"),
        (
            lambda g: xpcs.CustomModel(g, lambda p: (p[0] * T[1:], T), ["a"]).tables([1.0]),
            "A (39,) (40,)",
        ),
        (
            lambda g: xpcs.CustomModel(g, lambda p: (p[0] * T, T), ["a"]).tables([1.0]),
            "X (40,) (3, 40)",
        ),
    ],
)
def test_bad_models(make, facts):
    with raises(ValueError, *words(facts)):
        make(xpcs.Geometry(0.01, 1e6, 0.1, T, PHI))


def test_geometry_is_required():
    with raises(TypeError, "dict"):
        xpcs.Static({"q": 1})


MODEL, _ = flow(33)
DATA = np.ones((3, 33, 33))
GOOD = {"params": PARAMS, "contrast": 0.3, "offset": 1.0, "data": DATA, "sigma": 0.1}
NEGATIVE = DATA.copy()
NEGATIVE[1, 2, 3] = -1e-3


@pytest.mark.parametrize("function", ["residual", "normal_equations", "log_likelihood"])
@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"params": [1.0]}, "params (1,) (7,) D0, alpha"),
        ({"contrast": np.ones(2)}, "contrast (2,) (3,)"),
        ({"offset": np.ones((3, 1))}, "offset (3, 1)"),
        ({"data": DATA[..., :32]}, "data (3, 33, 32) (3, 33, 33)"),
        ({"data": DATA[0]}, "data (33, 33)"),
        ({"data": DATA.astype(np.int32)}, "data int32 float64"),
        ({"sigma": DATA[0]}, "sigma (33, 33) (3,)"),
        ({"sigma": np.ones(2)}, "sigma (2,)"),
        ({"sigma": -0.1}, "sigma negative NaN"),
        ({"sigma": [0.1, float("nan"), 0.1]}, "sigma negative NaN"),
        ({"sigma": NEGATIVE}, "sigma negative NaN"),
    ],
)
def test_bad_arguments(function, change, facts):
    with raises(ValueError, *words(facts)):
        getattr(xpcs, function)(MODEL, **{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"scaling": "auto"}, "scaling 'auto' 'individual', 'constant', 'fixed'"),
        ({"scaling": "constant", "contrast": np.ones(3)}, 'contrast scaling="constant" (3,)'),
        ({"symmetric": "yes"}, "symmetric 'yes' False, True, 'auto'"),
        ({"loss": "l1"}, "loss 'l1' 'linear', 'soft_l1'"),
        ({"loss": "huber", "f_scale": 0.0}, "f_scale 0.0"),
        ({"f_scale": np.ones(3)}, "f_scale (3,)"),
        ({"keep": np.ones(32)}, "keep (32,) (33,)"),
        ({"data": DATA.astype(np.uint16)}, "uint16 quantization (step, zero)"),
        (
            {"data": DATA.astype(np.uint16), "quantization": np.ones(3)},
            "quantization (3,) (step, zero)",
        ),
        ({"quantization": (2.0, 1.0)}, "quantization float64 uint16"),
    ],
)
def test_bad_options(change, facts):
    with raises(ValueError, *words(facts)):
        xpcs.normal_equations(MODEL, **{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"symmetric": "auto"}, 'symmetric "auto" 8 33'),
        ({"first_row": 26}, "first_row 26 8 33 25"),
        ({"first_row": -1}, "first_row -1"),
        ({"initial": np.zeros((3, 5))}, "initial (3, 5) (3, 58)"),
        ({"data": DATA[:, :8, :32]}, "data (rows, rows, 33)"),
    ],
)
def test_bad_chunks(change, facts):
    tables = MODEL.tables(PARAMS)
    arguments = {"data": DATA[:, :8], "symmetric": False, **change}
    with raises(ValueError, *words(facts)):
        xpcs.accumulate(tables, 0.3, 1.0, sigma=0.1, shear_power=4, **arguments)


def test_a_state_of_another_model():
    with raises(ValueError, "state", "(3, 7)"):
        xpcs.assemble(jnp.zeros((3, 7)), MODEL.tables(PARAMS), 0.3)


@pytest.mark.parametrize("index", [[0, 33, 0], [3, 0, 0], [0, 0, -1]])
def test_index_out_of_range(index):
    with raises(IndexError, "index[1]"):
        xpcs.g2_at(MODEL, PARAMS, 0.3, 1.0, [[0, 0, 0], index])


@pytest.mark.parametrize("index", [[0, 1, 2], [[0, 1]], [[0.0, 1.0, 2.0]]])
def test_bad_index(index):
    with raises(ValueError, "[M, 3] of (phi, i, j)"):
        xpcs.g2_at(MODEL, PARAMS, 0.3, 1.0, index)


def test_not_a_model():
    with raises(TypeError, "tuple"):
        xpcs.g2((), PARAMS, 0.3, 1.0)


@pytest.mark.parametrize(
    ("call", "facts"),
    [
        (
            lambda A: ops.two_time_g2(A, A[1:], 1.0, 1.0, shear_power=4),
            "two_time_g2: X float64[8] float64[9]",
        ),
        (lambda A: ops.two_time_g2(A, A, 1.0, 1.0, shear_power=3), "shear_power 3"),
        (
            lambda A: ops.two_time_g2(A.astype(np.int32), A, 1.0, 1.0, shear_power=4),
            "A int32 float32 float64",
        ),
        (
            lambda A: ops.two_time_g2_at(A, A, 1.0, 1.0, np.zeros((1, 3), np.int32), shear_power=4),
            "X float64[9] float64[m, 9]",
        ),
    ],
)
def test_bad_operands(call, facts):
    with raises(ValueError, *words(facts)):
        call(jnp.arange(9.0))


CLASSES = ["Geometry", "Static", "LaminarFlow", "CustomModel"]
FUNCTIONS = ["g2", "g2_at", "residual", "accumulate", "normal_equations", "log_likelihood"]


@pytest.mark.parametrize("name", CLASSES + FUNCTIONS)
def test_public_names_have_examples(name):
    assert ">>> " in inspect.getdoc(getattr(xpcs, name))
