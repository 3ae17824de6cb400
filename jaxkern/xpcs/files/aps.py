"""Two-time correlations in HDF5 files of the Advanced Photon Source, in both layouts.

A file stores one triangle H of each symmetric matrix, including the diagonal (boost-corr writes
``triu(C)``): C = H + H^T with the diagonal once. A full matrix is also accepted.

====== =====================================================================================
aps    ``xpcs/dqlist[0, :]``, ``xpcs/dphilist[0, :]`` and ``exchange/C2T_all/*``, one data set
       per entry, in natural order (2 before 10); ``xpcs/qphi_bin_to_process``, if present, has
       the indices (from 1) into these lists
aps-u  ``xpcs/qmap/dynamic_v_list_dim0`` (q) and ``_dim1`` (phi), ``xpcs/twotime/processed_bins``
       (from 1) and ``xpcs/twotime/correlation_map/c2_%05d``. Bin b is the cell
       g = ``xpcs/qmap/dynamic_index_mapping[b - 1]`` of the grid (b - 1 where there is no
       mapping): q = g // n_phi, phi = g % n_phi
====== =====================================================================================

The time between frames is ``entry/instrument/detector_1/frame_time`` times ``stride_frame`` and
``avg_frame`` of ``xpcs/twotime/config``; older files have ``exposure_period`` in
``measurement/instrument/detector`` and ``stride_frames`` and ``avg_frames`` in ``xpcs``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.detectors.hdf5_access import open_hdf5
from jaxkern.xpcs.files.aps_entries import LAYOUTS, ApsFormatError, find_layout, read_entries

Array = NDArray[Any]

# Rows that are read at a time for a whole matrix.
_SLAB = 512
# Frames of the diagonal that are read at a time: the side of a tile of `write_aps`.
_DIAGONAL_BLOCK = 256
# Relative tolerance for the symmetry of a full matrix: matrix products on a GPU are not symmetric
# to the last bit.
_MIRRORED = 1e-5


@dataclass(frozen=True)
class ApsData:
    """Two-time correlations in memory.

    Attributes:
      c2: [n, n_t, n_t] in the file's dtype, both triangles, diagonal as measured; NaN in rows and
        columns of frames without counts.
      q: [n] f64, 1/Angstrom.
      phi: [n] f64, degrees.
      dt: seconds between frames; None if the file does not store it.
    """

    c2: Array
    q: Array
    phi: Array
    dt: float | None = None


class ApsFile:
    """Two-time correlations of a file as a source of slabs of rows.

    Matrices are not cached, except the last one if the file stores matrices in chunks of a quarter
    of a matrix or more.

    Attributes:
      shape: (n, n_t, n_t), n matrices of (q, phi) in the file's order.
      dtype: dtype of the stored values.
      q: [n] f64, 1/Angstrom.
      phi: [n] f64, degrees.
      dt: seconds between frames; None if the file does not store it.
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
        self._file = open_hdf5(self.path, ApsFormatError)
        try:
            with format_errors(self.path):
                self.layout = find_layout(self._file, layout)
                self._sets, self.q, self.phi, self.dt = read_entries(self._file, self.layout)
        except BaseException:
            self._file.close()
            raise
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
        stored = self._sets[angle]
        try:
            matrix = self._matrix(angle)
            rows = matrix[first_row:stop_row, :]
            columns = matrix[:, first_row:stop_row].T
            if angle not in self._empty:
                self._empty[angle] = find_empty_frames(matrix)
        except OSError as error:
            raise OSError(f"{self.path}: {stored.name} cannot be read: {error}") from error
        completed = complete_rows(rows, columns, first_row, f"{self.path}: {stored.name}")
        mark_empty_frames(completed, self._empty[angle], first_row)
        return completed

    def _matrix(self, angle: int) -> Any:
        """Return the data set of a matrix, or its content if HDF5 would unpack it for each slab.

        boost-corr stores each matrix as one compressed chunk, so that reading one row costs as much
        as reading all. The last matrix is cached.
        """
        stored = self._sets[angle]
        chunk = stored.chunks
        if chunk is None or 4 * chunk[0] * chunk[1] < stored.size:
            return stored
        cached = self._cached
        if cached is None or cached[0] != angle:
            cached = self._cached = (angle, stored[()])
        return cached[1]

    def close(self) -> None:
        """Close the file."""
        self._cached = None
        self._file.close()

    def __enter__(self) -> ApsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ApsFile({str(self.path)!r}, layout={self.layout!r}, shape={self.shape})"


