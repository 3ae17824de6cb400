"""Transforms of values: conversion, normalization, erasing, and mixing of images."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.fold import ChainBuilder, clip_box
from jaxkern.image.chain.plan import checked_dtype
from jaxkern.image.program.program import (
    Code,
    ProgramStep,
    Step,
    codes_where,
    sample_seed,
    values_with_seed,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.transform import (
    BOX,
    TRIES,
    Kind,
    Size,
    Transform,
    as_number,
    sample_box_sizes,
    set_fields,
    uniform_below,
)


@dataclasses.dataclass(frozen=True)
class ToDtype(Transform):
    """Convert the dtype; with `scale`, levels 0..255 correspond to floats 0..1.

    uint8 to float is x / 255. Float to uint8 is trunc(x * 255.999), clamped to 0..255. Without
    `scale` values are not multiplied; float to uint8 truncates and clamps. Between transforms
    values are float32 for every `dtype` except uint8, which rounds.

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

    kind: ClassVar[Kind] = "chain"

    def __post_init__(self) -> None:
        try:
            dtype = np.dtype(self.dtype)
        except TypeError as error:
            raise TypeError(checks.unexpected("dtype", "a dtype", self.dtype)) from error
        checked_dtype(dtype)
        set_fields(self, dtype=dtype, scale=bool(self.scale))

    def __repr__(self) -> str:
        return f"ToDtype(dtype={self.dtype.name!r}, scale={self.scale})"

    @property
    def linear(self) -> bool:  # type: ignore[override]
        return self.dtype != np.uint8  # type: ignore[no-any-return]

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        if self.dtype == np.uint8:
            chain.to_u8(self.scale)
        else:
            chain.to_float(self.scale)


@dataclasses.dataclass(frozen=True)
class Normalize(Transform):
    """Compute (x - mean) / std per channel.

    uint8 levels become x / 255 first, unless the chain has `scale=False`.

    Args:
      mean, std: a number or one per channel; traced arrays are allowed and differentiable.
    Raises: ValueError for a std of 0, values that are not finite, and lengths that do not match.

    >>> from jaxkern.image import Normalize
    >>> Normalize([0.5, 0.5, 0.5], 0.25).std
    (0.25,)
    """

    mean: Any
    std: Any

    kind: ClassVar[Kind] = "chain"
    linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        mean, std = checks.per_channel(self.mean, "mean"), checks.per_channel(self.std, "std")
        if isinstance(std, tuple) and 0.0 in std:
            raise ValueError(checks.unexpected("std", "numbers other than 0", self.std))
        lengths = {int(np.size(value)) for value in (mean, std)} - {1}
        if len(lengths) > 1:
            raise ValueError(
                f"mean and std: expected equal lengths, got {np.size(mean)} and {np.size(std)}"
            )
        set_fields(self, mean=mean, std=std)

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        mean, std = chain.values(self.mean, "mean"), chain.values(self.std, "std")
        chain.to_float(chain.scale)
        chain.affine(1.0 / std, -mean / std)


