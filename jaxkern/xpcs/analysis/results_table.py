"""Table of the correlations of many files, with a row for each file and bin, as CSV or Parquet."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxkern.core.paths import atomic_write
from jaxkern.core.tables import Row, import_pyarrow
from jaxkern.xpcs.correlators.results import MultiTauResult

#: columns and their types in Parquet
COLUMNS = {
    **dict.fromkeys(("file", "status", "error", "results"), "string"),
    "bin": "int64",
    **dict.fromkeys(("q", "phi"), "float64"),
    **dict.fromkeys(("pixels", "frames", "bad_frames", "empty_frames", "hot_pixels"), "int64"),
    **dict.fromkeys(("frame_time", "mean_counts"), "float64"),
    "delay": "int64",
    **dict.fromkeys(("g2", "g2_err", "baseline", "contrast"), "float64"),
    "warnings": "string",
}
SUFFIXES = (".csv", ".parquet")
# The baseline is the mean of g2 at this number of last delays.
_LAST = 4


def table_rows(
    result: MultiTauResult, empty_frames: Mapping[int, int], two_time_warnings: Sequence[str]
) -> list[Row]:
    """Return a row for each bin: labels, frames, counts, and g2 at the first and last delays.

    `empty_frames` are numbers of frames without counts, by bin with a two-time correlation.
    """
    bad = len(result.config.get("bad_frames", ()))
    hot = result.config.get("hot_pixels")
    warnings = dict.fromkeys((*result.warnings, *two_time_warnings))
    means = _mean_counts(result)
    rows = []
    for k, number in enumerate(result.bins.tolist()):
        curve, error = result.g2[:, k], result.g2_err[:, k]
        known = np.flatnonzero(np.isfinite(curve))
        row = {
            "bin": number,
            "q": None if result.q is None else float(result.q[k]),
            "phi": None if result.phi is None else float(result.phi[k]),
            "pixels": int(result.n_pixels[k]),
            "frames": result.n_frames,
            "bad_frames": bad,
            "empty_frames": empty_frames.get(number),
            "hot_pixels": None if hot is None else len(hot),
            "frame_time": result.frame_time,
            "mean_counts": None if means is None else float(means[k]),
            **dict.fromkeys(("delay", "g2", "g2_err", "baseline", "contrast")),
            "warnings": "; ".join(warnings) or None,
        }
        if known.size:
            first, baseline = known[0], float(curve[known[-_LAST:]].mean())
            row |= {"delay": int(result.delay[first]), "g2": float(curve[first])}
            row |= {"g2_err": float(error[first]), "baseline": baseline}
            row["contrast"] = float(curve[first]) - baseline
        rows.append(row)
    return rows


def _mean_counts(result: MultiTauResult) -> Any:
    """Return mean counts [n_bins] of a bin's pixels in a frame, from the means of static bins."""
    if result.overview is None:
        return None
    qmap = result.qmap
    pixels = qmap.pixels_of_static
    counts = np.where(pixels > 0, result.overview.static_means, 0.0) * pixels
    totals = np.bincount(qmap.dynamic_of_static, counts, minlength=qmap.n_dynamic + 1)
    with np.errstate(invalid="ignore"):
        return totals[result.bins] / qmap.pixels_of_bin[result.bins - 1]


def check_table(path: Path) -> None:
    """Raise the errors of `write_table` before any work."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"table: expected a file that ends in .csv or .parquet, got {path}")
    if path.is_dir():
        raise IsADirectoryError(f"table: expected a file, got the folder {path}")
    if path.suffix.lower() == ".parquet":
        import_pyarrow("pyarrow")


def write_table(path: Path, rows: Sequence[Row]) -> Path:
    """Write rows atomically as CSV or Parquet, depending on the suffix, and return the path."""
    check_table(path)
    with atomic_write(path) as temporary:
        if path.suffix.lower() == ".csv":
            with temporary.open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(rows)
        else:
            arrow, parquet = import_pyarrow("pyarrow"), import_pyarrow("pyarrow.parquet")
            schema = arrow.schema([(name, getattr(arrow, t)()) for name, t in COLUMNS.items()])
            parquet.write_table(arrow.Table.from_pylist(list(rows), schema), temporary)
    return path


def table_text(rows: Sequence[Row], most: int = 20) -> str:
    """Format the first rows as text; a failed file has its error instead of numbers."""
    columns = ("file", "status", "bin", "q", "phi", "frames", "mean_counts", "g2", "contrast")
    cells = [list(columns)]
    for row in rows[:most]:
        name = Path(row["file"]).name
        cells.append([name] + [_cell(row.get(column)) for column in columns[1:]])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]
    for k, row in enumerate(rows[:most], 1):
        if row.get("error"):
            lines[k] += f"  {row['error']}"
    if len(rows) > most:
        lines.append(f"... and {len(rows) - most} more rows")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.5g}" if isinstance(value, float) else str(value)
