"""The image program in pure JAX, with levels bit-identical to the native kernel's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxkern.image.chain.plan import MAX_SIZE
from jaxkern.image.program import warp_twin
from jaxkern.image.program.program import MAX_FACTOR, Code, ProgramStep

_LUMA = (0.2989, 0.587, 0.114)
_LUMA_PARTS = (2989, 5870, 1140)  # of 10,000


def image_program(
    image: jax.Array, op: jax.Array, values: jax.Array, *, steps: tuple[ProgramStep, ...]
) -> jax.Array:
    """Run steps op i32 [S] with values f32 [S, VALUES] on an image [H, W, C] u8 or f32."""
    mean = _Mean(image, jnp.zeros(image.shape, jnp.float32), jnp.bool_(False))
    for s, step in enumerate(steps):
        if set(step.codes) & set(_MEANS):
            image, mean = _mean_step(image, mean, op[s], values[s], step)
        else:
            image = _step(image, op[s], values[s], step)
    return image


class _Mean(NamedTuple):
    """State of a weighted mean of images: the stored image, the sum so far, and its validity."""

    stored: jax.Array
    total: jax.Array
    begun: jax.Array


_MEANS = (Code.KEEP, Code.ADD, Code.MEAN)


def _mean_step(
    image: jax.Array, mean: _Mean, op: jax.Array, values: jax.Array, step: ProgramStep
) -> tuple[jax.Array, _Mean]:
    """Run a step that starts, extends or ends a mean."""
    finite = jnp.all(jnp.isfinite(values))
    weight = jnp.where(finite, values[0], 0.0)

    def selected(code: Code) -> jax.Array:
        return finite & (op == int(code)) if code in step.codes else jnp.bool_(False)

    keep, add, take = (selected(code) for code in _MEANS)
    add, take = add & mean.begun, take & mean.begun
    part = _rounded(image.astype(jnp.float32) * weight)
    total = jnp.where(keep, part, jnp.where(add, mean.total + part, mean.total))
    mean_level = _level(mean.total) if _is_levels(image) else mean.total
    stored = jnp.where(keep, image, mean.stored)
    image = jnp.where(add, mean.stored, jnp.where(take, mean_level, image))
    return image, _Mean(stored, total, keep | (mean.begun & ~take))


def _step(image: jax.Array, op: jax.Array, values: jax.Array, step: ProgramStep) -> jax.Array:
    codes = [code for code in Code if code in step.codes and code is not Code.NONE]
    if not codes:
        return image
    finite = jnp.all(jnp.isfinite(values))
    # Unused operations get finite values: the derivatives of NaN would spread.
    values = jnp.where(finite, values, 0.0)
    which = jnp.int32(0)
    for index, code in enumerate(codes):
        which = jnp.where(finite & (op == int(code)), index + 1, which)
    branches = [lambda image, values: image] + [_operation(code, step) for code in codes]
    return lax.switch(which, branches, image, values)


def _operation(code: Code, step: ProgramStep) -> Callable[[jax.Array, jax.Array], jax.Array]:
    if code in _STEP_OPERATIONS:
        return lambda image, values: _STEP_OPERATIONS[code](image, values, step)
    operation = _OPERATIONS[code]

    def run(image: jax.Array, values: jax.Array) -> jax.Array:
        if image.shape[-1] == 1 and code in _COLOUR_OPERATIONS:
            return image
        if image.shape[-1] < 4:
            return operation(image, values)
        colours, alpha = image[..., :3], image[..., 3:]
        return jnp.concatenate([operation(colours, values), alpha], axis=-1)

    return run


def _filled(image: jax.Array, step: ProgramStep) -> tuple[float, ...] | None:
    fill = step.channel_fill(image.shape[-1])
    return None if np.isnan(fill[0]) else tuple(fill.tolist())


def _warped(
    image: jax.Array, values: jax.Array, step: ProgramStep, perspective: bool = False, **part: Any
) -> jax.Array:
    sampling: dict[str, Any] = {"interpolation": step.interpolation, "fill": _filled(image, step)}
    return warp_twin.warp(image, values, perspective=perspective, **sampling, **part)


def _turned(image: jax.Array, values: jax.Array, step: ProgramStep) -> jax.Array:
    height, width, _ = image.shape
    part = (_to_integer(values[7], 1, height), _to_integer(values[6], 1, width))
    return _warped(image, values.at[6:].set(0.0), step, part=part)


def _elastic(image: jax.Array, values: jax.Array, step: ProgramStep) -> jax.Array:
    key = warp_twin.key_of_parts(values[4:])
    height, width, _ = image.shape
    field = warp_twin.field(key, (height, width), values[2:4], step.kernel)
    fill = _filled(image, step)
    return warp_twin.elastic(image, values[:2], field, interpolation=step.interpolation, fill=fill)


def _noise(image: jax.Array, values: jax.Array, step: ProgramStep) -> jax.Array:
    noisy = warp_twin.add_noise(image, values)
    return noisy if image.shape[-1] < 4 else jnp.concatenate([noisy[..., :3], image[..., 3:]], -1)


def _erase(image: jax.Array, values: jax.Array, step: ProgramStep) -> jax.Array:
    fill = _filled(image, step)
    if fill is None:
        key = warp_twin.key_of_parts(values[4:])
        paint = warp_twin.normal(key, image.shape).astype(jnp.float32)
    else:
        paint = jnp.asarray(fill, jnp.float32)
        paint = jnp.round(paint) if _is_levels(image) else paint
    height, width = image.shape[:2]
    top, left, tall, wide = (_to_integer(values[k], -MAX_SIZE, MAX_SIZE) for k in range(4))
    row, column = jnp.arange(height)[:, None, None], jnp.arange(width)[:, None]
    inside = (row >= top) & (row < top + tall) & (column >= left) & (column < left + wide)
    return jnp.where(inside, _level(paint) if _is_levels(image) else paint, image)


def _is_levels(image: jax.Array) -> bool:
    return bool(image.dtype == jnp.uint8)


_rounded = warp_twin.rounded


def _fused(a: jax.Array, b: jax.Array, c: jax.Array) -> jax.Array:
    """Return a * b + c rounded once, for integers a up to 255, from exact partial products."""
    high = lax.bitcast_convert_type(b, jnp.int32) & np.int32(-256)
    high = lax.bitcast_convert_type(high, jnp.float32)
    large, small = a * high, a * (b - high)
    total = c + large
    part = total - c
    lost = (c - (total - part)) + (large - part)
    return total + (lost + small)


def _level(value: jax.Array) -> jax.Array:
    """Clamp to the levels and truncate; NaN becomes 0."""
    positive = jnp.where(value > 0.0, value, 0.0)
    return jnp.trunc(jnp.minimum(positive, 255.0)).astype(jnp.uint8)


def _unit(value: jax.Array) -> jax.Array:
    # The derivative of lax.clamp compares by order, that of jnp.clip by equality, which XLA may
    # break: see _hue.
    zero, one = (jnp.asarray(bound, value.dtype) for bound in (0, 1))
    return lax.clamp(zero, value, one)


def _factors(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    factor, rest = jnp.clip(values[:2], -MAX_FACTOR, MAX_FACTOR)
    return factor, rest


def _to_integer(value: jax.Array, low: int, high: int) -> jax.Array:
    return jnp.round(jnp.clip(value, low, high)).astype(jnp.int32)


def _luma(image: jax.Array) -> jax.Array:
    """Return the luma [H, W] float32 of an image of three channels; levels are floored."""
    if _is_levels(image):
        parts = sum(image[..., c].astype(jnp.int32) * _LUMA_PARTS[c] for c in range(3))
        return lax.div(jnp.asarray(parts), jnp.int32(10_000)).astype(jnp.float32)
    return sum((image[..., c] * _LUMA[c] for c in range(1, 3)), image[..., 0] * _LUMA[0])


def _brightness(image: jax.Array, values: jax.Array) -> jax.Array:
    product = image.astype(jnp.float32) * _factors(values)[0]
    return _level(product) if _is_levels(image) else _unit(product)


def _contrast(image: jax.Array, values: jax.Array) -> jax.Array:
    factor, rest = _factors(values)
    gray = _luma(image) if image.shape[-1] == 3 else image[..., 0].astype(jnp.float32)
    if not _is_levels(image):
        return _unit(image * factor + jnp.mean(gray) * rest)
    # Integer sums are exact below 2^24 pixels. XLA replaces a division by a constant by a product.
    total = jnp.sum(gray.astype(jnp.uint32)).astype(jnp.float32)
    mean = total / lax.optimization_barrier(jnp.where(total < 0.0, total, np.float32(gray.size)))
    return _level(_rounded(image.astype(jnp.float32) * factor) + _rounded(mean * rest))


def _saturation(image: jax.Array, values: jax.Array) -> jax.Array:
    (factor, rest), gray = _factors(values), _luma(image)[..., None]
    if _is_levels(image):
        return _level(_fused(gray, rest, _rounded(image.astype(jnp.float32) * factor)))
    return _unit(image * factor + gray * rest)


def _grayscale(image: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.broadcast_to(_luma(image)[..., None].astype(image.dtype), image.shape)


def _hue(image: jax.Array, values: jax.Array) -> jax.Array:
    """Shift the hue by conversion to HSV and back, with torchvision's order of operations."""
    unit = image
    if _is_levels(image):
        unit = _rounded(image.astype(jnp.float32) * np.float32(1 / 255))
    r, g, b = (unit[..., c] for c in range(3))
    value = jnp.where((r >= g) & (r >= b), r, jnp.where(g >= b, g, b))
    low = jnp.where((r <= g) & (r <= b), r, jnp.where(g <= b, g, b))
    flat = value == low
    share = jnp.where(flat, 0.0, (value - low) / jnp.where(flat, 1.0, value))
    divisor = jnp.where(flat, 1.0, value - low)
    rc, gc, bc = ((value - x) / divisor for x in (r, g, b))
    # By order, not by equality with the maximum: XLA may compute a float differently for each of
    # its uses, and every pixel must have a largest channel.
    green_or_blue = jnp.where(g >= b, (2.0 + rc) - bc, (4.0 + gc) - rc)
    sixths = jnp.where((r >= g) & (r >= b), bc - gc, green_or_blue)
    hue = _rounded(sixths * np.float32(1 / 6)) + 1.0
    hue = hue - jnp.floor(hue)
    hue = hue + values[0]
    hue = hue - jnp.floor(hue)
    scaled = _rounded(hue * 6.0)
    sextant = jnp.floor(scaled)
    part = scaled - sextant
    grown, rest = _rounded(share * part), 1.0 - share
    p, q, t = (_unit(x * value) for x in (rest, 1.0 - grown, grown + rest))
    sextant = jnp.where(sextant == 6.0, 0.0, sextant)
    # By sextant; invalid ones, such as NaN, use sextant 0.
    sextants = ((value, q, p, p, t, value), (t, value, value, q, p, p), (p, p, t, value, value, q))
    conditions = [sextant == k for k in range(1, 6)]
    rgb = jnp.stack([jnp.select(conditions, x[1:], x[0]) for x in sextants], axis=-1)
    return _level(rgb * np.float32(255.999)) if _is_levels(image) else rgb


