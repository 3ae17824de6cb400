"""Transforms of values: conversion, normalization, blur, noise, erasing, and mixing."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Box, per_axis
from jaxkern.image.chain.fold import ChainBuilder, clip_box
from jaxkern.image.chain.plan import checked_dtype
from jaxkern.image.program.program import (
    MAX_KERNEL,
    Code,
    Step,
    program_step,
    sample_seed,
    stacked_step,
    values_with_seed,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.transform import (
    BOX,
    TRIES,
    Params,
    Size,
    Transform,
    as_number,
    box_of,
    sample_box_sizes,
    set_fields,
    uniform_below,
    uniform_between,
)


def _output_dtype(value: Any, name: str) -> np.dtype[Any]:
    try:
        dtype = np.dtype(value)
    except TypeError as error:
        raise TypeError(checks.unexpected(name, "a dtype", value)) from error
    checked_dtype(dtype)
    return dtype


@dataclasses.dataclass(frozen=True)
class ToDtype(Transform):
    """Convert the dtype; with `scale`, levels 0..255 correspond to floats 0..1.

    uint8 to float is x / 255. Float to uint8 is trunc(x * 255.999), clamped to 0..255. Without
    `scale` values are not multiplied; float to uint8 truncates and clamps. Between transforms
    values are float32 for every `dtype` except uint8, which rounds.

    Args:
      dtype: uint8, float16, bfloat16 or float32.

    >>> import jax.numpy as jnp
    >>> ToDtype(jnp.float32, scale=True).dtype
    dtype('float32')
    """

    dtype: Any = checked(_output_dtype)
    scale: bool = checked(checks.flag, False)

    kind = "chain"

    def __repr__(self) -> str:
        return f"ToDtype(dtype={self.dtype.name!r}, scale={self.scale})"

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, linear=self.dtype != np.uint8)

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        if self.dtype == np.uint8:
            chain.to_u8(self.scale)
        else:
            chain.to_float(self.scale)


def _divisors(value: Any, name: str) -> Any:
    divisors = checks.per_channel(value, name)
    if isinstance(divisors, tuple) and 0.0 in divisors:
        raise ValueError(checks.unexpected(name, "numbers other than 0", value))
    return divisors


@dataclasses.dataclass(frozen=True)
class Normalize(Transform):
    """Compute (x - mean) / std per channel.

    uint8 levels become x / 255 first, unless the chain has `scale=False`.

    Args:
      mean, std: a number or one per channel; traced arrays are allowed and differentiable.

    >>> Normalize([0.5, 0.5, 0.5], 0.25).std
    (0.25,)
    """

    mean: Any = checked(checks.per_channel)
    std: Any = checked(_divisors)

    kind = "chain"
    linear = True

    def __post_init__(self) -> None:
        super().__post_init__()
        first, second = np.size(self.mean), np.size(self.std)
        if first != second and 1 not in (first, second):
            raise ValueError(f"mean and std: expected equal lengths, got {first} and {second}")

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        mean, std = chain.values(self.mean, "mean"), chain.values(self.std, "std")
        chain.to_float(chain.scale)
        chain.affine(1.0 / std, -mean / std)


def _odd_sizes(value: Any, name: str) -> tuple[int, int]:
    kernel = checks.size_pair(value, name)
    if not all(size % 2 == 1 and size <= MAX_KERNEL for size in kernel):
        raise ValueError(checks.unexpected(name, f"odd sizes from 1 to {MAX_KERNEL}", value))
    return kernel


_SIGMAS = checks.sequence(1, 2, low=0.0, open_low=True, single=lambda x: (x, x))


@dataclasses.dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blur each image by a Gaussian with sigma uniform in `sigma`.

    Weights are exp(-t^2 / (2 sigma^2)) at integer t, normalized. Edges are reflected without
    repeating the edge pixel.

    Args:
      kernel_size: an odd number of pixels, or (x, y), up to 1023; half of it must be smaller than
        the image.
      sigma: (low, high) in pixels, above 0, or a number.
    Parameter of an image: sigma f32; values not above 0 leave the image unchanged.

    >>> GaussianBlur(23).sigma
    (0.1, 2.0)
    """

    kernel_size: Any = checked(_odd_sizes)
    sigma: Any = checked(_SIGMAS, (0.1, 2.0))

    kind = "program"
    parameters: ClassVar = {"sigma": "number"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"sigma": uniform_between(jax.random.uniform(key, dtype=jnp.float32), *self.sigma)}

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        across, down = self.kernel_size
        if across // 2 >= size[1] or down // 2 >= size[0]:
            raise ValueError(f"GaussianBlur: expected over half of {self.kernel_size}, got {size}")
        return [program_step(Code.BLUR, *[params["sigma"]] * 2, kernel=self.kernel_size)]


