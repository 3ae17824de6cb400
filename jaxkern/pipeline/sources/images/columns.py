"""Sources whose fields are columns: arrays, encoded images, and values read per record."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Unpack

import jax
import numpy as np

from jaxkern.core.failures import describe_exception, note
from jaxkern.pipeline.rows import Data, ragged_of
from jaxkern.pipeline.sources.images.fields import FileColumn, ImageColumn, ImageOptions, PathList
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.source import (
    ArraySource,
    BatchSource,
    EncodedImages,
    locate,
    record_arrays,
    stack_records,
)
from jaxkern.ring import RowParts
from jaxkern.ring.rows import check_records, common_length

#: function from the bytes of a field of a record to a number, an array, or a dict of these
Decode = Callable[[bytes], Any]


@dataclasses.dataclass(frozen=True, eq=False)
class RecordColumn:
    """Column of `count` values from `value(record)`: numbers, arrays, or dicts of these."""

    count: int
    value: Callable[[int], Any]

    def __len__(self) -> int:
        return self.count


def decoded(ranges: ByteRanges, decode: Decode) -> RecordColumn:
    """Return a column of values that `decode` computes from byte ranges."""
    return RecordColumn(len(ranges), lambda record: decode(bytes(ranges.bytes_of(record))))


#: `ByteRanges` contain encoded images
Column = np.ndarray | RowParts | ByteRanges | RecordColumn


class EncodedSource(BatchSource):
    """Source of records with fields of encoded images, arrays, and values read per record.

    `from_source` creates it from a dict with images.

    Args:
      columns: field -> column; other values are converted to arrays.
      name_of: function from a record to its origin, for error messages.
      options: options of columns of images, for those passed as `ByteRanges`.

    Attributes:
      images: field -> column of images.
      bad_images: (field, record) -> error of each masked image so far.
    """

    fresh = True
    _adds_valid = True  # False if "valid" of the columns is combined with that of masked records

    def __init__(
        self,
        columns: Mapping[str, Column | ImageColumn | Any],
        name_of: Callable[[int], str] | None = None,
        **options: Unpack[ImageOptions],
    ) -> None:
        self._name_of = name_of or super().name_of
        self.images: dict[str, ImageColumn] = {}
        self._made: dict[str, RecordColumn] = {}
        arrays: dict[str, Any] = {}
        for name, column in columns.items():
            if isinstance(column, ByteRanges):
                column = _image_column(column, self._name_of, options)
            if isinstance(column, ImageColumn):
                self.images[name] = column
            elif isinstance(column, RecordColumn):
                self._made[name] = column
            else:
                arrays[name] = column
        self._arrays = ArraySource(arrays) if arrays else None
        fields = self._arrays.arrays if self._arrays is not None else {}
        converted = {**self.images, **self._made, **fields}
        lengths = {name: len(converted[name]) for name in columns}
        self._names: Collection[str] = lengths
        self._length = common_length(lengths)
        if any(column.on_bad_record == "mask" for column in self.images.values()):
            self.on_bad_record = "mask"
            if "valid" in lengths and self._adds_valid:
                raise ValueError("on_bad_record='mask' adds the field 'valid', which exists")
        self.bad_images: dict[tuple[str, int], str] = {}

    def describe(self) -> str:
        scaled = [name for name, column in self.images.items() if column.decode == "scaled"]
        return type(self).__name__ + (f"({', '.join(scaled)} decoded scaled)" if scaled else "")

    def name_of(self, record: int) -> str:
        return self._name_of(record)

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        check_records(records, len(self))
        return self._gather(records, out, np.ones(len(records), bool))

    def _gather(
        self,
        records: np.ndarray,
        out: Data | None,
        readable: np.ndarray,
        encoded: Mapping[int, Data] | None = None,
    ) -> Data:
        """Return a batch.

        Args:
          readable: bool [N], False for records to mask without reading their images.
          encoded: record -> its encoded images, if they have been read.
        """
        data: Data = {}
        numbers = records.tolist()
        valid = readable.copy()
        for field, column in self.images.items():
            images = []
            for row, record in enumerate(numbers):
                image = None
                if readable[row]:
                    image = self._image_or_none(field, record, encoded and encoded[record][field])
                if image is None:
                    valid[row] = False
                    image = column.zeros(record)
                images.append(image)
            data[field] = ragged_of(images, *column.max_size)
        if self._arrays is not None:
            data |= self._arrays.gather(records, None if self.images else out)
        if self._made:
            who = repr(self)
            rows = [record_arrays(self._make(record), record, who) for record in numbers]
            data |= stack_records(rows, numbers, who, out)
        if self.on_bad_record == "mask":
            data["valid"] = valid & np.asarray(data.get("valid", True), bool)
        return data

    def batch_spec(self, count: int, image_side: int) -> Data | None:
        if self._made:
            return None
        spec: Data = {name: column.spec(count, image_side) for name, column in self.images.items()}
        if self._arrays is not None:
            spec |= self._arrays.batch_spec(count, image_side) or {}
        if self.on_bad_record == "mask":
            spec["valid"] = jax.ShapeDtypeStruct((count,), np.bool_)
        return spec

    def check(self, records: np.ndarray) -> None:
        for column in self.images.values():
            column.images.check(records)

    def row_arrays(self) -> Mapping[str, np.ndarray | RowParts] | None:
        if self._made or (self.images and not self.encoded_images()):
            return None
        return {} if self._arrays is None else self._arrays.row_arrays()

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        if self._made:
            return {}
        fields = {field: column.encoded_images() for field, column in self.images.items()}
        native = {field: images for field, images in fields.items() if images is not None}
        return native if len(native) == len(fields) else {}

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        return bytes(self.images[field].bytes_of(record)) if field in self.images else None

    def note_masked(self, records: np.ndarray) -> None:
        for field in self.images:
            for record in records.tolist():
                if (field, record) not in self.bad_images:
                    with contextlib.suppress(Exception):  # the file may not exist any more
                        self._image_or_none(field, record)

    def remarks(self) -> Sequence[str]:
        remarks = {name: "; ".join(column.remarks()) for name, column in self.images.items()}
        return [f"{name}: {text}" for name, text in remarks.items() if text]

    def _image_or_none(self, field: str, record: int, data: Any = None) -> np.ndarray | None:
        """Return the pixels; None for an image that cannot be decoded and is masked."""
        column = self.images[field]
        try:
            image = column.image(record, data)
        except BaseException as error:
            text = "while reading record {} of {!r}: {}"
            note(error, text, record, self, column.name_of(record))
            if column.on_bad_record == "raise" or not _is_image_error(error):
                raise
            self.bad_images[field, record] = describe_exception(error)
            return None
        if image.shape[0] > column.max_size[0] or image.shape[1] > column.max_size[1]:
            raise ValueError(
                f"{column.name_of(record)} is {image.shape[0]}x{image.shape[1]}, but max_size is "
                f"{column.max_size}; expected the maximum (height, width) of all images, or None"
            )
        return image

    def _make(self, record: int) -> Data:
        fields: Data = {}
        for name, column in self._made.items():
            try:
                value = column.value(record)
            except BaseException as error:
                note(error, "while decoding {!r} of {}", name, self._name_of(record))
                note(error, "while reading record {} of {!r}", record, self)
                raise
            if isinstance(value, Mapping):
                fields |= {f"{name}.{key}": part for key, part in value.items()}
            else:
                fields[name] = value
        return fields


def _image_column(
    ranges: ByteRanges, name_of: Callable[[int], str], options: ImageOptions
) -> ImageColumn:
    if not ranges.in_files:
        return ImageColumn(ranges, name_of=name_of, **options)
    paths = [os.path.abspath(bytes(ranges.bytes_of(record))) for record in range(len(ranges))]
    return FileColumn(PathList(paths), **options)


def _is_image_error(error: BaseException) -> bool:
    """True for errors of the image, False for missing files, permissions and memory."""
    other = (
        isinstance(error, MemoryError | ImportError) or getattr(error, "errno", None) is not None
    )
    return isinstance(error, Exception) and not other


def part_name(kind: str, parts: Sequence[Any], ends: np.ndarray, record: int) -> str:
    """Return a text such as "row 3 of PART" for a record of a source of parts, see `locate`."""
    part, row = locate(ends, record)
    return f"{kind} {row} of {parts[part]}"