@dataclasses.dataclass(frozen=True)
class RandomErasing(Transform):
    """Paint a random box with a constant, or with normal noise, with probability p.

    Ten boxes are drawn with area uniform in `scale` (fractions of the image's area) and log aspect
    ratio uniform in log `ratio`. The first that is smaller than the image in both directions is
    used; if no box is, nothing is erased.

    Args:
      value: a number, or one per channel, in the value space at this position of the chain; or
        "random": a normal number per value, for images after a `Normalize` (levels are truncated
        and clamped).
    Parameters of an image: top, left, height, width i32 and erase bool; with "random" also seed
    int32 [2], any numbers.
    Raises: ValueError for p outside [0, 1], invalid ranges, and other strings.

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
        """The box, a flag to erase it, and the seed of noise."""
        return {**BOX, "erase": "bool", **({"seed": "int[2]"} if self._random else {})}

    @property
    def kind(self) -> Kind:  # type: ignore[override]
        """A program paints noise; a chain paints constants."""
        return "program" if self._random else "chain"

    @property
    def _random(self) -> bool:
        return isinstance(self.value, str)

    def __post_init__(self) -> None:
        if self._random and self.value != "random":
            raise ValueError(
                checks.unexpected("value", "a number, one per channel, or 'random'", self.value)
            )
        scale = checks.interval(self.scale, "scale", 0.0, open_low=False)
        if scale[1] > 1.0:
            raise ValueError(checks.unexpected("scale", "fractions up to 1", self.scale))
        set_fields(
            self,
            p=checks.probability(self.p),
            scale=scale,
            ratio=checks.interval(self.ratio, "ratio", 0.0, open_low=True),
            value="random" if self._random else checks.per_channel(self.value, "value"),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        height, width = (jnp.asarray(side, jnp.int32) for side in size)
        fractions = jax.random.uniform(key, (TRIES + 2, 2), jnp.float32)
        tried_h, tried_w = sample_box_sizes(fractions[:TRIES], size, self.scale, self.ratio)
        fits = (tried_h < height) & (tried_w < width)
        first = jnp.argmax(fits)
        box_h = jnp.minimum(tried_h[first], height)
        box_w = jnp.minimum(tried_w[first], width)
        position, chance = fractions[TRIES], fractions[TRIES + 1, 0]
        seed = {"seed": sample_seed(jax.random.fold_in(key, 1))} if self._random else {}
        return {
            "top": uniform_below(position[0], height - box_h + 1),
            "left": uniform_below(position[1], width - box_w + 1),
            "height": box_h,
            "width": box_w,
            "erase": fits[first] & (chance < self.p),
            **seed,
        }

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        height = params["height"] * as_number(params["erase"])
        box = (params["top"], params["left"], height, params["width"])
        chain.erase(box, chain.values(self.value, "value"))

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        """Return the step that paints noise, or a constant within a container."""
        if isinstance(self.value, jax.Array):
            raise TypeError(
                "value: expected numbers, since they are static in a program, got a traced array"
            )
        seed = params["seed"] if self._random else np.zeros((1, 2), np.int32)
        box = (params[name] for name in BOX)
        fill = (math.nan,) if self._random else self.value
        static = ProgramStep((Code.ERASE,), fill=fill)
        return [(codes_where(params["erase"], Code.ERASE), values_with_seed(seed, *box), static)]


@dataclasses.dataclass(frozen=True)
class _Mix(Transform):
    alpha: float = 1.0
    per_sample: bool = False

    kind: ClassVar[Kind] = "batch"

    def __post_init__(self) -> None:
        alpha = checks.positive(self.alpha, "alpha")
        set_fields(self, alpha=alpha, per_sample=bool(self.per_sample))


@dataclasses.dataclass(frozen=True)
class MixUp(_Mix):
    """Compute lam * image + (1 - lam) * previous image of the batch, also for labels.

    Args:
      alpha: lam is drawn from Beta(alpha, alpha).
      per_sample: draw one lam per image; otherwise one per batch, from the first record's key.
    Parameter of an image: lam f32.
    Raises: ValueError for an alpha that is not above 0.

    >>> from jaxkern.image import MixUp
    >>> MixUp(alpha=0.2).per_sample
    False
    """

    parameters: ClassVar[dict[str, str]] = {"lam": "float"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"lam": jax.random.beta(key, self.alpha, self.alpha, dtype=jnp.float32)}

    def mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        return params["lam"], np.zeros((1, 4), np.int32), params["lam"]


@dataclasses.dataclass(frozen=True)
class CutMix(_Mix):
    """Paste a box of the previous image of the batch; labels are mixed by the box's area.

    The sides of the box are sqrt(1 - lam) of the image's. Its centre is uniform, and it is clipped
    to the image. Then lam is 1 - (clipped area) / (image area), computed in `sample` and again in
    `apply`, so that pixels and labels always agree.

    Args:
      alpha: lam is drawn from Beta(alpha, alpha).
      per_sample: draw one box per image; otherwise one per batch, from the first record's key.
    Parameters of an image: lam f32; top, left, height, width i32.
    Raises: ValueError for an alpha that is not above 0.

    >>> from jaxkern.image import CutMix
    >>> CutMix(alpha=1.0).alpha
    1.0
    """

    parameters: ClassVar[dict[str, str]] = {"lam": "float", **BOX}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
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

    def mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        top, left, height, width = (jnp.atleast_1d(params[name]) for name in BOX)
        top, left, height, width = clip_box((top, left, height, width), size)
        share = _share(height, width, size)
        clipped = jnp.stack(jnp.broadcast_arrays(top, left, height, width), axis=-1)
        return np.ones(1, np.float32), clipped.astype(jnp.int32), 1.0 - share


def _share(height: Any, width: Any, size: tuple[int, int]) -> Any:
    """Return a box's fraction of the image, in float32: the number of pixels may leave int32."""
    return height.astype(jnp.float32) * width.astype(jnp.float32) / float(size[0] * size[1])
