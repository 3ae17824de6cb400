"""Coefficients of affine maps and perspectives, from the parameters of transforms.

An affine map relates the centres of output and input: the output pixel at (x, y) from the centre
shows the input at (c0 x + c1 y + c2, c3 x + c4 y + c5) from the centre; c6 and c7 are 0. A
perspective relates the top left corners: the output pixel centre (x, y) from the corner shows the
input at ((c0 x + c1 y + c2) / d, (c3 x + c4 y + c5) / d) with d = c6 x + c7 y + 1. These are
torchvision's conventions. Coefficients are computed in float64 and rounded to float32 once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Size


def _in_float64(function: Callable[..., list[Any]]) -> Callable[..., jax.Array]:
    """Call `function` with float64 arrays and stack its results on a new last axis as float32."""

    @wraps(function)
    def wide(*args: Any, **named: Any) -> jax.Array:
        with jax.enable_x64(True):
            arrays = [jnp.asarray(value).astype(jnp.float64) for value in args]
            stacked = jnp.broadcast_arrays(*function(*arrays, **named))
            return jnp.stack(stacked, axis=-1).astype(jnp.float32)

    return wide


@_in_float64
def affine_coefficients(
    angle: Any,
    translate_x: Any,
    translate_y: Any,
    scale: Any,
    shear_x: Any,
    shear_y: Any,
    *,
    size: Size,
    center: Sequence[float] | None = None,
) -> list[Any]:
    """Return coefficients [..., 8] of torchvision's affine: (T C R(angle) S SHy SHx C^-1)^-1.

    Angles and shears are in degrees, clockwise, and translations in pixels, all [...]; `center` is
    (x, y) from the top left corner. A scale that is not above 0 gives NaN.
    """
    height, width = size
    rotation, sx, sy = (jnp.deg2rad(degrees) for degrees in (angle, shear_x, shear_y))
    # R S SHy SHx without the scale: its determinant is 1.
    a = jnp.cos(rotation - sy) / jnp.cos(sy)
    b = -(a * jnp.tan(sx) + jnp.sin(rotation))
    c = jnp.sin(rotation - sy) / jnp.cos(sy)
    d = jnp.cos(rotation) - c * jnp.tan(sx)
    shrink = 1.0 / jnp.where(scale > 0.0, scale, jnp.nan)
    c0, c1, c3, c4 = d * shrink, -b * shrink, -c * shrink, a * shrink
    cx, cy = (0.0, 0.0) if center is None else (center[0] - width / 2, center[1] - height / 2)
    from_x, from_y = cx + translate_x, cy + translate_y
    c2 = cx - c0 * from_x - c1 * from_y
    c5 = cy - c3 * from_x - c4 * from_y
    zero = jnp.zeros_like(c0)
    return [c0, c1, c2, c3, c4, c5, zero, zero]


def rotated_size(
    size: tuple[int, int], degrees: float, center: Sequence[float] | None
) -> tuple[int, int]:
    """Return the height and width that hold an image rotated counter-clockwise, as torchvision."""
    if center is None and degrees % 90 == 0:
        return size if degrees % 180 == 0 else (size[1], size[0])
    half = np.asarray([size[1] / 2, size[0] / 2], np.float32)
    rotation = math.radians(degrees % 360)
    matrix = np.asarray(
        [[math.cos(rotation), -math.sin(rotation)], [math.sin(rotation), math.cos(rotation)]]
    )
    middle = np.zeros(2) if center is None else np.asarray(center) - half
    shift = (middle - matrix @ middle).astype(np.float32)
    corners = np.asarray([[-1, -1], [-1, 1], [1, 1], [1, -1]], np.float32) * half
    corners_after = corners @ matrix.T.astype(np.float32) + shift + half
    bounds = np.trunc(corners_after * np.float32(1e4)) * np.float32(1e-4)
    wide, high = np.ceil(bounds.max(0)) - np.floor(bounds.min(0))
    return int(high), int(wide)


@_in_float64
def perspective_coefficients(endpoints: Any, *, size: Size) -> list[Any]:
    """Return coefficients [..., 8] that map end points to the corners (0, 0) to (W - 1, H - 1).

    `endpoints` [..., 4, 2] are new (x, y) of the top left, top right, bottom right and bottom left.
    P. Heckbert, Fundamentals of Texture Mapping and Image Warping, 1989, section 2.2.3: the map of
    the unit square to a quadrilateral, and its adjugate.
    """
    x0, x1, x2, x3 = (endpoints[..., k, 0] for k in range(4))
    y0, y1, y2, y3 = (endpoints[..., k, 1] for k in range(4))
    skew_x, skew_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    area = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    g = skew_x * (y3 - y2) - (x3 - x2) * skew_y
    h = (x1 - x2) * skew_y - skew_x * (y1 - y2)
    # All nine are multiplied by `area`, so that integers stay exact.
    a, b, c = (x1 - x0) * area + g * x1, (x3 - x0) * area + h * x3, x0 * area
    d, e, f = (y1 - y0) * area + g * y1, (y3 - y0) * area + h * y3, y0 * area
    wide, high = size[1] - 1, size[0] - 1
    adjugate = [
        *(wide * (e * area - f * h), wide * (c * h - b * area), wide * (b * f - c * e)),
        *(high * (f * g - d * area), high * (a * area - c * g), high * (c * d - a * f)),
        *(d * h - e * g, b * g - a * h),
    ]
    return [coefficient / (a * e - b * d) for coefficient in adjugate]


@_in_float64
def forward_coefficients(coefficients: Any, affine: Any, *, size: Size) -> list[Any]:
    """Return coefficients [..., 8] of the inverse map, which relates the top left corners.

    `coefficients` [..., 8] are those of an affine map where `affine`, bool [...], is True, else of
    a perspective.
    """
    c0, c1, c2, c3, c4, c5, c6, c7 = jnp.moveaxis(coefficients, -1, 0)
    y, x = (side / 2 for side in size)
    c2 = c2 + affine * (x - c0 * x - c1 * y)
    c5 = c5 + affine * (y - c3 * x - c4 * y)
    # The adjugate of [[c0, c1, c2], [c3, c4, c5], [c6, c7, 1]], divided by its last element.
    adjugate = [
        *(c4 - c5 * c7, c2 * c7 - c1, c1 * c5 - c2 * c4),
        *(c5 * c6 - c3, c0 - c2 * c6, c2 * c3 - c0 * c5),
        *(c3 * c7 - c4 * c6, c1 * c6 - c0 * c7),
    ]
    return [coefficient / (c0 * c4 - c1 * c3) for coefficient in adjugate]


@_in_float64
def fitted_sizes(height: Any, width: Any, shortest: Any, *, longest: int | None) -> list[Any]:
    """Return height and width [..., 2] of images resized to a shorter side, as Python's floats."""
    factor = shortest / jnp.minimum(height, width)
    if longest is not None:
        factor = jnp.minimum(factor, longest / jnp.maximum(height, width))
    return [jnp.trunc(height * factor), jnp.trunc(width * factor)]
