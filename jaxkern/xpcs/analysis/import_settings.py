"""Import of the settings of homodyne, xpcsjax and heterodyne: a table of their keys."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal

from jaxkern.xpcs.analysis.settings import Config, ConfigError, parse_config

_NLSQ, _OLD = "optimization.nlsq", "optimization_config"
_MODES = {
    "static": "static",
    "static_anisotropic": "static",
    "static_isotropic": "static_isotropic",
    "laminar_flow": "laminar_flow",
    "two_component": "two_component",
    "heterodyne": "two_component",
}
_MODE_KEYS = ("analysis_mode", f"{_NLSQ}.analysis_mode", "metadata.analysis_mode")
_LAYOUTS = {"aps_old": "aps", "aps_u": "aps-u"}
_NAMES = {
    **dict.fromkeys(("gamma0", "gamma_dot_0"), "gamma_dot_t0"),
    **dict.fromkeys(("gamma_offset", "gamma_dot_offset"), "gamma_dot_t_offset"),
    "phi_0": "phi0",
}
_NAMES_OF_TWO_COMPONENTS = {"beta": "v_beta", "phi0": "phi0_het", "phi_0": "phi0_het"}
# Sections that the older packages call differently.
_SECTIONS = {
    "analyzer_parameters.temporal.": "analyzer_parameters.",
    f"{_OLD}.angle_filtering.": "phi_filtering.",
}
# The scaling of their modes: "constant" is fixed at estimates, and "averaged" fits one pair.
_SCALINGS = {name: name for name in ("auto", "individual", "fourier")}
_SCALINGS |= {"averaged": "constant", "constant": "fixed"}
# Keys whose value is copied to a setting; null means the default in both.
_COPIED = {
    "analyzer_parameters.end_frame": "analysis.frames.end",
    "analyzer_parameters.scattering.wavevector_q": "data_files.q",
    "analyzer_parameters.geometry.stator_rotor_gap": "experiment.gap",
    "experimental_data.apply_diagonal_correction": "analysis.diagonal_correction",
    "experimental_data.preprocessing.apply_diagonal_correction": "analysis.diagonal_correction",
    "advanced_settings.data_loading.use_diagonal_correction": "analysis.diagonal_correction",
    f"{_NLSQ}.max_iterations": "optimization.max_nfev",
    f"{_NLSQ}.max_nfev": "optimization.max_nfev",
    f"{_NLSQ}.tolerance": "optimization.ftol",
    f"{_NLSQ}.ftol": "optimization.ftol",
    f"{_NLSQ}.xtol": "optimization.xtol",
    f"{_NLSQ}.gtol": "optimization.gtol",
    f"{_NLSQ}.loss": "optimization.loss",
    f"{_NLSQ}.f_scale": "optimization.f_scale",
    f"{_NLSQ}.multi_start.seed": "optimization.multistart.seed",
    f"{_NLSQ}.anti_degeneracy.fourier_order": "fourier_order",
    f"{_NLSQ}.fourier_order": "fourier_order",
    "optimization.streaming.enable_checkpoints": "optimization.streaming.enable_checkpoints",
    "optimization.streaming.checkpoint_dir": "optimization.streaming.checkpoint_dir",
    "optimization.streaming.checkpoint_frequency": "optimization.streaming.checkpoint_frequency",
    "optimization.streaming.max_retries_per_batch": "optimization.streaming.retries",
    "optimization.streaming.batch_size": "optimization.streaming.chunk_points",
    "performance.memory_limit_gb": "optimization.memory_limit",
    "plotting.save_plots": "output.plots",
    "plotting.dpi": "output.dpi",
}
# Keys with an effect that this package has for these values only.
_FIXED: dict[str, tuple[Any, ...]] = {
    "analyzer_parameters.frame_step": (1, None),
    "analyzer_parameters.time_unit": ("seconds", "s", None),
    "analyzer_parameters.dt_unit": ("seconds", "s", None),
    "analyzer_parameters.scattering.q_unit": ("Å⁻¹", "1/Angstrom", "A^-1", None),
    "analyzer_parameters.geometry.gap_unit": ("Å", "Angstrom", "A", None),
    "experimental_data.exchange_key": ("exchange", None),
    "initial_parameters.tied_parameters": (None, {}),
    "optimization.method": ("nlsq", None),
    "optimization.angle_filtering.enabled": (False, None),
    f"{_NLSQ}.method": ("trf", None),
    f"{_NLSQ}.x_scale": ("jac", None),
    f"{_NLSQ}.nlsq_x_scale": ("jac", None),
    f"{_NLSQ}.x_scale_map": (None, {}),
    f"{_NLSQ}.trust_region_scale": (1, None),
    f"{_NLSQ}.regularization_mode": ("none", None),
    f"{_NLSQ}.anti_degeneracy.regularization.enable": (False, None),
    f"{_NLSQ}.anti_degeneracy.constant_scaling_threshold": (3, None),
    f"{_NLSQ}.constant_scaling_threshold": (3, None),
}
_SOLVER = "the normal equations need no such step"
_SEARCH = "optimization.search compares starts"
_STREAM = "the fit chooses chunks by size and memory limit"
_MCMC = "a setting of posterior sampling"
_FILES = "fit writes JSON, npz and plots to --output-dir"
_FOURIER = "scaling: auto chooses no Fourier series"
_SCALE = "contrast and baseline are fitted within initial_parameters.bounds"
# Beginnings of keys without an equivalent, and why none is needed; the longest one counts.
_UNUSED = {
    "metadata": "a description",
    "analysis_settings": "a description; the model has its own equations",
    "analyzer_parameters.frame_description": "a description",
    "analyzer_parameters.scattering.typical_range": "a description",
    "analyzer_parameters.geometry.gap_in_microns": "stator_rotor_gap is used",
    "analyzer_parameters.computational": "the process's own limits of cores and memory apply",
    "experimental_data.phi_angles": "angles are read from the data file",
    "experimental_data.cache": "data files are read without a cache",
    "experimental_data.use_caching": "data files are read without a cache",
    "experimental_data.data_type": "dtype and layout are detected",
    "experimental_data.file_format": "the format is detected",
    "experimental_data.preprocessing.vectorized_correction": "one implementation",
    "experimental_data.preprocessing.cache_processed_data": "data files are read without a cache",
    "experimental_data.preprocessing.normal": "no program reads it; the baseline is fitted",
    "phi_filtering.fallback_to_all_angles": "ranges without an angle are an error here",
    "phi_filtering.algorithm": "only range_based exists",
    "phi_filtering.tolerance": "ranges are exact",
    "phi_filtering.quality_control": "the fit reports which angles it uses",
    "initial_parameters.units": "units are fixed",
    "initial_parameters.parameter_units": "units are fixed",
    "initial_parameters.physical_meaning": "a description",
    "parameter_space.model": "analysis_mode is used",
    "parameter_space.priors": _MCMC,
    "optimization.angle_filtering": "phi_filtering is used",
    "optimization.cmc": _MCMC,
    "optimization.mcmc": _MCMC,
    "optimization.streaming": _STREAM,
    "optimization.stratification": _STREAM,
    "optimization.sequential": "all angles are fitted together",
    "optimization.recovery": _SOLVER,
    _NLSQ + ".workflow": _STREAM,
    _NLSQ + ".goal": "tolerances are copied",
    _NLSQ + ".memory_fraction": _STREAM,
    _NLSQ + ".nlsq_": _SOLVER,
    _NLSQ + ".nlsq_memory": _STREAM,
    _NLSQ + ".verbose": "--quiet is an option of the command",
    _NLSQ + ".progress": "--quiet is an option of the command",
    _NLSQ + ".diagnostics": "every fit reports them",
    _NLSQ + ".enable_diagnostics": "every fit reports them",
    _NLSQ + ".quality_validation": "`success` tests the residuals and the bounds",
    _NLSQ + ".validation": "`success` tests the residuals and the bounds",
    _NLSQ + ".use_": _SOLVER,
    _NLSQ + ".anti_degeneracy": _SOLVER,
    _NLSQ + ".anti_degeneracy.shear_weighting": "all angles have the weight 1/sigma^2",
    _NLSQ + ".enable_hierarchical": _SOLVER,
    _NLSQ + ".hierarchical": _SOLVER,
    _NLSQ + ".regularization_target": "regularization is off",
    _NLSQ + ".group_variance_lambda": "regularization is off",
    _NLSQ + ".anti_degeneracy.regularization": "regularization is off",
    _NLSQ + ".anti_degeneracy.fourier": _FOURIER,
    _NLSQ + ".fourier": _FOURIER,
    _NLSQ + ".enable_gradient_monitoring": _SOLVER,
    _NLSQ + ".gradient": _SOLVER,
    _NLSQ + ".cmaes": _SEARCH,
    _NLSQ + ".enable_cmaes": _SEARCH,
    _NLSQ + ".multi_start": _SEARCH,
    _NLSQ + ".sampling_strategy": _SEARCH,
    _NLSQ + ".screen_keep_fraction": _SEARCH,
    _NLSQ + ".refine_top_k": _SEARCH,
    _NLSQ + ".hybrid": _STREAM,
    _NLSQ + ".enable_streaming": _STREAM,
    _NLSQ + ".streaming_chunk_size": _STREAM,
    _NLSQ + ".enable_stratified": _STREAM,
    _NLSQ + ".target_chunk_size": _STREAM,
    _NLSQ + ".enable_recovery": _SOLVER,
    _NLSQ + ".max_recovery_attempts": _SOLVER,
    _NLSQ + ".recovery": _SOLVER,
    _OLD + ".classical_optimization": "SciPy's trust region with exact derivatives replaces it",
    _OLD + ".robust_optimization": "optimization.loss has robust losses",
    _OLD + ".scaling_parameters": _SCALE,
    "noise_estimation": "data_files.sigma decides",
    "performance.enable_progress": "--quiet is an option of the command",
    "performance.memory_optimization": _STREAM,
    "performance.computation": "kernels are compiled",
    "performance_settings": "kernels are compiled",
    "advanced_settings.data_loading": "one implementation",
    "advanced_settings.chi_squared_calculation": "sigma is estimated from the data",
    "advanced_settings.numerical_integration": "the cumulative trapezoid on the frames is used",
    "advanced_settings.optimization_controls": "settings of the replaced optimizers",
    "heterodyne_specific_notes": "a description",
    "logging": "messages go to the terminal",
    "quality_control": "the fit tests its residuals",
    "validation": "`jaxkern xpcs validate` checks a file",
    "validation_rules": "the fit tests its residuals",
    "workflow_integration": _FILES,
    "plotting": "plots have one style",
    "output": _FILES,
    "output_settings": _FILES,
}
_BOUND_KEYS = {"name", "min", "max", "unit", "type", "prior_mu", "prior_sigma", "log_space"}
Outcome = Literal["translated", "not needed", "error"]


@dataclass(frozen=True)
class ImportedKey:
    """A key of the imported file and its outcome, with the setting or the reason."""

    key: str
    outcome: Outcome
    text: str


@dataclass
class _Import:
    """The state of one import: leaves of the old file, new settings, and the outcomes."""

    leaves: dict[str, Any]
    names: dict[str, str]  # of the leaves in the file, by key
    settings: dict[str, Any] = field(default_factory=dict)
    outcomes: list[ImportedKey] = field(default_factory=list)
    read: dict[str, str] = field(default_factory=dict)  # keys and the settings that use them
    fixed_scaling: bool = False  # contrast and offset are among the fixed parameters

    def take(self, key: str, setting: str, default: Any = None) -> Any:
        """Remove a leaf that a setting uses, and return its value."""
        if key in self.leaves:
            self.read[key] = setting
        return self.leaves.pop(key, default)

    def take_list(self, key: str, setting: str) -> list[Any]:
        """Remove a leaf that is a list, and return it; an empty one for null."""
        value = self.take(key, setting)
        if value is not None and not isinstance(value, list):
            self.add(key, "error", f"expected a list, got {value!r:.60}")
        return value if isinstance(value, list) else []

    def add(self, key: str, outcome: Outcome, text: str) -> None:
        self.outcomes.append(ImportedKey(self.names.get(key, key), outcome, text))

    def set(self, key: str, setting: str, value: Any) -> None:
        """Set a setting from a key of the file or their default; null keeps the default here."""
        if value is not None:
            self.settings[setting] = value
        if value is not None or key in self.read or key in self.leaves:
            suffix = "" if key in self.read else " (not in the file)"
            self.add(key, "translated", f"{setting}: {'null' if value is None else value}{suffix}")


def import_settings(tree: Any) -> tuple[Config | None, tuple[ImportedKey, ...]]:
    """Translate the settings of homodyne, homodyne-analysis, xpcsjax or heterodyne.

    Values that their files omit have their defaults: the loss soft_l1 with sigma 0.01, or 1 for two
    components, whose residuals have no weights.

    Args:
      tree: the parsed YAML or JSON file.

    Returns:
      The settings, None if there are errors; and the outcome of every key.

    Raises:
      ConfigError: not a mapping.

    Example:
      >>> old = {"analysis_mode": "static_isotropic", "analyzer_parameters": {"dt": 0.1}}
      >>> config, keys = import_settings(old)
      >>> config.analysis.model, config.optimization.loss, config.data_files.sigma
      ('static_isotropic', 'soft_l1', 0.01)
      >>> [key.text for key in import_settings(old | {"new": 1})[1] if key.outcome == "error"]
      ['unknown key']
    """
    if not isinstance(tree, Mapping):
        raise ConfigError(f"expected a mapping of settings, got {type(tree).__name__}")
    found = list(_leaves(tree))
    state = _Import({k: v for k, _, v in found}, {k: name for k, name, _ in found})
    is_old = _OLD in tree
    model = _mode(state)
    _data(state)
    _angles(state)
    _parameters(state, model)
    _optimization(state, model, is_old)
    for key in list(state.leaves):
        _table(state, key)
    done = {item.key for item in state.outcomes}
    for key, setting in state.read.items():
        if state.names[key] not in done:
            state.add(key, "translated", setting)
    errors = [key for key in state.outcomes if key.outcome == "error"]
    config = None
    if not errors:
        try:
            config = parse_config({}, state.settings)
        except ConfigError as error:
            state.add("(new settings)", "error", str(error))
    return config, tuple(sorted(state.outcomes, key=lambda item: item.outcome != "error"))


def _leaves(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yield keys in the new sections and in the file, and values, without comments.

    Keys that begin with an underscore are comments.
    """
    for entry, value in tree.items():
        name = f"{prefix}{entry}"
        if str(entry).startswith("_"):
            continue
        if isinstance(value, Mapping) and value and not name.endswith("fixed_parameters"):
            yield from _leaves(value, f"{name}.")
            continue
        old = next((old for old in _SECTIONS if name.startswith(old)), "")
        yield _SECTIONS.get(old, "") + name.removeprefix(old), name, value


