"""Static arguments as cache keys, compared by type and bits, since 0.0 == -0.0 and True == 1."""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Callable
from typing import Any

import numpy as np


def exact_key(value: Any) -> Any:
    """Return a key that is equal for two values only if their types and bits are equal.

    Numbers, tuples, frozen sets and dataclasses are compared by bits; values of other types by
    their own ``==``, within one type.

    >>> exact_key(0.0) == exact_key(-0.0), exact_key((True,)) == exact_key((1,))
    (False, False)
    """
    kind: Any = type(value)
    bits = _bits_function(kind)
    return kind, value if bits is None else bits(value)


@functools.lru_cache(1024)
def _bits_function(kind: Any) -> Callable[[Any], Any] | None:
    """Return a function from a value to its bits; None if values of the type use ``==``."""
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
            # The value itself is part of the key: its __eq__ may compare more than its fields.
            values = [getattr(value, name) for name in names]
            exact = (x for x in values if isinstance(x, int) or _bits_function(x.__class__))
            return value, *map(exact_key, exact)

        return fields
    return None


class StaticArguments(tuple[tuple[str, Any], ...]):
    """The static arguments of an op's call, as (name, value) pairs sorted by name."""

    _key: Any = None

    def key(self) -> Any:
        """Return the key that is compared."""
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
