"""From settings to results: opens, fits, saves and plots a measurement."""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.paths import home_path
from jaxkern.xpcs.analysis import exports, fit_plots
from jaxkern.xpcs.analysis.settings import Config, ConfigError, DataFiles, Experiment
from jaxkern.xpcs.files.aps import ApsFile
from jaxkern.xpcs.files.prepare import (
    Prepared,
    frame_window,
    frames_to_keep,
    same_direction,
    select_phi,
    select_q,
)
from jaxkern.xpcs.files.simulation import check_room, simulate_to_file
from jaxkern.xpcs.fitting.fit import fit
from jaxkern.xpcs.fitting.options import ErrorOptions, SolverOptions, StreamingOptions
from jaxkern.xpcs.fitting.parameters import physics_vector
from jaxkern.xpcs.fitting.posterior import Posterior, posterior
from jaxkern.xpcs.fitting.result import FitResult, load_result, save_result
from jaxkern.xpcs.model.components import TwoComponent
from jaxkern.xpcs.model.models import Geometry, LaminarFlow, Model, Static, StaticIsotropic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Settings of `optimization` that are fields of `SolverOptions`.
_SOLVER_SETTINGS = ["loss", "f_scale", "ftol", "xtol", "gtol", "max_nfev"]

# Defaults of `simulate` in s and Angstrom. For measurements these numbers must be known.
SIMULATED_DT, SIMULATED_GAP = 0.1, 2.0e6
# Relative tolerance of the time between frames.
_SAME_DT = 1e-6


@dataclass(frozen=True)
class OpenMeasurement:
    """Data of a file that the settings select, and their model."""

    path: Path
    data: Prepared
    model: Model
    keep: NDArray[np.uint8]  # [n_t], 0 at bad frames
    conditions: tuple[str, ...] = ()  # descriptions of q, dt and gap with their sources
    notes: tuple[str, ...] = ()  # messages that are always printed

    def describe(self) -> str:
        """Return a description of the data and the conditions."""
        n_phi, n_t, _ = self.data.shape
        return (
            f"{self.path}: {n_phi} angles of {n_t} frames ({n_phi * n_t**2 / 1e6:.2f} M points), "
            f"{', '.join(self.conditions)}, {int((self.keep == 0).sum())} bad frames"
        )


def make_model(
    config: Config, q: float, phi: Any, n_t: int, *, dt: float, gap: float | None
) -> Model:
    """Return the model of the settings for frames at ``start_time + dt k``."""
    analysis = config.analysis
    start = config.experiment.start_time
    if start < 0:
        raise ConfigError(f"experiment.start_time: expected 0 s or more, got {start:g}")
    geometry = Geometry(q=q, gap=gap, dt=dt, t=start + dt * np.arange(n_t), phi=phi)
    without_shear = {
        "static": Static, "static_isotropic": StaticIsotropic, "two_component": TwoComponent
    }  # fmt: skip
    if analysis.model in without_shear:
        return without_shear[analysis.model](geometry)
    return LaminarFlow(geometry, shear_power=analysis.shear_power)


@contextlib.contextmanager
def open_measurement(config: Config, folder: str | Path = ".") -> Iterator[OpenMeasurement]:
    """Open the data file of the settings, relative to a folder, and select q, phi and frames."""
    files, analysis = config.data_files, config.analysis
    path = Path(folder) / home_path(files.file)
    with ApsFile(path, None if files.layout == "auto" else files.layout) as file:
        inside = choose_angles(config, file)
        chosen, q, q_description, q_notes = choose_ring(files, file, inside)
        dt, dt_description, dt_notes = time_step(config.experiment, file.dt, path)
        gap = check_gap(config)
        n_t = file.shape[1]
        with warnings.catch_warnings(record=True) as clamped:
            warnings.simplefilter("always")
            window = frame_window(n_t, analysis.frames.start, analysis.frames.end)
        notes = (*q_notes, *dt_notes, *(f"analysis.frames.{w.message}" for w in clamped))
        keep = frames_to_keep(n_t, analysis.frames.bad)[slice(*window)]
        keep[0] &= not analysis.frames.exclude_first
        data = Prepared(file, chosen, window, analysis.diagonal_correction)
        model = make_model(config, q, file.phi[chosen], data.shape[1], dt=dt, gap=gap)
        gap_description = "no gap" if gap is None else f"gap {gap:.6g} Angstrom"
        conditions = (q_description, dt_description, gap_description)
        yield OpenMeasurement(path, data, model, keep, conditions, notes)


