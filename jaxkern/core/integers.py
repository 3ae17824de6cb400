"""Range checks of host integers; without x64 JAX silently drops their high 32 bits."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree import leaves


def check_narrowing(value: Any, name: str) -> Any:
    """Return ``value``; ValueError if host integers do not fit the type that JAX stores them in."""
    if not isinstance(value, (np.ndarray, np.generic, list, tuple)):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(x, jax.Array) for x in leaves(value)):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        return value
    stored = jax.dtypes.canonicalize_dtype(array.dtype)
    if stored != array.dtype:
        check_range(array, stored, name, "; or jax.config.update('jax_enable_x64', True)")
    return array


def check_range(array: np.ndarray[Any, Any], dtype: Any, name: str, more: str = "") -> None:
    """Raise ValueError if host integers do not fit ``dtype``."""
    limits = np.iinfo(dtype)
    if array.size == 0 or (array.min() >= limits.min and array.max() <= limits.max):
        return
    flat = array.reshape(-1)
    at = int(np.argmax((flat < limits.min) | (flat > limits.max)))
    index = f"[{at}]" if array.ndim else ""
    raise ValueError(
        f"{name}{index} is {flat[at]}, which does not fit {np.dtype(dtype).name}; expected "
        f"{limits.min} to {limits.max}{more}"
    )


def as_integers(value: Any, dtype: Any, name: str) -> Any:
    """Convert integers to a narrower signed type; host integers become a NumPy array.

    Raises ValueError if host integers do not fit; values of a JAX array are clipped to the type.
    """
    if not isinstance(value, jax.Array):
        array = np.asarray(value)
        if not np.can_cast(array.dtype, dtype):
            check_range(array, dtype, name)
        return array.astype(dtype, copy=False)
    limits, own = np.iinfo(dtype), np.iinfo(value.dtype)
    if own.max > limits.max:
        low = value.dtype.type(max(own.min, limits.min))
        value = jnp.clip(value, low, value.dtype.type(limits.max))
    return value if value.dtype == dtype else value.astype(dtype)


def to_int32(value: Any, name: str) -> Any:
    """Convert integers to int32, as `as_integers` does."""
    return as_integers(value, np.dtype(np.int32), name)
