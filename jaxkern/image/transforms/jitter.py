"""Transforms of colours by several random factors: jitter, and the distortions of SSD."""

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
from jaxkern.image.transforms.colour import OfColours
from jaxkern.image.transforms.transform import Size, set_fields

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
