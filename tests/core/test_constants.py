"""Would catch: an enum or a limit that has another number in Python than in C++.

Python has copies, because pure JAX runs without the native module.
"""

from __future__ import annotations

import enum
import re
from typing import Any, get_args

import pytest

from jaxkern.core import registry
from jaxkern.image import ops as image_ops
from jaxkern.image.chain import plan
from jaxkern.image.compose import producer
from jaxkern.image.program import program
from jaxkern.ring import assembly, errors, ring
from jaxkern.tokens import packing
from jaxkern.xpcs.correlators import results
from jaxkern.xpcs.model import normal, ops, twin

native = registry.module("cpu")
if native is None:
    pytest.skip("this installation has no native module", allow_module_level=True)


def members(kind: type[enum.IntEnum]) -> dict[str, int]:
    return {one.name: one.value for one in kind}


def positions(names: Any) -> dict[str, int]:
    """Of names that the native code receives as their index."""
    return {name.upper().replace("-", "_"): i for i, name in enumerate(names)}


OUTCOMES = ["OK", "TIMEOUT", "FAILED", "FINISHED", "CLOSED", "INVALID", "FORKED", "NO_MEMORY"]
SYMMETRIC = {False: "NO", True: "YES", "auto": "AUTO"}
PYTHON: dict[str, Any] = {
    "image.Code": members(program.Code),
    "image.Filter": members(plan.Filter),
    "image.Dtype": members(plan.Dtype),
    "image.Layout": members(plan.Layout),
    # NumPy's word is "constant"; a chain's constant is its operand `fill`.
    "image.Padding": {
        "FILL" if name == "CONSTANT" else name: value
        for name, value in members(plan.Padding).items()
    },
    "image.Rounding": members(plan.Rounding),
    "image.Codec": positions(producer._CODECS),
    "image.kMaxStages": image_ops.MAX_STAGES,
    "image.kMaxSegments": plan.MAX_SEGMENTS,
    "image.kMaxErasures": plan.MAX_ERASURES,
    "image.kMaxSize": plan.MAX_SIZE,
    "image.kMaxPixels": plan.MAX_PIXELS,
    "image.kMaxBlurKernel": program.MAX_KERNEL,
    "image.kMaxProgramSteps": program.MAX_STEPS,
    "image.kProgramValues": program.VALUES,
    "image.kMaxFactor": program.MAX_FACTOR,
    "ring.Cast": members(assembly.Cast),
    "ring.Outcome": {name: getattr(errors, name) for name in OUTCOMES},
    "ring.kNextIndex": ring._NEXT,
    "ring.kLastIndex": ring._LAST,
    "tokens.Method": positions(get_args(packing.Method)),
    "tokens.Overlong": positions(get_args(packing.Overlong)),
    "correlators.kMostDelays": results.MAX_DELAYS,
    "xpcs.Loss": positions(twin.LOSSES),
    "xpcs.Symmetric": {SYMMETRIC[value]: i for i, value in enumerate(normal._SYMMETRIC)},
    "xpcs.kMaxTables": ops._MAX_TABLES,
    "xpcs.kMaxComponents": ops._MAX_COMPONENTS,
    "xpcs.kMaxComponentParameters": ops._MAX_COMPONENT_PARAMETERS,
    "xpcs.kRowBlock": twin.ROW_BLOCK,
}


def test_every_constant_has_a_copy() -> None:
    assert set(native.constants()) == set(PYTHON)


@pytest.mark.parametrize("name", PYTHON)
def test_the_copy_is_equal(name: str) -> None:
    result = native.constants()[name]
    if isinstance(result, dict):  # kSoftL1 is SOFT_L1
        result = {
            re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", key.removeprefix("k")).upper(): value
            for key, value in result.items()
        }
    assert result == PYTHON[name]