def _sharpness(image: jax.Array, values: jax.Array) -> jax.Array:
    height, width, _ = image.shape
    if height <= 2 or width <= 2:
        return image
    _, rest = _factors(values)
    levels = _is_levels(image)
    pixels = image.astype(jnp.int32) if levels else image
    shifted = [pixels[y : height - 2 + y, x : width - 2 + x] for y in range(3) for x in range(3)]
    centre = shifted[4]
    total = sum(shifted[:4] + shifted[5:], 5 * centre)
    if levels:
        # Round to the nearest thirteenth; there are no ties.
        away = lax.div(2 * total + 13, jnp.int32(26)) - centre
        start = centre.astype(jnp.float32)
        inside = _level(_fused(away.astype(jnp.float32), rest, start))
        return image.at[1:-1, 1:-1].set(inside)
    inside = centre + (total * np.float32(1 / 13) - centre) * rest
    return _unit(image.at[1:-1, 1:-1].set(inside))


def _posterize(image: jax.Array, values: jax.Array) -> jax.Array:
    bits = _to_integer(values[0], 0, 8)
    if _is_levels(image):
        mask = lax.shift_left(lax.shift_left(jnp.int32(1), bits) - 1, 8 - bits)
        return image & mask.astype(jnp.uint8)
    levels = lax.shift_left(jnp.int32(1), bits).astype(jnp.float32)
    return jnp.clip(jnp.floor(image * levels), 0.0, levels - 1.0) / levels


