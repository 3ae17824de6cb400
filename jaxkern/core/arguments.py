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
    """Return an integer argument as an int.

    Args:
      name: the argument's name, for the error message.
      value: an integer of Python or NumPy.
      minimum, maximum: the allowed range, both ends included.
      more: text appended to the message.

    Raises:
      ValueError: for any other type, or a value out of range.
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
    """Return a real argument as a float.

    Args:
      name: the argument's name, for the error message.
      value: a real number of Python or NumPy.
      minimum, maximum: the allowed range, both ends included.

    Raises:
      ValueError: for any other type, NaN, or a value out of range.
    """
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
    """Return the value of a text that consists of the digits 0 to 9; None for any other text.

    ``str.isdigit`` alone accepts superscripts and digits of other scripts, which ``int`` rejects.
    """
    # int() raises above 4,300 digits; no count in this package comes near 100.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 100 else None
