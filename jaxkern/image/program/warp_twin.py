"""Warps, blurs and noise in pure JAX, with the kernels' rounding; see csrc/image/warp.h."""

from __future__ import annotations

import contextlib
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LEAST_WEIGHT = 2.0**-60  # of a blur, relative to the centre's weight


def _working_dtype(pixels: jax.Array) -> tuple[Any, Any]:
    """Return the dtype of the arithmetic, and a context in which JAX supports it."""
    if pixels.dtype == jnp.uint8:
        return jnp.float64, jax.enable_x64(True)
    return jnp.float32, contextlib.nullcontext()


def _stored(value: jax.Array, dtype: Any) -> jax.Array:
    if dtype != jnp.uint8:
        return value.astype(dtype)
    level = jnp.round(jnp.minimum(jnp.where(value > 0.0, value, 0.0), 255.0))
    return level.astype(jnp.int32).astype(jnp.uint8)


def warp(
    pixels: jax.Array,
    coefficients: jax.Array,
    *,
    perspective: bool,
    part: tuple[Any, Any] | None = None,
    **sampling: Any,
) -> jax.Array:
    """Warp pixels [H, W, C] u8 or f32 by coefficients [8], with the arguments of `_sample_at`."""
    height, width, _ = pixels.shape
    part = (height, width) if part is None else part
    with _working_dtype(pixels)[1]:
        x, y = _points(coefficients, height, width, part, perspective)
        return _sample_at(pixels, x, y, part=part, **sampling)


def elastic(pixels: jax.Array, alpha: jax.Array, field: jax.Array, **sampling: Any) -> jax.Array:
    """Move pixels [H, W, C] u8 or f32 by alpha / 2 [2] times their field f64 [H, W, 2]."""
    height, width = pixels.shape[:2]
    with jax.enable_x64(True):
        sides = jnp.asarray([width, height], jnp.float64)
        shifts = (alpha.astype(jnp.float64) / sides * field).astype(jnp.float32)

    def at(side: int, shift: jax.Array, first: np.ndarray) -> jax.Array:
        # In float32, with torchvision's order of operations.
        middle = (2 * first + 1 - side).astype(np.float32) / np.float32(side)
        unit = rounded(shift + middle)
        return rounded((unit + 1) * np.float32(0.5 * side)) - np.float32(0.5)

    x = at(width, shifts[..., 0], np.arange(width))
    y = at(height, shifts[..., 1], np.arange(height)[:, None])
    with _working_dtype(pixels)[1]:
        return _sample_at(pixels, x, y, part=(height, width), **sampling)


def _reflected_taps(size: int, reach: int) -> np.ndarray:
    """Return indices i32 [size, 2 * reach + 1] of the taps along an axis with reflected ends."""
    padded = np.pad(np.arange(size, dtype=np.int32), reach, mode="reflect" if size > 1 else "edge")
    return padded[np.arange(size)[:, None] + np.arange(2 * reach + 1)]


def _sample_at(
    pixels: jax.Array,
    x: jax.Array,
    y: jax.Array,
    *,
    interpolation: str,
    fill: tuple[float, ...] | None,
    part: tuple[Any, Any],
) -> jax.Array:
    """Sample the top left `part` (a height and a width) of pixels at positions f32 [H, W]."""
    working, _ = _working_dtype(pixels)
    # NaN becomes -2: every position outside [-1, side] is outside, and int32 can hold it.
    x, y = (
        jnp.minimum(jnp.where(at > -2.0, at, -2.0), side + 1.0)
        for at, side in ((x, part[1]), (y, part[0]))
    )
    if interpolation == "nearest":
        column, row = (jnp.round(at).astype(jnp.int32) for at in (x, y))
        value, inside = _tap(pixels, row, column, part, working)
        outside = jnp.asarray(0.0 if fill is None else fill, working)
        return _stored(jnp.where(inside[..., None], value, outside), pixels.dtype)
    first_x, first_y = jnp.floor(x), jnp.floor(y)
    across, down = ((x - first_x)[..., None], (y - first_y)[..., None])
    across, down = across.astype(working), down.astype(working)
    column, row = first_x.astype(jnp.int32), first_y.astype(jnp.int32)
    value, mask = jnp.zeros((), working), jnp.zeros((), working)
    for lower, right in itertools.product((False, True), repeat=2):
        weight = (across if right else 1.0 - across) * (down if lower else 1.0 - down)
        tap, inside = _tap(pixels, row + lower, column + right, part, working)
        counts = inside[..., None] & (weight > 0.0)
        value = value + jnp.where(counts, weight, 0.0) * jnp.where(counts, tap, 0.0)
        mask = mask + jnp.where(inside[..., None], weight, 0.0)
    if fill is not None:
        fill_values = jnp.asarray(fill, working)
        value = mask * (value - fill_values) + fill_values
    return _stored(value, pixels.dtype)


