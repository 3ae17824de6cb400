"""From a detector's frames to a fit: speckles in shear flow are simulated, correlated and fitted.

    make demo        # or: python examples/demo_xpcs.py

Simulates frames of photons whose speckles move as the model says, does what ``python -m jaxkern
xpcs correlate`` and ``fit`` do, and compares the fit with the truth. Everything is written to
``demo-output/xpcs/``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from jaxkern import xpcs
from jaxkern.cli import main as jaxkern

OUTPUT = Path("demo-output/xpcs")
FRAMES, FRAME_TIME, GAP = 400, 0.1, 2.0e6  # seconds, Angstrom
TRUTH = {
    "D0": 8000.0,
    "alpha": -0.3,
    "D_offset": 10.0,
    "gamma_dot_t0": 2.0e-4,
    "beta": 0.2,
    "gamma_dot_t_offset": 0.0,
    "phi0": 4.0,
}

SETTINGS = """\
data_files: {file: results.hdf}
experiment: {gap: 2.0e+6}
initial_parameters:
  values: {D0: 3000.0, alpha: 0.0, D_offset: 10.0, gamma_dot_t0: 1.0e-4, beta: 0.0, phi0: 0.0}
  hold: [D_offset, gamma_dot_t_offset]  # the data hardly tell them from D0 and gamma_dot_t0
scaling: individual
output: {angles: 3}
"""


def simulate(frames: Path, qmap_file: Path) -> None:
    """Writes frames of one ring of q, in five sectors, and the map of these bins."""
    qmap = xpcs.QMap.from_geometry(
        (160, 110),
        beam_center=(20.0, 79.5),
        distance=5.0,
        pixel_size=75e-6,
        energy=10.0,
        q_edges=[0.0048, 0.006],
        phi_edges=np.linspace(-75, 75, 6),
        static=(3, 1),
    )
    geometry = xpcs.Geometry(
        q=float(qmap.q[0]),
        gap=GAP,
        dt=FRAME_TIME,
        t=FRAME_TIME * np.arange(FRAMES),
        phi=qmap.phi,
    )
    model = xpcs.LaminarFlow(geometry)
    params = [TRUTH[name] for name in model.parameter_names]
    source = xpcs.simulate_frames(model, params, qmap=qmap, photons=2.0, seed=1, dtype=np.uint8)
    np.save(frames, source.array)
    qmap_file.unlink(missing_ok=True)
    qmap.write(qmap_file)


def main() -> None:
    console = Console()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    frames, qmap = OUTPUT / "frames.npy", OUTPUT / "qmap.h5"
    results, config = OUTPUT / "results.hdf", OUTPUT / "config.yaml"
    simulate(frames, qmap)
    config.write_text(SETTINGS)
    correlate = ["correlate", str(frames), "--qmap", str(qmap), "--output", str(results)]
    correlate += ["--twotime", "--frame-time", str(FRAME_TIME), "--plots", str(OUTPUT), "--force"]
    fit = ["fit", "--config", str(config), "--output-dir", str(OUTPUT)]
    for command in (correlate, fit):
        console.print(f"[bold]python -m jaxkern xpcs {' '.join(command)}")
        if (code := jaxkern(["xpcs", *command])) != 0:
            raise SystemExit(code)
    found = json.loads((OUTPUT / "results.json").read_text())["parameters"]
    table = Table("parameter", "truth", "fit", "standard error", "off by")
    for name, true in TRUTH.items():
        if found[name]["error"] == 0:  # it was held
            continue
        value, error = found[name]["value"], found[name]["error"]
        off = f"{(value - true) / error:+.1f} s.e."
        table.add_row(name, f"{true:.5g}", f"{value:.5g}", f"{error:.2g}", off)
    console.print(table)


if __name__ == "__main__":
    main()
