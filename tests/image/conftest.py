"""Fixtures of the image tests: which backend runs, and how outputs are compared."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from tests.image.oracle import BFLOAT16, reference

# Share of the value range that an output may be off, by its dtype.
TOLERANCE = {
    np.dtype(np.float32): 2e-4,
    np.dtype(np.float16): 1e-3,
    BFLOAT16: 8e-3,
}


@pytest.fixture(params=["jax"])
def backend(request):
    """The backend under test; every test that calls `apply` goes through it."""
    return request.param


@pytest.fixture
def run(backend):
    """Runs aug.apply under jit."""

    def call(aug, images, params, labels=None):
        if labels is None:
            return jax.jit(lambda i, p: aug.apply(i, p))(images, params)
        return jax.jit(lambda i, p, y: aug.apply(i, p, y))(images, params, labels)

    return call


@pytest.fixture
def check(run):
    """Compares aug.apply with the oracle; returns the output and the largest difference."""

    def call(aug, images, params, odd_levels=0.0, slack=0.0):
        out = run(aug, images, params)
        return out, assert_close(out, reference(aug, images, params, out.dtype), odd_levels, slack)

    return call


def assert_close(out, wanted, odd_levels=0.0, slack=0.0):
    """u8: equal but for a share `odd_levels` of values one level off; floats: within tolerance.

    `slack` is what a few float values may be off in addition, where the chain rounds to levels.
    """
    assert out.shape == wanted.shape
    dtype = np.dtype(out.dtype)
    if out.size == 0:
        return 0.0
    difference = np.abs(np.asarray(out).astype(np.float64) - wanted)
    worst = float(difference.max())
    if dtype == np.uint8:
        assert worst <= (1 if odd_levels else 0), f"{worst} levels off"
        assert (difference > 0).mean() <= odd_levels
        return worst
    allowed = TOLERANCE[dtype] * max(1.0, float(np.abs(wanted).max()))
    assert worst <= allowed + slack, f"{worst} off, {allowed} allowed"
    assert (difference > allowed).mean() <= 0.05
    return worst
