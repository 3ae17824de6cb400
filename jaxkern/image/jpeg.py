"""JPEG decoding inside jitted programs."""

from __future__ import annotations

import functools
import io
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.arguments import check_integer, check_narrowing
from jaxkern.core.op import Cost, Op
from jaxkern.image.chain.plan import CHANNEL_COUNTS

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def _results(height: int, width: int, channels: int, **_: Any) -> tuple[jax.ShapeDtypeStruct, ...]:
    """Return an image u8 [height, width, channels] and its size i32 [2]."""
    image = jax.ShapeDtypeStruct((height, width, channels), np.uint8)
    return image, jax.ShapeDtypeStruct((2,), np.int32)


def _call_pillow(*operands: Any, **static: Any) -> Any:
    run = functools.partial(_decode_all, **static)
    return jax.pure_callback(run, _results(**static), *operands, vmap_method="expand_dims")


def _decode_all(
    buffer: Any, begin: Any, end: Any, *, mask: bool, **static: Any
) -> tuple[np.ndarray, np.ndarray]:
    buffer, begin, end = (np.asarray(x) for x in (buffer, begin, end))
    batch = np.broadcast_shapes(buffer.shape[:-1], begin.shape, end.shape)
    buffer = np.broadcast_to(buffer, (*batch, buffer.shape[-1]))
    begin, end = np.broadcast_to(begin, batch), np.broadcast_to(end, batch)
    images, sizes = (np.zeros((*batch, *x.shape), x.dtype) for x in _results(**static))
    for n, index in enumerate(np.ndindex(batch)):
        try:
            image = _decode_one(buffer[index], int(begin[index]), int(end[index]), **static)
        except (OSError, SyntaxError, ValueError) as error:
            if not mask:
                raise ValueError(f"jaxkern.image_decode_jpeg: image {n}: {error}") from error
            continue
        images[index][: image.shape[0], : image.shape[1]] = image
        sizes[index] = image.shape[:2]
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
    except ImportError as error:
        error.add_note("jaxkern has no native JPEG decoder here: `pip install pillow`")
        raise
    if not 0 <= begin <= end <= len(buffer):
        raise ValueError(f"expected a range of 'buffer' [{len(buffer)}], got {begin} to {end}")
    try:
        opened = Image.open(io.BytesIO(buffer[begin:end].tobytes()), formats=["JPEG"])
    except UnidentifiedImageError:
        raise ValueError("expected a JPEG, but Pillow does not recognize the format") from None
    except Image.DecompressionBombError as error:  # from twice Image.MAX_IMAGE_PIXELS
        raise ValueError(str(error)) from None
    with opened:
        if opened.width * opened.height > max_pixels:
            raise ValueError(
                f"expected {max_pixels=} or less, got {opened.height} x {opened.width}"
            )
        if denominator > 1:
            opened.draft(None, [max(1, n // denominator) for n in opened.size])
        image = ImageOps.exif_transpose(opened).convert(_MODES[channels])
    if image.height > height or image.width > width:
        raise ValueError(f"expected at most {height} x {width}, got {image.height} x {image.width}")
    return np.asarray(image).reshape(image.height, image.width, channels)


MAX_PIXELS = 178_956_970
"""Pillow's limit: a quarter of 2**31 bytes as RGB."""


decode_jpeg_op = Op(
    "jaxkern.image_decode_jpeg",
    version=1,
    abstract=lambda buffer, begin, end, **static: _results(**static),
    impl=_call_pillow,
    attributes=lambda max_pixels, denominator, mask, **_: {
        "max_pixels": np.int64(max_pixels),
        "denominator": np.int32(denominator),
        "mask": np.bool_(mask),
    },
    # The number of bytes of an image is known at run time only.
    cost=lambda *_, height, width, channels, **__: Cost(None, height * width * channels),
    platforms=("cpu",),
)


def decode_jpeg(
    buffer: Any,
    offsets: Any,
    lengths: Any = None,
    *,
    size: int | tuple[int, int],
    channels: int = 3,
    on_bad: Literal["raise", "mask"] = "raise",
    max_pixels: int = MAX_PIXELS,
    denominator: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """Decode N JPEG images from one buffer, each into the top left corner of a canvas.

    Values equal those of Pillow's ``convert`` with EXIF orientation. Native threads decode on the
    CPU. On other platforms, and without libjpeg-turbo, the program calls Pillow on the host.

    Args:
      buffer: uint8 [B].
      offsets: int32 or int64 [N + 1]: image n is ``buffer[offsets[n]:offsets[n + 1]]``; or [N] with
        ``lengths``.
      lengths: int32 or int64 [N], bytes of each image.
      size: (H, W) of the canvas, static; an integer for a square. Pixels outside an image are 0.
      channels: 1, 3 or 4 (alpha is 255).
      on_bad: "raise", or "mask": zeros and the size (0, 0) for an image that does not decode, is
        truncated or damaged, exceeds the canvas or ``max_pixels``, or is not inside the buffer.
      max_pixels: largest height * width of an image, checked before anything is allocated.
      denominator: 1, 2, 4 or 8: decode at this fraction of the size, rounded up, which is faster.
        Values then differ from a resized full image: each is an average of pixels before chroma
        is interpolated.

    Returns:
      Images, uint8 [N, H, W, channels], and their sizes, int32 [N, 2], height and width.

    Raises:
      TypeError, ValueError: for wrong dtypes, shapes or options.
      jax.errors.JaxRuntimeError: at run time, for a bad image; the message has its number.

    Example:
      >>> import io, numpy as np, jax, jaxkern as jk
      >>> from PIL import Image
      >>> file = io.BytesIO()
      >>> Image.fromarray(np.full((6, 8), 77, np.uint8)).save(file, "JPEG")
      >>> data = np.frombuffer(file.getvalue(), np.uint8)
      >>> images, sizes = jk.image.decode_jpeg(data, [0, len(data)], size=(8, 10))
      >>> images.shape, sizes.tolist(), images[0, 5, 7].tolist(), images[0, 6, 0].tolist()
      ((1, 8, 10, 3), [[6, 8]], [77, 77, 77], [0, 0, 0])
    """
    sides = (size, size) if isinstance(size, int) else size
    height, width = (check_integer("size", side, 1) for side in sides)
    for name, value, options in (
        ("channels", channels, CHANNEL_COUNTS),
        ("on_bad", on_bad, ("raise", "mask")),
        ("denominator", denominator, (1, 2, 4, 8)),
    ):
        if value not in options:
            raise ValueError(f"{name}: expected one of {options}, got {value!r}")
    max_pixels = check_integer("max_pixels", max_pixels, 1)
    data = jnp.asarray(buffer)
    if data.dtype != jnp.uint8 or data.ndim != 1:
        raise TypeError(f"buffer: expected uint8[B], got {data.dtype.name}{list(data.shape)}")
    starts = _integers("offsets", offsets)
    if lengths is None:
        if starts.shape[0] < 1:
            raise ValueError("offsets: expected N + 1 numbers, or N with lengths, got none")
        begin, end = starts[:-1], starts[1:]
    else:
        counts = _integers("lengths", lengths)
        if counts.shape != starts.shape:
            raise ValueError(f"lengths: expected {len(starts)} numbers, got {len(counts)}")
        # A sum that overflows ends before it begins, and is rejected like any invalid range.
        end = starts + counts
        begin = starts.astype(end.dtype)
    static = {"height": height, "width": width, "channels": channels, "max_pixels": max_pixels}
    static |= {"denominator": denominator, "mask": on_bad == "mask"}
    return decode_jpeg_op(data[None], begin, end, batch_dims=1, **static)


def _integers(name: str, values: Any) -> jax.Array:
    array = jnp.asarray(check_narrowing(values, name))
    if array.dtype not in (jnp.int32, jnp.int64) or array.ndim != 1:
        shape = f"{array.dtype.name}{list(array.shape)}"
        raise TypeError(f"{name}: expected int32 or int64 [N], got {shape}")
    return array
