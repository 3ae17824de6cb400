"""Masks, boxes and keypoints that move with their images: what `Compose` does with a dict."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.integers import to_int32
from jaxkern.image import checks
from jaxkern.image.boxes import (
    FORMATS,
    clamped,
    from_corners,
    moved_boxes,
    sane,
    to_corners,
    with_area,
)
from jaxkern.image.moves import Move, moved_points, of_images, warps
from jaxkern.image.plan import CHANNEL_COUNTS
from jaxkern.image.program import Step
from jaxkern.image.ragged import Ragged
from jaxkern.image.transform import Size, Transform

KEYPOINTS = ("torchvision", "centers")
TARGETS = ("mask", "boxes", "keypoints")


class Formats(NamedTuple):
    """How a chain reads targets: boxes, what a keypoint names, and a mask's fill."""

    boxes: str
    keypoints: str
    mask_fill: float


def checked_formats(boxes: Any, keypoints: Any, mask_fill: Any) -> Formats:
    """Raises ValueError for other words, and a fill that is no number."""
    if isinstance(mask_fill, bool | str) or np.ndim(mask_fill) != 0:
        raise ValueError(f"mask_fill={mask_fill!r}; wanted one number, a mask's label")
    return Formats(
        checks.choice(boxes, "boxes", FORMATS),
        checks.choice(keypoints, "keypoints", KEYPOINTS),
        mask_fill,
    )


# -- masks ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _WarpsOfMasks(Transform):
    """The warps among the operations of another transform, by nearest."""

    transform: Transform
    fill: tuple[float, ...]

    stage = "program"
    geometric = True

    @property
    def parameters(self) -> dict[str, str]:  # type: ignore[override]
        return self.transform.parameters

    def output_size(self, size: Size) -> Size:
        return self.transform.output_size(size)

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        steps = warps(self.transform._program(params, size))
        return [
            (code, values, dataclasses.replace(static, interpolation="nearest", fill=self.fill))
            for code, values, static in steps
        ]

    def _spread(self, params: dict[str, Any], size: Size) -> list[tuple[Transform, dict[str, Any]]]:
        return [
            (of_masks, given)
            for part, given in self.transform._spread(params, size)
            for _, of_masks in mask_transforms([part], self.fill)
        ]


def mask_transforms(
    transforms: Sequence[Transform], fill: tuple[float, ...]
) -> list[tuple[int, Transform]]:
    """What does to masks what transforms do to images, each with its place among them."""
    found: list[tuple[int, Transform]] = []
    for place, transform in enumerate(transforms):
        if not transform.geometric:
            continue
        if transform.stage == "program":
            found.append((place, _WarpsOfMasks(transform, fill)))
        else:
            of_masks = transform._for_masks(fill)
            if of_masks is not None:
                found.append((place, of_masks))
    return found


class MaskBytes(NamedTuple):
    """Masks as uint8 images, which crops, warps and resizes by nearest move bit by bit.

    Attributes:
      images: u8 [N, H, W, C], or [N, F, H, W, C] of F masks an image.
      fill: a value a byte.
      restored: images moved -> masks.
    """

    images: Any
    fill: tuple[float, ...]
    restored: Any


def mask_bytes(mask: Any, images: Any, fill: float) -> MaskBytes:
    """Checks masks beside images [N, H, W, C], or [N, T, H, W, C], and takes them apart.

    Raises:
      TypeError: for what is no array of labels.
      ValueError: for other shapes than the images', and a fill that the labels' type has not.
    """
    if isinstance(images, Ragged) or isinstance(mask, Ragged):
        return _ragged_bytes(mask, images, fill)
    if not hasattr(mask, "shape") or not hasattr(mask, "dtype"):
        raise TypeError(f"mask is a {type(mask).__name__}; wanted an array [N, H, W]")
    leading = images.shape[:-1]
    if mask.shape[: len(leading)] != leading or mask.ndim not in (len(leading), len(leading) + 1):
        raise ValueError(
            f"mask has shape {mask.shape} and the images {images.shape}; wanted {leading} or "
            f"{(*leading, 'M')}: a label a pixel, or M of them, of the size of the image"
        )
    mask, dtype = _canonical_labels(mask)
    planes = mask.ndim > len(leading)
    together = planes and mask.dtype.itemsize == 1 and mask.shape[-1] in CHANNEL_COUNTS
    moved = jnp.moveaxis(mask, -1, 1) if planes and not together else mask
    pixels = jax.lax.bitcast_convert_type(moved, jnp.uint8)
    if pixels.ndim == moved.ndim and not together:  # labels of one byte
        pixels = pixels[..., None]
    # An image's planes and frames are images of their own, with the same parameters.
    frames = pixels.shape[1:-3]
    if frames:
        pixels = pixels.reshape(pixels.shape[0], int(np.prod(frames)), *pixels.shape[-3:])

    def restored(result: jax.Array) -> jax.Array:
        result = result.reshape(result.shape[0], *frames, *result.shape[-3:])
        if mask.dtype.itemsize == 1 and not together:
            result = result[..., 0]
        labels = jax.lax.bitcast_convert_type(result, mask.dtype)
        if planes and not together:
            labels = jnp.moveaxis(labels, 1, -1)
        return labels.astype(dtype)

    return MaskBytes(pixels, _fill_bytes(fill, dtype, mask.dtype), restored)


