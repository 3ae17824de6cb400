"""Sources of HDF5 data sets, of Zarr arrays, and of token documents."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.core.caches import LruCache
from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.files import import_extra
from jaxkern.pipeline.sources.source import ArraySource, BatchSource, RowReader, check_numeric
from jaxkern.ring import map_hdf5
from jaxkern.ring.rows import check_records
from jaxkern.tokens import Documents, padded_rows


class HDF5Source(ArraySource):
    """Source of records along the leading axis of HDF5 data sets.

    Uncompressed contiguous data sets are mapped into memory and read without HDF5. Other data sets
    are read through h5py, in ascending order of records.

    Args:
      fields: field -> h5py.Dataset, or the name of a data set in `path`.
      path: path of the file, if `fields` contains names. The file remains open.

    Raises:
      KeyError, ValueError, TypeError: a data set does not exist, differs from others in length, or
        is not numeric.

    Example:
      >>> import h5py, tempfile, jaxkern as jk
      >>> path = tempfile.mkdtemp() + "/data.h5"
      >>> with h5py.File(path, "w") as file:
      ...     file["values"] = [[1, 2], [3, 4]]
      >>> jk.pipeline.HDF5Source({"x": "values"}, path)[1]["x"].tolist()
      [3, 4]
    """

    def __init__(self, fields: Mapping[str, Any], path: str | os.PathLike[str] | None = None):
        import h5py

        self._file = None if path is None else h5py.File(path, "r")
        self._lock = threading.Lock()
        arrays: dict[str, Any] = {}
        for name, dataset in fields.items():
            if isinstance(dataset, str):
                if self._file is None:
                    raise ValueError(f"field {name!r} is {dataset!r}; expected a Dataset, or path")
                if dataset not in self._file:
                    raise KeyError(f"{path} has {sorted(self._file)}, but not {dataset!r}")
                dataset = self._file[dataset]
            arrays[name] = dataset
            if isinstance(dataset, h5py.Dataset):
                check_numeric(np.empty(0, dataset.dtype), f"field {name!r}")
                try:
                    arrays[name] = map_hdf5(dataset)
                except ValueError:  # it is not stored contiguously
                    read = functools.partial(self._read, dataset)
                    arrays[name] = RowReader(dataset.shape, dataset.dtype, read)
        super().__init__(arrays)

    def _read(self, dataset: Any, records: np.ndarray, out: np.ndarray) -> None:
        with self._lock:  # with only h5py's own lock, threads would alternate at every record
            for row in np.argsort(records, kind="stable").tolist():
                out[row] = dataset[int(records[row])]


class ZarrSource(ArraySource):
    """Source of records along the leading axis of the arrays of a Zarr group, or of one array.

    A batch reads each chunk once, and the most recently used chunks are cached. With a full shuffle
    every record reads a chunk: use chunks of few records, such as one image, or set `cache_bytes`
    to the size of all chunks.

    Args:
      group: a zarr.Group, a zarr.Array (whose field is "x"), or the path of one.
      fields: names of the arrays; all by default.
      cache_bytes: maximum size of cached decoded chunks in bytes.

    Raises:
      FileNotFoundError, KeyError: the path or an array does not exist.
      ValueError, TypeError: arrays have different lengths, or are not numeric.

    Example:
      >>> import tempfile, zarr, jaxkern as jk
      >>> group = zarr.open_group(tempfile.mkdtemp(), mode="w")
      >>> _ = group.create_array("x", data=np.arange(6).reshape(3, 2), chunks=(1, 2))
      >>> jk.pipeline.ZarrSource(group)[1]["x"].tolist()
      [2, 3]
    """

    def __init__(
        self, group: Any, fields: Sequence[str] | None = None, cache_bytes: int = 2**28
    ) -> None:
        zarr = import_extra("zarr", "zarr")
        self._where = repr(group)
        if isinstance(group, str | os.PathLike):
            self._where = os.fspath(group)
            if not os.path.exists(group):
                raise FileNotFoundError(f"{group} does not exist")
            try:
                group = zarr.open(os.fspath(group), mode="r")
            except Exception as error:
                raise ValueError(f"{self._where} is not a readable Zarr group: {error}") from error
        arrays = {"x": group} if isinstance(group, zarr.Array) else dict(group.arrays())
        for name in fields or ():
            if name not in arrays:
                raise KeyError(f"{self._where} has no array {name!r}; it has {sorted(arrays)}")
        arrays = {name: arrays[name] for name in fields or sorted(arrays)}
        if not arrays:
            raise ValueError(f"{self._where} has no arrays")
        for name, array in arrays.items():
            if array.ndim == 0:
                raise ValueError(f"array {name!r} of {self._where} is a scalar")
            check_numeric(np.empty(0, array.dtype), f"array {name!r} of {self._where}")
        self._cache = LruCache[np.ndarray](cache_bytes, lambda chunk: chunk.nbytes)
        read = {name: functools.partial(self._read, name, array) for name, array in arrays.items()}
        super().__init__({k: RowReader(a.shape, a.dtype, read[k]) for k, a in arrays.items()})

    def _read(self, name: str, array: Any, records: np.ndarray, out: np.ndarray) -> None:
        length = array.chunks[0]
        chunks = records // length
        for chunk in np.unique(chunks).tolist():
            selected = chunks == chunk
            values = self._chunk(name, array, chunk * length, length)
            out[selected] = values[records[selected] - chunk * length]

    def _chunk(self, name: str, array: Any, first: int, length: int) -> np.ndarray:
        if (cached := self._cache.get((name, first))) is not None:
            return cached
        try:
            values = np.asarray(array[first : first + length])
        except Exception as error:
            note(error, "while reading records from {} of {!r} in {}", first, name, self._where)
            raise
        self._cache.put((name, first), values)
        return values


class TokenSource(BatchSource):
    """Source of token documents, stored as concatenated values and offsets.

    Usually followed by `Pack`, which reads the documents without a copy. Without it each document
    is one padded row: the fields int32 [N, width], and "length", int32 [N]. The width is
    `max_length`, or the length of the longest document.

    Args:
      values, offsets: see `jaxkern.tokens.Documents`: arrays, memory maps or paths of ``.npy``
        files; or, without offsets, a sequence of arrays or an Arrow array of lists.
      max_length: documents are truncated to this number of tokens; None: no limit.
      pad_id: value of padding; a dict of field -> value if the fields differ.

    Raises:
      As `Documents`.

    >>> import jaxkern as jk
    >>> source = jk.pipeline.TokenSource([1, 2, 3, 4, 5, 6], offsets=[0, 3, 4, 6])
    >>> batch = next(iter(jk.from_source(source, batch_size=3)))
    >>> batch["tokens"].tolist(), batch["length"].tolist()
    ([[1, 2, 3], [4, 0, 0], [5, 6, 0]], [3, 1, 2])
    """

    fresh = True

    def __init__(
        self,
        values: Any,
        offsets: Any = None,
        *,
        max_length: int | None = None,
        pad_id: int | Mapping[str, int] = 0,
    ) -> None:
        self.documents = Documents(values, offsets, max_length)
        self._names, self._length = self.documents.fields, len(self.documents)
        if "length" in self._names:
            raise ValueError("the field name 'length' is reserved for lengths; rename it")
        self.pad_id = pad_id

    @functools.cached_property
    def width(self) -> int:
        """Return the number of columns of the batches."""
        return self.documents.max_length or max(self.documents.longest(), 1)

    def describe(self) -> str:
        fields = ", ".join(self._names)
        first, last = self.documents.offsets[[0, -1]]
        return f"TokenSource({fields}; {first} to {last}, at most {self.documents.max_length})"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        check_records(records, len(self))
        self.documents.check_files()
        begins, lengths = self.documents.locate(records)
        rows = padded_rows(begins, lengths, self.width, self.documents.fields, self.pad_id, out)
        if out is None:
            return {**rows, "length": lengths.astype(np.int32)}
        out["length"][...] = lengths
        return out
