"""From settings to results: opens a measurement, fits it, saves and plots what was found."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path, write_atomically
from jaxkern.xpcs.analysis import plot
from jaxkern.xpcs.analysis.conditions import choose_ring, gap_of, simulated, some, time_step
from jaxkern.xpcs.analysis.config import ConfigError, as_tree
from jaxkern.xpcs.analysis.schema import Config
from jaxkern.xpcs.analysis.views import view_angles
from jaxkern.xpcs.files.aps import ApsFile
from jaxkern.xpcs.files.prepare import (
    Prepared,
    frame_window,
    frames_to_keep,
    select_phi,
)
from jaxkern.xpcs.files.simulation import check_room, simulate_to_file
from jaxkern.xpcs.fitting.fit import fit
from jaxkern.xpcs.fitting.options import ErrorOptions, SolverOptions, StreamingOptions
from jaxkern.xpcs.fitting.parameters import physics_vector
from jaxkern.xpcs.fitting.result import FitResult, load_result, save_result
from jaxkern.xpcs.model.geometry import Geometry
from jaxkern.xpcs.model.models import LaminarFlow, Model, Static

# Settings of `optimization` that are fields of `SolverOptions`.
_SOLVER_SETTINGS = ["loss", "f_scale", "ftol", "xtol", "gtol", "max_nfev"]


@dataclass(frozen=True)
class OpenMeasurement:
    """What a configuration chooses of a file, and the model of it.

    Attributes:
      path: of the file.
      data: the chosen angles and frames, read in slabs.
      model: with the geometry of these.
      keep: [n_t] u8, 0 at bad frames.
      conditions: q, dt and gap in words, with where they come from.
      notes: what a user must know of the choice even where nothing else is printed.
    """

    path: Path
    data: Prepared
    model: Model
    keep: NDArray[np.uint8]
    conditions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def describe(self) -> str:
        n_phi, n_t, _ = self.data.shape
        return (
            f"{self.path}: {n_phi} angles of {n_t} frames ({n_phi * n_t**2 / 1e6:.2f} M points), "
            f"{', '.join(self.conditions)}, {int((self.keep == 0).sum())} bad frames"
        )


def make_model(
    config: Config, q: float, phi: Any, n_t: int, *, dt: float, gap: float | None
) -> Model:
    """The model of the settings for frames ``start_time + dt k``."""
    analysis = config.analysis
    start = config.experiment.start_time
    if start < 0:
        raise ConfigError(f"experiment.start_time is {start:g}; wanted 0 s or more")
    geometry = Geometry(q=q, gap=gap, dt=dt, t=start + dt * np.arange(n_t), phi=phi)
    if analysis.model == "static":
        return Static(geometry)
    return LaminarFlow(geometry, shear_power=analysis.shear_power)


@contextlib.contextmanager
def open_measurement(config: Config, folder: str | Path = ".") -> Iterator[OpenMeasurement]:
    """Opens the data file of the settings and applies their choice of q, phi and frames.

    Args:
      config: the settings.
      folder: what relative paths of the settings are relative to.

    Raises:
      FileNotFoundError, ApsFormatError: see there.
      ConfigError: a q that the file does not have, no angle in the ranges, a time step that neither
        says or that differs, a gap that is missing.
      ValueError: frames that the file does not have.
    """
    files, analysis = config.data_files, config.analysis
    path = Path(folder) / home_path(files.file)
    with ApsFile(path, None if files.layout == "auto" else files.layout) as file:
        inside = np.ones(len(file.phi), bool)
        if analysis.phi_filtering.enabled:
            inside = select_phi(file.phi, analysis.phi_filtering.ranges)
            if not inside.any():
                raise ConfigError(
                    f"no angle of {path} is in analysis.phi_filtering.ranges "
                    f"{[list(pair) for pair in analysis.phi_filtering.ranges]}; there are "
                    f"{some(file.phi)}"
                )
        ring = choose_ring(files, file.q, file.phi, inside, path, grid=file.layout == "aps-u")
        dt, dt_told, dt_notes = time_step(config.experiment, file.dt, path)
        gap = gap_of(config)
        n_t = file.shape[1]
        window = frame_window(n_t, analysis.frames.start, analysis.frames.end)
        keep = frames_to_keep(n_t, analysis.frames.bad)[slice(*window)]
        data = Prepared(file, ring.chosen, window, analysis.diagonal_correction)
        model = make_model(config, ring.q, file.phi[ring.chosen], data.shape[1], dt=dt, gap=gap)
        told = (ring.told, dt_told, "no gap" if gap is None else f"gap {gap:.6g} Angstrom")
        yield OpenMeasurement(path, data, model, keep, told, ring.notes + dt_notes)


def fit_measurement(
    config: Config, measurement: OpenMeasurement, output: str | Path, *, progress: bool = True
) -> FitResult:
    """Fits with the settings; checkpoints go to ``output/checkpoints`` unless they say where."""
    start, how = config.initial_parameters, config.optimization
    streaming = vars(how.streaming) | {
        "checkpoint_dir": how.streaming.checkpoint_dir or Path(output) / "checkpoints",
        "strategy": None if how.strategy == "auto" else how.strategy,
    }
    solver = SolverOptions(
        multistart=how.multistart.starts,
        seed=how.multistart.seed,
        allow_bounds=start.allow_bounds,
        **{name: getattr(how, name) for name in _SOLVER_SETTINGS},
    )
    return fit(
        measurement.model,
        measurement.data,
        config.data_files.sigma,
        start.values,
        start.contrast,
        start.offset,
        config.scaling,
        bounds=start.bounds or None,
        hold=start.hold,
        keep=measurement.keep,
        solver=solver,
        errors=ErrorOptions(how.errors, how.absolute_sigma),
        streaming=StreamingOptions(**streaming),
        progress=progress,
    )


def save(
    config: Config, measurement: OpenMeasurement, result: FitResult, output: str | Path
) -> list[Path]:
    """Writes the result with the settings, and the fitted g2 where they ask for it: the paths."""
    model = measurement.model
    paths = list(save_result(output, result, model.geometry, as_tree(config)))
    if config.output.fitted_c2:
        fitted = Path(output) / "fitted.h5"
        simulate_to_file(fitted, model, result.physics, result.contrast, result.offset)
        paths.append(fitted)
    return paths


def plot_measurement(
    config: Config, measurement: OpenMeasurement, output: str | Path
) -> list[Path]:
    """Draws the result that is in ``output`` over the data; returns the paths.

    Raises:
      FileNotFoundError: when there is no result.
      ValueError: when the result is of other angles or frames.
    """
    output = Path(output)
    _, arrays = load_result(output)
    geometry = measurement.model.geometry
    for name in ("phi", "t"):
        if not np.array_equal(arrays[name], getattr(geometry, name)):
            raise ValueError(
                f"the result in {output} is of {arrays['phi'].size} angles and {arrays['t'].size} "
                f"frames and the settings choose {geometry.n_phi} and {geometry.n_t} (or others); "
                "fit again or use its settings"
            )
    model = measurement.model
    views = view_angles(
        measurement.data,
        model,
        arrays["physics"],
        arrays["contrast"],
        arrays["offset"],
        arrays.get("sigma"),
        keep=measurement.keep & arrays.get("keep", np.True_),
        angles=config.output.angles,
    )
    names = [str(name) for name in arrays["names"]]
    how: Any = {
        "title": f"{measurement.path.name}, q {geometry.q:.4g} 1/Angstrom, "
        f"{geometry.n_phi} angles of {geometry.n_t} frames",
        "dpi": config.output.dpi,
    }
    return [
        plot.plot_maps(output / "maps.png", views, **how),
        plot.plot_cuts(output / "cuts.png", views, **how),
        plot.plot_residuals(output / "residuals.png", views, **how),
        plot.plot_parameters(
            output / "parameters.png",
            model,
            arrays["physics"],
            names,
            arrays["popt"],
            arrays["pcov"],
            **how,
        ),
        plot.plot_convergence(output / "convergence.png", arrays["costs"].tolist(), **how),
    ]


def simulate_data(
    config: Config, folder: str | Path = ".", progress: Callable[[int, int], None] | None = None
) -> tuple[Path, dict[str, Any]]:
    """Writes simulated data to the settings' file; returns its path and the truth."""
    how = config.simulation
    path = Path(folder) / home_path(config.data_files.file)
    if how.frames < 2:
        raise ConfigError(f"simulation.frames is {how.frames}; wanted at least 2")
    check_room(path, len(how.phi), how.frames, how.dtype)  # the model has its own arrays of frames
    dt, gap = simulated(config)
    model = make_model(config, how.q, np.asarray(how.phi), how.frames, dt=dt, gap=gap)
    names = model.parameter_names
    params = physics_vector(how.parameters, names, model.defaults, "simulation.parameters")
    layout = "aps-u" if config.data_files.layout == "auto" else config.data_files.layout
    simulate_to_file(
        path,
        model,
        params,
        how.contrast,
        how.offset,
        noise=how.noise,
        diagonal_artifact=how.diagonal_artifact,
        seed=how.seed,
        layout=layout,
        dtype=how.dtype,
        progress=progress,
    )
    truth = {
        "model": config.analysis.model,
        "parameters": dict(zip(names, params.tolist(), strict=True)),
        "contrast": np.broadcast_to(how.contrast, (len(how.phi),)).tolist(),
        "offset": np.broadcast_to(how.offset, (len(how.phi),)).tolist(),
        "noise": how.noise,
        "seed": how.seed,
        "q": how.q,
        "dt": dt,
        "gap": gap,
        "file": str(path),
    }
    return path, truth


def save_truth(output: str | Path, truth: dict[str, Any]) -> Path:
    """Writes what a data set was simulated with to ``output/truth.json``."""
    path = Path(output) / "truth.json"
    write_atomically(path, json.dumps(truth, indent=2).encode() + b"\n")
    return path
