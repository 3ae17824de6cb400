"""The order of an epoch: a keyed permutation of the records that takes no memory.

Up to 4,096 records the order is a sorted list of keyed hashes. Above, it is a Feistel network on a
rectangle a x b that just covers the records (alternating halves, as in Black and Rogaway, "Ciphers
with arbitrary finite domains", 2002), with cycle walking back into the range.
"""

from __future__ import annotations

import functools
import hashlib
import math
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_ROUNDS = 8
_LISTED = 4096  # records up to which the order is a list
_MAX_RECORDS = 2**62  # so that a half stays below 2**32
_U64 = np.uint64


class Permutation:
    """A permutation of 0..count-1 that (seed, epoch) names; evaluated at any positions.

    Args:
      count: the number of records, 1 to 2**62.
      seed, epoch: integers.

    >>> import numpy as np
    >>> from jaxkern.pipeline.order import Permutation
    >>> order = Permutation(10**12, seed=0, epoch=3)
    >>> int(order.position_of(order(np.array([7])))[0])
    7
    """

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        if not 1 <= count <= _MAX_RECORDS:
            raise ValueError(f"{count} records; wanted 1 to 2**62")
        self.count = count
        self._keys = _round_keys(count, seed, epoch)
        self._a = _U64(math.isqrt(count - 1) + 1)  # ceil(sqrt(count))
        self._b = _U64(-(-count // int(self._a)))

    def __call__(self, positions: Any) -> Array:
        """The records int64 [N] at these positions [N]."""
        positions = self._checked(positions)
        if self.count > _LISTED:
            return self._walk(positions, self._forward)
        records: Array = _listed(self.count, self._keys)[0][positions]
        return records

    def position_of(self, records: Any) -> Array:
        """The positions int64 [N] of these records [N]: the inverse."""
        records = self._checked(records)
        if self.count > _LISTED:
            return self._walk(records, self._backward)
        positions: Array = _listed(self.count, self._keys)[1][records]
        return positions

    def _checked(self, values: Any) -> Array:
        checked: Array = np.asarray(values, np.int64)
        if checked.size and not (checked.min() >= 0 and checked.max() < self.count):
            raise IndexError(f"{checked.min()} to {checked.max()} of {self.count}")
        return checked

    def _walk(self, values: Array, step: Any) -> Array:
        count = _U64(self.count)
        walked = step(values.astype(_U64))
        outside = np.flatnonzero(walked >= count)
        while outside.size:
            walked[outside] = step(walked[outside])
            outside = outside[walked[outside] >= count]
        return np.asarray(walked.astype(np.int64))

    def _forward(self, x: Array) -> Array:
        left, right = x // self._b, x % self._b
        for r in range(0, _ROUNDS, 2):
            left = (left + _reduced(right, self._keys[r], self._a)) % self._a
            right = (right + _reduced(left, self._keys[r + 1], self._b)) % self._b
        return left * self._b + right

    def _backward(self, x: Array) -> Array:
        left, right = x // self._b, x % self._b
        for r in range(_ROUNDS - 2, -1, -2):
            right = (right + self._b - _reduced(left, self._keys[r + 1], self._b)) % self._b
            left = (left + self._a - _reduced(right, self._keys[r], self._a)) % self._a
        return left * self._b + right


def _round_keys(count: int, seed: int, epoch: int) -> tuple[np.uint64, ...]:
    name = f"jaxkern order 1: {count} {seed} {epoch}".encode()
    return tuple(_U64(k) for k in np.frombuffer(hashlib.blake2b(name).digest(), "<u8"))


def _mixed(x: Array) -> Array:
    """A bijection of 64-bit words in which every bit depends on every other (Stafford's mix 13)."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    mixed: Array = x ^ (x >> _U64(31))
    return mixed


def _reduced(x: Array, key: np.uint64, limit: np.uint64) -> Array:
    """A hash of x in [0, limit), limit below 2**32."""
    high = _mixed(_mixed(x ^ key) + key) >> _U64(32)
    return (high * limit) >> _U64(32)


@functools.lru_cache(maxsize=16)
def _listed(count: int, keys: tuple[np.uint64, ...]) -> tuple[Array, Array]:
    """The permutation and its inverse, as lists."""
    values = _mixed(_mixed(np.arange(count, dtype=_U64) ^ keys[0]) + keys[1])
    order = np.argsort(values, kind="stable")
    inverse = np.empty(count, np.int64)
    inverse[order] = np.arange(count)
    return order, inverse
