"""Checks of arguments that many functions share."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

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
