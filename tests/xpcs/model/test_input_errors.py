"""Errors for bad input name the argument, and every public name has an example."""

from __future__ import annotations

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.xpcs import words
from support.xpcs.two_time_problems import PARAMS, flow

from jaxkern import xpcs
from jaxkern.xpcs.model import ops

MODEL, _ = flow(33)
DATA = np.ones((3, 33, 33))
GOOD = {"params": PARAMS, "contrast": 0.3, "offset": 1.0, "data": DATA, "sigma": 0.1}
NEGATIVE = DATA.copy()
NEGATIVE[1, 2, 3] = -1e-3

pytestmark = pytest.mark.usefixtures("x64")


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
