"""Settings of fits, simulations and plots: dataclasses, their YAML files, and a template."""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

Ranges = tuple[tuple[float, float], ...]
Strategies = Literal["auto", "memory", "stream", "STANDARD", "LARGE", "CHUNKED", "STREAMING"]
Losses = Literal["linear", "soft_l1", "huber", "cauchy", "arctan"]
Scalings = Literal["auto", "individual", "constant", "fixed", "fourier"]


def _key(about: str, default: Any = None) -> Any:
    """Return a field with its comment in the template; `default` may be a class or `dict`."""
    kind = "default_factory" if isinstance(default, type) else "default"
    return field(metadata={"about": about}, **{kind: default})


@dataclass(frozen=True)
class DataFiles:
    file: str = _key("HDF5 file; relative paths are relative to this file", "data.h5")
    layout: Literal["auto", "aps", "aps-u"] = _key("layout of the HDF5 file", "auto")
    q: float | None = _key("1/Angstrom, selects a ring; null if the file has one q")
    q_tolerance: float = _key("largest relative difference of q; each angle's nearest is used", 0.1)
    sigma: float | None = _key("standard deviation of a point; null: estimated from the data")


@dataclass(frozen=True)
class Experiment:
    dt: float | None = _key("seconds between frames; null: that of the file (simulate: 0.1)")
    dt_override: bool = _key("use dt even if the file has another time", False)
    gap: float | None = _key("Angstrom, stator to rotor, for laminar_flow (simulate, null: 2e6)")
    start_time: float = _key("seconds, time of the first frame", 0.0)


@dataclass(frozen=True)
class PhiFiltering:
    enabled: bool = _key("use only the angles of the ranges", False)
    ranges: Ranges = _key("degrees, from low upwards to high", ((-10.0, 10.0), (170.0, 190.0)))


@dataclass(frozen=True)
class FrameChoice:
    start: int = _key("first frame, counted from 1", 1)
    end: int | None = _key("last frame; null, -1 or a later one: the last frame of the file")
    exclude_first: bool = _key("leave out the first of these frames", False)
    bad: tuple[int | tuple[int, int], ...] = _key("frames to leave out, or pairs [first, last]", ())


@dataclass(frozen=True)
class Analysis:
    model: Literal["static", "static_isotropic", "laminar_flow", "two_component"] = _key(
        "static: diffusion only; static_isotropic: with one contrast; two_component: heterodyne",
        "laminar_flow",
    )
    shear_power: Literal[2, 4] = _key("power of sinc in g2 (laminar_flow)", 4)
    diagonal_correction: bool | Literal["basic", "statistical", "interpolation"] = _key(
        "replace the diagonal in plots; true (basic), statistical, interpolation, false", True
    )
    phi_filtering: PhiFiltering = _key("", PhiFiltering)
    frames: FrameChoice = _key("", FrameChoice)


@dataclass(frozen=True)
class InitialParameters:
    values: dict[str, float] = _key("initial values by name; others: those of the model", dict)
    bounds: dict[str, tuple[float, float]] = _key("[low, high] by name", dict)
    hold: tuple[str, ...] = _key("names of parameters that are not fitted", ())
    allow_bounds: bool = _key("accept a fit that ends at a bound", False)
    contrast: float | tuple[float, ...] | None = _key(
        "one value, or one for each angle; null: estimated from the data"
    )
    offset: float | tuple[float, ...] | None = _key(
        "baseline, one value, or one for each angle; null: estimated from the data"
    )


@dataclass(frozen=True)
class Streaming:
    enable_checkpoints: bool = _key("write checkpoints, to resume a killed fit", False)
    checkpoint_frequency: int = _key("passes between two checkpoints", 1)
    checkpoint_dir: str | None = _key("null: checkpoints/ in the output directory")
    chunk_points: int | None = _key("points per call of the kernel; null: 2^21")
    on_bad_chunk: Literal["exclude", "raise"] = _key("rows that are NaN or unreadable", "exclude")
    retries: int = _key("attempts to read such rows again", 2)


@dataclass(frozen=True)
class Multistart:
    starts: int = _key("1 + the number of random starts", 1)
    seed: int = _key("seed of the random starts", 0)


