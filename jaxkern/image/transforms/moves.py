"""How transforms move points: maps of coordinates that follow the pixels of each image.

Coordinates (x, y) count from the corner of the image, so that pixel k of a row reaches from k to
k + 1, and 0 to W lie inside.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Number, is_static
from jaxkern.image.program.coefficients import forward_coefficients
from jaxkern.image.program.program import Code, Step


@dataclasses.dataclass(frozen=True)
class Move:
    """A map of points of each image, and what else becomes of boxes and keypoints.

    Attributes:
      forward: points f32 [N, P, 2] before to those after; NaN for what goes nowhere.
      used: in which images, a bool or bools [N]; in the others points stay.
      mirrored: bools, or bools [N], along x and y: there keypoints that name pixels move by 1 less.
      crops: whether pixels outside the image after it are lost: boxes are clamped to it.
      within: (top, left, height, width) before the move: boxes with a centre outside it are lost.
    """

    forward: Callable[[jax.Array], jax.Array]
    used: Any = True
    mirrored: tuple[Any, Any] = (False, False)
    crops: bool = True
    within: tuple[Number, Number, Number, Number] | None = None

    def where(self, used: Any) -> Move:
        """The move in images where `used`, too, a bool or bools [N]."""
        both = self.used & used if hasattr(used, "dtype") else (self.used if used else False)
        return dataclasses.replace(self, used=both)


def boxed(
    box: tuple[Number, Number, Number, Number],
    size: tuple[Number, Number],
    crops: bool = True,
    within: bool = False,
    used: Any = True,
) -> Move:
    """The box (top, left, height, width) of an image is resized to `size`."""
    top, left, height, width = box

    def forward(points: jax.Array) -> jax.Array:
        x = _resized(points[..., 0] - of_images(left), width, size[1])
        y = _resized(points[..., 1] - of_images(top), height, size[0])
        return jnp.stack([x, y], axis=-1)

    return Move(forward, used, crops=crops, within=box if within else None)


def _resized(place: jax.Array, length: Number, size: Number) -> Any:
    """Counted from the nearer end, so that both ends go to ends exactly."""
    ratio, last = _ratio(size, length), of_images(length)
    from_end = of_images(size) - (last - place) * ratio
    return jnp.where(2.0 * place > last, from_end, place * ratio)


def mirror(size: tuple[Number, Number], rows: Any, columns: Any) -> Move:
    """Rows, columns or both of images of `size` are mirrored where bools, or bools [N], say so."""

    def forward(points: jax.Array) -> jax.Array:
        x, y = points[..., 0], points[..., 1]
        x = jnp.where(_flags(columns), of_images(size[1]) - x, x)
        y = jnp.where(_flags(rows), of_images(size[0]) - y, y)
        return jnp.stack([x, y], axis=-1)

    return Move(forward, mirrored=(columns, rows), crops=False)


_WARPS = (Code.WARP, Code.PERSPECTIVE, Code.ELASTIC, Code.TURN)


def warps(steps: Sequence[Step]) -> list[Step]:
    """The steps of a program that may warp, which do nothing else.

    Raises:
      ValueError: for a program that takes a mean of differently warped copies.
    """
    if any(Code.KEEP in static.codes for _, _, static in steps):
        raise ValueError(
            "AugMix takes the mean of differently warped copies, in which masks, boxes and "
            "keypoints have no one place; wanted RandAugment, TrivialAugmentWide or colours"
        )
    found = []
    for code, values, static in steps:
        codes = tuple(each for each in static.codes if each in _WARPS)
        if codes:
            found.append((code, values, dataclasses.replace(static, codes=codes)))
    return found


def warped(steps: Sequence[Step], size: tuple[int, int]) -> list[Move]:
    """What the warps of a program on images of `size` move; its other operations move nothing."""
    moves = []
    for code, values, static in warps(steps):
        code, values = jnp.asarray(code), jnp.asarray(values, jnp.float32)
        drawn = [code == int(each) for each in static.codes]
        # A program leaves an image alone whose coefficients are not finite.
        used = functools.reduce(jnp.logical_or, drawn) & jnp.isfinite(values).all(axis=-1)
        moves.append(Move(_through(values, code == int(Code.WARP), size), used))
    return moves


def _through(
    values: jax.Array, affine: jax.Array, size: tuple[int, int]
) -> Callable[[jax.Array], jax.Array]:
    def forward(points: jax.Array) -> jax.Array:
        inverse = forward_coefficients(values, affine, size=size)
        a, b, c, d, e, f, g, h = jnp.moveaxis(inverse, -1, 0)[..., None]
        x, y = points[..., 0], points[..., 1]
        depth = g * x + h * y + 1.0
        # Not above 0: behind who looks at the plane.
        near = 1.0 / jnp.where(depth > 0.0, depth, jnp.nan)
        return jnp.stack([(a * x + b * y + c) * near, (d * x + e * y + f) * near], axis=-1)

    return forward


def of_images(value: Any) -> Any:
    """A number, or one an image, against values [N, P] as float32."""
    return jnp.asarray(value, jnp.float32).reshape(-1, 1)


def _flags(value: Any) -> Any:
    return jnp.asarray(value).astype(bool).reshape(-1, 1)


def _ratio(size: Number, length: Number) -> Any:
    if is_static(size, length):
        return np.float32(size / length) if length else np.float32(np.nan)
    return of_images(size) / of_images(length)


def moved_points(points: jax.Array, move: Move) -> jax.Array:
    """Points f32 [N, P, 2] after a move."""
    if move.used is True:
        return move.forward(points)
    return jnp.where(_flags(move.used)[..., None], move.forward(points), points)


FORMATS = ("xyxy", "xywh", "cxcywh")


def to_corners(boxes: jax.Array, form: str) -> jax.Array:
    """Boxes [..., 4] of a format as (left, top, right, bottom)."""
    if form == "xyxy":
        return boxes
    first, sides = boxes[..., :2], boxes[..., 2:]
    if form == "cxcywh":
        first = first - 0.5 * sides
    return jnp.concatenate([first, first + sides], axis=-1)


def from_corners(boxes: jax.Array, form: str) -> jax.Array:
    """Boxes [..., 4] (left, top, right, bottom) in a format."""
    if form == "xyxy":
        return boxes
    first, last = boxes[..., :2], boxes[..., 2:]
    if form == "cxcywh":
        return jnp.concatenate([0.5 * (first + last), last - first], axis=-1)
    return jnp.concatenate([first, last - first], axis=-1)


def clamped(boxes: jax.Array, size: Sequence[Any]) -> jax.Array:
    """The parts of boxes [N, K, 4] inside images of `size` (height, width), numbers or [N]."""
    height, width = (of_images(side)[..., None] for side in size)
    x, y = jnp.clip(boxes[..., 0::2], 0.0, width), jnp.clip(boxes[..., 1::2], 0.0, height)
    return jnp.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], axis=-1)


def with_area(boxes: jax.Array) -> jax.Array:
    """Which boxes [..., 4] are finite and have a positive width and height."""
    positive = (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
    return positive & jnp.isfinite(boxes).all(axis=-1)


def sane(boxes: jax.Array, size: Sequence[Any], min_size: float, min_area: float) -> Any:
    """Which boxes [N, K, 4] torchvision's SanitizeBoundingBoxes keeps."""
    height, width = (of_images(side) for side in size)
    wide, high = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    large = (wide >= min_size) & (high >= min_size) & (wide * high >= min_area)
    inside = (boxes[..., 2] <= width) & (boxes[..., 3] <= height) & (boxes >= 0.0).all(axis=-1)
    return large & inside


