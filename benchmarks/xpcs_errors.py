"""How often 68% intervals of fits contain the true values, for data simulated from photons.

Speckle fields of a laminar flow at 7 angles are counted with Poisson statistics and correlated
(`jaxkern.xpcs.simulate_photons`, 200 frames); the correlations are fitted, 100 times for each
photon rate, and the results are compared with the true values in units of the errors: the
jackknife's, and those of independent noise. The figure is written to docs/images/xpcs-errors.png.
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
RATES = (0.1, 0.5, 2.0, 20.0)
ERRORS = {"jackknife": "#d1495b", "independent": "#8d99ae"}
MEDIANS = ("nfev", "error_passes", "reduced_chi2")


def pulls(photons: float, runs: int, seed: int = 0) -> dict[str, Any]:
    """Return (fit - truth) / error [runs, parameters] by kind of error, and `MEDIANS`."""
    phi, t = np.linspace(0.0, 90.0, 7), 1.0 * np.arange(FRAMES)
    model = jk.xpcs.LaminarFlow(jk.xpcs.Geometry(q=0.0054, gap=2e5, dt=1.0, t=t, phi=phi))
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
        for name in MEDIANS:
            results[name].append(getattr(fit, name))
    return results


def coverage(values: Any) -> float:
    """Return the fraction of pulls within one standard error."""
    return float(np.mean(np.abs(values) < 1.0))


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
    bench = harness.Benchmark(__doc__, rounds=(100, 5))
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
