"""Checks of arguments that many functions take: what was given and what was wanted."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, least: int) -> int:
    """A whole number as an int, of NumPy too.

    Raises:
      ValueError: for anything else, or one below ``least``.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        wanted = f"from {least} on" if least != 1 else "above 0"
        raise ValueError(f"{name} is {value!r}; wanted a whole number {wanted}")
    return number
