"""Image programs: their operations, and steps as operands (the mirror of csrc/image/program.h)."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

VALUES = 8  # of a step
MAX_STEPS = 64
MAX_FACTOR = 1024.0  # Larger factors are clamped to it; they change no pixel further.
INTERPOLATIONS = ("nearest", "bilinear")  # of warps, numbered as in program.h


class Code(enum.IntEnum):
    """Operations of an image program, numbered as in program.h; each comment lists its values.

    >>> from jaxkern.image import Code
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
    WARP = 13  # c0 to c5 of an affine map: see coefficients.py
    KEEP = 14  # weight: stores the image and starts a mean with it
    ADD = 15  # weight: adds the image to the mean and restores the stored image
    MEAN = 16  # replaces the image by the mean
    PERSPECTIVE = 17  # c0 to c7: see coefficients.py
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
        """Return the fill as float32 [channels]."""
        fill = np.asarray(self.fill, np.float32)
        if fill.size not in (1, channels):
            raise ValueError(
                f"fill: expected one number or {channels}, one per channel, got {fill.size}"
            )
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

    >>> from jaxkern.image import Code, program_step
    >>> program_step(Code.BRIGHTNESS, 1.5)[1].shape
    (1, 8)
    """
    codes = np.full(1, code, np.int32) if apply is True else codes_where(apply, code)
    if code in _BLENDS and len(values) == 1:
        return codes, blend_values(values[0]), ProgramStep((code,), **static)
    return codes, step_values(*values), ProgramStep((code,), **static)


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


def codes_where(apply: Any, code: Code) -> Any:
    """Return `code` where a bool, or bools [N], are True and NONE elsewhere: i32 [N or 1]."""
    return jnp.where(jnp.atleast_1d(jnp.asarray(apply)), np.int32(code), np.int32(Code.NONE))


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
