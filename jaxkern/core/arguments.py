"""Checks and conversions of arguments that many functions share."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_INT64_MAX = 2**63 - 1


def as_int(value: Any) -> int | None:
    """Return an integer of Python or NumPy as an int; None for booleans and all other values.

    >>> as_int(3), as_int(True), as_int(3.0)
    (3, None, None)
    """
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def check_integer(
    name: str, value: Any, minimum: int, maximum: int = _INT64_MAX, more: str = ""
) -> int:
    """Return an integer of Python or NumPy from ``minimum`` to ``maximum`` as an int.

    Raises ValueError with the argument's ``name`` and the text ``more`` for anything else.
    """
    number = as_int(value)
    if number is None or not minimum <= number <= maximum:
        raise ValueError(
            f"{name} is {value!r:.80}; expected an integer from "
            f"{'-2**63' if minimum == -_INT64_MAX - 1 else minimum} to "
            f"{'2**63 - 1' if maximum == _INT64_MAX else maximum}{more}"
        )
    return number


def check_number(name: str, value: Any, minimum: float, maximum: float = math.inf) -> float:
    """Return a real number from ``minimum`` to ``maximum`` as a float; ValueError otherwise."""
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not minimum <= value <= maximum:
        upper = "" if maximum == math.inf else f" and at most {maximum:g}"
        raise ValueError(
            f"{name} is {value!r:.80}; expected a number of at least {minimum:g}{upper}"
        )
    try:
        return float(value)
    except OverflowError:  # an integer larger than every float
        return math.inf


def parse_decimal(text: str) -> int | None:
    """Return the value of a text of the digits 0 to 9; None for any other text."""
    # int() raises above 4,300 digits; no count in this package comes near 100.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 100 else None


# Arrays of integers -------------------------------------------------------------------------------


def check_narrowing(value: Any, name: str) -> Any:
    """Return ``value``; ValueError if host integers do not fit the type that JAX stores them in.

    Without x64 JAX silently drops their high 32 bits.
    """
    if not isinstance(value, (np.ndarray, np.generic, list, tuple)):
        return value
    if isinstance(value, (list, tuple)) and any(
        isinstance(x, jax.Array) for x in jax.tree.leaves(value)
    ):
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


def to_integers(value: Any, name: str, dtype: Any = np.int32) -> Any:
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
