"""Targets of a `Compose`, which move with their images: masks, boxes, keypoints, and dicts."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import to_integers
from jaxkern.core.axes import on_batch
from jaxkern.image.chain.axis import is_static
from jaxkern.image.chain.fold import sizes_differ
from jaxkern.image.compose.batch import (
    canonicalize,
    checked_images,
    checked_parameters,
    is_uint16,
    split_clips,
)
from jaxkern.image.program.program import Step
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import (
    FORMATS,
    Move,
    clamped,
    from_corners,
    moved_boxes,
    moved_points,
    per_image,
    sane,
    to_corners,
    warps,
    with_area,
)
from jaxkern.image.transforms.transform import Params, Parts, Size, Transform, set_fields

_FLAGS = {"boxes": "boxes_valid", "keypoints": "keypoints_visible"}
#: names of images and their targets
FIELDS = ("image", "mask", *_FLAGS, *_FLAGS.values())
# Names of targets in other libraries.
_OTHER_NAMES = {
    **dict.fromkeys(("masks", "segmentation_mask"), "mask"),
    **dict.fromkeys(("bboxes", "bbox", "box", "bounding_boxes"), "boxes"),
    "keypoint": "keypoints",
}


class Formats(NamedTuple):
    """Formats of targets: of boxes, of keypoints, and the fill of masks."""

    boxes: str
    keypoints: str
    mask_fill: float


def checked_formats(boxes: Any, keypoints: Any, mask_fill: Any) -> Formats:
    """Return the formats; raise ValueError for unknown ones, and for an invalid fill."""
    number = isinstance(mask_fill, numbers.Real) or hasattr(mask_fill, "dtype")
    if isinstance(mask_fill, bool) or not number or np.ndim(mask_fill) != 0:
        raise ValueError(checks.unexpected("mask_fill", "one number, a label", mask_fill))
    return Formats(
        checks.choice(*FORMATS)(boxes, "boxes"),
        checks.choice("torchvision", "centers")(keypoints, "keypoints"),
        mask_fill,
    )


def checked_boxes(boxes: Any, valid: Any, count: int, format_name: str) -> tuple[Any, Any]:
    """Convert boxes to f32 [N, K, 4] (left, top, right, bottom); also return which have an area."""
    boxes = _checked_points(boxes, "boxes", count, 4)
    flags = _checked_flags(valid, "boxes_valid", boxes.shape[:-1])
    corners = to_corners(boxes.reshape(*flags.shape, 4), format_name)
    return corners, with_area(corners) & flags


def _checked_points(values: Any, name: str, count: int, numbers: int) -> jax.Array:
    expected = f"floats or integers [{count}, K, {numbers}]"
    if not hasattr(values, "shape") or not hasattr(values, "dtype"):
        raise TypeError(f"{name}: expected {expected}, got a {type(values).__name__}")
    if np.dtype(values.dtype).kind not in "iu" and not jnp.issubdtype(values.dtype, jnp.floating):
        raise TypeError(f"{name}: expected {expected}, got dtype {values.dtype}")
    if len(values.shape) < 3 or values.shape[0] != count or values.shape[-1] != numbers:
        raise ValueError(f"{name}: expected {expected}, got shape {values.shape}")
    return jnp.asarray(values, jnp.float32)


def _checked_flags(flags: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Return flags as bools [N, K], all True for None."""
    flat = (shape[0], int(np.prod(shape[1:])))
    if flags is None:
        return jnp.ones(flat, bool)
    if not hasattr(flags, "dtype") or np.dtype(flags.dtype).kind not in "biu":
        dtype = getattr(flags, "dtype", type(flags).__name__)
        raise TypeError(f"{name}: expected bools or integers {shape}, got {dtype}")
    if flags.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {flags.shape}")
    return jnp.asarray(flags).astype(bool).reshape(flat)


class _AppliedTransform(NamedTuple):
    """The moves of points by one transform, and the size of the images after it."""

    transform: Transform
    moves: list[Move]
    size: Size


