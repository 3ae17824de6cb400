"""The fused chain in pure JAX, for one sample: the reference implementation of the native kernels.

A pixel of weight 0 is left out of a sum: NaN and infinities have no effect there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxkern.image.chain.plan import (
    ChainPlan,
    Dtype,
    Filter,
    Layout,
    Operands,
    Padding,
    Rounding,
    Segment,
    jax_dtype,
)


def as_float(values: jax.Array) -> jax.Array:
    return values.astype(jnp.float32)


class Line:
    """One axis of a segment: the source positions of its outputs, as traced int32 scalars."""

    def __init__(self, geometry: Sequence[Any], limit: Any, size: int, padding: Padding) -> None:
        start, box, resampled, offset, step = geometry
        self.box = jnp.clip(box, 1, limit)
        self.start = jnp.clip(start, 0, limit - self.box)
        self.resampled = jnp.maximum(resampled, 1)
        index = offset + step * lax.iota(jnp.int32, size)
        if padding is not Padding.CONSTANT:
            index = _fold_index(index, self.resampled, padding)
        self.exists = (index >= 0) & (index < self.resampled)
        self.index = jnp.clip(index, 0, self.resampled - 1)

    def offset(self, half: bool) -> tuple[jax.Array, jax.Array]:
        """Return (2 i + 1) box / (2 resampled), less 1/2 if `half`: integer and remainder."""
        # The float32 estimate is off by a few at most: wrapping int32 arithmetic corrects it.
        odd, double = 2 * self.index + 1, 2 * self.resampled
        estimate = as_float(odd) * as_float(self.box) / as_float(double) - (0.5 if half else 0.0)
        integer = jnp.floor(estimate).astype(jnp.int32)
        rest = odd * self.box - (self.resampled if half else 0) - integer * double
        more = rest // double
        return integer + more, rest - more * double

    def direct(self) -> jax.Array:
        return self.start + jnp.minimum(self.index, self.box - 1)

    def nearest(self) -> jax.Array:
        return self.start + jnp.clip(self.offset(half=False)[0], 0, self.box - 1)

    def bilinear(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Return the two source indices and the weight of the second."""
        integer, rest = self.offset(half=True)
        fraction = as_float(rest) / as_float(2 * self.resampled)
        first = jnp.clip(integer, 0, self.box - 1)
        second = jnp.minimum(first + 1, self.box - 1)
        # If the second weight is 0, both indices are the first one with weight 1/2 each, so that
        # an infinite neighbour has no effect.
        single = (integer < 0) | (fraction == 0.0)
        second = jnp.where(single, first, second)
        fraction = jnp.where(second == first, 0.5, fraction)
        return self.start + first, self.start + second, fraction

    def weights(self, columns: int, kind: Filter) -> jax.Array:
        """Return weights [size, columns] of all source pixels under a windowed filter."""
        double = 2 * self.resampled
        # The filter's unit on the integer scale of `_distance`, so that a weight is 0 exactly if it
        # is 0 in the kernels.
        one = jnp.maximum(2 * self.box, double) if kind.widened else double
        source = lax.iota(jnp.int32, columns) - self.start
        inside = (source >= 0) & (source < self.box)
        if kind is Filter.ANTIALIAS:
            height = jnp.maximum(one - jnp.abs(self._distance(source, one)), 0)
            weight = as_float(jnp.where(inside, height, 0))
        else:
            argument = as_float(self._distance(source, 2 * one)) / as_float(one)
            a = -0.5 if kind.widened else -0.75
            weight = jnp.where(inside, _keys(a, argument), 0.0)
        if kind.widened:
            return weight / jnp.sum(weight, axis=1, keepdims=True)
        # Taps outside the box read its first and last pixel.
        for reach in (1.0, 2.0):
            below, above = _keys(a, argument - reach), _keys(a, argument + reach)
            weight += jnp.where(source == 0, below, 0.0)
            weight += jnp.where(source == self.box - 1, above, 0.0)
        return weight

    def _distance(self, source: jax.Array, reach: jax.Array) -> jax.Array:
        """Return distances to source pixels in units of 1 / (2 resampled), clipped at `reach`."""
        integer, rest = self.offset(half=True)
        double = 2 * self.resampled
        limit = reach // double + 2
        return jnp.clip(source[None, :] - integer[:, None], -limit, limit) * double - rest[:, None]


