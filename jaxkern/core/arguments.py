"""Checks of arguments that many functions take: what was given and what was wanted."""

from __future__ import annotations

import operator
from typing import Any


def whole_number(name: str, value: Any, least: int) -> int:
    """A whole number as an int, of NumPy too.

    Raises:
      ValueError: for anything else, or one below ``least``.
    """
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    if not whole or operator.index(value) < least:
        wanted = f"from {least} on" if least != 1 else "above 0"
        raise ValueError(f"{name} is {value!r}; wanted a whole number {wanted}")
    return operator.index(value)
