"""Opens what the user gave as the data of a fit."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.files.sources import as_source
from jaxkern.xpcs.fitting.device_data import DeviceData
from jaxkern.xpcs.fitting.fit_data import FitData
from jaxkern.xpcs.fitting.host_data import HostData


def open_data(
    data: Any,
    shape: tuple[int, int, int],
    frames: NDArray[np.bool_],
    strategy: str | None,
    chunk_points: int | None,
    step_zero: tuple[float, float] | None,
) -> FitData:
    """Opens what the user gave as data of a model with `shape` = (n_phi, n_t, n_t).

    Raises:
      ValueError: for another shape, uint16 data without (step, zero), (step, zero) with other data,
        or matrices of which one triangle is empty.
      TypeError: for something that is no data.
    """
    if isinstance(data, jax.Array):
        devices: Any = data.sharding.device_set
        if len(devices) == 1 and next(iter(devices)).platform == "cpu":
            data = np.asarray(data)
    source = None if isinstance(data, jax.Array) else as_source(data, quantization=step_zero)
    held: Any = data if source is None else source
    if tuple(held.shape) != shape:
        raise ValueError(
            f"data has the shape {tuple(held.shape)}; wanted {shape}, [n_phi, n_t, n_t] of the "
            "model's geometry (its phi and t)"
        )
    dtype = np.dtype(held.dtype)
    if step_zero is not None and dtype != np.uint16:
        raise ValueError(f"quantization is given for data of {dtype}; wanted uint16 data")
    known = step_zero if source is None else getattr(source, "quantization", None)
    if dtype == np.uint16 and known is None:
        raise ValueError(
            "data are uint16, and quantization is missing; give quantization=(step, zero), where a "
            "value is zero + step * data (or the attribute `quantization` of a source)"
        )
    if known is not None and not (
        np.shape(known) == (2,) and np.isfinite(known).all() and known[0]
    ):
        raise ValueError(f"quantization is {known!r}; wanted (step, zero), step not 0")
    if dtype.kind not in "fiu":
        raise ValueError(f"data has the dtype {dtype}; wanted real numbers")
    opened: FitData
    if source is None:
        opened = DeviceData(data, frames, step_zero or (1.0, 0.0))
    else:
        opened = HostData(source, frames, strategy, chunk_points)
    _check_triangles(opened)
    return opened


def _check_triangles(data: FitData) -> None:
    """Raises ValueError for a matrix of which one triangle is zero, as far as it was sampled."""
    sample = data.sample
    column = np.arange(sample.values.shape[2])[None, :]
    counts = sample.good[None, :] & sample.good[sample.rows][:, None]
    # Quantized, nothing is stored as 0 too.
    nothing = data.step_zero[1] if data.dtype == np.uint16 else 0.0
    for angle, shown in enumerate(sample.values):
        # Rows that could not be read are NaN as a whole.
        seen = counts & ~np.isnan(shown).all(axis=1)[:, None]
        empty = np.isnan(shown) | (shown == nothing)
        below, above = (
            seen & (column < sample.rows[:, None]),
            seen & (column > sample.rows[:, None]),
        )
        if not (below.any() and above.any()):
            continue
        if empty[below].all() != empty[above].all():
            where = "above" if empty[below].all() else "below"
            if np.isnan(shown[below if where == "above" else above]).all():
                # Not fitted: rows that hold NaN are left out, and named.
                continue
            raise ValueError(
                f"data holds numbers only {where} the diagonal at angle {angle}; wanted both "
                "triangles, c2 + c2.T with the diagonal once (load_aps and ApsFile read files of "
                "one triangle so)"
            )
