"""Encoding of records for packed files: arrays, resized images, JPEG files."""

from __future__ import annotations

import dataclasses
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.failures import note
from jaxkern.core.mapped import check_mapped
from jaxkern.pipeline.rows import Data, row_of
from jaxkern.pipeline.sources.images.decoding import header_by_pillow
from jaxkern.pipeline.sources.packed.layout import Codec, PackedField, can_store
from jaxkern.pipeline.sources.source import BatchSource, RecordSource

# Maximum size of rows of fixed shapes that are stored in the index.
_COLUMN_BYTES = 256
_BLOCK_BYTES = 1 << 20
_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_FORMAT = re.compile(r"(raw|npy|jpeg)(?::(\d+))?\Z")


@dataclasses.dataclass(frozen=True)
class PackFormat:
    """Format of packed records.

    Attributes:
      name: "npy", "raw" or "jpeg".
      quality: quality of JPEG images.
      max_side: maximum side of images; larger ones are resized.
      images: names of the image fields, unless the name is "npy".
    """

    name: str
    quality: int
    max_side: int | None
    images: tuple[str, ...]

    @classmethod
    def parse(cls, text: str, max_side: int | None, images: Sequence[str]) -> PackFormat:
        """Parse a text such as ``"jpeg:90"``."""
        match = _FORMAT.match(text) if isinstance(text, str) else None
        if match is None or (match[2] and match[1] != "jpeg"):
            raise ValueError(f"format is {text!r}; expected 'npy', 'raw', 'jpeg' or 'jpeg:90'")
        quality = int(match[2] or 90)
        if not 1 <= quality <= 100:
            raise ValueError(f"format is {text!r}; expected a quality from 1 to 100")
        if match[1] == "npy" and max_side is not None:
            raise ValueError(
                f"max_side is {max_side}, but format 'npy' stores arrays unchanged; expected "
                "'raw' or 'jpeg:90' to resize images"
            )
        return cls(match[1], quality, max_side, tuple(images))

    def __str__(self) -> str:
        return f"{self.name}:{self.quality}" if self.name == "jpeg" else self.name


class Stored(NamedTuple):
    """Data of a record's field that are stored outside the index."""

    data: Any  # bytes-like
    shape: tuple[int, ...]
    crc32: int


#: a record: field -> its value in a column, or stored data
PackedRecord = dict[str, np.ndarray | Stored]


