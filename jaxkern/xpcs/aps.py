"""Two-time correlations in HDF5 files of the Advanced Photon Source, in both layouts.

A file stores one triangle H of each symmetric matrix: C = H + H^T with the diagonal halved.

====== =====================================================================================
aps    ``xpcs/dqlist[0, :]``, ``xpcs/dphilist[0, :]`` and ``exchange/C2T_all/*``, one data set
       an entry, in the file's own order
aps-u  ``xpcs/qmap/dynamic_v_list_dim0`` (q) and ``_dim1`` (phi), ``xpcs/twotime/processed_bins``
       (from 1; q = (bin - 1) // n_phi, phi = (bin - 1) % n_phi) and
       ``xpcs/twotime/correlation_map/c2_%05d``
====== =====================================================================================
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import h5py

Array = NDArray[Any]

LAYOUTS = ("aps", "aps-u")
_WANTED = {
    "aps": ("xpcs/dqlist", "xpcs/dphilist", "exchange/C2T_all"),
    "aps-u": (
        "xpcs/qmap/dynamic_v_list_dim0",
        "xpcs/qmap/dynamic_v_list_dim1",
        "xpcs/twotime/processed_bins",
        "xpcs/twotime/correlation_map",
    ),
}
# Rows that are read or written at a time where the whole matrix is wanted.
_SLAB = 512


class ApsFormatError(ValueError):
    """A file that is not laid out as either APS layout says; names what is missing and is there."""


@dataclass(frozen=True)
class ApsData:
    """Two-time correlations in memory.

    Attributes:
      c2: [n, n_t, n_t] in the file's dtype, both triangles, diagonal as measured.
      q: [n] f64, 1/Angstrom.
      phi: [n] f64, degrees.
    """

    c2: Array
    q: Array
    phi: Array


class ApsFile:
    """One file's two-time correlations as a source of row slabs; nothing is kept in memory.

    Attributes:
      shape: (n, n_t, n_t), n matrices of (q, phi) in the file's order.
      dtype: of the stored values.
      q: [n] f64, 1/Angstrom.
      phi: [n] f64, degrees.
      layout: "aps" or "aps-u".
      symmetric: True, by construction.

    Raises:
      FileNotFoundError: no such file.
      ApsFormatError: not an HDF5 file, or groups and data sets of the layout are missing or
        disagree.

    Example:
      >>> from jaxkern import xpcs
      >>> import pathlib, tempfile
      >>> tmp = pathlib.Path(tempfile.mkdtemp())
      >>> path = xpcs.write_aps(tmp / "two.h5", np.ones((2, 8, 8)), q=0.01, phi=[0, 90])
      >>> with xpcs.ApsFile(path) as file:
      ...     file.shape, file.read(1, 0, 3).shape
      ((2, 8, 8), (3, 8))
    """

    symmetric = True

    def __init__(self, path: str | Path, layout: str | None = None) -> None:
        self.path = Path(path)
        self._file = _open(self.path)
        try:
            self.layout = _layout(self._file, self.path, layout)
            read = _aps_entries if self.layout == "aps" else _aps_u_entries
            self._sets, self.q, self.phi = read(self._file, self.path)
            n_t = _side(self._sets, self.path)
        except BaseException:
            self._file.close()
            raise
        self.shape = (len(self._sets), n_t, n_t)
        self.dtype = np.dtype(self._sets[0].dtype)

    def read(self, angle: int, first_row: int, stop_row: int) -> Array:
        """Rows ``first_row`` to ``stop_row`` of matrix ``angle``: [stop_row - first_row, n_t]."""
        n_t = self.shape[1]
        if not (0 <= first_row <= stop_row <= n_t):
            raise IndexError(f"rows {first_row} to {stop_row} of a matrix of {n_t} rows")
        half = self._sets[angle]
        rows = half[first_row:stop_row, :]
        rows += half[:, first_row:stop_row].T
        # The entry on the diagonal was counted twice.
        k = np.arange(stop_row - first_row)
        rows[k, first_row + k] /= 2
        return np.asarray(rows)

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> ApsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ApsFile({str(self.path)!r}, layout={self.layout!r}, shape={self.shape})"


def load_aps(
    path: str | Path, layout: str | None = None, entries: Sequence[int] | None = None
) -> ApsData:
    """All of a file's matrices (or those of ``entries``) in memory, both triangles.

    Args:
      path: the HDF5 file.
      layout: "aps" or "aps-u"; None recognizes it.
      entries: which matrices, as positions in the file's order.

    Raises:
      FileNotFoundError: no such file.
      ApsFormatError: see `ApsFile`.

    Example:
      >>> from jaxkern import xpcs
      >>> import pathlib, tempfile
      >>> tmp = pathlib.Path(tempfile.mkdtemp())
      >>> path = xpcs.write_aps(tmp / "two.h5", np.ones((2, 8, 8)), q=0.01, phi=[0, 90])
      >>> xpcs.load_aps(path).c2.shape
      (2, 8, 8)
    """
    with ApsFile(path, layout) as file:
        chosen = list(range(file.shape[0])) if entries is None else [int(e) for e in entries]
        n_t = file.shape[1]
        c2 = np.empty((len(chosen), n_t, n_t), file.dtype)
        for k, entry in enumerate(chosen):
            for first in range(0, n_t, _SLAB):
                stop = min(first + _SLAB, n_t)
                c2[k, first:stop] = file.read(entry, first, stop)
        return ApsData(c2, file.q[chosen], file.phi[chosen])


def _open(path: Path) -> h5py.File:
    import h5py

    if not path.exists():
        raise FileNotFoundError(f"there is no file {str(path)!r}")
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise ApsFormatError(f"{path} cannot be opened as an HDF5 file: {error}") from error


def _layout(file: h5py.File, path: Path, layout: str | None) -> str:
    if layout not in (None, *LAYOUTS):
        raise ValueError(f"layout is {layout!r}; wanted None or one of {', '.join(LAYOUTS)}")
    candidates = LAYOUTS if layout is None else (layout,)
    missing = {name: [p for p in _WANTED[name] if p not in file] for name in candidates}
    for name in candidates:
        if not missing[name]:
            return name
    wanted = "; ".join(
        f"the layout {name!r} misses {', '.join(paths)}" for name, paths in missing.items()
    )
    raise ApsFormatError(f"{path}: {wanted}. The file holds {_contents(file)}")


def _contents(file: h5py.File) -> str:
    """The first two levels of a file, in words."""
    import h5py

    found = []
    for name, item in file.items():
        if isinstance(item, h5py.Group) and len(item):
            below = list(item)
            more = ", ..." if len(below) > 8 else ""
            found.append(f"{name}/ ({', '.join(below[:8])}{more})")
        else:
            found.append(f"{name}/ (empty)" if isinstance(item, h5py.Group) else name)
    return "; ".join(found) or "nothing"


def _list(file: h5py.File, name: str, path: Path) -> Array:
    """A list of numbers, stored as [n], [1, n] or more rows of which the first counts."""
    import h5py

    item = file[name]
    if not isinstance(item, h5py.Dataset):
        raise ApsFormatError(f"{path}: {name} is a group; wanted a data set")
    values = np.asarray(item[()])
    if values.ndim == 0 or values.size == 0 or values.dtype.kind not in "iuf":
        raise ApsFormatError(
            f"{path}: {name} is {values.dtype} {list(values.shape)}; wanted numbers, [n] or [1, n]"
        )
    return values if values.ndim == 1 else values.reshape(-1, values.shape[-1])[0]


def _aps_entries(file: h5py.File, path: Path) -> tuple[list[h5py.Dataset], Array, Array]:
    q = _list(file, "xpcs/dqlist", path).astype(np.float64)
    phi = _list(file, "xpcs/dphilist", path).astype(np.float64)
    group = file["exchange/C2T_all"]
    sets = [group[name] for name in group]
    if not (len(q) == len(phi) == len(sets)) or not sets:
        raise ApsFormatError(
            f"{path}: xpcs/dqlist has {len(q)} values, xpcs/dphilist {len(phi)}, and "
            f"exchange/C2T_all {len(sets)} matrices; wanted the same number of each, at least 1"
        )
    return sets, q, phi


def _aps_u_entries(file: h5py.File, path: Path) -> tuple[list[h5py.Dataset], Array, Array]:
    q_list = _list(file, "xpcs/qmap/dynamic_v_list_dim0", path).astype(np.float64)
    phi_list = _list(file, "xpcs/qmap/dynamic_v_list_dim1", path).astype(np.float64)
    # Some versions store the bins as [n, 1].
    bins = np.ravel(np.asarray(file["xpcs/twotime/processed_bins"][()])).astype(np.int64)
    most = len(q_list) * len(phi_list)
    if bins.size == 0 or bins.min() < 1 or bins.max() > most:
        raise ApsFormatError(
            f"{path}: xpcs/twotime/processed_bins has {bins.size} bins "
            + (f"from {bins.min()} to {bins.max()}" if bins.size else "")
            + f"; wanted bins of 1 to {most} ({len(q_list)} q times {len(phi_list)} phi)"
        )
    sets = _maps_of_bins(file["xpcs/twotime/correlation_map"], bins, path)
    return sets, q_list[(bins - 1) // len(phi_list)], phi_list[(bins - 1) % len(phi_list)]


def _maps_of_bins(group: h5py.Group, bins: Array, path: Path) -> list[h5py.Dataset]:
    """The map of each bin. Maps carry the bin's number, or count from 1 in the bins' order."""
    numbered = {int(m[1]): name for name in group if (m := re.fullmatch(r"c2_(\d+)", name))}
    if sorted(numbered) == list(range(1, len(bins) + 1)):
        return [group[numbered[k + 1]] for k in range(len(bins))]
    if set(numbered) >= {int(b) for b in bins}:
        return [group[numbered[int(b)]] for b in bins]
    raise ApsFormatError(
        f"{path}: xpcs/twotime/correlation_map has {len(numbered)} maps named c2_<number> "
        f"({', '.join(sorted(numbered.values())[:4])} ...) and processed_bins {len(bins)} bins "
        f"({', '.join(str(b) for b in bins[:4])} ...); wanted one map a bin, with the bin's "
        "number or counted from c2_00001"
    )


def _side(sets: Sequence[Any], path: Path) -> int:
    import h5py

    for item in sets:
        if not isinstance(item, h5py.Dataset):
            raise ApsFormatError(f"{path}: {item.name} is a group; wanted a matrix")
        shape = tuple(item.shape)
        if len(shape) != 2 or shape[0] != shape[1] or item.dtype.kind != "f":
            raise ApsFormatError(
                f"{path}: {item.name} is {item.dtype} {list(shape)}; wanted a square matrix of "
                "floating-point numbers"
            )
        if shape != tuple(sets[0].shape) or item.dtype != sets[0].dtype:
            raise ApsFormatError(
                f"{path}: {item.name} is {item.dtype} {list(shape)} and {sets[0].name} is "
                f"{sets[0].dtype} {list(sets[0].shape)}; wanted all matrices alike"
            )
    return int(sets[0].shape[0])
