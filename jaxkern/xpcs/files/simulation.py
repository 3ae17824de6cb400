"""Simulated two-time correlations: g2 of a model with symmetric noise, in memory or in a file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import check_memory
from jaxkern.xpcs.files.aps import TILE, ApsWriter
from jaxkern.xpcs.model.correlation import g2_at
from jaxkern.xpcs.model.models import Model

Array = NDArray[Any]


def simulate(
    model: Model,
    params: ArrayLike,
    contrast: ArrayLike,
    offset: ArrayLike,
    *,
    noise: float = 0.0,
    diagonal_artifact: float = 0.0,
    seed: int = 0,
) -> Array:
    """Return g2 of a model with Gaussian noise, symmetric as in a measurement: [n_phi, n_t, n_t].

    The noise of a point depends only on the seed, the angle and the frames, so that
    `simulate_to_file` writes the same values.

    Args:
      model: `Static`, `LaminarFlow` or another model.
      params: [p] parameters of the model.
      contrast, offset: a number or [n_phi].
      noise: standard deviation of a point.
      diagonal_artifact: number that is added to the diagonal.
      seed: seed of the noise.

    Raises:
      ValueError: negative noise; contrast or offset of another shape.
      MemoryError: the result does not fit into memory.

    Example:
      >>> import numpy as np
      >>> from jaxkern import xpcs
      >>> t = 0.1 * np.arange(20)
      >>> model = xpcs.Static(xpcs.Geometry(q=0.01, gap=None, dt=0.1, t=t, phi=[0.0]))
      >>> xpcs.simulate(model, model.defaults, 0.3, 1.0, noise=0.02).shape
      (1, 20, 20)
    """
    n_phi, n_t = model.geometry.n_phi, model.geometry.n_t
    check_memory(
        f"two-time correlations of {n_phi:,} angles and {n_t:,} frames",
        16 * n_phi * n_t**2,  # the result, and its transpose
        "simulate fewer frames or angles, or write a file (simulate_to_file)",
    )
    c2 = np.zeros((n_phi, n_t, n_t))
    arguments = (model, params, contrast, offset, noise, diagonal_artifact, seed)
    for angle, first, rows in _slabs(*arguments):
        c2[angle, first : first + len(rows)] = rows
    k = np.arange(n_t)
    diagonal = c2[:, k, k]
    c2 += c2.transpose(0, 2, 1)
    c2[:, k, k] = diagonal
    return c2


def simulate_to_file(
    path: str | Path,
    model: Model,
    params: ArrayLike,
    contrast: ArrayLike,
    offset: ArrayLike,
    *,
    noise: float = 0.0,
    diagonal_artifact: float = 0.0,
    seed: int = 0,
    layout: str = "aps-u",
    dtype: DTypeLike = np.float32,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Write the result of `simulate` to an APS file in slabs of rows, and return the path.

    Args:
      path, layout, dtype: see `ApsWriter`; the others: see `simulate`.
      progress: called with the number of written rows and the total number of rows.

    Raises:
      ValueError: see `simulate` and `ApsWriter`; the file does not fit onto the disk.

    Example:
      >>> import numpy as np
      >>> from jaxkern import xpcs
      >>> t = 0.1 * np.arange(20)
      >>> model = xpcs.Static(xpcs.Geometry(q=0.01, gap=None, dt=0.1, t=t, phi=[0.0]))
      >>> import pathlib, tempfile
      >>> tmp = pathlib.Path(tempfile.mkdtemp())
      >>> xpcs.simulate_to_file(tmp / "s.h5", model, model.defaults, 0.3, 1.0, noise=0.02).name
      's.h5'
    """
    geometry = model.geometry
    check_room(path, geometry.n_phi, geometry.n_t, dtype)
    arguments = (model, params, contrast, offset, noise, diagonal_artifact, seed)
    conditions = {name: getattr(geometry, name) for name in ("q", "phi", "n_t", "dt")}
    with ApsWriter(path, **conditions, layout=layout, dtype=dtype) as writer:
        for angle, first, rows in _slabs(*arguments):
            writer.write_rows(angle, first, rows)
            if progress is not None:
                done = angle * geometry.n_t + first + len(rows)
                progress(done, geometry.n_phi * geometry.n_t)
    return Path(path)


def check_room(path: str | Path, n_phi: int, n_t: int, dtype: DTypeLike) -> None:
    """Raise ValueError if a file of `n_phi` angles and `n_t` frames does not fit onto its disk."""
    path = Path(path).absolute()
    needed = n_phi * n_t**2 * np.dtype(dtype).itemsize
    folder = next(parent for parent in path.parents if parent.exists())
    free = shutil.disk_usage(folder).free + (path.stat().st_size if path.is_file() else 0)
    if needed > free:
        raise ValueError(
            f"two-time correlations of {n_phi:,} angles and {n_t:,} frames need a file of "
            f"{needed / 1e9:,.3g} GB, and {folder} has {free / 1e9:,.3g} GB free; use fewer frames "
            "or angles, or another disk"
        )


def _slabs(
    model: Model,
    params: ArrayLike,
    contrast: ArrayLike,
    offset: ArrayLike,
    noise: float,
    artifact: float,
    seed: int,
) -> Iterator[tuple[int, int, Array]]:
    """Yield (angle, first row, rows [m, n_t]) in order; rows are zero below the diagonal."""
    n_phi, n_t = model.geometry.n_phi, model.geometry.n_t
    if not noise >= 0:
        raise ValueError(f"noise: expected a standard deviation of 0 or more, got {noise!r}")
    check_integer("seed", seed, 0)
    with jax.enable_x64(True):
        evaluate = jax.jit(lambda index: g2_at(model, params, contrast, offset, index))
        for angle in range(n_phi):
            for first in range(0, n_t, TILE):
                stop = min(first + TILE, n_t)
                rows = np.zeros((stop - first, n_t))
                i, j = np.mgrid[first:stop, first:n_t].astype(np.int32)
                index = np.stack([np.full_like(i, angle), i, j], axis=-1).reshape(-1, 3)
                rows[:, first:] = np.asarray(evaluate(index)).reshape(i.shape)
                rows = np.triu(rows, first)
                for row, line in enumerate(rows, first):
                    draw = np.random.default_rng([seed, angle, row])
                    line[row:] += noise * draw.standard_normal(n_t - row)
                    line[row] += artifact
                yield angle, first, rows
