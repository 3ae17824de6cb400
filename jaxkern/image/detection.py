"""Transforms of object detection: crops by overlap, zooming out, sizes that differ by image.

Images that they leave with sizes of their own stay so up to the next transform that gives all one
size, as in torchvision; where none does, each lies at the top left of a canvas of one size.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image import checks
from jaxkern.image.axis import clip, is_static
from jaxkern.image.boxes import overlap, sane, with_area
from jaxkern.image.coefficients import fitted_sizes
from jaxkern.image.fold import ChainBuilder
from jaxkern.image.geometric import _filter, _set, uniform_below
from jaxkern.image.moves import Move, boxed
from jaxkern.image.plan import MAX_SIZE
from jaxkern.image.transform import Size, Transform, as_number

_ROUNDS = 128  # of options, after which an image is left whole

_BOX = dict.fromkeys(("top", "left", "height", "width"), "int")


class _OfOwnSize(Transform):
    """Gives each image the size that its parameters say."""

    geometric = True

    def output_size(self, size: Size) -> Size:
        """Not known before the parameters are drawn."""
        return (None, None)

    def _size_after(self, size: Size, params: dict[str, Any]) -> Size:
        return params["height"], params["width"]


@dataclasses.dataclass(frozen=True)
class RandomIoUCrop(_OfOwnSize):
    """Crops so that a box overlaps the crop by a drawn part at least: SSD's sampling.

    An overlap (intersection over union) is drawn from `sampler_options`, then up to `trials` crops,
    of which the first is taken that has an aspect ratio within bounds, the centre of a valid box
    inside, and one such box with that overlap. Without one, another overlap is drawn; from 1 up it
    leaves the image whole, as do 128 of them in vain. Boxes with a centre outside the crop become
    invalid. `Compose.sample` needs the boxes for it.

    Args:
      min_scale, max_scale: of the crop's sides, as shares of the image's, up to 1.
      min_aspect_ratio, max_aspect_ratio: of the crop, width over height.
      sampler_options: overlaps; None for 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
      trials: crops of an overlap, at least 1.
      canvas_fill: a number, or one a channel, beside the image where the chain gives no one size.
    Parameters an image: crop bool; top, left, height, width i32, of the whole image without a crop.
    Raises: ValueError for ranges that are none and options that are empty or not finite; in
    `sample` without boxes.
    Source: Liu et al., SSD, 2016, section 2.2.

    >>> from jaxkern.image import RandomIoUCrop
    >>> RandomIoUCrop().sampler_options
    (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Any = None
    trials: int = 40
    canvas_fill: Any = 0

    parameters: ClassVar[dict[str, str]] = {"crop": "bool", **_BOX}
    needs_boxes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        low, high = checks.interval(
            (self.min_scale, self.max_scale), "(min_scale, max_scale)", 0.0, open_low=True
        )
        if high > 1.0:
            raise ValueError(f"max_scale={self.max_scale!r}; wanted a share of the image, up to 1")
        thin, wide = checks.interval(
            (self.min_aspect_ratio, self.max_aspect_ratio),
            "(min_aspect_ratio, max_aspect_ratio)",
            0.0,
            open_low=False,
        )
        options = self.sampler_options
        if options is None:
            options = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
        listed = isinstance(options, Sequence | np.ndarray) and not isinstance(options, str)
        if not listed or not len(options) or not np.isfinite(np.asarray(options, float)).all():
            raise ValueError(
                f"sampler_options={self.sampler_options!r}; wanted finite overlaps, at least one"
            )
        _set(
            self,
            min_scale=low,
            max_scale=high,
            min_aspect_ratio=thin,
            max_aspect_ratio=wide,
            sampler_options=tuple(float(option) for option in options),
            trials=checks.whole(self.trials, "trials", 1),
            canvas_fill=checks.per_channel(self.canvas_fill, "canvas_fill"),
        )

    def sample(
        self, key: jax.Array, size: Size, boxes: Any = None, valid: Any = None
    ) -> dict[str, jax.Array]:
        """Draws a crop for an image of `size` with boxes f32 [K, 4] (left, top, right, bottom)."""
        if boxes is None:
            raise ValueError(
                "RandomIoUCrop draws by the boxes of an image; wanted them: augment(keys, "
                '{"image": images, "boxes": boxes}), or sample(keys, size, boxes)'
            )
        height, width = (jnp.asarray(side, jnp.int32) for side in size)
        valid = with_area(boxes) if valid is None else valid & with_area(boxes)
        options = jnp.asarray(self.sampler_options, jnp.float32)

        def attempt(state: Any) -> Any:
            turn = state[0]
            fraction = jax.random.uniform(jax.random.fold_in(key, turn), (4 * self.trials + 1,))
            wanted = options[uniform_below(fraction[0], len(self.sampler_options))]
            crops = self._crops(fraction[1:].reshape(self.trials, 4), height, width)
            fits = self._fits(crops, boxes, valid, wanted)
            first = jnp.argmax(fits)
            whole = wanted >= 1.0
            return turn + 1, whole | fits[first], ~whole & fits[first], crops[first]

        def goes_on(state: Any) -> Any:
            return ~state[1] & (state[0] < _ROUNDS)

        start = (jnp.int32(0), jnp.array(False), jnp.array(False), jnp.zeros(4, jnp.int32))
        _, _, crop, box = jax.lax.while_loop(goes_on, attempt, start)
        box = jnp.where(crop, box, jnp.stack([jnp.zeros_like(height), 0 * width, height, width]))
        return {"crop": crop, **dict(zip(_BOX, box, strict=True))}

    def _crops(self, fraction: jax.Array, height: Any, width: Any) -> jax.Array:
        """Crops i32 [trials, 4] by fractions [trials, 4]: top, left, height, width."""
        scale = self.min_scale + (self.max_scale - self.min_scale) * fraction[:, :2]
        wide, high = (
            (width * scale[:, 0]).astype(jnp.int32),
            (height * scale[:, 1]).astype(jnp.int32),
        )
        left = ((width - wide) * fraction[:, 2]).astype(jnp.int32)
        top = ((height - high) * fraction[:, 3]).astype(jnp.int32)
        return jnp.stack([top, left, high, wide], axis=-1)

    def _fits(self, crops: jax.Array, boxes: Any, valid: Any, wanted: Any) -> Any:
        top, left, high, wide = (crops[:, k].astype(jnp.float32) for k in range(4))
        ratio = wide / jnp.maximum(high, 1.0)
        shaped = (ratio >= self.min_aspect_ratio) & (ratio <= self.max_aspect_ratio)
        shaped &= (high > 0) & (wide > 0)
        x, y = 0.5 * (boxes[:, 0] + boxes[:, 2]), 0.5 * (boxes[:, 1] + boxes[:, 3])
        right, bottom = left + wide, top + high
        centred = valid & (x > left[:, None]) & (x < right[:, None])
        centred &= (y > top[:, None]) & (y < bottom[:, None])
        shares = overlap(boxes, jnp.stack([left, top, right, bottom], axis=-1))
        return shaped & (centred & (shares >= wanted)).any(axis=1)

    def eval(self) -> tuple[Transform, ...]:
        """The whole image."""
        return ()

    def _size_after(self, size: Size, params: dict[str, Any]) -> Size:
        return self._box(params, size)[2:]

    def _box(self, params: dict[str, Any], size: Size) -> tuple[Any, Any, Any, Any]:
        """The crop, or the whole image; inside it whatever the parameters say."""
        crop = as_number(params["crop"])
        sides = []
        for start, length, whole in (
            (params["top"], params["height"], size[0]),
            (params["left"], params["width"], size[1]),
        ):
            first = clip(start * crop, 0, whole - 1)
            sides.append((first, clip(length * crop + whole * (1 - crop), 1, whole - first)))
        (top, height), (left, width) = sides
        return top, left, height, width

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        limit = chain.limit
        top, left, height, width = self._box(params, chain.size)
        chain.window((top, left), (height, width), None)
        chain.bound(limit, chain.values(self.canvas_fill, "canvas_fill"))

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, canvas_fill=fill)

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        box = self._box(params, size)
        return [boxed(box, box[2:], within=True, used=params["crop"])]


