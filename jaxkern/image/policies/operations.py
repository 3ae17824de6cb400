"""The ops of augmentation policies as steps of an image program: codes and values by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxkern.image.program.coefficients import affine_coefficients
from jaxkern.image.program.program import VALUES, Code, ProgramStep
from jaxkern.image.transforms.transform import Size

_CODES = {
    "Identity": Code.NONE,
    **dict.fromkeys(("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate"), Code.WARP),
    "Brightness": Code.BRIGHTNESS,
    "Color": Code.SATURATION,
    "Contrast": Code.CONTRAST,
    "Sharpness": Code.SHARPNESS,
    "Posterize": Code.POSTERIZE,
    "Solarize": Code.SOLARIZE,
    "AutoContrast": Code.AUTOCONTRAST,
    "Equalize": Code.EQUALIZE,
    "Invert": Code.INVERT,
}
_FACTORS = ("Brightness", "Color", "Contrast", "Sharpness")


def step_static(ops: Sequence[str], interpolation: str, fill: Any) -> ProgramStep:
    """What all images share in a step that does one of `ops`."""
    codes = tuple(sorted({_CODES[name] for name in ops} - {Code.NONE}))
    return ProgramStep(codes, interpolation, fill=(math.nan,) if fill is None else fill)


def checked_ops(op: Any, ops: Sequence[str], where: str) -> Any:
    """`op`; rejects positions that are none of `ops` where they are known without running it."""
    if isinstance(op, np.ndarray) and op.size and not -1 <= op.min() <= op.max() < len(ops):
        wrong = op[(op < -1) | (op >= len(ops))].flat[0]
        raise ValueError(
            f"{where}: op holds {wrong}; wanted positions in OPS, 0 to {len(ops) - 1}, or -1 for "
            "an op that is not applied"
        )
    return op


def program_step(ops: Sequence[str], op: Any, magnitude: Any, size: Size) -> tuple[Any, Any]:
    """Program codes i32 [...] and values f32 [..., VALUES] of ops.

    Args:
      ops: the names that `op` i32 [...] has positions in; any other number leaves an image alone.
      magnitude: f32 [...], as torchvision's policies have it: shears as tangents, pixels, degrees
        counter-clockwise, 1 less than a factor, bits, a part of the largest value.
      size: height and width of the images.
    """
    known = (op >= 0) & (op < len(ops))
    place = jnp.clip(op, 0, len(ops) - 1)

    def named(*names: str) -> Any:
        return known & jnp.asarray([name in names for name in ops])[place]

    codes = jnp.asarray([int(_CODES[name]) for name in ops], np.int32)[place]
    code = jnp.where(known, codes, int(Code.NONE))
    whole = jnp.trunc(magnitude)
    # Of a blend with the factor 1 + m the rest, 1 - factor, is -m without another rounding.
    first = jnp.where(named(*_FACTORS), 1.0 + magnitude, magnitude)
    first = jnp.where(named("Posterize"), whole, first)
    rest = jnp.where(named(*_FACTORS), -magnitude, 0.0)
    zeros = [jnp.zeros_like(magnitude)] * (VALUES - 2)
    values = jnp.stack([first, rest, *zeros], axis=-1)
    warp = (code == int(Code.WARP))[..., None]
    return code, jnp.where(warp, _coefficients(named, magnitude, whole, size), values)


def _coefficients(named: Any, magnitude: Any, whole: Any, size: Size) -> Any:
    """From a pixel of the result to where it comes from, as coefficients.py has it.

    Shears keep the top left corner, which torchvision asks of its affine map by shear =
    atan(magnitude): counted from there, (x + m y, y) and (x, y + m x). Translations are by whole
    pixels. Turns keep the middle.
    """
    zero = jnp.zeros_like(magnitude)
    # torchvision's rotate turns the other way than its affine.
    angle = jnp.where(named("Rotate"), -magnitude, zero)
    turn = affine_coefficients(angle, zero, zero, zero + 1, zero, zero, size=size)
    x, y = named("ShearX"), named("ShearY")
    right, down = named("TranslateX"), named("TranslateY")
    half_height, half_width = (0.5 * side for side in size)
    moved = [
        zero,
        jnp.where(x, magnitude, zero),
        jnp.where(right, -whole, jnp.where(x, magnitude * half_height, zero)),
        jnp.where(y, magnitude, zero),
        zero,
        jnp.where(down, -whole, jnp.where(y, magnitude * half_width, zero)),
        zero,
        zero,
    ]
    # Of what is no turn, `turn` is the map that moves nothing, exactly.
    return turn + jnp.stack(moved, axis=-1)
