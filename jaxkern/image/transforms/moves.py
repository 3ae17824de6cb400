"""Maps of points and boxes with the pixels of each image; pixel k of a row covers k to k + 1."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Box, Number, Size, is_static
from jaxkern.image.program.program import Code, Step, forward_coefficients


@dataclasses.dataclass(frozen=True)
class Move:
    """A map of points f32 [N, P, 2] of each image; points without an image become NaN."""

    forward: Callable[[jax.Array], jax.Array]
    used: Any = True  # images in which points move, a bool or bools [N]
    # Bools, or bools [N], along x and y: keypoints that are pixel indices move by 1 less.
    mirrored: tuple[Any, Any] = (False, False)
    crops: bool = True  # boxes are clamped to the new image
    # (top, left, height, width) before the move: boxes centred outside it are lost.
    within: Box | None = None

    def where(self, used: Any) -> Move:
        """Restrict the move to images where `used`, a bool or bools [N], is True."""
        both = self.used & used if hasattr(used, "dtype") else (self.used if used else False)
        return dataclasses.replace(self, used=both)


def box_move(
    box: Box, size: Size, crops: bool = True, within: bool = False, used: Any = True
) -> Move:
    """Return the move that resizes the box (top, left, height, width) of an image to `size`."""
    top, left, height, width = box

    def forward(points: jax.Array) -> jax.Array:
        x = _resized(points[..., 0] - per_image(left), width, size[1])
        y = _resized(points[..., 1] - per_image(top), height, size[0])
        return jnp.stack([x, y], axis=-1)

    return Move(forward, used, crops=crops, within=box if within else None)


def _resized(position: jax.Array, length: Number, size: Number) -> Any:
    """Scale positions from the nearer end, so that both ends map to ends exactly."""
    ratio, last = _ratio(size, length), per_image(length)
    from_end = per_image(size) - (last - position) * ratio
    return jnp.where(2.0 * position > last, from_end, position * ratio)


def mirror(size: Size, rows: Any, columns: Any) -> Move:
    """Return the move that mirrors rows and columns of images of `size` where bools are True."""

    def forward(points: jax.Array) -> jax.Array:
        x, y = points[..., 0], points[..., 1]
        x = jnp.where(_flags(columns), per_image(size[1]) - x, x)
        y = jnp.where(_flags(rows), per_image(size[0]) - y, y)
        return jnp.stack([x, y], axis=-1)

    return Move(forward, mirrored=(columns, rows), crops=False)


_WARPS = (Code.WARP, Code.PERSPECTIVE, Code.ELASTIC, Code.TURN)


def warps(steps: Sequence[Step]) -> list[Step]:
    """Return the steps of a program that may warp, restricted to their warps."""
    if any(Code.KEEP in static.codes for _, _, static in steps):
        raise ValueError("AugMix: expected no masks, boxes and keypoints, since it mixes warps")
    return [
        (code, values, dataclasses.replace(static, codes=codes))
        for code, values, static in steps
        if (codes := tuple(each for each in static.codes if each in _WARPS))
    ]


def warp_moves(steps: Sequence[Step], size: tuple[int, int]) -> list[Move]:
    """Return the moves of a program's warps on images of `size`; other steps move nothing."""
    moves = []
    for code, values, static in warps(steps):
        code, values = jnp.asarray(code), jnp.asarray(values, jnp.float32)
        matches = [code == int(each) for each in static.codes]
        # A program does not change an image if its coefficients are not finite.
        used = functools.reduce(jnp.logical_or, matches) & jnp.isfinite(values).all(axis=-1)
        moves.append(Move(_projection(values, code == int(Code.WARP), size), used))
    return moves


def _projection(
    values: jax.Array, affine: jax.Array, size: tuple[int, int]
) -> Callable[[jax.Array], jax.Array]:
    def forward(points: jax.Array) -> jax.Array:
        inverse = forward_coefficients(values, affine, size=size)
        a, b, c, d, e, f, g, h = jnp.moveaxis(inverse, -1, 0)[..., None]
        x, y = points[..., 0], points[..., 1]
        depth = g * x + h * y + 1.0
        # Points with a depth of 0 or less are not visible.
        near = 1.0 / jnp.where(depth > 0.0, depth, jnp.nan)
        return jnp.stack([(a * x + b * y + c) * near, (d * x + e * y + f) * near], axis=-1)

    return forward


def per_image(value: Any) -> Any:
    """Reshape a number, or one per image, to broadcast with values [N, P] as float32."""
    return jnp.asarray(value, jnp.float32).reshape(-1, 1)


def _flags(value: Any) -> Any:
    return jnp.asarray(value).astype(bool).reshape(-1, 1)


def _ratio(size: Number, length: Number) -> Any:
    if is_static(size, length):
        return np.float32(size / length) if length else np.float32(np.nan)
    return per_image(size) / per_image(length)


