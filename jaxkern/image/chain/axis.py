"""Integer geometry of one image axis, and small arithmetic on numbers that may be per sample.

A number is a Python int, or an int32 array [N] (NumPy or traced) with one value a sample.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Number = Any  # int, or an int32 array [N]
Size = tuple[Any, Any]  # height and width: ints, int32 scalars or arrays [N], or None if unknown


def is_static(*values: Number) -> bool:
    """Whether all values are plain ints, the same for every sample."""
    return all(isinstance(value, int) for value in values)


def plus(a: Number, b: Number) -> Number:
    """a + b; adding a static 0 costs nothing in the traced program."""
    if is_static(a) and a == 0:
        return b
    return a if is_static(b) and b == 0 else a + b


def times(a: Number, b: Number) -> Number:
    """a * b; multiplying by a static 0 or 1 costs nothing in the traced program."""
    for first, second in ((a, b), (b, a)):
        if is_static(first) and first in (0, 1):
            return second if first == 1 else 0
    return a * b


def minimum(a: Number, b: Number) -> Number:
    """The smaller of two numbers."""
    return _one_of(a, b, min, np.minimum, lax.min)


def maximum(a: Number, b: Number) -> Number:
    """The larger of two numbers."""
    return _one_of(a, b, max, np.maximum, lax.max)


def _one_of(a: Number, b: Number, of_ints: Any, of_known: Any, of_traced: Any) -> Number:
    if is_static(a, b):
        return of_ints(a, b)
    if isinstance(a, int | np.ndarray) and isinstance(b, int | np.ndarray):
        return of_known(a, b)
    a, b = jnp.broadcast_arrays(jnp.asarray(a, jnp.int32), jnp.asarray(b, jnp.int32))
    return of_traced(a, b)


_INT32_MAX = 2**31 - 1


def scaled(size: Number, numerator: Number, denominator: Number) -> Number:
    """floor(size * numerator / denominator) of numbers up to 2**24, at most 2**31 - 1.

    The product may leave int32, which is all that JAX has without x64.
    """
    if is_static(size, numerator, denominator):
        return size * numerator // denominator
    if all(isinstance(n, int | np.ndarray) for n in (size, numerator, denominator)):
        wide = np.asarray(size, np.int64) * numerator // np.maximum(denominator, 1)
        return np.minimum(wide, _INT32_MAX).astype(np.int32)
    size, numerator, denominator = (
        jnp.asarray(n, jnp.int32) for n in (size, numerator, denominator)
    )
    denominator = jnp.maximum(denominator, 1)
    # The estimate is off by less than a 2**23rd part and by one, so that what it leaves of the
    # product is below 2**27, and arithmetic that wraps around gives it exactly.
    estimate = _float(size) * _float(numerator) / _float(denominator)
    small = estimate < 2.0**31 - 2.0**10
    whole = jnp.where(small, estimate, 0.0).astype(jnp.int32)
    exact = whole + (size * numerator - whole * denominator) // denominator
    return jnp.where(small, exact, _INT32_MAX)


def _float(number: Any) -> Any:
    return number.astype(jnp.float32)


def half_to_even(value: Number) -> Number:
    """value / 2 rounded to the nearest integer, ties to even (Python's round)."""
    quotient = value // 2
    return quotient + (value - 2 * quotient) * (quotient % 2)


def clip(value: Number, low: Number, high: Number) -> Number:
    """value limited to [low, high]."""
    return minimum(maximum(value, low), high)


def _same(a: Number, b: Number) -> bool:
    """Whether two numbers are known to be equal, ragged sizes by being the same array."""
    return a is b or (is_static(a, b) and a == b)


@dataclasses.dataclass
class Axis:
    """One axis of a segment: box, resampled size, index map, and what is valid of the output.

    Output index y shows resampled index  offset + step * y,  step = 1 - 2 * flipped.
    The valid range [valid_start, valid_stop) always lies within [0, size).
    """

    box_start: Number
    box_size: Number
    resampled: Number
    offset: Number
    flipped: Number
    valid_start: Number
    valid_stop: Number
    size: Number
    source: Number

    @staticmethod
    def whole(size: Number) -> Axis:
        """The axis of an untouched image."""
        return Axis(0, size, size, 0, 0, 0, size, size, size)

    @property
    def identity(self) -> bool:
        """Whether the output is the input, known without looking at parameters."""
        whole = _same(self.box_start, 0) and _same(self.size, self.source)
        return is_static(self.size) and whole and self.plain

    @property
    def plain(self) -> bool:
        """Whether the output is the box as it is, so that a crop of it is a smaller box."""
        return (
            self.full
            and _same(self.offset, 0)
            and _same(self.flipped, 0)
            and _same(self.size, self.box_size)
            and _same(self.resampled, self.box_size)
        )

    @property
    def step(self) -> Number:
        """1, or -1 where the axis is mirrored."""
        return 1 - 2 * self.flipped

    @property
    def full(self) -> bool:
        """Whether every output index is valid for every sample, as far as sizes tell."""
        return _same(self.valid_start, 0) and _same(self.valid_stop, self.size)

    @property
    def shows_all(self) -> bool:
        """Whether the output is all of the resampled image and nothing else."""
        return self.full and _same(self.size, self.resampled)

    def extend(self, start: Number, size: Number) -> None:
        """Shows [start, start + size), where other pixels stand for those outside."""
        self.offset = plus(self.offset, times(self.step, start))
        self.valid_start, self.valid_stop, self.size = 0, size, size

    def window(self, start: Number, size: Number, inside: bool) -> None:
        """Shows [start, start + size) of the current output; `inside` promises that it exists."""
        if inside and self.plain:  # the kernel checks that the smaller box exists
            self.box_start = plus(self.box_start, start)
            self.box_size = self.resampled = self.valid_stop = self.size = size
            return
        if inside and self.full:
            self.valid_start, self.valid_stop = 0, size
        else:
            self.valid_start = clip(self.valid_start - start, 0, size)
            self.valid_stop = clip(self.valid_stop - start, 0, size)
        self.offset = plus(self.offset, times(self.step, start))
        self.size = size

    def flip(self, flipped: Number) -> None:
        """Mirrors the output where `flipped` is 1."""
        self.offset = plus(self.offset, times(flipped, times(self.step, self.size - 1)))
        if not self.full:
            shift = times(flipped, self.size - self.valid_start - self.valid_stop)
            self.valid_start = plus(self.valid_start, shift)
            self.valid_stop = plus(self.valid_stop, shift)
        both = times(flipped, self.flipped)
        self.flipped = plus(plus(self.flipped, flipped), times(-2, both))

    def resample(self, start: Number, box: Number, size: Number) -> None:
        """Resamples [start, start + box) of an output that is so far a plain, full window."""
        first = plus(plus(self.box_start, self.offset), times(self.step, start))
        self.box_start = plus(first, times(self.flipped, 1 - box))
        self.box_size = box
        self.resampled = size
        self.offset = times(self.flipped, size - 1)
        self.valid_start, self.valid_stop, self.size = 0, size, size
