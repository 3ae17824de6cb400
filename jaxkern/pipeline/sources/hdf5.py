"""Source of HDF5 data sets: contiguous ones are mapped, chunked ones are read through h5py."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.source import ArraySource, BatchSource, check_numeric, common_length
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
