"""Masks that move with their images: the same chain with nearest sampling, on bytes of labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

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
class _MaskWarps(Transform):
    """The warps of another transform, with nearest sampling."""

    inner: Transform
    fill: tuple[float, ...]

    kind = "program"
    geometric = True

    @property
    def parameters(self) -> dict[str, str]:  # type: ignore[override]
        return self.inner.parameters

    def output_size(self, size: Size) -> Size:
        return self.inner.output_size(size)

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        steps = warps(self.inner.program(params, size))
        return [
            (code, values, dataclasses.replace(static, interpolation="nearest", fill=self.fill))
            for code, values, static in steps
        ]

    def parts(self, params: dict[str, Any], size: Size) -> list[tuple[Transform, dict[str, Any]]]:
        return [
            (of_masks, params)
            for part, params in self.inner.parts(params, size)
            for _, of_masks in mask_transforms([part], self.fill)
        ]


def mask_transforms(
    transforms: Sequence[Transform], fill: tuple[float, ...]
) -> list[tuple[int, Transform]]:
    """Return the transforms of masks, each with the index of the transform of images."""
    result: list[tuple[int, Transform]] = []
    for index, transform in enumerate(transforms):
        if not transform.geometric:
            continue
        if transform.kind == "program":
            result.append((index, _MaskWarps(transform, fill)))
        else:
            of_masks = transform.for_masks(fill)
            if of_masks is not None:
                result.append((index, of_masks))
    return result


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
        raise ValueError(
            f"mask: expected shape {leading} or {(*leading, 'M')} for images {images.shape}, got "
            f"{mask.shape}"
        )
    mask, dtype = _canonical_labels(mask)
    planes = mask.ndim > len(leading)
    together = planes and mask.dtype.itemsize == 1 and mask.shape[-1] in CHANNEL_COUNTS
    arranged = jnp.moveaxis(mask, -1, 1) if planes and not together else mask
    pixels = jax.lax.bitcast_convert_type(arranged, jnp.uint8)
    if pixels.ndim == arranged.ndim and not together:  # Labels have one byte.
        pixels = pixels[..., None]
    # The planes and frames of an image become images with the same parameters.
    frames = pixels.shape[1:-3]
    if frames:
        pixels = pixels.reshape(pixels.shape[0], int(np.prod(frames)), *pixels.shape[-3:])

    def restore(result: jax.Array) -> jax.Array:
        result = result.reshape(result.shape[0], *frames, *result.shape[-3:])
        if mask.dtype.itemsize == 1 and not together:
            result = result[..., 0]
        labels = jax.lax.bitcast_convert_type(result, mask.dtype)
        if planes and not together:
            labels = jnp.moveaxis(labels, 1, -1)
        return labels.astype(dtype)

    return pixels, fill_bytes(fill, dtype, mask.dtype), restore


def _canonical_labels(mask: Any) -> tuple[jax.Array, Any]:
    """Convert labels to one or four bytes; also return their own dtype."""
    kind, size = np.dtype(mask.dtype).kind, np.dtype(mask.dtype).itemsize
    if kind == "b":
        return jnp.asarray(mask).astype(jnp.uint8), jnp.dtype(bool)
    if kind in "iu" and size == 8:
        mask = jnp.asarray(to_int32(mask, "mask"))
    floating = jnp.issubdtype(mask.dtype, jnp.floating)
    if kind not in "iu" and (not floating or size > 4):
        raise TypeError(
            f"mask: expected bool, or integers or floats of up to 32 bits, got {mask.dtype}"
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
        raise TypeError(
            "mask and image: expected two arrays, or two Ragged batches, got a "
            f"{type(mask).__name__} and a {type(images).__name__}"
        )
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
