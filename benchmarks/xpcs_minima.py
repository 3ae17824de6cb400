"""How often fits from the defaults or far starts reach the best minimum, and in what time.

Truths are drawn at random for each model, and data with white noise or simulated photons. The best
minimum is that of a fit from the truth; a miss is a cost that exceeds its cost by 1e-5. Starts are
the model's defaults, or differ from the truth by a factor of 3 to 10 and by up to 1 in exponents.
Times are CPU time, which other programs hardly change.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

import jaxkern as jk

Q, GAP, DT, SIGMA = 0.0054, 2e6, 0.1, 0.01
MODELS = "static", "laminar", "two-component"


def diffusion(draw: np.random.Generator, span: float, low: float, high: float) -> list[float]:
    """Draw D0, alpha and D_offset that decay within 10^low to 10^high of the measured time."""
    exponent, share = draw.uniform(-0.5, 0.5), draw.uniform(0, 0.3)
    rate = 1 / (Q**2 * span * 10 ** draw.uniform(low, high))
    return [rate / (span / 3) ** exponent, exponent, share * rate]


def drawn(kind: str, draw: np.random.Generator) -> tuple[jk.xpcs.Model, Any]:
    """Return a model of 7 angles, and true parameters."""
    n = int(draw.choice([200, 400, 700, 1000]))
    t, span = DT * np.arange(n), DT * n
    phi = np.sort(draw.uniform(-90, 90, 7))
    if kind == "static":
        model: jk.xpcs.Model = jk.xpcs.Static(jk.xpcs.Geometry(Q, None, DT, t, phi))
        return model, np.array(diffusion(draw, span, -1.6, -0.2))
    truth = diffusion(draw, span, -1.2, 0.0)
    if kind == "laminar":
        exponent, turns = draw.uniform(-0.5, 0.5), 10 ** draw.uniform(0.3, 1.5)
        rate = 2 * np.pi * turns / (Q * GAP * span) / (span / 3) ** exponent
        truth += [rate, exponent, draw.uniform(0, 0.2) * rate, draw.uniform(-80, 80)]
        model = jk.xpcs.LaminarFlow(jk.xpcs.Geometry(Q, GAP, DT, t, phi))
    else:
        exponent = draw.uniform(0, 0.8)
        speed = 2 * np.pi * 10 ** draw.uniform(0.3, 1.2) / (Q * span) / (span / 3) ** exponent
        share, flow = draw.uniform(0.25, 0.75), draw.uniform(-8, 8)
        truth += diffusion(draw, span, -1.2, 0.0)
        truth += [speed, exponent, 0.0, share, 0.0, 0.0, 0.0, flow]
        model = jk.xpcs.TwoComponent(jk.xpcs.Geometry(Q, None, DT, t, phi))
    return model, np.array(truth)


def inside(model: jk.xpcs.Model, values: Any) -> Any:
    low, high = np.transpose(model.bounds)
    margin = 1e-6 * (high - low)
    return np.clip(values, low + margin, high - margin)


def start(model: jk.xpcs.Model, truth: Any, draw: np.random.Generator) -> Any:
    """Draw a start that is far from the truth."""
    factor = 10 ** (draw.choice([-1, 1], truth.size) * draw.uniform(np.log10(3), 1, truth.size))
    pure = np.array([unit == "" for unit in model.units])
    far = np.where(pure, truth + draw.uniform(-1, 1, truth.size), truth * factor)
    angle = np.isfinite(model.periods)
    return inside(model, np.where(angle, draw.uniform(-90, 90, truth.size), far))


def timed(*arguments: Any, **options: Any) -> tuple[Any, float]:
    begin = time.process_time()
    result = jk.xpcs.fit(*arguments, progress=False, **options)
    return result, time.process_time() - begin


def case(kind: str, noise: str, seed: int) -> list[dict[str, Any]]:
    """Return for each start whether the fit misses, its success, and the times of two fits."""
    draw = np.random.default_rng([MODELS.index(kind), seed])
    model, truth = drawn(kind, draw)
    truth = inside(model, truth)
    contrast, offset = draw.uniform(0.1, 0.4, 7), 1 + draw.uniform(-0.02, 0.02, 7)
    sigma: float | None = SIGMA
    if noise == "photons":
        data = jk.xpcs.simulate_photons(model, truth, photons=0.5, pixels=300, seed=seed)
        sigma, scales = None, ()
    else:
        clean = np.asarray(jk.xpcs.g2(model, truth, contrast, offset), float)
        error = np.triu(SIGMA * draw.normal(size=clean.shape), 1)
        data, scales = clean + error + np.swapaxes(error, 1, 2), (contrast, offset)
    far = start(model, truth, draw)
    best, _ = timed(model, data, sigma, truth, *scales, search="local")
    _, once = timed(model, data, sigma, truth, *scales, search="local")
    rows = []
    for name, p0 in (("defaults", None), ("far", far)):
        result, seconds = timed(model, data, sigma, p0)
        rows.append(
            {"case": [kind, noise, seed], "start": name, "frames": model.geometry.n_t,
             "miss": bool(result.cost > best.cost * (1 + 1e-5)), "once": once,
             "success": bool(result.success), "seconds": seconds}
        )  # fmt: skip
    return rows


def main() -> None:
    resume = {"type": Path, "help": "file of finished cases, which are not repeated"}
    options: dict[str, Any] = {"--truths": {"type": int, "default": 50}, "--resume": resume}
    bench = harness.Benchmark(__doc__, options)
    rows, runs, path = [], {}, bench.options.resume
    if path is not None and path.exists():
        for line in path.read_text().splitlines():
            fits = json.loads(line)
            runs[tuple(fits[0]["case"])] = fits
    groups = list(itertools.product(MODELS, ("white noise", "photons")))
    seeds = range(2 if bench.quick else bench.options.truths)
    for seed in harness.progress(seeds, "truths"):
        for key in ((*group, seed) for group in groups):
            if key not in runs:
                runs[key] = case(*key)
                if path is not None:
                    with path.open("a") as file:
                        file.write(json.dumps(runs[key]) + "\n")
    for group, name in itertools.product(groups, ("defaults", "far")):
        some = [row for seed in seeds for row in runs[*group, seed] if row["start"] == name]
        reached = sum(not row["miss"] for row in some)
        wrong = sum(row["miss"] and row["success"] for row in some)
        ratio = np.array([row["seconds"] / row["once"] for row in some])
        slow = sum(row["seconds"] > max(2.0, 3 * row["once"]) for row in some)
        longest = max(row["seconds"] for row in some)
        rows.append(
            [", ".join(group), name, f"{reached} of {len(some)}", wrong,
             f"{np.median(ratio):.1f} ({ratio.max():.1f})", f"{longest:.1f}", slow]
        )  # fmt: skip
    header = (
        "model, data | start | best minimum | misses with success "
        "| time / that of a local fit from the truth: median (max) | longest, s "
        "| above 3 times the local fit and 2 s"
    )
    fits = [row for key in runs for row in runs[key]]
    bench.write(harness.table(header, "lllrrrr", rows), ["scipy"], runs=fits)


if __name__ == "__main__":
    main()
