"""JPEG decoded by Pillow: what the native decoder's op runs where there is none."""

from __future__ import annotations

import functools
import io
from typing import Any

import jax
import numpy as np

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def decode_jpeg(buffer: Any, begin: Any, end: Any, **static: Any) -> tuple[jax.Array, jax.Array]:
    """Calls Pillow on the host: image u8 [height, width, channels] and its size i32 [2]."""
    canvas = (static["height"], static["width"], static["channels"])
    results = (jax.ShapeDtypeStruct(canvas, np.uint8), jax.ShapeDtypeStruct((2,), np.int32))
    run = functools.partial(_decode_all, **static)
    return jax.pure_callback(run, results, buffer, begin, end, vmap_method="expand_dims")  # type: ignore[no-any-return]


def _decode_all(
    buffer: Any, begin: Any, end: Any, *, mask: bool, **static: Any
) -> tuple[np.ndarray, np.ndarray]:
    buffer, begin, end = (np.asarray(x) for x in (buffer, begin, end))
    batch = np.broadcast_shapes(buffer.shape[:-1], begin.shape, end.shape)
    buffer = np.broadcast_to(buffer, (*batch, buffer.shape[-1]))
    begin, end = np.broadcast_to(begin, batch), np.broadcast_to(end, batch)
    canvas = (static["height"], static["width"], static["channels"])
    images, sizes = np.zeros((*batch, *canvas), np.uint8), np.zeros((*batch, 2), np.int32)
    for number, at in enumerate(np.ndindex(batch)):
        try:
            image = _decode_one(buffer[at], int(begin[at]), int(end[at]), **static)
        except (OSError, SyntaxError, ValueError) as error:
            if not mask:
                raise ValueError(f"jaxkern.image_decode_jpeg: image {number}: {error}") from error
            continue
        images[at][: image.shape[0], : image.shape[1]] = image
        sizes[at] = image.shape[:2]
    return images, sizes


def _decode_one(
    buffer: np.ndarray,
    begin: int,
    end: int,
    *,
    height: int,
    width: int,
    channels: int,
    max_pixels: int,
    denominator: int,
) -> np.ndarray:
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        raise ImportError(
            "jk.image.decode_jpeg needs Pillow here, because jaxkern has no native JPEG decoder "
            "for this platform or was built without libjpeg-turbo; run `pip install pillow`"
        ) from None
    if not 0 <= begin <= end <= len(buffer):
        raise ValueError(
            f"bytes {begin} to {end} do not lie inside operand 'buffer' of {len(buffer)} bytes"
        )
    try:
        opened = Image.open(io.BytesIO(buffer[begin:end].tobytes()), formats=["JPEG"])
    except UnidentifiedImageError:
        raise ValueError("Pillow does not know it as a JPEG") from None
    except Image.DecompressionBombError as error:  # twice Image.MAX_IMAGE_PIXELS and more
        raise ValueError(str(error)) from None
    with opened:
        if opened.width * opened.height > max_pixels:
            raise ValueError(
                f"its header says {opened.height} x {opened.width} pixels; "
                f"max_pixels is {max_pixels}"
            )
        if denominator > 1:
            opened.draft(None, [max(1, n // denominator) for n in opened.size])
        image = ImageOps.exif_transpose(opened).convert(_MODES[channels])
    if image.height > height or image.width > width:
        raise ValueError(
            f"it has {image.height} x {image.width} pixels and the canvas {height} x {width}"
        )
    return np.asarray(image).reshape(image.height, image.width, channels)
