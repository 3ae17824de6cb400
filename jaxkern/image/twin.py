"""The fused image chain in pure JAX, for one sample: what the native kernels are equal to.

Runs on every platform and differentiates with respect to float pixels, affine, fill and
erase_value. Boxes that leave the image are clamped into it, as pure JAX cannot raise.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxkern.image.plan import Dtype, Filter, Layout, Plan, Rounding, Segment, jax_dtype

_CHECKED = "promise_in_bounds"  # indices are clamped here already


def image_chain(
    pixels: jax.Array,
    geometry: jax.Array,
    affine: jax.Array,
    fill: jax.Array,
    erase_box: jax.Array,
    erase_value: jax.Array,
    *,
    plan: Plan,
) -> jax.Array:
    """Runs `plan` on pixels [H, W, C]; geometry i32 [S, 14] and so on as in plan.h."""
    return _run(_Dense(pixels), geometry, affine, fill, erase_box, erase_value, plan)


def ragged_chain(
    buffer: jax.Array,
    offset: jax.Array,
    height: jax.Array,
    width: jax.Array,
    geometry: jax.Array,
    affine: jax.Array,
    fill: jax.Array,
    erase_box: jax.Array,
    erase_value: jax.Array,
    *,
    plan: Plan,
    max_height: int,
    max_width: int,
) -> jax.Array:
    """Runs `plan` on the [height, width, C] image that starts at buffer[offset]."""
    source = _Ragged(buffer, offset, height, width, plan.channels, max_height, max_width)
    return _run(source, geometry, affine, fill, erase_box, erase_value, plan)


def mix(
    x: jax.Array, partner: jax.Array, lam: jax.Array, box: jax.Array, *, layout: Layout
) -> jax.Array:
    """lam * x + (1 - lam) * partner outside `box` (i32 [4]), partner inside it.

    x and partner are [H, W, C], or [C, H, W] for NCHW; u8 results are rounded to the nearest.
    """
    first, second = x.astype(jnp.float32), partner.astype(jnp.float32)
    mixed = lam * first + (1.0 - lam) * second
    height, width = x.shape[1:] if layout is Layout.NCHW else x.shape[:2]
    rows, columns = _inside(box, height, width)
    inside = rows[:, None] & columns
    inside = inside[None] if layout is Layout.NCHW else inside[..., None]
    mixed = jnp.where(inside, second, mixed)
    if x.dtype == jnp.uint8:
        mixed = jnp.clip(jnp.round(mixed), 0, 255)
    return mixed.astype(x.dtype)


class _Source(Protocol):
    """An image that segments read: its size, and its pixels by index."""

    height: Any
    width: Any

    def grid(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        """Pixels at rows x columns as float32 [h, w, C]."""

    def separable(self, rows: tuple[Any, ...], columns: tuple[Any, ...]) -> jax.Array:
        """Pixels interpolated between two rows and two columns: (index, next, fraction)."""

    def dense(self) -> jax.Array:
        """All pixels as float32 [height or more, width or more, C]."""


def _lerp(a: jax.Array, b: jax.Array, fraction: jax.Array) -> jax.Array:
    return a + fraction * (b - a)


def _float(pixels: jax.Array) -> jax.Array:
    return pixels.astype(jnp.float32)


class _Dense:
    def __init__(self, pixels: jax.Array) -> None:
        # Half types are widened before the gathers so that gradients add up in float32.
        integer = jnp.issubdtype(pixels.dtype, jnp.integer)
        self.pixels = pixels if integer else _float(pixels)
        self.height, self.width = pixels.shape[:2]

    def grid(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        picked = self.pixels.at[rows[:, None], columns[None, :]]
        return _float(picked.get(mode=_CHECKED))

    def separable(self, rows: tuple[Any, ...], columns: tuple[Any, ...]) -> jax.Array:
        # Columns first: the row pass then copies whole rows, which XLA vectorizes on CPU.
        left, right, across = columns
        a = _float(self.pixels.at[:, left].get(mode=_CHECKED))
        b = _float(self.pixels.at[:, right].get(mode=_CHECKED))
        narrowed = _lerp(a, b, across[None, :, None])
        upper, lower, down = rows
        a = narrowed.at[upper].get(mode=_CHECKED)
        b = narrowed.at[lower].get(mode=_CHECKED)
        return _lerp(a, b, down[:, None, None])

    def dense(self) -> jax.Array:
        return _float(self.pixels)


class _Ragged:
    def __init__(
        self,
        buffer: jax.Array,
        offset: jax.Array,
        height: jax.Array,
        width: jax.Array,
        channels: int,
        max_height: int,
        max_width: int,
    ) -> None:
        self.buffer, self.offset, self.channels = buffer, offset, channels
        self.height = jnp.clip(height, 1, max_height)
        self.width = jnp.clip(width, 1, max_width)
        self.max_height, self.max_width = max_height, max_width

    def grid(self, rows: jax.Array, columns: jax.Array) -> jax.Array:
        rows, columns = rows.astype(self.offset.dtype), columns.astype(self.offset.dtype)
        pixel = rows[:, None] * self.width.astype(self.offset.dtype) + columns[None, :]
        start = self.offset + pixel * self.channels
        index = start[..., None] + jnp.arange(self.channels, dtype=start.dtype)
        return _float(self.buffer.at[index].get(mode="clip"))

    def separable(self, rows: tuple[Any, ...], columns: tuple[Any, ...]) -> jax.Array:
        (upper, lower, down), (left, right, across) = rows, columns
        across = across[None, :, None]
        first = _lerp(self.grid(upper, left), self.grid(upper, right), across)
        second = _lerp(self.grid(lower, left), self.grid(lower, right), across)
        return _lerp(first, second, down[:, None, None])

    def dense(self) -> jax.Array:
        return self.grid(jnp.arange(self.max_height), jnp.arange(self.max_width))


class _Line:
    """One axis of a segment: the source positions of its outputs, as traced int32 scalars."""

    def __init__(
        self, start: Any, box: Any, resampled: Any, offset: Any, step: Any, limit: Any, size: int
    ) -> None:
        self.box = jnp.clip(box, 1, limit)
        self.start = jnp.clip(start, 0, limit - self.box)
        self.resampled = jnp.maximum(resampled, 1)
        index = offset + step * lax.iota(jnp.int32, size)
        self.exists = (index >= 0) & (index < self.resampled)
        self.index = jnp.clip(index, 0, self.resampled - 1)

    def position(self, half: bool) -> tuple[jax.Array, jax.Array]:
        """Whole and fractional part of (2 i + 1) box / (2 resampled), less 1/2 if `half`.

        Exact for every size: the estimate in float32 is at most one off, and the remainder that
        corrects it is small, so that int32 arithmetic which wraps around gives it exactly.
        """
        odd, double = 2 * self.index + 1, 2 * self.resampled
        estimate = _float(odd) * _float(self.box) / _float(double) - (0.5 if half else 0.0)
        whole = jnp.floor(estimate).astype(jnp.int32)
        rest = odd * self.box - (self.resampled if half else 0) - whole * double
        above, below = rest >= double, rest < 0
        whole = whole + above.astype(jnp.int32) - below.astype(jnp.int32)
        rest = jnp.where(above, rest - double, jnp.where(below, rest + double, rest))
        return whole, _float(rest) / _float(double)

    def direct(self) -> jax.Array:
        """Source indices without resampling."""
        return self.start + jnp.minimum(self.index, self.box - 1)

    def nearest(self) -> jax.Array:
        """Source indices of the nearest pixels."""
        return self.start + jnp.clip(self.position(half=False)[0], 0, self.box - 1)

    def bilinear(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The two source indices and the weight of the second."""
        whole, fraction = self.position(half=True)
        fraction = jnp.where(whole < 0, 0.0, fraction)
        first = jnp.clip(whole, 0, self.box - 1)
        second = jnp.minimum(first + 1, self.box - 1)
        return self.start + first, self.start + second, fraction

    def triangle(self, columns: int) -> jax.Array:
        """Weights [size, columns] of all source pixels; rows add up to 1."""
        whole, fraction = self.position(half=True)
        support = jnp.maximum(_float(self.box) / _float(self.resampled), 1.0)
        source = lax.iota(jnp.int32, columns) - self.start
        away = _float(source[None, :] - whole[:, None]) - fraction[:, None]
        weight = jnp.maximum(1.0 - jnp.abs(away) / support, 0.0)
        weight = jnp.where((source >= 0) & (source < self.box), weight, 0.0)
        return weight / jnp.sum(weight, axis=1, keepdims=True)


