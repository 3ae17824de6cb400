"""The device under test, and how its results are compared.

These tests run only where they are named (`make gpu-check`): `make test` does not collect them, and
without a GPU they fail. JAXKERN_TEST_PLATFORM=cpu runs the same bodies with the CPU on both sides,
to check the tests themselves.
"""

from __future__ import annotations

import os
from typing import Any

import jax
import numpy as np
import pytest

import jaxkern as jk

PLATFORM = os.environ.get("JAXKERN_TEST_PLATFORM", "cuda")

# Largest difference as a share of the larger of 1 and the largest value.
TOLERANCE = {"float32": 2e-4, "float16": 1.5e-3, "bfloat16": 9e-3}


@pytest.fixture(scope="session")
def device() -> Any:
    missing = [op.reason for op in jk.doctor().ops if op.platform == PLATFORM and not op.native]
    assert not missing, missing
    return jax.devices(PLATFORM)[0]


@pytest.fixture(scope="session")
def host() -> Any:
    return jax.devices("cpu")[0]


def on(device: Any, backend: str, fn: Any, *operands: Any) -> Any:
    """fn(*operands), jitted, on a device and with a backend; results as NumPy arrays."""
    moved = jax.device_put(operands, device)
    with jk.backend(backend):  # type: ignore[arg-type]
        out = jax.jit(fn)(*moved)
    assert {d.platform for x in jax.tree.leaves(out) for d in x.devices()} == {device.platform}
    return jax.tree.map(np.asarray, out)


def assert_same(got: Any, expected: Any, levels: int = 1, slack: float = 1.0) -> None:
    """u8 within `levels`; floats within the tolerance of their dtype times `slack`."""
    for x, y in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert x.shape == y.shape
        assert x.dtype == y.dtype
        if x.size == 0:
            continue
        difference = np.abs(x.astype(np.float64) - y.astype(np.float64))
        allowed = float(levels)
        if x.dtype != np.uint8:
            largest = max(1.0, float(np.abs(y.astype(np.float64)).max()))
            allowed = TOLERANCE[str(x.dtype)] * largest * slack
        assert difference.max() <= allowed, f"{difference.max()} off, {allowed} allowed"
