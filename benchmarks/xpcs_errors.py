"""How often 68% and 95% intervals of fits contain the true values, for data simulated from photons.

Speckle fields of a laminar flow at 7 angles are counted with Poisson statistics and correlated
(`jaxkern.xpcs.simulate_photons`, 200 frames); the correlations are fitted, 100 times for each
photon rate, and the results are compared with the true values in units of the errors: the
jackknife's, and those of independent noise. The figure is written to docs/images/xpcs-errors.png.

`--cases` fits other models, scalings, losses, numbers of frames and angles, and streamed data
instead, `--runs` times each, and writes the coverage of the jackknife's intervals.
"""

from __future__ import annotations

import statistics
from typing import Any

import harness
import numpy as np

import jaxkern as jk

FRAMES, PIXELS, MODES = 200, 600, 3
TRUTH = {"D0": 5000.0, "alpha": -0.3, "gamma_dot_t0": 1e-3, "beta": 0.1, "phi0": 3.0}
# Rates that change this slowly are nearly degenerate with offsets, so offsets are fixed.
HOLD = {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}
FLOW, REST = "laminar", "static"
# For each case: model, frames, angles, photons, and arguments of `fit`.
CASES: dict[str, tuple[str, int, int, float, dict[str, Any]]] = {
    "laminar": (FLOW, 120, 7, 2.0, {}),
    "laminar, constant scaling": (FLOW, 120, 7, 2.0, {"scaling": "constant"}),
    "laminar, fixed scaling": (FLOW, 120, 7, 2.0, {"scaling": "fixed"}),
    "laminar, soft_l1": (FLOW, 120, 7, 2.0, {"solver": jk.xpcs.SolverOptions(loss="soft_l1")}),
    "laminar, 0.1 photons": (FLOW, 120, 7, 0.1, {}),
    "laminar, streamed": (
        FLOW, 120, 7, 2.0, {"streaming": jk.xpcs.StreamingOptions(strategy="stream")},
    ),
    "laminar, 40 frames": (FLOW, 40, 7, 2.0, {}),
    "static, one angle": (REST, 120, 1, 2.0, {}),
    "static, 24 frames": (REST, 24, 7, 2.0, {}),
    "static, cauchy": (REST, 120, 3, 2.0, {"solver": jk.xpcs.SolverOptions(loss="cauchy")}),
    "static isotropic": ("isotropic", 120, 7, 2.0, {}),
    "two components": ("components", 120, 5, 2.0, {}),
}  # fmt: skip
RATES = (0.1, 0.5, 2.0, 20.0)
ERRORS = {"jackknife": "#d1495b", "independent": "#8d99ae"}
N_PHYSICS = {"laminar": 5, "static": 1, "isotropic": 1, "components": 5}  # fitted
MEDIANS = ("nfev", "error_passes", "reduced_chi2")


def problem(kind: str, frames: int, angles: int) -> tuple[Any, dict[str, float], list[str]]:
    """Return a model, its true parameters, and the names of those to hold.

    The correlation falls to 1/e within a tenth of the run.
    """
    t = 1.0 * np.arange(frames)
    geometry = jk.xpcs.Geometry(q=0.0054, gap=2e5, dt=1.0, t=t, phi=np.linspace(0.0, 90.0, angles))
    if kind == "laminar":
        return jk.xpcs.LaminarFlow(geometry), {**TRUTH, **HOLD}, [*HOLD]
    rate = 10 / (geometry.q**2 * frames)
    truth = {"D0": rate, "alpha": 0.0, "D_offset": 0.0}
    if kind != "components":
        name = {"static": "Static", "isotropic": "StaticIsotropic"}[kind]
        return getattr(jk.xpcs, name)(geometry), truth, ["alpha", "D_offset"]
    model = jk.xpcs.TwoComponent(geometry)
    speed = 2 * np.pi * 5 / (geometry.q * frames)
    values = [rate, 0.0, 0.0, rate / 2, 0.0, 0.0, speed, 0.0, 0.0, 0.5, 0.0, 0.0, 0.0, 5.0]
    fitted = {0, 3, 6, 9, 13}
    held = [name for k, name in enumerate(model.parameter_names) if k not in fitted]
    return model, dict(zip(model.parameter_names, values, strict=True)), held