@dataclasses.dataclass(frozen=True)
class RandomZoomOut(_OfOwnSize):
    """Puts each image somewhere on a canvas up to four times as large, with probability p.

    Args:
      fill: a number, or one a channel, for the canvas, in the value space at its place.
      side_range: (low, high), from 1, of the canvas' sides as multiples of the image's.
      p: from 0 to 1.
    Parameters an image: top, left, height, width i32: the image's place, and the canvas' size;
    others than can be drawn count as the next that can.
    Raises: ValueError for ranges that begin below 1 or decrease, and p outside [0, 1].
    Source: Liu et al., SSD, 2016, section 3.6.

    >>> from jaxkern.image import RandomZoomOut
    >>> RandomZoomOut().side_range
    (1.0, 4.0)
    """

    fill: Any = 0
    side_range: Any = (1.0, 4.0)
    p: float = 0.5

    parameters: ClassVar[dict[str, str]] = _BOX

    def __post_init__(self) -> None:
        _set(
            self,
            fill=checks.per_channel(self.fill, "fill"),
            side_range=checks.interval(self.side_range, "side_range", 1.0, open_low=False),
            p=checks.probability(self.p),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws a canvas for one image of `size`, and its place there."""
        fraction = jax.random.uniform(key, (4,))
        low, high = self.side_range
        factor = jnp.where(fraction[0] < self.p, low + fraction[1] * (high - low), 1.0)
        drawn = []
        for side, place in zip(size, (fraction[2], fraction[3]), strict=True):
            side = jnp.asarray(side, jnp.int32)
            canvas = jnp.maximum((side * factor).astype(jnp.int32), side)
            drawn.append((((canvas - side) * place).astype(jnp.int32), canvas))
        (top, height), (left, width) = drawn
        return {"top": top, "left": left, "height": height, "width": width}

    def eval(self) -> tuple[Transform, ...]:
        """The image without a canvas."""
        return ()

    def _size_after(self, size: Size, params: dict[str, Any]) -> Size:
        return self._box(params, size)[2:]

    def _most(self, side: Any) -> Any:
        """The largest canvas of an image of so many pixels."""
        if is_static(side):
            return int(np.float32(side) * np.float32(self.side_range[1]))
        return (side.astype("float32") * np.float32(self.side_range[1])).astype("int32")

    def _box(self, params: dict[str, Any], size: Size) -> tuple[Any, Any, Any, Any]:
        """The canvas as seen from the image, which lies within whatever the parameters say."""
        sides = []
        for start, length, side in (
            (params["top"], params["height"], size[0]),
            (params["left"], params["width"], size[1]),
        ):
            canvas = clip(length, side, self._most(side))
            sides.append((0 - clip(start, 0, canvas - side), canvas))
        (top, height), (left, width) = sides
        return top, left, height, width

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        limit, fill = chain.limit, chain.values(self.fill, "fill")
        top, left, height, width = self._box(params, chain.size)
        chain.window((top, left), (height, width), fill)
        chain.bound(limit and (self._most(limit[0]), self._most(limit[1])), fill)

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, fill=fill)

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        box = self._box(params, size)
        return [boxed(box, box[2:])]


class _RandomResize(_OfOwnSize):
    """Resizes whole images to sizes of their own."""

    interpolation: str
    antialias: bool
    canvas: Any
    canvas_fill: Any

    parameters: ClassVar[dict[str, str]] = dict.fromkeys(("height", "width"), "int")

    def _checked(self, **fields: Any) -> None:
        _set(
            self,
            interpolation=checks.choice(self.interpolation, "interpolation", checks.RESAMPLINGS),
            antialias=bool(self.antialias),
            canvas=None if self.canvas is None else checks.size_pair(self.canvas, "canvas"),
            canvas_fill=checks.per_channel(self.canvas_fill, "canvas_fill"),
            **fields,
        )

    def _largest(self, size: Size) -> Size:
        """What images of `size` become without chance."""
        raise NotImplementedError

    def _limit(self, size: Size) -> tuple[int, int] | None:
        """The largest size that images of `size` may become, where it is known."""
        raise NotImplementedError

    def eval(self) -> tuple[Transform, ...]:
        """The resize without chance: by the factor 1, or to the largest of the sizes."""
        return (_Fitted(self),)

    def _size_after(self, size: Size, params: dict[str, Any]) -> Size:
        return clip(params["height"], 1, MAX_SIZE), clip(params["width"], 1, MAX_SIZE)

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        size = chain.size
        kind = _filter(self.interpolation, self.antialias)
        chain.resample(kind, (0, 0, *size), self._size_after(size, params))
        canvas = self._limit(size) if self.canvas is None else self.canvas
        chain.bound(canvas, chain.values(self.canvas_fill, "canvas_fill"))

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, interpolation="nearest", canvas_fill=fill)  # type: ignore

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [boxed((0, 0, *size), self._size_after(size, params), crops=False)]


@dataclasses.dataclass(frozen=True)
class ScaleJitter(_RandomResize):
    """Resizes each image to fit `target_size`, times a factor uniform in `scale_range`.

    Args:
      target_size: what an image is fitted into at the factor 1: (width, height), as torchvision
        reads it.
      scale_range: (low, high) above 0.
      interpolation, antialias: as of `Resize`.
      canvas: (height, width) of the output where no later transform gives all images one size;
        what is larger is cut off. None: the largest size that can be drawn.
      canvas_fill: a number, or one a channel, beside the image there.
    Parameters an image: height, width i32.
    Raises: ValueError for sizes below 1 and ranges that are none.
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
        """Draws the new size of one image of `size`."""
        low, high = self.scale_range
        height, width = (jnp.asarray(side, jnp.float32) for side in size)
        fit = jnp.minimum(self.target_size[1] / height, self.target_size[0] / width)
        factor = fit * (low + jax.random.uniform(key) * (high - low))
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
        most = self.scale_range[1]
        width, height = (max(math.ceil(side * most), 1) for side in self.target_size)
        return height, width


@dataclasses.dataclass(frozen=True)
class RandomShortestSize(_RandomResize):
    """Resizes each image so that its shorter side has a size drawn from `min_size`.

    Args:
      min_size: a size, or a list of them, each drawn alike.
      max_size: what the longer side is at most; None for no bound.
      interpolation, antialias: as of `Resize`.
      canvas, canvas_fill: as of `ScaleJitter`; the largest size is known where all images had one
        size, or with `max_size`.
    Parameters an image: height, width i32.
    Raises: ValueError for sizes below 1, and no sizes.

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
        given = self.min_size
        given = [given] if isinstance(given, numbers.Integral) else list(np.asarray(given).tolist())
        if not given:
            raise ValueError(f"min_size={self.min_size!r}; wanted a size, or at least one of them")
        self._checked(
            min_size=tuple(checks.whole(size, "min_size", 1, 2**24) for size in given),
            max_size=None
            if self.max_size is None
            else checks.whole(self.max_size, "max_size", 1, 2**24),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws the new size of one image of `size`."""
        place = uniform_below(jax.random.uniform(key), len(self.min_size))
        shortest = jnp.asarray(self.min_size, jnp.int32)[place]
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
    """A resize to the size that another transform gives without chance."""

    resize: Any

    geometric = True

    def output_size(self, size: Size) -> Size:
        return (None, None) if None in size else self.resize._largest(size)

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        size, resize = chain.size, self.resize
        new = resize._largest(size)
        chain.resample(_filter(resize.interpolation, resize.antialias), (0, 0, *size), new)
        if not is_static(*new):
            canvas = resize._limit(size) if resize.canvas is None else resize.canvas
            chain.bound(canvas, chain.values(resize.canvas_fill, "canvas_fill"))

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return _Fitted(self.resize._for_masks(fill))

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [boxed((0, 0, *size), self.output_size(size), crops=False)]


@dataclasses.dataclass(frozen=True)
class SanitizeBoundingBoxes(Transform):
    """Makes boxes invalid that are small, or that leave the image, at this place of the chain.

    At the end of every chain boxes are clamped to the image and those below one pixel in size or
    area are invalid; this is for other bounds.

    Args:
      min_size: of the shorter side, in pixels, at least 1.
      min_area: at least 1.
    Raises: ValueError for bounds below 1.

    >>> from jaxkern.image import SanitizeBoundingBoxes
    >>> SanitizeBoundingBoxes(min_size=4).min_area
    1.0
    """

    min_size: float = 1.0
    min_area: float = 1.0

    def __post_init__(self) -> None:
        for name in ("min_size", "min_area"):
            value = float(getattr(self, name))
            if not 1.0 <= value < math.inf:
                raise ValueError(f"{name}={getattr(self, name)!r}; wanted a finite number from 1")
            _set(self, **{name: value})

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        pass

    def _still_valid(self, boxes: Any, valid: Any, size: Size) -> Any:
        return valid & sane(boxes, size, self.min_size, self.min_area)
