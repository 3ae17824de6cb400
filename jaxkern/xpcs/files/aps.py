"""Two-time correlations in HDF5 files of the Advanced Photon Source, in both layouts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jaxkern.xpcs.detectors.hdf5_access import hdf5_errors, new_hdf5, open_hdf5
from jaxkern.xpcs.detectors.qmap_layout import grid_entries
from jaxkern.xpcs.files.aps_entries import (
    LAYOUTS,
    ApsFormatError,
    find_layout,
    read_entries,
    time_step_entries,
)

Array = NDArray[Any]

# Rows that are read at a time for a whole matrix.
SLAB = 512
# Side of HDF5's tiles: slabs of rows and of columns are read in few pieces, and the empty triangle
# takes no space. Slabs of this many rows are written without reading tiles back.
TILE = 256
# Relative tolerance for the symmetry of a full matrix: matrix products on a GPU are not symmetric
# to the last bit.
_MIRRORED = 1e-5

format_errors = partial(hdf5_errors, error_type=ApsFormatError)


@dataclass(frozen=True)
class ApsData:
    """Two-time correlations in memory.

    Attributes:
      c2: [n, n_t, n_t] in the file's dtype, both triangles, diagonal as measured; NaN in rows and
        columns of frames without counts.
      q: [n] f64, 1/Angstrom.
      phi: [n] f64, degrees.
      dt: seconds between frames; None if the file does not store it.

    Example:
      >>> import numpy as np, pathlib, tempfile, jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> c2 = np.ones((2, 8, 8))
      >>> path = jk.xpcs.write_aps(folder / "two.h5", c2, q=0.01, phi=[0, 90], dt=0.1)
      >>> data = jk.xpcs.load_aps(path)
      >>> data.c2.shape, data.phi.tolist(), data.dt
      ((2, 8, 8), [0.0, 90.0], 0.1)
    """

    c2: Array
    q: Array
    phi: Array
    dt: float | None = None


class ApsFile:
    """Two-time correlations of a file as a source of slabs of rows.

    A file stores one triangle of each symmetric matrix with the diagonal, or the full matrix.
    Matrices are not cached, except the last one if the file stores matrices in chunks of a quarter
    of a matrix or more.

    Attributes:
      shape: (n, n_t, n_t), n matrices of (q, phi) in the file's order.
      dtype: dtype of the stored values.
      q, phi, dt: see `ApsData`.
      layout: "aps" or "aps-u".
      symmetric: True, by construction.

    Raises:
      FileNotFoundError: no such file.
      ApsFormatError: not an HDF5 file, a damaged one, or groups and data sets of the layout that
        are missing or inconsistent; from `read`, a full matrix that is not symmetric.

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
        if layout not in (None, *LAYOUTS):
            raise ValueError(f"layout: expected None, {' or '.join(LAYOUTS)}, got {layout!r}")
        self.path = Path(path)
        with contextlib.ExitStack() as opened:
            self._file = opened.enter_context(open_hdf5(self.path, ApsFormatError))
            with format_errors(self.path):
                self.layout = find_layout(self._file, layout)
                self._sets, self.q, self.phi, self.dt = read_entries(self._file, self.layout)
            opened.pop_all()
        n_t = int(self._sets[0].shape[0])
        self.shape = (len(self._sets), n_t, n_t)
        self.dtype = np.dtype(self._sets[0].dtype)
        self._cached: tuple[int, Array] | None = None
        self._empty: dict[int, NDArray[np.bool_]] = {}

    def read(self, angle: int, first_row: int, stop_row: int) -> Array:
        """Return rows ``first_row`` to ``stop_row - 1`` of matrix ``angle``."""
        n_t = self.shape[1]
        if not (0 <= first_row <= stop_row <= n_t):
            raise IndexError(f"expected rows within 0 to {n_t}, got {first_row} to {stop_row}")
        name = f"{self.path}: {self._sets[angle].name}"
        try:
            matrix = self._matrix(angle)
            if angle not in self._empty:
                self._empty[angle] = find_empty_frames(matrix)
            return read_rows(matrix, first_row, stop_row, self._empty[angle], name)
        except OSError as error:
            raise OSError(f"{name} cannot be read: {error}") from error

    def _matrix(self, angle: int) -> Any:
        """Return the data set of a matrix, or its content if HDF5 would unpack it for each slab.

        boost-corr stores each matrix as one compressed chunk, so that reading one row costs as much
        as reading all. The last matrix is cached.
        """
        stored = self._sets[angle]
        chunk = stored.chunks
        if chunk is None or 4 * chunk[0] * chunk[1] < stored.size:
            return stored
        if self._cached is None or self._cached[0] != angle:
            self._cached = (angle, stored[()])
        return self._cached[1]

    def close(self) -> None:
        """Close the file."""
        self._cached = None
        self._file.close()

    def __enter__(self) -> ApsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_rows(
    matrix: Any, first_row: int, stop_row: int, empty: NDArray[np.bool_], name: str
) -> Array:
    """Return rows of a symmetric matrix (array or data set), of which one triangle may be stored.

    Rows and columns of frames in the mask `empty` are NaN. boost-corr stores 0 there, which
    averages and fits would count as a measured C of 0.
    """
    rows, columns = matrix[first_row:stop_row, :], matrix[:, first_row:stop_row].T
    i, j = np.arange(first_row, stop_row)[:, None], np.arange(rows.shape[1])
    # These rows according to either triangle.
    upper, lower = np.where(j < i, columns, rows), np.where(j < i, rows, columns)
    stored_below = np.any(lower, where=i != j)
    stored_above = not stored_below or np.any(upper, where=i != j)
    tolerance = max(_MIRRORED, 4 * np.finfo(rows.dtype).eps)
    full = stored_below and stored_above
    if full and not np.allclose(upper, lower, rtol=tolerance, atol=0, equal_nan=True):
        raise ApsFormatError(
            f"{name}: expected one triangle and zeros, or a symmetric matrix, got different "
            f"triangles (rows {first_row} to {stop_row})"
        )
    result: Array = upper if stored_above else lower
    if empty.any():
        result[(empty | empty[i]) & (result == 0)] = np.nan
    return result


