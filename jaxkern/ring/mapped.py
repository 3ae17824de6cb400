"""Contiguous HDF5 data sets as memory maps, which native threads read without HDF5."""

from __future__ import annotations

import io
import os
from typing import Any

import numpy as np


def map_hdf5(dataset: Any) -> np.ndarray:
    """The rows of a contiguous HDF5 data set as a read-only ``np.memmap`` of its file.

    The file that is open is mapped, whatever its name stands for by now; the map outlives it.

    Args:
      dataset: an ``h5py.Dataset`` without chunks and filters. What was written to it before is
        flushed.

    Raises:
      ValueError: where the values do not lie in the file as they are: chunked, compact, external
        or virtual data sets, files that are not on disk, empty ones.

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
    opened: Any = _Opened(file.id.get_vfd_handle())
    return np.memmap(opened, dataset.dtype, "r", offset, dataset.shape)


class _Opened(io.RawIOBase):
    """A file by its descriptor, as np.memmap takes it; its position stays where HDF5 has it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self.tell()

    def tell(self) -> int:
        """The end, which is where np.memmap seeks."""
        return os.fstat(self._descriptor).st_size
