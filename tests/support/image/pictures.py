"""Random images."""

from __future__ import annotations

import numpy as np


def pictures(seed, shape, dtype=np.uint8):
    """Return levels u8 of `shape`, or the same divided by 255 in another dtype."""
    levels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    return levels if dtype == np.uint8 else (levels / 255).astype(dtype)
