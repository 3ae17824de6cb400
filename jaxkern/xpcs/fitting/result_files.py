"""Results of a fit on disk: `results.json` to read, `results.npz` to compute with."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from jaxkern.xpcs.fitting.result import FitResult
from jaxkern.xpcs.model.geometry import Geometry

_ARRAYS = (
    "popt",
    "pcov",
    "perr",
    "pcov_independent",
    "perr_independent",
    "contrast",
    "offset",
    "physics",
    "costs",
)
_NUMBERS = (
    "chi2",
    "cost",
    "count",
    "independent_count",
    "reduced_chi2",
    "nfev",
    "n_batches",
    "success",
    "status",
    "message",
    "success_rate",
    "strategy",
    "sigma_method",
    "errors",
    "error_passes",
    "inflation",
    "peak_memory",
)


def save_result(
    directory: str | Path,
    result: FitResult,
    geometry: Geometry,
    settings: Mapping[str, Any] | None = None,
) -> tuple[Path, Path]:
    """Writes ``results.json`` and ``results.npz`` into a directory, each in one step.

    Args:
      directory: made when it is not there.
      result: of `fit`.
      geometry: of the fitted model; goes into both files.
      settings: the configuration, kept in the JSON file.

    Returns:
      The two paths.
    """
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    sigma = None if result.sigma is None else np.asarray(result.sigma, np.float64)
    summary = {
        "parameters": {
            name: {
                "value": _number(value),
                "error": _number(error),
                "error_independent": _number(alone),
                "unit": unit,
            }
            for name, value, error, alone, unit in zip(
                result.names,
                result.popt,
                result.perr,
                result.perr_independent,
                result.units,
                strict=True,
            )
        },
        **{name: _number(getattr(result, name)) for name in _NUMBERS},
        "sigma": None if sigma is None else [_number(s) for s in sigma],
        "warnings": list(result.warnings),
        "timings": {name: _number(value) for name, value in asdict(result.timings).items()},
        "geometry": {
            "q": geometry.q,
            "gap": geometry.gap,
            "dt": geometry.dt,
            "phi": [float(p) for p in geometry.phi],
            "frames": geometry.n_t,
        },
        "settings": dict(settings or {}),
    }
    text = directory / "results.json"
    _replace(text, json.dumps(summary, indent=2).encode() + b"\n")
    arrays = {name: np.asarray(getattr(result, name), np.float64) for name in _ARRAYS}
    arrays |= {"phi": geometry.phi, "t": geometry.t, "q": np.asarray(geometry.q)}
    if sigma is not None:
        arrays["sigma"] = sigma
    binary = directory / "results.npz"
    partial = binary.with_suffix(".partial.npz")
    everything: dict[str, Any] = {"names": np.array(result.names), "keep": result.keep, **arrays}
    np.savez(partial, **everything)
    os.replace(partial, binary)
    return text, binary


def load_result(directory: str | Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What `save_result` wrote: the contents of ``results.json``, and the arrays.

    Raises:
      FileNotFoundError: no results in the directory.
      ValueError: a file that is damaged, or of something else.
    """
    directory = Path(directory)
    text, binary = directory / "results.json", directory / "results.npz"
    for path in (text, binary):
        if not path.exists():
            raise FileNotFoundError(
                f"there is no {str(path)!r}; `python -m jaxkern xpcs fit` writes it"
            )
    reading = text
    try:
        summary = json.loads(text.read_bytes())
        reading = binary
        with np.load(binary) as arrays:
            return summary, {name: arrays[name] for name in arrays.files}
    except Exception as error:  # of JSON, zip and NumPy, which have no kind in common
        raise ValueError(
            f"{reading} cannot be read as a result: {error}; `python -m jaxkern xpcs fit` writes it"
        ) from error


def _replace(path: Path, content: bytes) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def _number(value: Any) -> Any:
    """A plain number of JSON, which has none that is infinite or NaN: null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
