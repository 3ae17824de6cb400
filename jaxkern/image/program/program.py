"""Image programs: what a step may do, and its values as operands (csrc/image/program.h)."""

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
MAX_FACTOR = 1024.0  # larger ones change no pixel further
INTERPOLATIONS = ("nearest", "bilinear")  # of warps, numbered as in program.h


class Code(enum.IntEnum):
    """Operations, numbered as in program.h; behind each its values."""

    NONE = -1
    BRIGHTNESS = 0  # factor
    CONTRAST = 1  # factor, 1 - factor
    SATURATION = 2  # factor, 1 - factor
    HUE = 3  # shift, in turns
    SHARPNESS = 4  # factor, 1 - factor
    POSTERIZE = 5  # bits
    SOLARIZE = 6  # threshold as a part of the largest value; a value, where the second is not 0
    AUTOCONTRAST = 7
    EQUALIZE = 8
    INVERT = 9
    GRAYSCALE = 10
    PERMUTE = 11  # the source of each of three channels
    BLUR = 12  # sigma along x and y
    WARP = 13  # c0 to c5 of an affine map: see coefficients.py
    KEEP = 14  # weight: the image is kept, and begins a mean
    ADD = 15  # weight: the image joins the mean, and becomes the kept one again
    MEAN = 16  # the image becomes the mean
    PERSPECTIVE = 17  # c0 to c7: see coefficients.py
    NOISE = 18  # mean, sigma, whether sums are clipped; key
    ERASE = 19  # top, left, height, width; key
    ELASTIC = 20  # alpha along x and y, sigma along x and y; key
    TURN = 21  # c0 to c5, width and height of the image, which is the top left of what is given


@dataclasses.dataclass(frozen=True)
class ProgramStep:
    """What is the same for every image of a step: hashable, part of a compiled program.

    Attributes:
      codes: what the step may do; another code changes nothing.
      interpolation: of a warp.
      kernel: of a blur, its size along x and y: odd; of an elastic warp, of the blurs of both.
      fill: of a warp, a number or one a channel; the first NaN: zeros that no weights mask. Of an
        erased box, where the first NaN stands for noise.
    """

    codes: tuple[Code, ...]
    interpolation: str = "nearest"
    kernel: tuple[int, int] = (1, 1)
    fill: tuple[float, ...] = (0.0,)

    @property
    def mask(self) -> int:
        """A bit for each code."""
        return sum(1 << int(code) for code in set(self.codes) if code >= 0)

    def fill_of(self, channels: int) -> np.ndarray:
        """The fill as float32 [channels]."""
        fill = np.asarray(self.fill, np.float32)
        if fill.size not in (1, channels):
            raise ValueError(
                f"fill has {fill.size} values, but the images have {channels} channels; give one "
                f"number or {channels}"
            )
        return np.broadcast_to(fill, (channels,))


# The code i32 [N or 1] of each image, its values f32 [N or 1, VALUES], and what all share.
Step = tuple[Any, Any, ProgramStep]


def step_values(*given: Any) -> Any:
    """Values [N or 1, VALUES] of a step from numbers or arrays [N], zeros behind them."""
    rows = [jnp.atleast_1d(jnp.asarray(value, jnp.float32)) for value in given]
    rows += [jnp.zeros(1, jnp.float32)] * (VALUES - len(rows))
    return jnp.stack(jnp.broadcast_arrays(*rows), axis=-1)


def blended(factor: Any) -> Any:
    """Values of a blend: the factor f32 [N or 1] and 1 - factor."""
    factor = jnp.asarray(factor, jnp.float32)
    return step_values(factor, 1.0 - factor)


def drawn_seed(key: jax.Array) -> jax.Array:
    """A seed i32 [2] of an image's random numbers."""
    return jax.lax.bitcast_convert_type(jax.random.bits(key, (2,), jnp.uint32), jnp.int32)


def with_key(seed: Any, *given: Any) -> Any:
    """As `step_values`, with a seed i32 [N, 2] at the end: its 64 bits in four whole numbers."""
    seed = jnp.asarray(seed, jnp.int32)
    parts = [(seed[:, k] >> shift) & 0xFFFF for k in range(2) for shift in (0, 16)]
    return step_values(*given, *[0.0] * (VALUES - 4 - len(given)), *parts)


def drawn_codes(apply: Any, code: Code) -> Any:
    """`code` for the images that a bool, or bools [N], say, NONE for the others: i32 [N or 1]."""
    return jnp.where(jnp.atleast_1d(jnp.asarray(apply)), np.int32(code), np.int32(Code.NONE))


def program_operands(steps: Sequence[Step]) -> tuple[Any, Any, tuple[ProgramStep, ...]]:
    """Codes i32 [N or 1, S] and values f32 [N or 1, S, VALUES] of steps, and what is static."""
    if not steps:
        return np.zeros((1, 0), np.int32), np.zeros((1, 0, VALUES), np.float32), ()
    codes = [jnp.atleast_1d(jnp.asarray(code, jnp.int32)) for code, _, _ in steps]
    values = [jnp.asarray(given, jnp.float32).reshape(-1, VALUES) for _, given, _ in steps]
    return (
        jnp.stack(jnp.broadcast_arrays(*codes), axis=1),
        jnp.stack(jnp.broadcast_arrays(*values), axis=1),
        tuple(static for _, _, static in steps),
    )


def as_images(pixels: jax.Array) -> jax.Array:
    """What a program takes: uint8 as it is, other types as float32."""
    return pixels if pixels.dtype == jnp.uint8 else pixels.astype(jnp.float32)
