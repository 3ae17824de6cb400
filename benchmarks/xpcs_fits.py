"""Whole fits of two-time correlations: time from a process's start, and memory.

`nlsq.curve_fit` fits the same data from the same start within the same bounds, on the jitted JAX
model in float64; it counts both halves of the mirrored data, and its diagonal has a huge sigma.
The two agree on a smaller problem first.
"""

from __future__ import annotations

import importlib.util
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np
import xpcs_model as model

import jaxkern as jk

# Where the fits begin: off the truth by some ten percent.
CONTRAST, OFFSET = 0.3, 1.0
PHYSICS = np.array([1300.0, -0.2, 20.0, 3e-4, 0.2, 2e-5, 2.0])
PATIENCE = 60  # nlsq is stopped after this multiple of our time

Rows = list[tuple[str, str, str, str]]


def write_problem(folder: Path, angles: int, frames: int) -> Path:
    """Write a file with data, start and bounds; return its path."""
    path = folder / f"{angles}x{frames}.npz"
    truth, data = model.simulate(angles, frames)
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    bounds = np.array([(0.0, 1.0)] * angles + [(0.5, 1.5)] * angles + list(flow.bounds))
    start = np.concatenate([np.full(angles, CONTRAST), np.full(angles, OFFSET), PHYSICS])
    np.savez(path, data=data, start=start, lower=bounds[:, 0], upper=bounds[:, 1], truth=truth)
    return path


def process(case: str, path: Path, *arguments: Any, limit: float | None = None) -> dict[str, Any]:
    """Run a fit in a new process; return its report, with times since the start of the process."""
    start = time.monotonic()
    run: dict[str, Any] = harness.call(
        "xpcs_model", case, str(path), *arguments, limit=limit, JAXKERN_BACKEND="native"
    )
    return run | {name: run[name] - start for name in ("jax_imported", "result") if name in run}


def median(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def fits(path: Path, count: int) -> list[dict[str, Any]]:
    """Return reports of fits; end the benchmark if one is not at the truth within its errors."""
    runs = [process("fit", path) for _ in range(count)]
    with np.load(path) as problem:
        off = np.abs(runs[0]["popt"] - problem["truth"]) / runs[0]["perr"]
    worst = off.max() if runs[0]["success"] else np.inf
    harness.within("a parameter", worst, 5, "standard errors")
    return runs


def limited(name: str, value: float, bar: float, text: str) -> tuple[str, str, str, str]:
    return name, text, f"{bar:g}", harness.at_most(value, bar)


def whole_fit(folder: Path, quick: bool) -> Rows:
    """3 x 500^2, 13 parameters, process start to result, against nlsq."""
    path, small = write_problem(folder, 3, 500), write_problem(folder, 3, 100)
    name = "whole fit, 3 x 500^2, 13 parameters, process start to result, against nlsq"
    ours = fits(path, 3 if quick else 7)
    seconds = median(ours, "result")
    if importlib.util.find_spec("nlsq") is None:
        return [(name, f"ours {seconds:.2f} s; nlsq is not installed", "30", "**missing**")]
    pair = [process(case, small) for case in ("fit", "fit_with_nlsq")]
    off = np.abs(pair[0]["popt"] - pair[1]["popt"]) / pair[0]["perr"]
    # nlsq stops where the cost changes by 1e-8.
    harness.within("nlsq's fit", off.max(), 0.2, "standard errors")
    limit = PATIENCE * seconds
    try:
        theirs = [process("fit_with_nlsq", path, limit=limit) for _ in range(1 if quick else 3)]
    except subprocess.TimeoutExpired:
        text = f"above {PATIENCE}: nlsq was stopped after {limit:.0f} s, ours took {seconds:.2f} s"
        return [(name, text, "30", "reached")]
    slow = median(theirs, "result")
    text = f"{slow / seconds:.1f} times ({slow:.1f} s against {seconds:.2f} s)"
    return [(name, text, "30", harness.at_least(slow / seconds, 30))]


def large_fit(folder: Path, quick: bool) -> Rows:
    """23 x 1001^2 = 23M points, 53 parameters: seconds of compute, and memory."""
    frames = 301 if quick else 1001
    runs = fits(write_problem(folder, 23, frames), 1 if quick else 5)
    size, compute, private = (median(runs, n) for n in ("data_bytes", "compute", "private"))
    name = f"whole fit, 23 x {frames}^2, 53 parameters"
    return [
        limited(f"{name}, seconds of compute", compute, 15,
            f"{compute:.2f} ({runs[0]['nfev']} passes)"),
        limited(f"{name}, anonymous memory beyond the imported libraries', data and compilation "
            "included, per size of the data", private / size, 1.5,
            f"{private / size:.2f} ({private / 2**20:.0f} MiB for {size / 2**20:.0f})"),
    ]  # fmt: skip


def first_result(folder: Path, quick: bool) -> Rows:
    """1.5M points in a new process, beyond importing jax: with loading the data and compiling."""
    runs = fits(write_problem(folder, 6, 500), 3 if quick else 9)
    beyond = [run["result"] - run["jax_imported"] for run in runs]
    value = statistics.median(beyond)
    text = f"{value:.2f} ({min(beyond):.2f} to {max(beyond):.2f})"
    name = "first result, 6 x 500^2, new process, beyond importing jax, s"
    return [limited(name, value, 2, text)]


def main() -> None:
    bench = harness.Benchmark(__doc__)
    rows: Rows = []
    with tempfile.TemporaryDirectory(prefix="xpcs-fits-") as folder:
        for case in (whole_fit, large_fit, first_result):
            rows += case(Path(folder), bench.quick)
    bench.write(harness.table(" | measured | bar | ", "lrrl", rows), ["scipy", "nlsq"])


if __name__ == "__main__":
    main()
