"""Random numbers of an image in pure JAX: what csrc/image/random-inl.h says, and noise of them.

All is in float64, whatever `jax_enable_x64` says, so that what is rounded is the same as the native
kernels find.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.program import warp_twin


def key_of_parts(parts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two words of a key from its four 16-bit parts, floats [4]."""
    whole = jnp.round(jnp.clip(parts, 0, 0xFFFF)).astype(jnp.uint32)
    return whole[0] | whole[1] << 16, whole[2] | whole[3] << 16


def words(key: tuple[jax.Array, jax.Array], count: int) -> tuple[jax.Array, jax.Array]:
    """Two words u32 [count] of the counters from 0, which are below 2^32 here."""
    # Imports Pallas, for which nobody waits who has no noise in the twin.
    from jax.extend.random import threefry_2x32

    low = jnp.arange(count, dtype=jnp.uint32)
    both = threefry_2x32(key, jnp.concatenate([jnp.zeros_like(low), low]))
    return both[:count], both[count:]


def normal(key: tuple[jax.Array, jax.Array], shape: tuple[int, ...]) -> jax.Array:
    """Normal numbers f64 of `shape`: by Box and Muller, in pairs."""
    count = math.prod(shape)
    a, b = words(key, (count + 1) // 2)
    with jax.enable_x64(True):
        radius = jnp.sqrt(-2.0 * jnp.log((a.astype(jnp.float64) + 0.5) * 2.0**-32))
        turn = b.astype(jnp.float64) * (2.0 * math.pi * 2.0**-32)
        pairs = jnp.stack([radius * jnp.cos(turn), radius * jnp.sin(turn)], axis=-1)
        return pairs.reshape(-1)[:count].reshape(shape)


def field(
    key: tuple[jax.Array, jax.Array],
    size: tuple[int, int],
    sigma: jax.Array,
    kernel_size: tuple[int, int],
) -> jax.Array:
    """Blurred numbers f64 [H, W, 2], which were uniform from -1 to 1: see `warp_twin.elastic`."""
    with jax.enable_x64(True):
        drawn = [(word >> 8).astype(jnp.float64) for word in words(key, size[0] * size[1])]
        uniform = jnp.stack(drawn, axis=-1).reshape(*size, 2) * 2.0**-23 - 1.0
        return warp_twin.elastic_field(uniform, sigma, kernel_size=kernel_size)


def added(image: jax.Array, values: jax.Array) -> jax.Array:
    """An image [H, W, C] u8 or f32 with the noise of values [mean, sigma, clip, 0, key]."""
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
