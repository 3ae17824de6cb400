"""Simulates detector frames of a flowing sample, correlates them, and fits the correlations.

    make demo        # or: python examples/demo_xpcs.py

Simulates speckles with known dynamics, runs the steps of ``python -m jaxkern xpcs correlate`` and
``fit``, with a correlation file that xpcs-viewer opens, and compares the fit with the true values.
All files are written to ``demo-output/xpcs/``.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import jaxkern as jk
from jaxkern.cli import main as jaxkern

OUTPUT = Path("demo-output/xpcs")

Q, GAP, DT = 0.0054, 2.0e6, 0.1  # 1/Angstrom, Angstrom, s
PHI = [-50.0, 0.0, 50.0]
TRUTH = {
    "D0": 8000.0,
    "alpha": -0.3,
    "D_offset": 0.0,
    "gamma_dot_t0": 2.0e-4,
    "beta": 0.2,
    "gamma_dot_t_offset": 0.0,
    "phi0": 4.0,
}
SETTINGS = """\
data_files: {file: correlations.hdf, q: 0.0054}
experiment: {gap: 2.0e+6}
initial_parameters:
  values: {D0: 3000.0, alpha: 0.0, D_offset: 0.0, gamma_dot_t0: 1.0e-4, beta: 0.0, phi0: 0.0}
  hold: [D_offset, gamma_dot_t_offset]  # nearly degenerate with D0 and gamma_dot_t0
scaling: individual
output: {angles: 3}
"""


def main() -> None:
    console = Console()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    geometry = jk.xpcs.Geometry(q=Q, gap=GAP, dt=DT, t=DT * np.arange(400), phi=PHI)
    flow = jk.xpcs.LaminarFlow(geometry)
    frames = jk.xpcs.simulate_frames(flow, [*TRUTH.values()], photons=1.0, pixels=1000, modes=4)
    np.save(OUTPUT / "frames.npy", frames.read(0, len(frames)))
    (OUTPUT / "qmap.h5").unlink(missing_ok=True)
    frames.qmap.write(OUTPUT / "qmap.h5")
    (OUTPUT / "config.yaml").write_text(SETTINGS)
    correlate = f"{OUTPUT}/frames.npy --qmap {OUTPUT}/qmap.h5 --output {OUTPUT}/correlations.hdf"
    for command in (
        f"xpcs correlate {correlate} --frame-time {DT} --twotime --force --plots {OUTPUT}",
        f"xpcs fit --config {OUTPUT}/config.yaml --output-dir {OUTPUT}",
    ):
        console.print(f"[bold]python -m jaxkern {command}")
        if (code := jaxkern(command.split())) != 0:
            raise SystemExit(code)
    found = json.loads((OUTPUT / "results.json").read_text())["parameters"]
    table = Table("parameter", "truth", "fit", "standard error", "off by")
    for name, true in TRUTH.items():
        value, error = found[name]["value"], found[name]["error"]
        if error == 0:  # a fixed parameter
            continue
        off = f"{(value - true) / error:+.1f} s.e."
        table.add_row(name, f"{true:.5g}", f"{value:.5g}", f"{error:.2g}", off)
    console.print(table)


if __name__ == "__main__":
    main()