def moved_points(points: jax.Array, move: Move) -> jax.Array:
    if move.used is True:
        return move.forward(points)
    return jnp.where(_flags(move.used)[..., None], move.forward(points), points)


FORMATS = ("xyxy", "xywh", "cxcywh")


def to_corners(boxes: jax.Array, form: str) -> jax.Array:
    """Convert boxes [..., 4] of a format to (left, top, right, bottom)."""
    if form == "xyxy":
        return boxes
    first, sides = boxes[..., :2], boxes[..., 2:]
    if form == "cxcywh":
        first = first - 0.5 * sides
    return jnp.concatenate([first, first + sides], axis=-1)


def from_corners(boxes: jax.Array, form: str) -> jax.Array:
    """Convert boxes [..., 4] (left, top, right, bottom) to a format."""
    if form == "xyxy":
        return boxes
    first, last = boxes[..., :2], boxes[..., 2:]
    if form == "cxcywh":
        return jnp.concatenate([0.5 * (first + last), last - first], axis=-1)
    return jnp.concatenate([first, last - first], axis=-1)


def clamped(boxes: jax.Array, size: Size) -> jax.Array:
    """Clip boxes [N, K, 4] to images of `size` (height, width), numbers or [N]."""
    height, width = (per_image(side)[..., None] for side in size)
    x, y = jnp.clip(boxes[..., 0::2], 0.0, width), jnp.clip(boxes[..., 1::2], 0.0, height)
    return jnp.stack([x[..., 0], y[..., 0], x[..., 1], y[..., 1]], axis=-1)


def with_area(boxes: jax.Array) -> jax.Array:
    """Return which boxes [..., 4] are finite and have a positive width and height."""
    positive = (boxes[..., 2] > boxes[..., 0]) & (boxes[..., 3] > boxes[..., 1])
    return positive & jnp.isfinite(boxes).all(axis=-1)


def sane(boxes: jax.Array, size: Size, min_size: float, min_area: float) -> Any:
    """Return which boxes [N, K, 4] torchvision's SanitizeBoundingBoxes keeps."""
    height, width = (per_image(side) for side in size)
    wide, high = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
    large = (wide >= min_size) & (high >= min_size) & (wide * high >= min_area)
    inside = (boxes[..., 2] <= width) & (boxes[..., 3] <= height) & (boxes >= 0.0).all(axis=-1)
    return large & inside


def moved_boxes(
    boxes: jax.Array, valid: jax.Array, moves: Sequence[Move], size: Size
) -> tuple[jax.Array, jax.Array]:
    """Return bounding boxes [N, K, 4] of moved corners in images of `size`, and their validity."""
    for move in moves:
        corners = boxes[..., [0, 1, 2, 1, 2, 3, 0, 3]]
        count, number = boxes.shape[:2]
        points = moved_points(corners.reshape(count, 4 * number, 2), move)
        points = points.reshape(count, number, 4, 2)
        new_boxes = jnp.concatenate([points.min(axis=2), points.max(axis=2)], axis=-1)
        remaining = valid
        if move.crops:
            new_boxes = clamped(new_boxes, size)
            remaining = remaining & with_area(new_boxes)
        if move.within is not None:
            remaining = remaining & centred(boxes, *move.within)
        used = jnp.asarray(move.used).reshape(-1, 1)
        boxes = jnp.where(used[..., None], new_boxes, boxes)
        valid = jnp.where(used, remaining, valid)
    return boxes, valid


def centred(boxes: jax.Array, top: Any, left: Any, height: Any, width: Any) -> Any:
    """Return which boxes [..., K, 4] have their centre within each of N boxes: bool [N, K]."""
    x, y = 0.5 * (boxes[..., 0] + boxes[..., 2]), 0.5 * (boxes[..., 1] + boxes[..., 3])
    top, left, height, width = (per_image(value) for value in (top, left, height, width))
    return (x > left) & (x < left + width) & (y > top) & (y < top + height)


def overlap(boxes: jax.Array, crops: jax.Array) -> jax.Array:
    """Return intersection over union [T, K] of boxes [K, 4] and crops [T, 4]; 0 if undefined."""
    first = jnp.maximum(boxes[None, :, :2], crops[:, None, :2])
    last = jnp.minimum(boxes[None, :, 2:], crops[:, None, 2:])
    shared = jnp.prod(jnp.maximum(last - first, 0.0), axis=-1)
    of_boxes, of_crops = (jnp.prod(x[:, 2:] - x[:, :2], axis=-1) for x in (boxes, crops))
    union = of_boxes[None, :] + of_crops[:, None] - shared
    return jnp.where(union > 0.0, shared / jnp.where(union > 0.0, union, 1.0), 0.0)