def _mode(state: _Import) -> str:
    """Set the model."""
    setting = "analysis.model"
    modes = {key: state.take(key, setting) for key in _MODE_KEYS if key in state.leaves}
    if "analysis_settings.static_mode" in state.leaves:
        is_static = state.take(key := "analysis_settings.static_mode", setting)
        kind = state.take("analysis_settings.static_submode", setting)
        modes = {key: f"static_{kind or 'anisotropic'}" if is_static else "laminar_flow"} | modes
    known = [_MODES.get(str(value).lower()) for value in modes.values()]
    for (key, value), model in zip(modes.items(), known, strict=True):
        if model is None:
            state.add(key, "error", f"expected one of {', '.join(_MODES)}, got {value!r:.60}")
        elif key == next(iter(modes)):
            state.set(key, setting, model)
        else:
            state.add(key, "not needed", f"{next(iter(modes))} is used")
    if not modes:
        state.add("analysis_mode", "error", f"expected one of {', '.join(_MODES)}, got no mode")
    return next(filter(None, known), "laminar_flow")


def _data(state: _Import) -> None:
    """Set the file, its layout and the first frame."""
    section = "experimental_data"
    file = "data_files.file"
    path, folder, name = (
        str(state.take(f"{section}.{key}", file) or "")
        for key in ("file_path", "data_folder_path", "data_file_name")
    )
    if path or name:
        state.set(f"{section}.file_path", file, path or str(PurePath(folder, name)))
    else:
        state.add(f"{section}.file_path", "not needed", "no file is named; --data FILE of fit")
    if (kind := state.leaves.get(key := f"{section}.data_type")) in _LAYOUTS:
        state.take(key, "data_files.layout")
        state.set(key, "data_files.layout", _LAYOUTS[kind])
    start = state.take(key := "analyzer_parameters.start_frame", setting := "analysis.frames.start")
    state.set(key, setting, max(start, 1) if isinstance(start, int) else start)
    dt = state.take(key := "analyzer_parameters.dt", "experiment.dt")
    state.set(key, "experiment.dt", dt)
    # Their programs use this time even if the file has another one.
    state.set(key, "experiment.dt_override", None if dt is None else True)


