"""Transforms of colours by one operation: grayscale, tables of levels, sharpness, channels."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.program.program import (
    Code,
    ProgramStep,
    Step,
    blended,
    drawn_codes,
    step_values,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.transform import Size, Stage, Transform, set_fields


class OfColours(Transform):
    """Changes colours by operations of a program."""

    stage: ClassVar[Stage] = "program"
    of_unit_values: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Grayscale(OfColours):
    """0.2989 R + 0.587 G + 0.114 B, which bytes floor, in one channel or in three.

    Args:
      num_output_channels: 1 or 3. Alpha stays beside 3.
    Raises: ValueError for another number, and in `apply` where 1 would leave two channels.

    >>> from jaxkern.image import Compose, Grayscale
    >>> import numpy as np
    >>> Compose([Grayscale()]).apply(np.full((1, 2, 2, 3), 7, np.uint8)).shape
    (1, 2, 2, 1)
    """

    num_output_channels: int = 1

    def __post_init__(self) -> None:
        if checks.whole(self.num_output_channels, "num_output_channels") not in (1, 3):
            raise ValueError(f"num_output_channels={self.num_output_channels!r}; wanted 1 or 3")

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        del params, size
        return [(np.int32(Code.GRAYSCALE), step_values(), ProgramStep((Code.GRAYSCALE,)))]

    def _channels(self, channels: int) -> int:
        if channels == 4 and self.num_output_channels == 1:
            raise ValueError(
                "the images have 4 channels, of which Grayscale(1) would leave gray and alpha; "
                "wanted Grayscale(3), or images without alpha"
            )
        return max(channels, 3) if self.num_output_channels == 3 else 1


class _RandomColour(OfColours):
    """One operation with probability p."""

    p: float

    parameters: ClassVar[dict[str, str]] = {"apply": "bool"}
    _code: ClassVar[Code]

    def __post_init__(self) -> None:
        set_fields(self, p=checks.probability(self.p))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws whether one image is changed."""
        del size
        return {"apply": jax.random.uniform(key, dtype=jnp.float32) < self.p}

    def _given(self) -> tuple[float, ...]:
        """The operation's values."""
        return ()

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        del size
        code = drawn_codes(params["apply"], self._code)
        return [(code, step_values(*self._given()), ProgramStep((self._code,)))]


@dataclasses.dataclass(frozen=True)
class RandomGrayscale(_RandomColour):
    """Makes an image gray, in all its channels, with probability p. Parameter an image: apply bool.

    >>> from jaxkern.image import RandomGrayscale
    >>> RandomGrayscale().p
    0.1
    """

    p: float = 0.1

    _code: ClassVar[Code] = Code.GRAYSCALE


@dataclasses.dataclass(frozen=True)
class RandomInvert(_RandomColour):
    """255 - x, or 1 - x of floats, with probability p. Parameter an image: apply bool.

    >>> from jaxkern.image import RandomInvert
    >>> RandomInvert(p=1.0).p
    1.0
    """

    p: float = 0.5

    _code: ClassVar[Code] = Code.INVERT


@dataclasses.dataclass(frozen=True)
class RandomEqualize(_RandomColour):
    """Equalizes each channel's histogram with probability p, as Pillow does; floats in 256 levels.

    Parameter an image: apply bool.

    >>> from jaxkern.image import RandomEqualize
    >>> RandomEqualize().p
    0.5
    """

    p: float = 0.5

    _code: ClassVar[Code] = Code.EQUALIZE


@dataclasses.dataclass(frozen=True)
class RandomAutocontrast(_RandomColour):
    """Spreads each channel over all values with probability p; one that is constant stays.

    Parameter an image: apply bool.

    >>> from jaxkern.image import RandomAutocontrast
    >>> RandomAutocontrast().p
    0.5
    """

    p: float = 0.5

    _code: ClassVar[Code] = Code.AUTOCONTRAST


@dataclasses.dataclass(frozen=True)
class RandomPosterize(_RandomColour):
    """Keeps the top bits of each value with probability p.

    Args:
      bits: from 0 to 8.
    Parameter an image: apply bool.
    Raises: TypeError for bits that are no integer from 0 to 8, as torchvision.

    >>> from jaxkern.image import RandomPosterize
    >>> RandomPosterize(bits=2).bits
    2
    """

    bits: int
    p: float = 0.5

    _code: ClassVar[Code] = Code.POSTERIZE

    def __post_init__(self) -> None:
        super().__post_init__()
        bits = self.bits
        if not isinstance(bits, numbers.Integral) or isinstance(bits, bool) or not 0 <= bits <= 8:
            raise TypeError(f"bits={bits!r}; wanted an integer from 0 to 8")
        set_fields(self, bits=int(bits))

    def _given(self) -> tuple[float, ...]:
        return (float(self.bits),)


