"""Diffusion coefficient from detector frames: g2 of each q ring, fits of g2, D from the rates.

    python examples/xpcs_g2.py --plot docs/images/xpcs-g2.png    # needs jaxkern-native[xpcs]

The frames are simulated for particles with a known D. Prints the rates and D next to the
true values.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy.optimize import curve_fit

import jaxkern as jk

D, FRAME_TIME, FRAMES, MODES = 2e5, 0.01, 2000, 3  # Angstrom^2/s, s


def detector() -> jk.xpcs.QMap:
    """Return a q map of six rings on 80 x 80 pixels."""
    return jk.xpcs.QMap.from_geometry(
        (80, 80),
        beam_center=(39.5, 39.5),
        distance=5.0,
        pixel_size=3e-4,
        energy=10.0,
        q_edges=np.linspace(2e-3, 1.2e-2, 7),
    )


def measure(n_frames: int = FRAMES) -> jk.xpcs.MultiTauResult:
    """Return g2 of simulated frames."""
    qmap = detector()
    rates = D * qmap.q**2 * FRAME_TIME
    how = {"n_frames": n_frames, "frame_time": FRAME_TIME, "photons": 0.5, "modes": MODES}
    return jk.xpcs.multitau(jk.xpcs.simulate_frames(rates, qmap=qmap, **how), qmap)


def siegert(tau: np.ndarray, rate: float, contrast: float, baseline: float) -> np.ndarray:
    """Return g2 of speckles with the field correlation exp(-rate tau)."""
    return baseline + contrast * np.exp(-2 * rate * tau)


def fits(r: jk.xpcs.MultiTauResult) -> tuple[np.ndarray, np.ndarray]:
    """Return rate, contrast and baseline of each bin, and standard errors, both [n_bins, 3]."""
    used = r.delay < r.n_frames / 8  # the errors of g2 are underestimated at longer delays
    values, errors = [], []
    for g2, error in zip(r.g2[used].T, r.g2_err[used].T, strict=True):
        start = 1 / r.tau[np.argmin(abs(g2 - (g2[0] + g2[-1]) / 2))], g2[0] - g2[-1], 1.0
        best, covariance = curve_fit(siegert, r.tau[used], g2, start, error, absolute_sigma=True)
        values.append(best)
        errors.append(np.sqrt(np.diag(covariance)))
    return np.array(values), np.array(errors)


def plot(path: Path, r: jk.xpcs.MultiTauResult, values: np.ndarray, errors: np.ndarray) -> None:
    """Plot g2 with the fits, and the rates over q^2."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for k, q in enumerate(r.q):
        how = {"color": f"C{k}", "label": f"q {q:.4f} 1/Angstrom"}
        left.errorbar(r.tau, r.g2[:, k], r.g2_err[:, k], fmt=".", ms=4, lw=0.8, **how)
        left.plot(r.tau, siegert(r.tau, *values[k]), lw=1, color=f"C{k}")
    left.set(xscale="log", xlabel="delay (s)", ylabel="g2")
    left.legend(fontsize=7, frameon=False)
    right.errorbar(r.q**2, values[:, 0], errors[:, 0], fmt="o", ms=4, color="0.2")
    right.plot(r.q**2, D * r.q**2, lw=1, color="0.6", label=f"D = {D:g} Angstrom$^2$/s")
    right.set(xlabel="q$^2$ (1/Angstrom$^2$)", ylabel="rate (1/s)")
    right.ticklabel_format(axis="x", scilimits=(0, 0))
    right.legend(fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=80)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plot", type=Path, default=Path("demo-output/xpcs-g2.png"))
    chosen = parser.parse_args()
    r = measure()
    values, errors = fits(r)
    for q, (rate, *_), (error, *_) in zip(r.q, values, errors, strict=True):
        print(f"q {q:.5f} 1/A: rate {rate:.4g} +- {error:.1g} 1/s, truth {D * q**2:.4g} 1/s")
    weight = (r.q**2 / errors[:, 0]) ** 2
    found = (weight * values[:, 0] / r.q**2).sum() / weight.sum()
    print(f"D = {found:.0f} +- {weight.sum() ** -0.5:.0f} Angstrom^2/s, truth {D:.0f}")
    plot(chosen.plot, r, values, errors)
    print(f"wrote {chosen.plot}")


if __name__ == "__main__":
    main()
