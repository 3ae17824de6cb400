"""Published tables of the policies: ops, magnitudes and the pairs of AutoAugment."""

from __future__ import annotations

import enum
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import is_static
from jaxkern.image.transforms.transform import Size


class AutoAugmentPolicy(enum.StrEnum):
    """The data set that a policy of AutoAugment was trained for.

    >>> from jaxkern.image import AutoAugmentPolicy
    >>> AutoAugmentPolicy("svhn").name
    'SVHN'
    """

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"

    def __repr__(self) -> str:
        """Return the string that is accepted as an argument."""
        return repr(str(self))


class Magnitude(NamedTuple):
    """Magnitudes of an op, linear over the bins."""

    first: float
    last: float
    side: int | None = None  # of the image, which multiplies `last`: 0 height, 1 width
    divisor: float = 1.0  # of the product of `last` and that side
    signed: bool = True  # a draw has a random sign
    integer: bool = False  # rounded to integers, half to even


Space = dict[str, Magnitude | None]

_SOLARIZE = Magnitude(1.0, 0.0, signed=False)


def _space(
    shear: float,
    translate: tuple[Magnitude, Magnitude],
    rotate: float,
    bits: tuple[float, float],
    factor: float,
) -> Space:
    """Return magnitudes of all 16 names, in the order of torchvision's tables."""
    return {
        "Identity": None,
        "ShearX": Magnitude(0.0, shear),
        "ShearY": Magnitude(0.0, shear),
        "TranslateX": translate[0],
        "TranslateY": translate[1],
        "Rotate": Magnitude(0.0, rotate),
        **dict.fromkeys(("Brightness", "Color", "Contrast", "Sharpness"), Magnitude(0.0, factor)),
        "Posterize": Magnitude(*bits, signed=False, integer=True),
        "Solarize": _SOLARIZE,
        "AutoContrast": None,
        "Equalize": None,
        "Invert": None,
    }


def _shares(over: float, under: float) -> tuple[Magnitude, Magnitude]:
    """Return translations up to over / under of the width and of the height."""
    return Magnitude(0.0, over, side=1, divisor=under), Magnitude(0.0, over, 0, under)


def _select(space: Space, names: str) -> Space:
    return {name: space[name] for name in names.split()}


_PIXELS = (Magnitude(0.0, 32.0), Magnitude(0.0, 32.0))
_GEOMETRY = "ShearX ShearY TranslateX TranslateY Rotate"
_FACTORS = "Brightness Color Contrast Sharpness"
_TABLES = "Posterize Solarize AutoContrast Equalize"

_NARROW = _space(0.3, _shares(150.0, 331.0), 30.0, (8.0, 4.0), 0.9)
RAND_AUGMENT = _select(_NARROW, f"Identity {_GEOMETRY} {_FACTORS} {_TABLES}")
AUTO_AUGMENT = _select(_NARROW, f"{_GEOMETRY} {_FACTORS} {_TABLES} Invert")
TRIVIAL_AUGMENT_WIDE = _select(
    _space(0.99, _PIXELS, 135.0, (8.0, 2.0), 0.99), f"Identity {_GEOMETRY} {_FACTORS} {_TABLES}"
)
# The last four are used only with `all_ops`.
AUG_MIX = _select(
    _space(0.3, _shares(1.0, 3.0), 30.0, (4.0, 0.0), 0.9), f"{_GEOMETRY} {_TABLES} {_FACTORS}"
)


def magnitude_table(space: Space, bins: int, size: Size) -> Any:
    """Return magnitudes f32 [ops, bins], unsigned; a NumPy array if the sizes are known.

    They are rounded once, from float64, so that they do not depend on the machine and integer
    pixels are exact. The last bits of torch.linspace differ, and depend on the machine.
    """
    if is_static(*size):
        return np.stack([_row(row, bins, size, np) for row in space.values()]).astype(np.float32)
    with jax.enable_x64(True):
        sides = [jnp.asarray(side).astype(jnp.float64) for side in size]
        rows = [_row(row, bins, sides, jnp) for row in space.values()]
        return jnp.stack(rows).astype(jnp.float32)


def _row(magnitude: Magnitude | None, bins: int, size: Any, xp: Any) -> Any:
    if magnitude is None:
        return xp.zeros(bins)
    side = 1 if magnitude.side is None else size[magnitude.side]
    last = side * magnitude.last / magnitude.divisor
    row = magnitude.first + (last - magnitude.first) * np.arange(bins) / (bins - 1)
    return xp.asarray(np.round(row) if magnitude.integer else row)


def signed_ops(space: Space) -> np.ndarray:
    """Return which ops have a random sign: bool [ops]."""
    return np.asarray([row is not None and row.signed for row in space.values()])


class Pairs(NamedTuple):
    """A policy of AutoAugment: arrays [pairs, 2]. One pair is drawn for each image."""

    op: np.ndarray
    probability: np.ndarray
    magnitude_bin: np.ndarray  # of the magnitude, of 10


