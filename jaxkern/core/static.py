"""Static arguments as keys of caches: equal only where types and bits are.

Python holds 0.0 and -0.0, and True, 1 and 1.0, for equal, and NaN for unequal to itself. A program
that was compiled for one of them is not the other's.
"""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np

_LOOKED_INTO = (int, float, complex, np.generic, tuple, frozenset)


def exact_key(value: Any) -> Any:
    """Something that is equal for two values only where their types and bits are.

    Looks into numbers, tuples, frozen sets and dataclasses; all else is compared as it compares
    itself, among its own type.

    >>> exact_key(0.0) == exact_key(-0.0), exact_key((True,)) == exact_key((1,))
    (False, False)
    """
    kind = type(value)
    if isinstance(value, np.generic):  # before float: np.float64 is one
        return kind, value.dtype, value.tobytes()
    if isinstance(value, float):
        return kind, struct.pack("d", value)
    if isinstance(value, complex):
        return kind, struct.pack("2d", value.real, value.imag)
    if isinstance(value, tuple):
        return kind, tuple(map(exact_key, value))
    if isinstance(value, frozenset):
        return kind, frozenset(map(exact_key, value))
    if dataclasses.is_dataclass(kind):
        # Beside the value: its own comparison may know more than its fields.
        fields = (getattr(value, f.name) for f in dataclasses.fields(value) if f.compare)
        return kind, value, tuple(exact_key(x) if _looked_into(x) else None for x in fields)
    return kind, value


def _looked_into(value: Any) -> bool:
    return isinstance(value, _LOOKED_INTO) or dataclasses.is_dataclass(type(value))


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