def _angles(state: _Import) -> None:
    """Set the ranges of angles."""
    section = "analysis.phi_filtering"
    enabled = state.take(switch := "phi_filtering.enabled", f"{section}.enabled")
    pairs = []
    for item in state.take_list(key := "phi_filtering.target_ranges", f"{section}.ranges"):
        if _is_table(item, {"min_angle", "max_angle"}, {"description"}):
            pairs.append([item["min_angle"], item["max_angle"]])
        else:
            state.add(key, "error", f"expected min_angle and max_angle, got {item!r:.80}")
    if pairs:
        state.set(key, f"{section}.ranges", pairs)
    # Without ranges, their programs use all angles.
    state.set(
        switch, f"{section}.enabled", bool(enabled and pairs) if switch in state.read else None
    )


def _is_table(item: Any, needed: set[str], allowed: set[str]) -> bool:
    """Return True for a mapping with the needed keys and no unknown ones except comments."""
    if not isinstance(item, Mapping):
        return False
    names = {name for name in item if not str(name).startswith("_")}
    return needed <= names <= needed | allowed


def _parameters(state: _Import, model: str) -> None:
    """Set initial values, bounds, and parameters that are not fitted."""
    section = "initial_parameters"
    known = _parameter_names(model)
    renamed = _NAMES | (_NAMES_OF_TWO_COMPONENTS if model == "two_component" else {})
    values: dict[str, Any] = {}
    bounds: dict[str, Any] = {}
    hold: list[str] = []

    def rename(key: str, name: Any) -> str:
        new = renamed.get(str(name), str(name))
        if new not in (*known, "contrast", "offset"):
            state.add(key, "error", f"expected parameters {', '.join(known)}, got {name!r:.60}")
        return new

    names = state.take_list(key := f"{section}.parameter_names", f"{section}.values")
    names = [rename(key, name) for name in names] or list(known)
    stored = state.take_list(key := f"{section}.values", key)
    if stored and len(stored) != len(names):
        state.add(key, "error", f"expected {len(names)} numbers, got {len(stored)}")
    elif len(set(names)) < len(names):
        state.add(key, "error", f"expected different names, got {', '.join(names)}")
    elif stored:
        values = dict(zip(names, stored, strict=True))
    key = f"{section}.active_parameters"
    if state.leaves.get(key) == []:
        state.add(key, "error", "expected at least one name, or null for all")
    active = state.take_list(key, f"{section}.hold")
    if active:
        active = [rename(key, name) for name in active]
        hold = [name for name in known if name not in active]
    fixed = state.take(key := f"{section}.fixed_parameters", f"{section}.hold")
    if isinstance(fixed, Mapping):
        fixed = {rename(key, name): value for name, value in fixed.items()}
        values |= {name: value for name, value in fixed.items() if value is not None}
        hold += [name for name in fixed if name not in hold]
    elif fixed:
        state.add(key, "error", f"expected a mapping of names and values, got {fixed!r:.60}")
    for item in state.take_list(key := "parameter_space.bounds", f"{section}.bounds"):
        if _is_table(item, {"name", "min", "max"}, _BOUND_KEYS):
            bounds[rename(key, item["name"])] = [item["min"], item["max"]]
        else:
            state.add(key, "error", f"expected name, min and max, got {item!r:.80}")
    if any(key.startswith("parameters.") for key in state.leaves):
        _grouped_parameters(state, rename, values, bounds, hold)
    scales = [name for name in ("contrast", "offset") if name in hold]
    hold = [name for name in hold if name not in scales]
    state.fixed_scaling = len(scales) == 2
    if len(scales) == 1:
        fixed_key = f"{section}.fixed_parameters"
        state.add(fixed_key, "error", f"expected contrast and offset or none, got {scales[0]}")
    for name in ("contrast", "offset"):
        start = state.take(key := f"{section}.per_angle_scaling.{name}", f"{section}.{name}")
        start = values.pop(name, None) if start is None else start
        state.set(key, f"{section}.{name}", start)
    state.set(f"{section}.values", f"{section}.values", values or None)
    key = f"{section}.{'fixed' if fixed else 'active'}_parameters"
    state.set(key, f"{section}.hold", hold or None)
    state.set("parameter_space.bounds", f"{section}.bounds", bounds or None)


