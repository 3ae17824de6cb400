"""Results of a fit on disk: `results.json` to read, `results.npz` to compute with."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np

from jaxkern.core.paths import write_whole
from jaxkern.xpcs.fitting.result import FitResult
from jaxkern.xpcs.model.geometry import Geometry


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
    held = {item.name: getattr(result, item.name) for item in fields(result)}
    rows = zip(
        result.names, result.popt, result.perr, result.perr_independent, result.units, strict=True
    )
    summary = {
        "parameters": {
            name: {
                "value": _number(value),
                "error": _number(error),
                "error_independent": _number(alone),
                "unit": unit,
            }
            for name, value, error, alone, unit in rows
        },
        **{k: _number(v) for k, v in held.items() if isinstance(v, str | int | float | np.generic)},
        "sigma": None if result.sigma is None else [_number(s) for s in result.sigma.tolist()],
        "warnings": list(result.warnings),
        "timings": {name: _number(value) for name, value in asdict(result.timings).items()},
        "geometry": {
            "q": geometry.q,
            "gap": geometry.gap,
            "dt": geometry.dt,
            "phi": geometry.phi.tolist(),
            "frames": geometry.n_t,
        },
        "settings": dict(settings or {}),
    }
    text, binary = directory / "results.json", directory / "results.npz"
    arrays = {name: value for name, value in held.items() if isinstance(value, np.ndarray)}
    arrays |= {"perr": result.perr, "perr_independent": result.perr_independent}
    arrays |= {"names": np.array(result.names), "costs": np.array(result.costs, np.float64)}
    arrays |= {"phi": geometry.phi, "t": geometry.t, "q": np.asarray(geometry.q)}
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    write_whole(text, json.dumps(summary, indent=2).encode() + b"\n")
    write_whole(binary, stream.getvalue())
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


def _number(value: Any) -> Any:
    """A plain number of JSON, which has none that is infinite or NaN: null."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