def fit_measurement(
    config: Config, measurement: OpenMeasurement, output: str | Path, *, progress: bool = True
) -> FitResult:
    """Fit with the settings; by default, checkpoints are written to ``output/checkpoints``."""
    start, how = config.initial_parameters, config.optimization
    streaming = dataclasses.asdict(how.streaming) | {
        "checkpoint_dir": how.streaming.checkpoint_dir or Path(output) / "checkpoints",
        "strategy": None if how.strategy == "auto" else how.strategy,
    }
    solver = {name: getattr(how, name) for name in _SOLVER_SETTINGS}
    solver |= {"multistart": how.multistart.starts, "seed": how.multistart.seed}
    return fit(
        measurement.model,
        measurement.data,
        config.data_files.sigma,
        *(start.values, start.contrast, start.offset, config.scaling),
        fourier_order=config.fourier_order,
        bounds=start.bounds or None,
        hold=start.hold,
        keep=measurement.keep,
        search=how.search,
        solver=SolverOptions(allow_bounds=start.allow_bounds, **solver),
        errors=ErrorOptions(how.errors, how.absolute_sigma),
        streaming=StreamingOptions(**streaming),
        progress=progress,
    )


def sample_posterior(
    config: Config, measurement: OpenMeasurement, result: FitResult, **options: Any
) -> Posterior:
    """Sample the posterior of a fit with the settings; `options` are those of `posterior`."""
    return posterior(
        measurement.model,
        measurement.data,
        result,
        bounds=config.initial_parameters.bounds or None,
        **options,
    )


def save(
    config: Config, measurement: OpenMeasurement, result: FitResult, output: str | Path
) -> list[Path]:
    """Write the result, the settings and the requested exports; return the paths."""
    model = measurement.model
    settings = dataclasses.asdict(config)
    settings["data_files"]["file"] = str(measurement.path.absolute())
    paths = list(save_result(output, result, model.geometry, settings))
    if config.output.fitted_c2:
        fitted = Path(output) / "fitted.h5"
        simulate_to_file(fitted, model, result.physics, result.contrast, result.offset)
        paths.append(fitted)
    if config.output.nlsq_files:
        paths += exports.save_nlsq_files(output, measurement.data, model, result)
    if config.output.text_columns:
        paths += exports.save_text_columns(output, measurement.data, model, result)
    return paths


def plot_measurement(
    config: Config, measurement: OpenMeasurement, output: str | Path
) -> list[Path]:
    """Plot the result in ``output`` with the data, and return the paths."""
    geometry = measurement.model.geometry
    title = (
        f"{measurement.path.name}, q {geometry.q:.4g} 1/Angstrom, "
        f"{geometry.n_phi} angles of {geometry.n_t} frames"
    )
    _, figures = draw_measurement(config, measurement, output)
    return fit_plots.save_figures(Path(output), figures.items(), title, config.output.dpi)


