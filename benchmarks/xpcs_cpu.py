"""Dependence of fits of two-time correlations on the CPU.

Each configuration limits the instructions of OpenBLAS, XLA or jaxkern in a separate process, and
is compared with the machine's best instructions: three fits from a good start, and 24 fits of one
data set from starts drawn within the bounds.

    python benchmarks/xpcs_cpu.py [--output FILE.md]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import jaxkern as jk

CONFIGURATIONS: dict[str, dict[str, str]] = {
    "default": {},
    "OPENBLAS_CORETYPE=Haswell": {"OPENBLAS_CORETYPE": "Haswell"},
    "OPENBLAS_CORETYPE=SkylakeX": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "OPENBLAS_CORETYPE=Zen": {"OPENBLAS_CORETYPE": "Zen"},
    "XLA_FLAGS=--xla_cpu_max_isa=AVX2": {"XLA_FLAGS": "--xla_cpu_max_isa=AVX2"},
    "XLA_FLAGS=--xla_cpu_max_isa=SSE4_2": {"XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
    "JAXKERN_SIMD=v2": {"JAXKERN_SIMD": "v2"},
    "JAXKERN_SIMD=v3": {"JAXKERN_SIMD": "v3"},
}
TRUTH = np.array([20000.0, -1.0, 5000.0, 5e-3, -1.0, 1e-3, 3.0])
START = np.array([15000.0, -0.7, 6000.0, 4e-3, -0.8, 1.5e-3, 1.0])
STARTS = 24


def simulate(seed: int, noise: float) -> tuple[jk.xpcs.Model, np.ndarray]:
    """Return a model of 3 angles and 40 frames, and symmetric data with white noise."""
    geometry = jk.xpcs.Geometry(0.0054, 2e5, 1.0, np.arange(40.0), [0.0, 40.0, 85.0])
    model = jk.xpcs.LaminarFlow(geometry)
    clean = np.asarray(jk.xpcs.g2(model, TRUTH, [0.25, 0.3, 0.35], [1.0, 1.01, 1.02]), float)
    error = np.triu(noise * np.random.default_rng(seed).normal(size=clean.shape), 1)
    return model, clean + error + np.swapaxes(error, 1, 2)


def fits() -> dict[str, Any]:
    """Return results of the fits in this process."""
    good, drawn = [], []
    for seed, noise in ((61, 0.0085), (3, 0.004), (21, 0.02)):
        model, data = simulate(seed, noise)
        r = jk.xpcs.fit(model, data, p0=START, progress=False)
        good.append({"popt": r.popt.tolist(), "perr": r.perr.tolist(), "cost": r.cost})
    model, data = simulate(61, 0.0085)
    low, high = np.transpose(model.bounds)
    for seed in range(STARTS):
        start = low + (high - low) * np.random.default_rng(seed).random(len(low))
        errors = jk.xpcs.ErrorOptions("independent")
        r = jk.xpcs.fit(model, data, p0=start, errors=errors, progress=False)
        drawn.append({"cost": r.cost, "success": r.success})
    return {"good": good, "drawn": drawn}


def row(name: str, run: dict[str, Any], base: dict[str, Any]) -> str:
    """Return a line of the table."""
    pairs = list(zip(run["good"], base["good"], strict=True))
    shift = max(
        float(np.max(np.abs(np.subtract(a["popt"], b["popt"])) / b["perr"])) for a, b in pairs
    )
    cost = max(abs(a["cost"] / b["cost"] - 1) for a, b in pairs)
    ends = list(zip(run["drawn"], base["drawn"], strict=True))
    moved = sum(abs(a["cost"] / b["cost"] - 1) > 1e-3 for a, b in ends)
    best = min(b["cost"] for _, b in ends)
    wrong = sum(a["success"] and a["cost"] > 1.4 * best for a, _ in ends)
    return f"| `{name}` | {shift:.0e} | {cost:.0e} | {moved} of {len(ends)} | {wrong} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="also write the table to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(fits()))
        return
    runs = {}
    for name, variables in CONFIGURATIONS.items():
        done = subprocess.run(
            [sys.executable, "-W", "ignore", __file__, "--child"],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            check=True,
        )
        runs[name] = json.loads(done.stdout.splitlines()[-1])
    table = "\n".join(
        [
            "| configuration | parameters, standard errors | cost, relative | other minimum | "
            "wrong minimum with success |",
            "|---|---|---|---|---|",
            *(row(name, run, runs["default"]) for name, run in runs.items()),
        ]
    )
    print(table)
    if arguments.output is not None:
        arguments.output.write_text(table + "\n")


if __name__ == "__main__":
    main()
