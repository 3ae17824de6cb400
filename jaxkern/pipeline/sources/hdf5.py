"""Records in HDF5 data sets: contiguous ones as memory maps, chunked ones through h5py."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.source import ArraySource, BatchSource, check_numeric
from jaxkern.ring import map_hdf5


class HDF5Source(BatchSource):
    """Records along the leading axis of HDF5 data sets.

    Uncompressed contiguous data sets are mapped into memory and gathered without HDF5; the others
    are read through h5py, each record once, in the order in which they lie in the file.

    Args:
      fields: field -> h5py.Dataset, or the name of a data set in `path`.
      path: of the file, where `fields` gives names. The file stays open.
    Raises: ImportError without h5py; KeyError for an unknown data set; ValueError for data sets of
      different lengths; TypeError for data sets that are not numbers.
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
                    raise ValueError(f"field {name!r} is {dataset!r}; names need HDF5Source.path")
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
            except ValueError:  # its values do not lie in the file as they are
                self._chunked[name] = dataset
        self._mapped = ArraySource(mapped) if mapped else None
        lengths = {name: dataset.shape[0] for name, dataset in self._chunked.items()}
        if self._mapped is not None:
            lengths.update({name: len(self._mapped) for name in self._mapped.arrays})
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the fields have different numbers of records: {lengths}")
        self._names = list(fields)
        self._length = next(iter(lengths.values()))
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return int(self._length)

    def __repr__(self) -> str:
        return f"HDF5Source({', '.join(self._names)}; {len(self)} records)"

    def row_arrays(self) -> Mapping[str, np.ndarray] | None:
        """The memory maps, where all data sets are mapped."""
        if self._chunked or self._mapped is None or type(self).gather is not HDF5Source.gather:
            return None
        return {name: self._mapped.arrays[name] for name in self._names}

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The rows of these records."""
        found: Data = {}
        if self._mapped is not None:
            here = None if out is None else {name: out[name] for name in self._mapped.arrays}
            found.update(self._mapped.gather(records, here))
        order = np.argsort(records, kind="stable")
        for name, dataset in self._chunked.items():
            rows = np.empty((len(records), *dataset.shape[1:]), dataset.dtype)
            with self._lock:  # h5py's own lock would hand over at every record
                for place in order.tolist():
                    rows[place] = dataset[int(records[place])]
            if out is None:
                found[name] = canonical(rows)
            else:
                out[name][...] = rows
                found[name] = out[name]
        return {name: found[name] for name in self._names}