def _resampled(source: _Source, kind: Filter, rows: _Line, columns: _Line) -> jax.Array:
    if kind is Filter.NONE:
        return source.grid(rows.direct(), columns.direct())
    if kind is Filter.NEAREST:
        return source.grid(rows.nearest(), columns.nearest())
    if kind is Filter.BILINEAR:
        return source.separable(rows.bilinear(), columns.bilinear())
    pixels = source.dense()
    height, width, channels = pixels.shape
    down, across = rows.triangle(height), columns.triangle(width)
    lines = jnp.dot(down, pixels.reshape(height, -1), precision=lax.Precision.HIGHEST)
    lines = lines.reshape(-1, width, channels)
    return jnp.einsum("wx,hxc->hwc", across, lines, precision=lax.Precision.HIGHEST)


def _inside(box: jax.Array, height: int, width: int) -> tuple[jax.Array, jax.Array]:
    """Which rows [height] and columns [width] lie in the box (top, left, height, width)."""
    y, x = lax.iota(jnp.int32, height), lax.iota(jnp.int32, width)
    # Compared without adding start and size, whose sum may leave int32.
    rows = (y >= box[0]) & (y - jnp.maximum(box[0], 0) < box[2] + jnp.minimum(box[0], 0))
    columns = (x >= box[1]) & (x - jnp.maximum(box[1], 0) < box[3] + jnp.minimum(box[1], 0))
    return rows, columns


