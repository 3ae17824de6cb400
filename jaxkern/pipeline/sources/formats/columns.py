"""Sources whose fields are columns: rows of arrays, and byte ranges in memory."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from jaxkern.core.arrays import check_mapped
from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.images.fields import FileColumn, ImageColumn, OnBadRecord, PathList
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.images.sources import EncodedSource
from jaxkern.pipeline.sources.source import RecordSource

#: function from the bytes of a record's field to a number, an array, or a dict of these
Decode = Callable[[bytes], Any]


class ImageOptions(TypedDict, total=False):
    """Options for encoded images of a source, as for `Encoded`."""

    channels: int
    max_size: tuple[int, int] | None
    max_pixels: int
    on_bad_record: OnBadRecord
    decode: Literal["full", "scaled"]


def masks(images: ImageOptions) -> bool:
    """True if images that cannot be decoded are masked."""
    return images.get("on_bad_record") == "mask"


class Chunks:
    """A column [N, ...] that is the concatenation of several arrays."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def take(self, records: np.ndarray) -> np.ndarray:
        """Return the rows of records."""
        first = self._arrays[0]
        rows = np.empty((len(records), *first.shape[1:]), first.dtype)
        chunks = np.searchsorted(self._ends, records, "right")
        for chunk in np.unique(chunks):
            array, selected = self._arrays[chunk], chunks == chunk
            check_mapped("a column", array)
            rows[selected] = array[records[selected] - (self._ends[chunk] - len(array))]
        return rows


@dataclasses.dataclass(frozen=True, eq=False)
class Bytes:
    """A column of byte ranges: encoded images, or input of a decoding function."""

    blobs: Sequence[np.ndarray]  # uint8 [B] each
    ranges: np.ndarray  # int64 [N, 3] of each record: blob, offset and length of its bytes
    decode: Decode | None = None  # None for encoded images
    in_files: bool = False  # True if the bytes are names of image files

    def __len__(self) -> int:
        return len(self.ranges)

    def at(self, record: int) -> bytes:
        """Return the bytes of a record."""
        blob, start, length = self.ranges[record].tolist()
        check_mapped("the record", self.blobs[blob])
        data: bytes = self.blobs[blob][start : start + length].tobytes()
        return data


Column = np.ndarray | Chunks | Bytes

#: serializes NumPy's header parsers, which are not thread-safe on CPython 3.11 ("AST constructor
#: recursion depth mismatch", python/cpython#106905)
NUMPY_HEADERS = threading.Lock()


class ColumnSource(EncodedSource):
    """Base class of sources whose fields are columns of one length.

    Args:
      columns: field -> rows or bytes.
      name_of: function from a record to its file and position, for messages.
      images: see `ImageOptions`.
    """

    fresh = True

    def __init__(
        self,
        columns: Mapping[str, Column],
        name_of: Callable[[int], str],
        **images: Unpack[ImageOptions],
    ) -> None:
        self._name_of = name_of
        self._chunks = {name: c for name, c in columns.items() if isinstance(c, Chunks)}
        arrays = {name: c for name, c in columns.items() if isinstance(c, np.ndarray)}
        ranges = {name: c for name, c in columns.items() if isinstance(c, Bytes)}
        decoded = {name: c for name, c in ranges.items() if c.decode is not None}
        encoded = {
            name: _image_column(column, name_of, images)
            for name, column in ranges.items()
            if column.decode is None
        }
        super().__init__(encoded, arrays, {**self._chunks, **decoded})
        self._names = list(columns)
        fields = DecodedFields(decoded, len(self), name_of)
        self._decoded = RecordSource(fields) if decoded else None

    def name_of(self, record: int) -> str:
        return self._name_of(record)

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        data = super().gather(records, out)
        if self._decoded is not None:
            data |= self._decoded.gather(records, out)
        return data | {k: canonical(chunks.take(records)) for k, chunks in self._chunks.items()}

    def _has_own_gather(self) -> bool:
        is_plain = not self._chunks and self._decoded is None
        return is_plain and type(self).gather is ColumnSource.gather


def _image_column(
    column: Bytes, name_of: Callable[[int], str], options: ImageOptions
) -> ImageColumn:
    if not column.in_files:
        ranges = ByteRanges(tuple(column.blobs), column.ranges, in_files=False)
        return ImageColumn(ranges, **options, name_of=name_of)
    paths = [os.path.abspath(column.at(record)) for record in range(len(column))]
    return FileColumn(PathList(paths), **options)


class DecodedFields:
    """Sequence of records with fields that functions decode."""

    def __init__(
        self, columns: Mapping[str, Bytes], length: int, name_of: Callable[[int], str]
    ) -> None:
        self._columns, self._length, self._name_of = columns, length, name_of

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, record: int) -> Data:
        fields: Data = {}
        for name, column in self._columns.items():
            assert column.decode is not None
            try:
                value = column.decode(column.at(record))
            except BaseException as error:
                note(error, "while decoding {!r} of {}", name, self._name_of(record))
                raise
            if isinstance(value, Mapping):
                fields |= {f"{name}.{key}": part for key, part in value.items()}
            else:
                fields[name] = value
        return fields


def is_image(data: bytes) -> bool:
    """True if bytes begin with the magic number of an image format."""
    magic = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF", b"P6")
    return data.startswith(magic)
