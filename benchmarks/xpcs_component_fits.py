"""A whole two-component fit against that of xpcsjax: from the start of a process to the result.

    python benchmarks/xpcs_component_fits.py --xpcsjax PYTHON

PYTHON is the interpreter of an environment with xpcsjax 0.1.8. Both read the same HDF5 file of
3 angles x 500^2 points, and start 30% off the truth; xpcsjax runs its command with the settings of
its template, but with squares as the loss. The costs of both results are computed by NumPy.
"""

from __future__ import annotations

import json
import resource
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import harness
import numpy as np

import jaxkern as jk

Q, LENGTH, NOISE, PHI = 0.0054, 50.0, 0.02, (0.0, 30.0, 75.0)
TRUTH = np.array([6e3, 0.1, 200, 2e3, -0.15, 100, 60, 0.4, 10, 0.6, -0.02, 0.5, 0.1, 3.0])
START = TRUTH * np.where(np.arange(TRUTH.size) % 2, 0.7, 1.3)


def two_components(n: int) -> Any:
    """The model of n frames; the times of xpcsjax begin at one time step."""
    dt = LENGTH / n
    return jk.xpcs.TwoComponent(jk.xpcs.Geometry(Q, None, dt, dt * np.arange(1, n + 1), PHI))


def cost(data: Any, contrast: float, offset: float, p: Any) -> float:
    """Sum of squared residuals without the diagonal and frame 0, by heterodyne's formulas."""
    n = data.shape[-1]
    dt = LENGTH / n
    t = dt * np.arange(1, n + 1)

    def integral(law: Any, least: float = -np.inf) -> Any:
        f = np.maximum(law[0] * t ** law[1] + law[2], least)
        return dt * np.append(0.0, np.cumsum((f[1:] + f[:-1]) / 2))

    def decay(law: Any) -> Any:
        table = integral(law, 0.0)
        return np.exp(-(Q**2) / 2 * np.sqrt((table - table[:, None]) ** 2 + 1e-12))

    h_r, h_s, V = decay(p[:3]), decay(p[3:6]), integral(p[6:9])
    x = np.logaddexp(0, 50 * (p[9] * np.exp(p[10] * (t - p[11])) + p[12])) / 50
    x = 1 - np.logaddexp(0, 50 * (1 - x)) / 50
    norm, r, s = x**2 + (1 - x) ** 2, np.outer(1 - x, 1 - x) * h_r, np.outer(x, x) * h_s
    used = ~np.eye(n, dtype=bool)
    used[0] = used[:, 0] = False
    total = 0.0
    for matrix, phi in zip(data, PHI, strict=True):
        phase = Q * np.cos(np.deg2rad(p[13] + phi)) * (V - V[:, None])
        f = (r**2 + s**2 + 2 * r * s * np.cos(phase)) / np.outer(norm, norm)
        total += float(((matrix - offset - contrast * f)[used] ** 2).sum())
    return total


def fit(path: str, n: int, search: Any) -> list[float]:
    """Return contrast, offset and physics of a fit, in a new process."""
    model = two_components(n)
    with jk.xpcs.ApsFile(path) as data:
        result = jk.xpcs.fit(model, data, None, START, scaling="constant", search=search)
    return [*map(float, result.popt)]


def fit_with_xpcsjax(folder: Path, n: int, python: str) -> list[float]:
    names = two_components(n).parameter_names
    settings = {
        "analysis_mode": "two_component",
        "analyzer_parameters": {
            "dt": LENGTH / n, "start_frame": 1, "end_frame": n, "frame_step": 1,
            "scattering": {"wavevector_q": Q}, "geometry": {"stator_rotor_gap": 2000000},
        },
        "experimental_data": {
            "data_folder_path": str(folder), "data_file_name": "run.hdf",
            "cache_directory": str(folder / "cache"),
        },
        "phi_filtering": {"enabled": False},
        "initial_parameters": {"parameter_names": list(names), "values": START.tolist()},
        "optimization": {"method": "nlsq", "nlsq": {
            "loss": "linear", "max_iterations": 10000, "tolerance": 1e-6, "xtol": 1e-6,
            "gtol": 1e-6, "x_scale": "jac",
            "anti_degeneracy": {"enable": True, "per_angle_mode": "auto"},
        }},
        "output": {"directory": str(folder / "out")},
    }  # fmt: skip
    (folder / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    code = "import sys; from xpcsjax.cli.main import main; sys.exit(main())"
    options = ["--config", folder / "config.yaml", "--output", folder / "out", "--no-plot"]
    subprocess.run(
        [python, "-P", "-c", code, *options], check=True, capture_output=True, cwd=folder
    )
    found = json.loads((folder / "out" / "parameters.json").read_text())
    theirs = {"v_beta": "beta", "phi0_het": "phi0"}
    order = ["contrast_avg", "offset_avg", *(theirs.get(name, name) for name in names)]
    return [found[name]["value"] for name in order]


def timed(function: Any, *arguments: Any) -> tuple[list[float], float, float]:
    """Return a result, the seconds, and the CPU seconds of the process that computes it."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    result = function(*arguments)
    seconds, after = time.monotonic() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return result, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    options: dict[str, Any] = {"--xpcsjax": {"help": "an interpreter with xpcsjax 0.1.8"}}
    bench = harness.Benchmark(__doc__, options, rounds=(3, 1))
    n = 120 if bench.quick else 500
    with tempfile.TemporaryDirectory(prefix="xpcs-component-fits-") as name:
        folder = Path(name)
        path = str(folder / "run.hdf")
        jk.xpcs.simulate_to_file(path, two_components(n), TRUTH, 0.3, 1.0, noise=NOISE)
        with jk.xpcs.ApsFile(path) as file:
            data = np.array([file.read(k, 0, n) for k in range(len(PHI))], float)
        if bench.options.xpcsjax is None:
            raise SystemExit("--xpcsjax: expected the interpreter of an environment with xpcsjax")
        call, module = harness.call, "xpcs_component_fits"
        ours = {
            search: [timed(call, module, "fit", path, n, search) for _ in range(bench.rounds)]
            for search in ("local", "auto")
        }
        theirs = timed(fit_with_xpcsjax, folder, n, bench.options.xpcsjax)
    rows, best = [], cost(data, *theirs[0][:2], theirs[0][2:])
    for search, runs in ours.items():
        for k, label in ((1, "time"), (2, "CPU time")):
            mine = float(np.median([run[k] for run in runs]))
            ratio = theirs[k] / mine
            rows.append(
                [f'{label}, `search="{search}"`, s', f"{theirs[k]:.1f}", f"{mine:.2f}",
                 f"{ratio:.0f}", 50, harness.at_least(ratio, 50)]
            )  # fmt: skip
        mine = cost(data, *runs[0][0][:2], runs[0][0][2:])
        rows.append(
            [f'cost, `search="{search}"`', f"{best:.6f}", f"{mine:.6f}", f"{mine / best:.8f}",
             "1 + 1e-6", harness.at_most(mine / best - 1, 1e-6)]
        )  # fmt: skip
    header = f"3 x {n}^2, process start to result | xpcsjax | ours | ratio | bar | "
    note = (
        "xpcsjax 0.1.8; medians of our runs. Other programs may slow the times, not the CPU times."
    )
    bench.write(harness.table(header, "lrrrrl", rows), ["scipy", "h5py"], note)


if __name__ == "__main__":
    main()
