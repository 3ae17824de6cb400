"""Contiguous HDF5 data sets as memory maps, which native threads read without HDF5."""

from __future__ import annotations

from typing import Any

import numpy as np


def map_hdf5(dataset: Any) -> np.ndarray:
    """The rows of a contiguous HDF5 data set as a read-only ``np.memmap`` of its file.

    Args:
      dataset: an ``h5py.Dataset`` without chunks and filters. What was written to it before is
        flushed; the file must stay as long as the map.

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
    if file.driver not in ("sec2", "stdio"):
        raise ValueError(f"{name} is in a file of driver {file.driver!r}; wanted one file on disk")
    if file.mode != "r":
        file.flush()  # the map sees the file, not what h5py still keeps
    offset = dataset.id.get_offset()
    if offset is None or dataset.shape is None:
        raise ValueError(
            f"{name} has no place in its file yet: nothing was written, or it is stored in its "
            "header; read it through h5py"
        )
    return np.memmap(file.filename, dataset.dtype, "r", offset, dataset.shape)
