"""From settings to results: opens a measurement, fits it, saves and plots what was found."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path
from jaxkern.xpcs import plot
from jaxkern.xpcs.aps import ApsFile
from jaxkern.xpcs.config import Config, ConfigError, as_tree
from jaxkern.xpcs.fitting import fit
from jaxkern.xpcs.geometry import Geometry
from jaxkern.xpcs.layout import unknown_name
from jaxkern.xpcs.models import LaminarFlow, Model, Static
from jaxkern.xpcs.options import StreamingOptions
from jaxkern.xpcs.prepare import (
    Prepared,
    frame_window,
    frames_to_keep,
    select_phi,
    select_q,
)
from jaxkern.xpcs.result import FitResult
from jaxkern.xpcs.results import load_result, save_result
from jaxkern.xpcs.simulation import check_room, simulate_to_file


@dataclass(frozen=True)
class Measurement:
    """What a configuration chooses of a file, and the model of it.

    Attributes:
      path: of the file.
      data: the chosen angles and frames, read in slabs.
      model: with the geometry of these.
      keep: [n_t] u8, 0 at bad frames.
    """

    path: Path
    data: Prepared
    model: Model
    keep: NDArray[np.uint8]

    def describe(self) -> str:
        n_phi, n_t, _ = self.data.shape
        geometry = self.model.geometry
        return (
            f"{self.path}: {n_phi} angles of {n_t} frames ({n_phi * n_t**2 / 1e6:.2f} M points), "
            f"q {geometry.q:.6g} 1/Angstrom, {int((self.keep == 0).sum())} bad frames"
        )


def make_model(config: Config, q: float, phi: Any, n_t: int) -> Model:
    """The model of the settings for frames ``start_time + dt k``."""
    experiment, analysis = config.experiment, config.analysis
    geometry = Geometry(
        q=q,
        gap=experiment.gap,
        dt=experiment.dt,
        t=experiment.start_time + experiment.dt * np.arange(n_t),
        phi=phi,
    )
    if analysis.model == "static":
        return Static(geometry)
    return LaminarFlow(geometry, shear_power=analysis.shear_power)


@contextlib.contextmanager
def open_measurement(config: Config, folder: str | Path = ".") -> Iterator[Measurement]:
    """Opens the data file of the settings and applies their choice of q, phi and frames.

    Args:
      config: the settings.
      folder: what relative paths of the settings are relative to.

    Raises:
      FileNotFoundError, ApsFormatError, ConfigError: see there.
      ValueError: a q that the file does not have, no angle in the ranges, frames it does not have.
    """
    files, analysis = config.data_files, config.analysis
    path = Path(folder) / home_path(files.file)
    with ApsFile(path, None if files.layout == "auto" else files.layout) as file:
        if files.q is None and len(np.unique(file.q)) > 1:
            there = ", ".join(f"{q:.6g}" for q in np.unique(file.q))
            raise ConfigError(f"{path} has several q; set data_files.q to one of {there}")
        wanted = float(file.q[0]) if files.q is None else files.q
        chosen = select_q(file.q, wanted, files.q_tolerance)
        q = float(file.q[chosen][0])
        if analysis.phi_filtering.enabled:
            inside = select_phi(file.phi, analysis.phi_filtering.ranges)
            if not (chosen & inside).any():
                there = ", ".join(f"{phi:g}" for phi in file.phi[chosen])
                raise ConfigError(
                    f"no angle of {path} is in analysis.phi_filtering.ranges "
                    f"{[list(pair) for pair in analysis.phi_filtering.ranges]}; there are {there}"
                )
            chosen &= inside
        n_t = file.shape[1]
        window = frame_window(n_t, analysis.frames.start, analysis.frames.end)
        keep = frames_to_keep(n_t, analysis.frames.bad)[slice(*window)]
        data = Prepared(file, chosen, window, analysis.diagonal_correction)
        model = make_model(config, q, file.phi[chosen], data.shape[1])
        yield Measurement(path, data, model, keep)


def fit_measurement(
    config: Config, measurement: Measurement, output: str | Path, *, progress: bool = True
) -> FitResult:
    """Fits with the settings; checkpoints go to ``output/checkpoints`` unless they say where."""
    start, how = config.initial_parameters, config.optimization
    streaming = how.streaming
    place = streaming.checkpoint_dir
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
        loss=how.loss,
        f_scale=how.f_scale,
        absolute_sigma=how.absolute_sigma,
        ftol=how.ftol,
        xtol=how.xtol,
        gtol=how.gtol,
        max_nfev=how.max_nfev,
        multistart=how.multistart.starts,
        seed=how.multistart.seed,
        strategy=None if how.strategy == "auto" else how.strategy,
        streaming=StreamingOptions(
            enable_checkpoints=streaming.enable_checkpoints,
            checkpoint_frequency=streaming.checkpoint_frequency,
            checkpoint_dir=Path(output) / "checkpoints" if place is None else place,
            max_checkpoint_overhead=streaming.max_checkpoint_overhead,
            chunk_points=streaming.chunk_points,
            on_bad_chunk=streaming.on_bad_chunk,
            retries=streaming.retries,
        ),
        progress=progress,
    )


def save(
    config: Config, measurement: Measurement, result: FitResult, output: str | Path
) -> list[Path]:
    """Writes the result with the settings; returns the paths."""
    return list(save_result(output, result, measurement.model.geometry, as_tree(config)))


def plot_measurement(config: Config, measurement: Measurement, output: str | Path) -> list[Path]:
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
    views = plot.view_angles(
        measurement.data,
        measurement.model,
        arrays["physics"],
        arrays["contrast"],
        arrays["offset"],
        arrays.get("sigma"),
        keep=measurement.keep,
        angles=config.output.angles,
    )
    dpi = config.output.dpi
    return [
        plot.plot_maps(output / "maps.png", views, dpi=dpi),
        plot.plot_cuts(output / "cuts.png", views, dpi=dpi),
        plot.plot_convergence(output / "convergence.png", arrays["costs"].tolist(), dpi=dpi),
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
    model = make_model(config, how.q, np.asarray(how.phi), how.frames)
    params = model.defaults
    for name, value in how.parameters.items():
        if name not in model.parameter_names:
            raise ConfigError(unknown_name(name, model.parameter_names, "simulation.parameters"))
        params[model.parameter_names.index(name)] = value
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
        "parameters": dict(zip(model.parameter_names, params.tolist(), strict=True)),
        "contrast": np.broadcast_to(how.contrast, (len(how.phi),)).tolist(),
        "offset": np.broadcast_to(how.offset, (len(how.phi),)).tolist(),
        "noise": how.noise,
        "seed": how.seed,
        "file": str(path),
    }
    return path, truth


def save_truth(output: str | Path, truth: dict[str, Any]) -> Path:
    """Writes what a data set was simulated with to ``output/truth.json``."""
    path = Path(output) / "truth.json"
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(truth, indent=2) + "\n")
    os.replace(partial, path)
    return path