def pulls(
    photons: float,
    runs: int,
    seed: int = 0,
    kind: str = "laminar",
    frames: int = FRAMES,
    angles: int = 7,
    **options: Any,
) -> dict[str, Any]:
    """Return (fit - truth) / error [runs, parameters] by kind of error, and `MEDIANS`."""
    model, values, hold = problem(kind, frames, angles)
    physics = np.array([values[name] for name in model.parameter_names])
    results: dict[str, Any] = {name: [] for name in (*ERRORS, *MEDIANS, "methods")}
    if options.get("scaling") == "fixed":
        options |= {"contrast0": 1 / MODES, "offset0": 1.0}
    for run in range(runs):
        data = jk.xpcs.simulate_photons(
            model, physics, photons=photons, pixels=PIXELS, modes=MODES, seed=seed + run
        )
        start = [*np.where(physics == 0, 0, physics * 1.1)]
        fit = jk.xpcs.fit(model, data, p0=start, hold=hold, progress=False, **options)
        scales = (len(fit.popt) - len(physics)) // 2
        truth = np.concatenate([np.full(scales, 1 / MODES), np.ones(scales), physics])
        free = np.array([name not in fit.held for name in fit.names])
        for error_kind, error in (("jackknife", fit.perr), ("independent", fit.perr_independent)):
            results[error_kind].append(((fit.popt - truth)[free] / error[free]).tolist())
        for name in MEDIANS:
            results[name].append(getattr(fit, name))
        results["methods"].append(fit.errors)
    return results


def coverage(values: Any, errors: float = 1.0) -> float:
    """Return the fraction of pulls within a number of standard errors."""
    return float(np.mean(np.abs(values) < errors))


def cases(bench: harness.Benchmark) -> None:
    """Write the coverage of all `CASES`."""
    runs, rows, results = 3 if bench.quick else bench.options.runs, [], {}
    for label in harness.progress(CASES, "cases"):
        kind, frames, angles, photons, options = CASES[label]
        options = {"search": "local"} | options  # the start is good
        found = pulls(photons, runs, 0, kind, frames, angles, **options)
        results[label] = found
        physics = [jackknife[-N_PHYSICS[kind] :] for jackknife in found["jackknife"]]
        columns = [
            f"{coverage(values, errors):.0%}"
            for values in (physics, found["jackknife"])
            for errors in (1.0, 1.96)
        ]
        rows.append([label, *columns, statistics.mode(found["methods"])])
    header = (
        "case | 68%, physics | 95%, physics | 68%, with contrast and offset | 95% | errors of most"
    )
    lines = harness.table(header, "lrrrrl", rows)
    bench.write(lines, ["scipy"], f"{runs} runs a case.", "xpcs-error-cases", results=results)


def figure(results: dict[float, Any]) -> Any:
    """Return a figure of the coverage by photon rate, and the pulls at the highest rate."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(9, 3.4), layout="constrained")
    left, right = chart.subplots(1, 2)
    left.axhspan(60, 76, color="#eeeeee")
    left.axhline(68.3, color="#999999", linewidth=0.8)
    edges = np.linspace(-6, 6, 49)
    for kind, color in ERRORS.items():
        covered = [100 * coverage(pulls[kind]) for pulls in results.values()]
        left.plot(list(results), covered, "o-", color=color, label=kind)
        values = np.clip(np.ravel(results[max(results)][kind]), -5.99, 5.99)
        right.hist(values, edges, density=True, color=color, alpha=0.75, label=kind)
    left.set(xscale="log", xlabel="photons a pixel and frame", ylim=(0, 100))
    left.set_title("68% intervals that contain the true value, %", loc="left", fontsize=10)
    left.set_xticks(list(results), [f"{rate:g}" for rate in results])
    left.minorticks_off()
    left.legend(frameon=False)
    x = np.linspace(-6, 6, 200)
    right.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color="black", linewidth=0.8)
    right.set(xlabel="(fit - truth) / error, clipped to 6", yticks=[])
    right.set_title(f"{max(results):g} photons a pixel and frame", loc="left", fontsize=10)
    return chart


def main() -> None:
    options: dict[str, dict[str, Any]] = {
        "--cases": {"action": "store_true", "help": "other models, scalings and losses"},
        "--runs": {"type": int, "default": 1000, "help": "of each case"},
    }
    bench = harness.Benchmark(__doc__, options, rounds=(100, 5))
    if bench.options.cases:
        return cases(bench)
    results = {rate: pulls(rate, bench.rounds) for rate in harness.progress(RATES, "photon rates")}
    rows = []
    for rate, values in results.items():
        fit_passes, error_passes, chi2 = (statistics.median(values[name]) for name in MEDIANS)
        covered = [f"{coverage(values[kind]):.0%}" for kind in ERRORS]
        spread, passes = (
            f"{np.std(values['independent']):.1f}",
            f"{fit_passes:g} + {error_passes:g}",
        )
        rows.append([f"{rate:g}", *covered, spread, f"{chi2:.2f}", passes])
    header = (
        "photons a pixel and frame | jackknife | independent | spread of pulls, independent "
        "| reduced chi2 | passes of the fit + for errors"
    )
    lines = harness.table(header, "rrrrrr", rows)
    note = f"{bench.rounds} fits of 7 x {FRAMES}^2 points a row."
    if bench.write(lines, ["scipy"], note, results=results):
        harness.save_figure(harness.IMAGES / "xpcs-errors.png", figure(results))


if __name__ == "__main__":
    main()
