"""Results of a fit in the files of homodyne and xpcsjax, and as columns of text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import atomic_write, write_atomically
from jaxkern.xpcs.files.prepare import Prepared
from jaxkern.xpcs.files.sources import values
from jaxkern.xpcs.fitting.result import FitResult
from jaxkern.xpcs.model.correlation import g2
from jaxkern.xpcs.model.models import Model

Array = NDArray[np.float64]


def save_nlsq_files(
    output: str | Path, data: Prepared, model: Model, result: FitResult
) -> list[Path]:
    """Write ``nlsq_result.json`` and ``fitted_data.npz``, and return their paths.

    The arrays have the names of homodyne: ``c2_exp``, ``c2_theoretical_raw`` (without contrast and
    baseline), ``c2_theoretical_scaled``, ``residuals`` (data minus model) and
    ``residuals_normalized`` (by sigma, if it does not depend on the point) [n_phi, n_t, n_t];
    ``per_angle_scaling`` [n_phi, 2] of contrast and baseline; ``phi_angles``, ``t1``, ``t2`` and
    ``q``. All arrays are in memory at once.
    """
    geometry = model.geometry
    measured, fitted = _measured_and_fitted(data, model, result)
    with jax.enable_x64(True):
        raw = np.asarray(g2(model, result.physics, 1.0, 0.0))
    arrays = {
        "phi_angles": geometry.phi,
        "c2_exp": measured,
        "c2_theoretical_raw": raw,
        "c2_theoretical_scaled": fitted,
        "per_angle_scaling": np.stack([result.contrast, result.offset], 1),
        "residuals": measured - fitted,
        "t1": geometry.t,
        "t2": geometry.t,
        "q": np.array([geometry.q]),
    }
    if result.sigma is not None:
        arrays["residuals_normalized"] = arrays["residuals"] / result.sigma[:, None, None]
    record = {
        "metadata": {
            "success": result.success,
            "convergence_status": "converged" if result.status > 0 else "not converged",
            "message": result.message,
            "chi_squared": _finite(result.chi2),
            "reduced_chi_squared": _finite(result.reduced_chi2),
            "quality_flag": "good" if result.success else "poor",
        },
        "parameters": {
            name: {"value": _finite(value), "uncertainty": _finite(error), "unit": unit}
            for name, value, error, unit in zip(
                result.names, result.popt, result.perr, result.units, strict=True
            )
        },
    }
    text, binary = Path(output) / "nlsq_result.json", Path(output) / "fitted_data.npz"
    write_atomically(text, json.dumps(record, indent=2).encode() + b"\n")
    with atomic_write(binary) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    return [text, binary]


def save_text_columns(
    output: str | Path, data: Prepared, model: Model, result: FitResult
) -> list[Path]:
    """Write ``parameters.txt`` and ``cuts.txt``, and return their paths.

    The columns are separated by tabs and have names in the first line. Those of ``cuts.txt`` are
    the lag in seconds, and for each angle k the data, the model and the residual, averaged over all
    pairs of used frames with this lag.
    """
    geometry = model.geometry
    parameters = [[*result.names], [*result.popt], [*result.perr], [*result.units]]
    paths = [Path(output) / "parameters.txt", Path(output) / "cuts.txt"]
    _write_columns(paths[0], ("name", "value", "error", "unit"), parameters)
    measured, fitted = _measured_and_fitted(data, model, result)
    keep = np.broadcast_to(result.keep, (geometry.n_phi, geometry.n_t))
    names, columns = ["lag_s"], [geometry.dt * np.arange(1, geometry.n_t)]
    for k in range(geometry.n_phi):
        used = keep[k][:, None] & keep[k] & np.isfinite(measured[k])
        cuts = []
        for c2 in (measured[k], fitted[k]):
            lines = [np.diagonal(np.where(used, c2, np.nan), lag) for lag in range(1, geometry.n_t)]
            cuts.append(np.array([_mean(line) for line in lines]))
        names += [f"{name}_{k}" for name in ("data", "model", "residual")]
        columns += [*cuts, cuts[0] - cuts[1]]
    _write_columns(paths[1], names, columns)
    return paths


def _measured_and_fitted(data: Prepared, model: Model, result: FitResult) -> tuple[Array, Array]:
    """Return data and model [n_phi, n_t, n_t]."""
    n_phi, n_t, _ = data.shape
    measured = np.stack([values(data, data.read(k, 0, n_t)) for k in range(n_phi)])
    with jax.enable_x64(True):
        fitted = np.asarray(g2(model, result.physics, result.contrast, result.offset))
    return measured.astype(np.float64), fitted


def _mean(line: Array) -> float:
    known = line[np.isfinite(line)]
    return float(known.mean()) if known.size else float("nan")


def _finite(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _write_columns(path: Path, names: Sequence[str], columns: Sequence[Any]) -> None:
    lines = ["\t".join(names)]
    for row in zip(*columns, strict=True):
        lines.append("\t".join(x if isinstance(x, str) else f"{x:.9g}" for x in row))
    write_atomically(path, "\n".join([*lines, ""]).encode())
