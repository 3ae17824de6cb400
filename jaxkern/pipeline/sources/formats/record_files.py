"""Sources of record files: ArrayRecord, as written by Grain and TFDS, and TFRecord."""

from __future__ import annotations

import functools
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from jaxkern.core.failures import note
from jaxkern.core.progress import track
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.files import NUMPY_HEADERS, Paths, expand_paths, import_extra
from jaxkern.pipeline.sources.images.columns import (
    Column,
    Decode,
    EncodedSource,
    decoded,
    part_name,
)
from jaxkern.pipeline.sources.images.fields import ImageOptions
from jaxkern.pipeline.sources.images.headers import ByteRanges
from jaxkern.pipeline.sources.source import RecordSource, locate, record_arrays

#: first bytes of image files
_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"RIFF", b"P6")
_HEAD, _FOOT = 12, 4  # number of bytes before and after the data of a record


class ArrayRecordSource(RecordSource):
    """Source of the records of ArrayRecord files; a forked child process cannot read them.

    Args:
      paths: a file, a list, a folder, or a pattern: ``train.array_record-{00000..00003}-of-00004``.
      decode: function from the bytes of a record to a dict of arrays, of equal shapes for all
        records; called in worker threads. By default records are archives of `numpy.savez`.

    Raises:
      ValueError: a file is damaged or truncated; the message names it.

    Example:
      >>> import numpy as np, tempfile, jaxkern as jk
      >>> from array_record.python.array_record_module import ArrayRecordWriter
      >>> path = tempfile.mkdtemp() + "/x.array_record"
      >>> writer = ArrayRecordWriter(path, "group_size:1")
      >>> writer.write(bytes([1, 2])), writer.write(bytes([3, 4])), writer.close()
      (None, None, None)
      >>> decode = lambda record: {"x": np.frombuffer(record, np.uint8)}
      >>> jk.pipeline.ArrayRecordSource(path, decode)[1]["x"].tolist()
      [3, 4]
    """

    def __init__(
        self, paths: Paths, decode: Callable[[bytes], Mapping[str, Any]] | None = None
    ) -> None:
        import_extra("array_record", "arrayrecord")
        self.files = expand_paths(paths, (".array_record", ".arrayrecord"), "ArrayRecord")
        self._decode = _savez if decode is None else decode
        self._lock = threading.Lock()
        self._readers: dict[int, Any] = {}
        self._ends = np.cumsum([self._count(n) for n in range(len(self.files))])
        self._length = int(self._ends[-1])

    def __repr__(self) -> str:
        return f"ArrayRecordSource({self.files[0].name}; {len(self)} records)"

    def record(self, record: int) -> Data:
        number, index = locate(self._ends, record)
        try:
            fields = self._decode(self._reader(number).read([index])[0])
        except BaseException as error:
            note(error, "while reading record {} of {}", index, self.files[number])
            note(error, "while reading record {} of {!r}", record, self)
            raise
        return record_arrays(fields, record, repr(self))

    def _count(self, number: int) -> int:
        count = int(self._reader(number).num_records())
        if not count:  # as in a damaged file
            raise ValueError(f"{self.files[number]} has no records, is damaged or truncated")
        return count

    def _reader(self, number: int) -> Any:
        with self._lock:
            _check_process()
            if number not in self._readers:
                module = import_extra("array_record.python.array_record_module", "arrayrecord")
                path = self.files[number]
                options = {"options": "readahead_buffer_size:0", "file_reader_buffer_size": 32768}
                try:
                    self._readers[number] = module.ArrayRecordReader(os.fspath(path), **options)
                except Exception as error:
                    raise ValueError(
                        f"{path} is not a readable ArrayRecord file: {error}"
                    ) from error
            return self._readers[number]


_process: list[int] = []  # id of the process with the threads of the library


def _check_process() -> None:
    # In a forked child the library aborts the process, because its threads do not exist.
    if not _process:
        _process.append(os.getpid())
    if _process[0] != os.getpid():
        raise RuntimeError(
            "ArrayRecord files were read before the process forked: start the child with "
            "multiprocessing's 'spawn' or 'forkserver'"
        )


def _savez(data: bytes) -> dict[str, np.ndarray]:
    if not data.startswith(b"PK"):
        raise TypeError(
            f"the record has {len(data)} bytes that are not an archive of numpy.savez; use "
            "ArrayRecordSource(..., decode=a function from bytes to a dict of arrays)"
        )
    with NUMPY_HEADERS, np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return dict(archive)


