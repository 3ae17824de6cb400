"""Image programs: their operations, and steps as operands (the mirror of csrc/image/program.h)."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Size

VALUES = 8  # of a step
MAX_STEPS = 64
MAX_KERNEL = 1023  # of a blur: kMaxBlurKernel of csrc/image/blur.h
MAX_FACTOR = 1024.0  # Larger factors are clamped to it; they change no pixel further.
INTERPOLATIONS = ("nearest", "bilinear")  # of warps, numbered as in program.h


class Code(enum.IntEnum):
    """Operations of an image program, numbered as in program.h; each comment lists its values.

    >>> Code.INVERT.name
    'INVERT'
    """

    NONE = -1
    BRIGHTNESS = 0  # factor
    CONTRAST = 1  # factor, 1 - factor
    SATURATION = 2  # factor, 1 - factor
    HUE = 3  # shift, in turns
    SHARPNESS = 4  # factor, 1 - factor
    POSTERIZE = 5  # bits
    SOLARIZE = 6  # threshold; relative to the largest value, unless a second value is not 0
    AUTOCONTRAST = 7
    EQUALIZE = 8
    INVERT = 9
    GRAYSCALE = 10
    PERMUTE = 11  # source of each of three channels
    BLUR = 12  # sigma along x and y
    WARP = 13  # c0 to c5 of an affine map: see below
    KEEP = 14  # weight: stores the image and starts a mean with it
    ADD = 15  # weight: adds the image to the mean and restores the stored image
    MEAN = 16  # replaces the image by the mean
    PERSPECTIVE = 17  # c0 to c7: see below
    NOISE = 18  # mean, sigma, 1 to clip sums; key
    ERASE = 19  # top, left, height, width; key
    ELASTIC = 20  # alpha along x and y, sigma along x and y; key
    TURN = 21  # c0 to c5, and width and height of the image at the top left of its canvas


@dataclasses.dataclass(frozen=True)
class ProgramStep:
    """The part of a step that all images share: hashable, and static in a compiled program.

    Attributes:
      codes: the operations that the step may run; any other code leaves an image unchanged.
      interpolation: interpolation of a warp.
      kernel: odd kernel size along x and y, of a blur or of the blurred field of an elastic warp.
      fill: value outside the image of a warp, or the colour of an erased box: a number, or one a
        channel. If the first is NaN, a warp uses zeros without masking and an erased box noise.
    """

    codes: tuple[Code, ...]
    interpolation: str = "nearest"
    kernel: tuple[int, int] = (1, 1)
    fill: tuple[float, ...] = (0.0,)

    @property
    def mask(self) -> int:
        """The codes as a bit mask."""
        return sum(1 << int(code) for code in set(self.codes) if code >= 0)

    def channel_fill(self, channels: int) -> np.ndarray:
        fill = np.asarray(self.fill, np.float32)
        if fill.size not in (1, channels):
            raise ValueError(f"fill: expected 1 number or {channels}, got {fill.size}")
        return np.broadcast_to(fill, (channels,))


# The code i32 [N or 1] of each image, its values f32 [N or 1, VALUES], and what all share.
Step = tuple[Any, Any, ProgramStep]

_BLENDS = (Code.CONTRAST, Code.SATURATION, Code.SHARPNESS)


def program_step(code: Code, *values: Any, apply: Any = True, **static: Any) -> Step:
    """Return a step that runs one operation, for `Transform.program`.

    Args:
      code: the operation.
      values: its values as `Code` lists them: numbers or arrays [N]. A blend (CONTRAST, SATURATION,
        SHARPNESS) needs its factor only.
      apply: images on which the operation runs: bool, or bool [N].
      static: fields of `ProgramStep`: interpolation, kernel, fill.

    >>> program_step(Code.BRIGHTNESS, 1.5)[1].shape
    (1, 8)
    """
    blend = code in _BLENDS and len(values) == 1
    stacked = blend_values(values[0]) if blend else step_values(*values)
    return stacked_step(code, stacked, apply, **static)


def stacked_step(code: Code, values: Any, apply: Any = True, **static: Any) -> Step:
    """Return a step like `program_step`, with values [N or 1, VALUES]."""
    codes: Any = np.full(1, code, np.int32)
    if apply is not True:
        codes = jnp.where(jnp.atleast_1d(jnp.asarray(apply)), codes, np.int32(Code.NONE))
    return codes, values, ProgramStep((code,), **static)


def step_values(*columns: Any) -> Any:
    """Stack numbers or arrays [N] as values [N or 1, VALUES] of a step, padded with zeros."""
    rows = [jnp.atleast_1d(jnp.asarray(value, jnp.float32)) for value in columns]
    rows += [jnp.zeros(1, jnp.float32)] * (VALUES - len(rows))
    return jnp.stack(jnp.broadcast_arrays(*rows), axis=-1)


def blend_values(factor: Any) -> Any:
    """Return the values of a blend: the factor f32 [N or 1] and 1 - factor."""
    factor = jnp.asarray(factor, jnp.float32)
    return step_values(factor, 1.0 - factor)


def sample_seed(key: jax.Array) -> jax.Array:
    """Draw a seed i32 [2] of an image's random numbers."""
    return jax.lax.bitcast_convert_type(jax.random.bits(key, (2,), jnp.uint32), jnp.int32)


def values_with_seed(seed: Any, *columns: Any) -> Any:
    """Return `step_values` that end with a seed i32 [N, 2], as four 16-bit parts."""
    seed = jnp.asarray(seed, jnp.int32)
    parts = [(seed[:, k] >> shift) & 0xFFFF for k in range(2) for shift in (0, 16)]
    return step_values(*columns, *[0.0] * (VALUES - 4 - len(columns)), *parts)


def program_operands(steps: Sequence[Step]) -> tuple[Any, Any, tuple[ProgramStep, ...]]:
    """Stack steps: codes i32 [N or 1, S], values f32 [N or 1, S, VALUES], and the static parts."""
    if not steps:
        return np.zeros((1, 0), np.int32), np.zeros((1, 0, VALUES), np.float32), ()
    codes = [jnp.atleast_1d(jnp.asarray(code, jnp.int32)) for code, _, _ in steps]
    values = [jnp.asarray(row, jnp.float32).reshape(-1, VALUES) for _, row, _ in steps]
    return (
        jnp.stack(jnp.broadcast_arrays(*codes), axis=1),
        jnp.stack(jnp.broadcast_arrays(*values), axis=1),
        tuple(static for _, _, static in steps),
    )


# Coefficients of warps: an output pixel at (x, y) shows the input at (c0 x + c1 y + c2,
# c3 x + c4 y + c5), over c6 x + c7 y + 1. Affine maps are relative to the centres, perspectives to
# the top left corners. They are computed in float64 and rounded to float32 once.


def _in_float64(function: Callable[..., list[Any]]) -> Callable[..., jax.Array]:
    """Call `function` with float64 arrays and stack its results on a new last axis as float32."""

    @functools.wraps(function)
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

    Angles and shears are in degrees, clockwise. A scale that is not above 0 gives NaN.
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
    """Return coefficients [..., 8] that map end points [..., 4, 2] to the corners.

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
    """Return coefficients [..., 8] of the inverse of affine maps or perspectives, from corners."""
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
