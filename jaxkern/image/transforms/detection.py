"""Transforms for object detection: crops by overlap, zooming out, and filters of boxes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Box, clip, is_static, per_axis
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.moves import Move, box_move, centred, overlap, sane, with_area
from jaxkern.image.transforms.sizes import PerImageSize
from jaxkern.image.transforms.transform import (
    BOX,
    Params,
    Size,
    Transform,
    as_number,
    box_of,
    set_fields,
    uniform_below,
)

_ROUNDS = 128  # overlaps that are tried before an image is left unchanged


def _overlaps(value: Any, name: str) -> tuple[float, ...]:
    if value is None:
        return (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    overlaps = [checks.number(each, name, "in each item") for each in value] if listed else []
    if not overlaps or not np.isfinite(overlaps).all():
        raise ValueError(checks.unexpected(name, "at least one finite overlap", value))
    return tuple(overlaps)


@dataclasses.dataclass(frozen=True)
class RandomIoUCrop(PerImageSize):
    """Crop so that a box overlaps the crop at least by a random amount, as SSD does.

    An overlap (intersection over union) is drawn from `sampler_options`, and then up to `trials`
    crops. The first crop is used that has an aspect ratio within bounds, contains the centre of a
    valid box, and overlaps such a box by that amount. If no crop fits, another overlap is drawn.
    An overlap of 1 or more leaves the image unchanged, as do 128 overlaps without a crop. Boxes
    with a centre outside the crop become invalid. `Compose.sample` needs the boxes.

    Args:
      min_scale, max_scale: sides of the crop, as fractions of the image's, up to 1.
      min_aspect_ratio, max_aspect_ratio: range of the crop's width over height.
      sampler_options: minimum overlaps; None for 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
      trials: crops for each overlap, at least 1.
      canvas_fill: a number, or one per channel, around images whose output sizes differ.
    Parameters of an image: crop bool; top, left, height, width i32, those of the complete image if
    it is not cropped.
    Source: Liu et al., SSD, 2016, section 2.2.

    >>> RandomIoUCrop().sampler_options
    (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Any = checked(_overlaps, None)
    trials: int = checked(checks.integer(1), 40)
    canvas_fill: Any = checked(checks.per_channel, 0)

    parameters: ClassVar = {"crop": "bool", **BOX}
    needs_boxes = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, check in (
            ("scale", checks.sequence(2, low=0.0, high=1.0, open_low=True)),
            ("aspect_ratio", checks.sequence(2, low=0.0)),
        ):
            names = f"min_{name}", f"max_{name}"
            ends = check(tuple(getattr(self, each) for each in names), f"({', '.join(names)})")
            set_fields(self, **dict(zip(names, ends, strict=True)))

    def sample(
        self, key: jax.Array, size: Size, boxes: Any = None, valid: Any = None
    ) -> dict[str, jax.Array]:
        if boxes is None:
            raise ValueError("RandomIoUCrop: expected boxes, got none; pass the field 'boxes'")
        height, width = (jnp.asarray(side, jnp.int32) for side in size)
        valid = with_area(boxes) if valid is None else valid & with_area(boxes)
        options = jnp.asarray(self.sampler_options, jnp.float32)

        def attempt(state: Any) -> Any:
            round_number = state[0]
            fraction = jax.random.uniform(
                jax.random.fold_in(key, round_number), (4 * self.trials + 1,), jnp.float32
            )
            overlap = options[uniform_below(fraction[0], len(self.sampler_options))]
            crops = self._crops(fraction[1:].reshape(self.trials, 4), height, width)
            fits = self._fits(crops, boxes, valid, overlap)
            first = jnp.argmax(fits)
            full = overlap >= 1.0
            return round_number + 1, full | fits[first], ~full & fits[first], crops[first]

        def unfinished(state: Any) -> Any:
            return ~state[1] & (state[0] < _ROUNDS)

        start = (jnp.int32(0), jnp.array(False), jnp.array(False), jnp.zeros(4, jnp.int32))
        _, _, crop, box = jax.lax.while_loop(unfinished, attempt, start)
        box = jnp.where(crop, box, jnp.stack([jnp.zeros_like(height), 0 * width, height, width]))
        return {"crop": crop, **dict(zip(BOX, box, strict=True))}

    def _crops(self, fraction: jax.Array, height: Any, width: Any) -> jax.Array:
        """Return crops i32 [trials, 4] (top, left, height, width) of fractions [trials, 4]."""
        scale = self.min_scale + (self.max_scale - self.min_scale) * fraction[:, :2]
        wide = (width * scale[:, 0]).astype(jnp.int32)
        high = (height * scale[:, 1]).astype(jnp.int32)
        left = ((width - wide) * fraction[:, 2]).astype(jnp.int32)
        top = ((height - high) * fraction[:, 3]).astype(jnp.int32)
        return jnp.stack([top, left, high, wide], axis=-1)

    def _fits(self, crops: jax.Array, boxes: Any, valid: Any, min_overlap: Any) -> Any:
        top, left, high, wide = (crops[:, k].astype(jnp.float32) for k in range(4))
        ratio = wide / jnp.maximum(high, 1.0)
        shaped = (ratio >= self.min_aspect_ratio) & (ratio <= self.max_aspect_ratio)
        shaped &= (high > 0) & (wide > 0)
        shares = overlap(boxes, jnp.stack([left, top, left + wide, top + high], axis=-1))
        fits = valid & centred(boxes, top, left, high, wide) & (shares >= min_overlap)
        return shaped & fits.any(axis=1)

    def size_after(self, size: Size, params: Params) -> Size:
        return self._box(params, size)[2:]

    def _box(self, params: Params, size: Size) -> Box:
        """Return the crop, or the complete image; the result is always inside the image."""
        crop, box = as_number(params["crop"]), box_of(params)

        def side(start: Any, length: Any, extent: Any) -> tuple[Any, Any]:
            first = clip(start * crop, 0, extent - 1)
            return first, clip(length * crop + extent * (1 - crop), 1, extent - first)

        return per_axis(side, box[:2], box[2:], size)

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        limit = chain.limit
        top, left, height, width = self._box(params, chain.size)
        chain.window((top, left), (height, width), None)
        chain.bound(limit, chain.values(self.canvas_fill, "canvas_fill"))

    def moves(self, params: Params, size: Size) -> list[Move]:
        box = self._box(params, size)
        return [box_move(box, box[2:], within=True, used=params["crop"])]


@dataclasses.dataclass(frozen=True)
class RandomZoomOut(PerImageSize):
    """Place each image on a canvas up to four times as large, with probability p.

    Args:
      fill: a number, or one per channel, for the canvas, in the value space at this position.
      side_range: (low, high), from 1: sides of the canvas as multiples of the image's.
      p: from 0 to 1.
    Parameters of an image: top, left, height, width i32: the position of the image, and the size of
    the canvas. Values that cannot be drawn are clamped to the nearest that can.
    Source: Liu et al., SSD, 2016, section 3.6.

    >>> RandomZoomOut().side_range
    (1.0, 4.0)
    """

    fill: Any = checked(checks.per_channel, 0)
    side_range: Any = checked(checks.sequence(2, low=1.0), (1.0, 4.0))
    p: float = checked(checks.probability, 0.5)

    parameters = BOX

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fraction = jax.random.uniform(key, (4,), jnp.float32)
        low, high = self.side_range
        factor = jnp.where(fraction[0] < self.p, low + fraction[1] * (high - low), 1.0)

        def side(length: Any, position: jax.Array) -> tuple[Any, Any]:
            length = jnp.asarray(length, jnp.int32)
            canvas = jnp.maximum((length * factor).astype(jnp.int32), length)
            return ((canvas - length) * position).astype(jnp.int32), canvas

        return dict(zip(BOX, per_axis(side, size, fraction[2:]), strict=True))

    def size_after(self, size: Size, params: Params) -> Size:
        return self._box(params, size)[2:]

    def _largest_canvas(self, side: Any) -> Any:
        if is_static(side):
            return int(np.float32(side) * np.float32(self.side_range[1]))
        return (side.astype("float32") * np.float32(self.side_range[1])).astype("int32")

    def _box(self, params: Params, size: Size) -> Box:
        """Return the canvas relative to the image, which is inside it for all parameters."""
        box = box_of(params)

        def side(start: Any, length: Any, extent: Any) -> tuple[Any, Any]:
            canvas = clip(length, extent, self._largest_canvas(extent))
            return 0 - clip(start, 0, canvas - extent), canvas

        return per_axis(side, box[:2], box[2:], size)

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        limit, fill = chain.limit, chain.values(self.fill, "fill")
        box = self._box(params, chain.size)
        chain.window(box[:2], box[2:], fill)
        chain.bound(
            limit and (self._largest_canvas(limit[0]), self._largest_canvas(limit[1])), fill
        )

    def moves(self, params: Params, size: Size) -> list[Move]:
        box = self._box(params, size)
        return [box_move(box, box[2:])]


@dataclasses.dataclass(frozen=True)
class SanitizeBoundingBoxes(Transform):
    """Invalidate boxes that are small or leave the image, at this position of the chain.

    Every chain ends by clamping boxes to the image and invalidating those below one pixel in size
    or area; use this transform for other bounds.

    Args:
      min_size: lower bound of the shorter side, in pixels, at least 1.
      min_area: lower bound of the area, at least 1.

    >>> SanitizeBoundingBoxes(min_size=4).min_area
    1.0
    """

    min_size: float = checked(checks.bounded(1.0), 1.0)
    min_area: float = checked(checks.bounded(1.0), 1.0)

    kind = "chain"

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        pass

    def valid_boxes(self, boxes: Any, valid: Any, size: Size) -> Any:
        return valid & sane(boxes, size, self.min_size, self.min_area)
