"""Sources whose fields are columns: rows of arrays, and byte ranges in memory."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import numpy as np

from jaxkern.core.failures import note
from jaxkern.core.mapped import check_mapped
from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.images.decoding import MAX_PIXELS
from jaxkern.pipeline.sources.images.fields import FileColumn, ImageColumn, OnBadRecord, PathList
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.images.sources import EncodedSource
from jaxkern.pipeline.sources.source import (
    ArraySource,
    BatchSource,
    EncodedImages,
    RecordSource,
    check_records,
    common_length,
)

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

    @property
    def nbytes(self) -> int:
        """Return the size of all rows in bytes."""
        return sum(array.nbytes for array in self._arrays)

    def concatenate(self) -> np.ndarray:
        """Return all rows as one array, without a copy if there is one array."""
        return self._arrays[0] if len(self._arrays) == 1 else np.concatenate(self._arrays)

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
    """A column of byte ranges: encoded images, or input of a decoding function.

    Attributes:
      blobs: uint8 [B] each.
      ranges: int64 [N, 3] of each record: blob, offset and length of its bytes.
      decode: decoding function; None for encoded images.
      in_files: True if the bytes are names of image files.
    """

    blobs: Sequence[np.ndarray]
    ranges: np.ndarray
    decode: Decode | None = None
    in_files: bool = False

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


class ColumnSource(BatchSource):
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
        self._length = common_length({name: len(column) for name, column in columns.items()})
        self._names, self._name_of = list(columns), name_of
        self._chunks: dict[str, Chunks] = {}
        arrays: dict[str, np.ndarray] = {}
        encoded: dict[str, ImageColumn] = {}
        decoded: dict[str, Bytes] = {}
        for name, column in columns.items():
            if isinstance(column, Chunks):
                self._chunks[name] = column
            elif not isinstance(column, Bytes):
                arrays[name] = column
            elif column.decode is not None:
                decoded[name] = column
            else:
                encoded[name] = _image_column(column, name_of, images)
        self._images = EncodedSource(encoded, arrays) if encoded else None
        self._decoded = (
            RecordSource(DecodedFields(decoded, len(self), name_of)) if decoded else None
        )
        #: sources of the fields, except chunks
        self._parts: list[BatchSource] = [self._images] if self._images is not None else []
        if self._images is None and arrays:
            self._parts.append(ArraySource(arrays))
        if self._decoded is not None:
            self._parts.append(self._decoded)
        if self._images is not None:
            self.on_bad_record = self._images.on_bad_record
            if masks(images) and "valid" in columns:
                raise ValueError(
                    "the source has a field 'valid', which on_bad_record='mask' adds: rename it"
                )

    def __len__(self) -> int:
        return self._length

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._names)}; {len(self)} records)"

    @property
    def bad_images(self) -> dict[tuple[str, int], str]:
        """Return (field, record) -> error of each masked image so far."""
        return {} if self._images is None else self._images.bad_images

    def describe(self) -> str:
        """Include the options that change pixel values."""
        scaled = self._images is not None and "scaled" in self._images.describe()
        return type(self).__name__ + ("(decoded scaled)" if scaled else "")

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """Return the columns of numbers if native threads can read all fields."""
        return self._parts[0].row_arrays() if self._is_plain() else None

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        """Return an encoded image of the file."""
        return None if self._images is None else self._images.encoded_bytes(field, record)

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """Return the columns of images if native threads can read all fields."""
        return self._parts[0].encoded_images() if self._is_plain() else {}

    def remarks(self) -> Sequence[str]:
        """Describe which decoders the images need, and why."""
        return () if self._images is None else self._images.remarks()

    def name_of(self, record: int) -> str:
        """Return the file of a record and its position there."""
        return self._name_of(record)

    def note_masked(self, records: np.ndarray) -> None:
        """Record why these images cannot be decoded."""
        if self._images is not None:
            self._images.note_masked(records)

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """Return rows of arrays, decoded images as Ragged, and other decoded values, stacked."""
        check_records(records, len(self))
        data: Data = {}
        for part in self._parts:
            data |= part.gather(records, out)
        for name, chunks in self._chunks.items():
            data[name] = canonical(chunks.take(records))
        return data

    def _is_plain(self) -> bool:
        return len(self._parts) == 1 and not self._chunks and self._decoded is None


class NamedImages(ImageColumn):
    """A field of encoded images in memory, with names for messages."""

    def __init__(
        self, ranges: ByteRanges, name_of: Callable[[int], str], **options: Unpack[ImageOptions]
    ) -> None:
        super().__init__(ranges, **_all_options(options))
        self._name_of = name_of

    def name_of(self, record: int) -> str:
        return self._name_of(record)


def _image_column(
    column: Bytes, name_of: Callable[[int], str], options: ImageOptions
) -> ImageColumn:
    if not column.in_files:
        ranges = ByteRanges(tuple(column.blobs), column.ranges, in_files=False)
        return NamedImages(ranges, name_of, **options)
    paths = [os.path.abspath(column.at(record)) for record in range(len(column))]
    return FileColumn(PathList(paths), **_all_options(options), index=None)


def _all_options(options: ImageOptions) -> dict[str, Any]:
    """Add the defaults of missing options."""
    defaults = ImageOptions(
        channels=3, max_size=None, max_pixels=MAX_PIXELS, on_bad_record="raise", decode="full"
    )
    return {**defaults, **options}


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
