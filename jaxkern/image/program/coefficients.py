"""The coefficients of affine maps and perspectives, from what transforms draw.

An affine map goes from the middle of the output to that of the input: (x, y) pixels from the former
show what is (c0 x + c1 y + c2, c3 x + c4 y + c5) from the latter; c6 and c7 are 0. A perspective
goes from corner to corner: output pixel centres (x, y), counted from there, show the input at
((c0 x + c1 y + c2) / d, (c3 x + c4 y + c5) / d) with d = c6 x + c7 y + 1. torchvision has the same,
so that its float32 coefficients and ours are alike. They are computed in float64 and rounded once.
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
    """`function` of float64 arrays, its results stacked along a new last axis as float32."""

    @wraps(function)
    def wide(*given: Any, **named: Any) -> jax.Array:
        with jax.enable_x64(True):
            arrays = [jnp.asarray(value).astype(jnp.float64) for value in given]
            found = jnp.broadcast_arrays(*function(*arrays, **named))
            return jnp.stack(found, axis=-1).astype(jnp.float32)

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
    """Coefficients [..., 8] of torchvision's affine: the inverse of T C R(angle) S SHy SHx C^-1.

    Args:
      angle, shear_x, shear_y: in degrees, clockwise; translate in pixels; all of one shape [...].
      size: height and width of the input.
      center: (x, y) from the corner; None: of the image.
    A scale that is not above 0 makes NaN, which a program leaves alone.
    """
    height, width = size
    turn, sx, sy = (jnp.deg2rad(degrees) for degrees in (angle, shear_x, shear_y))
    # R S SHy SHx without the scale: its determinant is 1.
    a = jnp.cos(turn - sy) / jnp.cos(sy)
    b = -(a * jnp.tan(sx) + jnp.sin(turn))
    c = jnp.sin(turn - sy) / jnp.cos(sy)
    d = jnp.cos(turn) - c * jnp.tan(sx)
    shrink = 1.0 / jnp.where(scale > 0.0, scale, jnp.nan)
    c0, c1, c3, c4 = d * shrink, -b * shrink, -c * shrink, a * shrink
    cx, cy = (0.0, 0.0) if center is None else (center[0] - width / 2, center[1] - height / 2)
    from_x, from_y = cx + translate_x, cy + translate_y
    c2 = cx - c0 * from_x - c1 * from_y
    c5 = cy - c3 * from_x - c4 * from_y
    nothing = jnp.zeros_like(c0)
    return [c0, c1, c2, c3, c4, c5, nothing, nothing]


def turned_size(
    size: tuple[int, int], degrees: float, center: Sequence[float] | None
) -> tuple[int, int]:
    """Height and width that hold an image of `size` turned counter-clockwise, as torchvision's:
    exact for quarter turns about the middle, else corners that are less than 1e-4 beyond a pixel do
    not count, in float32."""
    if center is None and degrees % 90 == 0:
        return size if degrees % 180 == 0 else (size[1], size[0])
    half = np.asarray([size[1] / 2, size[0] / 2], np.float32)
    turn = math.radians(degrees % 360)
    matrix = np.asarray([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
    middle = np.zeros(2) if center is None else np.asarray(center) - half
    shift = (middle - matrix @ middle).astype(np.float32)
    corners = np.asarray([[-1, -1], [-1, 1], [1, 1], [1, -1]], np.float32) * half
    moved = corners @ matrix.T.astype(np.float32) + shift + half
    whole = np.trunc(moved * np.float32(1e4)) * np.float32(1e-4)
    wide, high = np.ceil(whole.max(0)) - np.floor(whole.min(0))
    return int(high), int(wide)


@_in_float64
def perspective_coefficients(endpoints: Any, *, size: Size) -> list[Any]:
    """Coefficients [..., 8] that map end points to the corners (0, 0) to (W - 1, H - 1).

    Args:
      endpoints: [..., 4, 2], (x, y) of what was the corner top left, top right, bottom right,
        bottom left.
      size: (H, W).
    End points three of which lie on a line make values that are not finite, or no sensible image.

    P. Heckbert, Fundamentals of Texture Mapping and Image Warping, 1989, section 2.2.3: the unit
    square to a quadrilateral, and the adjugate of that.
    """
    x0, x1, x2, x3 = (endpoints[..., k, 0] for k in range(4))
    y0, y1, y2, y3 = (endpoints[..., k, 1] for k in range(4))
    skew_x, skew_y = x0 - x1 + x2 - x3, y0 - y1 + y2 - y3
    area = (x1 - x2) * (y3 - y2) - (x3 - x2) * (y1 - y2)
    g = skew_x * (y3 - y2) - (x3 - x2) * skew_y
    h = (x1 - x2) * skew_y - skew_x * (y1 - y2)
    # All nine times `area`, so that whole numbers stay exact.
    a, b, c = (x1 - x0) * area + g * x1, (x3 - x0) * area + h * x3, x0 * area
    d, e, f = (y1 - y0) * area + g * y1, (y3 - y0) * area + h * y3, y0 * area
    wide, high = size[1] - 1, size[0] - 1
    whole = a * e - b * d
    return [
        wide * (e * area - f * h) / whole,
        wide * (c * h - b * area) / whole,
        wide * (b * f - c * e) / whole,
        high * (f * g - d * area) / whole,
        high * (a * area - c * g) / whole,
        high * (c * d - a * f) / whole,
        (d * h - e * g) / whole,
        (b * g - a * h) / whole,
    ]


@_in_float64
def forward_coefficients(coefficients: Any, affine: Any, *, size: Size) -> list[Any]:
    """Coefficients [..., 8] of the inverse map: from points of the input to those of the output.

    Args:
      coefficients: [..., 8], where `affine`, bool [...], of an affine map, else of a perspective.
      size: (H, W) of input and output.
    The inverse goes from corner to corner. Maps of the plane that have no inverse, or send the
    corner of the output nowhere, make values that are not finite.
    """
    c0, c1, c2, c3, c4, c5, c6, c7 = jnp.moveaxis(coefficients, -1, 0)
    y, x = (side / 2 for side in size)
    c2 = c2 + affine * (x - c0 * x - c1 * y)
    c5 = c5 + affine * (y - c3 * x - c4 * y)
    # The adjugate of [[c0, c1, c2], [c3, c4, c5], [c6, c7, 1]], its last element 1.
    last = c0 * c4 - c1 * c3
    return [
        (c4 - c5 * c7) / last,
        (c2 * c7 - c1) / last,
        (c1 * c5 - c2 * c4) / last,
        (c5 * c6 - c3) / last,
        (c0 - c2 * c6) / last,
        (c2 * c3 - c0 * c5) / last,
        (c3 * c7 - c4 * c6) / last,
        (c1 * c6 - c0 * c7) / last,
    ]


@_in_float64
def fitted_sizes(height: Any, width: Any, shortest: Any, *, longest: int | None) -> list[Any]:
    """Whole [..., 2] height and width of images resized to a shorter side, as Python's floats say.

    Args:
      longest: what the longer side is at most; None for no bound.
    """
    factor = shortest / jnp.minimum(height, width)
    if longest is not None:
        factor = jnp.minimum(factor, longest / jnp.maximum(height, width))
    return [jnp.trunc(height * factor), jnp.trunc(width * factor)]
