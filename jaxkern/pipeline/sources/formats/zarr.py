"""Zarr groups: their arrays [N, ...] as fields, whose chunks are read once a batch."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.files import import_extra
from jaxkern.pipeline.sources.source import BatchSource, check_numeric


class ZarrSource(BatchSource):
    """Records along the leading axis of the arrays of a Zarr group, or of one array.

    A batch reads each chunk that it needs once, and the last ones read are kept. A shuffle of all
    records needs another chunk for each: let a chunk hold few records, such as one image, or raise
    `cache_bytes` to what all chunks take.

    Args:
      group: a zarr.Group, a zarr.Array (whose field is "x"), or the path of one.
      fields: names of the arrays to take; all by default.
      cache_bytes: of decoded chunks that are kept in memory.

    Raises: ImportError without zarr 3; FileNotFoundError; KeyError for an unknown array; ValueError
      for arrays of different lengths; TypeError for arrays that are no numbers.
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
                raise FileNotFoundError(f"{group} is no Zarr group: there is nothing")
            try:
                group = zarr.open(os.fspath(group), mode="r")
            except Exception as error:
                raise ValueError(
                    f"{self._where} is no Zarr group that can be read: {error}"
                ) from error
        arrays = {"x": group} if isinstance(group, zarr.Array) else dict(group.arrays())
        for name in fields or ():
            if name not in arrays:
                raise KeyError(f"{self._where} has no array {name!r}; it has {sorted(arrays)}")
        self._arrays = {name: arrays[name] for name in fields or sorted(arrays)}
        if not self._arrays:
            raise ValueError(f"{self._where} has no arrays")
        for name, array in self._arrays.items():
            if array.ndim == 0:
                raise ValueError(f"array {name!r} of {self._where} is one number; wanted [N, ...]")
            check_numeric(np.empty(0, array.dtype), f"array {name!r} of {self._where}")
        lengths = {name: array.shape[0] for name, array in self._arrays.items()}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"the arrays have different numbers of records: {lengths}")
        self._length = next(iter(lengths.values()))
        self._cache = _Chunks(cache_bytes)

    def __len__(self) -> int:
        return int(self._length)

    def __repr__(self) -> str:
        return f"ZarrSource({', '.join(self._arrays)}; {len(self)} records)"

    def gather(self, records: np.ndarray, out: Data | None = None) -> Data:
        """The rows of these records."""
        if records.size and not (records.min() >= 0 and records.max() < len(self)):
            raise IndexError(f"records {records.min()} to {records.max()} of {len(self)}")
        found: Data = {}
        for name, array in self._arrays.items():
            rows = np.empty((len(records), *array.shape[1:]), array.dtype)
            length = array.chunks[0]
            which = records // length
            for chunk in np.unique(which).tolist():
                here = which == chunk
                rows[here] = self._chunk(name, chunk)[records[here] - chunk * length]
            if out is None:
                found[name] = canonical(rows)
            else:
                out[name][...] = rows
                found[name] = out[name]
        return found

    def _chunk(self, name: str, chunk: int) -> np.ndarray:
        kept = self._cache.get((name, chunk))
        if kept is not None:
            return kept
        array = self._arrays[name]
        first = chunk * array.chunks[0]
        try:
            values = np.asarray(array[first : first + array.chunks[0]])
        except Exception as error:
            note(error, "while reading records from {} of {!r} in {}", first, name, self._where)
            raise
        self._cache.put((name, chunk), values)
        return values


class _Chunks:
    """The chunks that were asked for last, up to a number of bytes; for several threads."""

    def __init__(self, limit: int) -> None:
        self._limit, self._taken = limit, 0
        self._lock = threading.Lock()
        self._kept: OrderedDict[Any, np.ndarray] = OrderedDict()

    def get(self, key: Any) -> np.ndarray | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Any, values: np.ndarray) -> None:
        with self._lock:
            if key in self._kept or values.nbytes > self._limit:
                return
            self._kept[key] = values
            self._taken += values.nbytes
            while self._taken > self._limit:
                self._taken -= self._kept.popitem(last=False)[1].nbytes
