"""How often fits of simulated photons are accepted: right models and wrong ones.

    python benchmarks/xpcs_fit_checks.py             # 500 fits a setting; writes results
    python benchmarks/xpcs_fit_checks.py --quick     # 5 fits each; writes nothing

The simulator is NumPy's alone and shares no code with the package: complex Gaussian fields with any
intermediate scattering function, by a root of its covariance; Poisson counts; and the two-time
correlation as the mean of products over pixels, divided by the mean counts of the two frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import harness
import numpy as np

import jaxkern as jk

Q, DT = 0.0054, 1.0
# The check was developed on seeds below this one.
SEED = 10_000


def stretched(exponent: float) -> Callable[[Any], Any]:
    return lambda x: np.exp(-(np.abs(x) ** exponent))


# g1 of a lag in units of the decay time.
SHAPES: dict[str, Callable[[Any], Any]] = {
    "simple exponential": stretched(1.0),
    "stretched exponential, 0.6": stretched(0.6),
    "compressed exponential, 1.5": stretched(1.5),
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
WRONG = tuple(Setting(8, 300, 1.0, 0.05, 600, modes) for modes in (1, 3))


NOTE = (
    "Photons: mean counts a pixel and frame. Rates in 1/frame. The wrong models are fitted "
    "with a simple exponential (8 angles, 300 frames, 1 photon, 600 pixels, rate 0.05); their "
    "misfit is the largest lag-averaged residual over its standard deviation between fits."
)


def covariance_root(shape: Callable[[Any], Any], setting: Setting) -> Any:
    """The root [n, n] of g1 between frames."""
    lags = np.abs(np.subtract.outer(np.arange(setting.frames), np.arange(setting.frames)))
    values, vectors = np.linalg.eigh(shape(setting.rate * lags.astype(float)))
    return (vectors * np.sqrt(np.clip(values, 0.0, None))).astype(np.float32)


def simulate(root: Any, setting: Setting, seed: int) -> Any:
    """C [angles, n, n]."""
    draw = np.random.default_rng(seed)
    n = setting.frames
    c2 = np.empty((setting.angles, n, n))
    for angle in range(setting.angles):
        intensity = np.zeros((n, setting.pixels), np.float32)
        for _ in range(2 * setting.modes):
            field = root @ draw.standard_normal((n, setting.pixels), np.float32)
            intensity += field**2
        counts = draw.poisson(setting.photons / (2 * setting.modes) * intensity)
        counts = counts.astype(np.float64)
        total = counts.sum(1)
        assert total.min() > 0
        c2[angle] = setting.pixels * (counts @ counts.T) / np.outer(total, total)
    return c2


def fit(data: Any, setting: Setting) -> Any:
    """`Static` with its rate alone free, as contrast and offset of each angle."""
    t, phi = DT * np.arange(setting.frames), np.linspace(0.0, 90.0, setting.angles)
    model = jk.xpcs.Static(jk.xpcs.Geometry(q=Q, gap=None, dt=DT, t=t, phi=phi))
    start = {"D0": 2 * setting.rate / Q**2 / DT, "alpha": 0.0, "D_offset": 0.0}
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


def lag_averages(data: Any, result: Any, setting: Setting) -> Any:
    """data - model over all angles, averaged over all pairs of frames by lag in octaves."""
    n = setting.frames
    edges = np.append(2 ** np.arange(int(np.log2(n - 1)) + 1), n)
    rate = result.as_dict["D0"] * Q**2 * DT / 2
    lags = np.arange(n)
    fitted = result.offset[:, None] + result.contrast[:, None] * np.exp(-2 * rate * lags)
    diagonals = np.array([[np.trace(c2, lag) for lag in lags] for c2 in data])
    off = (diagonals - fitted * (n - lags)).sum(0)
    pairs = setting.angles * (n - lags)
    return np.add.reduceat(off, edges[:-1]) / np.add.reduceat(pairs, edges[:-1])


def right(fits: int) -> list[dict[str, Any]]:
    """Return the number of fits of correct models that pass, and the messages of the others."""
    rows = []
    for setting in harness.progress(RIGHT, "right models"):
        root = covariance_root(SHAPES["simple exponential"], setting)
        results = [fit(simulate(root, setting, seed), setting) for seed in range(SEED, SEED + fits)]
        reasons = [result.message for result in results if not result.success]
        rows.append({**asdict(setting), "passed": fits - len(reasons), "reasons": reasons})
        print(f"{time.strftime('%H:%M')} {rows[-1]}", flush=True)
    return rows


def wrong(fits: int) -> list[dict[str, Any]]:
    """Return the number of fits of wrong models that fail, and the errors of their averages."""
    rows = []
    cases = [(s, name) for s in WRONG for name in SHAPES if name != "simple exponential"]
    for setting, name in harness.progress(cases, "wrong models"):
        root = covariance_root(SHAPES[name], setting)
        results, averages = [], []
        for seed in range(SEED, SEED + fits):
            data = simulate(root, setting, seed)
            results.append(fit(data, setting))
            averages.append(lag_averages(data, results[-1], setting))
        misfit = np.abs(np.mean(averages, axis=0)) / np.std(averages, axis=0, ddof=1)
        failed = sum(not result.success for result in results)
        rate = float(np.mean([result.as_dict["D0"] for result in results]) * Q**2 * DT / 2)
        row = {"name": name, "failed": failed, "misfit": float(misfit.max()), "fitted rate": rate}
        rows.append({**asdict(setting), **row})
        print(f"{time.strftime('%H:%M')} {rows[-1]}", flush=True)
    return rows


def tables(accepted: list[Any], rejected: list[Any], fits: tuple[int, int]) -> list[str]:
    cells = []
    for row in accepted:
        names = ("angles", "frames", "photons", "rate", "pixels")
        setting = [f"{row[name]:g}" for name in names] + [f"{1 / row['modes']:.2g}"]
        verdict = harness.at_least(row["passed"] / fits[0], 0.99)
        cells.append([*setting, f"{row['passed']} of {fits[0]}", "99%", verdict])
    header = "angles | frames | photons | rate of g1 | pixels | contrast | fits that pass | bar | "
    lines = [*harness.table(header, "rrrrrrrrl", cells), ""]
    cells = []
    for row in rejected:
        verdict = harness.at_least(row["failed"] / fits[1], 0.95)
        verdict = verdict if row["misfit"] > 6 else "misfit below 6"
        case = [row["name"], f"{1 / row['modes']:.2g}", f"{row['fitted rate']:.4f}"]
        failed = f"{row['failed']} of {fits[1]}"
        cells.append([*case, f"{row['misfit']:.1f}", failed, "95%", verdict])
    header = "true g1 | contrast | fitted rate | misfit, standard errors | fits that fail | bar | "
    return [*lines, *harness.table(header, "lrrrrrl", cells)]


def main() -> None:
    options = harness.parse(
        __doc__,
        ("--fits", {"type": int, "default": 500, "help": "fits per setting of correct models"}),
        ("--wrong", {"type": int, "default": 40, "help": "fits per wrong model"}),
    )
    fits = (5, 5) if options.quick else (options.fits, options.wrong)
    rejected, accepted = wrong(fits[1]), right(fits[0])
    lines = tables(accepted, rejected, fits)
    record = {"right": accepted, "wrong": rejected}
    title = "Fits of simulated photons that pass the checks of their residuals"
    harness.write("xpcs-fit-checks", title, lines, record, ["scipy"], NOTE, fits[0] < 200)


if __name__ == "__main__":
    main()
