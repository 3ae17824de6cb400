"""Would catch: a message of the handler of multi-tau states that does not name the op and what was
wrong with it, and sizes at the edges. tests/core/test_handler_fuzz.py makes random hostile calls.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import pytest
from support.xpcs.handler_outcomes import OK, outcome

import jaxkern as jk

TARGET = "jaxkern.multitau_update.v1"

if TARGET not in jk.export_targets() and "cpu" not in os.environ.get("JAXKERN_REQUIRE", ""):
    pytest.skip("this installation has no native correlators", allow_module_level=True)

B, T, P, DPL, DELAYS = 2, 5, 3, 2, 6  # states, frames, pixels, delays a level and in all
LEVELS = 2


def words(*shape: int) -> np.ndarray:
    return np.zeros((B, *shape), np.uint32)


def with_results(call: dict[str, Any]) -> dict[str, Any]:
    """Add results with the shapes of the state."""
    state = {name: call[name] for name in ("total", "g", "head", "history")}
    return call | {f"{k}_out": jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in state.items()}


VALID = with_results(
    {
        "frames": np.ones((B, T, P), np.uint8),
        "seen": np.array([0, 7], np.int32),
        "total": words(P, 2),
        "g": words(DELAYS, P, 2),
        "head": words(DELAYS, P),
        "history": words(LEVELS * 2 * DPL, P),
        "dpl": np.int32(DPL),
    }
)
WIDE = {k: np.zeros((*VALID[k].shape, 2), np.uint32) for k in ("head", "history")}
REAL = with_results({**VALID, "frames": np.ones((B, T, P), np.float32), **WIDE})


def test_valid_calls_return():
    assert outcome(TARGET, VALID) is OK
    assert outcome(TARGET, REAL) is OK


@pytest.mark.parametrize(
    ("changed", "facts"),
    [
        ({"seen": np.array([0, -1], np.int32)}, ("'seen'", "-1")),
        ({"seen": np.zeros(B, np.uint32)}, ("'seen'", "uint32")),
        ({"frames": np.ones((B, T, P + 1), np.uint8)}, ("'frames'", str(P + 1))),
        ({"frames": np.ones((B, T, P), np.int8)}, ("'frames'", "int8")),
        ({"dpl": np.int32(0)}, ("'dpl'", " 0")),
        ({"dpl": np.int32(65)}, ("'dpl'", "65")),
        ({"history": words(LEVELS * 2 * DPL - 1, P)}, ("'history'", str(LEVELS * 2 * DPL - 1))),
        ({"g": words(1000, P, 2)}, ("'g'", "1000")),
        ({"frames": REAL["frames"]}, ("'head'", "shape")),
    ],
)
def test_messages_name_the_operand_and_its_value(changed, facts):
    text = outcome(TARGET, VALID | changed)
    assert all(fact in text for fact in facts), text


@pytest.mark.parametrize("seen", [2**31 - 1, 2**31 - 3])
def test_very_many_frames_seen(seen):
    assert outcome(TARGET, VALID | {"seen": np.full(B, seen, np.int32)}) is OK


def test_nothing_to_do():
    """No pixels of very many delays, no frames, no states."""
    empty = {"frames": np.zeros((B, T, 0), np.uint8)}
    for name in ("total", "g", "head", "history"):
        pixels = 1 if name == "total" else 2
        shape = [0 if axis == pixels else size for axis, size in enumerate(VALID[name].shape)]
        empty[name] = np.zeros(shape, np.uint32)
    assert outcome(TARGET, with_results(VALID | empty)) is OK
    assert outcome(TARGET, VALID | {"frames": np.ones((B, 0, P), np.uint8)}) is OK
