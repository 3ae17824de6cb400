"""Simulates two-time correlations in a real APS file, fits them, and draws data, model, residuals.

    make demo        # or: python examples/demo_xpcs.py

Does what ``python -m jaxkern xpcs simulate`` and ``fit`` do, and compares the fit with the truth.
Everything is written to ``demo-output/xpcs/``.
"""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from jaxkern.cli import main as jaxkern

OUTPUT = Path("demo-output/xpcs")

SETTINGS = """\
data_files: {file: simulated.h5}
experiment: {dt: 0.1, gap: 2.0e+6}
simulation:
  frames: 600
  phi: [-60.0, -30.0, 0.0, 30.0, 60.0]
  parameters: {D0: 8000.0, alpha: -0.3, D_offset: 10.0, gamma_dot_t0: 2.0e-4, beta: 0.2,
               gamma_dot_t_offset: 0.0, phi0: 4.0}
  contrast: [0.25, 0.3, 0.35, 0.3, 0.25]
  noise: 0.03
initial_parameters:
  values: {D0: 3000.0, alpha: 0.0, D_offset: 10.0, gamma_dot_t0: 1.0e-4, beta: 0.0, phi0: 0.0}
  hold: [D_offset, gamma_dot_t_offset]  # the data hardly tell them from D0 and gamma_dot_t0
scaling: individual
"""


def main() -> None:
    console = Console()
    OUTPUT.mkdir(parents=True, exist_ok=True)
    config = OUTPUT / "config.yaml"
    config.write_text(SETTINGS)
    for action in ("simulate", "fit"):
        command = ["xpcs", action, "--config", str(config), "--output-dir", str(OUTPUT)]
        console.print(f"[bold]python -m jaxkern {' '.join(command)}")
        if (code := jaxkern(command)) != 0:
            raise SystemExit(code)
    truth = json.loads((OUTPUT / "truth.json").read_text())["parameters"]
    found = json.loads((OUTPUT / "results.json").read_text())["parameters"]
    table = Table("parameter", "truth", "fit", "standard error", "off by")
    for name, true in truth.items():
        if found[name]["error"] == 0:  # it was held
            continue
        value, error = found[name]["value"], found[name]["error"]
        off = f"{(value - true) / error:+.1f} s.e."
        table.add_row(name, f"{true:.5g}", f"{value:.5g}", f"{error:.2g}", off)
    console.print(table)


if __name__ == "__main__":
    main()