def applied_transforms(
    transforms: Sequence[Transform], params: Sequence[Params], size: Size
) -> list[_AppliedTransform]:
    """Return the effect of each transform on images of initial `size`, numbers or arrays [N]."""
    applied = []
    for transform, values in zip(transforms, params, strict=True):
        if transform.geometric and transform.kind == "program" and not is_static(*size):
            raise sizes_differ(repr(transform))
        moves = transform.moves(values, size) if transform.geometric else []
        size = transform.size_after(size, values)
        applied.append(_AppliedTransform(transform, moves, size))
    return applied


def boxes_after(boxes: Any, valid: Any, applied: _AppliedTransform) -> tuple[Any, Any]:
    """Move boxes f32 [N, K, 4] (left, top, right, bottom); also return which remain valid."""
    boxes, valid = moved_boxes(boxes, valid, applied.moves, applied.size)
    return boxes, applied.transform.valid_boxes(boxes, valid, applied.size)


def _move_boxes(
    boxes: Any, flags: Any, count: int, applied: Sequence[_AppliedTransform], format_name: str
) -> tuple[jax.Array, jax.Array]:
    """Move boxes of a format and clamp them to the images; also return which remain valid."""
    shape = boxes.shape if hasattr(boxes, "shape") else ()
    corners, valid = checked_boxes(boxes, flags, count, format_name)
    for step in applied:
        corners, valid = boxes_after(corners, valid, step)
    size = applied[-1].size
    corners = clamped(corners, size)
    finite = jnp.isfinite(corners).all(axis=-1)
    corners = jnp.where(finite[..., None], corners, 0.0)
    valid &= sane(corners, size, 1.0, 1.0)
    return from_corners(corners, format_name).reshape(shape), valid.reshape(shape[:-1])


def _move_keypoints(
    points: Any, flags: Any, count: int, applied: Sequence[_AppliedTransform], convention: str
) -> tuple[jax.Array, jax.Array]:
    """Move keypoints; also return which are visible in the images."""
    checked = _checked_points(points, "keypoints", count, 2)
    visible = _checked_flags(flags, "keypoints_visible", checked.shape[:-1])
    points = checked.reshape(*visible.shape, 2)
    half = 0.5 if convention == "centers" else 0.0
    for _, moves, size in applied:
        for move in moves:
            new_points = moved_points(points + half, move) - half
            if not half:
                shift = [per_image(jnp.asarray(flag) & move.used) for flag in move.mirrored]
                new_points = new_points - jnp.stack(jnp.broadcast_arrays(*shift), axis=-1)
            points = new_points
            if move.crops:
                shown = _inside(points + half, size)
                used = jnp.asarray(move.used).reshape(-1, 1)
                visible &= shown | ~used
    visible &= _inside(points + half, applied[-1].size)
    return points.reshape(checked.shape), visible.reshape(checked.shape[:-1])


def _inside(points: jax.Array, size: Size) -> Any:
    height, width = (per_image(side) for side in size)
    x, y = points[..., 0], points[..., 1]
    return (x >= 0.0) & (x < width) & (y >= 0.0) & (y < height)


def check_fields(fields: dict[str, Any], transforms: Sequence[Transform]) -> None:
    """Raise ValueError for fields without images, misnamed targets, and targets of mixed images."""
    if "image" not in fields:
        raise ValueError(f'fields: expected one named "image", got {sorted(fields)}')
    if any(transform.geometric for transform in transforms):
        for name, target in _OTHER_NAMES.items():
            if name in fields and target not in fields:
                raise ValueError(f"fields: expected the name {target!r}, got {name!r}")
    targets = [name for name in ("mask", *_FLAGS) if name in fields]
    for transform in transforms:
        if transform.kind == "batch" and targets:
            raise ValueError(f"{transform!r}: expected labels as the only targets, got {targets}")


def batch_count(images: Any) -> tuple[int, tuple[Any, Any]]:
    """Return the number of images, or clips, and their height and width."""
    images = canonicalize(images)
    frames = split_clips(images)[0]
    if is_uint16(frames):
        frames = jax.ShapeDtypeStruct(frames.shape, np.float32)
    batch = checked_images(frames)
    count = batch.images if isinstance(images, Ragged) else int(images.shape[0])
    return count, (batch.height, batch.width)


