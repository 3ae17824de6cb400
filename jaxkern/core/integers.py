"""Integers of the host before JAX narrows them: without x64 it drops the high bits in silence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree import leaves


def check_narrowing(value: Any, name: str) -> Any:
    """``value``, after a look at whether JAX's type holds all of it where it is host integers.

    Raises:
      ValueError: where it does not; names the first number that is lost.
    """
    if not isinstance(value, (np.ndarray, np.generic, list, tuple)):
        return value
    if isinstance(value, (list, tuple)) and any(isinstance(x, jax.Array) for x in leaves(value)):
        return value
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        return value
    kept = jax.dtypes.canonicalize_dtype(array.dtype)
    if kept != array.dtype:
        check_range(array, kept, name, "; or jax.config.update('jax_enable_x64', True)")
    return array


def check_range(array: np.ndarray[Any, Any], dtype: Any, name: str, more: str = "") -> None:
    """Raises ValueError where host integers do not fit ``dtype``."""
    limits = np.iinfo(dtype)
    if array.size == 0 or (array.min() >= limits.min and array.max() <= limits.max):
        return
    flat = array.reshape(-1)
    at = int(np.argmax((flat < limits.min) | (flat > limits.max)))
    place = f"[{at}]" if array.ndim else ""
    raise ValueError(
        f"{name}{place} is {flat[at]}, which {np.dtype(dtype).name} does not hold; wanted "
        f"{limits.min} to {limits.max}{more}"
    )


def as_integers(value: Any, dtype: Any, name: str) -> Any:
    """Integers as a narrower signed type; those of the host are NumPy's after it.

    What is in a JAX array cannot be looked at: it stops at the type's ends, which are outside of
    everything.

    Raises:
      ValueError: for integers of the host that do not fit.
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
    """`as_integers` of int32."""
    return as_integers(value, np.dtype(np.int32), name)
