"""Transforms of colours: grayscale, lookup tables, sharpness, channels, and jitter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.program.program import (
    VALUES,
    Code,
    ProgramStep,
    Step,
    blend_values,
    program_step,
    step_values,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.transform import Params, Size, Transform


class ColourTransform(Transform):
    """Base class of transforms that change colours by steps of a program."""

    kind = "program"
    expects_unit_range = True


@dataclasses.dataclass(frozen=True)
class Grayscale(ColourTransform):
    """Compute 0.2989 R + 0.587 G + 0.114 B in one channel or in three; uint8 is floored.

    Args:
      num_output_channels: 1 or 3; with 3, an alpha channel is retained.

    >>> from jaxkern.image import Compose, Grayscale
    >>> import numpy as np
    >>> Compose([Grayscale()]).apply(np.full((1, 2, 2, 3), 7, np.uint8)).shape
    (1, 2, 2, 1)
    """

    num_output_channels: int = checked(checks.choice(1, 3), 1)

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        return [program_step(Code.GRAYSCALE)]

    def output_channels(self, channels: int) -> int:
        if self.num_output_channels == 3:
            return max(channels, 3)
        if channels == 4:
            raise ValueError("Grayscale(1): expected no alpha, got 4 channels; use Grayscale(3)")
        return 1


class _RandomColour(ColourTransform):
    """Base class: one operation with probability p."""

    p: float

    parameters: ClassVar = {"apply": "bool"}
    _code: ClassVar[Code]

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"apply": jax.random.uniform(key, dtype=jnp.float32) < self.p}

    def _values(self) -> tuple[float, ...]:
        return ()

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        return [program_step(self._code, *self._values(), apply=params["apply"])]


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(_RandomColour):
    """Convert an image to gray, in all its channels, with probability p (parameter: apply bool).

    >>> RandomGrayscale().p
    0.1
    """

    p: float = checked(checks.probability, 0.1)

    _code = Code.GRAYSCALE


@dataclasses.dataclass(frozen=True)
class RandomInvert(_RandomColour):
    """Compute 255 - x, or 1 - x of floats, with probability p (parameter: apply bool).

    >>> RandomInvert(p=1.0).p
    1.0
    """

    p: float = checked(checks.probability, 0.5)

    _code = Code.INVERT


@dataclasses.dataclass(frozen=True)
class RandomEqualize(_RandomColour):
    """Equalize each channel's histogram as Pillow does, with probability p; floats in 256 levels.

    Parameter of an image: apply bool.

    >>> RandomEqualize().p
    0.5
    """

    p: float = checked(checks.probability, 0.5)

    _code = Code.EQUALIZE


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(_RandomColour):
    """Stretch each channel to the full range with probability p; constant channels are unchanged.

    Parameter of an image: apply bool.

    >>> RandomAutocontrast().p
    0.5
    """

    p: float = checked(checks.probability, 0.5)

    _code = Code.AUTOCONTRAST


@dataclasses.dataclass(frozen=True)
class RandomPosterize(_RandomColour):
    """Keep the most significant bits of each value with probability p.

    Args:
      bits: number of high bits to keep, from 0 to 8.
    Parameter of an image: apply bool.

    >>> RandomPosterize(bits=2).bits
    2
    """

    bits: int = checked(checks.integer(0, 8))
    p: float = checked(checks.probability, 0.5)

    _code = Code.POSTERIZE

    def _values(self) -> tuple[float, ...]:
        return (float(self.bits),)


@dataclasses.dataclass(frozen=True)
class RandomSolarize(_RandomColour):
    """Invert values from a threshold up, with probability p.

    Args:
      threshold: in the images' values: a level up to 255 of uint8 images, 0 to 1 of floats.
    Parameter of an image: apply bool.

    >>> RandomSolarize(threshold=128).threshold
    128.0
    """

    threshold: float = checked(checks.bounded(-math.inf, 255.0))
    p: float = checked(checks.probability, 0.5)

    _code = Code.SOLARIZE

    def _values(self) -> tuple[float, ...]:
        return (self.threshold, 1.0)


@dataclasses.dataclass(frozen=True)
class RandomAdjustSharpness(_RandomColour):
    """Blend an image with its 3 x 3 smoothed version with probability p.

    Args:
      sharpness_factor: 0 smooths, 1 changes nothing, 2 sharpens.
    Parameter of an image: apply bool.

    >>> RandomAdjustSharpness(2).sharpness_factor
    2.0
    """

    sharpness_factor: float = checked(checks.bounded(0.0))
    p: float = checked(checks.probability, 0.5)

    _code = Code.SHARPNESS

    def _values(self) -> tuple[float, ...]:
        return (self.sharpness_factor, 1.0 - self.sharpness_factor)


@dataclasses.dataclass(frozen=True)
class RandomChannelPermutation(ColourTransform):
    """Permute the three colours of an image at random; alpha is unchanged.

    Parameter of an image: permutation i32 [3], the source of each channel.

    >>> RandomChannelPermutation().parameters
    {'permutation': 'int[3]'}
    """

    parameters: ClassVar = {"permutation": "int[3]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"permutation": jax.random.permutation(key, 3).astype(jnp.int32)}

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        return [_permute(params)]


def _permute(params: Params, apply: Any = True) -> Step:
    order = jnp.asarray(params["permutation"], jnp.int32)
    return program_step(Code.PERMUTE, *(order[:, c] for c in range(3)), apply=apply)


_JITTERS = ("brightness", "contrast", "saturation", "hue")  # as the first four codes


def _jitter(neutral: float, check: checks.Check) -> checks.Check:
    """Return a check that accepts None, and returns it for factors that are always neutral."""

    def run(value: Any, name: str) -> Any:
        ends = None if value is None else check(value, name)
        return None if ends == (neutral, neutral) else ends

    return run


_FACTORS = checks.sequence(2, low=0.0)
_SHIFTS = checks.sequence(2, low=-0.5, high=0.5)
_JITTER = _jitter(1.0, checks.sequence(2, low=0.0, single=lambda b: (max(1.0 - b, 0.0), 1.0 + b)))
_HUE = _jitter(0.0, checks.sequence(2, low=-0.5, high=0.5, single=lambda h: (-h, h)))


def _sample_factors(transform: Any, keys: Sequence[jax.Array]) -> dict[str, jax.Array]:
    """Draw each factor of a jitter uniformly; one without bounds is its neutral value."""
    factors = {}
    for name, key in zip(_JITTERS, keys, strict=True):
        bounds = getattr(transform, name)
        if bounds is None:
            factors[name] = jnp.asarray(0.0 if name == "hue" else 1.0, jnp.float32)
        else:
            factors[name] = jax.random.uniform(key, (), jnp.float32, bounds[0], bounds[1])
    return factors


@dataclasses.dataclass(frozen=True)
class ColorJitter(ColourTransform):
    """Change brightness, contrast, saturation and hue by random factors, in random order.

    Args:
      brightness, contrast, saturation: a number b for factors uniform in [max(0, 1 - b), 1 + b], or
        both ends; None, or factors that are always 1, to leave it unchanged.
      hue: a number h for shifts uniform in [-h, h] turns, or both ends; up to 1/2.
    Parameters of an image: brightness, contrast, saturation, hue f32; order i32 [4], where 0 to 3
    are these names in order. One that is None is not applied, whatever its parameter.

    >>> ColorJitter(brightness=0.4, hue=0.1).brightness
    (0.6, 1.4)
    """

    brightness: Any = checked(_JITTER, None)
    contrast: Any = checked(_JITTER, None)
    saturation: Any = checked(_JITTER, None)
    hue: Any = checked(_HUE, None)

    parameters: ClassVar = {**dict.fromkeys(_JITTERS, "float"), "order": "int[4]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        order, *keys = jax.random.split(key, 5)
        order = jax.random.permutation(order, 4).astype(jnp.int32)
        return {**_sample_factors(self, keys), "order": order}

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        used = tuple(Code[name.upper()] for name in _JITTERS if getattr(self, name) is not None)
        if not used:
            return []
        blends = [blend_values(params[name]) for name in ("brightness", "contrast", "saturation")]
        by_code = jnp.broadcast_arrays(*blends, step_values(params["hue"]))  # each [N or 1, VALUES]
        order = jnp.asarray(params["order"], jnp.int32)
        steps: list[Step] = []
        for position in range(4):
            code = order[:, position]
            code = jnp.where((code >= 0) & (code < 4), code, np.int32(Code.NONE))
            values = jnp.zeros((code.shape[0], VALUES), jnp.float32)
            for k, rows in enumerate(by_code):
                values = jnp.where((code == k)[:, None], rows, values)
            steps.append((code, values, ProgramStep(used)))
        return steps


@dataclasses.dataclass(frozen=True)
class RandomPhotometricDistort(ColourTransform):
    """Apply the distortions of SSD: brightness, contrast, saturation, hue and channel order.

    Each has its own probability. Contrast comes either before saturation and hue or after them.

    Args:
      brightness, contrast, saturation: both ends of the factors.
      hue: both ends of the shifts, in turns, up to 1/2.
      p: the probability of each.
    Parameters of an image: brightness, contrast, saturation, hue f32; contrast_before bool;
    permutation i32 [3]; apply bool [5], in the order brightness, contrast, saturation, hue,
    permutation.

    >>> RandomPhotometricDistort().hue
    (-0.05, 0.05)
    """

    brightness: Any = checked(_FACTORS, (0.875, 1.125))
    contrast: Any = checked(_FACTORS, (0.5, 1.5))
    saturation: Any = checked(_FACTORS, (0.5, 1.5))
    hue: Any = checked(_SHIFTS, (-0.05, 0.05))
    p: float = checked(checks.probability, 0.5)

    parameters: ClassVar = {
        **dict.fromkeys(_JITTERS, "float"),
        "contrast_before": "bool",
        "permutation": "int[3]",
        "apply": "bool[5]",
    }

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        order, chance, before, *keys = jax.random.split(key, 7)
        return {
            **_sample_factors(self, keys),
            "contrast_before": jax.random.uniform(before, dtype=jnp.float32) < 0.5,
            "permutation": jax.random.permutation(order, 3).astype(jnp.int32),
            "apply": jax.random.uniform(chance, (5,), jnp.float32) < self.p,
        }

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        apply = jnp.asarray(params["apply"])
        first = jnp.atleast_1d(jnp.asarray(params["contrast_before"]))
        brightness, contrast, saturation, hue = (params[name] for name in _JITTERS)
        return [
            program_step(Code.BRIGHTNESS, brightness, apply=apply[:, 0]),
            program_step(Code.CONTRAST, contrast, apply=apply[:, 1] & first),
            program_step(Code.SATURATION, saturation, apply=apply[:, 2]),
            program_step(Code.HUE, hue, apply=apply[:, 3]),
            program_step(Code.CONTRAST, contrast, apply=apply[:, 1] & ~first),
            _permute(params, apply[:, 4]),
        ]
