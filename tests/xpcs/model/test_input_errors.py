"""Bad input is an error that names the argument, and every public name has an example.

Would catch: a silent broadcast, a crash deep inside, an undocumented name.
"""

from __future__ import annotations

import importlib
import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from support.xpcs.two_time_problems import PARAMS, flow

from jaxkern import xpcs
from jaxkern.xpcs.model import ops

MODEL, _ = flow(33)
DATA = np.ones((3, 33, 33))
GOOD = {"params": PARAMS, "contrast": 0.3, "offset": 1.0, "data": DATA, "sigma": 0.1}
SHAPE_OF_DATA = r"data has shape \(3, 33, 32\); wanted \[n_phi, n_t, n_t\] = \(3, 33, 33\)"
NEGATIVE = DATA.copy()
NEGATIVE[1, 2, 3] = -1e-3

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize("function", ["residual", "normal_equations", "log_likelihood"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": [1.0]}, r"params has shape \(1,\); wanted \(7,\): D0, alpha"),
        ({"contrast": np.ones(2)}, r"contrast has shape \(2,\); wanted one number, or .* \(3,\)"),
        ({"offset": np.ones((3, 1))}, r"offset has shape \(3, 1\); wanted one number"),
        ({"data": DATA[..., :32]}, SHAPE_OF_DATA),
        ({"data": DATA[0]}, r"data has shape \(33, 33\); wanted"),
        ({"data": DATA.astype(np.int32)}, "data is int32; wanted one of float64"),
        ({"sigma": DATA[0]}, r"sigma has shape \(33, 33\); wanted one number, one for each angle"),
        ({"sigma": np.ones(2)}, r"sigma has shape \(2,\); wanted"),
        ({"sigma": -0.1}, "sigma is negative or NaN"),
        ({"sigma": [0.1, float("nan"), 0.1]}, "sigma is negative or NaN"),
        ({"sigma": NEGATIVE}, "sigma is negative or NaN"),
    ],
)
def test_bad_arguments(function, change, message):
    with pytest.raises(ValueError, match=message):
        getattr(xpcs, function)(MODEL, **{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scaling": "auto"}, "scaling='auto'; wanted one of 'individual', 'constant', 'fixed'"),
        ({"scaling": "constant", "contrast": np.ones(3)}, 'scaling="constant" wants one number'),
        ({"symmetric": "yes"}, "symmetric='yes'; wanted one of False, True, 'auto'"),
        ({"loss": "l1"}, "loss='l1'; wanted one of 'linear', 'soft_l1'"),
        ({"loss": "huber", "f_scale": 0.0}, "f_scale is 0.0; wanted a number above 0"),
        ({"f_scale": np.ones(3)}, r"f_scale has shape \(3,\); wanted one number"),
        (
            {"keep": np.ones(32)},
            r"keep has shape \(32,\); wanted one value for each frame: \(33,\)",
        ),
        ({"data": DATA.astype(np.uint16)}, "uint16, quantized, but quantization is missing"),
        (
            {"data": DATA.astype(np.uint16), "quantization": np.ones(3)},
            r"quantization has shape \(3,\); wanted \(step, zero\)",
        ),
        ({"quantization": (2.0, 1.0)}, "quantization is given for data of float64; wanted uint16"),
    ],
)
def test_bad_options(change, message):
    with pytest.raises(ValueError, match=message):
        xpcs.normal_equations(MODEL, **{**GOOD, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"symmetric": "auto"},
            'symmetric="auto" compares .* data has 8 rows of 33; say True or F',
        ),
        ({"first_row": 26}, "first_row=26 and 8 rows leave the matrix of 33 rows; wanted 0 to 25"),
        ({"first_row": -1}, "first_row=-1"),
        ({"initial": np.zeros((3, 5))}, r"initial has shape \(3, 5\); wanted \(3, 58\)"),
        ({"data": DATA[:, :8, :32]}, r"data has shape .* = \(rows, rows, 33\)"),
    ],
)
def test_bad_chunks(change, message):
    tables = MODEL.tables(PARAMS)
    given = {"data": DATA[:, :8], "symmetric": False, **change}
    with pytest.raises(ValueError, match=message):
        xpcs.accumulate(tables, 0.3, 1.0, sigma=0.1, shear_power=4, **given)


def test_a_state_of_another_model():
    with pytest.raises(ValueError, match=r"state has shape \(3, 7\); wanted \[n_phi, S\]"):
        xpcs.assemble(jnp.zeros((3, 7)), MODEL.tables(PARAMS), 0.3)


@pytest.mark.parametrize("index", [[0, 33, 0], [3, 0, 0], [0, 0, -1]])
def test_index_outside(index):
    with pytest.raises(IndexError, match=r"index\[1\]=.* is outside; wanted \(phi, i, j\)"):
        xpcs.g2_at(MODEL, PARAMS, 0.3, 1.0, [[0, 0, 0], index])


@pytest.mark.parametrize("index", [[0, 1, 2], [[0, 1]], [[0.0, 1.0, 2.0]]])
def test_bad_index(index):
    with pytest.raises(ValueError, match=r"wanted integers \[M, 3\] of \(phi, i, j\)"):
        xpcs.g2_at(MODEL, PARAMS, 0.3, 1.0, index)


def test_not_a_model():
    with pytest.raises(TypeError, match="model is a tuple; wanted a Model"):
        xpcs.g2((), PARAMS, 0.3, 1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda A: ops.two_time_g2(A, A[1:], 1.0, 1.0, shear_power=4),
            r"two_time_g2: X is float64\[8\] of one sample; wanted float64\[9\]",
        ),
        (lambda A: ops.two_time_g2(A, A, 1.0, 1.0, shear_power=3), "shear_power=3; wanted one of"),
        (
            lambda A: ops.two_time_g2(A.astype(np.int32), A, 1.0, 1.0, shear_power=4),
            "A is int32; wanted float32 or float64",
        ),
        (
            lambda A: ops.two_time_g2_at(A, A, 1.0, 1.0, np.zeros((1, 3), np.int32), shear_power=4),
            r"X is float64\[9\] of one sample; wanted float64\[m, 9\]",
        ),
    ],
)
def test_bad_operands(call, message):
    with pytest.raises(ValueError, match=message):
        call(jnp.arange(9.0))


@pytest.mark.parametrize("name", ["geometry", "models", "correlation", "normal", "likelihood"])
def test_modules_have_examples(name):
    assert ">>> " in inspect.getsource(importlib.import_module(f"jaxkern.xpcs.model.{name}"))


@pytest.mark.parametrize(
    "name",
    [
        "Geometry",
        "Static",
        "LaminarFlow",
        "CustomModel",
        "g2",
        "g2_at",
        "residual",
        "accumulate",
        "normal_equations",
        "log_likelihood",
    ],
)
def test_public_names_have_examples(name):
    assert ">>> " in inspect.getdoc(getattr(xpcs, name))
