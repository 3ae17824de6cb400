"""Whole fits of two-time correlations: time from a process's start, memory, and checkpoints.

    python benchmarks/xpcs_fits.py            # prints, and writes benchmarks/results/
    python benchmarks/xpcs_fits.py --quick    # fewer rounds, smaller data, writes nothing

`nlsq.curve_fit` fits the same data from the same start within the same bounds, on the jitted JAX
model in float64; it counts both halves of the mirrored data, and its diagonal has a huge sigma.
The two agree on a smaller problem first. Without nlsq that row is missing and says so.
"""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import subprocess
import tempfile
import time
import unittest.mock
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import jax
import numpy as np
import xpcs_model as model

import jaxkern as jk
from jaxkern.xpcs.fitting import passes
from jaxkern.xpcs.fitting.evaluation import Checkpoint

SIGMA = 0.02
# Where the fits begin: off the truth by some ten percent.
CONTRAST, OFFSET = 0.3, 1.0
PHYSICS = np.array([1300.0, -0.2, 20.0, 3e-4, 0.2, 2e-5, 2.0])
SMALL = 100  # frames of the fit whose values are compared with nlsq's
AGREE = 0.2  # of a standard error: nlsq stops where the cost changes by 1e-8
PATIENCE = 60  # nlsq is stopped after this multiple of our time

Row = tuple[str, str, str, str]


def write_problem(folder: Path, angles: int, frames: int) -> Path:
    """Write a file with data, sigma, start and bounds; return its path."""
    path = folder / f"{angles}x{frames}.npz"
    truth, data = model.simulate(angles, frames, SIGMA)
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    bounds = np.array([(0.0, 1.0)] * angles + [(0.5, 1.5)] * angles + list(flow.bounds))
    start = np.concatenate([np.full(angles, CONTRAST), np.full(angles, OFFSET), PHYSICS])
    np.savez(
        path, data=data, sigma=SIGMA, start=start, lower=bounds[:, 0], upper=bounds[:, 1],
        truth=truth,
    )  # fmt: skip
    return path


def process(case: str, path: Path, limit: float | None = None) -> dict[str, Any]:
    """Run a fit in a new process; return its report, with times since the start of the process."""
    start = time.monotonic()
    run: dict[str, Any] = harness.call(
        "xpcs_cases", case, str(path), limit=limit, JAXKERN_BACKEND="native"
    )
    return run | {name: run[name] - start for name in ("jax_imported", "loaded", "result")}


