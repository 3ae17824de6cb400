"""Source of Zarr groups, whose arrays [N, ...] are the fields."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxkern.core.caches import LruCache
from jaxkern.core.failures import note
from jaxkern.pipeline.rows import Data, canonical
from jaxkern.pipeline.sources.files import import_extra
from jaxkern.pipeline.sources.source import BatchSource, check_numeric, check_records, common_length


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
