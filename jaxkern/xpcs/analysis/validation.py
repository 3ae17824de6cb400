"""Check of all settings and files of a fit, which lists every problem and fits nothing."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from jaxkern.core.paths import home_path
from jaxkern.xpcs.analysis import run
from jaxkern.xpcs.analysis.checking import check_file
from jaxkern.xpcs.analysis.settings import Config, find_problems, parse_config
from jaxkern.xpcs.files.aps import ApsFile
from jaxkern.xpcs.files.prepare import frame_window, frames_to_keep
from jaxkern.xpcs.fitting.options import SolverOptions, StreamingOptions
from jaxkern.xpcs.fitting.parameters import FitLayout, fit_bounds, fourier_series, unknown_name
from jaxkern.xpcs.fitting.sampling import resolve_frames
from jaxkern.xpcs.model.models import Model

T = TypeVar("T")


class _Problems(list[str]):
    """Messages of problems."""

    def check(self, prefix: str, function: Callable[..., T], *args: Any, **more: Any) -> T | None:
        """Call a function, and add the message of its error."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                return function(*args, **more)
        except (ValueError, OSError) as error:
            self.append(f"{prefix}{error}")
            return None


def find_config_problems(tree: Any, folder: str | Path = ".") -> list[str]:
    """Return a message for every problem of settings and of the files that they name.

    Args:
      tree: nested mappings of settings, as in the YAML file.
      folder: relative paths are relative to it.

    Example:
      >>> tree = {"scaling": "none", "optimization": {"f_scale": -1, "tol": 0}}
      >>> for line in find_config_problems(tree):
      ...     print(line.partition(", got")[0].partition(";")[0])
      scaling: expected one of auto, individual, constant, fixed, fourier
      unknown key optimization.tol
      optimization.f_scale: expected a number > 0
      experiment.gap: expected the gap between stator and rotor in Angstrom for laminar_flow
      data_files.file: no such file: 'data.h5'
    """
    problems = _Problems()
    tree = {} if tree is None else tree
    for names, message in list(find_problems(tree)):
        problems.append(message)
        if not names:
            return problems
        # The rest is checked with the default in its place.
        *parents, key = names
        section = tree
        for step in parents:
            section = section[step]
        section.pop(key, None)
    config = parse_config(tree)
    _check_options(config, problems)
    problems.check("", run.check_gap, config)
    model = run.make_model(
        parse_config({"analysis": {"model": config.analysis.model}}), 0.01, [0.0], 3, dt=1, gap=1.0
    )
    _check_parameters(config, model, problems)
    path = Path(folder) / home_path(config.data_files.file)
    if not path.is_file():
        problems.append(f"data_files.file: no such file: {str(path)!r}")
        return problems
    damage = check_file(path).error
    if damage is not None:
        problems.append(f"data_files.file: {path} is damaged: {damage}")
        return problems
    layout = config.data_files.layout
    file = problems.check("data_files: ", ApsFile, path, None if layout == "auto" else layout)
    if file is not None:
        with file:
            _check_data(config, file, model, problems)
    return problems


def _check_options(config: Config, problems: _Problems) -> None:
    """Check the settings of the solver, one by one, and the limits."""
    how = config.optimization
    names = ["loss", "f_scale", "ftol", "xtol", "gtol", "max_nfev"]
    for options, section, entries in (
        (SolverOptions, "optimization", {name: getattr(how, name) for name in names}),
        (StreamingOptions, "optimization.streaming", vars(how.streaming)),
    ):
        for key, value in entries.items():
            if value is not None:
                problems.check(f"{section}.", _one_option, options, key, value)
    starts = how.multistart
    problems.check("optimization.", SolverOptions, multistart=starts.starts)
    problems.check("optimization.multistart.", SolverOptions, seed=starts.seed)
    sigma = config.data_files.sigma
    for name, value, low in (
        ("optimization.threads", how.threads, 1),
        ("optimization.memory_limit", how.memory_limit, 0),
        ("data_files.sigma", sigma, 0),
        ("output.dpi", config.output.dpi, 1),
        ("output.angles", config.output.angles, 1),
        ("experiment.dt", config.experiment.dt, 0),
        ("experiment.gap", config.experiment.gap, 0),
        ("experiment.start_time", config.experiment.start_time, 0),
    ):
        is_strict = low == 0 and name != "experiment.start_time"
        if value is None:
            continue
        if not low <= value < math.inf or (is_strict and value == 0):
            problems.append(
                f"{name}: expected {'more than' if is_strict else 'at least'} {low}, got {value:g}"
            )


def _one_option(options: Any, key: str, value: Any) -> None:
    if key in ("ftol", "xtol", "gtol") and not value > 0:
        raise ValueError(f"{key}: expected a number > 0, got {value!r}")
    options(**{key: value})


def _check_parameters(config: Config, model: Model, problems: _Problems) -> None:
    """Check names, bounds and starts."""
    start, names = config.initial_parameters, model.parameter_names
    section = "initial_parameters"
    for key in ("values", "hold"):
        for name in getattr(start, key):
            if name not in names:
                problems.append(f"{section}.{unknown_name(name, names, key)}")
    if set(names) <= set(start.hold) and config.scaling == "fixed":
        problems.append(
            f"{section}.hold: expected at least one free parameter, got the names of all"
        )
    layout = FitLayout(np.ones((1, 1)), ("",), names, model.units, np.ones(1), np.ones(1))
    for name, pair in start.bounds.items():
        problems.check(f"{section}.", fit_bounds, {name.split("[")[0]: pair}, layout, model)


def _check_data(config: Config, file: ApsFile, model: Model, problems: _Problems) -> None:
    """Check what the settings select in a file."""
    analysis = config.analysis
    inside = problems.check("", run.choose_angles, config, file)
    if inside is None:
        inside = np.ones(len(file.phi), bool)
    ring = problems.check("", run.choose_ring, config.data_files, file, inside)
    problems.check("", run.time_step, config.experiment, file.dt, file.path)
    n_t = file.shape[1]
    frames = analysis.frames
    window = problems.check("analysis.frames.", frame_window, n_t, frames.start, frames.end)
    keep = problems.check("analysis.frames.", frames_to_keep, n_t, frames.bad)
    if window is not None and keep is not None:
        kept = keep[slice(*window)]
        kept[0] &= not frames.exclude_first
        prefix = "analysis.frames: "
        problems.check(prefix, resolve_frames, kept, len(kept), model.unused_frames)
    if ring is not None and config.scaling == "fourier":
        problems.check("", fourier_series, file.phi[ring[0]], config.fourier_order)
    for name in ("contrast", "offset"):
        value = getattr(config.initial_parameters, name)
        count = None if ring is None else int(ring[0].sum())
        if isinstance(value, tuple) and count is not None and len(value) != count:
            problems.append(
                f"initial_parameters.{name}: expected 1 or {count} numbers, got {len(value)}"
            )