def _keys(a: float, x: jax.Array) -> jax.Array:
    """Evaluate Keys' cubic convolution kernel."""
    x = jnp.abs(x)
    inner = 1.0 - x * x * (a + 3.0 - (a + 2.0) * x)
    outer = a * (x - 1.0) * (x - 2.0) * (x - 2.0)
    return jnp.where(x < 1.0, inner, jnp.where(x < 2.0, outer, 0.0))


def _fold_index(index: jax.Array, count: jax.Array, padding: Padding) -> jax.Array:
    """Map indices outside [0, count) to those that the padding repeats."""
    if padding is Padding.EDGE:
        return jnp.clip(index, 0, count - 1)
    twice = 1 if padding is Padding.SYMMETRIC else 0  # the edge pixel is repeated
    period = jnp.maximum(2 * (count - 1 + twice), 1)
    within = jnp.mod(index, period)
    return jnp.where(within < count, within, period - twice - within)


_CHECKED = "promise_in_bounds"  # indices are already clamped


def image_chain(pixels: jax.Array, *operands: jax.Array, plan: ChainPlan) -> jax.Array:
    """Run `plan` on pixels [H, W, C] with the `Operands` of one sample."""
    return _run(_Dense(pixels), Operands(*operands), plan)


def ragged_chain(*arrays: jax.Array, plan: ChainPlan, max_height: int, max_width: int) -> jax.Array:
    """Run `plan` on a buffer u8 [B], offset, height and width of an image, and its `Operands`."""
    buffer, offset, height, width, *operands = arrays
    source = _Ragged(buffer, offset, height, width, plan.channels, max_height, max_width)
    return _run(source, Operands(*operands), plan)


def mix(
    x: jax.Array, partner: jax.Array, lam: jax.Array, box: jax.Array, *, layout: Layout
) -> jax.Array:
    """Return lam * x + (1 - lam) * partner outside `box` (i32 [4]), and partner inside it."""
    first, second = x.astype(jnp.float32), partner.astype(jnp.float32)
    mixed = lam * _weighable(first, lam != 0) + (1.0 - lam) * _weighable(second, lam != 1)
    height, width = x.shape[1:] if layout is Layout.NCHW else x.shape[:2]
    rows, columns = _inside(box, height, width)
    inside = rows[:, None] & columns
    inside = inside[None] if layout is Layout.NCHW else inside[..., None]
    mixed = jnp.where(inside, second, mixed)
    if x.dtype == jnp.uint8:
        mixed = jnp.round(_clamped(mixed))
    return mixed.astype(x.dtype)


def _weighable(pixels: jax.Array, weighted: jax.Array) -> jax.Array:
    """Replace non-finite pixels of weight 0 by 0; derivatives are unchanged."""
    return jnp.where(weighted | jnp.isfinite(pixels), pixels, 0.0)


def _clamped(value: jax.Array, largest: float = 255.0) -> jax.Array:
    """Clamp values to 0 to `largest`; NaN becomes 0."""
    return jnp.minimum(jnp.where(value > 0.0, value, 0.0), largest)


def _lerp(a: jax.Array, b: jax.Array, fraction: jax.Array, finite: bool) -> jax.Array:
    # The difference of infinities would be NaN.
    return a + fraction * (b - a) if finite else (1.0 - fraction) * a + fraction * b