def complete_rows(rows: Array, columns: Array, first_row: int, what: str) -> Array:
    """Return rows [m, n] of a symmetric matrix of which one triangle may be stored.

    Args:
      rows: [m, n] as stored, from row ``first_row`` on.
      columns: [m, n], the same columns of the matrix, transposed.
    """
    n_t, stop_row = rows.shape[1], first_row + len(rows)
    below = np.arange(n_t) < np.arange(first_row, stop_row)[:, None]
    off_diagonal = np.arange(n_t) != np.arange(first_row, stop_row)[:, None]
    # These rows according to either triangle.
    upper, lower = np.where(below, columns, rows), np.where(below, rows, columns)
    stored_below = np.any(lower, where=off_diagonal)
    stored_above = not stored_below or np.any(upper, where=off_diagonal)
    tolerance = max(_MIRRORED, 4 * np.finfo(rows.dtype).eps)
    full = stored_below and stored_above
    if full and not np.allclose(upper, lower, rtol=tolerance, atol=0, equal_nan=True):
        raise ApsFormatError(
            f"{what}: expected one triangle and zeros, or a symmetric matrix, got different "
            f"triangles (rows {first_row} to {stop_row})"
        )
    return np.asarray(upper if stored_above else lower)


def find_empty_frames(matrix: Any) -> NDArray[np.bool_]:
    """Return a mask [n] of frames without counts in C [n, n], an array or data set.

    C is 0 on the diagonal for these frames, and above 0 for frames with counts, since it is a mean
    of squares. A diagonal of only zeros was removed. Only floating-point matrices can store NaN.
    """
    n = matrix.shape[0]
    if matrix.dtype.kind != "f":
        return np.zeros(n, bool)
    diagonal = np.ones(n)
    for first in range(0, n, _DIAGONAL_BLOCK):
        block = slice(first, first + _DIAGONAL_BLOCK)
        # Reading the rows of a damaged block raises this error, too.
        with contextlib.suppress(OSError):
            diagonal[block] = np.diagonal(matrix[block, block])
    empty: NDArray[np.bool_] = (diagonal == 0) & np.any(diagonal)
    return empty


def mark_empty_frames(rows: Array, empty: NDArray[np.bool_], first_row: int) -> None:
    """Replace 0 by NaN in rows [m, n] and columns of frames without counts, in place.

    boost-corr stores 0 there, which averages and fits would count as a measured C of 0.
    """
    if empty.any():
        undefined = empty | empty[first_row : first_row + len(rows), None]
        rows[undefined & (rows == 0)] = np.nan


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
        for k, entry in enumerate(chosen):
            for first in range(0, n_t, _SLAB):
                stop = min(first + _SLAB, n_t)
                c2[k, first:stop] = file.read(entry, first, stop)
        return ApsData(c2, file.q[chosen], file.phi[chosen], file.dt)


@contextlib.contextmanager
def format_errors(path: Path) -> Iterator[None]:
    """Add the path to errors, and convert h5py's errors about groups, links and headers."""
    try:
        yield
    except ApsFormatError as error:
        raise ApsFormatError(f"{path}: {error}") from None
    except (KeyError, OSError, RuntimeError, TypeError, ValueError, MemoryError) as error:
        reason = error.args[0] if error.args else error
        raise ApsFormatError(f"{path} is damaged, or has a broken link: {reason}") from error