@dataclasses.dataclass(frozen=True)
class RandomSolarize(_RandomColour):
    """Inverts what is from a threshold up, with probability p.

    Args:
      threshold: in the images' own values: a level of bytes, a number from 0 to 1 of floats.
    Parameter an image: apply bool.
    Raises: TypeError for what is no number or above 255, as torchvision; ValueError where it is not
    finite.

    >>> from jaxkern.image import RandomSolarize
    >>> RandomSolarize(threshold=128).threshold
    128.0
    """

    threshold: float
    p: float = 0.5

    _code: ClassVar[Code] = Code.SOLARIZE

    def __post_init__(self) -> None:
        super().__post_init__()
        wanted = "a number, at most 255 of bytes and 1 of floats"
        if not isinstance(self.threshold, numbers.Real) or self.threshold > 255:
            raise TypeError(f"threshold={self.threshold!r}; wanted {wanted}")
        if not math.isfinite(self.threshold):
            raise ValueError(f"threshold={self.threshold!r}; wanted {wanted}")
        set_fields(self, threshold=float(self.threshold))

    def _given(self) -> tuple[float, ...]:
        return (self.threshold, 1.0)


@dataclasses.dataclass(frozen=True)
class RandomAdjustSharpness(_RandomColour):
    """Blends an image with its 3 x 3 smoothed self with probability p.

    Args:
      sharpness_factor: 0 smooths, 1 changes nothing, 2 sharpens.
    Parameter an image: apply bool.
    Raises: ValueError for a factor below 0 or not finite.

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
            raise ValueError(f"sharpness_factor={self.sharpness_factor!r}; wanted a number from 0")
        set_fields(self, sharpness_factor=factor)

    def _given(self) -> tuple[float, ...]:
        return (self.sharpness_factor, 1.0 - self.sharpness_factor)


@dataclasses.dataclass(frozen=True)
class RandomChannelPermutation(OfColours):
    """Puts the three colours of an image in a random order; alpha stays.

    Parameter an image: permutation i32 [3], where each channel of the result comes from.

    >>> from jaxkern.image import RandomChannelPermutation
    >>> RandomChannelPermutation().parameters
    {'permutation': 'int[3]'}
    """

    parameters: ClassVar[dict[str, str]] = {"permutation": "int[3]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws an order."""
        del size
        return {"permutation": jax.random.permutation(key, 3).astype(jnp.int32)}

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        del size
        order = jnp.asarray(params["permutation"], jnp.int32)
        values = step_values(*(order[:, c] for c in range(3)))
        return [(np.int32(Code.PERMUTE), values, ProgramStep((Code.PERMUTE,)))]


_JITTERS = (Code.BRIGHTNESS, Code.CONTRAST, Code.SATURATION, Code.HUE)
_JITTER_NAMES = ("brightness", "contrast", "saturation", "hue")


def _factor_range(value: Any, name: str, centre: float, limit: float) -> Any:
    """(low, high) of a factor, as torchvision reads it; None where nothing changes."""
    if value is None:
        return None
    low = 0.0 if centre else -limit
    bounds = f"from {low:g}" + ("" if math.isinf(limit) else f" to {limit:g}")
    wanted = f"a number from 0 or two increasing ones {bounds}"
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        reach = float(value)
        if not reach >= 0:
            raise ValueError(f"{name}={value!r}; wanted {wanted}")
        found = (max(centre - reach, 0.0) if centre else -reach, centre + reach)
    elif isinstance(value, Sequence) and not isinstance(value, str) and len(value) == 2:
        found = (checks.number(value[0], name, bounds), checks.number(value[1], name, bounds))
    else:
        raise TypeError(f"{name}={value!r}; wanted {wanted}")
    if not (low <= found[0] <= found[1] <= limit and math.isfinite(found[1])):
        raise ValueError(f"{name}={value!r}; wanted {wanted}")
    return None if found == (centre, centre) else found


def _uniform(key: jax.Array, bounds: tuple[float, float] | None, centre: float) -> jax.Array:
    if bounds is None:
        return jnp.asarray(centre, jnp.float32)
    return jax.random.uniform(key, (), jnp.float32, bounds[0], bounds[1])


