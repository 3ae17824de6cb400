"""Transforms that change values in place: conversion, normalization, erasing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Dtype, dtype_code
from jaxkern.image.program.program import Code, ProgramStep, Step, drawn_codes, drawn_seed, with_key
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.transform import (
    TRIES,
    Size,
    Stage,
    Transform,
    as_number,
    drawn_sizes,
    set_fields,
    uniform_below,
)


@dataclasses.dataclass(frozen=True)
class ToDtype(Transform):
    """Converts the values' type; with `scale`, u8 levels 0..255 and floats 0..1 correspond.

    u8 to float is x / 255; float to u8 is trunc(x * 255.999), clamped to 0..255. Without `scale`
    values keep their size (float to u8: truncated and clamped). Between transforms values are
    float32 whatever `dtype` says, but for uint8, which rounds.

    Args:
      dtype: uint8, float16, bfloat16 or float32.
    Raises: TypeError for other dtypes.

    >>> import jax.numpy as jnp
    >>> from jaxkern.image import ToDtype
    >>> ToDtype(jnp.float32, scale=True).dtype
    dtype('float32')
    """

    dtype: Any
    scale: bool = False

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise TypeError(f"dtype={self.dtype!r} is not a dtype") from error
        if dtype_code(dtype) is None:
            raise TypeError(f"dtype={dtype.name}; wanted uint8, float16, bfloat16 or float32")
        set_fields(self, dtype=dtype, scale=bool(self.scale))

    def __repr__(self) -> str:
        return f"ToDtype(dtype={self.dtype.name!r}, scale={self.scale})"

    @property
    def linear(self) -> bool:  # type: ignore[override]
        """Whether it is an affine map of values: uint8 rounds."""
        return dtype_code(self.dtype) is not Dtype.U8

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        if dtype_code(self.dtype) is Dtype.U8:
            chain.to_u8(self.scale)
        else:
            chain.to_float(self.scale)


@dataclasses.dataclass(frozen=True)
class Normalize(Transform):
    """(x - mean) / std per channel; u8 levels become x / 255 first (unless Compose(scale=False)).

    Args:
      mean, std: a number or one a channel; traced arrays are allowed and carry gradients.
    Raises: ValueError for a std of 0, values that are not finite, lengths that do not match.

    >>> from jaxkern.image import Normalize
    >>> Normalize([0.5, 0.5, 0.5], 0.25).std
    (0.25,)
    """

    mean: Any
    std: Any

    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        mean, std = checks.per_channel(self.mean, "mean"), checks.per_channel(self.std, "std")
        if isinstance(std, tuple) and 0.0 in std:
            raise ValueError(f"std={self.std!r} holds a 0; every channel's std must differ from 0")
        lengths = {int(np.size(value)) for value in (mean, std)} - {1}
        if len(lengths) > 1:
            raise ValueError(
                f"mean has {np.size(mean)} values and std {np.size(std)}; wanted one per channel"
            )
        set_fields(self, mean=mean, std=std)

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        mean, std = chain.values(self.mean, "mean"), chain.values(self.std, "std")
        chain.to_float(chain.scale)
        chain.affine(1.0 / std, -mean / std)


@dataclasses.dataclass(frozen=True)
class RandomErasing(Transform):
    """Paints a random box with a constant, or with normal noise, with probability p.

    Ten boxes are drawn with area uniform in `scale` (shares of the image's area) and log aspect
    ratio uniform in log `ratio`; the first smaller than the image in both directions is taken,
    else nothing is erased.

    Args:
      value: a number, or one a channel, in the value space at this point of the chain; "random":
        normal numbers, another one for each value, which are for images that a Normalize made
        (levels would be truncated and clamped).
    Parameters an image: top, left, height, width i32 and erase bool; with "random" also seed
    int32 [2], any numbers.
    Raises: ValueError for p outside [0, 1], bad ranges, and other words.

    >>> from jaxkern.image import RandomErasing
    >>> RandomErasing(0.25).scale
    (0.02, 0.33)
    """

    p: float = 0.5
    scale: Any = (0.02, 0.33)
    ratio: Any = (0.3, 3.3)
    value: Any = 0

    @property
    def parameters(self) -> dict[str, str]:  # type: ignore[override]
        """The box, whether it is erased, and of noise its seed."""
        box = dict.fromkeys(("top", "left", "height", "width"), "int")
        return {**box, "erase": "bool", **({"seed": "int[2]"} if self._random else {})}

    @property
    def stage(self) -> Stage:  # type: ignore[override]
        """Noise is made by a program; constants join a chain."""
        return "program" if self._random else "image"

    @property
    def _random(self) -> bool:
        return isinstance(self.value, str)

    def __post_init__(self) -> None:
        if self._random and self.value != "random":
            raise ValueError(f"value={self.value!r}; wanted a number, one per channel, or 'random'")
        scale = checks.interval(self.scale, "scale", 0.0, open_low=False)
        if scale[1] > 1.0:
            raise ValueError(f"scale={self.scale!r}; wanted shares of the area, at most 1")
        set_fields(
            self,
            p=checks.probability(self.p),
            scale=scale,
            ratio=checks.interval(self.ratio, "ratio", 0.0, open_low=True),
            value="random" if self._random else checks.per_channel(self.value, "value"),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one box within an image of `size`, and whether it is erased."""
        height, width = (jnp.asarray(side, jnp.int32) for side in size)
        fractions = jax.random.uniform(key, (TRIES + 2, 2), jnp.float32)
        tried_h, tried_w = drawn_sizes(fractions[:TRIES], size, self.scale, self.ratio)
        fits = (tried_h < height) & (tried_w < width)
        first = jnp.argmax(fits)
        box_h = jnp.minimum(tried_h[first], height)
        box_w = jnp.minimum(tried_w[first], width)
        place, chance = fractions[TRIES], fractions[TRIES + 1, 0]
        seed = {"seed": drawn_seed(jax.random.fold_in(key, 1))} if self._random else {}
        return {
            "top": uniform_below(place[0], height - box_h + 1),
            "left": uniform_below(place[1], width - box_w + 1),
            "height": box_h,
            "width": box_w,
            "erase": fits[first] & (chance < self.p),
            **seed,
        }

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        height = params["height"] * as_number(params["erase"])
        box = (params["top"], params["left"], height, params["width"])
        chain.erase(box, chain.values(self.value, "value"))

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        """Of noise; and within a container that draws what is done, of constants too."""
        del size
        if isinstance(self.value, jax.Array):
            raise TypeError("value is traced, but a compiled program holds it; give numbers")
        seed = params["seed"] if self._random else np.zeros((1, 2), np.int32)
        box = (params[name] for name in ("top", "left", "height", "width"))
        fill = (math.nan,) if self._random else self.value
        return [
            (
                drawn_codes(params["erase"], Code.ERASE),
                with_key(seed, *box),
                ProgramStep((Code.ERASE,), fill=fill),
            )
        ]


@dataclasses.dataclass(frozen=True)
class MixUp(Transform):
    """lam * image + (1 - lam) * previous image of the batch; labels alike.

    Args:
      alpha: lam is drawn from Beta(alpha, alpha).
      per_sample: draw one lam an image; otherwise one a batch, from the first record's key.
    Parameter an image: lam f32.
    Raises: ValueError for an alpha that is not above 0.

    >>> from jaxkern.image import MixUp
    >>> MixUp(alpha=0.2).per_sample
    False
    """

    alpha: float = 1.0
    per_sample: bool = False

    stage: ClassVar[Stage] = "batch"
    parameters: ClassVar[dict[str, str]] = {"lam": "float"}

    def __post_init__(self) -> None:
        set_fields(
            self, alpha=checks.positive(self.alpha, "alpha"), per_sample=bool(self.per_sample)
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one lam."""
        return {"lam": jax.random.beta(key, self.alpha, self.alpha, dtype=jnp.float32)}

    def _mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        return params["lam"], np.zeros((1, 4), np.int32), params["lam"]


@dataclasses.dataclass(frozen=True)
class CutMix(Transform):
    """Pastes a box of the previous image of the batch; labels follow the box's share.

    The box has sides sqrt(1 - lam) of the image's and a uniform centre, and is clipped to the
    image; lam is then 1 - (clipped area) / (image area), in `sample` and again in `apply`, so that
    pixels and labels always agree.

    Args:
      alpha: lam is drawn from Beta(alpha, alpha).
      per_sample: draw one box an image; otherwise one a batch, from the first record's key.
    Parameters an image: lam f32; top, left, height, width i32.
    Raises: ValueError for an alpha that is not above 0.

    >>> from jaxkern.image import CutMix
    >>> CutMix(alpha=1.0).alpha
    1.0
    """

    alpha: float = 1.0
    per_sample: bool = False

    stage: ClassVar[Stage] = "batch"
    parameters: ClassVar[dict[str, str]] = {
        "lam": "float",
        **dict.fromkeys(("top", "left", "height", "width"), "int"),
    }

    def __post_init__(self) -> None:
        set_fields(
            self, alpha=checks.positive(self.alpha, "alpha"), per_sample=bool(self.per_sample)
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one box, clipped to an image of `size`, and its lam."""
        beta_key, place_key = jax.random.split(key)
        lam = jax.random.beta(beta_key, self.alpha, self.alpha, dtype=jnp.float32)
        fractions = jax.random.uniform(place_key, (2,), jnp.float32)
        half = 0.5 * jnp.sqrt(1.0 - lam)
        box = []
        for fraction, side in zip(fractions, size, strict=True):
            centre = uniform_below(fraction, side)
            reach = jnp.floor(half * side).astype(jnp.int32)
            first, last = jnp.maximum(centre - reach, 0), jnp.minimum(centre + reach, side)
            box.append((first, last - first))
        (top, height), (left, width) = box
        share = _share(height, width, size)
        return {"lam": 1.0 - share, "top": top, "left": left, "height": height, "width": width}

    def _mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        parts = []
        for start, length, side in (
            (params["top"], params["height"], size[0]),
            (params["left"], params["width"], size[1]),
        ):
            start, length = jnp.atleast_1d(start), jnp.atleast_1d(length)
            first = jnp.clip(start, 0, side)
            # Start and length are never added where both are positive: the sum may leave int32.
            inside = jnp.minimum(start, 0) + jnp.maximum(length, 0)
            parts.append((first, jnp.clip(inside, 0, side - first)))
        (top, height), (left, width) = parts
        share = _share(height, width, size)
        box = jnp.stack(jnp.broadcast_arrays(top, left, height, width), axis=-1)
        return np.ones(1, np.float32), box.astype(jnp.int32), 1.0 - share


def _share(height: Any, width: Any, size: tuple[int, int]) -> Any:
    """What part of an image a box takes; in float32, as the number of pixels may leave int32."""
    return height.astype(jnp.float32) * width.astype(jnp.float32) / float(size[0] * size[1])
