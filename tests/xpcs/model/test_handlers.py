"""Errors of XPCS handlers for invalid calls; tests/core/test_handler_fuzz.py makes random calls."""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import pytest
from support.xpcs.handler_outcomes import OK, outcome

import jaxkern as jk

NORMAL = "jaxkern.two_time_normal_equations.v1"

if NORMAL not in jk.export_targets() and "cpu" not in os.environ.get("JAXKERN_REQUIRE", ""):
    pytest.skip("this installation has no native XPCS kernels", allow_module_level=True)

B, N, K_A, K_X = 2, 5, 1, 2  # angles, frames, tables
BASIS = 2 + K_A + K_X
STATE = BASIS * (BASIS + 1) // 2 + BASIS + 4


def real(*shape: int) -> np.ndarray:
    return np.linspace(0.1, 1.0, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def struct(*shape: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def angle() -> dict[str, Any]:
    return {"A": real(B, N), "X": real(B, N), "contrast": real(B)}


# Valid calls: operands in order, attributes, results.
CALLS: dict[str, dict[str, Any]] = {
    "jaxkern.two_time_g2.v1": {
        **angle(), "offset": real(B), "shear_power": np.int32(4), "out": struct(B, N, N),
    },
    "jaxkern.two_time_g2_tangent.v1": {
        **angle(), "dA": real(B, N), "dX": real(B, N), "dcontrast": real(B), "doffset": real(B),
        "shear_power": np.int32(2), "out": struct(B, N, N),
    },
    "jaxkern.two_time_g2_cotangent.v1": {
        **angle(), "G": real(B, N, N), "shear_power": np.int32(4), "out": struct(B, N),
        "out2": struct(B, N), "out3": struct(B), "out4": struct(B),
    },
    "jaxkern.two_time_residual.v1": {
        **angle(), "offset": real(B), "data": real(B, N, N), "sigma": real(B),
        "shear_power": np.int32(4), "sigma_rank": np.int32(0), "out": struct(B, N, N),
    },
    "jaxkern.two_time_g2_at.v1": {
        "A": real(B, N), "X": real(B, 3, N), "contrast": real(B, 3), "offset": real(B, 3),
        "index": np.array([[[0, 1, 2], [2, 4, 4]]] * B, np.int32), "shear_power": np.int32(4),
        "out": struct(B, 2),
    },
    NORMAL: {
        "A": real(B, N), "X": real(B, N), "tangents_A": real(B, K_A, N),
        "tangents_X": real(B, K_X, N), "contrast": real(B), "offset": real(B),
        "data": real(B, N, N), "quantization": real(B, 2), "sigma": real(B, N, N),
        "keep": np.ones((B, N), np.uint8), "f_scale": real(B),
        "first_row": np.zeros(B, np.int32), "initial": np.zeros((B, STATE), np.float32),
        "shear_power": np.int32(4), "loss": np.int32(1), "symmetric": np.int32(2),
        "sigma_rank": np.int32(2), "out": struct(B, STATE),
    },
}  # fmt: skip


@pytest.mark.parametrize("target", CALLS)
def test_the_valid_call_returns(target):
    assert outcome(target, CALLS[target]) is OK


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"data": real(B, 6, N), "sigma": real(B, 6, N)}, ("'data'", "6 rows")),
        ({"data": real(B, 3, N), "sigma": real(B, 3, N)}, ("'symmetric'", "2")),
        ({"data": np.ones((B, N, N), np.int32)}, ("'data'", "int32")),
        ({"symmetric": np.int32(0), "first_row": np.array([0, 1], np.int32)}, ("'first_row'", "1")),
        ({"tangents_A": real(B, 65, N), "tangents_X": real(B, 0, N)}, ("'tangents_A'", "65")),
        ({"shear_power": np.int32(0)}, ("'shear_power'", "0")),
        ({"shear_power": np.int32(3)}, ("'shear_power'", "3")),
        ({"loss": np.int32(5)}, ("'loss'", "5")),
        ({"sigma_rank": np.int32(1)}, ("'sigma_rank'", "1")),
        ({"sigma": real(B)}, ("'sigma'", "shape")),
        ({"initial": np.zeros((B, 3), np.float32)}, ("'initial'", "3]")),
    ],
)
def test_messages_name_the_argument_and_its_value(changed, facts):
    text = outcome(NORMAL, CALLS[NORMAL] | changed)
    assert all(fact in text for fact in facts), text


def test_rows_after_the_end_are_not_read():
    """Rows 3 and 4 of 5 are valid; one row further is an error."""
    call = CALLS[NORMAL] | {
        "symmetric": np.int32(1), "data": real(B, 2, N), "sigma": real(B, 2, N),
        "first_row": np.full(B, 3, np.int32),
    }  # fmt: skip
    assert outcome(NORMAL, call) is OK
    text = outcome(NORMAL, call | {"first_row": np.full(B, 4, np.int32)})
    assert "'first_row'" in text
    assert "4" in text


def test_no_points_of_many_samples():
    """A call without points must return without a loop over its samples."""
    target = "jaxkern.two_time_g2_at.v1"
    one = {k: v[:1] for k, v in CALLS[target].items() if k in ("A", "X", "contrast", "offset")}
    call = CALLS[target] | one | {"index": np.zeros((1, 0, 3), np.int32)}
    assert outcome(target, call | {"out": struct(2**40, 0)}) is OK


def test_points_out_of_range_are_nan():
    target = "jaxkern.two_time_g2_at.v1"
    call = CALLS[target]
    index = np.array([[[3, 0, 0], [0, -1, 0]], [[0, 0, 5], [2, 4, 4]]], np.int32)
    run = jax.ffi.ffi_call(target, call["out"])
    operands = [call[k] for k in ("A", "X", "contrast", "offset")]
    values = np.asarray(run(*operands, index, shear_power=np.int32(4)))
    np.testing.assert_array_equal(np.isnan(values), [[True, True], [True, False]])