def apply_to_fields(
    aug: Any,
    fields: dict[str, Any],
    params: Any,
    labels: Any,
    chain: Callable[[list[Transform]], Any],
) -> dict[str, Any]:
    """Apply a `Compose` to a dict; `chain` returns a Compose of uint8 images for masks."""
    check_fields(fields, aug.transforms)
    if labels is not None:
        raise ValueError('labels: expected None for a dict of images; use its field "label"')
    mixes = any(transform.kind == "batch" for transform in aug.transforms)
    label = fields.get("label") if mixes else None
    output = dict(fields)
    if "mask" in fields:
        masks, fill, restore = mask_bytes(fields["mask"], fields["image"], aug.targets.mask_fill)
        steps = mask_transforms(aug.transforms, fill)
        if steps:
            own_params = None if params is None else tuple(params[index] for index, _ in steps)
            moved = chain([transform for _, transform in steps]).apply(masks, own_params)
            output["mask"] = restore(moved)
    output |= move_points(aug, fields, params, *batch_count(fields["image"]))
    result = aug.apply(fields["image"], params, label)
    if label is None:
        return {**output, "image": result}
    return {**output, "image": result[0], "label": result[1]}


def move_points(
    aug: Any, fields: dict[str, Any], params: Any, count: int, size: Size
) -> dict[str, Any]:
    """Return moved boxes, keypoints, their flags, and "image_size" if sizes differ afterwards."""
    checked = checked_parameters(aug.transforms, params, count)
    flags = {name: flag for name, flag in _FLAGS.items() if name in fields}
    inputs = {name: fields[name] for pair in flags.items() for name in pair if name in fields}
    ranks: dict[str, int] = {}
    for name, flag in flags.items():
        ranks |= {name: np.ndim(fields[name]), flag: np.ndim(fields[name]) - 1}

    def move_all(inputs: dict[str, Any], params: Any, size: Size) -> dict[str, Any]:
        applied, targets = applied_transforms(aug.transforms, params, size), {}
        for move, name, format_name in (
            (_move_boxes, "boxes", aug.targets.boxes),
            (_move_keypoints, "keypoints", aug.targets.keypoints),
        ):
            if name in inputs:
                moved = move(inputs[name], inputs.get(flags[name]), count, applied, format_name)
                targets[name], targets[flags[name]] = moved
        return targets

    targets: dict[str, Any] = on_batch(move_all, ranks, inputs, checked, size) if flags else {}
    for transform, values in zip(aug.transforms, checked, strict=True):
        size = transform.size_after(size, values)
    if not is_static(*size):
        sides = [jnp.broadcast_to(jnp.asarray(side, jnp.int32), (count,)) for side in size]
        targets["image_size"] = jnp.stack(sides, axis=-1)
    return targets


@dataclasses.dataclass(frozen=True)
class _MaskWarps(Transform):
    """The warps of another transform, with nearest sampling."""

    inner: Transform
    fill: tuple[float, ...]

    kind = "program"
    geometric = True

    def __post_init__(self) -> None:
        set_fields(self, parameters=self.inner.parameters)

    def output_size(self, size: Size) -> Size:
        return self.inner.output_size(size)

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        steps = warps(self.inner.program(params, size))
        return [
            (code, values, dataclasses.replace(static, interpolation="nearest", fill=self.fill))
            for code, values, static in steps
        ]

    def parts(self, params: Params, size: Size) -> Parts:
        return [
            (of_masks, params)
            for part, params in self.inner.parts(params, size)
            for _, of_masks in mask_transforms([part], self.fill)
        ]


def mask_transforms(
    transforms: Sequence[Transform], fill: tuple[float, ...]
) -> list[tuple[int, Transform]]:
    """Return the transforms of masks, each with the index of the transform of images."""
    return [
        (index, _MaskWarps(t, fill) if t.kind == "program" else t.for_masks(fill))
        for index, t in enumerate(transforms)
        if t.geometric
    ]


# Images u8 [N, H, W, C], or [N, F, H, W, C] of F masks per image; the fill of each byte of a label;
# and the function that converts moved images to masks.
MaskBytes = tuple[Any, tuple[float, ...], Callable[[jax.Array], jax.Array]]


