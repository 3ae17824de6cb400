"""Resizes to one size, or to a different size for each image."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.image.chain.axis import clip, is_static, maximum, minimum, scaled
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import MAX_SIZE, Filter
from jaxkern.image.program.coefficients import fitted_sizes
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move, boxed
from jaxkern.image.transforms.transform import Kind, Size, Transform, set_fields, uniform_below


def filter_of(interpolation: str, antialias: bool) -> Filter:
    """Return the filter of an interpolation in `checks.RESAMPLINGS`."""
    if interpolation == "nearest":
        return Filter.NEAREST
    if interpolation == "bicubic":
        return Filter.BICUBIC_ANTIALIAS if antialias else Filter.BICUBIC
    return Filter.ANTIALIAS if antialias else Filter.BILINEAR


@dataclasses.dataclass(frozen=True)
class Resize(Transform):
    """Resize complete images.

    Args:
      size: (height, width), or an integer for the shorter edge, which keeps the aspect ratio.
      interpolation: "bilinear", "bicubic" (uint8 levels are clamped to 0 to 255, floats are not),
        or "nearest" (torchvision's nearest-exact).
      max_size: upper bound of the longer edge, only with an integer size.
      antialias: widen the filter where the image shrinks. As in torchvision, the parameter a of the
        bicubic kernel is -1/2 with antialias and -3/4 without.
    Raises: ValueError for sizes below 1 or above 2**24, and for a max_size with a pair or not
    above size.

    >>> from jaxkern.image import Resize
    >>> Resize(256).output_size((512, 640))
    (256, 320)
    """

    size: Any
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    kind: ClassVar[Kind] = "chain"
    geometric = True

    def __post_init__(self) -> None:
        pair = checks.size_pair(self.size)
        shorter = not isinstance(self.size, tuple | list | np.ndarray) or len(self.size) == 1
        set_fields(
            self,
            size=pair[0] if shorter else pair,
            interpolation=checks.choice(self.interpolation, "interpolation", checks.RESAMPLINGS),
            antialias=bool(self.antialias),
        )
        if self.max_size is not None:
            limit = checks.size_pair(self.max_size, "max_size")[0]
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
            fits = _select(new_longer <= self.max_size, 1, 0)
            new_shorter = fits * self.size + (1 - fits) * limited
            new_longer = minimum(new_longer, self.max_size)
        upright = _select(width <= height, 1, 0)
        difference = new_longer - new_shorter
        return (new_shorter + upright * difference, new_longer - upright * difference)

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, interpolation="nearest")

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [boxed((0, 0, *size), self.output_size(size), crops=False)]

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        height, width = chain.size
        new = self.output_size((height, width))
        chain.resample(filter_of(self.interpolation, self.antialias), (0, 0, height, width), new)


def _select(condition: Any, yes: int, no: int) -> Any:
    if isinstance(condition, bool):
        return yes if condition else no
    return no + (yes - no) * condition.astype("int32")


class PerImageSize(Transform):
    """Base class: gives each image the size in its parameters."""

    kind: ClassVar[Kind] = "chain"
    geometric = True

    def output_size(self, size: Size) -> Size:
        return (None, None)

    def size_after(self, size: Size, params: dict[str, Any]) -> Size:
        return params["height"], params["width"]


class _RandomResize(PerImageSize):
    """Base class: resizes each image to an individual size."""

    interpolation: str
    antialias: bool
    canvas: Any
    canvas_fill: Any

    parameters: ClassVar[dict[str, str]] = dict.fromkeys(("height", "width"), "int")

    def _checked(self, **fields: Any) -> None:
        set_fields(
            self,
            interpolation=checks.choice(self.interpolation, "interpolation", checks.RESAMPLINGS),
            antialias=bool(self.antialias),
            canvas=None if self.canvas is None else checks.size_pair(self.canvas, "canvas"),
            canvas_fill=checks.per_channel(self.canvas_fill, "canvas_fill"),
            **fields,
        )

    def _largest(self, size: Size) -> Size:
        """Return the size of images of `size` in `eval`."""
        raise NotImplementedError

    def _limit(self, size: Size) -> tuple[int, int] | None:
        """Return the largest possible size of images of `size`, or None if it is unknown."""
        raise NotImplementedError

    def eval(self) -> tuple[Transform, ...]:
        """Return the resize without randomness: by the factor 1, or to the largest size."""
        return (_Fitted(self),)

    def _resized(self, size: Size, params: dict[str, Any]) -> Size:
        """Return height and width before the canvas crops them, clamped to possible sizes."""
        upper = self._limit(size) or (MAX_SIZE, MAX_SIZE)
        return clip(params["height"], 1, upper[0]), clip(params["width"], 1, upper[1])

    def _within(self, size: Size) -> Size:
        """Return the sizes after the canvas crops them, if they differ between images."""
        if self.canvas is None or is_static(*size):
            return size
        return minimum(size[0], self.canvas[0]), minimum(size[1], self.canvas[1])

    def size_after(self, size: Size, params: dict[str, Any]) -> Size:
        return self._within(self._resized(size, params))

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        self._resize(chain, self._resized(chain.size, params))

    def _resize(self, chain: ChainBuilder, new: Size) -> None:
        """Resize images, and crop them to the canvas."""
        limit = self._limit(chain.size) if self.canvas is None else self.canvas
        kind = filter_of(self.interpolation, self.antialias)
        chain.resample(kind, (0, 0, *chain.size), new)
        if is_static(*new):
            return
        if self.canvas is not None:
            chain.window((0, 0), self._within(new), None)
        chain.bound(limit, chain.values(self.canvas_fill, "canvas_fill"))

    def for_masks(self, fill: tuple[float, ...]) -> _RandomResize:
        return dataclasses.replace(self, interpolation="nearest", canvas_fill=fill)  # type: ignore

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return self._moves_to(self._resized(size, params), size)

    def _moves_to(self, new: Size, size: Size) -> list[Move]:
        return [boxed((0, 0, *size), new, crops=self._within(new) is not new)]


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
    Raises: ValueError for sizes below 1 and invalid ranges.
    Source: Ghiasi et al., Simple Copy-Paste, 2021, section 3.

    >>> from jaxkern.image import ScaleJitter
    >>> ScaleJitter((1024, 1024)).scale_range
    (0.1, 2.0)
    """

    target_size: Any
    scale_range: Any = (0.1, 2.0)
    interpolation: str = "bilinear"
    antialias: bool = True
    canvas: Any = None
    canvas_fill: Any = 0

    def __post_init__(self) -> None:
        self._checked(
            target_size=checks.size_pair(self.target_size, "target_size"),
            scale_range=checks.interval(self.scale_range, "scale_range", 0.0, open_low=True),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        low, high = self.scale_range
        height, width = (jnp.asarray(side, jnp.float32) for side in size)
        fit = jnp.minimum(self.target_size[1] / height, self.target_size[0] / width)
        factor = fit * (low + jax.random.uniform(key, dtype=jnp.float32) * (high - low))
        sides = ((side * factor).astype(jnp.int32) for side in (height, width))
        return dict(zip(self.parameters, (jnp.maximum(side, 1) for side in sides), strict=True))

    def _largest(self, size: Size) -> Size:
        (height, width), (wide, high) = size, self.target_size
        if is_static(height, width):
            factor = min(high / height, wide / width)
            return max(int(height * factor), 1), max(int(width * factor), 1)
        fit = jnp.minimum(high / jnp.float32(height), wide / jnp.float32(width))
        new = ((side * fit).astype(jnp.int32) for side in (height, width))
        return jnp.maximum(next(new), 1), jnp.maximum(next(new), 1)

    def _limit(self, size: Size) -> tuple[int, int] | None:
        upper = self.scale_range[1]
        width, height = (max(math.ceil(side * upper), 1) for side in self.target_size)
        return height, width


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
    Raises: ValueError for sizes below 1, and an empty list.

    >>> from jaxkern.image import RandomShortestSize
    >>> RandomShortestSize([480, 512, 544], max_size=800).min_size
    (480, 512, 544)
    """

    min_size: Any
    max_size: int | None = None
    interpolation: str = "bilinear"
    antialias: bool = True
    canvas: Any = None
    canvas_fill: Any = 0

    def __post_init__(self) -> None:
        sizes = [self.min_size] if isinstance(self.min_size, numbers.Integral) else self.min_size
        if not isinstance(sizes, list | tuple | range | np.ndarray) or not len(sizes):
            raise ValueError(checks.unexpected("min_size", "a size, or a list", self.min_size))
        sizes = np.asarray(sizes).tolist()
        self._checked(
            min_size=tuple(check_integer("min_size", size, 1, MAX_SIZE) for size in sizes),
            max_size=None
            if self.max_size is None
            else check_integer("max_size", self.max_size, 1, MAX_SIZE),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        index = uniform_below(jax.random.uniform(key, dtype=jnp.float32), len(self.min_size))
        shortest = jnp.asarray(self.min_size, jnp.int32)[index]
        sides = fitted_sizes(*size, shortest, longest=self.max_size).astype(jnp.int32)
        return {"height": jnp.maximum(sides[0], 1), "width": jnp.maximum(sides[1], 1)}

    def _largest(self, size: Size) -> Size:
        shortest = max(self.min_size)
        if is_static(*size):
            factor = shortest / min(size)
            if self.max_size is not None:
                factor = min(factor, self.max_size / max(size))
            return max(int(size[0] * factor), 1), max(int(size[1] * factor), 1)
        new = fitted_sizes(*size, shortest, longest=self.max_size).astype(jnp.int32)
        return jnp.maximum(new[..., 0], 1), jnp.maximum(new[..., 1], 1)

    def _limit(self, size: Size) -> tuple[int, int] | None:
        if is_static(*size):
            return self._largest(size)
        return None if self.max_size is None else (self.max_size, self.max_size)


@dataclasses.dataclass(frozen=True)
class _Fitted(Transform):
    """A resize to the size of another transform in `eval`."""

    resize: _RandomResize

    kind: ClassVar[Kind] = "chain"
    geometric = True

    def output_size(self, size: Size) -> Size:
        if any(side is None for side in size):
            return (None, None)
        return self.resize._within(self.resize._largest(size))

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        self.resize._resize(chain, self.resize._largest(chain.size))

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return _Fitted(self.resize.for_masks(fill))

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return self.resize._moves_to(self.resize._largest(size), size)