def _solarize(image: jax.Array, values: jax.Array) -> jax.Array:
    if not _is_levels(image):
        return jnp.where(image >= values[0], 1.0 - image, image)
    threshold = jnp.where(values[1] != 0.0, values[0], values[0] * 255.0)
    return jnp.where(image.astype(jnp.float32) >= threshold, 255 - image, image)


def _autocontrast(image: jax.Array, values: jax.Array) -> jax.Array:
    x = image.astype(jnp.float32)
    low, high = jnp.min(x, axis=(0, 1)), jnp.max(x, axis=(0, 1))
    flat = low == high
    levels = _is_levels(image)
    scale = jnp.where(flat, 1.0, (high - low) * np.float32(1 / 255) if levels else high - low)
    # As wide as the image: XLA may replace the division by a broadcast scalar by a product.
    wide = lax.optimization_barrier(jnp.broadcast_to(scale, x.shape)) if levels else scale
    spread = (x - jnp.where(flat, 0.0, low)) / wide
    return _level(spread) if levels else _unit(spread)


def _equalize(image: jax.Array, values: jax.Array) -> jax.Array:
    if not _is_levels(image):
        levels = _equalize_levels(_level(image * np.float32(255.999)))
        return levels.astype(jnp.float32) * np.float32(1 / 255)
    return _equalize_levels(image)


