"""One axis of a segment in pure JAX: where its outputs come from, and with which weights."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxkern.image.chain.plan import Filter, Padding


def as_float(values: jax.Array) -> jax.Array:
    return values.astype(jnp.float32)


class Line:
    """One axis of a segment: the source positions of its outputs, as traced int32 scalars."""

    def __init__(
        self,
        start: Any,
        box: Any,
        resampled: Any,
        offset: Any,
        step: Any,
        limit: Any,
        size: int,
        padding: Padding,
    ) -> None:
        self.box = jnp.clip(box, 1, limit)
        self.start = jnp.clip(start, 0, limit - self.box)
        self.resampled = jnp.maximum(resampled, 1)
        index = offset + step * lax.iota(jnp.int32, size)
        if padding is not Padding.CONSTANT:
            index = _folded(index, self.resampled, padding)
        self.exists = (index >= 0) & (index < self.resampled)
        self.index = jnp.clip(index, 0, self.resampled - 1)

    def position(self, half: bool) -> tuple[jax.Array, jax.Array]:
        """Whole and fractional part of (2 i + 1) box / (2 resampled), less 1/2 if `half`.

        Exact for every size: see `offset`.
        """
        whole, rest = self.offset(half)
        return whole, as_float(rest) / as_float(2 * self.resampled)

    def offset(self, half: bool) -> tuple[jax.Array, jax.Array]:
        """The same with the fraction as a remainder, of 2 resampled.

        The estimate in float32 is a few off at most, and the remainder that corrects it is small,
        so that int32 arithmetic which wraps around gives it exactly.
        """
        odd, double = 2 * self.index + 1, 2 * self.resampled
        estimate = as_float(odd) * as_float(self.box) / as_float(double) - (0.5 if half else 0.0)
        whole = jnp.floor(estimate).astype(jnp.int32)
        rest = odd * self.box - (self.resampled if half else 0) - whole * double
        more = rest // double
        return whole + more, rest - more * double

    def direct(self) -> jax.Array:
        """Source indices without resampling."""
        return self.start + jnp.minimum(self.index, self.box - 1)

    def nearest(self) -> jax.Array:
        """Source indices of the nearest pixels."""
        return self.start + jnp.clip(self.offset(half=False)[0], 0, self.box - 1)

    def bilinear(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The two source indices and the weight of the second."""
        whole, fraction = self.position(half=True)
        first = jnp.clip(whole, 0, self.box - 1)
        second = jnp.minimum(first + 1, self.box - 1)
        # A second index of weight 0 is the first one's twin: two halves of it keep infinities.
        single = (whole < 0) | (fraction == 0.0)
        second = jnp.where(single, first, second)
        fraction = jnp.where(second == first, 0.5, fraction)
        return self.start + first, self.start + second, fraction

    def weights(self, columns: int, kind: Filter) -> jax.Array:
        """Weights [size, columns] of all source pixels under a filter with windows."""
        double = 2 * self.resampled
        # An argument of 1 of the filter on the scale of `_away`, where all is an integer, so that
        # a weight is 0 here where it is in the kernels.
        one = jnp.maximum(2 * self.box, double) if kind.widened else double
        source = lax.iota(jnp.int32, columns) - self.start
        inside = (source >= 0) & (source < self.box)
        if kind is Filter.ANTIALIAS:
            height = jnp.maximum(one - jnp.abs(self._away(source, one)), 0)
            weight = as_float(jnp.where(inside, height, 0))
        else:
            argument = as_float(self._away(source, 2 * one)) / as_float(one)
            a = -0.5 if kind.widened else -0.75
            weight = jnp.where(inside, _keys(a, argument), 0.0)
        if kind.widened:
            return weight / jnp.sum(weight, axis=1, keepdims=True)
        # Those beyond the box are its first and last pixel.
        for beyond in (1.0, 2.0):
            below, above = _keys(a, argument - beyond), _keys(a, argument + beyond)
            weight += jnp.where(source == 0, below, 0.0)
            weight += jnp.where(source == self.box - 1, above, 0.0)
        return weight

    def _away(self, source: jax.Array, reach: jax.Array) -> jax.Array:
        """How far source pixels are from those wanted, in parts of 2 resampled [size, columns].

        What lies beyond the reach, and could leave int32, is somewhere beyond it.
        """
        whole, rest = self.offset(half=True)
        double = 2 * self.resampled
        limit = reach // double + 2
        return jnp.clip(source[None, :] - whole[:, None], -limit, limit) * double - rest[:, None]


def _keys(a: float, x: jax.Array) -> jax.Array:
    """Keys' cubic convolution kernel."""
    x = jnp.abs(x)
    inner = 1.0 - x * x * (a + 3.0 - (a + 2.0) * x)
    outer = a * (x - 1.0) * (x - 2.0) * (x - 2.0)
    return jnp.where(x < 1.0, inner, jnp.where(x < 2.0, outer, 0.0))


def _folded(index: jax.Array, count: jax.Array, padding: Padding) -> jax.Array:
    """The indices in [0, count) that stand for others."""
    if padding is Padding.EDGE:
        return jnp.clip(index, 0, count - 1)
    twice = 1 if padding is Padding.SYMMETRIC else 0  # the outermost are there twice
    period = jnp.maximum(2 * (count - 1 + twice), 1)
    within = jnp.mod(index, period)
    return jnp.where(within < count, within, period - twice - within)