@dataclass(frozen=True)
class Optimization:
    strategy: Strategies = _key("auto: by size and memory limit", "auto")
    loss: Losses = _key("loss function of the residuals", "linear")
    f_scale: float = _key("residual at which a robust loss begins, in units of sigma", 1.0)
    ftol: float = _key("relative change of the cost that ends the fit", 1e-8)
    xtol: float = _key("relative change of the parameters that ends the fit", 1e-8)
    gtol: float = _key("norm of the gradient that ends the fit", 1e-8)
    max_nfev: int | None = _key("largest number of passes over the data")
    errors: Literal["jackknife", "independent"] = _key("jackknife: blocks of frames", "jackknife")
    absolute_sigma: bool = _key("as in SciPy's curve_fit, for independent errors", False)
    memory_limit: float | None = _key("GB; null: JAXKERN_MEMORY_LIMIT, or that of the machine")
    threads: int | None = _key("null: JAXKERN_NUM_THREADS, or that of the machine")
    search: Literal["auto", "local", "wide"] = _key("search for other minima", "auto")
    multistart: Multistart = _key("", Multistart)
    streaming: Streaming = _key("", Streaming)


@dataclass(frozen=True)
class Simulation:
    frames: int = _key("number of frames", 400)
    phi: tuple[float, ...] = _key("degrees", (0.0, 30.0, 60.0, 90.0))
    q: float = _key("1/Angstrom", 0.0054)
    parameters: dict[str, float] = _key("true values by name; others: those of the model", dict)
    contrast: float | tuple[float, ...] = _key("one value, or one for each angle", 0.3)
    offset: float | tuple[float, ...] = _key("baseline, one value, or one for each angle", 1.0)
    noise: float = _key("standard deviation of a point", 0.02)
    diagonal_artifact: float = _key("added to the diagonal, as by a detector", 0.2)
    seed: int = _key("seed of the noise", 0)
    dtype: Literal["float32", "float64"] = _key("dtype of the stored values", "float32")


@dataclass(frozen=True)
class Output:
    plots: bool = _key("fit draws plots", True)
    angles: int = _key("largest number of angles in a plot", 6)
    dpi: int = _key("dots per inch of the plots", 120)
    fitted_c2: bool = _key("fit writes the fitted g2 to fitted.h5 (APS-U)", False)
    nlsq_files: bool = _key("fit writes nlsq_result.json and fitted_data.npz", False)
    text_columns: bool = _key("fit writes parameters.txt and cuts.txt (Origin, Igor)", False)


@dataclass(frozen=True)
class Config:
    """All settings; `load_config` reads them, `template` writes them with comments.

    Example:
      >>> import jaxkern as jk
      >>> config = jk.xpcs.Config()
      >>> config.optimization.loss, config.scaling
      ('linear', 'individual')
    """

    data_files: DataFiles = _key("input", DataFiles)
    experiment: Experiment = _key("conditions that the file does not store", Experiment)
    analysis: Analysis = _key("the model, and the part of the data to fit", Analysis)
    initial_parameters: InitialParameters = _key("", InitialParameters)
    scaling: Scalings = _key("contrast and baseline; auto: constant from 3 angles on", "individual")
    fourier_order: int = _key("number of harmonics in phi of scaling: fourier", 2)
    optimization: Optimization = _key("", Optimization)
    simulation: Simulation = _key("data that `simulate` writes to data_files.file", Simulation)
    output: Output = _key("", Output)


class ConfigError(ValueError):
    """Error in a setting: an unknown key or a wrong type. The message names the setting.

    Example:
      >>> import numpy as np, pathlib, tempfile, jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (folder / "fit.yaml").write_text("optimization: {los: huber}")
      >>> try:
      ...     jk.xpcs.load_config(folder / "fit.yaml")
      ... except jk.xpcs.ConfigError as error:
      ...     print("los" in str(error))
      True
    """


