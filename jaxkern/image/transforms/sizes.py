"""Resizes to one size, or to a different size for each image."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.image.chain.axis import clip, is_static, maximum, minimum, scaled
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import MAX_SIZE, Filter
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.moves import Move, box_move
from jaxkern.image.transforms.transform import (
    GeometricTransform,
    Params,
    Size,
    Transform,
    as_number,
    set_fields,
    uniform_below,
)


def filter_of(interpolation: str, antialias: bool) -> Filter:
    if interpolation == "nearest":
        return Filter.NEAREST
    if interpolation == "bicubic":
        return Filter.BICUBIC_ANTIALIAS if antialias else Filter.BICUBIC
    return Filter.ANTIALIAS if antialias else Filter.BILINEAR


@dataclasses.dataclass(frozen=True)
class Resize(GeometricTransform):
    """Resize complete images.

    Args:
      size: (height, width), or an integer for the shorter edge, which keeps the aspect ratio.
      interpolation: "bilinear", "bicubic" (uint8 levels are clamped to 0 to 255, floats are not),
        or "nearest" (torchvision's nearest-exact).
      max_size: upper bound of the longer edge, only with an integer size.
      antialias: widen the filter where the image shrinks. As in torchvision, the parameter a of the
        bicubic kernel is -1/2 with antialias and -3/4 without.

    >>> Resize(256).output_size((512, 640))
    (256, 320)
    """

    size: Any
    interpolation: str = checked(checks.resampling, "bilinear")
    max_size: Any = checked(checks.optional(checks.size_pair), None)
    antialias: bool = checked(checks.flag, True)

    def __post_init__(self) -> None:
        super().__post_init__()
        pair = checks.size_pair(self.size, "size")
        shorter = not isinstance(self.size, tuple | list | np.ndarray) or len(self.size) == 1
        set_fields(self, size=pair[0] if shorter else pair)
        if self.max_size is not None:
            limit = self.max_size[0]
            if not shorter:
                raise ValueError(f"max_size: expected None with size=(height, width), got {limit}")
            if limit <= pair[0]:
                raise ValueError(f"max_size: expected more than size={pair[0]}, got {limit}")
            set_fields(self, max_size=limit)

    def output_size(self, size: Size) -> Size:
        if isinstance(self.size, tuple):
            return self.size
        height, width = size
        if height is None or width is None:
            return (None, None)
        shorter, longer = minimum(height, width), maximum(height, width)
        new_shorter, new_longer = self.size, scaled(self.size, longer, shorter)
        if self.max_size is not None:
            limited = maximum(scaled(self.max_size, self.size, new_longer), 1)
            fits = as_number(new_longer <= self.max_size)
            new_shorter = fits * self.size + (1 - fits) * limited
            new_longer = minimum(new_longer, self.max_size)
        upright = as_number(width <= height)
        difference = new_longer - new_shorter
        return (new_shorter + upright * difference, new_longer - upright * difference)

    def moves(self, params: Params, size: Size) -> list[Move]:
        return [box_move((0, 0, *size), self.output_size(size), crops=False)]

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        kind = filter_of(self.interpolation, self.antialias)
        chain.resample(kind, (0, 0, *chain.size), self.output_size(chain.size))


def _multiplied(size: Size, factor: Callable[..., Any]) -> Size:
    """Return both sides times `factor(height, width, xp)` in float64, truncated, at least 1."""
    if is_static(*size):
        ratio = factor(*size, np)
        return max(int(size[0] * ratio), 1), max(int(size[1] * ratio), 1)
    with jax.enable_x64(True):
        sides = [jnp.asarray(side).astype(jnp.float64) for side in size]
        ratio = factor(*sides, jnp)
        height, width = (jnp.trunc(side * ratio).astype(jnp.int32) for side in sides)
        return jnp.maximum(height, 1), jnp.maximum(width, 1)


class PerImageSize(GeometricTransform):
    """Base class: gives each image the size in its parameters."""

    def output_size(self, size: Size) -> Size:
        return (None, None)

    def size_after(self, size: Size, params: Params) -> Size:
        return params["height"], params["width"]


class _RandomResize(PerImageSize):
    """Base class: resizes each image to an individual size."""

    interpolation: str
    antialias: bool
    canvas: Any
    canvas_fill: Any

    parameters = dict.fromkeys(("height", "width"), "int")

    def _factor(self, height: Any, width: Any, xp: Any) -> Any:
        """Return the factor by which `eval` resizes an image."""
        raise NotImplementedError

    def _limit(self, size: Size) -> tuple[int, int] | None:
        """Return the largest possible size of images of `size`, or None if it is unknown."""
        raise NotImplementedError

    def eval(self) -> tuple[Transform, ...]:
        """Return the resize without randomness: by the factor 1, or to the largest size."""
        return (_Fitted(self),)

    def _resized(self, size: Size, params: Params) -> Size:
        """Return height and width before the canvas crops them, clamped to possible sizes."""
        upper = self._limit(size) or (MAX_SIZE, MAX_SIZE)
        return clip(params["height"], 1, upper[0]), clip(params["width"], 1, upper[1])

    def _within(self, size: Size) -> Size:
        """Return the sizes after the canvas crops them, if they differ between images."""
        if self.canvas is None or is_static(*size):
            return size
        return minimum(size[0], self.canvas[0]), minimum(size[1], self.canvas[1])

    def size_after(self, size: Size, params: Params) -> Size:
        return self._within(self._resized(size, params))

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        self._resize(chain, self._resized(chain.size, params))

    def _resize(self, chain: ChainBuilder, new: Size) -> None:
        limit = self._limit(chain.size) if self.canvas is None else self.canvas
        chain.resample(filter_of(self.interpolation, self.antialias), (0, 0, *chain.size), new)
        if is_static(*new):
            return
        if self.canvas is not None:
            chain.window((0, 0), self._within(new), None)
        chain.bound(limit, chain.values(self.canvas_fill, "canvas_fill"))

    def moves(self, params: Params, size: Size) -> list[Move]:
        return self._moves_to(self._resized(size, params), size)

    def _moves_to(self, new: Size, size: Size) -> list[Move]:
        return [box_move((0, 0, *size), new, crops=self._within(new) is not new)]


@dataclasses.dataclass(frozen=True)
class ScaleJitter(_RandomResize):
    """Resize each image to fit `target_size`, times a factor uniform in `scale_range`.

    Args:
      target_size: (width, height), as in torchvision, that an image fits at the factor 1.
      scale_range: (low, high) above 0.
      interpolation, antialias: as in `Resize`.
      canvas: (height, width) to which images are cropped, and the output size if no later transform
        returns one size. None for the largest possible size.
      canvas_fill: a number, or one per channel, around the image on the canvas.
    Parameters of an image: height, width i32, clamped to sizes that can be drawn.
    Source: Ghiasi et al., Simple Copy-Paste, 2021, section 3.

    >>> ScaleJitter((1024, 1024)).scale_range
    (0.1, 2.0)
    """

    target_size: Any = checked(checks.size_pair)
    scale_range: Any = checked(checks.positive_interval, (0.1, 2.0))
    interpolation: str = checked(checks.resampling, "bilinear")
    antialias: bool = checked(checks.flag, True)
    canvas: Any = checked(checks.optional(checks.size_pair), None)
    canvas_fill: Any = checked(checks.per_channel, 0)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        low, high = self.scale_range
        height, width = (jnp.asarray(side, jnp.float32) for side in size)
        fraction = jax.random.uniform(key, dtype=jnp.float32)
        factor = self._factor(height, width, jnp) * (low + fraction * (high - low))
        sides = ((side * factor).astype(jnp.int32) for side in (height, width))
        return dict(zip(self.parameters, (jnp.maximum(side, 1) for side in sides), strict=True))

    def _factor(self, height: Any, width: Any, xp: Any) -> Any:
        return xp.minimum(self.target_size[1] / height, self.target_size[0] / width)

    def _limit(self, size: Size) -> tuple[int, int] | None:
        upper = self.scale_range[1]
        width, height = (max(math.ceil(side * upper), 1) for side in self.target_size)
        return height, width


def _sizes(value: Any, name: str) -> tuple[int, ...]:
    sizes = [value] if isinstance(value, numbers.Integral) else value
    if not isinstance(sizes, list | tuple | range | np.ndarray) or not len(sizes):
        raise ValueError(checks.unexpected(name, "a size, or a list", value))
    return tuple(check_integer(name, size, 1, MAX_SIZE) for size in np.asarray(sizes).tolist())


@dataclasses.dataclass(frozen=True)
class RandomShortestSize(_RandomResize):
    """Resize each image so that its shorter side has a size drawn from `min_size`.

    Args:
      min_size: a size, or a list of equally likely sizes.
      max_size: upper bound of the longer side; None for no bound.
      interpolation, antialias: as in `Resize`.
      canvas, canvas_fill: as in `ScaleJitter`; the largest size is known if all images have one
        size, or with `max_size`.
    Parameters of an image: height, width i32.

    >>> RandomShortestSize([480, 512, 544], max_size=800).min_size
    (480, 512, 544)
    """

    min_size: Any = checked(_sizes)
    max_size: int | None = checked(checks.optional(checks.integer(1, MAX_SIZE)), None)
    interpolation: str = checked(checks.resampling, "bilinear")
    antialias: bool = checked(checks.flag, True)
    canvas: Any = checked(checks.optional(checks.size_pair), None)
    canvas_fill: Any = checked(checks.per_channel, 0)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        index = uniform_below(jax.random.uniform(key, dtype=jnp.float32), len(self.min_size))
        shortest = jnp.asarray(self.min_size, jnp.int32)[index]
        sides = jnp.asarray(size[0], jnp.int32), jnp.asarray(size[1], jnp.int32)
        height, width = _multiplied(sides, functools.partial(self._factor, shortest=shortest))
        return {"height": height, "width": width}

    def _factor(self, height: Any, width: Any, xp: Any, shortest: Any = None) -> Any:
        shortest = max(self.min_size) if shortest is None else shortest
        factor = shortest / xp.minimum(height, width)
        if self.max_size is None:
            return factor
        return xp.minimum(factor, self.max_size / xp.maximum(height, width))

    def _limit(self, size: Size) -> tuple[int, int] | None:
        if is_static(*size):
            return _multiplied(size, self._factor)
        return None if self.max_size is None else (self.max_size, self.max_size)


@dataclasses.dataclass(frozen=True)
class _Fitted(GeometricTransform):
    """A resize to the size of another transform in `eval`."""

    resize: _RandomResize

    def _size(self, size: Size) -> Size:
        return _multiplied(size, self.resize._factor)

    def output_size(self, size: Size) -> Size:
        if any(side is None for side in size):
            return (None, None)
        return self.resize._within(self._size(size))

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        self.resize._resize(chain, self._size(chain.size))

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return _Fitted(self.resize.for_masks(fill))  # type: ignore[arg-type]

    def moves(self, params: Params, size: Size) -> list[Move]:
        return self.resize._moves_to(self._size(size), size)