def _canonical_labels(mask: Any) -> tuple[jax.Array, Any]:
    """Labels of one or four bytes, and their own type."""
    kind, size = np.dtype(mask.dtype).kind, np.dtype(mask.dtype).itemsize
    if kind == "b":
        return jnp.asarray(mask).astype(jnp.uint8), jnp.dtype(bool)
    if kind in "iu" and size == 8:
        mask = jnp.asarray(to_int32(mask, "mask"))
    floating = jnp.issubdtype(mask.dtype, jnp.floating)
    if kind not in "iu" and (not floating or size > 4):
        raise TypeError(
            f"mask has dtype {mask.dtype}; wanted bool, integers or floats of at most 32 bits"
        )
    mask = jnp.asarray(mask)
    if mask.dtype.itemsize == 2:
        return mask.astype(jnp.float32 if floating else jnp.int32), mask.dtype
    return mask, mask.dtype


def _fill_bytes(fill: float, dtype: Any, stored: Any) -> tuple[float, ...]:
    labels = np.dtype(dtype)
    if labels.kind in "iu":
        limits = np.iinfo(labels)
        if fill != int(fill) or not limits.min <= fill <= limits.max:
            raise ValueError(f"mask_fill={fill!r}, which masks of {labels.name} do not hold")
    value = np.asarray(bool(fill) if labels.kind == "b" else fill).astype(stored)
    return tuple(float(byte) for byte in value.reshape(1).view(np.uint8))


def _ragged_bytes(mask: Any, images: Any, fill: float) -> MaskBytes:
    if not (isinstance(images, Ragged) and isinstance(mask, Ragged)):
        raise TypeError(
            f"mask is a {type(mask).__name__} and image a {type(images).__name__}; wanted both as "
            "arrays, or both as Ragged"
        )
    if mask.height.shape != images.height.shape:
        raise ValueError(
            f"mask holds {mask.height.shape[0]} masks and image {images.height.shape[0]} images"
        )
    for name in ("height", "width"):
        sizes = getattr(mask, name), getattr(images, name)
        known = all(isinstance(side, np.ndarray) for side in sizes)
        if known and (sizes[0] != sizes[1]).any():
            at = int(np.argmax(sizes[0] != sizes[1]))
            raise ValueError(
                f"mask {at} has a {name} of {sizes[0][at]} and its image of {sizes[1][at]}; wanted "
                "masks of the size of their images"
            )

    def restored(result: jax.Array) -> jax.Array:
        return result[..., 0] if mask.channels == 1 else result

    return MaskBytes(mask, _fill_bytes(fill, np.uint8, np.uint8), restored)


# -- boxes and keypoints --------------------------------------------------------------------------


def checked_boxes(boxes: Any, valid: Any, count: int, form: str) -> tuple[Any, Any]:
    """Boxes of a format as f32 [N, K, 4] (left, top, right, bottom), and which have an area.

    Raises:
      TypeError, ValueError: for other shapes and dtypes than [N, ..., 4] and [N, ...].
    """
    boxes = _checked_points(boxes, "boxes", count, 4)
    flags = _checked_flags(valid, "boxes_valid", boxes.shape[:-1])
    corners = to_corners(boxes.reshape(*flags.shape, 4), form)
    return corners, with_area(corners) & flags


def _checked_points(values: Any, name: str, count: int, numbers: int) -> jax.Array:
    wanted = f"floats or integers [{count}, K, {numbers}]"
    if not hasattr(values, "shape") or not hasattr(values, "dtype"):
        raise TypeError(f"{name} is a {type(values).__name__}; wanted an array: {wanted}")
    if np.dtype(values.dtype).kind not in "iu" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(f"{name} has dtype {values.dtype}; wanted {wanted}")
    if len(values.shape) < 3 or values.shape[0] != count or values.shape[-1] != numbers:
        raise ValueError(
            f"{name} has shape {values.shape}; wanted {wanted}: as many for each image, those that "
            "are missing 0 or NaN"
        )
    return jnp.asarray(values, jnp.float32)