def _grouped_parameters(
    state: _Import, rename: Any, values: dict[str, Any], bounds: dict[str, Any], hold: list[str]
) -> None:
    """Add the parameters of heterodyne's groups, `parameters.GROUP.NAME`."""
    for key in [key for key in state.leaves if key.startswith("parameters.")]:
        *_, name, entry = key.split(".")
        new, value = rename(key, name), state.take(key, f"initial_parameters, {name}")
        if entry == "value":
            values.setdefault(new, value)
        elif entry in ("min", "max"):
            pair = bounds.setdefault(new, [-math.inf, math.inf])
            if math.isinf(pair[k := int(entry == "max")]):
                pair[k] = value
        elif entry == "vary":
            hold += [new] if value is False and new not in hold else []
        else:
            state.add(key, "error", "expected value, min, max or vary")


def _parameter_names(model: str) -> tuple[str, ...]:
    from jaxkern.xpcs.analysis.run import make_model

    config = parse_config({"analysis": {"model": model}})
    return make_model(config, 0.01, [0.0], 3, dt=0.1, gap=1e6).parameter_names


def _optimization(state: _Import, model: str, is_old: bool) -> None:
    """Set the scaling, loss, noise, starts and threads."""
    switches = f"{_NLSQ}.anti_degeneracy.enable", f"{_NLSQ}.enable_anti_degeneracy"
    layers = [state.take(key, "scaling", True) for key in switches]
    keys = f"{_NLSQ}.anti_degeneracy.per_angle_mode", f"{_NLSQ}.per_angle_mode"
    key = next((key for key in keys if key in state.leaves), keys[0])
    scaling = state.take(key, "scaling", "individual" if is_old else "auto")
    scaling = scaling if all(layers) else "individual"
    if model == "static" and scaling in ("auto", "averaged", "constant"):
        scaling = "individual"  # as xpcsjax does
    if isinstance(scaling, str) and scaling in _SCALINGS:
        state.set(key, "scaling", "fixed" if state.fixed_scaling else _SCALINGS[scaling])
    else:
        state.add(key, "error", f"expected one of {', '.join(_SCALINGS)}, got {scaling!r:.60}")
    if not is_old and state.leaves.get(key := f"{_NLSQ}.loss") is None:
        state.take(key, "optimization.loss")
        state.set(key, "optimization.loss", "soft_l1")
    estimated = state.take(key := "noise_estimation.enabled", setting := "data_files.sigma")
    sigma = 1.0 if model == "two_component" else 0.01
    state.set(key, setting, None if estimated or is_old else sigma)
    setting = "optimization.multistart.starts"
    for switch, number in (
        (f"{_NLSQ}.multi_start.enable", f"{_NLSQ}.multi_start.n_starts"),
        (f"{_NLSQ}.multistart", f"{_NLSQ}.multistart_n"),
    ):
        count = state.take(number, setting, 10)
        used = state.take(switch, setting)
        state.set(switch, setting, count if used else 1 if switch in state.read else None)
    for key in (f"{_NLSQ}.cmaes.enable", f"{_NLSQ}.enable_cmaes"):
        if state.leaves.get(key):
            state.take(key, setting := "optimization.search")
            state.set(key, setting, "wide")
    threads = state.take(key := "performance.computation.cpu_threads", "optimization.threads")
    state.set(key, "optimization.threads", None if threads == "auto" else threads)
    strategy = state.take(key := "performance.strategy_override", "optimization.strategy")
    state.set(key, "optimization.strategy", strategy and str(strategy).upper())


def _table(state: _Import, key: str) -> None:
    """Add the outcome of a key of the tables."""
    value = state.take(key, _COPIED.get(key, ""))
    if key in _COPIED:
        state.set(key, _COPIED[key], value)
    elif key in _FIXED:
        allowed = _FIXED[key]
        if value in allowed:
            state.add(key, "not needed", "the only value here")
        else:
            expected = "null" if allowed[0] is None else allowed[0]
            state.add(key, "error", f"expected {expected}, got {value!r:.60}")
    else:
        # A first part is a whole section, so that `outputs` is not `output`.
        beginnings = [n for n in _UNUSED if key.startswith(n if "." in n else f"{n}.") or key == n]
        if beginnings:
            state.add(key, "not needed", _UNUSED[max(beginnings, key=len)])
        else:
            state.add(key, "error", "unknown key")
