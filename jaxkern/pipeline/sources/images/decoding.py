"""One encoded image as pixels, upright and within limits; which library decodes it."""

from __future__ import annotations

import functools
import io
from typing import Any, NamedTuple

import numpy as np

from jaxkern.core import registry

MAX_PIXELS = 178_956_970  # as Pillow refuses images by default
CHANNELS = (1, 3, 4)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_ORIENTATION = 0x0112
_MARK = b"\xff\xd8"  # of a JPEG


class ImageHeader(NamedTuple):
    """What is known of an image before it is decoded.

    Attributes:
      height, width: as it stands upright.
      format: "JPEG" where jaxkern's own code understands the header, or Pillow's name of another.
    """

    height: int
    width: int
    format: str


class JpegDecoding(NamedTuple):
    """What decodes JPEG images here.

    Attributes:
      name: with its version.
      native: whether native threads can do it.
      reason: why no better one does; "" where there is none.
    """

    name: str
    native: bool
    reason: str


def decoded(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray:
    """The pixels of an encoded image, upright: uint8 [H, W, C].

    Args:
      data: its bytes, or uint8 [n] in C order.
      channels: 1 for gray, 3 for RGB, 4 for RGBA.
      max_pixels: height * width that it may have.
      name: of the image, in messages.
    Raises: OSError for a broken or truncated image, or one above `max_pixels`; ImportError for one
      that needs Pillow where that is not installed.
    """
    if bytes(data[:2]) == _MARK:
        by = _by_simplejpeg if _native() is None else _by_native
        pixels = by(data, channels, max_pixels, name)
        if pixels is not None:
            return pixels
    return _by_pillow(data, channels, max_pixels, name)


def header_by_pillow(data: Any) -> ImageHeader:
    """What Pillow says of an image.

    Args:
      data: its bytes, or a binary file.
    Raises: as Pillow does, for what it cannot open.
    """
    file = data if hasattr(data, "read") else io.BytesIO(data)
    with _pillow().open(file) as image:
        height, width = image.height, image.width
        if _orientation(image) >= 5:
            height, width = width, height
        jpeg = image.format in ("JPEG", "MPO")
        if jpeg and registry.module("cpu") is not None:  # which was asked first
            return ImageHeader(height, width, "JPEG that only Pillow understands")
        return ImageHeader(height, width, "JPEG" if jpeg else str(image.format))


def jpeg_decoding() -> JpegDecoding:
    """What decodes JPEG images in this process, and why."""
    native = registry.module("cpu")
    if _native() is not None:
        assert native is not None
        return JpegDecoding(native.jpeg_decoder(), True, "")
    reason = (
        "jaxkern's native kernels are not in use"
        if native is None
        else "jaxkern was built without libjpeg-turbo"
    )
    simple = _simplejpeg()
    if simple is not None:
        return JpegDecoding(f"simplejpeg {simple.__version__}", False, reason)
    try:
        return JpegDecoding(f"Pillow {_pillow().__version__}", False, reason)
    except ImportError as error:
        return JpegDecoding("nothing", False, f"{reason}; {error}")


def _native() -> Any:
    """The native module, where it decodes."""
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
            "images other than JPEG, and JPEG where jaxkern has no decoder of its own, need "
            "Pillow: pip install 'jaxkern[images]'"
        ) from error
    return PIL.Image


def _by_native(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray | None:
    """None for what has no header that jaxkern's own code understands."""
    native = _native()
    encoded = np.frombuffer(data, np.uint8)
    try:
        height, width, _, orientation, _ = native.jpeg_info(encoded)
    except ValueError:
        return None
    if orientation >= 5:
        height, width = width, height
    _check_pixels(height, width, max_pixels, name)
    pixels = np.empty((height, width, channels), np.uint8)
    try:
        native.jpeg_decode(encoded, pixels, max_pixels=max_pixels)
    except ValueError as error:
        raise OSError(f"{name}: {error}") from None
    return pixels


def _by_simplejpeg(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray | None:
    """None for what it does otherwise than Pillow, and for what it refuses."""
    simple = _simplejpeg()
    if simple is None:
        return None
    try:
        height, width, colours, _ = simple.decode_jpeg_header(data)
        _check_pixels(height, width, max_pixels, name)
        if colours not in ("YCbCr", "Gray"):
            return None
        if channels == 1 and colours != "Gray":  # Pillow makes gray of RGB
            return None
        with _pillow().open(io.BytesIO(data)) as image:
            orientation = _orientation(image)
        mode = {1: "GRAY", 3: "RGB", 4: "RGBA"}[channels]
        pixels = simple.decode_jpeg(data, mode)
    except ValueError:
        # Its word for every fault; Pillow tells more of them, and bears with some.
        return None
    return _upright(pixels.reshape(height, width, channels), orientation)


def _by_pillow(data: Any, channels: int, max_pixels: int, name: str) -> np.ndarray:
    pillow = _pillow()
    try:
        image = pillow.open(io.BytesIO(data))
    except pillow.UnidentifiedImageError:
        raise pillow.UnidentifiedImageError(
            f"{name}: {len(data)} bytes that are no image of a kind that Pillow knows"
        ) from None
    except pillow.DecompressionBombError as error:  # above PIL.Image.MAX_IMAGE_PIXELS
        raise OSError(f"{name}: {error}") from None
    with image:
        _check_pixels(image.height, image.width, max_pixels, name)
        orientation = _orientation(image)
        if image.mode.startswith("I;16"):  # the high byte, as Pillow has it of 16-bit RGB
            image = pillow.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        elif image.mode in ("I", "F"):
            raise OSError(
                f"{name}: its samples have 32 bits (Pillow's mode {image.mode}); wanted 8 or 16"
            )
        pixels = np.asarray(image.convert(_MODES[channels]))
    return _upright(pixels.reshape(*pixels.shape[:2], channels), orientation)


def _check_pixels(height: int, width: int, max_pixels: int, name: str) -> None:
    if height * width > max_pixels:
        raise OSError(
            f"{name}: its header says {height} x {width} pixels, which are more than max_pixels="
            f"{max_pixels}"
        )


def _orientation(image: Any) -> int:
    """1 to 8, as EXIF counts them; of what stands before the pixels, which are not decoded."""
    if image.format == "TIFF":  # Pillow turns it itself
        return 1
    try:
        # That of a PNG itself would decode the image, to look behind it.
        found = _pillow().Image.getexif(image).get(_ORIENTATION, 1)
    except Exception:  # metadata that cannot be read are no fault of the image
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _upright(pixels: np.ndarray, orientation: int) -> np.ndarray:
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    return np.ascontiguousarray(pixels)
