"""What several transforms draw, out of fractions in [0, 1)."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.image.transforms.transform import Size

TRIES = 10  # of the rejection loops, as in torchvision


def between(fraction: Any, low: float, high: float) -> jax.Array:
    """A number from `low` to `high`, f32."""
    return jnp.asarray(low + (high - low) * fraction, jnp.float32)


def uniform_below(fraction: jax.Array, count: Any) -> jax.Array:
    """A whole number from 0 to count - 1 out of a fraction in [0, 1)."""
    drawn = jnp.floor(fraction * jnp.asarray(count, jnp.float32)).astype(jnp.int32)
    return jnp.clip(drawn, 0, jnp.asarray(count, jnp.int32) - 1)


def drawn_sizes(
    fractions: jax.Array, size: Size, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[jax.Array, jax.Array]:
    """round(sqrt(area r)), round(sqrt(area / r)) for fractions [tries, 2]: area uniform in scale
    times the image's area, log r uniform in log ratio."""
    area = jnp.float32(size[0]) * jnp.float32(size[1])
    target = area * (scale[0] + (scale[1] - scale[0]) * fractions[:, 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = jnp.exp(0.5 * (low + (high - low) * fractions[:, 1]))
    side = jnp.sqrt(target)
    wide, narrow = jnp.round(side * root), jnp.round(side / root)
    return wide.astype(jnp.int32), narrow.astype(jnp.int32)
