"""Sources whose fields are columns: rows of arrays, encoded images, and bytes to decode."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Unpack

import numpy as np

from jaxkern.core.arrays import check_mapped
from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.images.fields import FileColumn, ImageColumn, ImageOptions, PathList
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.images.sources import EncodedSource
from jaxkern.pipeline.sources.source import EncodedImages, locate, record_arrays, stack_records
from jaxkern.ring.rows import gather_rows

#: function from the bytes of a record's field to a number, an array, or a dict of these
Decode = Callable[[bytes], Any]

#: serializes NumPy's header parsers, which are not thread-safe on CPython 3.11 ("AST constructor
#: recursion depth mismatch", python/cpython#106905)
NUMPY_HEADERS = threading.Lock()


class Chunks:
    """A column [N, ...] that is the concatenation of several arrays."""

    def __init__(self, arrays: Sequence[np.ndarray]) -> None:
        self._arrays = arrays

    def __len__(self) -> int:
        return sum(map(len, self._arrays))

    def take(self, records: np.ndarray) -> np.ndarray:
        """Return the rows of records."""
        for array in self._arrays:
            check_mapped("a column", array)
        first = self._arrays[0]
        rows = np.empty((len(records), *first.shape[1:]), first.dtype)
        return gather_rows(self._arrays, records, rows)


class Decoded(NamedTuple):
    """A column of bytes that a function decodes."""

    ranges: ByteRanges
    decode: Decode


#: byte ranges without a function are encoded images
Column = np.ndarray | Chunks | ByteRanges | Decoded


class ColumnSource(EncodedSource):
    """Base class of sources whose fields are columns of one length.

    `name_of` returns the file and position of a record, for messages.
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
        self._decoded = {name: c for name, c in columns.items() if isinstance(c, Decoded)}
        decoded = {name: column.ranges for name, column in self._decoded.items()}
        encoded = {
            name: _image_column(column, name_of, images)
            for name, column in columns.items()
            if isinstance(column, ByteRanges)
        }
        arrays = {name: c for name, c in columns.items() if isinstance(c, np.ndarray)}
        super().__init__(encoded, arrays, {**self._chunks, **decoded})
        self._names = list(columns)

    def name_of(self, record: int) -> str:
        return self._name_of(record)

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        data = super().gather(records, out)
        if self._decoded:
            numbers = records.tolist()
            rows = [record_arrays(self._decode(r), r, repr(self)) for r in numbers]
            data |= stack_records(rows, numbers, repr(self), out)
        return data | {k: canonical(chunks.take(records)) for k, chunks in self._chunks.items()}

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        return None if self._chunks or self._decoded else super().row_arrays()

    def encoded_images(self) -> Mapping[str, EncodedImages]:
        return {} if self._chunks or self._decoded else super().encoded_images()

    def _decode(self, record: int) -> Data:
        fields: Data = {}
        for name, column in self._decoded.items():
            try:
                value = column.decode(bytes(column.ranges.bytes_of(record)))
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


def part_name(kind: str, parts: Sequence[Any], ends: np.ndarray, record: int) -> str:
    """Return "row 3 of PART" of a record of several parts, see `locate`."""
    part, row = locate(ends, record)
    return f"{kind} {row} of {parts[part]}"
