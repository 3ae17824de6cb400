"""How often the intervals of fits hold the truth, for data that are simulated from photons.

    python benchmarks/xpcs_errors.py            # 100 runs a rate; writes results and the figure
    python benchmarks/xpcs_errors.py --runs 5   # small, and writes nothing

Speckle fields of a laminar flow at 7 angles are counted with Poisson statistics and correlated
(`jaxkern.xpcs.simulate_photons`, 200 frames); the correlations are fitted, and what is found is
compared with the truth in units of the errors: the jackknife's, and those of independent noise.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import numpy as np

FRAMES, PIXELS, MODES = 200, 600, 3
PHI = np.linspace(0.0, 90.0, 7)
TRUTH = {"D0": 5000.0, "alpha": -0.3, "gamma_dot_t0": 1e-3, "beta": 0.1, "phi0": 3.0}
# Rates that change this slowly are nearly degenerate with offsets, so offsets are fixed.
HOLD = {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}
RATES = (0.1, 0.5, 2.0, 20.0)
FIGURE = Path(__file__).parents[1] / "docs" / "images" / "xpcs-errors.png"
ERRORS = ("jackknife", "independent")


def pulls(photons: float, runs: int, seed: int = 0) -> dict[str, Any]:
    """(found - truth) / error [runs, parameters] by kind of error, and what the fits took."""
    import jaxkern as jk

    t = 1.0 * np.arange(FRAMES)
    geometry = jk.xpcs.Geometry(q=0.0054, gap=2e5, dt=1.0, t=t, phi=PHI)
    model = jk.xpcs.LaminarFlow(geometry)
    physics = np.array([{**TRUTH, **HOLD}[name] for name in model.parameter_names])
    truth = np.concatenate([np.full(7, 1 / MODES), np.ones(7), physics])
    found: dict[str, Any] = {kind: [] for kind in ERRORS}
    found |= {"passes": [], "error_passes": [], "reduced_chi2": [], "inflation": []}
    for run in range(runs):
        data = jk.xpcs.simulate_photons(
            model, physics, photons=photons, pixels=PIXELS, modes=MODES, seed=seed + run
        )
        fit = jk.xpcs.fit(model, data, p0=physics * 1.1, hold=list(HOLD), progress=False)
        free = np.array([name not in HOLD for name in fit.names])
        for kind, error in (("jackknife", fit.perr), ("independent", fit.perr_independent)):
            found[kind].append(((fit.popt - truth)[free] / error[free]).tolist())
        found["passes"].append(fit.nfev)
        found["error_passes"].append(fit.error_passes)
        found["reduced_chi2"].append(fit.reduced_chi2)
        found["inflation"].append(fit.inflation)
    found["names"] = [name for name, is_free in zip(fit.names, free, strict=True) if is_free]
    return found


def coverage(values: Any) -> float:
    """The part of the pulls within one standard error."""
    return float(np.mean(np.abs(values) < 1.0))


def figure(path: Path, found: dict[str, Any]) -> None:
    """Coverage by photon rate, and the pulls at the highest rate, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chart, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    colors = {"jackknife": "#d1495b", "independent": "#8d99ae"}
    rates = [float(rate) for rate in found]
    left.axhspan(60, 76, color="#eeeeee")
    left.axhline(68.3, color="#999999", linewidth=0.8)
    for kind in ERRORS:
        left.plot(
            rates, [100 * coverage(found[rate][kind]) for rate in found], "o-",
            color=colors[kind], label=kind,
        )  # fmt: skip
    left.set(xscale="log", xlabel="photons a pixel and frame", ylim=(0, 100))
    left.set_title("68% intervals that hold the truth, %", loc="left", fontsize=10)
    left.set_xticks(rates, [f"{rate:g}" for rate in rates])
    left.minorticks_off()
    left.legend(frameon=False)
    last = list(found)[-1]
    edges = np.linspace(-6, 6, 49)
    for kind in reversed(ERRORS):
        values = np.clip(np.ravel(found[last][kind]), -5.99, 5.99)
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


def summary(values: dict[str, Any]) -> dict[str, Any]:
    """Coverage, spread of the pulls of each parameter, and medians."""
    medians = ("passes", "error_passes", "reduced_chi2", "inflation")
    return {
        **{f"coverage, {kind}": coverage(values[kind]) for kind in ERRORS},
        **{
            f"spread of pulls, {kind}": dict(
                zip(values["names"], np.std(values[kind], axis=0).round(3).tolist(), strict=True)
            )
            for kind in ERRORS
        },
        **{f"{name}, median": round(statistics.median(values[name]), 4) for name in medians},
    }


def table(found: dict[str, Any]) -> list[str]:
    lines = [
        "| photons a pixel and frame | jackknife | independent | spread of pulls, independent "
        "| reduced chi2 | passes of the fit + for errors |",
        "|--:|--:|--:|--:|--:|--:|",
    ]
    for rate, values in found.items():
        passes = statistics.median(values["passes"]), statistics.median(values["error_passes"])
        lines.append(
            f"| {float(rate):g} | {coverage(values['jackknife']):.0%} "
            f"| {coverage(values['independent']):.0%} | {np.std(values['independent']):.1f} "
            f"| {statistics.median(values['reduced_chi2']):.2f} "
            f"| {passes[0]:g} + {passes[1]:g} |"
        )
    return lines


def main() -> None:
    import harness

    chosen = harness.parse(
        __doc__,
        (
            "--runs",
            {
                "type": int,
                "default": 100,
                "help": "runs per rate; results are written for at least 100",
            },
        ),
    )
    if chosen.quick:
        chosen.runs = 5
    found = {
        f"{rate:g}": pulls(rate, chosen.runs) for rate in harness.progress(RATES, "photon rates")
    }
    lines = table(found)
    record = {
        "runs": chosen.runs,
        "frames": FRAMES,
        "pixels": PIXELS,
        "modes": MODES,
        "truth": {**TRUTH, **HOLD},
        "found": {rate: summary(values) for rate, values in found.items()},
    }
    title = f"68% intervals that hold the truth: {chosen.runs} fits of 7 x {FRAMES}^2 a row"
    text, quick = "\n".join(lines), chosen.runs < 100
    if harness.write("xpcs-errors", title, text, record, ["scipy"], note="", quick=quick):
        figure(FIGURE, found)
        print(f"wrote {FIGURE}")


if __name__ == "__main__":
    main()
