"""Orders that use no memory: keyed permutations of records, and exact proportions of a mixture."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from jaxkern.core import registry

Array = np.ndarray[Any, Any]
Positions = np.ndarray[Any, np.dtype[np.int64]]

_ROUNDS = 8
_LISTED = 4096  # maximum number of records for which the order is stored as a list
_MAX_RECORDS = 2**62  # so that each half of the Feistel network is below 2**32
_MAX_WEIGHTS = 2**31  # upper bound of the sum of weights, so that products fit into 64 bits
_U64 = np.uint64


class Permutation:
    """Permutation of range(count) by (seed, epoch), evaluated at any positions; count <= 2**62.

    Up to 4,096 records it is a sorted list of keyed hashes. Above, it is a Feistel network on a
    rectangle a x b that just covers the records (alternating halves, as in Black and Rogaway,
    "Ciphers with arbitrary finite domains", 2002), with cycle walking back into the range.

    >>> import numpy as np
    >>> from jaxkern.pipeline.order import Permutation
    >>> order = Permutation(10**12, seed=0, epoch=3)
    >>> int(order.position_of(order(np.array([7])))[0])
    7
    """

    def __init__(self, count: int, seed: int, epoch: int) -> None:
        if not 1 <= count <= _MAX_RECORDS:
            raise ValueError(f"count is {count}; expected 1 to 2**62 records")
        self.count = count
        name = f"jaxkern order 1: {count} {seed} {epoch}".encode()
        self._keys = tuple(map(_U64, np.frombuffer(hashlib.blake2b(name).digest(), "<u8")))
        self._a = _U64(math.isqrt(count - 1) + 1)  # ceil(sqrt(count))
        self._b = _U64(-(-count // int(self._a)))

    def __call__(self, positions: Any) -> Array:
        """Return the records int64 [N] at positions [N]."""
        return self._map(positions, inverse=False)

    def position_of(self, records: Any) -> Array:
        """Return the positions int64 [N] of records [N]; the inverse permutation."""
        return self._map(records, inverse=True)

    def _map(self, values: Any, inverse: bool) -> Array:
        values = np.asarray(values, np.int64)
        if values.size and not (values.min() >= 0 and values.max() < self.count):
            raise IndexError(
                f"got {values.min()} to {values.max()}; expected 0 to {self.count - 1}"
            )
        if self.count <= _LISTED:
            return _listed(self.count, self._keys)[inverse][values]
        if (library := registry.module("cpu")) is not None:
            images: Array = values.copy()  # in C order, so that reshape returns a view
            sides = self.count, int(self._a), int(self._b)
            library.permute(images.reshape(-1), *sides, [*map(int, self._keys)], inverse)
            return images
        step = self._backward if inverse else self._forward
        walked = step(values.astype(_U64))
        outside = np.flatnonzero(walked >= _U64(self.count))
        while outside.size:
            walked[outside] = step(walked[outside])
            outside = outside[walked[outside] >= _U64(self.count)]
        return np.asarray(walked.astype(np.int64))

    def _forward(self, x: Array) -> Array:
        left, right = x // self._b, x % self._b
        for r in range(0, _ROUNDS, 2):
            left = (left + _reduce(right, self._keys[r], self._a)) % self._a
            right = (right + _reduce(left, self._keys[r + 1], self._b)) % self._b
        return left * self._b + right

    def _backward(self, x: Array) -> Array:
        left, right = x // self._b, x % self._b
        for r in range(_ROUNDS - 2, -1, -2):
            right = (right + self._b - _reduce(left, self._keys[r + 1], self._b)) % self._b
            left = (left + self._a - _reduce(right, self._keys[r], self._a)) % self._a
        return left * self._b + right


def _mix(x: Array) -> Array:
    """Bijection of 64-bit words; each output bit depends on each input bit (Stafford's mix 13)."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def _reduce(x: Array, key: np.uint64, limit: np.uint64) -> Array:
    """Hash x to [0, limit), limit below 2**32."""
    high = _mix(_mix(x ^ key) + key) >> _U64(32)
    return (high * limit) >> _U64(32)


@functools.lru_cache(maxsize=16)
def _listed(count: int, keys: tuple[np.uint64, ...]) -> tuple[Array, Array]:
    """Return the permutation and its inverse as lists."""
    values = _mix(_mix(np.arange(count, dtype=_U64) ^ keys[0]) + keys[1])
    order = np.argsort(values, kind="stable")
    inverse = np.empty(count, np.int64)
    inverse[order] = np.arange(count)
    return order, inverse


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Assignment of positions to sources by weights, positive integers; see `integer_weights`.

    For two sources with integer weights A and B, floor((n A + f) / (A + B)) of the first n
    positions belong to the first source, a Sturmian word; the seed decides f. Any n consecutive
    positions contain floor or ceil of n A / (A + B) of them. More sources are split into two
    halves, and the positions of each half recursively. The error of a source is at most the sum of
    the errors of the splits: in any range of positions, two sources are within 1 of their
    proportion, three and four within 2, up to eight within 3. (For three sources no schedule stays
    within 1 in general: with weights 0.47, 0.31 and 0.22 none does for more than ten positions.)

    >>> import numpy as np
    >>> from jaxkern.pipeline.order import Schedule
    >>> which, index = Schedule((2, 1), seed=0).at(np.arange(9))
    >>> sorted(which.tolist()), index[which == 1].tolist()
    ([0, 0, 0, 0, 0, 0, 1, 1, 1], [0, 1, 2])
    """

    weights: tuple[int, ...]
    seed: int

    @functools.cached_property
    def _split(self) -> tuple[int, int, int]:
        """The weights of both halves, divided by their greatest common divisor, and the phase f."""
        middle = len(self.weights) // 2
        a, b = _reduced([sum(self.weights[:middle]), sum(self.weights[middle:])])
        name = f"jaxkern schedule 1: {self.weights} {self.seed}".encode()
        drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
        return a, b, drawn % (a + b)

    @functools.cached_property
    def _halves(self) -> tuple[Schedule, Schedule]:
        middle = len(self.weights) // 2
        first = Schedule(self.weights[:middle], self.seed)
        return first, Schedule(self.weights[middle:], self.seed + 1)

    def _first_before(self, positions: Positions) -> Positions:
        a, b, phase = self._split
        periods, rest = np.divmod(positions, a + b)
        return periods * a + (rest * a + phase) // (a + b)

    def at(self, positions: Positions) -> tuple[Positions, Positions]:
        """Return (source, number of earlier records of it) for positions int64 [n]."""
        if len(self.weights) == 1:
            return np.zeros(len(positions), np.int64), positions
        before = self._first_before(positions)
        second = self._first_before(positions + 1) == before
        which, index = np.empty_like(positions), np.empty_like(positions)
        for half, chosen in enumerate((~second, second)):
            source, number = self._halves[half].at((positions - before if half else before)[chosen])
            which[chosen] = source + half * (len(self.weights) // 2)
            index[chosen] = number
        return which, index

    def before(self, source: int, positions: Positions) -> Positions:
        """For each position, count the earlier positions that belong to a source."""
        if len(self.weights) == 1:
            return positions
        half, source = self._half_of(source)
        first = self._first_before(positions)
        return self._halves[half].before(source, positions - first if half else first)

    def position(self, source: int, index: Positions) -> Positions:
        """Return the positions of a source's records, numbered from 0; the inverse of `at`."""
        if len(self.weights) == 1:
            return index
        half, source = self._half_of(source)
        a, b, phase = self._split
        own = b if half else a
        periods, rest = np.divmod(self._halves[half].position(source, index), own)
        within: Positions = (rest * (a + b) + phase) // own
        if not half:
            within = -((phase - (rest + 1) * (a + b)) // own) - 1
        return periods * (a + b) + within

    def _half_of(self, source: int) -> tuple[int, int]:
        middle = len(self.weights) // 2
        half = int(source >= middle)
        return half, source - half * middle


def integer_weights(weights: Sequence[Any]) -> tuple[int, ...]:
    """Return integers in the same proportions; exact if 31 bits hold their sum.

    A float stands for the decimal number that Python prints for it: 0.1 is one tenth.

    Raises: ValueError for a weight that is not positive.
    """
    exact = []
    for index, value in enumerate(weights):
        weight = value.item() if isinstance(value, np.generic) else value
        try:
            text = repr(weight) if isinstance(weight, float) else weight
            exact.append(Fraction(text) if weight > 0 else Fraction(0))
        except (TypeError, ValueError, OverflowError):
            exact.append(Fraction(0))
        if exact[-1] == 0:
            raise ValueError(f"weight {index} is {value!r}; expected a positive number")
    scale = math.lcm(*(weight.denominator for weight in exact))
    integers = _reduced([int(weight * scale) for weight in exact])
    total = sum(integers)
    if total >= _MAX_WEIGHTS:
        most = _MAX_WEIGHTS - len(integers)
        integers = _reduced([max(1, weight * most // total) for weight in integers])
    return tuple(integers)


def _reduced(integers: list[int]) -> list[int]:
    common = math.gcd(*integers)
    return [number // common for number in integers]
