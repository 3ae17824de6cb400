"""A source of encoded images whose `gather` decodes with Pillow or NumPy, as a reference."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from jaxkern.image import Ragged
from jaxkern.pipeline import BatchSource
from jaxkern.pipeline.sources.images.decoding import jpeg_decoding
from jaxkern.pipeline.sources.source import EncodedImages

# Of tests of the native JPEG decoder; never skipped where JAXKERN_REQUIRE names it, as in .ci/run.
native_jpeg = pytest.mark.skipif(
    "jpeg" not in os.environ.get("JAXKERN_REQUIRE", "") and not jpeg_decoding().native,
    reason="this installation has no native JPEG decoder",
)
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}


class PillowSource(BatchSource):
    """Images as concatenated bytes or as files, with a label and the record id."""

    fresh = True

    def __init__(
        self,
        encoded: Sequence[bytes] | Sequence[os.PathLike[str]],
        sizes: Sequence[tuple[int, int]],
        *,
        on_bad_record: Any = "raise",
        **about: Any,
    ) -> None:
        self.on_bad_record = on_bad_record
        self._in_files = not isinstance(encoded[0], bytes)
        self._parts = [os.fsencode(x) if self._in_files else x for x in encoded]
        length = np.array([len(part) for part in self._parts])
        ranges = np.stack([np.zeros_like(length), np.cumsum(length) - length, length], 1)
        blob = np.frombuffer(b"".join(self._parts), np.uint8)
        self.images = EncodedImages(
            (blob,), ranges, self._in_files, np.asarray(sizes, np.int32).reshape(-1, 2), **about
        )

    def __len__(self) -> int:
        return len(self._parts)

    def _pixels(self, record: int) -> np.ndarray:
        data = self._parts[record]
        if self._in_files:
            with open(data, "rb") as file:
                data = file.read()
        channels = self.images.channels
        if self.images.codec == "raw":
            return np.frombuffer(data, np.uint8).reshape(*self.images.size[record], channels)
        with PIL.Image.open(io.BytesIO(data)) as image:
            upright = PIL.ImageOps.exif_transpose(image).convert(_MODES[channels])
            return np.asarray(upright).reshape(upright.height, upright.width, channels)

    def gather(self, records, out=None):
        pixels, valid = [], []
        for record in records.tolist():
            size = self.images.size[record]
            try:
                pixels.append(self._pixels(record))
                if pixels[-1].shape[:2] != tuple(size):
                    raise ValueError(f"record {record} is {pixels.pop().shape[:2]} and not {size}")
                valid.append(True)
            except Exception:
                if self.on_bad_record == "raise":
                    raise
                pixels.append(np.zeros((*size, self.images.channels), np.uint8))
                valid.append(False)
        height, width = self.images.size.max(0).tolist()
        # One length of the buffer, so that the program for it is compiled once.
        data = {
            "image": Ragged.from_list(
                pixels,
                max_height=height,
                max_width=width,
                buffer_size=len(pixels) * height * width * self.images.channels,
            ),
            "label": records.astype(np.int32) % 7,
            "record": records.astype(np.int32),
        }
        return data if self.on_bad_record == "raise" else {**data, "valid": np.array(valid)}

    def row_arrays(self):
        numbers = np.arange(len(self), dtype=np.int32)
        return {"label": numbers % 7, "record": numbers}

    def encoded_images(self):
        return {"image": self.images}


def photograph(height: int, width: int, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Smooth waves with noise and hard edges, u8 [height, width, channels]."""
    rng = np.random.default_rng([seed, height, width])
    y, x, c = np.meshgrid(np.arange(height), np.arange(width), np.arange(channels), indexing="ij")
    waves = np.sin(x / 9 + c) + np.cos(y / 7 - 2 * c) + ((x // 13 + y // 11) % 2)
    return np.clip(60 * waves + 90 + 12 * rng.standard_normal(waves.shape), 0, 255).astype(np.uint8)


def jpeg(pixels: np.ndarray, **options: Any) -> bytes:
    """Encoded by Pillow with its options."""
    data = io.BytesIO()
    image = PIL.Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    image.save(data, "JPEG", **{"quality": 90, **options})
    return data.getvalue()
