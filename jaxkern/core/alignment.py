"""Arrays at addresses that JAX on the CPU uses without a copy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

#: bytes; NumPy allocates large arrays at 16 mod 64
ALIGNMENT = 64


def aligned_array(
    shape: int | tuple[int, ...], dtype: Any, make: Callable[..., np.ndarray] = np.empty
) -> np.ndarray:
    """Allocate an array with `make` (``np.empty`` or ``np.zeros``) at a multiple of `ALIGNMENT`."""
    shape, dtype = (shape,) if isinstance(shape, int) else shape, np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    space = make(size + ALIGNMENT - 1, np.uint8)
    start = -space.__array_interface__["data"][0] % ALIGNMENT
    array: np.ndarray = space[start : start + size].view(dtype).reshape(shape)
    return array


def aligned_copy(array: np.ndarray) -> np.ndarray:
    """Copy an array to memory that JAX on the CPU uses without another copy."""
    copy = aligned_array(array.shape, array.dtype)
    copy[...] = array
    return copy
