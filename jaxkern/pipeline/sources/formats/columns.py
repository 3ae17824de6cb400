"""Records whose fields are columns: rows of arrays, and bytes that lie somewhere in memory."""

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
from jaxkern.pipeline.sources.source import ArraySource, BatchSource, EncodedImages, RecordSource

#: from the bytes of one record's field to a number, an array, or a dict of those
Decode = Callable[[bytes], Any]


class ImageOptions(TypedDict, total=False):
    """What a source may be told of its encoded images, as `Encoded` is."""

    channels: int
    max_size: tuple[int, int] | None
    max_pixels: int
    on_bad_record: OnBadRecord
    decode: Literal["full", "scaled"]


def masks(images: ImageOptions) -> bool:
    """Whether images that do not decode are masked."""
    return images.get("on_bad_record") == "mask"


class Chunks:
    """A column [N, ...] whose rows lie in several arrays, one behind the other."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays
        self._ends = np.cumsum([len(array) for array in arrays])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def nbytes(self) -> int:
        """Of all rows."""
        return sum(array.nbytes for array in self._arrays)

    def whole(self) -> np.ndarray:
        """All rows as one array; a copy where there are several."""
        return self._arrays[0] if len(self._arrays) == 1 else np.concatenate(self._arrays)

    def take(self, records: np.ndarray) -> np.ndarray:
        """The rows of these records."""
        first = self._arrays[0]
        rows = np.empty((len(records), *first.shape[1:]), first.dtype)
        which = np.searchsorted(self._ends, records, "right")
        for chunk in np.unique(which):
            array, here = self._arrays[chunk], which == chunk
            check_mapped("a column", array)
            rows[here] = array[records[here] - (self._ends[chunk] - len(array))]
        return rows


@dataclasses.dataclass(frozen=True, eq=False)
class Bytes:
    """A column of bytes: of encoded images, or what a function decodes.

    Attributes:
      blobs: uint8 [B] each.
      place: int64 [N, 3] of each record: its blob, and offset and length of its bytes there.
      decode: what they are; None for encoded images.
      in_files: whether they are names of files of images.
    """

    blobs: Sequence[np.ndarray]
    place: np.ndarray
    decode: Decode | None = None
    in_files: bool = False

    def __len__(self) -> int:
        return len(self.place)

    def at(self, record: int) -> bytes:
        """Those of a record."""
        blob, start, length = self.place[record].tolist()
        check_mapped("the record", self.blobs[blob])
        found: bytes = self.blobs[blob][start : start + length].tobytes()
        return found


Column = np.ndarray | Chunks | Bytes

#: for NumPy's readers: they parse headers as Python, where CPython 3.11 mixes up its threads
#: ("AST constructor recursion depth mismatch", python/cpython#106905)
NUMPY_HEADERS = threading.Lock()


class ColumnSource(BatchSource):
    """Records whose fields are columns of one length; what the formats here are made of.

    Args:
      columns: field -> rows, or bytes.
      name_of: a record's file and place there, for messages.
      images: see `ImageOptions`.
    """

    fresh = True

    def __init__(
        self,
        columns: Mapping[str, Column],
        name_of: Callable[[int], str],
        **images: Unpack[ImageOptions],
    ) -> None:
        lengths = {name: len(column) for name, column in columns.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the fields have different numbers of records: {lengths}")
        self._length = next(iter(lengths.values()))
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
        #: what has a `gather` of its own
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
        """(field, record) -> error of each image that did not decode so far, where masked."""
        return {} if self._images is None else self._images.bad_images

    def describe(self) -> str:
        """With what changes the images' values."""
        scaled = self._images is not None and "scaled" in self._images.describe()
        return type(self).__name__ + ("(decoded scaled)" if scaled else "")

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """The columns of numbers, where native threads can make all of a batch."""
        return self._parts[0].row_arrays() if self._is_plain() else None

    def encoded_bytes(self, field: str, record: int) -> bytes | None:
        """An image as the file holds it."""
        return None if self._images is None else self._images.encoded_bytes(field, record)

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        """The columns of images, where native threads can make all of a batch."""
        return self._parts[0].encoded_images() if self._is_plain() else {}

    def remarks(self) -> Sequence[str]:
        """What decodes the images, and why."""
        return () if self._images is None else self._images.remarks()

    def name_of(self, record: int) -> str:
        """Its file and place there."""
        return self._name_of(record)

    def note_masked(self, records: np.ndarray) -> None:
        """Why these images do not decode."""
        if self._images is not None:
            self._images.note_masked(records)

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """Rows of the arrays; decoded images as Ragged; stacked values of what is decoded."""
        if records.size and not (records.min() >= 0 and records.max() < len(self)):
            raise IndexError(f"records {records.min()} to {records.max()} of {len(self)}")
        found: Data = {}
        for part in self._parts:
            found |= part.gather(records, out)
        for name, chunks in self._chunks.items():
            found[name] = canonical(chunks.take(records))
        return found

    def _is_plain(self) -> bool:
        return len(self._parts) == 1 and not self._chunks and self._decoded is None


class PlacedImages(ImageColumn):
    """Encoded images in memory, with names for messages."""

    def __init__(
        self, places: ByteRanges, name_of: Callable[[int], str], **options: Unpack[ImageOptions]
    ) -> None:
        super().__init__(places, **_all_options(options))
        self._name_of = name_of

    def name_of(self, record: int) -> str:
        return self._name_of(record)


def _image_column(
    column: Bytes, name_of: Callable[[int], str], options: ImageOptions
) -> ImageColumn:
    if not column.in_files:
        places = ByteRanges(tuple(column.blobs), column.place, in_files=False)
        return PlacedImages(places, name_of, **options)
    paths = [os.path.abspath(column.at(record)) for record in range(len(column))]
    return FileColumn(PathList(paths), **_all_options(options), index=None)


def _all_options(given: ImageOptions) -> dict[str, Any]:
    """With those that were not given."""
    first = ImageOptions(
        channels=3, max_size=None, max_pixels=MAX_PIXELS, on_bad_record="raise", decode="full"
    )
    return {**first, **given}


class DecodedFields:
    """Records of fields that functions decode, one by one."""

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
    """Whether bytes begin as those of an image do."""
    marks = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF", b"P6")
    return data.startswith(marks)
