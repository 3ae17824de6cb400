"""Static arguments as keys of caches: equal only where types and bits are.

Python holds 0.0 and -0.0, and True, 1 and 1.0, for equal, and NaN for unequal to itself. A program
that was compiled for one of them is not the other's.
"""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np


def exact_key(value: Any) -> Any:
    """Something that is equal for two values only where their types and bits are.

    Looks into numbers, tuples, frozen sets and dataclasses; all else is compared as it compares
    itself, among its own type.

    >>> exact_key(0.0) == exact_key(-0.0), exact_key((True,)) == exact_key((1,))
    (False, False)
    """
    kind: Any = type(value)
    look = _look(kind)
    return kind, value if look is None else look(value)


@functools.lru_cache(1024)
def _look(kind: Any) -> Callable[[Any], Any] | None:
    """What tells the bits of a type's values; None where they compare themselves."""
    if issubclass(kind, np.generic):  # before float: np.float64 is one
        return lambda value: (value.dtype, value.tobytes())
    if issubclass(kind, float):
        return struct.Struct("d").pack
    if issubclass(kind, complex):
        return lambda value: struct.pack("2d", value.real, value.imag)
    if issubclass(kind, tuple):
        return lambda value: tuple(map(exact_key, value))
    if issubclass(kind, frozenset):
        return lambda value: frozenset(map(exact_key, value))
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind) if field.compare]

        def fields(value: Any) -> Any:
            # Beside the value: its own comparison may know more than its fields.
            found = [getattr(value, name) for name in names]
            return value, *(exact_key(x) for x in found if isinstance(x, int) or _look(x.__class__))

        return fields
    return None


class StaticArguments(tuple[tuple[str, Any], ...]):
    """The static arguments of an op's call, sorted by name; `dict` of it gives them back.

    JAX keeps what it compiled and lowered by the parameters of a primitive. Two of these are equal
    only where types and bits of all values are.
    """

    _key: Any = None

    def key(self) -> Any:
        """What is compared."""
        if self._key is None:
            self._key = exact_key(tuple(self))
        return self._key

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StaticArguments) and (
            self is other or bool(self.key() == other.key())
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self.key())