class _Dense:
    """An image that segments read: its size, and its pixels by index as float32."""

    def __init__(self, pixels: jax.Array) -> None:
        # Half types are widened before the gathers so that gradients are summed in float32.
        integer = jnp.issubdtype(pixels.dtype, jnp.integer)
        self.pixels = pixels if integer else as_float(pixels)
        self.height, self.width = pixels.shape[:2]

    def grid(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        picked = self.pixels.at[rows[:, None], columns[None, :]]
        return as_float(picked.get(mode=_CHECKED))

    def separable(self, rows: tuple[Any, ...], columns: tuple[Any, ...], finite: bool) -> jax.Array:
        """Interpolate between two rows and two columns: (index, next, fraction)."""
        # Columns first: the row pass then copies complete rows, which XLA vectorizes on CPU.
        left, right, across = columns
        a = as_float(self.pixels.at[:, left].get(mode=_CHECKED))
        b = as_float(self.pixels.at[:, right].get(mode=_CHECKED))
        narrowed = _lerp(a, b, across[None, :, None], finite)
        upper, lower, down = rows
        a = narrowed.at[upper].get(mode=_CHECKED)
        b = narrowed.at[lower].get(mode=_CHECKED)
        return _lerp(a, b, down[:, None, None], finite)

    def dense(self) -> jax.Array:
        return as_float(self.pixels)


@dataclasses.dataclass
class _Ragged:
    """An image in a flat buffer, with the interface of `_Dense`."""

    buffer: jax.Array
    offset: jax.Array
    height: jax.Array
    width: jax.Array
    channels: int
    max_height: int
    max_width: int

    def __post_init__(self) -> None:
        self.height = jnp.clip(self.height, 1, self.max_height)
        self.width = jnp.clip(self.width, 1, self.max_width)

    def grid(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        rows, columns = rows.astype(self.offset.dtype), columns.astype(self.offset.dtype)
        pixel = rows[:, None] * self.width.astype(self.offset.dtype) + columns[None, :]
        start = self.offset + pixel * self.channels
        index = start[..., None] + jnp.arange(self.channels, dtype=start.dtype)
        return as_float(self.buffer.at[index].get(mode="clip"))

    def separable(self, rows: tuple[Any, ...], columns: tuple[Any, ...], finite: bool) -> jax.Array:
        (upper, lower, down), (left, right, across) = rows, columns
        across = across[None, :, None]
        first = _lerp(self.grid(upper, left), self.grid(upper, right), across, finite)
        second = _lerp(self.grid(lower, left), self.grid(lower, right), across, finite)
        return _lerp(first, second, down[:, None, None], finite)

    def dense(self) -> jax.Array:
        return self.grid(jnp.arange(self.max_height), jnp.arange(self.max_width))


def _weighted(
    weights: jax.Array, pixels: jax.Array, axis: int, finite: bool, signed: bool = False
) -> jax.Array:
    """Sum pixels [h, w, C] along an axis with weights [outputs, inputs], most of which are 0."""

    def product(weights: jax.Array, values: jax.Array) -> jax.Array:
        summed = jnp.tensordot(weights, values, (1, axis), precision=lax.Precision.HIGHEST)
        return jnp.moveaxis(summed, 0, axis)

    if finite:
        return product(weights, pixels)
    # Infinities are counted separately, and NaN as one of each sign, whose sum is NaN again.
    channels = pixels.shape[-1]
    finite_values = jnp.isfinite(pixels)
    up, down = ~finite_values & ~(pixels < 0), ~finite_values & ~(pixels > 0)
    parts = [jnp.where(finite_values, pixels, 0.0), as_float(up), as_float(down)]
    if signed:  # A negative weight exchanges the signs of infinities.
        value = product(weights, parts[0])
        up, down = (
            product(jnp.maximum(weights, 0), one) + product(jnp.maximum(-weights, 0), other)
            for one, other in ((parts[1], parts[2]), (parts[2], parts[1]))
        )
    else:
        summed = product(weights, jnp.concatenate(parts, axis=-1))
        value, up, down = (summed[..., k * channels : (k + 1) * channels] for k in range(3))
    return value + jnp.where(up > 0, jnp.inf, 0.0) - jnp.where(down > 0, jnp.inf, 0.0)


def _resampled(
    source: _Dense | _Ragged, kind: Filter, rows: Line, columns: Line, finite: bool
) -> jax.Array:
    if kind is Filter.NONE:
        return source.grid(rows.direct(), columns.direct())
    if kind is Filter.NEAREST:
        return source.grid(rows.nearest(), columns.nearest())
    if kind is Filter.BILINEAR:
        return source.separable(rows.bilinear(), columns.bilinear(), finite)
    pixels = source.dense()
    height, width, _ = pixels.shape
    down, across = rows.weights(height, kind), columns.weights(width, kind)
    if not kind.bicubic:
        return _weighted(across, _weighted(down, pixels, 0, finite), 1, finite)
    levels = kind.for_levels() is kind
    lines = _weighted(across, pixels, 1, finite, signed=True)
    value = _weighted(down, _clamped(lines) if levels else lines, 0, finite, signed=True)
    return _clamped(value) if levels else value


def _inside(box: jax.Array, height: int, width: int) -> tuple[jax.Array, jax.Array]:
    """Return which rows [height] and columns [width] are in the box (top, left, height, width)."""
    y, x = lax.iota(jnp.int32, height), lax.iota(jnp.int32, width)
    # Compared without adding start and size, whose sum may leave int32.
    rows = (y >= box[0]) & (y - jnp.maximum(box[0], 0) < box[2] + jnp.minimum(box[0], 0))
    columns = (x >= box[1]) & (x - jnp.maximum(box[1], 0) < box[3] + jnp.minimum(box[1], 0))
    return rows, columns


def _segment(
    source: _Dense | _Ragged, segment: Segment, operands: Operands, finite: bool
) -> jax.Array:
    g, affine, fill, erase_box, erase_value = operands
    vertical, horizontal = (g[0], g[2], g[4], g[10], g[11]), (g[1], g[3], g[5], g[12], g[13])
    rows = Line(vertical, source.height, segment.height, segment.padding)
    columns = Line(horizontal, source.width, segment.width, segment.padding)
    value = _resampled(source, segment.filter, rows, columns, finite)
    y, x = lax.iota(jnp.int32, segment.height), lax.iota(jnp.int32, segment.width)
    rows_valid = rows.exists & (y >= g[6]) & (y < g[8])
    columns_valid = columns.exists & (x >= g[7]) & (x < g[9])
    shown, constant = (rows_valid[:, None] & columns_valid)[..., None], fill
    for k in range(segment.erasures):
        down, across = _inside(erase_box[k], segment.height, segment.width)
        erased = (down[:, None] & across)[..., None]
        shown, constant = shown & ~erased, jnp.where(erased, erase_value[k], constant)
    scale, bias = affine
    if finite:
        # The factors are selected, not the pixels: selecting pixels makes XLA's CPU compiler branch
        # around the gathers that compute them, which doubles the time of a crop.
        value = value * jnp.where(shown, scale, 0.0) + jnp.where(shown, bias, constant)
    else:
        value = jnp.where(shown, value * scale + bias, constant)
    if segment.rounding is Rounding.NEAREST:
        value = jnp.round(_clamped(value))
    elif segment.rounding is Rounding.TRUNCATE:
        value = jnp.trunc(_clamped(value, 255.999))
    return value


def _run(source: _Dense | _Ragged, operands: Operands, plan: ChainPlan) -> jax.Array:
    first = 0
    value = jnp.zeros(())
    for s, segment in enumerate(plan.segments):
        if s > 0:
            source = _Dense(value)
        last = first + segment.erasures
        of_segment = Operands(
            *(array[s] for array in operands[:3]), *(array[first:last] for array in operands[3:])
        )
        finite = s == 0 and plan.source_dtype is Dtype.U8
        value = _segment(source, segment, of_segment, finite)
        first = last
    if plan.output_dtype is Dtype.U8 and plan.segments[-1].rounding is Rounding.KEEP:
        value = jnp.round(_clamped(value))
    if plan.layout is Layout.NCHW:
        value = jnp.transpose(value, (2, 0, 1))
    return value.astype(jax_dtype(plan.output_dtype))
