"""Transforms that move pixels: crops, resizes and pads."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import half_to_even, is_static, maximum, minimum, scaled
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Filter, Padding
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move, boxed
from jaxkern.image.transforms.transform import Size, Transform

TRIES = 10  # of the rejection loops, as in torchvision


def _filter(interpolation: str, antialias: bool) -> Filter:
    if interpolation == "nearest":
        return Filter.NEAREST
    if interpolation == "bicubic":
        return Filter.BICUBIC_ANTIALIAS if antialias else Filter.BICUBIC
    return Filter.ANTIALIAS if antialias else Filter.BILINEAR


def _set(instance: Any, **fields: Any) -> None:
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


def uniform_below(fraction: jax.Array, count: Any) -> jax.Array:
    """A whole number from 0 to count - 1 out of a fraction in [0, 1)."""
    drawn = jnp.floor(fraction * jnp.asarray(count, jnp.float32)).astype(jnp.int32)
    return jnp.clip(drawn, 0, jnp.asarray(count, jnp.int32) - 1)


def drawn_sizes(
    fractions: jax.Array, size: Size, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[jax.Array, jax.Array]:
    """round(sqrt(area r)), round(sqrt(area / r)) for fractions [tries, 2]: area uniform in scale
    times the image's area, log r uniform in log ratio."""
    area = jnp.float32(size[0]) * jnp.float32(size[1])
    target = area * (scale[0] + (scale[1] - scale[0]) * fractions[:, 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = jnp.exp(0.5 * (low + (high - low) * fractions[:, 1]))
    side = jnp.sqrt(target)
    wide, narrow = jnp.round(side * root), jnp.round(side / root)
    return wide.astype(jnp.int32), narrow.astype(jnp.int32)


class _OfFixedSize(Transform):
    size: Any

    geometric = True

    def output_size(self, size: Size) -> Size:
        """Always `size`."""
        return self.size[0], self.size[1]


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(_OfFixedSize):
    """Resizes a random box of each image to `size`.

    Ten boxes are drawn with area uniform in `scale` (shares of the image's area) and log aspect
    ratio uniform in log `ratio`; the first that fits is taken, else the central crop clamped to
    the ratio. Filter taps never leave the box.

    Args:
      size: height and width of the output, or one integer for a square.
      scale, ratio: increasing pairs above 0.
      interpolation: "bilinear", "bicubic" (u8 levels are clamped to 0 to 255, floats are not), or
        "nearest" (torchvision's nearest-exact).
      antialias: widen the filter where the box shrinks; as in torchvision, the bicubic kernel's a
        is -1/2 with it and -3/4 without.
    Parameters an image: top, left, height, width i32.
    Raises: ValueError for sizes below 1, NaN, negative or decreasing ranges, other words.

    >>> from jaxkern.image import RandomResizedCrop
    >>> RandomResizedCrop(224, antialias=False).size
    (224, 224)
    """

    size: Any
    scale: Any = (0.08, 1.0)
    ratio: Any = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: str = "bilinear"
    antialias: bool = True

    parameters: ClassVar[dict[str, str]] = dict.fromkeys(("top", "left", "height", "width"), "int")

    def __post_init__(self) -> None:
        _set(
            self,
            size=checks.size_pair(self.size),
            scale=checks.interval(self.scale, "scale", 0.0, open_low=True),
            ratio=checks.interval(self.ratio, "ratio", 0.0, open_low=True),
            interpolation=checks.choice(self.interpolation, "interpolation", checks.RESAMPLINGS),
            antialias=bool(self.antialias),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one box within an image of `size`."""
        height, width = (jnp.asarray(side, jnp.int32) for side in size)
        fractions = jax.random.uniform(key, (TRIES + 1, 2), jnp.float32)
        tried_w, tried_h = drawn_sizes(fractions[:TRIES], size, self.scale, self.ratio)
        fits = (tried_w > 0) & (tried_w <= width) & (tried_h > 0) & (tried_h <= height)
        first = jnp.argmax(fits)
        # The fallback: the largest central crop whose ratio is within bounds.
        low, high = self.ratio
        central_w = jnp.round(height.astype(jnp.float32) * high).astype(jnp.int32)
        central_h = jnp.round(width.astype(jnp.float32) / low).astype(jnp.int32)
        central_w, central_h = jnp.minimum(width, central_w), jnp.minimum(height, central_h)
        central_w, central_h = jnp.maximum(central_w, 1), jnp.maximum(central_h, 1)
        found = fits[first]
        box_w = jnp.where(found, tried_w[first], central_w)
        box_h = jnp.where(found, tried_h[first], central_h)
        position = fractions[TRIES]
        room_h, room_w = height - box_h, width - box_w
        top = jnp.where(found, uniform_below(position[0], room_h + 1), room_h // 2)
        left = jnp.where(found, uniform_below(position[1], room_w + 1), room_w // 2)
        return {"top": top, "left": left, "height": box_h, "width": box_w}

    def eval(self) -> tuple[Transform, ...]:
        """Resize the shorter side to size * 256 / 224, then the central crop."""
        side = round(max(self.size) * 256 / 224)
        resize = Resize(side, self.interpolation, antialias=self.antialias)
        return (resize, CenterCrop(self.size))

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, interpolation="nearest")

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        box = (params["top"], params["left"], params["height"], params["width"])
        return [boxed(box, self.size)]

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        names = ("top", "left", "height", "width")
        box = tuple(params[name] for name in names)
        checks.concrete_box(box, chain.size, names, "RandomResizedCrop")
        chain.resample(_filter(self.interpolation, self.antialias), box, self.size)


@dataclasses.dataclass(frozen=True)
class Resize(Transform):
    """Resizes whole images.

    Args:
      size: (height, width), or an integer for the shorter edge, the other edge following.
      interpolation: "bilinear", "bicubic" (u8 levels are clamped to 0 to 255, floats are not), or
        "nearest" (torchvision's nearest-exact).
      max_size: upper bound of the longer edge, only with an integer size.
      antialias: widen the filter where the image shrinks; as in torchvision, the bicubic kernel's
        a is -1/2 with it and -3/4 without.
    Raises: ValueError for sizes below 1 or above 2**24, max_size not above size or beside a pair.

    >>> from jaxkern.image import Resize
    >>> Resize(256).output_size((512, 640))
    (256, 320)
    """

    size: Any
    interpolation: str = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    geometric = True

    def __post_init__(self) -> None:
        pair = checks.size_pair(self.size)
        shorter = not isinstance(self.size, tuple | list | np.ndarray) or len(self.size) == 1
        _set(
            self,
            size=pair[0] if shorter else pair,
            interpolation=checks.choice(self.interpolation, "interpolation", checks.RESAMPLINGS),
            antialias=bool(self.antialias),
        )
        if self.max_size is not None:
            limit = checks.size_pair(self.max_size, "max_size")[0]
            if not shorter:
                raise ValueError("max_size goes only with an integer size, which is a shorter edge")
            if limit <= pair[0]:
                raise ValueError(f"max_size={limit} must be above size={pair[0]}")
            _set(self, max_size=limit)

    def output_size(self, size: Size) -> Size:
        """(height, width) after resizing an image of `size`."""
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

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, interpolation="nearest")

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [boxed((0, 0, *size), self.output_size(size), crops=False)]

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        height, width = chain.size
        new = self.output_size((height, width))
        chain.resample(_filter(self.interpolation, self.antialias), (0, 0, height, width), new)


def _select(condition: Any, yes: int, no: int) -> Any:
    if isinstance(condition, bool):
        return yes if condition else no
    return no + (yes - no) * condition.astype("int32")


@dataclasses.dataclass(frozen=True)
class CenterCrop(_OfFixedSize):
    """Crops the middle `size` pixels; a smaller image is padded with zeros first.

    >>> from jaxkern.image import CenterCrop
    >>> CenterCrop(224).output_size((256, 300))
    (224, 224)
    """

    size: Any

    def __post_init__(self) -> None:
        _set(self, size=checks.size_pair(self.size))

    def _start(self, size: Size) -> tuple[Any, Any]:
        return _center(size[0], self.size[0]), _center(size[1], self.size[1])

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return _CenterCropOfMasks(self.size, fill)

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [boxed((*self._start(size), *self.size), self.size)]

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.window(self._start(chain.size), self.size, chain.values(0.0, "fill"))


@dataclasses.dataclass(frozen=True)
class _CenterCropOfMasks(CenterCrop):
    fill: Any

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.window(self._start(chain.size), self.size, chain.values(self.fill, "fill"))


def _center(whole: Any, size: int) -> Any:
    """First index of the central window; a missing odd pixel goes to the far side."""
    spare = whole - size
    if is_static(spare):
        return half_to_even(spare) if spare >= 0 else -(-spare // 2)
    return half_to_even(maximum(spare, 0)) - maximum(-spare, 0) // 2


def _show(chain: ChainBuilder, mode: str, start: Any, size: Any, fill: Any) -> None:
    """A window of the image that may leave it."""
    if mode == "constant":
        chain.window(start, size, chain.values(fill, "fill"))
    else:
        chain.extend(start, size, Padding[mode.upper()])


@dataclasses.dataclass(frozen=True)
class Pad(Transform):
    """Adds a border, of a constant or of the image's own pixels.

    Args:
      padding: an integer, (left and right, top and bottom), or (left, top, right, bottom).
      fill: a number, or one a channel, in the value space at this point of the chain.
      padding_mode: "constant", "edge" (the outermost pixels), "reflect" (the image mirrored about
        them; less padding than pixels) or "symmetric" (mirrored with them twice; at most as much).
        Images of different sizes in one batch are mirrored as often as it takes.
    Raises: ValueError for negative or ill-shaped padding, other padding modes, a fill of channels
      beside one that is not constant, and in `apply` for borders that are too wide to mirror.

    >>> from jaxkern.image import Pad
    >>> Pad(4).output_size((32, 32))
    (40, 40)
    """

    padding: Any
    fill: Any = 0
    padding_mode: str = "constant"

    geometric = True

    def __post_init__(self) -> None:
        _set(
            self,
            padding=checks.padding_sides(self.padding),
            fill=checks.per_channel(self.fill, "fill"),
            padding_mode=checks.padding_mode(self.padding_mode, self.fill),
        )

    def output_size(self, size: Size) -> Size:
        """Height and width with the border."""
        left, top, right, bottom = self.padding
        height, width = size
        return (
            None if height is None else height + (top + bottom),
            None if width is None else width + (left + right),
        )

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, fill=fill if self.padding_mode == "constant" else 0)

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        _constant_padding(self, self.padding_mode)
        padded = self.output_size(size)
        return [boxed((-self.padding[1], -self.padding[0], *padded), padded)]

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        if any(self.padding):
            left, top, right, bottom = self.padding
            before, after = (top, left), (bottom, right)
            size, limit = self.output_size(chain.size), chain.limit
            checks.mirrored_padding(self.padding_mode, before, after, chain.size, "Pad")
            _show(chain, self.padding_mode, (-top, -left), size, self.fill)
            chain.bound(None if limit is None else self.output_size(limit))


def _constant_padding(transform: Transform, mode: str) -> None:
    """torchvision, too, moves boxes and keypoints into constant borders only."""
    if mode != "constant":
        raise ValueError(
            f"{transform!r} repeats pixels in its border, and with them what boxes and keypoints "
            'name; wanted padding_mode="constant" beside boxes or keypoints'
        )


@dataclasses.dataclass(frozen=True)
class RandomCrop(_OfFixedSize):
    """Crops `size` pixels at a random place, after padding where asked.

    Args:
      size: height and width, or one integer for a square.
      padding: as in Pad; None for none.
      pad_if_needed: pad both sides of an image that is smaller than the crop by what is missing.
      fill: a number, or one a channel, for what was padded.
      padding_mode: what is padded with, as in Pad.
    Parameters an image: top, left i32, counted in the padded image.
    Raises: ValueError for bad sizes and modes, and in `apply` for images smaller than the crop.

    >>> from jaxkern.image import RandomCrop
    >>> RandomCrop(32, padding=4).output_size((32, 32))
    (32, 32)
    """

    size: Any
    padding: Any = None
    pad_if_needed: bool = False
    fill: Any = 0
    padding_mode: str = "constant"

    parameters: ClassVar[dict[str, str]] = {"top": "int", "left": "int"}

    def __post_init__(self) -> None:
        _set(
            self,
            size=checks.size_pair(self.size),
            padding=None if self.padding is None else checks.padding_sides(self.padding),
            pad_if_needed=bool(self.pad_if_needed),
            fill=checks.per_channel(self.fill, "fill"),
            padding_mode=checks.padding_mode(self.padding_mode, self.fill),
        )

    def _padded(self, size: Size) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Padding before the first row and column, and the padded size."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        before, padded = [], []
        for whole, wanted, first, second in (
            (size[0], self.size[0], top, bottom),
            (size[1], self.size[1], left, right),
        ):
            whole = whole + (first + second)
            if self.pad_if_needed:
                missing = maximum(wanted - whole, 0)
                first, whole = first + missing, whole + 2 * missing
            elif is_static(whole) and whole < wanted:
                raise ValueError(
                    f"RandomCrop(size={self.size}) got an image of (height, width) "
                    f"({size[0]}, {size[1]}) before padding, which is smaller; "
                    "set pad_if_needed=True or resize first"
                )
            before.append(first)
            padded.append(whole)
        return (before[0], before[1]), (padded[0], padded[1])

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws the top left corner in the padded image, every place alike."""
        _, padded = self._padded(size)
        fractions = jax.random.uniform(key, (2,), jnp.float32)
        room = [maximum(p - s, 0) + 1 for p, s in zip(padded, self.size, strict=True)]
        top, left = (uniform_below(fractions[k], room[k]) for k in range(2))
        return {"top": top, "left": left}

    def eval(self) -> tuple[Transform, ...]:
        """The central crop, without padding."""
        return (CenterCrop(self.size),)

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, fill=fill if self.padding_mode == "constant" else 0)

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        if self.padding is not None or self.pad_if_needed:
            _constant_padding(self, self.padding_mode)
        before, _ = self._padded(size)
        start = (params["top"] - before[0], params["left"] - before[1])
        return [boxed((*start, *self.size), self.size)]

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        before, padded = self._padded(chain.size)
        top, left = params["top"], params["left"]
        checks.concrete_box(
            (top, left, *self.size), padded, ("top", "left", "size", "size"), "RandomCrop"
        )
        pads = not is_static(*before) or any(before) or bool(self.padding and any(self.padding))
        start = (top - before[0], left - before[1])
        if not pads:
            chain.window(start, self.size, None)
            return
        height, width = chain.size
        after = (padded[0] - before[0] - height, padded[1] - before[1] - width)
        checks.mirrored_padding(self.padding_mode, before, after, chain.size, "RandomCrop")
        _show(chain, self.padding_mode, start, self.size, self.fill)
