"""Fixtures of the XPCS tests: which backend runs, and 64-bit mode."""

from __future__ import annotations

import os

import jax
import pytest

import jaxkern as jk


@pytest.fixture(params=["jax", "native"])
def backend(request):
    """The backend under test, for the whole test."""
    missing = not any("two_time" in target for target in jk.export_targets())
    if request.param == "native" and missing and "cpu" not in os.environ.get("JAXKERN_REQUIRE", ""):
        pytest.skip("this installation has no native XPCS kernels")
    with jk.backend(request.param):
        yield request.param


@pytest.fixture
def x64():
    """JAX's 64-bit mode."""
    with jax.enable_x64(True):
        yield
