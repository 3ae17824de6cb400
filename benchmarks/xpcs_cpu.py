"""Dependence of fits of two-time correlations on the CPU.

Each configuration limits the instructions of OpenBLAS, XLA or jaxkern in a separate process, and
is compared with the machine's best instructions: three fits from a good start, and 24 fits of one
data set from starts drawn within the bounds.
"""

from __future__ import annotations

from typing import Any

import harness
import numpy as np

import jaxkern as jk

CONFIGURATIONS = [
    "default", "OPENBLAS_CORETYPE=Haswell", "OPENBLAS_CORETYPE=SkylakeX", "OPENBLAS_CORETYPE=Zen",
    "XLA_FLAGS=--xla_cpu_max_isa=AVX2", "XLA_FLAGS=--xla_cpu_max_isa=SSE4_2", "JAXKERN_SIMD=v2",
    "JAXKERN_SIMD=v3",
]  # fmt: skip
TRUTH = np.array([20000.0, -1.0, 5000.0, 5e-3, -1.0, 1e-3, 3.0])
START = np.array([15000.0, -0.7, 6000.0, 4e-3, -0.8, 1.5e-3, 1.0])


def simulate(seed: int, noise: float) -> tuple[jk.xpcs.Model, np.ndarray]:
    """Return a model of 3 angles and 40 frames, and symmetric data with white noise."""
    geometry = jk.xpcs.Geometry(0.0054, 2e5, 1.0, np.arange(40.0), [0.0, 40.0, 85.0])
    model = jk.xpcs.LaminarFlow(geometry)
    clean = np.asarray(jk.xpcs.g2(model, TRUTH, [0.25, 0.3, 0.35], [1.0, 1.01, 1.02]), float)
    error = np.triu(noise * np.random.default_rng(seed).normal(size=clean.shape), 1)
    return model, clean + error + np.swapaxes(error, 1, 2)


def fits() -> tuple[list[Any], list[Any]]:
    """Return the fits from a good start and those from drawn starts, in this process."""
    good, drawn = [], []
    for seed, noise in ((61, 0.0085), (3, 0.004), (21, 0.02)):
        model, data = simulate(seed, noise)
        r = jk.xpcs.fit(model, data, p0=START, progress=False)
        good.append({"popt": r.popt, "perr": r.perr, "cost": r.cost})
    model, data = simulate(61, 0.0085)
    low, high = np.transpose(model.bounds)
    for seed in range(24):
        start = low + (high - low) * np.random.default_rng(seed).random(len(low))
        errors = jk.xpcs.ErrorOptions("independent")
        r = jk.xpcs.fit(model, data, p0=start, errors=errors, search="local", progress=False)
        drawn.append({"cost": r.cost, "success": r.success})
    return good, drawn


def row(name: str, run: Any, base: Any) -> list[str]:
    """Return the differences of one configuration from the default one."""
    pairs, ends = (list(zip(*fits, strict=True)) for fits in zip(run, base, strict=True))
    shift = max(np.max(np.abs(a["popt"] - b["popt"]) / b["perr"]) for a, b in pairs)
    cost = max(abs(a["cost"] / b["cost"] - 1) for a, b in pairs)
    moved = sum(abs(a["cost"] / b["cost"] - 1) > 1e-3 for a, b in ends)
    best = min(b["cost"] for _, b in ends)
    wrong = sum(a["success"] and a["cost"] > 1.4 * best for a, _ in ends)
    return [f"`{name}`", f"{shift:.0e}", f"{cost:.0e}", f"{moved} of {len(ends)}", str(wrong)]


def main() -> None:
    bench = harness.Benchmark(__doc__)
    runs = {}
    for name in harness.progress(CONFIGURATIONS[:: 7 if bench.quick else 1], "configurations"):
        variable, _, value = name.partition("=")
        runs[name] = harness.call("xpcs_cpu", "fits", **({variable: value} if value else {}))
    rows = [row(name, run, runs["default"]) for name, run in runs.items()]
    header = (
        "configuration | parameters, standard errors | cost, relative | other minimum "
        "| wrong minimum with success"
    )
    note = "Each line is a process with limited instructions."
    bench.write(harness.table(header, "lllll", rows), ["scipy"], note, runs=runs)


if __name__ == "__main__":
    main()
