"""ArrayRecord files, as Grain and TFDS write them: bytes by their number."""

from __future__ import annotations

import io
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.files import Paths, expand_paths, import_extra
from jaxkern.pipeline.sources.formats.columns import NUMPY_HEADERS
from jaxkern.pipeline.sources.source import BatchSource, RecordSource


class ArrayRecordSource(BatchSource):
    """The records of ArrayRecord files, one after the other.

    Args:
      paths: a file, a list, a folder, or a pattern: ``train.array_record-{00000..00003}-of-00004``.
      decode: from the bytes of a record to a dict of arrays, of the same shapes in every record;
        called in worker threads. By default archives of `numpy.savez`, whose arrays are the fields.

    A forked child cannot read them: a RuntimeError there says so.

    Raises: ImportError without array_record; FileNotFoundError; ValueError that names the file for
      one that is damaged or cut short.
    """

    fresh = True

    def __init__(
        self, paths: Paths, decode: Callable[[bytes], Mapping[str, Any]] | None = None
    ) -> None:
        import_extra("array_record", "arrayrecord")
        self.files = expand_paths(paths, (".array_record", ".arrayrecord"), "ArrayRecord")
        self._decode = _savez if decode is None else decode
        self._lock = threading.Lock()
        self._readers: dict[int, Any] = {}
        self._ends = np.cumsum([self._count(n) for n in range(len(self.files))])
        self._records = RecordSource(ArrayRecordFiles(self))

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __repr__(self) -> str:
        return (
            f"ArrayRecordSource({self.files[0].name}; {len(self.files)} files, {len(self)} records)"
        )

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The stacked fields of the decoded records."""
        return self._records.gather(records, out)

    def record(self, record: int) -> Mapping[str, Any]:
        """The fields of one record, decoded."""
        number = int(np.searchsorted(self._ends, record, "right"))
        place = record - int(self._ends[number - 1] if number else 0)
        try:
            return self._decode(self._reader(number).read([place])[0])
        except BaseException as error:
            note(error, "while reading record {} of {}", place, self.files[number])
            raise

    def _count(self, number: int) -> int:
        # The reader says that a damaged file has no records.
        found = int(self._reader(number).num_records())
        if not found:
            raise ValueError(
                f"{self.files[number]} is no ArrayRecord file that can be read: it has no records, "
                "is damaged or was cut short"
            )
        return found

    def _reader(self, number: int) -> Any:
        with self._lock:
            _check_process()
            if number not in self._readers:
                module = import_extra("array_record.python.array_record_module", "arrayrecord")
                try:
                    self._readers[number] = module.ArrayRecordReader(
                        os.fspath(self.files[number]),
                        options="readahead_buffer_size:0",
                        file_reader_buffer_size=32768,
                    )
                except Exception as error:
                    raise ValueError(
                        f"{self.files[number]} is no ArrayRecord file that can be read: {error}"
                    ) from error
            return self._readers[number]


_used_in: list[int] = []  # the process, once the library has threads there


def _check_process() -> None:
    # In a forked child the library ends the process: its threads are gone.
    if not _used_in:
        _used_in.append(os.getpid())
    if _used_in[0] != os.getpid():
        raise RuntimeError(
            "ArrayRecord files were read before the process forked, and the child of a fork cannot "
            "read any: start it by multiprocessing's 'spawn' or 'forkserver'"
        )


class ArrayRecordFiles:
    """The decoded records of a source, one by one."""

    def __init__(self, source: ArrayRecordSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __repr__(self) -> str:
        return repr(self._source)

    def __getitem__(self, record: int) -> Mapping[str, Any]:
        return self._source.record(record)


def _savez(data: bytes) -> dict[str, np.ndarray]:
    if not data.startswith(b"PK"):
        raise TypeError(
            f"the record is {len(data)} bytes and no archive of numpy.savez; wanted "
            "ArrayRecordSource(..., decode=a function from its bytes to a dict of arrays), such as "
            "lambda data: {'x': np.frombuffer(data, np.float32)}"
        )
    with NUMPY_HEADERS, np.load(io.BytesIO(data), allow_pickle=False) as archive:
        return dict(archive)