def draw_measurement(
    config: Config, measurement: OpenMeasurement, output: str | Path
) -> tuple[list[fit_plots.AngleView], dict[str, Figure]]:
    """Return the data of the plotted angles with the result in ``output``, and figures by name."""
    _, arrays = load_result(output)
    geometry = measurement.model.geometry
    for name in ("phi", "t"):
        if not np.array_equal(arrays[name], getattr(geometry, name)):
            raise ValueError(
                f"{output}: expected a result of the {geometry.n_phi} angles and {geometry.n_t} "
                f"frames that the settings select, got {arrays['phi'].size} and "
                f"{arrays['t'].size} (or others); fit again or use the settings of the result"
            )
    model = measurement.model
    views = fit_plots.view_angles(
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
    fitted = (names, arrays["popt"], arrays["pcov"])
    return views, {
        "maps": fit_plots.plot_maps(views),
        "cuts": fit_plots.plot_cuts(views),
        "residuals": fit_plots.plot_residuals(views),
        "parameters": fit_plots.plot_parameters(model, arrays["physics"], *fitted),
        "convergence": fit_plots.plot_convergence(arrays["costs"]),
    }


def simulate_data(
    config: Config, folder: str | Path = ".", progress: Callable[[int, int], None] | None = None
) -> tuple[Path, dict[str, Any]]:
    """Write simulated data to the file of the settings; return its path and the true values."""
    how = config.simulation
    path = Path(folder) / home_path(config.data_files.file)
    if how.frames < 2:
        raise ConfigError(f"simulation.frames: expected at least 2, got {how.frames}")
    check_room(path, len(how.phi), how.frames, how.dtype)  # before the model allocates arrays
    dt = SIMULATED_DT if config.experiment.dt is None else config.experiment.dt
    gap = SIMULATED_GAP if config.experiment.gap is None else config.experiment.gap
    model = make_model(config, how.q, np.asarray(how.phi), how.frames, dt=dt, gap=gap)
    names = model.parameter_names
    params = physics_vector(how.parameters, names, model.defaults, "simulation.parameters")
    layout = "aps-u" if config.data_files.layout == "auto" else config.data_files.layout
    same = ("noise", "diagonal_artifact", "seed", "dtype")
    options: dict[str, Any] = {name: getattr(how, name) for name in same}
    simulate_to_file(
        path, model, params, how.contrast, how.offset, layout=layout, progress=progress, **options
    )
    truth = {
        "model": config.analysis.model,
        "parameters": dict(zip(names, params.tolist(), strict=True)),
        "contrast": np.broadcast_to(how.contrast, (len(how.phi),)).tolist(),
        "offset": np.broadcast_to(how.offset, (len(how.phi),)).tolist(),
        **{name: getattr(how, name) for name in ("noise", "seed", "q")},
        "dt": dt,
        "gap": gap,
        "file": str(path),
    }
    return path, truth


def choose_angles(config: Config, file: ApsFile) -> NDArray[np.bool_]:
    """Return a mask of the file's entries at the angles of the settings."""
    filtering = config.analysis.phi_filtering
    if not filtering.enabled:
        return np.ones(len(file.phi), bool)
    inside = select_phi(file.phi, filtering.ranges)
    if not inside.any():
        raise ConfigError(
            "analysis.phi_filtering.ranges: expected ranges that contain some of the angles "
            f"{some(file.phi)} of {file.path}, got {[list(pair) for pair in filtering.ranges]}"
        )
    return inside


def check_gap(config: Config) -> float | None:
    """Return the gap of the settings, which the laminar model needs."""
    gap = config.experiment.gap
    if gap is None and config.analysis.model == "laminar_flow":
        raise ConfigError(
            "experiment.gap: expected the gap between stator and rotor in Angstrom for "
            f"laminar_flow, got null (the default of `simulate` is {SIMULATED_GAP:g})"
        )
    return gap


def choose_ring(
    files: DataFiles, file: ApsFile, inside: NDArray[np.bool_]
) -> tuple[NDArray[np.bool_], float, str, tuple[str, ...]]:
    """Return a mask of the entries to fit together, their mean q, a description, and notes.

    These are the entries `inside` with the q nearest to that of the settings at each angle, see
    `select_q`. If the file has a grid of q and phi, they are those of the nearest q only, so that
    an empty cell is not replaced by a cell of the next ring.
    """
    if not 0 <= files.q_tolerance < 1:
        raise ConfigError(f"data_files.q_tolerance: expected 0 to 1, got {files.q_tolerance:g}")
    grid = file.layout == "aps-u"
    q, phi = file.q[inside], file.phi[inside]
    requested = float(q.mean()) if files.q is None else files.q
    try:
        selected = select_q(q, requested, files.q_tolerance, phi=phi)
        if grid and files.q is not None:
            selected = np.isclose(q, q[np.abs(q - requested).argmin()], rtol=1e-9, atol=0)
    except ValueError as error:
        if files.q is not None:
            raise ConfigError(f"{file.path}: {error}") from error
        selected = np.zeros(len(q), bool)
    if files.q is None and not selected.all():
        raise ConfigError(f"{file.path} has several q; set data_files.q to one of {some(q)}")
    chosen = np.zeros(len(file.q), bool)
    chosen[inside] = selected
    low, high = float(q[selected].min()), float(q[selected].max())
    mean = low if low == high else float(q[selected].mean())
    details = []
    if high - low > 1e-6 * mean:
        details.append(f"the mean of {low:.6g} to {high:.6g}")
    if abs(requested - mean) > 1e-6 * mean:
        details.append(f"requested {requested:.6g}")
    description = f"q {mean:.6g} 1/Angstrom" + (f" ({', '.join(details)})" if details else "")
    missing = sorted({float(p) for p in phi if not same_direction(p, phi[selected]).any()})
    if not missing:
        return chosen, mean, description, ()
    ring = f"of q {mean:.6g}" if grid else f"within {files.q_tolerance:.3g} of q {requested:.6g}"
    note = (
        f"{len(missing)} angles of the file have no matrix {ring} and are left out: "
        f"phi {some(np.array(missing))}"
    )
    return chosen, mean, description, (note,)


def time_step(
    experiment: Experiment, measured: float | None, path: Path
) -> tuple[float, str, tuple[str, ...]]:
    """Return the seconds between frames, a description with their source, and notes."""
    dt = experiment.dt
    if dt is None:
        if measured is None:
            raise ConfigError(f"{path} has no time between frames; set experiment.dt, in seconds")
        return measured, f"dt {measured:.6g} s (file)", ()
    if measured is None:
        return dt, f"dt {dt:.6g} s (settings)", ()
    if abs(dt - measured) <= _SAME_DT * measured:
        return dt, f"dt {dt:.6g} s (file and settings)", ()
    difference = f"experiment.dt is {dt:.9g} s, but the frames of {path} are {measured:.9g} s apart"
    if not experiment.dt_override:
        raise ConfigError(
            f"{difference}; remove experiment.dt, or set experiment.dt_override: true if the file "
            "is wrong"
        )
    return dt, f"dt {dt:.6g} s (settings)", (f"{difference}; experiment.dt_override is set",)


def some(values: NDArray[np.float64], most: int = 12) -> str:
    """Format the different numbers in order, at most `most` of them."""
    different = np.unique(values)
    shown = ", ".join(f"{x:.6g}" for x in different[:most])
    if len(different) <= most:
        return shown
    return f"{shown}, ... ({len(different)} from {different[0]:.6g} to {different[-1]:.6g})"
