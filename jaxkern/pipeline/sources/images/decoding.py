"""Decoding of one image to upright pixels, by jaxkern, simplejpeg or Pillow."""

from __future__ import annotations

import functools
import io
from typing import Any, NamedTuple

import numpy as np

from jaxkern.core import registry

MAX_PIXELS = 178_956_970  # Pillow's default limit
CHANNELS = (1, 3, 4)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ORIENTATION = 0x0112
_JPEG_MAGIC = b"\xff\xd8"


class JpegDecoding(NamedTuple):
    """The JPEG decoder of this process."""

    name: str  # name and version
    native: bool  # True if native threads can decode
    reason: str  # why jaxkern's decoder is not used; "" if it is


def decode_image(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray:
    """Decode an image, bytes or uint8 [n], to upright pixels uint8 [H, W, channels].

    Raises:
      OSError: the image `name` is damaged, truncated or has more than `max_pixels`.
      ImportError: the image needs Pillow, which is not installed.
    """
    if bytes(data[:2]) == _JPEG_MAGIC:
        decode = _by_simplejpeg if _native() is None else _by_native
        pixels = decode(data, channels, max_pixels, name)
        if pixels is not None:
            return pixels
    return _by_pillow(data, channels, max_pixels, name)


def header_by_pillow(data: Any) -> tuple[int, int, str]:
    """Return the (height, width, format) of an upright image, from bytes or a binary file.

    The format is "JPEG" if jaxkern's decoder supports the image, otherwise Pillow's name.
    """
    file = data if hasattr(data, "read") else io.BytesIO(data)
    with _pillow().open(file) as image:
        height, width = image.height, image.width
        if _orientation(image) >= 5:
            height, width = width, height
        form = str(image.format)
        if form in ("JPEG", "MPO"):  # native code, if available, was tried first
            native = registry.module("cpu") is not None
            form = "JPEG that only Pillow understands" if native else "JPEG"
        return height, width, form


def jpeg_size(jpeg: Any) -> tuple[int, int] | None:
    """Return the upright (height, width) of a JPEG file; None for other or invalid files."""
    if bytes(jpeg[:3]) != b"\xff\xd8\xff":
        return None
    if (native := registry.module("cpu")) is not None:
        return _native_size(native, jpeg)
    try:
        return header_by_pillow(jpeg)[:2]
    except (ValueError, OSError):
        return None


def jpeg_decoding() -> JpegDecoding:
    """Return the JPEG decoder of this process, and why it is used."""
    if (native := _native()) is not None:
        return JpegDecoding(native.jpeg_decoder(), True, "")
    reason = "jaxkern was built without libjpeg-turbo"
    if registry.module("cpu") is None:
        reason = "jaxkern's native kernels are not in use"
    if (simple := _simplejpeg()) is not None:
        return JpegDecoding(f"simplejpeg {simple.__version__}", False, reason)
    try:
        return JpegDecoding(f"Pillow {_pillow().__version__}", False, reason)
    except ImportError as error:
        return JpegDecoding("nothing", False, f"{reason}; {error}")


def _native() -> Any:
    native = registry.module("cpu")
    return native if native is not None and native.jpeg_decoder() else None


@functools.cache
def _simplejpeg() -> Any:
    try:
        import simplejpeg
    except ImportError:
        return None
    return simplejpeg


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError(
            "this image needs Pillow: pip install 'jaxkern-native[images]'"
        ) from error
    return PIL.Image


def _native_size(native: Any, jpeg: Any) -> tuple[int, int] | None:
    """Return the upright (height, width); None if native code does not support the header."""
    try:
        height, width, _, orientation, _ = native.jpeg_info(np.frombuffer(jpeg, np.uint8))
    except ValueError:
        return None
    return (width, height) if orientation >= 5 else (height, width)


def _by_native(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray | None:
    """Decode with native code; return None if it does not support the header."""
    native = _native()
    if (size := _native_size(native, data)) is None:
        return None
    _check_pixels(*size, max_pixels, name)
    pixels = np.empty((*size, channels), np.uint8)
    try:
        native.jpeg_decode(np.frombuffer(data, np.uint8), pixels, max_pixels=max_pixels)
    except ValueError as error:
        raise OSError(f"{name}: {error}") from None
    return pixels


def _by_simplejpeg(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray | None:
    """Decode with simplejpeg; return None if it fails or would return other values than Pillow."""
    simple = _simplejpeg()
    if simple is None:
        return None
    try:
        height, width, colours, _ = simple.decode_jpeg_header(data)
        _check_pixels(height, width, max_pixels, name)
        # Pillow converts RGB to gray differently.
        if colours != "Gray" and (colours != "YCbCr" or channels == 1):
            return None
        with _pillow().open(io.BytesIO(data)) as image:
            orientation = _orientation(image)
        mode = {1: "GRAY", 3: "RGB", 4: "RGBA"}[channels]
        pixels = simple.decode_jpeg(data, mode)
    except ValueError:
        # simplejpeg raises it for every problem; Pillow has better messages and tolerates some.
        return None
    return _upright(pixels.reshape(height, width, channels), orientation)


def _by_pillow(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray:
    pillow = _pillow()
    try:
        image = pillow.open(io.BytesIO(data))
    except pillow.UnidentifiedImageError:
        raise pillow.UnidentifiedImageError(
            f"{name}: Pillow does not recognize these {len(data)} bytes as an image"
        ) from None
    except pillow.DecompressionBombError as error:  # above PIL.Image.MAX_IMAGE_PIXELS
        raise OSError(f"{name}: {error}") from None
    with image:
        _check_pixels(image.height, image.width, max_pixels, name)
        orientation = _orientation(image)
        if image.mode.startswith("I;16"):  # the high byte, as Pillow converts 16-bit RGB
            image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        elif image.mode in ("I", "F"):
            raise OSError(f"{name}: expected samples of 8 or 16 bits, got 32 bits ({image.mode})")
        pixels = np.asarray(image.convert(_MODES[channels]))
    return _upright(pixels.reshape(*pixels.shape[:2], channels), orientation)


def _check_pixels(height: int, width: int, max_pixels: int, name: str) -> None:
    if height * width > max_pixels:
        raise OSError(f"{name}: {height} x {width} pixels exceed max_pixels={max_pixels}")


def _orientation(image: Any) -> int:
    """Return the EXIF orientation, 1 to 8, without decoding the pixels."""
    if image.format == "TIFF":  # Pillow applies it
        return 1
    try:
        # PngImageFile.getexif would decode the image to read chunks after the pixels.
        value = _pillow().Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # unreadable metadata do not invalidate the image
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