def _points(
    c: jax.Array, height: int, width: int, source_size: tuple[Any, Any], perspective: bool
) -> tuple[jax.Array, jax.Array]:
    """Return the input positions f32 [height, width] from the first pixel's centre."""
    # A vector of divisors: XLA replaces a division by a scalar by a product with its inverse.
    static = all(isinstance(side, int) for side in source_size)
    xp: Any = np if static else jnp
    sides = [xp.float32(0.5) * xp.asarray(side, np.float32) for side in source_size[::-1]]
    half = xp.repeat(xp.stack(sides), 3)
    c = jnp.concatenate([c[:6] / lax.optimization_barrier(jnp.asarray(half)), c[6:]])
    first_x, first_y = (
        np.float32(0.5) if perspective else np.float32(0.5) * (1 - side) for side in (width, height)
    )
    x = (np.arange(width, dtype=np.float32) + first_x)[None, :]
    y = (np.arange(height, dtype=np.float32) + first_y)[:, None]

    def affine_row(k: int, last: Any) -> Any:
        return rounded(c[k] * x) + rounded(c[k + 1] * y) + last

    units = [affine_row(0, c[2]), affine_row(3, c[5])]
    if perspective:
        depth = affine_row(6, np.float32(1))
        units = [rounded(unit / depth - 1) for unit in units]
    across, down = (
        rounded((unit + 1) * side) - np.float32(0.5)
        for unit, side in zip(units, sides, strict=True)
    )
    return across, down


def rounded(value: jax.Array) -> jax.Array:
    """Make XLA round a value before it is added, by a maximum that keeps it from fusing both."""
    return jnp.maximum(value, np.float32(np.finfo(np.float32).min))


def _tap(
    pixels: jax.Array, row: jax.Array, column: jax.Array, part: tuple[Any, Any], working: Any
) -> tuple[jax.Array, jax.Array]:
    """Return pixels at these indices, and a mask of the indices that are inside."""
    height, width = pixels.shape[:2]
    inside = (row >= 0) & (row < part[0]) & (column >= 0) & (column < part[1])
    # One flat index: a gather along two axes takes three times as long.
    flat = jnp.clip(row, 0, height - 1) * width + jnp.clip(column, 0, width - 1)
    picked = pixels.reshape(height * width, -1).at[flat].get(mode="promise_in_bounds")
    return picked.astype(working), inside