def moved_boxes(
    boxes: jax.Array, valid: jax.Array, moves: Sequence[Move], size: Sequence[Any]
) -> tuple[jax.Array, jax.Array]:
    """Boxes [N, K, 4] around where their corners go, in images that then have `size`.

    Also which of those that are valid are still there: bool [N, K].
    """
    for move in moves:
        corners = boxes[..., [0, 1, 2, 1, 2, 3, 0, 3]]
        count, number = boxes.shape[:2]
        points = moved_points(corners.reshape(count, 4 * number, 2), move)
        points = points.reshape(count, number, 4, 2)
        found = jnp.concatenate([points.min(axis=2), points.max(axis=2)], axis=-1)
        kept = valid
        if move.crops:
            found = clamped(found, size)
            kept = kept & with_area(found)
        if move.within is not None:
            kept = kept & _centred(boxes, *move.within)
        used = jnp.asarray(move.used).reshape(-1, 1)
        boxes = jnp.where(used[..., None], found, boxes)
        valid = jnp.where(used, kept, valid)
    return boxes, valid


def _centred(boxes: jax.Array, top: Any, left: Any, height: Any, width: Any) -> Any:
    """Which boxes [N, K, 4] have their centre within another one of each image."""
    x, y = 0.5 * (boxes[..., 0] + boxes[..., 2]), 0.5 * (boxes[..., 1] + boxes[..., 3])
    top, left, height, width = (of_images(value) for value in (top, left, height, width))
    return (x > left) & (x < left + width) & (y > top) & (y < top + height)


def overlap(boxes: jax.Array, crops: jax.Array) -> jax.Array:
    """Intersection over union of boxes [K, 4] and crops [T, 4]: [T, K]; 0 where both are empty."""
    first = jnp.maximum(boxes[None, :, :2], crops[:, None, :2])
    last = jnp.minimum(boxes[None, :, 2:], crops[:, None, 2:])
    shared = jnp.prod(jnp.maximum(last - first, 0.0), axis=-1)
    areas = (jnp.prod(given[:, 2:] - given[:, :2], axis=-1) for given in (boxes, crops))
    of_boxes, of_crops = areas
    union = of_boxes[None, :] + of_crops[:, None] - shared
    return jnp.where(union > 0.0, shared / jnp.where(union > 0.0, union, 1.0), 0.0)
