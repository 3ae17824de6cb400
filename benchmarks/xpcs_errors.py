"""How often the intervals of fits hold the truth, for data that are simulated from photons.

    python benchmarks/xpcs_errors.py            # 100 runs a rate; writes results and the figure
    python benchmarks/xpcs_errors.py --runs 5   # small, and writes nothing

Speckle fields of a laminar flow at 7 angles are counted with Poisson statistics and correlated
(`jaxkern.xpcs.simulate_photons`, 200 frames); the correlations are fitted, and the results are
compared with the truth in units of the errors: the jackknife's, and those of independent noise.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import harness
import numpy as np

import jaxkern as jk

FRAMES, PIXELS, MODES = 200, 600, 3
PHI = np.linspace(0.0, 90.0, 7)
TRUTH = {"D0": 5000.0, "alpha": -0.3, "gamma_dot_t0": 1e-3, "beta": 0.1, "phi0": 3.0}
# Rates that change this slowly are nearly degenerate with offsets, so offsets are fixed.
HOLD = {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}
RATES = (0.1, 0.5, 2.0, 20.0)
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "xpcs-errors.png"
ERRORS = ("jackknife", "independent")
MEDIANS = ("passes", "error_passes", "reduced_chi2")


def pulls(photons: float, runs: int, seed: int = 0) -> dict[str, Any]:
    """Return (fit - truth) / error [runs, parameters] by kind of error, and `MEDIANS`."""
    t = 1.0 * np.arange(FRAMES)
    geometry = jk.xpcs.Geometry(q=0.0054, gap=2e5, dt=1.0, t=t, phi=PHI)
    model = jk.xpcs.LaminarFlow(geometry)
    physics = np.array([{**TRUTH, **HOLD}[name] for name in model.parameter_names])
    truth = np.concatenate([np.full(7, 1 / MODES), np.ones(7), physics])
    results: dict[str, Any] = {name: [] for name in (*ERRORS, *MEDIANS)}
    for run in range(runs):
        data = jk.xpcs.simulate_photons(
            model, physics, photons=photons, pixels=PIXELS, modes=MODES, seed=seed + run
        )
        fit = jk.xpcs.fit(model, data, p0=physics * 1.1, hold=list(HOLD), progress=False)
        free = np.array([name not in HOLD for name in fit.names])
        for kind, error in (("jackknife", fit.perr), ("independent", fit.perr_independent)):
            results[kind].append(((fit.popt - truth)[free] / error[free]).tolist())
        for name, value in zip(
            MEDIANS, (fit.nfev, fit.error_passes, fit.reduced_chi2), strict=True
        ):
            results[name].append(value)
    return results


def coverage(values: Any) -> float:
    """The part of the pulls within one standard error."""
    return float(np.mean(np.abs(values) < 1.0))


def figure(path: Path, results: dict[str, Any]) -> None:
    """Coverage by photon rate, and the pulls at the highest rate, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chart, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    colors = {"jackknife": "#d1495b", "independent": "#8d99ae"}
    rates = [float(rate) for rate in results]
    left.axhspan(60, 76, color="#eeeeee")
    left.axhline(68.3, color="#999999", linewidth=0.8)
    for kind in ERRORS:
        left.plot(
            rates, [100 * coverage(results[rate][kind]) for rate in results], "o-",
            color=colors[kind], label=kind,
        )  # fmt: skip
    left.set(xscale="log", xlabel="photons a pixel and frame", ylim=(0, 100))
    left.set_title("68% intervals that hold the truth, %", loc="left", fontsize=10)
    left.set_xticks(rates, [f"{rate:g}" for rate in rates])
    left.minorticks_off()
    left.legend(frameon=False)
    last = list(results)[-1]
    edges = np.linspace(-6, 6, 49)
    for kind in reversed(ERRORS):
        values = np.clip(np.ravel(results[last][kind]), -5.99, 5.99)
        right.hist(values, edges, density=True, color=colors[kind], alpha=0.75, label=kind)
    x = np.linspace(-6, 6, 200)
    right.plot(x, np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi), color="black", linewidth=0.8)
    right.set(xlabel="(fit - truth) / error, clipped to 6", yticks=[])
    right.set_title(f"{float(last):g} photons a pixel and frame", loc="left", fontsize=10)
    for axes in (left, right):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    chart.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, dpi=110)
    plt.close(chart)


def table(results: dict[str, Any]) -> list[str]:
    rows = []
    for rate, values in results.items():
        median = {name: statistics.median(values[name]) for name in MEDIANS}
        covered = [f"{coverage(values[kind]):.0%}" for kind in ERRORS]
        spread, chi2 = f"{np.std(values['independent']):.1f}", f"{median['reduced_chi2']:.2f}"
        passes = f"{median['passes']:g} + {median['error_passes']:g}"
        rows.append([rate, *covered, spread, chi2, passes])
    header = (
        "photons a pixel and frame | jackknife | independent | spread of pulls, independent "
        "| reduced chi2 | passes of the fit + for errors"
    )
    return harness.table(header, "rrrrrr", rows)


def main() -> None:
    runs = "runs per rate; results are written for at least 100"
    options = harness.parse(__doc__, ("--runs", {"type": int, "default": 100, "help": runs}))
    count = 5 if options.quick else options.runs
    rates = harness.progress(RATES, "photon rates")
    results = {f"{rate:g}": pulls(rate, count) for rate in rates}
    title = f"68% intervals that hold the truth: {count} fits of 7 x {FRAMES}^2 a row"
    record = {"frames": FRAMES, "pixels": PIXELS, "modes": MODES, "results": results}
    lines, quick = table(results), count < 100
    if harness.write("xpcs-errors", title, lines, record, ["scipy"], note="", quick=quick):
        figure(FIGURE, results)
        print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
