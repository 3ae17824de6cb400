"""Bounding boxes: their formats, how they move, and which are left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.image.transforms.moves import Move, moved_points, of_images

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