def pairs(policy: AutoAugmentPolicy) -> Pairs:
    """Return the published pairs, with ops as indices of AUTO_AUGMENT."""
    names = list(AUTO_AUGMENT)
    steps = [step.split() for step in re.split("[,;\n]", _PAIRS[policy]) if step.strip()]
    op = np.asarray([names.index(name) for name, _, _ in steps], np.int32)
    probability = np.asarray([chance for _, chance, _ in steps], np.float32)
    bins = np.asarray([0 if text == "-" else int(text) for _, _, text in steps], np.int32)
    return Pairs(op.reshape(-1, 2), probability.reshape(-1, 2), bins.reshape(-1, 2))


# Cubuk et al., AutoAugment: Learning Augmentation Strategies from Data, 2019, appendix. Each step:
# the op, its probability, and the bin of its magnitude or "-" if it has none.
_PAIRS = {
    AutoAugmentPolicy.IMAGENET: """
        Posterize 0.4 8, Rotate 0.6 9; Solarize 0.6 5, AutoContrast 0.6 -
        Equalize 0.8 -, Equalize 0.6 -; Posterize 0.6 7, Posterize 0.6 6
        Equalize 0.4 -, Solarize 0.2 4; Equalize 0.4 -, Rotate 0.8 8
        Solarize 0.6 3, Equalize 0.6 -; Posterize 0.8 5, Equalize 1.0 -
        Rotate 0.2 3, Solarize 0.6 8; Equalize 0.6 -, Posterize 0.4 6
        Rotate 0.8 8, Color 0.4 0; Rotate 0.4 9, Equalize 0.6 -
        Equalize 0.0 -, Equalize 0.8 -; Invert 0.6 -, Equalize 1.0 -
        Color 0.6 4, Contrast 1.0 8; Rotate 0.8 8, Color 1.0 2
        Color 0.8 8, Solarize 0.8 7; Sharpness 0.4 7, Invert 0.6 -
        ShearX 0.6 5, Equalize 1.0 -; Color 0.4 0, Equalize 0.6 -
        Equalize 0.4 -, Solarize 0.2 4; Solarize 0.6 5, AutoContrast 0.6 -
        Invert 0.6 -, Equalize 1.0 -; Color 0.6 4, Contrast 1.0 8
        Equalize 0.8 -, Equalize 0.6 -
    """,
    AutoAugmentPolicy.CIFAR10: """
        Invert 0.1 -, Contrast 0.2 6; Rotate 0.7 2, TranslateX 0.3 9
        Sharpness 0.8 1, Sharpness 0.9 3; ShearY 0.5 8, TranslateY 0.7 9
        AutoContrast 0.5 -, Equalize 0.9 -; ShearY 0.2 7, Posterize 0.3 7
        Color 0.4 3, Brightness 0.6 7; Sharpness 0.3 9, Brightness 0.7 9
        Equalize 0.6 -, Equalize 0.5 -; Contrast 0.6 7, Sharpness 0.6 5
        Color 0.7 7, TranslateX 0.5 8; Equalize 0.3 -, AutoContrast 0.4 -
        TranslateY 0.4 3, Sharpness 0.2 6; Brightness 0.9 6, Color 0.2 8
        Solarize 0.5 2, Invert 0.0 -; Equalize 0.2 -, AutoContrast 0.6 -
        Equalize 0.2 -, Equalize 0.6 -; Color 0.9 9, Equalize 0.6 -
        AutoContrast 0.8 -, Solarize 0.2 8; Brightness 0.1 3, Color 0.7 0
        Solarize 0.4 5, AutoContrast 0.9 -; TranslateY 0.9 9, TranslateY 0.7 9
        AutoContrast 0.9 -, Solarize 0.8 3; Equalize 0.8 -, Invert 0.1 -
        TranslateY 0.7 9, AutoContrast 0.9 -
    """,
    AutoAugmentPolicy.SVHN: """
        ShearX 0.9 4, Invert 0.2 -; ShearY 0.9 8, Invert 0.7 -
        Equalize 0.6 -, Solarize 0.6 6; Invert 0.9 -, Equalize 0.6 -
        Equalize 0.6 -, Rotate 0.9 3; ShearX 0.9 4, AutoContrast 0.8 -
        ShearY 0.9 8, Invert 0.4 -; ShearY 0.9 5, Solarize 0.2 6
        Invert 0.9 -, AutoContrast 0.8 -; Equalize 0.6 -, Rotate 0.9 3
        ShearX 0.9 4, Solarize 0.3 3; ShearY 0.8 8, Invert 0.7 -
        Equalize 0.9 -, TranslateY 0.6 6; Invert 0.9 -, Equalize 0.6 -
        Contrast 0.3 3, Rotate 0.8 4; Invert 0.8 -, TranslateY 0.0 2
        ShearY 0.7 6, Solarize 0.4 8; Invert 0.6 -, Rotate 0.8 4
        ShearY 0.3 7, TranslateX 0.9 3; ShearX 0.1 6, Invert 0.6 -
        Solarize 0.7 2, TranslateY 0.6 7; ShearY 0.8 4, Invert 0.8 -
        ShearX 0.7 9, TranslateY 0.8 3; ShearY 0.8 5, AutoContrast 0.7 -
        ShearX 0.7 2, Invert 0.1 -
    """,
}
