"""Writing of two-time correlations as HDF5 files of either APS layout, in slabs of rows."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jaxkern.xpcs.detectors.hdf5_access import new_hdf5
from jaxkern.xpcs.files.aps_entries import LAYOUTS

# Side of HDF5's tiles: slabs of rows and of columns are read in few pieces, and the empty triangle
# takes no space. Slabs of this many rows are written without reading tiles back.
TILE = 256


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
        self.path = Path(path)
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
        self.shape = (len(angles), n_t, n_t)
        self.dtype = np.dtype(dtype)
        names, lists = (_aps if layout == "aps" else _aps_u)(momenta, angles)
        if dt is not None:
            lists |= _time_step(float(dt), layout)
        tile = min(TILE, n_t)
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as opened:
            file = opened.enter_context(new_hdf5(self.path))
            for name, values in lists.items():
                file[name] = values
            options: dict[str, Any] = {"chunks": (tile, tile), "fletcher32": True}
            self._sets = [
                file.create_dataset(name, (n_t, n_t), self.dtype, **options) for name in names
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.__exit__(kind, error, trace)


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
      path: the file, replaced if it exists.
      c2: [n, n_t, n_t]; the upper triangle is stored.
      q: [n] or a number, 1/Angstrom.
      phi: [n], degrees.
      dt: seconds between frames, for a fit by the command line; None to store no time.
      layout: "aps" or "aps-u".
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
    kind = values.dtype if dtype is None else dtype
    with ApsWriter(
        path, q=q, phi=phi, n_t=values.shape[1], dt=dt, layout=layout, dtype=kind
    ) as writer:
        for angle, matrix in enumerate(values):
            writer.write_rows(angle, 0, matrix)
    return Path(path)


def _aps(q: NDArray[Any], phi: NDArray[Any]) -> tuple[list[str], dict[str, Any]]:
    names = [f"exchange/C2T_all/g2_{k + 1:05d}" for k in range(len(phi))]
    return names, {"xpcs/dqlist": q[None], "xpcs/dphilist": phi[None]}


def _aps_u(q: NDArray[Any], phi: NDArray[Any]) -> tuple[list[str], dict[str, Any]]:
    """Return names and lists for a grid of the distinct q and phi; used cells are bins from 1."""
    q_list, phi_list = np.unique(q), np.unique(phi)
    cell = np.searchsorted(q_list, q) * len(phi_list) + np.searchsorted(phi_list, phi)
    mapping = np.unique(cell)
    if len(mapping) != len(cell):
        raise ValueError(
            "q, phi: expected different pairs for 'aps-u', got one twice; use layout 'aps'"
        )
    names = [f"xpcs/twotime/correlation_map/c2_{k + 1:05d}" for k in range(len(cell))]
    return names, {
        "xpcs/qmap/dynamic_v_list_dim0": q_list,
        "xpcs/qmap/dynamic_v_list_dim1": phi_list,
        "xpcs/qmap/dynamic_num_pts": np.array([len(q_list), len(phi_list)], np.int64),
        "xpcs/qmap/dynamic_index_mapping": mapping.astype(np.int64),
        "xpcs/qmap/map_names": ["q", "phi"],
        "xpcs/twotime/processed_bins": (np.searchsorted(mapping, cell) + 1).astype(np.int64),
    }


def _time_step(dt: float, layout: str) -> dict[str, Any]:
    """Return the entries for the time between frames, with stride and average of 1."""
    if layout == "aps":
        one = np.ones((1, 1), np.uint64)
        return {
            "measurement/instrument/detector/exposure_period": np.array([[dt]]),
            "xpcs/stride_frames": one,
            "xpcs/avg_frames": one,
        }
    return {
        "entry/instrument/detector_1/frame_time": dt,
        "xpcs/twotime/config/stride_frame": 1,
        "xpcs/twotime/config/avg_frame": 1,
    }
