"""Comparisons of outputs with the oracle's float64 values."""

from __future__ import annotations

import numpy as np
import pytest

from support.image.oracle import BFLOAT16

# Allowed error by dtype, as a fraction of the value range.
TOLERANCE = {np.dtype(np.float32): 2e-4, np.dtype(np.float16): 1e-3, BFLOAT16: 8e-3}


def assert_close(out, expected, odd_levels=0.0, slack=0.0):
    """Compare: uint8 equal except for a fraction `odd_levels` one level off; floats in tolerance.

    `slack` is an additional error of a few float values, for chains that round to levels.
    """
    assert out.shape == expected.shape
    dtype = np.dtype(out.dtype)
    if out.size == 0:
        return 0.0
    difference = np.abs(np.asarray(out).astype(np.float64) - expected)
    worst = float(difference.max())
    if dtype == np.uint8:
        assert worst <= (1 if odd_levels else 0), f"{worst} levels off"
        assert (difference > 0).mean() <= odd_levels
        return worst
    allowed = TOLERANCE[dtype] * max(1.0, float(np.abs(expected).max()))
    assert worst <= allowed + slack, f"{worst} off, {allowed} allowed"
    assert (difference > allowed).mean() <= 0.05
    return worst


def assert_alike(out, expected, interpolation="bilinear"):
    """Compare: uint8 by one level on 0.1% of pixels, nearest any value on as many, floats 2e-4."""
    off = np.abs(np.asarray(out).astype(float) - expected.astype(float)).max(axis=-1)
    if interpolation == "nearest":
        assert (off > 2e-4).mean() <= 1e-3
    elif expected.dtype == np.uint8:
        assert off.max() <= 1
        assert (off > 0).mean() <= 1e-3
    else:
        assert off.max() <= 2e-4


def boxes_as(form, corners):
    """Return boxes [..., 4] (left, top, right, bottom) in a format."""
    first, sides = corners[..., :2], corners[..., 2:] - corners[..., :2]
    if form == "cxcywh":
        first = first + sides / 2
    return corners if form == "xyxy" else np.concatenate([first, sides], axis=-1)


def slow(*values):
    """Return parameters of a test that runs with the slow ones."""
    return pytest.param(*values, marks=pytest.mark.slow)