def _where(
    rows: jax.Array, columns: jax.Array, inside: jax.Array, outside: jax.Array, finite: bool
) -> jax.Array:
    """`inside` [.., C] where both the row and the column are marked, else `outside`."""
    if not finite:
        return jnp.where((rows[:, None] & columns)[..., None], inside, outside)
    # Weights of exactly 0 and 1 give the same values. A select makes XLA's CPU compiler branch
    # around the gathers that feed it, which doubles the time of a bilinear crop.
    weight = (_float(rows)[:, None] * _float(columns))[..., None]
    return weight * inside + (1.0 - weight) * outside


def _segment(
    source: _Source,
    segment: Segment,
    geometry: jax.Array,
    affine: jax.Array,
    fill: jax.Array,
    erase_box: jax.Array,
    erase_value: jax.Array,
    finite: bool,
) -> jax.Array:
    g = geometry
    rows = _Line(g[0], g[2], g[4], g[10], g[11], source.height, segment.height)
    columns = _Line(g[1], g[3], g[5], g[12], g[13], source.width, segment.width)
    value = _resampled(source, segment.filter, rows, columns)
    value = value * affine[0] + affine[1]
    y, x = lax.iota(jnp.int32, segment.height), lax.iota(jnp.int32, segment.width)
    rows_valid = rows.exists & (y >= g[6]) & (y < g[8])
    columns_valid = columns.exists & (x >= g[7]) & (x < g[9])
    value = _where(rows_valid, columns_valid, value, fill, finite)
    for k in range(segment.erasures):
        inside = _inside(erase_box[k], segment.height, segment.width)
        value = _where(*inside, erase_value[k], value, finite)
    if segment.rounding is Rounding.NEAREST:
        value = jnp.clip(jnp.round(value), 0.0, 255.0)
    elif segment.rounding is Rounding.TRUNCATE:
        value = jnp.trunc(jnp.clip(value, 0.0, 255.999))
    return value


def _run(
    source: _Source,
    geometry: jax.Array,
    affine: jax.Array,
    fill: jax.Array,
    erase_box: jax.Array,
    erase_value: jax.Array,
    plan: Plan,
) -> jax.Array:
    first = 0
    value = jnp.zeros(())
    for s, segment in enumerate(plan.segments):
        if s > 0:
            source = _Dense(value)
        last = first + segment.erasures
        value = _segment(
            source,
            segment,
            geometry[s],
            affine[s],
            fill[s],
            erase_box[first:last],
            erase_value[first:last],
            finite=s == 0 and plan.source_dtype is Dtype.U8,
        )
        first = last
    if plan.output_dtype is Dtype.U8 and plan.segments[-1].rounding is Rounding.KEEP:
        value = jnp.clip(jnp.round(value), 0.0, 255.0)
    if plan.layout is Layout.NCHW:
        value = jnp.transpose(value, (2, 0, 1))
    return value.astype(jax_dtype(plan.output_dtype))