def mask_bytes(mask: Any, images: Any, fill: float) -> MaskBytes:
    """Check masks of images [N, H, W, C], or [N, T, H, W, C], and split labels into bytes."""
    if isinstance(images, Ragged) or isinstance(mask, Ragged):
        return _ragged_bytes(mask, images, fill)
    if not hasattr(mask, "shape") or not hasattr(mask, "dtype"):
        raise TypeError(f"mask: expected an array [N, H, W], got a {type(mask).__name__}")
    leading = images.shape[:-1]
    if mask.shape[: len(leading)] != leading or mask.ndim not in (len(leading), len(leading) + 1):
        raise ValueError(f"mask: expected shape {leading} or {(*leading, 'M')}, got {mask.shape}")
    mask, dtype = _canonical_labels(mask)
    planes, one_byte = mask.ndim > len(leading), mask.dtype.itemsize == 1
    pixels = jax.lax.bitcast_convert_type(jnp.moveaxis(mask, -1, 1) if planes else mask, jnp.uint8)
    pixels = pixels[..., None] if one_byte else pixels
    # The planes and frames of an image become images with the same parameters.
    frames = pixels.shape[1:-3]
    if frames:
        pixels = pixels.reshape(pixels.shape[0], int(np.prod(frames)), *pixels.shape[-3:])

    def restore(result: jax.Array) -> jax.Array:
        result = result.reshape(result.shape[0], *frames, *result.shape[-3:])
        labels = jax.lax.bitcast_convert_type(result[..., 0] if one_byte else result, mask.dtype)
        return (jnp.moveaxis(labels, 1, -1) if planes else labels).astype(dtype)

    return pixels, fill_bytes(fill, dtype, mask.dtype), restore


def _canonical_labels(mask: Any) -> tuple[jax.Array, Any]:
    """Convert labels to one or four bytes; also return their own dtype."""
    kind, size = np.dtype(mask.dtype).kind, np.dtype(mask.dtype).itemsize
    if kind == "b":
        return jnp.asarray(mask).astype(jnp.uint8), jnp.dtype(bool)
    if kind in "iu" and size == 8:
        mask = jnp.asarray(to_integers(mask, "mask"))
    floating = jnp.issubdtype(mask.dtype, jnp.floating)
    if kind not in "iu" and (not floating or size > 4):
        raise TypeError(
            f"mask: expected bool, integers or floats of up to 32 bits, got {mask.dtype}"
        )
    mask = jnp.asarray(mask)
    if mask.dtype.itemsize == 2:
        return mask.astype(jnp.float32 if floating else jnp.int32), mask.dtype
    return mask, mask.dtype


def fill_bytes(fill: float, dtype: Any, stored: Any) -> tuple[float, ...]:
    """Return the bytes of a label of type `dtype` that is stored as `stored`."""
    labels = np.dtype(dtype)
    if labels.kind in "iu":
        limits = np.iinfo(labels)
        if not (limits.min <= fill <= limits.max and fill == int(fill)):
            raise ValueError(f"mask_fill: expected a value of {labels.name}, got {fill!r}")
    value = np.asarray(bool(fill) if labels.kind == "b" else fill).astype(stored)
    return tuple(float(byte) for byte in value.reshape(1).view(np.uint8))


def _ragged_bytes(mask: Any, images: Any, fill: float) -> MaskBytes:
    if not (isinstance(images, Ragged) and isinstance(mask, Ragged)):
        names = type(mask).__name__, type(images).__name__
        raise TypeError(f"mask and image: expected two arrays or two Ragged, got {names}")
    if len(mask) != len(images):
        raise ValueError(f"mask: expected {len(images)} masks, one per image, got {len(mask)}")
    for name in ("height", "width"):
        own, expected = getattr(mask, name), getattr(images, name)
        in_memory = isinstance(own, np.ndarray) and isinstance(expected, np.ndarray)
        if in_memory and (own != expected).any():
            n = int(np.argmax(own != expected))
            raise ValueError(f"mask {n}: expected a {name} of {expected[n]}, got {own[n]}")

    def restore(result: jax.Array) -> jax.Array:
        return result[..., 0] if mask.channels == 1 else result

    return mask, fill_bytes(fill, np.uint8, np.uint8), restore
