"""How often fits of simulated photons pass the checks of their residuals: right and wrong models.

The simulator is NumPy's alone and shares no code with the package: complex Gaussian fields with any
intermediate scattering function, by a root of its covariance; Poisson counts; and the two-time
correlation as the mean of products over pixels, divided by the mean counts of the two frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import harness
import numpy as np

import jaxkern as jk

Q = 0.0054
# The check was developed on seeds below this one.
SEED = 10_000
# g1 of a lag in units of the decay time.
SIMPLE = "simple exponential"
SHAPES: dict[str, Callable[[Any], Any]] = {
    SIMPLE: lambda x: np.exp(-x),
    "stretched exponential, 0.6": lambda x: np.exp(-(x**0.6)),
    "compressed exponential, 1.5": lambda x: np.exp(-(x**1.5)),
    "two rates, 60% at 4 and 40% at 0.2": lambda x: 0.6 * np.exp(-4 * x) + 0.4 * np.exp(-0.2 * x),
    "40% static": lambda x: 0.4 + 0.6 * np.exp(-x),
}


@dataclass(frozen=True)
class Setting:
    """One kind of measurement; `rate` is that of g1 in 1/frame, 1 / modes the contrast."""

    angles: int
    frames: int
    photons: float
    rate: float
    pixels: int
    modes: int = 1
    shape: str = SIMPLE


RIGHT = (
    Setting(1, 40, 1.0, 0.3, 300, 2),
    Setting(1, 100, 20.0, 0.05, 200, 1),
    Setting(3, 100, 0.1, 0.2, 300, 1),
    Setting(3, 200, 5.0, 0.01, 150, 2),
    Setting(8, 200, 1.0, 0.05, 150, 2),
    Setting(8, 40, 20.0, 0.5, 150, 2),
    Setting(3, 600, 0.5, 0.05, 100, 1),
    Setting(23, 60, 2.0, 0.1, 100, 2),
)
WRONG = tuple(
    Setting(8, 300, 1.0, 0.05, 600, modes, shape)
    for modes in (1, 3)
    for shape in SHAPES
    if shape != SIMPLE
)


def simulate(setting: Setting, fits: int) -> Any:
    """Yield C [angles, n, n] of each fit."""
    n = setting.frames
    lags = np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(float)
    values, vectors = np.linalg.eigh(SHAPES[setting.shape](setting.rate * lags))
    root = (vectors * np.sqrt(np.clip(values, 0.0, None))).astype(np.float32)
    for seed in range(SEED, SEED + fits):
        draw = np.random.default_rng(seed)
        c2 = np.empty((setting.angles, n, n))
        for angle in range(setting.angles):
            intensity = np.zeros((n, setting.pixels), np.float32)
            for _ in range(2 * setting.modes):
                intensity += (root @ draw.standard_normal((n, setting.pixels), np.float32)) ** 2
            counts = draw.poisson(setting.photons / (2 * setting.modes) * intensity)
            counts = counts.astype(np.float64)
            total = counts.sum(1)
            assert total.min() > 0
            c2[angle] = setting.pixels * (counts @ counts.T) / np.outer(total, total)
        yield c2


def fit(data: Any, setting: Setting) -> Any:
    """Fit `Static` with its rate, and contrast and offset of each angle."""
    t, phi = 1.0 * np.arange(setting.frames), np.linspace(0.0, 90.0, setting.angles)
    model = jk.xpcs.Static(jk.xpcs.Geometry(q=Q, gap=None, dt=1.0, t=t, phi=phi))
    start = {"D0": 2 * setting.rate / Q**2, "alpha": 0.0, "D_offset": 0.0}
    return jk.xpcs.fit(
        model,
        data,
        p0=start,
        hold=["alpha", "D_offset"],
        bounds={"D0": (1.0, 1e7)},
        errors=jk.xpcs.ErrorOptions("independent"),
        streaming=jk.xpcs.StreamingOptions(symmetric=True),
        progress=False,
    )


def rate_of(result: Any) -> float:
    return float(result.as_dict["D0"] * Q**2 / 2)


def lag_averages(data: Any, result: Any) -> Any:
    """Return data - model over all angles, averaged over pairs of frames by lag in octaves."""
    n = data.shape[-1]
    edges = np.append(2 ** np.arange(int(np.log2(n - 1)) + 1), n)
    lags = np.arange(n)
    decay = np.exp(-2 * rate_of(result) * lags)
    fitted = result.offset[:, None] + result.contrast[:, None] * decay
    diagonals = np.array([[np.trace(c2, lag) for lag in lags] for c2 in data])
    off = (diagonals - fitted * (n - lags)).sum(0)
    pairs = len(data) * (n - lags)
    return np.add.reduceat(off, edges[:-1]) / np.add.reduceat(pairs, edges[:-1])


def measure(setting: Setting, fits: int) -> dict[str, Any]:
    """Return the number of fits that pass, the mean rate, and the misfit of the averages."""
    results, averages = [], []
    for data in simulate(setting, fits):
        results.append(fit(data, setting))
        averages.append(lag_averages(data, results[-1]))
    misfit = np.abs(np.mean(averages, axis=0)) / np.std(averages, axis=0, ddof=1)
    messages = [result.message for result in results if not result.success]
    return {
        **asdict(setting),
        "contrast": f"{1 / setting.modes:.2g}",
        "passed": fits - len(messages),
        "messages": messages,
        "fitted rate": np.mean([rate_of(result) for result in results]),
        "misfit": float(misfit.max()),
    }


def main() -> None:
    bench = harness.Benchmark(__doc__)
    fits, wrong_fits = (5, 5) if bench.quick else (500, 40)
    right = [measure(setting, fits) for setting in harness.progress(RIGHT, "right models")]
    wrong = [measure(setting, wrong_fits) for setting in harness.progress(WRONG, "wrong models")]
    cells = []
    for row in right:
        values = [f"{row[name]:g}" for name in ("angles", "frames", "photons", "rate", "pixels")]
        verdict = harness.at_least(row["passed"] / fits, 0.99)
        cells.append([*values, row["contrast"], f"{row['passed']} of {fits}", "99%", verdict])
    header = "angles | frames | photons | rate of g1 | pixels | contrast | fits that pass | bar | "
    lines = [*harness.table(header, "rrrrrrrrl", cells), ""]
    cells = []
    for row in wrong:
        failed = wrong_fits - row["passed"]
        verdict = harness.at_least(failed / wrong_fits, 0.95)
        verdict = verdict if row["misfit"] > 6 else "misfit below 6"
        values = [
            row["shape"],
            row["contrast"],
            f"{row['fitted rate']:.4f}",
            f"{row['misfit']:.1f}",
        ]
        cells.append([*values, f"{failed} of {wrong_fits}", "95%", verdict])
    header = "true g1 | contrast | fitted rate | misfit, standard errors | fits that fail | bar | "
    lines += harness.table(header, "lrrrrrl", cells)
    note = (
        "Photons: mean counts a pixel and frame. Rates in 1/frame. The wrong models are fitted "
        "with a simple exponential (8 angles, 300 frames, 1 photon, 600 pixels, rate 0.05); their "
        "misfit is the largest lag-averaged residual over its standard deviation between fits."
    )
    bench.write(lines, ["scipy"], note, right=right, wrong=wrong)


if __name__ == "__main__":
    main()