def _equalize_levels(image: jax.Array) -> jax.Array:
    """Apply Pillow's lookup table: the pixels below a level, in units of 1/255 of all others."""
    channels = []
    for c in range(image.shape[-1]):
        x = image[..., c].astype(jnp.int32)
        count = jnp.zeros(256, jnp.int32).at[x.reshape(-1)].add(1)
        largest = jnp.max(x)
        step = lax.div(x.size - count[largest], jnp.int32(255))
        before = jnp.cumsum(count) - count
        divisor = jnp.maximum(step, 1)
        table = jnp.minimum(lax.div(before + lax.div(step, jnp.int32(2)), divisor), 255)
        channels.append(jnp.where(step == 0, x, table[x]))
    return jnp.stack(channels, axis=-1).astype(jnp.uint8)


def _invert(image: jax.Array, values: jax.Array) -> jax.Array:
    return 255 - image if _is_levels(image) else 1.0 - image


_OPERATIONS: dict[Code, Callable[[jax.Array, jax.Array], jax.Array]] = {
    Code.BRIGHTNESS: _brightness,
    Code.CONTRAST: _contrast,
    Code.SATURATION: _saturation,
    Code.HUE: _hue,
    Code.SHARPNESS: _sharpness,
    Code.POSTERIZE: _posterize,
    Code.SOLARIZE: _solarize,
    Code.AUTOCONTRAST: _autocontrast,
    Code.EQUALIZE: _equalize,
    Code.INVERT: _invert,
    Code.GRAYSCALE: _grayscale,
    Code.PERMUTE: lambda image, values: jnp.take(image, _to_integer(values[:3], 0, 2), axis=-1),
}
_STEP_OPERATIONS: dict[Code, Callable[..., jax.Array]] = {  # need the static part of the step
    Code.BLUR: lambda image, values, step: warp_twin.gaussian_blur(image, values[:2], step.kernel),
    Code.WARP: _warped,
    Code.PERSPECTIVE: functools.partial(_warped, perspective=True),
    Code.NOISE: _noise,
    Code.ERASE: _erase,
    Code.ELASTIC: _elastic,
    Code.TURN: _turned,
}
_COLOUR_OPERATIONS = (Code.SATURATION, Code.HUE, Code.GRAYSCALE, Code.PERMUTE)