def complete_matrix(stored: Array, out: Array, name: str) -> None:
    """Write a symmetric matrix [n, n], of which one triangle may be stored, to `out`."""
    empty, n = find_empty_frames(stored), len(stored)
    for first in range(0, n, SLAB):
        stop = min(first + SLAB, n)
        out[first:stop] = read_rows(stored, first, stop, empty, name)


def find_empty_frames(matrix: Any) -> NDArray[np.bool_]:
    """Return a mask [n] of frames without counts in C [n, n], an array or data set.

    C is 0 on the diagonal for these frames, and above 0 for frames with counts, since it is a mean
    of squares. A diagonal of only zeros was removed.
    """
    n = matrix.shape[0]
    diagonal = np.ones(n)
    for first in range(0, n, TILE):
        block = slice(first, first + TILE)
        # Reading the rows of a damaged block raises this error, too.
        with contextlib.suppress(OSError):
            diagonal[block] = np.diagonal(matrix[block, block])
    return (diagonal == 0) & np.any(diagonal)


def load_aps(
    path: str | Path, layout: str | None = None, entries: Sequence[int] | None = None
) -> ApsData:
    """Read a file's matrices into memory, with both triangles.

    Args:
      path: the HDF5 file.
      layout: "aps" or "aps-u"; None to detect it.
      entries: indices of the matrices in the file's order; None for all.

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
        for matrix, entry in zip(c2, chosen, strict=True):
            for first in range(0, n_t, SLAB):
                stop = min(first + SLAB, n_t)
                matrix[first:stop] = file.read(entry, first, stop)
        return ApsData(c2, file.q[chosen], file.phi[chosen], file.dt)


class ApsWriter:
    """Writer of a file of two-time correlations, slab by slab.

    Only the upper triangle with the diagonal is stored. The file gets its name when the writer is
    closed. No file is created if the block of a ``with`` statement raises an error.

    Args:
      path: the file, replaced if it exists.
      q: [n] or a number, 1/Angstrom.
      phi: [n] degrees; a matrix is stored for each.
      n_t: number of frames.
      dt: seconds between frames; None to store no time.
      layout: "aps" or "aps-u".
      dtype: dtype of the stored values, f32 or f64.

    Raises:
      ValueError: q and phi of different lengths, dt not above 0, an unknown layout, or the same
        (q, phi) twice in the layout "aps-u".

    Example:
      >>> import numpy as np, pathlib, tempfile, jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> with jk.xpcs.ApsWriter(folder / "two.h5", q=0.01, phi=[0.0], n_t=8) as writer:
      ...     for row in (0, 4):
      ...         writer.write_rows(0, row, np.ones((4, 8)))
      >>> jk.xpcs.load_aps(folder / "two.h5").c2.shape
      (1, 8, 8)
    """

    def __init__(
        self,
        path: str | Path,
        *,
        q: ArrayLike,
        phi: ArrayLike,
        n_t: int,
        dt: float | None = None,
        layout: str = "aps-u",
        dtype: DTypeLike = np.float32,
    ) -> None:
        angles = np.atleast_1d(np.asarray(phi, np.float64))
        momenta = np.asarray(q, np.float64)
        if angles.ndim != 1 or momenta.shape not in ((), angles.shape):
            raise ValueError(
                f"q, phi: expected [n] or a number for q, got {momenta.shape} and {angles.shape}"
            )
        if layout not in LAYOUTS:
            raise ValueError(f"layout: expected one of {', '.join(LAYOUTS)}, got {layout!r}")
        if dt is not None and not (np.isfinite(dt) and dt > 0):
            raise ValueError(f"dt: expected a finite time above 0 s, or None, got {dt!r}")
        momenta = np.broadcast_to(momenta, angles.shape)
        name, entries = (_aps if layout == "aps" else _aps_u)(momenta, angles)
        if dt is not None:
            entries |= time_step_entries(float(dt), layout)
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(new_hdf5(Path(path)))
            for key, values in entries.items():
                file[key] = values
            options = tile_options(n_t)
            self._sets = [
                file.create_dataset(f"{name}{k:05d}", (n_t, n_t), np.dtype(dtype), **options)
                for k in range(1, 1 + len(angles))
            ]
            self._open = opened.pop_all()

    def write_rows(self, angle: int, first_row: int, rows: NDArray[Any]) -> None:
        """Store rows [m, n_t] of matrix ``angle`` from ``first_row`` on, for j >= i."""
        store_upper(self._sets[angle], first_row, rows)

    def close(self) -> None:
        """Close the file and give it its name; `OSError` leaves an existing file unchanged."""
        self._open.close()

    def __enter__(self) -> ApsWriter:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.__exit__(*error)


def tile_options(n_t: int) -> dict[str, Any]:
    """Return options of the data set of a matrix [n_t, n_t]: tiles with checksums."""
    tile = min(TILE, n_t)
    return {"chunks": (tile, tile), "fletcher32": True}


def store_upper(dataset: Any, first_row: int, rows: NDArray[Any]) -> None:
    """Store rows [m, n] of a data set [n, n] from ``first_row`` on, for j >= i."""
    stop_row = first_row + len(rows)
    for start in range(first_row, stop_row, TILE):
        stop = min(start + TILE, stop_row)
        part = rows[start - first_row : stop - first_row, start:]
        dataset[start:stop, start:] = np.triu(np.asarray(part, dataset.dtype))


def write_aps(
    path: str | Path,
    c2: ArrayLike,
    *,
    q: ArrayLike,
    phi: ArrayLike,
    dt: float | None = None,
    layout: str = "aps-u",
    dtype: DTypeLike | None = None,
) -> Path:
    """Write symmetric two-time correlations c2 [n, n_t, n_t], and return the path.

    Args:
      c2: [n, n_t, n_t]; the upper triangle is stored.
      path, q, phi, dt, layout: see `ApsWriter`.
      dtype: dtype of the stored values; None for that of c2.

    Raises:
      ValueError: inconsistent shapes, dt not above 0, or an unknown layout.

    Example:
      >>> from jaxkern import xpcs
      >>> import pathlib, tempfile
      >>> tmp = pathlib.Path(tempfile.mkdtemp())
      >>> xpcs.write_aps(tmp / "one.h5", np.ones((1, 8, 8)), q=0.01, phi=[0.0], dt=0.1).name
      'one.h5'
    """
    values = np.asarray(c2)
    if values.ndim != 3 or values.shape[1] != values.shape[2]:
        raise ValueError(f"c2: expected [n, n_t, n_t], got {list(values.shape)}")
    if np.size(phi) != len(values):
        raise ValueError(f"phi: expected {len(values)} values, as c2, got {np.size(phi)}")
    dtype, n_t = values.dtype if dtype is None else dtype, values.shape[1]
    with ApsWriter(path, q=q, phi=phi, n_t=n_t, dt=dt, layout=layout, dtype=dtype) as writer:
        for angle, matrix in enumerate(values):
            writer.write_rows(angle, 0, matrix)
    return Path(path)


def _aps(q: NDArray[Any], phi: NDArray[Any]) -> tuple[str, dict[str, Any]]:
    """Return the start of the names of matrices, and the entries other than matrices."""
    return "exchange/C2T_all/g2_", {"xpcs/dqlist": q[None], "xpcs/dphilist": phi[None]}


def _aps_u(q: NDArray[Any], phi: NDArray[Any]) -> tuple[str, dict[str, Any]]:
    """Return the same for a grid of the distinct q and phi; used cells are bins from 1."""
    q_list, phi_list = np.unique(q), np.unique(phi)
    cell = np.searchsorted(q_list, q) * len(phi_list) + np.searchsorted(phi_list, phi)
    mapping, bins = np.unique(cell, return_inverse=True)
    if len(mapping) != len(cell):
        raise ValueError(
            "q, phi: expected different pairs for 'aps-u', got one twice; use layout 'aps'"
        )
    entries = {"map_names": ["q", "phi"], **grid_entries("dynamic", (q_list, phi_list), mapping)}
    return "xpcs/twotime/correlation_map/c2_", {
        **{f"xpcs/qmap/{name}": values for name, values in entries.items()},
        "xpcs/twotime/processed_bins": (bins + 1).astype(np.int64),
    }
