"""Rows of arrays: gathering from several arrays, and memory maps of HDF5 data sets."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from jaxkern.core import registry
from jaxkern.core.arrays import check_mapped

_FEW_PARTS = 8  # up to this number of arrays, selecting some is slower than using all


def byte_rows(array: np.ndarray) -> np.ndarray:
    """View an array [N, ...] with contiguous rows as uint8 [N, bytes per row]."""
    return array.reshape(len(array), math.prod(array.shape[1:])).view(np.uint8)


def gather_rows(arrays: Sequence[np.ndarray], rows: np.ndarray, out: np.ndarray) -> np.ndarray:
    """Gather rows int [N] of the concatenation of arrays into `out` [N, ...], and return `out`.

    Native code copies the rows without the GIL if their dtypes equal that of `out`.

    >>> parts = [np.array([[1, 2], [3, 4]]), np.array([[5, 6]])]
    >>> gather_rows(parts, np.array([2, 0, 2]), np.empty((3, 2), int)).tolist()
    [[5, 6], [1, 2], [5, 6]]
    """
    library = registry.module("cpu")
    if library is not None and _is_byte_copy(arrays, out):
        parts = [byte_rows(array) for array in arrays]
        flat = out.reshape(-1).view(np.uint8)
        library.gather_rows(parts, np.ascontiguousarray(rows, np.int64), flat)
        return out
    ends = np.cumsum([len(array) for array in arrays])
    check_records(rows, int(ends[-1]))
    numbers = np.searchsorted(ends, rows, side="right")
    for number, array in enumerate(arrays):
        selected = numbers == number
        out[selected] = array[rows[selected] - (ends[number] - len(array))]
    return out


class RowParts:
    """Arrays of one field with equal row shapes, used like their concatenation.

    Args:
      arrays: arrays [N, ...] with any N; not copied.

    >>> parts = RowParts([np.array([[1, 2], [3, 4]]), np.array([[5, 6]])])
    >>> len(parts), parts.shape, parts.take(np.array([2, 0])).tolist()
    (3, (3, 2), [[5, 6], [1, 2]])
    """

    def __init__(self, arrays: Sequence[Any]) -> None:
        self.arrays: tuple[Any, ...] = tuple(arrays)
        self._lengths = np.array([len(array) for array in self.arrays], np.int64)
        self._ends = np.cumsum(self._lengths)

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the concatenation."""
        return (len(self), *self.arrays[0].shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Return the dtype of the first array."""
        return self.arrays[0].dtype

    def take(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Gather rows int [N] into `out` [N, ...], a new array by default, and return it.

        Raises:
          IndexError: a row is out of range.
          OSError: the mapped file of one of the arrays was truncated.
        """
        if out is None:
            out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        arrays, rows = self.select(rows)
        for array in arrays:
            check_mapped("a field", array)
        return gather_rows(arrays, rows, out)

    def select(self, rows: np.ndarray) -> tuple[Sequence[np.ndarray], np.ndarray]:
        """Return arrays that contain rows int [N], and these rows of their concatenation.

        A batch needs few of thousands of arrays, and each array costs about 1 us.
        """
        if len(self.arrays) <= _FEW_PARTS or not len(rows):
            return self.arrays, rows
        check_records(rows, len(self))
        numbers = np.searchsorted(self._ends, rows, side="right")
        used = np.flatnonzero(np.bincount(numbers))
        shift = np.zeros(used[-1] + 1, np.int64)
        shift[used] = self._ends[used] - np.cumsum(self._lengths[used])
        return [self.arrays[number] for number in used.tolist()], rows - shift[numbers]


def check_records(records: np.ndarray, count: int) -> None:
    """Raise IndexError for records outside [0, count)."""
    if records.size and not (records.min() >= 0 and records.max() < count):
        raise IndexError(f"records {records.min()} to {records.max()} are out of range for {count}")


def common_length(lengths: Mapping[str, int]) -> int:
    """Return the length of all fields; raise ValueError if lengths differ."""
    if len(set(lengths.values())) != 1:
        raise ValueError(f"the fields have different numbers of records: {dict(lengths)}")
    return next(iter(lengths.values()))


def is_numeric(dtype: np.dtype) -> bool:
    """True for numbers and bools, including JAX's dtypes such as bfloat16."""
    # Those have NumPy's kind of void, but are registered: isbuiltin is 2.
    return dtype.kind not in "OSUMm" and (dtype.kind != "V" or dtype.isbuiltin == 2)


def _is_byte_copy(arrays: Sequence[np.ndarray], out: np.ndarray) -> bool:
    if not (out.flags.c_contiguous and out.flags.writeable) or out.dtype.hasobject:
        return False
    kind = out.dtype, out.shape[1:]
    return all((a.dtype, a.shape[1:]) == kind and a[:1].flags.c_contiguous for a in arrays)


def map_hdf5(dataset: Any) -> np.ndarray:
    """Map the rows of a contiguous HDF5 data set into memory as a read-only ``np.memmap``.

    Pending writes are flushed. The map remains valid after the file is closed.

    Raises:
      ValueError: the values are not stored contiguously in the file, or have no NumPy dtype.

    Example:
      >>> import os, tempfile, h5py, numpy as np, jaxkern as jk
      >>> path = os.path.join(tempfile.mkdtemp(), "x.h5")
      >>> with h5py.File(path, "w") as file:
      ...     file["x"] = np.arange(6).reshape(3, 2)
      ...     rows = jk.ring.map_hdf5(file["x"])
      >>> rows[1].tolist()
      [2, 3]
    """
    name = f"data set {dataset.name!r}"
    if dataset.chunks is not None:
        raise ValueError(f"{name} is chunked; write it without chunks and compression")
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} is stored in other files; map these instead")
    if not _is_stored_as(dataset.id.get_type(), dataset.dtype):
        raise ValueError(f"{name} is stored as a type unknown to NumPy; read it through h5py")
    file = dataset.file
    if file.driver != "sec2":  # other drivers have no single file descriptor
        raise ValueError(f"{name} has the driver {file.driver!r}; expected h5py's default driver")
    if file.mode != "r":
        file.flush()  # the map does not contain data that h5py has buffered
    offset = dataset.id.get_offset()
    if offset is None or dataset.shape is None:
        raise ValueError(f"{name} is empty or stored in a header; read it through h5py")
    with _reopen(file, name) as opened:
        return np.memmap(opened, dataset.dtype, "r", offset, dataset.shape)


def _is_stored_as(stored: Any, dtype: np.dtype) -> bool:
    import h5py

    if dtype.hasobject:
        return False
    if stored.get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        return bool(stored.get_size() == dtype.itemsize)
    return bool(stored.equal(h5py.h5t.py_create(dtype)))


def _reopen(file: Any, name: str) -> BinaryIO:
    """Open the file of an h5py file with a new descriptor, since that of HDF5 holds a lock."""
    descriptor = file.id.get_vfd_handle()
    for path in (f"/proc/self/fd/{descriptor}", file.filename):
        try:
            # In two steps: with open() the map would record this path as its file name.
            opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb")
        except OSError:
            continue
        if os.path.sameopenfile(opened.fileno(), descriptor):
            return opened
        opened.close()
    raise ValueError(f"{name}: {file.filename} was replaced or cannot be opened again")