def load_config(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a YAML file of settings; missing keys have their defaults.

    Args:
      path: the YAML file; `python -m jaxkern xpcs config` writes a template.
      overrides: settings by dotted name (``"optimization.loss"``) that replace those of the file.

    Raises:
      FileNotFoundError: no such file.
      ConfigError: not a YAML mapping, an unknown key (with a suggestion), or a wrong type.

    Example:
      >>> import jaxkern.xpcs as xpcs, pathlib, tempfile
      >>> path = pathlib.Path(tempfile.mkdtemp()) / "fit.yaml"
      >>> _ = path.write_text("optimization: {loss: huber, ftol: 1e-9}")
      >>> xpcs.load_config(path).optimization.loss
      'huber'
    """
    tree = parse_yaml(Path(path).read_bytes(), str(path))
    try:
        return parse_config({} if tree is None else tree, overrides)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_yaml(text: str | bytes, what: str) -> Any:
    """Parse YAML, with floats without a dot (1e-8); `what` names the text in errors."""
    import yaml

    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    number = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
    loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+.0123456789"))
    try:
        return yaml.load(text, loader)
    # ValueError: invalid dates and numbers; RecursionError: brackets that nest too deeply.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{what} is not valid YAML in UTF-8: {error}") from error


def parse_config(tree: Any, overrides: Mapping[str, Any] | None = None) -> Config:
    """Convert a nested mapping, to which it adds the overrides, to settings; see `load_config`."""
    import msgspec

    for name, value in (overrides or {}).items():
        *path, key = name.split(".")
        section = tree
        for step in path:
            section = section.setdefault(step, {}) if isinstance(section, dict) else None
        if not isinstance(section, dict):
            raise ConfigError(f"{name} is not a setting")
        section[key] = value
    for _, message in find_problems(tree):
        raise ConfigError(message)
    return msgspec.convert(tree, Config)


def find_problems(
    value: Any, kind: Any = Config, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], str]]:
    """Yield the path and a message for each unknown key and each value of a wrong type.

    Args:
      value: nested mappings of the settings.
      kind, path: the type of a part of the settings, and its keys.
    """
    import msgspec

    name = ".".join(map(str, path))
    if isinstance(value, float) and not math.isfinite(value):
        yield path, f"{name}: expected a finite number, got {value}"
    elif get_origin(kind) is Literal and value not in get_args(kind):
        shown = value if isinstance(value, str) else type(value).__name__
        choices = ", ".join(map(str, get_args(kind)))
        yield path, f"{name}: expected one of {choices}, got {shown!r:.80}"
    elif not is_dataclass(kind) or not isinstance(value, dict):
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            reason, _, inner = str(error).replace("`", "").partition(" - at $")
            full = f"{name}{inner}" if name else inner.removeprefix(".")
            yield path, f"{full or 'settings'}: {reason}"
    hints = get_type_hints(kind) if is_dataclass(kind) and isinstance(value, dict) else {}
    for key, child in value.items() if hints else ():
        if key in hints:
            yield from find_problems(child, hints[key], (*path, key))
            continue
        near = difflib.get_close_matches(str(key), hints, n=1)
        near += [setting for setting, *_ in _walk(Config()) if setting.endswith(f".{key}")]
        hint = f"did you mean {near[0]}?" if near else f"expected {', '.join(hints)}"
        yield (*path, key), f"unknown key {'.'.join(map(str, (*path, key)))}; {hint}"


def _walk(section: Any, prefix: str = "") -> Iterator[tuple[str, Any, str, Any]]:
    """Yield (dotted name, type, comment, value) of all sections and settings."""
    hints = get_type_hints(type(section))
    for item in fields(section):
        name, value = prefix + item.name, getattr(section, item.name)
        yield name, hints[item.name], item.metadata["about"], value
        if is_dataclass(value):
            yield from _walk(value, f"{name}.")


def template(config: Config | None = None) -> str:
    """Return the YAML text of settings (by default the defaults) with a comment for each key.

    Example:
      >>> import jaxkern as jk
      >>> jk.xpcs.template().splitlines()[0]
      '# Settings of `python -m jaxkern xpcs`. Missing keys have these values.'
    """
    import yaml

    lines = ["# Settings of `python -m jaxkern xpcs`. Missing keys have these values."]
    for name, kind, comment, value in _walk(Config() if config is None else config):
        *path, key = name.split(".")
        lines += [] if path else [""]
        text = ""
        if not is_dataclass(kind):
            plain = json.loads(json.dumps(value))  # lists for tuples
            text = yaml.safe_dump(plain, default_flow_style=True, allow_unicode=True, width=10**6)
            text = text.removesuffix("...\n").rstrip()
            # A string such as 1e5 must be quoted for `parse_yaml`.
            text = f" {text if parse_yaml(text, name) == plain else json.dumps(plain)}"
        if get_origin(kind) is Literal:
            comment += f"; one of {', '.join(map(str, get_args(kind)))}"
        lines.append(f"{'  ' * len(path)}{key}:{text}" + (f"  # {comment}" if comment else ""))
    return "\n".join(lines) + "\n"