def _checked_flags(flags: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Bools [N, K] of what is given, all True where nothing is."""
    flat = (shape[0], int(np.prod(shape[1:])))
    if flags is None:
        return jnp.ones(flat, bool)
    if not hasattr(flags, "dtype") or np.dtype(flags.dtype).kind not in "biu":
        given = getattr(flags, "dtype", type(flags).__name__)
        raise TypeError(f"{name} is {given}; wanted bools or integers {shape}")
    if flags.shape != shape:
        raise ValueError(f"{name} has shape {flags.shape}; wanted {shape}: one value each")
    return jnp.asarray(flags).astype(bool).reshape(flat)


class _Passage(NamedTuple):
    """What one transform does to targets, and the size of the images after it."""

    transform: Transform
    moves: list[Move]
    size: Size


def passages(
    transforms: Sequence[Transform],
    params: Sequence[dict[str, Any]],
    size: Size,
    points: bool = True,
) -> list[_Passage]:
    """What each transform does to images that begin with `size`, numbers or arrays [N].

    Without `points`, only to their sizes.
    """
    found = []
    for transform, given in zip(transforms, params, strict=True):
        moves = transform._moves(given, size) if transform.geometric and points else []
        size = transform._size_after(size, given)
        found.append(_Passage(transform, moves, size))
    return found


def passed_boxes(boxes: Any, valid: Any, passage: _Passage) -> tuple[Any, Any]:
    """Boxes f32 [N, K, 4] (left, top, right, bottom) behind a transform, and which are valid."""
    boxes, valid = moved_boxes(boxes, valid, passage.moves, passage.size)
    return boxes, passage.transform._still_valid(boxes, valid, passage.size)


def move_boxes(
    boxes: Any, given: Any, count: int, trail: Sequence[_Passage], form: str
) -> tuple[jax.Array, jax.Array]:
    """Boxes of a format behind a chain, clamped to its images, and which of them are valid."""
    shape = boxes.shape if hasattr(boxes, "shape") else ()
    corners, valid = checked_boxes(boxes, given, count, form)
    for passage in trail:
        corners, valid = passed_boxes(corners, valid, passage)
    size = trail[-1].size
    corners = clamped(corners, size)
    finite = jnp.isfinite(corners).all(axis=-1)
    corners = jnp.where(finite[..., None], corners, 0.0)
    valid &= sane(corners, size, 1.0, 1.0)
    return from_corners(corners, form).reshape(shape), valid.reshape(shape[:-1])


def move_keypoints(
    points: Any, given: Any, count: int, trail: Sequence[_Passage], named: str
) -> tuple[jax.Array, jax.Array]:
    """Keypoints behind a chain, and which of them its images show."""
    checked = _checked_points(points, "keypoints", count, 2)
    visible = _checked_flags(given, "keypoints_visible", checked.shape[:-1])
    moved = checked.reshape(*visible.shape, 2)
    half = 0.5 if named == "centers" else 0.0
    for _, moves, size in trail:
        for move in moves:
            found = moved_points(moved + half, move) - half
            if not half:
                shift = [of_images(jnp.asarray(flag) & move.used) for flag in move.mirrored]
                found = found - jnp.stack(jnp.broadcast_arrays(*shift), axis=-1)
            moved = found
            if move.crops:
                shown = _inside(moved + half, size)
                used = jnp.asarray(move.used).reshape(-1, 1)
                visible &= shown | ~used
    visible &= _inside(moved + half, trail[-1].size)
    return moved.reshape(checked.shape), visible.reshape(checked.shape[:-1])


def _inside(points: jax.Array, size: Size) -> Any:
    height, width = (of_images(side) for side in size)
    x, y = points[..., 0], points[..., 1]
    return (x >= 0.0) & (x < width) & (y >= 0.0) & (y < height)


# -- dicts ----------------------------------------------------------------------------------------


def checked_fields(fields: dict[str, Any], transforms: Sequence[Transform]) -> None:
    """Raises ValueError for a dict without images, and for targets where images are mixed."""
    if "image" not in fields:
        raise ValueError(f'the dict has the fields {sorted(fields)}; wanted one named "image"')
    for transform in transforms:
        given = [name for name in TARGETS if name in fields]
        if transform.stage == "batch" and given:
            raise ValueError(
                f"{transform!r} mixes the images of a batch, which leaves {given} no meaning; "
                "wanted it without them, in a Compose of its own, or labels alone"
            )


def moved_targets(
    fields: dict[str, Any],
    trail: Sequence[_Passage],
    count: int,
    formats: Formats,
) -> dict[str, Any]:
    """The fields of boxes and keypoints behind a chain, and what they are worth."""
    found: dict[str, Any] = {}
    if "boxes" in fields:
        found["boxes"], found["boxes_valid"] = move_boxes(
            fields["boxes"], fields.get("boxes_valid"), count, trail, formats.boxes
        )
    if "keypoints" in fields:
        found["keypoints"], found["keypoints_visible"] = move_keypoints(
            fields["keypoints"], fields.get("keypoints_visible"), count, trail, formats.keypoints
        )
    return found


def image_sizes(size: Size, count: int) -> jax.Array | None:
    """Heights and widths i32 [N, 2] of images of their own sizes; None where all have one."""
    if all(isinstance(side, int) for side in size):
        return None
    sides = [jnp.broadcast_to(jnp.asarray(side, jnp.int32), (count,)) for side in size]
    return jnp.stack(sides, axis=-1)
