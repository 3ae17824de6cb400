"""Sources of the data sets of HDF5 files and of the arrays of Zarr groups."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jaxkern.core.caches import LruCache
from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.files import import_extra
from jaxkern.pipeline.sources.source import (
    ArraySource,
    BatchSource,
    check_numeric,
    check_records,
    common_length,
)
from jaxkern.ring import map_hdf5


class HDF5Source(BatchSource):
    """Source of records along the leading axis of HDF5 data sets.

    Uncompressed contiguous data sets are mapped into memory and read without HDF5. Other data sets
    are read through h5py, in ascending order of records.

    Args:
      fields: field -> h5py.Dataset, or the name of a data set in `path`.
      path: path of the file, if `fields` has names. The file remains open.

    Raises:
      ImportError: h5py is not installed.
      KeyError: a data set does not exist.
      ValueError: data sets have different lengths.
      TypeError: data sets are not numbers.
    """

    fresh = True

    def __init__(self, fields: Mapping[str, Any], path: str | os.PathLike[str] | None = None):
        import h5py

        self._file = None if path is None else h5py.File(path, "r")
        mapped: dict[str, Any] = {}
        self._chunked: dict[str, Any] = {}
        for name, dataset in fields.items():
            if isinstance(dataset, str):
                if self._file is None:
                    raise ValueError(
                        f"field {name!r} is the name {dataset!r}; expected an h5py.Dataset, or path"
                    )
                if dataset not in self._file:
                    raise KeyError(
                        f"{path} has no data set {dataset!r}; it has {sorted(self._file)}"
                    )
                dataset = self._file[dataset]
            if not isinstance(dataset, h5py.Dataset):
                mapped[name] = dataset
                continue
            check_numeric(np.empty(0, dataset.dtype), f"field {name!r}")
            try:
                mapped[name] = map_hdf5(dataset)
            except ValueError:  # not stored contiguously
                self._chunked[name] = dataset
        self._mapped = ArraySource(mapped) if mapped else None
        lengths = {name: dataset.shape[0] for name, dataset in self._chunked.items()}
        if self._mapped is not None:
            lengths.update({name: len(self._mapped) for name in self._mapped.arrays})
        self._names = list(fields)
        self._length = common_length(lengths)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._length)

    def __repr__(self) -> str:
        return f"HDF5Source({', '.join(self._names)}; {len(self)} records)"

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        if self._chunked or self._mapped is None or type(self).gather is not HDF5Source.gather:
            return None
        return {name: self._mapped.arrays[name] for name in self._names}

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        data: Data = {}
        if self._mapped is not None:
            target = None if out is None else {name: out[name] for name in self._mapped.arrays}
            data.update(self._mapped.gather(records, target))
        order = np.argsort(records, kind="stable")
        for name, dataset in self._chunked.items():
            rows = np.empty((len(records), *dataset.shape[1:]), dataset.dtype)
            with self._lock:  # h5py's own lock would switch threads at every record
                for row in order.tolist():
                    rows[row] = dataset[int(records[row])]
            if out is None:
                data[name] = canonical(rows)
            else:
                out[name][...] = rows
                data[name] = out[name]
        return {name: data[name] for name in self._names}


class ZarrSource(BatchSource):
    """Source of records along the leading axis of the arrays of a Zarr group, or of one array.

    A batch reads each chunk once, and the most recently used chunks are cached. A full shuffle
    reads a chunk per record: use chunks of few records, such as one image, or set `cache_bytes` to
    the size of all chunks.

    Args:
      group: a zarr.Group, a zarr.Array (whose field is "x"), or the path of one.
      fields: names of the arrays; all by default.
      cache_bytes: maximum size of cached decoded chunks in bytes.

    Raises:
      ImportError: zarr 3 is not installed.
      FileNotFoundError: the path does not exist.
      KeyError: an array does not exist.
      ValueError: arrays have different lengths.
      TypeError: arrays are not numbers.
    """

    fresh = True

    def __init__(
        self, group: Any, fields: Sequence[str] | None = None, cache_bytes: int = 2**28
    ) -> None:
        zarr = import_extra("zarr", "zarr")
        self._where = repr(group)
        if isinstance(group, str | os.PathLike):
            self._where = os.fspath(group)
            if not os.path.exists(group):
                raise FileNotFoundError(f"{group} does not exist; expected a Zarr group")
            try:
                group = zarr.open(os.fspath(group), mode="r")
            except Exception as error:
                raise ValueError(f"{self._where} is not a readable Zarr group: {error}") from error
        arrays = {"x": group} if isinstance(group, zarr.Array) else dict(group.arrays())
        for name in fields or ():
            if name not in arrays:
                raise KeyError(f"{self._where} has no array {name!r}; it has {sorted(arrays)}")
        self._arrays = {name: arrays[name] for name in fields or sorted(arrays)}
        if not self._arrays:
            raise ValueError(f"{self._where} has no arrays")
        for name, array in self._arrays.items():
            if array.ndim == 0:
                raise ValueError(f"array {name!r} of {self._where} is a scalar; expected [N, ...]")
            check_numeric(np.empty(0, array.dtype), f"array {name!r} of {self._where}")
        self._length = common_length({k: array.shape[0] for k, array in self._arrays.items()})
        self._cache = LruCache[np.ndarray](cache_bytes, lambda chunk: chunk.nbytes)

    def __len__(self) -> int:
        return int(self._length)

    def __repr__(self) -> str:
        return f"ZarrSource({', '.join(self._arrays)}; {len(self)} records)"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        check_records(records, len(self))
        data: Data = {}
        for name, array in self._arrays.items():
            rows = np.empty((len(records), *array.shape[1:]), array.dtype)
            length = array.chunks[0]
            chunks = records // length
            for chunk in np.unique(chunks).tolist():
                selected = chunks == chunk
                rows[selected] = self._chunk(name, chunk)[records[selected] - chunk * length]
            if out is None:
                data[name] = canonical(rows)
            else:
                out[name][...] = rows
                data[name] = out[name]
        return data

    def _chunk(self, name: str, chunk: int) -> np.ndarray:
        cached = self._cache.get((name, chunk))
        if cached is not None:
            return cached
        array = self._arrays[name]
        first = chunk * array.chunks[0]
        try:
            values = np.asarray(array[first : first + array.chunks[0]])
        except Exception as error:
            note(error, "while reading records from {} of {!r} in {}", first, name, self._where)
            raise
        self._cache.put((name, chunk), values)
        return values
