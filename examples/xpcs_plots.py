"""Draws every kind of plot of jaxkern.xpcs from simulated frames.

python examples/xpcs_plots.py --folder docs/images    # needs jaxkern-native[xpcs,mcmc]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import jaxkern as jk
from jaxkern.cli import main as jaxkern

Q, GAP, DT, PHI = 0.0054, 2e6, 0.1, [-50.0, 0.0, 50.0]
TRUTH = {"D0": 8000.0, "alpha": -0.3, "gamma_dot_t0": 2e-4, "beta": 0.2, "phi0": 4.0}
FIXED = {"D_offset": 0.0, "gamma_dot_t_offset": 0.0}


def draw(folder: Path) -> None:
    """Write the plots of correlations, of a fit, its profile and posterior, and of many fits."""
    t = DT * np.arange(200)
    model = jk.xpcs.LaminarFlow(jk.xpcs.Geometry(Q, GAP, DT, t, PHI))
    values = [(TRUTH | FIXED)[name] for name in model.parameter_names]
    frames = jk.xpcs.simulate_frames(model, values, photons=1.0, pixels=600, modes=3)
    g = jk.xpcs.multitau(frames, frames.qmap, frame_time=DT, overview=True)
    c = jk.xpcs.twotime(frames, frames.qmap, frame_time=DT)
    jk.xpcs.plot_correlations(folder, g, c)
    jk.xpcs.write_results(folder / "results.hdf", g, c)
    (folder / "fit.yaml").write_text(
        f"data_files: {{file: results.hdf, q: {Q}}}\nexperiment: {{gap: {GAP}}}\n"
        "initial_parameters: {hold: [D_offset, gamma_dot_t_offset]}\n"
        "output: {dpi: 70, angles: 1}\n"
    )
    jaxkern(["xpcs", "fit", "--config", f"{folder}/fit.yaml", "--output-dir", f"{folder}/fit"])
    ring = c.fit_data(Q)
    fit = jk.xpcs.fit(model, ring.data, p0=TRUTH | FIXED, hold=[*FIXED, "alpha", "beta"])
    fit.profile("D0", progress=False).plot(folder / "profile.png")
    jk.xpcs.posterior(model, ring.data, fit).plot(folder / "posterior.png")
    statics = [jk.xpcs.Static(jk.xpcs.Geometry(Q, None, DT, t[:100], [0.0])) for _ in range(5)]
    data = [
        jk.xpcs.simulate(static, [3e4 / (1 + k), 0.0, 0.0], 0.3, 1.0, noise=0.02, seed=k)
        for k, static in enumerate(statics)
    ]
    ages = {"age": [10.0 * k for k in range(1, 6)]}
    many = jk.xpcs.fit_many(data, statics, labels=ages, output=folder / "many")
    many.plot(folder / "many.png", against="age")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("demo-output/xpcs-plots"))
    target = parser.parse_args().folder
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        draw(Path(name))
        for path in [*Path(name).glob("*.png"), *Path(name, "fit").glob("*.png")]:
            image = Image.open(path).convert("RGB")
            image.thumbnail((700, 700))
            image.quantize(96, dither=0).save(target / f"plot-{path.name}", optimize=True)
            print(f"wrote {target / f'plot-{path.name}'}")


if __name__ == "__main__":
    main()