@dataclasses.dataclass(frozen=True)
class GaussianNoise(Transform):
    """Add normal noise to each value; alpha is unchanged.

    uint8 images get 255 times the noise, truncated to integer levels, as in torchvision.

    Args:
      mean, sigma: mean and standard deviation of the noise, in units of the largest value of an
        image.
      clip: clip sums to the image's range; without it uint8 wraps.
    Parameter of an image: seed int32 [2], any numbers. Images with equal seeds get equal noise. The
    frames of a clip use consecutive seeds (seed[0], seed[1] + frame).

    >>> GaussianNoise(sigma=0.05).mean
    0.0
    """

    mean: float = checked(checks.finite, 0.0)
    sigma: float = checked(checks.bounded(0.0), 0.1)
    clip: bool = checked(checks.flag, True)

    kind = "program"
    expects_unit_range = True
    parameters: ClassVar = {"seed": "int[2]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"seed": sample_seed(key)}

    def frame_parameters(self, params: Params, frame: Any) -> Params:
        first, second = jnp.moveaxis(jnp.asarray(params["seed"], jnp.int32), -1, 0)
        return {"seed": jnp.stack([first, second + frame], axis=-1)}

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        values = values_with_seed(params["seed"], self.mean, self.sigma, self.clip)
        return [stacked_step(Code.NOISE, values)]


def _paint(value: Any, name: str) -> Any:
    if not isinstance(value, str):
        return checks.per_channel(value, name)
    if value != "random":
        expected = "a number, one per channel, or 'random'"
        raise ValueError(checks.unexpected(name, expected, value))
    return value


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

    >>> RandomErasing(0.25).scale
    (0.02, 0.33)
    """

    p: float = checked(checks.probability, 0.5)
    scale: Any = checked(checks.sequence(2, low=0.0, high=1.0), (0.02, 0.33))
    ratio: Any = checked(checks.positive_interval, (0.3, 3.3))
    value: Any = checked(_paint, 0)

    kind = "chain"
    parameters: ClassVar = {**BOX, "erase": "bool"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.value, str):
            set_fields(self, kind="program", parameters=self.parameters | {"seed": "int[2]"})

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        height, width = (jnp.asarray(side, jnp.int32) for side in size)
        fractions = jax.random.uniform(key, (TRIES + 2, 2), jnp.float32)
        tried_h, tried_w = sample_box_sizes(fractions[:TRIES], size, self.scale, self.ratio)
        fits = (tried_h < height) & (tried_w < width)
        first = jnp.argmax(fits)
        box_h = jnp.minimum(tried_h[first], height)
        box_w = jnp.minimum(tried_w[first], width)
        position, chance = fractions[TRIES], fractions[TRIES + 1, 0]
        top = uniform_below(position[0], height - box_h + 1)
        left = uniform_below(position[1], width - box_w + 1)
        params = {"top": top, "left": left, "height": box_h, "width": box_w}
        params["erase"] = fits[first] & (chance < self.p)
        if "seed" in self.parameters:
            params["seed"] = sample_seed(jax.random.fold_in(key, 1))
        return params

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        top, left, height, width = box_of(params)
        box = (top, left, height * as_number(params["erase"]), width)
        chain.erase(box, chain.values(self.value, "value"))

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        """Return the step that paints noise, or a constant within a container."""
        if isinstance(self.value, jax.Array):
            raise TypeError("value: expected static numbers in a container, got a traced array")
        values = values_with_seed(params.get("seed", np.zeros((1, 2))), *box_of(params))
        fill = (math.nan,) if "seed" in params else self.value
        return [stacked_step(Code.ERASE, values, params["erase"], fill=fill)]


@dataclasses.dataclass(frozen=True)
class _Mix(Transform):
    alpha: float = checked(checks.positive, 1.0)
    per_sample: bool = checked(checks.flag, False)

    kind = "batch"


@dataclasses.dataclass(frozen=True)
class MixUp(_Mix):
    """Compute lam * image + (1 - lam) * previous image of the batch, also for labels.

    Args:
      alpha: above 0; lam is drawn from Beta(alpha, alpha).
      per_sample: draw one lam per image; otherwise one per batch, from the first record's key.
    Parameter of an image: lam f32.

    >>> MixUp(alpha=0.2).per_sample
    False
    """

    parameters: ClassVar = {"lam": "float"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"lam": jax.random.beta(key, self.alpha, self.alpha, dtype=jnp.float32)}

    def mixture(self, params: Params, size: tuple[int, int]) -> tuple[Any, Any, Any]:
        return params["lam"], np.zeros((1, 4), np.int32), params["lam"]


@dataclasses.dataclass(frozen=True)
class CutMix(_Mix):
    """Paste a box of the previous image of the batch; labels are mixed by the box's area.

    The sides of the box are sqrt(1 - lam) of the image's. Its centre is uniform, and it is clipped
    to the image. Then lam is 1 - (clipped area) / (image area), computed in `sample` and again in
    `apply`, so that pixels and labels always agree.

    Args:
      alpha: above 0; lam is drawn from Beta(alpha, alpha).
      per_sample: draw one box per image; otherwise one per batch, from the first record's key.
    Parameters of an image: lam f32; top, left, height, width i32.

    >>> CutMix(alpha=1.0).alpha
    1.0
    """

    parameters: ClassVar = {"lam": "float", **BOX}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        beta_key, place_key = jax.random.split(key)
        lam = jax.random.beta(beta_key, self.alpha, self.alpha, dtype=jnp.float32)
        fractions = jax.random.uniform(place_key, (2,), jnp.float32)
        half = 0.5 * jnp.sqrt(1.0 - lam)

        def clipped(fraction: jax.Array, side: Any) -> tuple[Any, Any]:
            centre = uniform_below(fraction, side)
            reach = jnp.floor(half * side).astype(jnp.int32)
            first, last = jnp.maximum(centre - reach, 0), jnp.minimum(centre + reach, side)
            return first, last - first

        box = per_axis(clipped, fractions, size)
        return {"lam": 1.0 - _share(box, size), **dict(zip(BOX, box, strict=True))}

    def mixture(self, params: Params, size: tuple[int, int]) -> tuple[Any, Any, Any]:
        top, left, height, width = (jnp.atleast_1d(params[name]) for name in BOX)
        box = clip_box((top, left, height, width), size)
        clipped = jnp.stack(jnp.broadcast_arrays(*box), axis=-1)
        return np.ones(1, np.float32), clipped.astype(jnp.int32), 1.0 - _share(box, size)


def _share(box: Box, size: Size) -> Any:
    """Return a box's fraction of the image, in float32: the number of pixels may leave int32."""
    return box[2].astype(jnp.float32) * box[3].astype(jnp.float32) / float(size[0] * size[1])
