"""Masks that move with their images: the same chain by nearest, on the bytes of their labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.integers import to_int32
from jaxkern.image.chain.plan import CHANNEL_COUNTS
from jaxkern.image.program.program import Step
from jaxkern.image.ragged import Ragged
from jaxkern.image.transforms.moves import warps
from jaxkern.image.transforms.transform import Size, Transform


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

    return MaskBytes(pixels, fill_bytes(fill, dtype, mask.dtype), restored)


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


def fill_bytes(fill: float, dtype: Any, stored: Any) -> tuple[float, ...]:
    """A value a byte of a label that is given as `dtype` and moved as `stored`.

    Raises:
      ValueError: for a fill that `dtype` does not hold.
    """
    labels = np.dtype(dtype)
    if labels.kind in "iu":
        limits = np.iinfo(labels)
        if not (limits.min <= fill <= limits.max and fill == int(fill)):
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

    return MaskBytes(mask, fill_bytes(fill, np.uint8, np.uint8), restored)
