"""Contiguous HDF5 data sets as memory maps, which native threads read without HDF5."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

import numpy as np


def map_hdf5(dataset: Any) -> np.ndarray:
    """The rows of a contiguous HDF5 data set as a read-only ``np.memmap`` of its file.

    The file that is open is mapped, whatever its name stands for by now; the map outlives it.

    Args:
      dataset: an ``h5py.Dataset`` without chunks and filters. What was written to it before is
        flushed.

    Raises:
      ValueError: where the values do not lie in the file as they are: chunked, compact, external
        or virtual data sets, types that NumPy does not have, files that are not on disk, empty
        ones.

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
        raise ValueError(
            f"{name} is chunked{f' and compressed ({c})' if (c := dataset.compression) else ''}; "
            "wanted a contiguous one: write it without chunks and compression, or read it through "
            "h5py"
        )
    if dataset.external or dataset.is_virtual:
        raise ValueError(f"{name} lies in other files; map those, or read it through h5py")
    if not _is_stored_as(dataset.id.get_type(), dataset.dtype):
        raise ValueError(
            f"{name} is stored in a type that NumPy does not have, and HDF5 makes {dataset.dtype} "
            "of it: read it through h5py"
        )
    file = dataset.file
    if file.driver != "sec2":  # the others have no one descriptor
        raise ValueError(
            f"{name} is in a file of driver {file.driver!r}; wanted one file on disk, as h5py "
            "opens it by default"
        )
    if file.mode != "r":
        file.flush()  # the map sees the file, not what h5py still keeps
    offset = dataset.id.get_offset()
    if offset is None or dataset.shape is None:
        raise ValueError(
            f"{name} has no place in its file yet: nothing was written, or it is stored in its "
            "header; read it through h5py"
        )
    with _opened_again(file, name) as opened:
        return np.memmap(opened, dataset.dtype, "r", offset, dataset.shape)


def _is_stored_as(stored: Any, dtype: np.dtype) -> bool:
    """Whether values lie in the file as in an array: no texts of any length, no 12 bits of 16."""
    import h5py

    if dtype.hasobject:
        return False
    if stored.get_class() not in (h5py.h5t.INTEGER, h5py.h5t.FLOAT):
        return bool(stored.get_size() == dtype.itemsize)
    return bool(stored.equal(h5py.h5t.py_create(dtype)))


def _opened_again(file: Any, name: str) -> BinaryIO:
    """The file that is open, under a descriptor of its own.

    A map keeps its descriptor, and HDF5's own one would keep HDF5's lock: as long as there is the
    map, nobody could write to the file, or read one that was mapped while it was written.
    """
    descriptor = file.id.get_vfd_handle()
    for path in (f"/proc/self/fd/{descriptor}", file.filename):
        try:
            # Opened in two steps, so that the map does not take this name for the file's.
            opened = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC), "rb")
        except OSError:
            continue
        if os.path.sameopenfile(opened.fileno(), descriptor):
            return opened
        opened.close()
    raise ValueError(
        f"{name} is in a file that cannot be opened once more: {file.filename} is another file by "
        "now, or may not be read; read it through h5py"
    )
