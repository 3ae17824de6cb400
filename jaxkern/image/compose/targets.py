"""Boxes and keypoints that move with their images, and what `Compose` does with a dict."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.explicit import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.image.chain.axis import is_static
from jaxkern.image.compose.batch import (
    as_frames,
    canonical,
    checked_images,
    checked_parameters,
    is_uint16,
)
from jaxkern.image.compose.masks import mask_bytes, mask_transforms
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import (
    FORMATS,
    Move,
    clamped,
    from_corners,
    moved_boxes,
    moved_points,
    of_images,
    sane,
    to_corners,
    with_area,
)
from jaxkern.image.transforms.transform import Size, Transform

KEYPOINTS = ("torchvision", "centers")
TARGETS = ("mask", "boxes", "keypoints")
_FLAGS = {"boxes": "boxes_valid", "keypoints": "keypoints_visible"}
# What others call them.
_OTHER_NAMES = {
    **dict.fromkeys(("masks", "segmentation_mask"), "mask"),
    **dict.fromkeys(("bboxes", "bbox", "box", "bounding_boxes"), "boxes"),
    "keypoint": "keypoints",
}


class Formats(NamedTuple):
    """How a chain reads targets: boxes, what a keypoint names, and a mask's fill."""

    boxes: str
    keypoints: str
    mask_fill: float


def checked_formats(boxes: Any, keypoints: Any, mask_fill: Any) -> Formats:
    """Raises ValueError for other words, and a fill that is no number."""
    number = isinstance(mask_fill, numbers.Real) or hasattr(mask_fill, "dtype")
    if isinstance(mask_fill, bool) or not number or np.ndim(mask_fill) != 0:
        raise ValueError(f"mask_fill={mask_fill!r}; wanted one number, a mask's label")
    return Formats(
        checks.choice(boxes, "boxes", FORMATS),
        checks.choice(keypoints, "keypoints", KEYPOINTS),
        mask_fill,
    )


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

    Raises:
      ValueError: for a warp of images of different sizes.
    """
    found = []
    for transform, given in zip(transforms, params, strict=True):
        moving = transform.geometric and points
        if moving and transform.stage == "program" and not is_static(*size):
            raise ValueError(
                f"{transform!r} got images that still differ in size; put RandomResizedCrop, "
                "CenterCrop, RandomCrop or Resize((h, w)) before it"
            )
        moves = transform._moves(given, size) if moving else []
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


def checked_fields(fields: dict[str, Any], transforms: Sequence[Transform]) -> None:
    """Raises ValueError for a dict without images, with targets by another name, which would stay
    where they are, and for targets where images are mixed."""
    if "image" not in fields:
        raise ValueError(f'the dict has the fields {sorted(fields)}; wanted one named "image"')
    if any(transform.geometric for transform in transforms):
        for name, known in _OTHER_NAMES.items():
            if name in fields and known not in fields:
                raise ValueError(
                    f"the dict has a field {name!r}, which does not move with its images; wanted "
                    f"{known!r} for what moves, and another name for what stays"
                )
    for transform in transforms:
        given = [name for name in TARGETS if name in fields]
        if transform.stage == "batch" and given:
            raise ValueError(
                f"{transform!r} mixes the images of a batch, which leaves {given} no meaning; "
                "wanted it without them, in a Compose of its own, or labels alone"
            )


def counted(images: Any) -> tuple[int, tuple[Any, Any]]:
    """How many images, or clips, there are, and their height and width."""
    images = canonical(images)
    frames = as_frames(images)[0]
    if is_uint16(frames):
        frames = jax.ShapeDtypeStruct(frames.shape, np.float32)
    batch = checked_images(frames)
    count = batch.images if isinstance(images, Ragged) else int(images.shape[0])
    return count, (batch.height, batch.width)


def move_fields(
    aug: Any,
    fields: dict[str, Any],
    params: Any,
    labels: Any,
    chain: Callable[[list[Transform]], Any],
) -> dict[str, Any]:
    """What a `Compose` makes of a dict; `chain` makes a Compose of uint8 images for masks."""
    checked_fields(fields, aug.transforms)
    if labels is not None:
        raise ValueError('labels go with images; wanted them in the dict, as its field "label"')
    mixes = any(transform.stage == "batch" for transform in aug.transforms)
    label = fields.get("label") if mixes else None
    count, size = counted(fields["image"])
    moved = dict(fields)
    if "mask" in fields:
        moved["mask"] = _moved_masks(aug, fields, params, chain)
    moved |= move_places(aug, fields, params, count, size)
    result = aug.apply(fields["image"], params, label)
    if label is None:
        return {**moved, "image": result}
    return {**moved, "image": result[0], "label": result[1]}


def move_places(
    aug: Any, fields: dict[str, Any], params: Any, count: int, size: Size
) -> dict[str, Any]:
    """Boxes and keypoints behind a chain on `count` images of `size`, what is valid and visible of
    them, and the sizes of images that have sizes of their own."""
    given = checked_parameters(aug.transforms, params, count)
    moved = _moved_places(aug, fields, given, count, size)
    last = passages(aug.transforms, given, size, points=False)[-1].size
    if not is_static(*last):
        sides = [jnp.broadcast_to(jnp.asarray(side, jnp.int32), (count,)) for side in last]
        moved["image_size"] = jnp.stack(sides, axis=-1)
    return moved


def _moved_places(
    aug: Any, fields: dict[str, Any], given: Any, count: int, size: Size
) -> dict[str, Any]:
    flags = {name: flag for name, flag in _FLAGS.items() if name in fields}
    named = {name: fields[name] for pair in flags.items() for name in pair if name in fields}
    leaves, tree = jax.tree.flatten((named, given, size))
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    if not flags:
        return {}

    def moved(*arrays: jax.Array) -> dict[str, Any]:
        new = iter(arrays)
        filled = [next(new) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        named, given, size = jax.tree.unflatten(tree, filled)
        trail, made = passages(aug.transforms, given, size), {}
        for move, name, form in (
            (move_boxes, "boxes", aug.targets.boxes),
            (move_keypoints, "keypoints", aug.targets.keypoints),
        ):
            if name in named:
                flag = flags[name]
                made[name], made[flag] = move(named[name], named.get(flag), count, trail, form)
        return made

    # XLA places what is inside: the corners of all boxes of an image are points along one axis.
    axes = explicit_axes(arrays)
    specs: dict[str, Any] = {}
    for name, flag in flags.items() if axes else ():
        rank = np.ndim(fields[name])
        specs |= {name: batch_sharding(arrays, rank), flag: batch_sharding(arrays, rank - 1)}
    result: dict[str, Any] = in_auto_mode(moved, specs, axes)(*arrays)
    return result


def _moved_masks(
    aug: Any, fields: dict[str, Any], params: Any, chain: Callable[[list[Transform]], Any]
) -> Any:
    taken = mask_bytes(fields["mask"], fields["image"], aug.targets.mask_fill)
    steps = mask_transforms(aug.transforms, taken.fill)
    if not steps:
        return fields["mask"]
    given = None if params is None else tuple(params[place] for place, _ in steps)
    return taken.restored(chain([transform for _, transform in steps]).apply(taken.images, given))