class RecordEncoder:
    """Encodes records of a source; called from several threads.

    Args:
      source: the source to pack.
      form: the format.

    Raises:
      TypeError, ValueError: record 0 cannot be packed in this format.
    """

    def __init__(self, source: BatchSource, form: PackFormat) -> None:
        self._source = source
        self._form = form
        self._arrays = {} if source.encoded_images() else source.row_arrays() or {}
        first = self._record(0)
        if form.name != "npy":
            missing = [name for name in form.images if name not in first]
            if missing or not form.images:
                raise ValueError(
                    f"format {form} packs the images {list(form.images)}, and the fields are "
                    f"{list(first)}; name the fields that are images, or use format 'npy'"
                )
        self.fields = tuple(self._field(name, value) for name, value in first.items())
        size = max(1, sum(value.nbytes for value in first.values()))
        #: number of records that are encoded together
        self.block = max(1, min(256, _BLOCK_BYTES // size)) if self._arrays else 1

    def encode(self, records: range) -> list[PackedRecord]:
        """Encode records."""
        encoded = []
        with jax.enable_x64(True):  # preserves 64-bit numbers
            for record in records:
                try:
                    encoded.append(self._encode(record))
                except BaseException as error:
                    note(error, "while packing record {} of {!r}", record, self._source)
                    raise
        return encoded

    def _encode(self, record: int) -> PackedRecord:
        values = self._record(record)
        if values.keys() != {field.name for field in self.fields}:
            raise ValueError(
                f"record {record} has the fields {list(values)} and record 0 "
                f"{[field.name for field in self.fields]}; expected equal fields"
            )
        readable = bool(np.all(values.get("valid", True)))  # otherwise the pixels are zeros
        return {
            field.name: self._stored(field, record, values[field.name], readable)
            for field in self.fields
        }

    def _stored(
        self, field: PackedField, record: int, value: np.ndarray, readable: bool
    ) -> np.ndarray | Stored:
        self._check(field, record, value)
        if self._is_image(field.name):
            limit = self._form.max_side
            if field.codec == "jpeg" and readable and not is_larger(value, limit):
                jpeg = self._source.encoded_bytes(field.name, record)
                if jpeg is not None and jpeg_size(jpeg) == value.shape[:2]:  # avoids a second loss
                    return _with_checksum(jpeg, value.shape[:2])
            value = resize(value, limit)
            if field.codec == "jpeg":
                return _with_checksum(encode_jpeg(value, self._form.quality), value.shape[:2])
        value = np.asarray(value, field.dtype, order="C")
        if field.codec == "column":
            return value
        return _with_checksum(value.reshape(-1).view(np.uint8).data, value.shape)

    def _check(self, field: PackedField, record: int, value: np.ndarray) -> None:
        same = value.dtype.newbyteorder("<") == field.dtype and value.ndim == len(field.shape)
        if field.codec == "column":
            same = same and value.shape == field.shape
        elif self._is_image(field.name):
            same = same and value.shape[2] == field.shape[2] and value.size > 0
        if not same:
            raise ValueError(
                f"record {record} has {field.name!r} {value.dtype}{list(value.shape)} and record 0 "
                f"{field.dtype}{list(field.shape)}; expected equal dtypes, numbers of dimensions "
                "and numbers of channels"
            )

    def _is_image(self, name: str) -> bool:
        return self._form.name != "npy" and name in self._form.images

    def _field(self, name: str, value: np.ndarray) -> PackedField:
        if not can_store(value.dtype):
            raise TypeError(
                f"field {name!r} has dtype {value.dtype}; expected numbers or bools of JAX's dtypes"
            )
        codec: Codec = "array"
        shape = (0,) * value.ndim
        if self._is_image(name):
            if value.dtype != np.uint8 or value.ndim != 3 or value.shape[2] not in _MODES:
                raise ValueError(
                    f"field {name!r} is {value.dtype}{list(value.shape)}; expected images, uint8 "
                    "[H, W, 1, 3 or 4]; use format 'npy' for other arrays"
                )
            shape = (0, 0, value.shape[2])
            if self._form.name == "jpeg":
                if value.shape[2] == 4:
                    raise ValueError(
                        f"field {name!r} has 4 channels, which JPEG lacks; use format 'raw'"
                    )
                codec = "jpeg"
        elif value.ndim == 0 or (name in self._arrays and value.nbytes <= _COLUMN_BYTES):
            codec, shape = "column", value.shape
        return PackedField(name, codec, value.dtype.newbyteorder("<"), shape)

    def _record(self, record: int) -> dict[str, np.ndarray]:
        if self._arrays:
            self._source.check(np.array([record]))
            for name, array in self._arrays.items():
                check_mapped(f"field {name!r}", array)
            return {name: np.asarray(array[record]) for name, array in self._arrays.items()}
        with jax.enable_x64(True):
            data: Data
            if isinstance(self._source, RecordSource):
                data = self._source._record(record)
            else:
                data = row_of(self._source.gather(np.array([record])), 0)
        return {name: np.asarray(value) for name, value in data.items()}


def jpeg_size(jpeg: bytes) -> tuple[int, int] | None:
    """Return the upright (height, width) of a JPEG file; None for other or invalid files."""
    if not jpeg.startswith(b"\xff\xd8\xff"):
        return None
    native = registry.module("cpu")
    try:
        if native is None:
            header = header_by_pillow(jpeg)
            return (header.height, header.width)
        height, width, _, orientation, _ = native.jpeg_info(np.frombuffer(jpeg, np.uint8))
    except (ValueError, OSError):
        return None
    return (width, height) if orientation >= 5 else (height, width)


def is_larger(image: np.ndarray, max_side: int | None) -> bool:
    """True if a side of uint8 [H, W, C] exceeds the limit."""
    return max_side is not None and max(image.shape[:2]) > max_side


def resize(image: np.ndarray, max_side: int | None) -> np.ndarray:
    """Resize uint8 [H, W, C] to a longer side of at most `max_side`, with the same aspect ratio."""
    if max_side is None or not is_larger(image, max_side):
        return image
    height, width = image.shape[:2]
    from PIL.Image import Resampling

    scale = max_side / max(height, width)
    size = tuple(max(1, round(side * scale)) for side in (width, height))
    small = np.asarray(_pillow(image).resize(size, Resampling.LANCZOS))
    return small.reshape(size[1], size[0], image.shape[2])


def encode_jpeg(image: np.ndarray, quality: int) -> bytes:
    """Encode uint8 [H, W, 1 or 3] as a JPEG file."""
    file = io.BytesIO()
    _pillow(image).save(file, "JPEG", quality=quality)
    return file.getvalue()


def _pillow(image: np.ndarray) -> Any:
    import PIL.Image

    pixels = np.ascontiguousarray(image)
    return PIL.Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def _with_checksum(data: Any, shape: tuple[int, ...]) -> Stored:
    return Stored(data, tuple(shape), zlib.crc32(data))


def sizes(record: PackedRecord) -> Iterator[int]:
    """Yield the size in bytes of each field's data outside the index."""
    for value in record.values():
        if isinstance(value, Stored):
            yield len(value.data)
