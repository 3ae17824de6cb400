"""Fits of g2(tau): all curves in one program, and SciPy's curve_fit one by one.

Stretched exponentials with noise. SciPy fits some of the curves, from the same kind of estimated
start, and its time is multiplied by their share. A second table has the share of intervals that
contain the truth, for fits of simulated photons.
"""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
from scipy.optimize import curve_fit

import jaxkern as jk

CURVES, DELAYS, SCIPY = 10_000, 60, 500
QUICK = 600, 60, 20
NAMES = ("rate", "stretch", "contrast", "baseline")
# The largest relative difference of parameters where both converge.
LIMIT = 1e-6
BAR = 20.0
# Exponential decays in 1/frame, and (pixels, photons a pixel and frame) of simulated runs.
RATES = (0.005, 0.02, 0.075)
DETECTORS = ((320, 2.0), (640, 0.2))
FRAMES, MODES = 2000, 3
KINDS: dict[str, dict[str, int]] = {"groups": {"groups": 32}, "parts": {"parts": 10}, "none": {}}


def stretched(t: Any, rate: Any, stretch: Any, contrast: Any, baseline: Any) -> Any:
    return baseline + contrast * np.exp(-2.0 * (rate * t) ** stretch)


def data(curves: int, delays: int) -> tuple[Any, Any, Any]:
    """Return tau, and g2 and its errors [delays, curves]."""
    rng = np.random.default_rng(0)
    tau = np.geomspace(1e-4, 1.0, delays)
    rate, stretch = 10 ** rng.uniform(0.7, 2.7, curves), rng.uniform(0.7, 1.5, curves)
    clean = stretched(tau[:, None], rate, stretch, rng.uniform(0.1, 0.3, curves), 1.0)
    return tau, clean + 0.002 * rng.normal(size=clean.shape), np.full(clean.shape, 0.002)


def with_scipy(tau: Any, g2: Any, errors: Any) -> Any:
    """Return the parameters [curves, 4], NaN without convergence."""
    fitted = np.full((g2.shape[1], 4), np.nan)
    tolerances = dict.fromkeys(("xtol", "ftol", "gtol"), 1e-12)
    for k, curve in enumerate(g2.T):
        baseline, contrast = curve[-6:].mean(), curve[:3].mean() - curve[-6:].mean()
        at = np.argmax(curve < baseline + contrast / np.e)
        start = [0.5 / tau[at], 1.0, contrast, baseline]
        try:
            with np.errstate(all="ignore"):
                fitted[k], _ = curve_fit(stretched, tau, curve, start, errors[:, k], **tolerances)
        except RuntimeError:
            continue
    return fitted


def coverage(runs: int) -> list[list[object]]:
    """Return rows of the shares of 68% and 95% intervals that contain the truth."""
    truth = {"rate": np.array(RATES), "contrast": 1 / MODES, "baseline": 1.0}
    inside: dict[Any, list[Any]] = {}
    seeds = [(detector, run) for detector in DETECTORS for run in range(runs)]
    for (pixels, photons), run in harness.progress(seeds, "coverage"):
        frames = jk.xpcs.simulate_frames(
            RATES, n_frames=FRAMES, pixels=pixels, photons=photons, modes=MODES, seed=run,
            progress=False,
        )  # fmt: skip
        for kind, options in KINDS.items():
            r = jk.xpcs.multitau(frames, frames.qmap, frame_time=1.0, progress=False, **options)
            fit = r.fit_g2("exponential")
            for name, value in truth.items():
                pull = np.abs(fit.params[name] - value) / fit.errors[name]
                inside.setdefault((pixels, photons, kind, name), []).append(pull)
    rows: list[list[object]] = []
    for (pixels, photons, kind, name), pulls in inside.items():
        shares = [np.mean(np.array(pulls) < limit, axis=0) for limit in (1.0, 1.96)]
        cells = (f"{share.min():.0%} to {share.max():.0%}" for share in shares)
        rows.append([f"{pixels} pixels, {photons:g} photons", kind, name, *cells])
    return rows


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(5, 2))
    curves, delays, some = QUICK if bench.quick else (CURVES, DELAYS, SCIPY)
    tau, g2, errors = data(curves, delays)
    fit = jk.xpcs.fit_g2(tau, g2, errors, model="stretched")
    ours = np.stack([fit.params[name][:some] for name in NAMES], axis=1)
    theirs = with_scipy(tau, g2[:, :some], errors[:, :some])
    both = fit.success[:some] & np.isfinite(theirs).all(axis=1)
    # Some of SciPy's curves end in another minimum, with a larger sum of squares.
    residuals = (stretched(tau[:, None], *theirs.T) - g2[:, :some]) / errors[:, :some]
    both &= (residuals**2).sum(axis=0) < fit.chi2[:some] * (1 + 1e-6)
    difference = float(np.abs(ours[both] / theirs[both] - 1).max())
    harness.within("parameters", difference, LIMIT, "of the value")
    arms = {
        "jaxkern": lambda: jk.xpcs.fit_g2(tau, g2, errors, model="stretched"),
        "scipy": lambda: with_scipy(tau, g2[:, :some], errors[:, :some]),
    }
    samples = harness.interleave(arms, bench.rounds, warmup=1, turn_seconds=0)
    ours_s, scipy_s = (samples[name].median for name in arms)
    scipy_s *= curves / some
    ratio = scipy_s / ours_s
    header = "curves of delays | jaxkern, s | curve_fit, s | ratio | bar | "
    cells = [f"{curves:,} of {delays}", f"{ours_s:.3g}", f"{scipy_s:.3g}", f"{ratio:.0f}"]
    lines = harness.table(header, "lrrrrl", [[*cells, f"{BAR:g}", harness.at_least(ratio, BAR)]])
    lines += [
        "",
        f"Of {some} curves {both.sum()} converge with both to the same minimum; their parameters "
        f"differ by at most {difference:.1e}.",
    ]
    runs = 10 if bench.quick else 200
    header = "data | errors | parameter | in 68% intervals | in 95% intervals"
    lines += [
        "",
        f"{runs} runs of {FRAMES:,} frames and {len(RATES)} decays, smallest and largest:",
    ]
    lines += ["", *harness.table(header, "lllll", coverage(runs))]
    note = "Medians, without compilation. curve_fit: its time for some curves, multiplied."
    bench.write(lines, packages=("scipy",), note=note)


if __name__ == "__main__":
    main()
