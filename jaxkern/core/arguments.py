"""Checks of arguments that many functions take: what was given and what was wanted."""

from __future__ import annotations

import math
import numbers
import operator
from typing import Any

_MOST = 2**63 - 1


def whole_number(name: str, value: Any, least: int, most: int = _MOST, more: str = "") -> int:
    """A whole number as an int, of NumPy too.

    Args:
      more: that the message ends with.

    Raises:
      ValueError: for anything else, or one below ``least`` or above ``most``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        raise ValueError(
            f"{name} is {value!r:.80}; wanted a whole number from "
            f"{'-2**63' if least == -_MOST - 1 else least} to "
            f"{'2**63 - 1' if most == _MOST else most}{more}"
        )
    return number


def real_number(name: str, value: Any, least: float, most: float = math.inf) -> float:
    """A number as a float, of NumPy too.

    Raises:
      ValueError: for anything else, NaN, or one below ``least`` or above ``most``.
    """
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not real or not least <= value <= most:
        bounds = f"from {least:g} on" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} is {value!r:.80}; wanted a number {bounds}")
    try:
        return float(value)
    except OverflowError:  # an integer beyond all floats
        return math.inf


def decimal(text: str) -> int | None:
    """The number that a text of the digits 0 to 9 is; None for any other text.

    ``str.isdigit`` alone takes superscripts and other digits, which ``int`` refuses.
    """
    # Beyond 4,300 digits int() raises: nothing that is counted here has so many.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 100 else None