def gaussian_blur(pixels: jax.Array, sigma: jax.Array, kernel_size: tuple[int, int]) -> jax.Array:
    """Blur pixels [H, W, C] u8 or f32 by sigma [2] along (x, y), with kernels of these sizes."""
    working, context = _working_dtype(pixels)
    with context:
        value = pixels.astype(working)
        # Along columns first, as in the kernels.
        for axis, at in ((0, 1), (1, 0)):
            weights = _blur_weights(kernel_size[at] // 2, sigma[at].astype(working))
            value = _blurred(value, weights, axis)
        return _stored(value, pixels.dtype)


def _blur_weights(reach: int, sigma: jax.Array) -> jax.Array:
    """Return weights [2 * reach + 1] with sum 1; without a positive sigma only the centre's."""
    # Up to 0.01 the other weights are below LEAST_WEIGHT; the square of a smaller sigma may be 0.
    blurs = sigma > 0.01
    t = jnp.arange(-reach, reach + 1, dtype=sigma.dtype)
    twice = 2.0 * jnp.where(blurs, sigma, 1.0) ** 2
    weight = jnp.exp(-t * t / twice)
    weight = jnp.where((weight >= LEAST_WEIGHT) & blurs | (t == 0), weight, 0.0)
    return weight / weight.sum()


def _blurred(value: jax.Array, weights: jax.Array, axis: int) -> jax.Array:
    size, reach = value.shape[axis], weights.shape[0] // 2
    padding = [(0, 0)] * value.ndim
    padding[axis] = (reach, reach)
    # The edge is not repeated; numpy's mode of this name reflects repeatedly if necessary.
    padded = jnp.pad(value, padding, mode="reflect" if size > 1 else "edge")
    total = jnp.zeros_like(value)
    for t in range(2 * reach + 1):
        part = jax.lax.slice_in_dim(padded, t, t + size, axis=axis)
        part = jnp.where((weights[t] > 0.0) | jnp.isfinite(part), part, 0.0)
        total = total + weights[t] * part
    return total


def key_of_parts(parts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the two words of a key from its four 16-bit parts, floats [4]."""
    words = jnp.round(jnp.clip(parts, 0, 0xFFFF)).astype(jnp.uint32)
    return words[0] | words[1] << 16, words[2] | words[3] << 16


def random_words(key: tuple[jax.Array, jax.Array], count: int) -> tuple[jax.Array, jax.Array]:
    """Return two random words u32 [count] each for the counters from 0, which are below 2^32."""
    # Imported here because it imports Pallas, which takes long.
    from jax.extend.random import threefry_2x32

    low = jnp.arange(count, dtype=jnp.uint32)
    both = threefry_2x32(key, jnp.concatenate([jnp.zeros_like(low), low]))
    return both[:count], both[count:]


def normal(key: tuple[jax.Array, jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Return normal numbers f64 of `shape`, in pairs by the Box-Muller method."""
    count = math.prod(shape)
    a, b = random_words(key, (count + 1) // 2)
    with jax.enable_x64(True):
        radius = jnp.sqrt(-2.0 * jnp.log((a.astype(jnp.float64) + 0.5) * 2.0**-32))
        angle = b.astype(jnp.float64) * (2.0 * math.pi * 2.0**-32)
        pairs = jnp.stack([radius * jnp.cos(angle), radius * jnp.sin(angle)], axis=-1)
        return pairs.reshape(-1)[:count].reshape(shape)


def field(
    key: tuple[jax.Array, jax.Array],
    size: tuple[int, int],
    sigma: jax.Array,
    kernel_size: tuple[int, int],
) -> jax.Array:
    """Return the uniform(-1, 1) field f64 [H, W, 2] of a key, blurred by sigma [2]."""
    with jax.enable_x64(True):
        fields = []
        for word, side in zip(random_words(key, size[0] * size[1]), kernel_size, strict=True):
            value = (word >> 8).astype(jnp.float64).reshape(size) * 2.0**-23 - 1.0
            for axis, at in ((0, 1), (1, 0)):
                weights = _blur_weights(side // 2, sigma[at].astype(jnp.float64))
                # All taps in one sum: a short program that compiles quickly.
                taps = jnp.take(value, _reflected_taps(size[axis], side // 2), axis=axis)
                weights = weights[:, None] if axis == 0 else weights
                value = (taps * weights).sum(axis=axis + 1)
            fields.append(value)
        return jnp.stack(fields, axis=-1)


def add_noise(image: jax.Array, values: jax.Array) -> jax.Array:
    """Add the noise of values [mean, sigma, clip, 0, key] to an image [H, W, C] u8 or f32."""
    levels = image.dtype == jnp.uint8
    largest = np.float32(255 if levels else 1)
    centre, width = values[0] * largest, values[1] * largest
    clip = values[2] != 0.0
    with jax.enable_x64(True):
        wide = normal(key_of_parts(values[4:]), image.shape) * width.astype(jnp.float64)
        noise = centre.astype(jnp.float64) + wide
        if not levels:
            total: Any = image + noise.astype(jnp.float32)
            zero, one = jnp.float32(0), jnp.float32(1)
            return jnp.where(clip, jax.lax.clamp(zero, total, one), total)
        bounded = jnp.minimum(jnp.where(noise > -32768.0, noise, -32768.0), 32767.0)
        total = image.astype(jnp.int32) + jnp.trunc(bounded).astype(jnp.int32)
        return jnp.where(clip, jnp.clip(total, 0, 255), total & 255).astype(jnp.uint8)