def median(runs: list[dict[str, Any]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def against_truth(run: dict[str, Any], path: Path) -> None:
    """End the benchmark if a fit does not succeed, or is not at the truth within its errors."""
    with np.load(path) as problem:
        off = np.abs(run["popt"] - problem["truth"]) / run["perr"]
    harness.within("a parameter", off.max() if run["success"] else np.inf, 5, "standard errors")


def row(name: str, value: float, bar: float, text: str, at_least: bool = False) -> Row:
    verdict = harness.at_least if at_least else harness.at_most
    return name, text, f"{bar:g}", verdict(value, bar)


def mebibytes(used: float, size: float) -> str:
    return f"{used / size:.2f} ({used / 2**20:.0f} MiB for {size / 2**20:.0f})"


def whole_fit(folder: Path, quick: bool) -> tuple[list[Row], dict[str, Any]]:
    """3 x 500^2, 13 parameters, process start to result, against nlsq."""
    path = write_problem(folder, 3, 500)
    name = "whole fit, 3 x 500^2, 13 parameters, process start to result"
    ours = [process("ours", path) for _ in range(3 if quick else 7)]
    against_truth(ours[0], path)
    seconds = median(ours, "result")
    record: dict[str, Any] = {"ours": ours}
    if importlib.util.find_spec("nlsq") is None:
        missing = f"ours {seconds:.2f} s; nlsq is not installed here, so that its time is missing"
        return [(f"{name}, against nlsq", missing, "30", "**missing**")], record
    small = write_problem(folder, 3, SMALL)
    pair = [process(case, small) for case in ("ours", "nlsq")]
    off = np.abs(np.subtract(pair[0]["popt"], pair[1]["popt"])) / pair[0]["perr"]
    harness.within("nlsq's fit", off.max(), AGREE, "standard errors")
    limit = PATIENCE * seconds
    try:
        record["nlsq"] = theirs = [process("nlsq", path, limit) for _ in range(1 if quick else 3)]
    except subprocess.TimeoutExpired:
        text = f"above {PATIENCE}: nlsq was stopped after {limit:.0f} s, ours took {seconds:.2f} s"
        return [(f"{name}, against nlsq", text, "30", "reached")], record
    slow = median(theirs, "result")
    text = f"{slow / seconds:.1f} times ({slow:.1f} s against {seconds:.2f} s)"
    return [row(f"{name}, against nlsq", slow / seconds, 30, text, at_least=True)], record


def large_fit(folder: Path, quick: bool) -> tuple[list[Row], dict[str, Any]]:
    """23 x 1001^2 = 23M points, 53 parameters: seconds of compute, and memory."""
    frames = 301 if quick else 1001
    path = write_problem(folder, 23, frames)
    runs = [process("ours", path) for _ in range(1 if quick else 3)]
    against_truth(runs[0], path)
    name = f"whole fit, 23 x {frames}^2, 53 parameters"
    compute, peak = median(runs, "compute"), median(runs, "peak_beyond_start")
    size = runs[0]["data_bytes"]
    watched = [process("memory", path) for _ in range(1 if quick else 5)]
    anonymous = median(watched, "anonymous_beyond_start")
    return [
        row(f"{name}, seconds of compute", compute, 15,
            f"{compute:.2f} ({runs[0]['nfev']} passes)"),
        row(f"{name}, anonymous memory beyond the imported libraries', data and compilation "
            "included, per size of the data", anonymous / size, 1.5, mebibytes(anonymous, size)),
        (f"{name}, resident memory beyond imported JAX: SciPy and the pages of libraries besides",
            mebibytes(peak, size), "", ""),
    ], {"runs": runs, "anonymous_beyond_start": anonymous}  # fmt: skip


def first_result(folder: Path, quick: bool) -> tuple[list[Row], dict[str, Any]]:
    """1.5M points in a new process, beyond importing jax: with loading the data and compiling."""
    path = write_problem(folder, 6, 500)
    runs = [process("ours", path) for _ in range(3 if quick else 9)]
    against_truth(runs[0], path)
    beyond = [run["result"] - run["jax_imported"] for run in runs]
    value = statistics.median(beyond)
    name = "first result, 6 x 500^2, new process, beyond importing jax, s"
    text = f"{value:.2f} ({min(beyond):.2f} to {max(beyond):.2f})"
    return [row(name, value, 2, text)], {"runs": runs}


@contextlib.contextmanager
def timed(owner: Any, name: str, seconds: list[float]) -> Iterator[None]:
    """Record the seconds of each call of ``owner.name``."""
    original = getattr(owner, name)

    def timed_call(*arguments: Any) -> Any:
        start = time.perf_counter()
        result = original(*arguments)
        seconds.append(time.perf_counter() - start)
        return result

    with unittest.mock.patch.object(owner, name, timed_call):
        yield


def checkpoints(folder: Path, quick: bool) -> tuple[list[Row], dict[str, Any]]:
    """Compare a fit in chunks with and without checkpoints, and with a fit in one piece."""
    angles, frames = (6, 1001) if quick else (23, 1001)
    with np.load(write_problem(folder, angles, frames)) as problem:
        data, start, lower, upper = (problem[k] for k in ("data", "start", "lower", "upper"))
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    results: dict[str, list[Any]] = {"plain": [], "off": [], "on": []}

    def arm(kind: str) -> Callable[[], None]:
        options = jk.xpcs.StreamingOptions(
            strategy="memory" if kind == "plain" else "stream", symmetric=True,
            enable_checkpoints=kind == "on", checkpoint_dir=folder,
        )  # fmt: skip

        def run() -> None:
            results[kind].append(
                jk.xpcs.fit(
                    flow, data, SIGMA, start[2 * angles :], start[:angles],
                    start[angles : 2 * angles], bounds=(lower, upper), streaming=options,
                    errors=jk.xpcs.ErrorOptions("independent"), progress=False,
                )
            )  # fmt: skip

        return run

    arms = {kind: arm(kind) for kind in results}
    seconds: list[float] = []
    with timed(Checkpoint, "_write", seconds):
        samples = harness.interleave(arms, rounds=3 if quick else 31, warmup=1)
    # Without checkpoints: the overhead of checks, retries and exclusions.
    guard = []
    for _ in range(3 if quick else 21):
        guarded: list[float] = []
        calls: list[float] = []
        kernel = passes.PassProgram
        with timed(passes.PassRunner, "_run", guarded), timed(kernel, "accumulate", calls):
            arms["off"]()
        guard.append((sum(guarded) - sum(calls)) / results["off"][-1].timings.compute)
    plain, off, on = (results[kind][-1] for kind in results)
    worst = max(np.abs((other.popt - plain.popt) / plain.perr).max() for other in (off, on))
    if worst > 1e-6 or not plain.nfev == off.nfev == on.nfev:
        raise SystemExit(f"the fits differ by {worst:.1e} standard errors, or in their passes")
    if not np.array_equal(off.popt, on.popt):
        raise SystemExit("checkpoints change the result")
    # Passes alone: strategy "memory" copies its data to the device once, which is not compared.
    per_pass = {
        kind: statistics.median(r.timings.compute / r.nfev for r in found)
        for kind, found in results.items()
    }
    pairs = zip(samples["on"].seconds, samples["off"].seconds, strict=True)
    ratios = [with_them / without - 1 for with_them, without in pairs]
    low, overhead, high = statistics.quantiles(ratios, n=4)
    chunked = per_pass["off"] / per_pass["plain"] - 1
    name = f"{angles} x {frames}^2 points in {off.n_batches // off.nfev} chunks"
    return [
        row(f"checkpoints, {name}: whole fit with them against without", overhead, 0.05,
            f"{overhead:+.1%} (quartiles {low:+.1%} to {high:+.1%}; {len(seconds)} saved in "
            f"{len(results['on'])} fits)"),
        row("saving a checkpoint, s", statistics.median(seconds), 2,
            f"{statistics.median(seconds):.4f} (longest {max(seconds):.4f})"),
        row(f"no checkpoints, {name}: checks, retries and exclusions, share of a fit",
            statistics.median(guard), 0.01, f"{statistics.median(guard):+.2%}"),
        (f"no checkpoints, {name}: a pass against one kernel call over all data",
            f"{chunked:+.1%} ({per_pass['off'] * 1e3:.1f} against "
            f"{per_pass['plain'] * 1e3:.1f} ms)", "", ""),
    ], {
        "fits": samples,
        "pass_seconds": per_pass,
        "save_seconds": seconds,
        "guard_share": guard,
    }  # fmt: skip


CASES = {
    "whole-fit": whole_fit,
    "large-fit": large_fit,
    "first-result": first_result,
    "checkpoints": checkpoints,
}


def main() -> None:
    only = {"choices": CASES, "action": "append", "help": "only these; no results are written"}
    arguments = harness.parse(__doc__, ("--case", only))
    rows, record = [], {}
    with tempfile.TemporaryDirectory(prefix="xpcs-fits-") as folder:
        for name in arguments.case or CASES:
            more, record[name] = CASES[name](Path(folder), arguments.quick)
            for line in more:
                print("  ".join(line), flush=True)
            rows += more
    text = harness.table(" | measured | bar | ", "lrrl", rows)
    record = {"rows": rows, "cases": record}
    title, quick = "Fits of two-time correlations", bool(arguments.quick or arguments.case)
    harness.write("xpcs-fits", title, text, record, ["scipy", "nlsq"], quick=quick)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    main()
