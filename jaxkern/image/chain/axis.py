"""Integer geometry of an image axis; numbers are ints, or int32 arrays [N] of the samples."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

Number = Any  # int, or an int32 array [N]
Size = tuple[Any, Any]  # (height, width): ints, int32 scalars or arrays [N], or None if unknown
Box = tuple[Number, Number, Number, Number]  # (top, left, height, width)


def is_static(*values: Number) -> bool:
    """Return True if all values are Python ints, the same for every sample."""
    return all(isinstance(value, int) for value in values)


def add(a: Number, b: Number) -> Number:
    """Return a + b; a static 0 adds nothing to the traced program."""
    if is_static(a) and a == 0:
        return b
    return a if is_static(b) and b == 0 else a + b


def multiply(a: Number, b: Number) -> Number:
    """Return a * b; a static 0 or 1 adds nothing to the traced program."""
    for first, second in ((a, b), (b, a)):
        if is_static(first) and first in (0, 1):
            return second if first == 1 else 0
    return a * b


def minimum(a: Number, b: Number) -> Number:
    return _dispatch(a, b, min, np.minimum, lax.min)


def maximum(a: Number, b: Number) -> Number:
    return _dispatch(a, b, max, np.maximum, lax.max)


def _dispatch(a: Number, b: Number, on_ints: Any, on_numpy: Any, on_traced: Any) -> Number:
    if is_static(a, b):
        return on_ints(a, b)
    if isinstance(a, int | np.ndarray) and isinstance(b, int | np.ndarray):
        return on_numpy(a, b)
    a, b = jnp.broadcast_arrays(jnp.asarray(a, jnp.int32), jnp.asarray(b, jnp.int32))
    return on_traced(a, b)


def per_axis(one: Callable[..., tuple[Any, Any]], *pairs: Any) -> Box:
    """Return a box whose start and length `one` returns per axis."""
    (top, height), (left, width) = (one(*axis) for axis in zip(*pairs, strict=True))
    return top, left, height, width


_INT32_MAX = 2**31 - 1


def scaled(size: Number, numerator: Number, denominator: Number) -> Number:
    """Return floor(size * numerator / denominator) for numbers up to 2**24, at most 2**31 - 1."""
    if is_static(size, numerator, denominator):
        return size * numerator // denominator
    if all(isinstance(n, int | np.ndarray) for n in (size, numerator, denominator)):
        wide = np.asarray(size, np.int64) * numerator // np.maximum(denominator, 1)
        return np.minimum(wide, _INT32_MAX).astype(np.int32)
    size, numerator, denominator = (
        jnp.asarray(n, jnp.int32) for n in (size, numerator, denominator)
    )
    denominator = jnp.maximum(denominator, 1)
    # The product may exceed int32, the widest integer without x64. The estimate has a relative
    # error below 2**-23 and an absolute error of at most one. The rest of the product is below
    # 2**27, so wrapping int32 arithmetic computes it exactly.
    estimate = _float(size) * _float(numerator) / _float(denominator)
    small = estimate < 2.0**31 - 2.0**10
    quotient = jnp.where(small, estimate, 0.0).astype(jnp.int32)
    exact = quotient + (size * numerator - quotient * denominator) // denominator
    return jnp.where(small, exact, _INT32_MAX)


def _float(number: Any) -> Any:
    return number.astype(jnp.float32)


def half_to_even(value: Number) -> Number:
    """Return value / 2 rounded to the nearest integer, ties to even (Python's round)."""
    quotient = value // 2
    return quotient + (value - 2 * quotient) * (quotient % 2)


def clip(value: Number, low: Number, high: Number) -> Number:
    return minimum(maximum(value, low), high)


def _known_equal(a: Number, b: Number) -> bool:
    """Return True if two numbers are known to be equal; arrays only if they are the same object."""
    return a is b or (is_static(a, b) and a == b)


@dataclasses.dataclass
class Axis:
    """One axis of a segment; output index y shows resampled index offset + step * y."""

    box_start: Number
    box_size: Number
    resampled: Number
    offset: Number
    flipped: Number
    valid_start: Number  # [valid_start, valid_stop) is always within [0, size)
    valid_stop: Number
    size: Number
    source: Number

    @staticmethod
    def full_size(size: Number) -> Axis:
        return Axis(0, size, size, 0, 0, 0, size, size, size)

    @property
    def identity(self) -> bool:
        """True if the output is known to be the input, whatever the parameters."""
        uncropped = _known_equal(self.box_start, 0) and _known_equal(self.size, self.source)
        return is_static(self.size) and uncropped and self.plain

    @property
    def plain(self) -> bool:
        """True if the output is the unchanged box, so that a crop of it is a smaller box."""
        return (
            self.full
            and _known_equal(self.offset, 0)
            and _known_equal(self.flipped, 0)
            and _known_equal(self.size, self.box_size)
            and _known_equal(self.resampled, self.box_size)
        )

    @property
    def step(self) -> Number:
        """1, or -1 on a mirrored axis."""
        return 1 - 2 * self.flipped

    @property
    def full(self) -> bool:
        """True if every output index is known to be valid for every sample."""
        return _known_equal(self.valid_start, 0) and _known_equal(self.valid_stop, self.size)

    @property
    def shows_all(self) -> bool:
        """True if the output is the complete resampled image."""
        return self.full and _known_equal(self.size, self.resampled)

    def extend(self, start: Number, size: Number) -> None:
        """Select the window [start, start + size); pixels outside the image are padding."""
        self.offset = add(self.offset, multiply(self.step, start))
        self.valid_start, self.valid_stop, self.size = 0, size, size

    def window(self, start: Number, size: Number, inside: bool) -> None:
        """Show [start, start + size) of the current output; with `inside` all of it exists."""
        if inside and self.plain:  # The kernel checks that the smaller box exists.
            self.box_start = add(self.box_start, start)
            self.box_size = self.resampled = self.valid_stop = self.size = size
            return
        if inside and self.full:
            self.valid_start, self.valid_stop = 0, size
        else:
            self.valid_start = clip(self.valid_start - start, 0, size)
            self.valid_stop = clip(self.valid_stop - start, 0, size)
        self.offset = add(self.offset, multiply(self.step, start))
        self.size = size

    def flip(self, flipped: Number) -> None:
        self.offset = add(self.offset, multiply(flipped, multiply(self.step, self.size - 1)))
        if not self.full:
            shift = multiply(flipped, self.size - self.valid_start - self.valid_stop)
            self.valid_start = add(self.valid_start, shift)
            self.valid_stop = add(self.valid_stop, shift)
        both = multiply(flipped, self.flipped)
        self.flipped = add(add(self.flipped, flipped), multiply(-2, both))

    def resample(self, start: Number, box: Number, size: Number) -> None:
        """Resample [start, start + box) of an output that is a plain, full window."""
        first = add(add(self.box_start, self.offset), multiply(self.step, start))
        self.box_start = add(first, multiply(self.flipped, 1 - box))
        self.box_size = box
        self.resampled = size
        self.offset = multiply(self.flipped, size - 1)
        self.valid_start, self.valid_stop, self.size = 0, size, size
