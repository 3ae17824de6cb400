"""Fixtures of the image tests: the backend, and the comparison with the oracle."""

from __future__ import annotations

import os

import jax
import pytest
from support.image.comparison import assert_close
from support.image.oracle import reference

import jaxkern as jk


@pytest.fixture(params=["jax", "native"])
def backend(request):
    """The backend under test; tests that call `apply` through `run` use both."""
    missing = not any("image" in target for target in jk.export_targets())
    if request.param == "native" and missing and "cpu" not in os.environ.get("JAXKERN_REQUIRE", ""):
        pytest.skip("this installation has no native image kernels")
    return request.param


@pytest.fixture
def run(backend):
    """A function that runs aug.apply under jit on the backend under test."""

    def call(aug, images, params, labels=None):
        with jk.backend(backend):
            if labels is None:
                return jax.jit(lambda i, p: aug.apply(i, p))(images, params)
            return jax.jit(lambda i, p, y: aug.apply(i, p, y))(images, params, labels)

    return call


@pytest.fixture
def check(run):
    """A function that compares aug.apply with the oracle; returns the output and the error."""

    def call(aug, images, params, odd_levels=0.0, slack=0.0):
        out = run(aug, images, params)
        return out, assert_close(out, reference(aug, images, params, out.dtype), odd_levels, slack)

    return call
