"""Transforms of colours: grayscale, lookup tables, sharpness, channels, and jitter."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import as_int
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
from jaxkern.image.transforms.transform import Kind, Size, Transform, set_fields


class ColourTransform(Transform):
    """Base class of transforms that change colours by steps of a program."""

    kind: ClassVar[Kind] = "program"
    expects_unit_range: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Grayscale(ColourTransform):
    """Compute 0.2989 R + 0.587 G + 0.114 B in one channel or in three; uint8 is floored.

    Args:
      num_output_channels: 1 or 3; with 3, an alpha channel is retained.
    Raises: ValueError for another number, and in `apply` for 1 on images with alpha.

    >>> from jaxkern.image import Compose, Grayscale
    >>> import numpy as np
    >>> Compose([Grayscale()]).apply(np.full((1, 2, 2, 3), 7, np.uint8)).shape
    (1, 2, 2, 1)
    """

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if self.num_output_channels not in (1, 3):
            raise ValueError(
                checks.unexpected("num_output_channels", "1 or 3", self.num_output_channels)
            )

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        return [program_step(Code.GRAYSCALE)]

    def output_channels(self, channels: int) -> int:
        if channels == 4 and self.num_output_channels == 1:
            raise ValueError(
                "Grayscale(1): expected images without alpha, got 4 channels; use Grayscale(3)"
            )
        return max(channels, 3) if self.num_output_channels == 3 else 1


class _RandomColour(ColourTransform):
    """Base class: one operation with probability p."""

    p: float

    parameters: ClassVar[dict[str, str]] = {"apply": "bool"}
    _code: ClassVar[Code]

    def __post_init__(self) -> None:
        set_fields(self, p=checks.probability(self.p))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"apply": jax.random.uniform(key, dtype=jnp.float32) < self.p}

    def _values(self) -> tuple[float, ...]:
        return ()

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        return [program_step(self._code, *self._values(), apply=params["apply"])]


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(_RandomColour):
    """Convert an image to gray, in all its channels, with probability p.

    Parameter of an image: apply bool.

    >>> from jaxkern.image import RandomGrayscale
    >>> RandomGrayscale().p
    0.1
    """

    p: float = 0.1

    _code: ClassVar[Code] = Code.GRAYSCALE


@dataclasses.dataclass(frozen=True)
class RandomInvert(_RandomColour):
    """Compute 255 - x, or 1 - x of floats, with probability p.

    Parameter of an image: apply bool.

    >>> from jaxkern.image import RandomInvert
    >>> RandomInvert(p=1.0).p
    1.0
    """

    p: float = 0.5

    _code: ClassVar[Code] = Code.INVERT


@dataclasses.dataclass(frozen=True)
class RandomEqualize(_RandomColour):
    """Equalize each channel's histogram as Pillow does, with probability p; floats in 256 levels.

    Parameter of an image: apply bool.

    >>> from jaxkern.image import RandomEqualize
    >>> RandomEqualize().p
    0.5
    """

    p: float = 0.5

    _code: ClassVar[Code] = Code.EQUALIZE


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(_RandomColour):
    """Stretch each channel to the full range with probability p; constant channels are unchanged.

    Parameter of an image: apply bool.

    >>> from jaxkern.image import RandomAutocontrast
    >>> RandomAutocontrast().p
    0.5
    """

    p: float = 0.5

    _code: ClassVar[Code] = Code.AUTOCONTRAST


@dataclasses.dataclass(frozen=True)
class RandomPosterize(_RandomColour):
    """Keep the most significant bits of each value with probability p.

    Args:
      bits: number of high bits to keep, from 0 to 8.
    Parameter of an image: apply bool.
    Raises: TypeError, as torchvision, unless bits is an integer from 0 to 8.

    >>> from jaxkern.image import RandomPosterize
    >>> RandomPosterize(bits=2).bits
    2
    """

    bits: int
    p: float = 0.5

    _code: ClassVar[Code] = Code.POSTERIZE

    def __post_init__(self) -> None:
        super().__post_init__()
        bits = as_int(self.bits)
        if bits is None or not 0 <= bits <= 8:
            raise TypeError(checks.unexpected("bits", "an integer from 0 to 8", self.bits))
        set_fields(self, bits=bits)

    def _values(self) -> tuple[float, ...]:
        return (float(self.bits),)


@dataclasses.dataclass(frozen=True)
class RandomSolarize(_RandomColour):
    """Invert values from a threshold up, with probability p.

    Args:
      threshold: in the images' values: a level of uint8 images, 0 to 1 of float images.
    Parameter of an image: apply bool.
    Raises: TypeError, as torchvision, if the threshold is not a number or is above 255; ValueError
    if it is not finite.

    >>> from jaxkern.image import RandomSolarize
    >>> RandomSolarize(threshold=128).threshold
    128.0
    """

    threshold: float
    p: float = 0.5

    _code: ClassVar[Code] = Code.SOLARIZE

    def __post_init__(self) -> None:
        super().__post_init__()
        message = checks.unexpected(
            "threshold", "a finite number, at most 255 of uint8 and 1 of floats", self.threshold
        )
        if not isinstance(self.threshold, numbers.Real) or self.threshold > 255:
            raise TypeError(message)
        if not math.isfinite(self.threshold):
            raise ValueError(message)
        set_fields(self, threshold=float(self.threshold))

    def _values(self) -> tuple[float, ...]:
        return (self.threshold, 1.0)


@dataclasses.dataclass(frozen=True)
class RandomAdjustSharpness(_RandomColour):
    """Blend an image with its 3 x 3 smoothed version with probability p.

    Args:
      sharpness_factor: 0 smooths, 1 changes nothing, 2 sharpens.
    Parameter of an image: apply bool.
    Raises: ValueError for a factor that is negative or not finite.

    >>> from jaxkern.image import RandomAdjustSharpness
    >>> RandomAdjustSharpness(2).sharpness_factor
    2.0
    """

    sharpness_factor: float
    p: float = 0.5

    _code: ClassVar[Code] = Code.SHARPNESS

    def __post_init__(self) -> None:
        super().__post_init__()
        factor = checks.number(self.sharpness_factor, "sharpness_factor", "from 0")
        if not (math.isfinite(factor) and factor >= 0):
            raise ValueError(checks.unexpected("sharpness_factor", "a number from 0", factor))
        set_fields(self, sharpness_factor=factor)

    def _values(self) -> tuple[float, ...]:
        return (self.sharpness_factor, 1.0 - self.sharpness_factor)


@dataclasses.dataclass(frozen=True)
class RandomChannelPermutation(ColourTransform):
    """Permute the three colours of an image at random; alpha is unchanged.

    Parameter of an image: permutation i32 [3], the source of each channel.

    >>> from jaxkern.image import RandomChannelPermutation
    >>> RandomChannelPermutation().parameters
    {'permutation': 'int[3]'}
    """

    parameters: ClassVar[dict[str, str]] = {"permutation": "int[3]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"permutation": jax.random.permutation(key, 3).astype(jnp.int32)}

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        return [_permute(params)]


def _permute(params: dict[str, Any], apply: Any = True) -> Step:
    order = jnp.asarray(params["permutation"], jnp.int32)
    return program_step(Code.PERMUTE, *(order[:, c] for c in range(3)), apply=apply)


_JITTERS = {
    "brightness": Code.BRIGHTNESS,
    "contrast": Code.CONTRAST,
    "saturation": Code.SATURATION,
    "hue": Code.HUE,
}


def _factor_range(value: Any, name: str, centre: float, limit: float) -> Any:
    """Return (low, high) of a factor, as torchvision reads it; None if it changes nothing."""
    if value is None:
        return None
    low = 0.0 if centre else -limit
    bounds = f"from {low:g} to {limit:g}"
    message = checks.unexpected(name, f"a number from 0 or two increasing ones {bounds}", value)
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        reach = float(value)
        if not reach >= 0:
            raise ValueError(message)
        ends = (max(centre - reach, 0.0) if centre else -reach, centre + reach)
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        ends = (checks.number(value[0], name, bounds), checks.number(value[1], name, bounds))
    else:
        raise TypeError(message)
    if not (low <= ends[0] <= ends[1] <= limit and math.isfinite(ends[1])):
        raise ValueError(message)
    return None if ends == (centre, centre) else ends


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
    Raises: ValueError for numbers below 0, hues beyond 1/2 and decreasing ends; TypeError for
    other types.

    >>> from jaxkern.image import ColorJitter
    >>> ColorJitter(brightness=0.4, hue=0.1).brightness
    (0.6, 1.4)
    """

    brightness: Any = None
    contrast: Any = None
    saturation: Any = None
    hue: Any = None

    parameters: ClassVar[dict[str, str]] = {**dict.fromkeys(_JITTERS, "float"), "order": "int[4]"}

    def __post_init__(self) -> None:
        for name in _JITTERS:
            centre, limit = (0.0, 0.5) if name == "hue" else (1.0, math.inf)
            set_fields(self, **{name: _factor_range(getattr(self, name), name, centre, limit)})

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        order, *keys = jax.random.split(key, 5)
        order = jax.random.permutation(order, 4).astype(jnp.int32)
        return {**_sample_factors(self, keys), "order": order}

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        used = tuple(code for name, code in _JITTERS.items() if getattr(self, name) is not None)
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
    Raises: as `ColorJitter`.

    >>> from jaxkern.image import RandomPhotometricDistort
    >>> RandomPhotometricDistort().hue
    (-0.05, 0.05)
    """

    brightness: Any = (0.875, 1.125)
    contrast: Any = (0.5, 1.5)
    saturation: Any = (0.5, 1.5)
    hue: Any = (-0.05, 0.05)
    p: float = 0.5

    parameters: ClassVar[dict[str, str]] = {
        **dict.fromkeys(_JITTERS, "float"),
        "contrast_before": "bool",
        "permutation": "int[3]",
        "apply": "bool[5]",
    }

    def __post_init__(self) -> None:
        for name in _JITTERS:
            ends = getattr(self, name)
            if isinstance(ends, numbers.Real):
                raise TypeError(checks.unexpected(name, "two increasing numbers", ends))
            centre, limit = (0.0, 0.5) if name == "hue" else (1.0, math.inf)
            ends = _factor_range(ends, name, centre, limit)
            set_fields(self, **{name: ends or (centre, centre)})
        set_fields(self, p=checks.probability(self.p))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        order, chance, before, *keys = jax.random.split(key, 7)
        return {
            **_sample_factors(self, keys),
            "contrast_before": jax.random.uniform(before, dtype=jnp.float32) < 0.5,
            "permutation": jax.random.permutation(order, 3).astype(jnp.int32),
            "apply": jax.random.uniform(chance, (5,), jnp.float32) < self.p,
        }

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
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