@dataclasses.dataclass(frozen=True)
class ColorJitter(OfColours):
    """Changes brightness, contrast, saturation and hue by random factors, in random order.

    Args:
      brightness, contrast, saturation: a number b for factors uniform in [max(0, 1 - b), 1 + b], or
        the two ends; None, or factors that are all 1, for none of it.
      hue: a number h for shifts uniform in [-h, h] turns, or the two ends; within 1/2.
    Parameters an image: brightness, contrast, saturation, hue f32; order i32 [4], where 0 to 3 are
    those in this order of names. One that is None is not applied, whatever its parameter.
    Raises: ValueError for numbers below 0, hues beyond 1/2, decreasing ends; TypeError for others.

    >>> from jaxkern.image import ColorJitter
    >>> ColorJitter(brightness=0.4, hue=0.1).brightness
    (0.6, 1.4)
    """

    brightness: Any = None
    contrast: Any = None
    saturation: Any = None
    hue: Any = None

    parameters: ClassVar[dict[str, str]] = {
        **dict.fromkeys(_JITTER_NAMES, "float"),
        "order": "int[4]",
    }

    def __post_init__(self) -> None:
        for name in _JITTER_NAMES[:3]:
            set_fields(self, **{name: _factor_range(getattr(self, name), name, 1.0, math.inf)})
        set_fields(self, hue=_factor_range(self.hue, "hue", 0.0, 0.5))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws the factors and their order."""
        del size
        order, *keys = jax.random.split(key, 5)
        drawn = {
            name: _uniform(key, getattr(self, name), 0.0 if name == "hue" else 1.0)
            for name, key in zip(_JITTER_NAMES, keys, strict=True)
        }
        return {**drawn, "order": jax.random.permutation(order, 4).astype(jnp.int32)}

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        del size
        used = tuple(
            code
            for code, name in zip(_JITTERS, _JITTER_NAMES, strict=True)
            if getattr(self, name) is not None
        )
        if not used:
            return []
        of_blend = [blended(params[name]) for name in _JITTER_NAMES[:3]]
        of_each = jnp.stack(
            jnp.broadcast_arrays(*of_blend, step_values(params["hue"])), axis=1
        )  # [N or 1, 4, VALUES]
        order = jnp.asarray(params["order"], jnp.int32)
        steps: list[Step] = []
        for place in range(4):
            code = order[:, place]
            known = (code >= 0) & (code < 4)
            code = jnp.where(known, code, np.int32(Code.NONE))
            rows = jnp.broadcast_to(of_each, (code.shape[0], *of_each.shape[1:]))
            values = jnp.zeros_like(rows[:, 0])
            for k in range(4):
                values = jnp.where((code == k)[:, None], rows[:, k], values)
            steps.append((code, values, ProgramStep(used)))
        return steps


@dataclasses.dataclass(frozen=True)
class RandomPhotometricDistort(OfColours):
    """The distortions of SSD: brightness, contrast, saturation, hue and channels, each by chance.

    Contrast comes before saturation and hue, or behind them.

    Args:
      brightness, contrast, saturation: the ends of factors.
      hue: those of shifts, in turns, within 1/2.
      p: the probability of each.
    Parameters an image: brightness, contrast, saturation, hue f32; contrast_before bool;
    permutation i32 [3]; apply bool [5], of these in the order of names.
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
        **dict.fromkeys(_JITTER_NAMES, "float"),
        "contrast_before": "bool",
        "permutation": "int[3]",
        "apply": "bool[5]",
    }

    def __post_init__(self) -> None:
        for name in _JITTER_NAMES:
            ends = getattr(self, name)
            if isinstance(ends, numbers.Real):
                raise TypeError(f"{name}={ends!r}; wanted two increasing numbers")
            centre, limit = (0.0, 0.5) if name == "hue" else (1.0, math.inf)
            found = _factor_range(ends, name, centre, limit)
            set_fields(self, **{name: found or (centre, centre)})
        set_fields(self, p=checks.probability(self.p))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws what is done to one image."""
        del size
        order, chance, before, *keys = jax.random.split(key, 7)
        drawn = {
            name: _uniform(key, getattr(self, name), 0.0)
            for name, key in zip(_JITTER_NAMES, keys, strict=True)
        }
        return {
            **drawn,
            "contrast_before": jax.random.uniform(before, dtype=jnp.float32) < 0.5,
            "permutation": jax.random.permutation(order, 3).astype(jnp.int32),
            "apply": jax.random.uniform(chance, (5,), jnp.float32) < self.p,
        }

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        del size
        apply = jnp.asarray(params["apply"])
        first = jnp.atleast_1d(jnp.asarray(params["contrast_before"]))
        order = jnp.asarray(params["permutation"], jnp.int32)

        def step(code: Code, given: Any, chosen: Any) -> Step:
            return (drawn_codes(chosen, code), given, ProgramStep((code,)))

        contrast = blended(params["contrast"])
        return [
            step(Code.BRIGHTNESS, blended(params["brightness"]), apply[:, 0]),
            step(Code.CONTRAST, contrast, apply[:, 1] & first),
            step(Code.SATURATION, blended(params["saturation"]), apply[:, 2]),
            step(Code.HUE, step_values(params["hue"]), apply[:, 3]),
            step(Code.CONTRAST, contrast, apply[:, 1] & ~first),
            step(Code.PERMUTE, step_values(*(order[:, c] for c in range(3))), apply[:, 4]),
        ]
