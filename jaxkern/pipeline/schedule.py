"""Which source each place of a mixture takes from: exact proportions, at any place at once.

Two sources with weights A and B, integers: of the first n places floor((n A + f) / (A + B)) are the
first source's, a Sturmian word. Any n places in a row hold one of the two whole numbers beside
n A / (A + B). More sources are split in two halves, and each half's places again, which adds at
most the half's own error to that of a source in it: in any places in a row, two sources are within
1 of their proportion, three and four within 2, up to eight within 3. (For three sources no schedule
keeps within 1 in general: of (0.47, 0.31, 0.22) none does for more than ten places.)
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

_LIMIT = 2**31  # of the weights' sum, so that no product leaves 64 bits

Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclasses.dataclass(frozen=True)
class Split:
    """Places divided between two halves with weights a and b, without a common divisor.

    Attributes:
      phase: 0 to a + b - 1; where in its period the division begins.
    """

    a: int
    b: int
    phase: int

    def first_before(self, places: Places) -> Places:
        """How many of the places before each are the first half's."""
        turns, rest = np.divmod(places, self.a + self.b)
        found: Places = turns * self.a + (rest * self.a + self.phase) // (self.a + self.b)
        return found

    def place(self, half: int, index: Places) -> Places:
        """The place of a half's records by their numbers from 0."""
        period, own = self.a + self.b, self.b if half else self.a
        turns, rest = np.divmod(index, own)
        within: Places
        if half == 0:
            within = -((self.phase - (rest + 1) * period) // own) - 1
        else:
            within = (rest * period + self.phase) // own
        return turns * period + within


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Sources by weight, place after place.

    Args:
      weights: positive integers, one a source; see `whole_weights`.
      seed: chooses where in their periods the divisions begin.

    >>> import numpy as np
    >>> from jaxkern.pipeline.schedule import Schedule
    >>> which, index = Schedule((2, 1), seed=0).at(np.arange(9))
    >>> sorted(which.tolist()), index[which == 1].tolist()
    ([0, 0, 0, 0, 0, 0, 1, 1, 1], [0, 1, 2])
    """

    weights: tuple[int, ...]
    seed: int

    @functools.cached_property
    def _split(self) -> Split | None:
        """Between the first half of the sources and the others; None for one source."""
        count = len(self.weights)
        if count == 1:
            return None
        a, b = sum(self.weights[: count // 2]), sum(self.weights[count // 2 :])
        common = math.gcd(a, b)
        a, b = a // common, b // common
        name = f"jaxkern schedule 1: {self.weights} {self.seed}".encode()
        drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little")
        return Split(a, b, drawn % (a + b))

    @functools.cached_property
    def _halves(self) -> tuple[Schedule, Schedule]:
        middle = len(self.weights) // 2
        return (
            Schedule(self.weights[:middle], self.seed),
            Schedule(self.weights[middle:], self.seed + 1),
        )

    def at(self, places: Places) -> tuple[Places, Places]:
        """(source, how many of its records come before) of places int64 [n]."""
        if self._split is None:
            return np.zeros(len(places), np.int64), places
        before = self._split.first_before(places)
        second = self._split.first_before(places + 1) == before
        which, index = np.empty_like(places), np.empty_like(places)
        for half, chosen in enumerate((~second, second)):
            inner = (places - before if half else before)[chosen]
            found, number = self._halves[half].at(inner)
            which[chosen] = found + half * (len(self.weights) // 2)
            index[chosen] = number
        return which, index

    def before(self, source: int, places: Places) -> Places:
        """How many of the places before each are a source's."""
        if self._split is None:
            return places
        middle = len(self.weights) // 2
        half = int(source >= middle)
        first = self._split.first_before(places)
        return self._halves[half].before(source - half * middle, places - first if half else first)

    def place(self, source: int, index: Places) -> Places:
        """The places of a source's records by their numbers from 0; the inverse of `at`."""
        if self._split is None:
            return index
        middle = len(self.weights) // 2
        half = int(source >= middle)
        inner = self._halves[half].place(source - half * middle, index)
        return self._split.place(half, inner)


def whole_weights(weights: Sequence[Any]) -> tuple[int, ...]:
    """Weights in the same proportions as integers; exact where 31 bits hold their sum.

    A float means the decimal number that Python prints for it: 0.1 is one tenth.

    Raises: ValueError for a weight that is not above 0.
    """
    exact = []
    for place, given in enumerate(weights):
        weight = given.item() if isinstance(given, np.generic) else given
        try:
            text = repr(weight) if isinstance(weight, float) else weight
            exact.append(Fraction(text) if weight > 0 else Fraction(0))
        except (TypeError, ValueError, OverflowError):
            exact.append(Fraction(0))
        if exact[-1] == 0:
            raise ValueError(f"weight {place} is {given!r}; wanted a number above 0")
    scale = math.lcm(*(weight.denominator for weight in exact))
    whole = [int(weight * scale) for weight in exact]
    common = math.gcd(*whole)
    whole = [weight // common for weight in whole]
    total = sum(whole)
    if total >= _LIMIT:
        whole = [max(1, weight * (_LIMIT - len(whole)) // total) for weight in whole]
        common = math.gcd(*whole)
        whole = [weight // common for weight in whole]
    return tuple(whole)
