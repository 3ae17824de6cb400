"""TFRecord files of tf.train.Example, without TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jaxkern.core.progress import ProgressBar
from jaxkern.pipeline.sources.files import Paths, expand_paths, import_extra
from jaxkern.pipeline.sources.formats.columns import (
    Bytes,
    Column,
    ColumnSource,
    Decode,
    ImageOptions,
    is_image,
)

_HEAD, _FOOT = 12, 4  # bytes before and behind a record's own


class TFRecordSource(ColumnSource):
    """The records of TFRecord files of tf.train.Example; files are mapped into memory.

    All records are parsed when the source is made, and their checksums compared: numbers are kept,
    and of bytes where they lie. Lists of one number each are a field [N], longer ones [N, length];
    bytes are encoded images, which become a `jaxkern.image.Ragged`.

    Args:
      paths: a file, a list, a folder, or a pattern: ``train.tfrecord-{00000..00003}-of-00004``.
      features: which, and their names: field -> feature; or a sequence of features. All of the
        first record by default.
      decoders: feature of bytes -> function from them to a number, an array or a dict of those, of
        the same shapes in every record.
      images: `channels`, `max_size`, `max_pixels`, `on_bad_record`, `decode`: as for `Encoded`.

    Attributes:
      files: the files.
      bad_images: (field, record) -> error of each image that did not decode, where masked.

    Raises: ImportError without tfrecord; FileNotFoundError; ValueError that names file and byte for
      a record that is damaged or cut short, and for features that differ from record to record;
      TypeError for bytes that are no images; KeyError for decoders of what is no feature of bytes.
    """

    def __init__(
        self,
        paths: Paths,
        features: Mapping[str, str] | Sequence[str] | None = None,
        decoders: Mapping[str, Decode] | None = None,
        **images: Unpack[ImageOptions],
    ) -> None:
        self.files = expand_paths(paths, (".tfrecord", ".tfrecords"), "TFRecord")
        if isinstance(features, str):
            raise TypeError(f"features is {features!r}; wanted a sequence of them, or a dict")
        if features is not None and not isinstance(features, Mapping):
            features = {name: name for name in features}
        fields = _Fields(features, decoders or {})
        blobs: list[np.ndarray] = []
        ends: list[int] = []
        with ProgressBar(True, "TFRecord", "files") as bar:
            for number, file in enumerate(self.files):
                if file.stat().st_size:
                    data = np.memmap(file, np.uint8, "r")
                    for offset, record in _frames(file, data):
                        fields.add(len(blobs), offset, record, f"{file}, record at byte {offset}")
                    blobs.append(data)
                ends.append(fields.records)
                bar.update(number + 1, len(self.files))
        if not fields.records:
            raise ValueError(f"{self.files[0]}: no records in these files")
        name_of = functools.partial(_record_name, self.files, np.array(ends))
        super().__init__(fields.columns(blobs), name_of, **images)


def _record_name(files: Sequence[Path], ends: np.ndarray, record: int) -> str:
    number = int(np.searchsorted(ends, record, "right"))
    return f"record {record - (ends[number - 1] if number else 0)} of {files[number]}"


def _frames(file: Path, data: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of each record, whose checksums are right."""
    crc32c = import_extra("crc32c", "tfrecord").crc32c
    offset = 0
    while offset < len(data):
        head = data[offset : offset + _HEAD].tobytes()
        length = int.from_bytes(head[:8], "little")
        start, end = offset + _HEAD, offset + _HEAD + length
        if len(head) < _HEAD or _masked(crc32c(head[:8])) != head[8:]:
            hint = "; it is compressed: unpack it first" if head[:2] == b"\x1f\x8b" else ""
            raise ValueError(
                f"{file} is damaged or no TFRecord file: no record begins at byte {offset} of "
                f"{len(data)}{hint}"
            )
        if end + _FOOT > len(data):
            raise ValueError(
                f"{file} is cut short: the record at byte {offset} ends at byte {end + _FOOT} of "
                f"{len(data)}"
            )
        record = data[start:end].tobytes()
        if _masked(crc32c(record)) != data[end : end + _FOOT].tobytes():
            raise ValueError(f"{file} is damaged: the record at byte {offset} has another checksum")
        yield start, record
        offset = end + _FOOT


def _masked(crc: int) -> bytes:
    """A checksum as TFRecord stores it."""
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class _Fields:
    """The features of records, as columns; `wanted` None are those of the first record."""

    def __init__(self, wanted: Mapping[str, str] | None, decoders: Mapping[str, Decode]) -> None:
        self._example = import_extra("tfrecord", "tfrecord").example_pb2.Example
        self._wanted, self._given = wanted, wanted is not None
        self._decoders = decoders
        self._values: dict[str, list[Any]] = {}
        self.records = 0

    def add(self, blob: int, offset: int, data: bytes, where: str) -> None:
        """A record whose bytes begin at `offset` of a file."""
        try:
            found = self._example.FromString(data).features.feature
        except Exception as error:
            raise ValueError(f"{where} is no tf.train.Example: {error}") from error
        if self._wanted is None:
            self._wanted = {name: name for name in sorted(found)}
        for name, feature in self._wanted.items():
            kind = found[feature].WhichOneof("kind") if feature in found else None
            if kind is None:
                raise ValueError(
                    f"{where} has no feature {feature!r}; it has {sorted(found)}: choose "
                    "features={...} that all records have"
                )
            value: Any = getattr(found[feature], kind).value
            if kind == "bytes_list":
                value = self._place(blob, offset, data, feature, value, where)
            else:
                value = np.array(value, np.float32 if kind == "float_list" else np.int64)
            values = self._values.setdefault(name, [])
            if values and (type(value), np.shape(value), getattr(value, "dtype", 0)) != (
                type(values[0]),
                np.shape(values[0]),
                getattr(values[0], "dtype", 0),
            ):
                raise ValueError(
                    f"{where} has {len(value)} values in {feature!r}, or of another type, and the "
                    f"first record {len(values[0])}; wanted the same in every record"
                )
            values.append(value)
        self.records += 1

    def columns(self, blobs: Sequence[np.ndarray]) -> dict[str, Column]:
        """All of them."""
        columns: dict[str, Column] = {}
        decodable: set[str] = set()
        for name, values in self._values.items():
            if isinstance(values[0], tuple):
                feature = (self._wanted or {})[name]
                decodable.add(feature)
                places = np.array(values, np.int64)
                columns[name] = Bytes(blobs, places, self._decoders.get(feature))
            else:
                stacked = np.stack(values)
                columns[name] = stacked[:, 0] if stacked.shape[1] == 1 else stacked
        if unknown := sorted(self._decoders.keys() - decodable):
            raise KeyError(f"decoders has {unknown}; the features of bytes are {sorted(decodable)}")
        return columns

    def _place(
        self, blob: int, offset: int, data: bytes, feature: str, value: Any, where: str
    ) -> tuple[int, int, int]:
        if len(value) != 1:
            raise ValueError(f"{where} has {len(value)} values in {feature!r}; wanted one of bytes")
        if not (self._given or feature in self._decoders or self.records or is_image(value[0])):
            raise TypeError(
                f"{where} has bytes in {feature!r} that are no image; wanted a function of them, "
                f"decoders={{{feature!r}: ...}}, or features={{...}} without it"
            )
        # Wherever in the record the same bytes stand.
        return blob, offset + data.index(value[0]), len(value[0])