class TFRecordSource(EncodedSource):
    """Source of TFRecord files of tf.train.Example, without TensorFlow; files are mapped.

    The constructor parses all records and verifies their checksums. It stores numbers, and for
    bytes their byte ranges. Lists of one number become a field [N], longer lists a
    field [N, length]. Bytes are encoded images, which become a `jaxkern.image.Ragged`.

    Args:
      paths: a file, a list, a folder, or a pattern: ``train.tfrecord-{00000..00003}-of-00004``.
      features: field -> feature, or a sequence of features; by default all features of the first
        record.
      decoders: feature of bytes -> function from bytes to a number, an array or a dict of these,
        of equal shapes for all records.
      images: `channels`, `max_size`, `max_pixels`, `on_bad_record`, `decode`: as for `Encoded`.

    Attributes:
      files: the files.
      bad_images: (field, record) -> error of each masked image.

    Raises:
      ValueError: a record is damaged or truncated (the message names file and byte), or features
        differ between records.
      TypeError, KeyError: bytes are not images; decoders has features that are not bytes.

    Example:
      >>> import tempfile, tfrecord, jaxkern as jk
      >>> path = tempfile.mkdtemp() + "/x.tfrecord"
      >>> writer = tfrecord.TFRecordWriter(path)
      >>> writer.write({"x": ([1.0, 2.0], "float"), "label": (7, "int")})
      >>> writer.close()
      >>> record = jk.pipeline.TFRecordSource(path)[0]
      >>> record["x"].tolist(), record["label"].item()
      ([1.0, 2.0], 7)
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
            raise TypeError(f"features is {features!r}; expected a sequence or a dict")
        if features is not None and not isinstance(features, Mapping):
            features = {name: name for name in features}
        fields = _Fields(features, decoders or {})
        blobs: list[np.ndarray] = []
        ends: list[int] = []
        for file in track(self.files, "TFRecord", "files"):
            if file.stat().st_size:
                data = np.memmap(file, np.uint8, "r")
                for offset, record in _frames(file, data):
                    fields.add(len(blobs), offset, record, f"{file}, record at byte {offset}")
                blobs.append(data)
            ends.append(fields.records)
        if not fields.records:
            raise ValueError(f"{self.files[0]}: no records in these files")
        name_of = functools.partial(part_name, "record", self.files, np.array(ends))
        super().__init__(fields.columns(blobs), name_of, **images)


def _frames(file: Path, data: np.ndarray) -> Iterator[tuple[int, bytes]]:
    """Yield the offset and bytes of each record, after verifying its checksums."""
    crc32c = import_extra("crc32c", "tfrecord").crc32c
    offset = 0
    while offset < len(data):
        head = data[offset : offset + _HEAD].tobytes()
        length = int.from_bytes(head[:8], "little")
        start, end = offset + _HEAD, offset + _HEAD + length
        if len(head) < _HEAD or _masked(crc32c(head[:8])) != head[8:]:
            hint = "; decompress it first" if head[:2] == b"\x1f\x8b" else ""
            raise ValueError(
                f"{file} is damaged or not a TFRecord file: no record at byte {offset}{hint}"
            )
        if end + _FOOT > len(data):
            raise ValueError(f"{file} is truncated within the record at byte {offset}")
        record = data[start:end].tobytes()
        if _masked(crc32c(record)) != data[end : end + _FOOT].tobytes():
            raise ValueError(f"{file} is damaged: the record at byte {offset} has a wrong checksum")
        yield start, record
        offset = end + _FOOT


def _masked(crc: int) -> bytes:
    return ((((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF).to_bytes(4, "little")


class _Fields:
    """Collects features of records as columns; by default those of the first record."""

    def __init__(self, features: Mapping[str, str] | None, decoders: Mapping[str, Decode]) -> None:
        self._messages = import_extra("tfrecord", "tfrecord").example_pb2
        self._features, self._explicit = features, features is not None
        self._decoders = decoders
        self._kinds: dict[str, tuple[str, int]] = {}  # (kind, number of values) by feature
        self._values: dict[str, list[Any]] = {}
        self.records = 0

    def add(self, blob: int, offset: int, data: bytes, where: str) -> None:
        """Add a record whose bytes begin at `offset` of a file."""
        try:
            stored = self._messages.Example.FromString(data).features.feature
        except Exception as error:
            raise ValueError(f"{where} is not a tf.train.Example: {error}") from error
        # The context of a SequenceExample is encoded like the features of an Example.
        if not self.records and self._messages.SequenceExample.FromString(data).HasField(
            "feature_lists"
        ):
            raise ValueError(f"{where} is a SequenceExample; expected a tf.train.Example")
        if self._features is None:
            self._features = {name: name for name in sorted(stored)}
        for name, feature in self._features.items():
            kind = stored[feature].WhichOneof("kind") if feature in stored else None
            if kind is None:
                raise ValueError(
                    f"{where} has no feature {feature!r} but {sorted(stored)}; use features={{...}}"
                )
            values = getattr(stored[feature], kind).value
            first = self._kinds.setdefault(name, (kind, len(values)))
            if first != (kind, len(values)):
                raise ValueError(
                    f"{where} has {len(values)} values in {feature!r} ({kind}), and the first "
                    f"record has {first[1]} ({first[0]}); expected equal lengths and types"
                )
            if kind == "bytes_list":
                row = self._range(blob, offset, data, feature, values, where)
            else:
                row = np.array(values, np.float32 if kind == "float_list" else np.int64)
            self._values.setdefault(name, []).append(row)
        self.records += 1

    def columns(self, blobs: Sequence[np.ndarray]) -> dict[str, Column]:
        """Return all columns."""
        columns: dict[str, Column] = {}
        decodable: set[str] = set()
        for name, feature in (self._features or {}).items():
            array = np.stack(self._values[name])
            if self._kinds[name][0] == "bytes_list":
                decodable.add(feature)
                ranges, decode = ByteRanges(tuple(blobs), array, False), self._decoders.get(feature)
                columns[name] = ranges if decode is None else decoded(ranges, decode)
            else:
                columns[name] = array[:, 0] if array.shape[1] == 1 else array
        if unknown := sorted(self._decoders.keys() - decodable):
            raise KeyError(f"decoders has {unknown}; the features of bytes are {sorted(decodable)}")
        return columns

    def _range(
        self, blob: int, offset: int, data: bytes, feature: str, values: Any, where: str
    ) -> np.ndarray:
        if len(values) != 1:
            raise ValueError(
                f"{where} has {len(values)} values in {feature!r}; expected one of bytes"
            )
        image = values[0].startswith(_IMAGES)
        if not (self._explicit or feature in self._decoders or self.records or image):
            raise TypeError(
                f"{where} has bytes in {feature!r} that are not an image; use "
                f"decoders={{{feature!r}: a function}}, or features={{...}} without it"
            )
        # Any occurrence of the same bytes in the record is equivalent.
        return np.array([blob, offset + data.index(values[0]), len(values[0])], np.int64)
