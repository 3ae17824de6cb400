"""What can be set of a fit, a simulation and their plots, with defaults: a tree of dataclasses.

A key's type is its annotation, and its comment in the template is the `about` of its field. A key
that is not here is an error.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import reprlib
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

Ranges = tuple[tuple[float, float], ...]
Frames = tuple[int | tuple[int, int], ...]


def _key(about: str, default: Any = None, factory: Any = None) -> Any:
    """A setting with its comment."""
    if factory is not None:
        return field(default_factory=factory, metadata={"about": about})
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class DataFiles:
    file: str = _key("HDF5 file; relative paths are relative to this file", "data.h5")
    layout: Literal["auto", "aps", "aps-u"] = _key("of the HDF5 file", "auto")
    q: float | None = _key("1/Angstrom, which q of the file; null: the file has only one")
    q_tolerance: float = _key("most that q may differ, as a part of it; each angle's nearest", 0.1)
    sigma: float | None = _key("standard deviation of a point; null: estimated from the data")


@dataclass(frozen=True)
class Experiment:
    dt: float | None = _key("seconds between frames; null: the file's (simulate: 0.1)")
    dt_override: bool = _key("whether dt counts where the file says another", False)
    gap: float | None = _key(
        "Angstrom, between stator and rotor; laminar_flow needs it (simulate, null: 2e6)"
    )
    start_time: float = _key("seconds, time of the first frame that is used", 0.0)


@dataclass(frozen=True)
class PhiFiltering:
    enabled: bool = _key("whether to use only the angles of the ranges", False)
    ranges: Ranges = _key(
        "degrees, from low upwards to high, across 360 too", ((-10.0, 10.0), (170.0, 190.0))
    )


@dataclass(frozen=True)
class FrameChoice:
    start: int = _key("first frame used, counted from 1", 1)
    end: int | None = _key("last frame used; null or -1: the last there is")
    bad: Frames = _key("frames to leave out: numbers or pairs [first, last]", ())


@dataclass(frozen=True)
class Analysis:
    model: Literal["static", "laminar_flow"] = _key("static: diffusion only", "laminar_flow")
    shear_power: Literal[2, 4] = _key("power of sinc in g2 (laminar_flow)", 4)
    diagonal_correction: bool = _key("replace the measured diagonal (for plots)", True)
    phi_filtering: PhiFiltering = _key("", factory=PhiFiltering)
    frames: FrameChoice = _key("", factory=FrameChoice)


@dataclass(frozen=True)
class InitialParameters:
    values: dict[str, float] = _key("start of the fit by name; others: the model's", factory=dict)
    bounds: dict[str, tuple[float, float]] = _key("[low, high] by name", factory=dict)
    hold: tuple[str, ...] = _key("names that stay at their start", ())
    allow_bounds: bool = _key("whether a fit that ends at a bound is a success", False)
    contrast: float | None = _key("null: estimated from the data")
    offset: float | None = _key("null: estimated from the data")


@dataclass(frozen=True)
class Streaming:
    enable_checkpoints: bool = _key("so that a killed fit can go on", False)
    checkpoint_frequency: int = _key("chunks of data between two checkpoints", 10)
    checkpoint_dir: str | None = _key("null: checkpoints/ in the output directory")
    max_checkpoint_overhead: float = _key("part of the time that writing them may take", 0.02)
    chunk_points: int | None = _key("points the kernel gets at a time; null: 2^21")
    on_bad_chunk: Literal["exclude", "raise"] = _key(
        "rows with NaN, or that cannot be read", "exclude"
    )
    retries: int = _key("attempts to read such rows again", 2)


@dataclass(frozen=True)
class Multistart:
    starts: int = _key("fits from as many starts; 1: only the initial parameters", 1)
    seed: int = _key("of the drawn starts", 0)


@dataclass(frozen=True)
class Optimization:
    strategy: Literal["auto", "STANDARD", "LARGE", "CHUNKED", "STREAMING"] = _key(
        "auto: by size and memory limit", "auto"
    )
    loss: Literal["linear", "soft_l1", "huber", "cauchy", "arctan"] = _key(
        "how residuals count", "linear"
    )
    f_scale: float = _key("where a robust loss turns, in units of sigma", 1.0)
    ftol: float = _key("relative change of the cost that ends the fit", 1e-8)
    xtol: float = _key("relative change of the parameters that ends the fit", 1e-8)
    gtol: float = _key("norm of the gradient that ends the fit", 1e-8)
    max_nfev: int | None = _key("most passes over the data")
    errors: Literal["jackknife", "independent"] = _key(
        "jackknife: blocks of frames are left out one by one, as noise is correlated", "jackknife"
    )
    absolute_sigma: bool = _key("as in SciPy's curve_fit, of independent errors", False)
    memory_limit: float | None = _key("GB; null: JAXKERN_MEMORY_LIMIT, else the machine's")
    threads: int | None = _key("null: JAXKERN_NUM_THREADS, else the machine's")
    multistart: Multistart = _key("", factory=Multistart)
    streaming: Streaming = _key("", factory=Streaming)


@dataclass(frozen=True)
class Simulation:
    frames: int = _key("of each angle", 400)
    phi: tuple[float, ...] = _key("degrees", (0.0, 30.0, 60.0, 90.0))
    q: float = _key("1/Angstrom", 0.0054)
    parameters: dict[str, float] = _key("truth by name; others: the model's", factory=dict)
    contrast: float | tuple[float, ...] = _key("one, or one for each angle", 0.3)
    offset: float | tuple[float, ...] = _key("one, or one for each angle", 1.0)
    noise: float = _key("standard deviation of a point", 0.02)
    diagonal_artifact: float = _key("added to the diagonal, as a detector's is", 0.2)
    seed: int = _key("of the noise", 0)
    dtype: Literal["float32", "float64"] = _key("of the stored values", "float32")


@dataclass(frozen=True)
class Output:
    plots: bool = _key("whether fit draws its plots too", True)
    angles: int = _key("most angles that are drawn", 6)
    dpi: int = _key("of the plots", 120)
    fitted_c2: bool = _key("whether fit writes the fitted g2 too, as fitted.h5 (APS-U)", False)


@dataclass(frozen=True)
class Config:
    """All settings; `load_config` reads them, `template` writes them with comments."""

    data_files: DataFiles = _key("what is read", factory=DataFiles)
    experiment: Experiment = _key("what the file does not say", factory=Experiment)
    analysis: Analysis = _key("the model, and which part of the data", factory=Analysis)
    initial_parameters: InitialParameters = _key("", factory=InitialParameters)
    scaling: Literal["auto", "individual", "constant", "fixed"] = _key(
        "contrast and offset: one pair for each angle, for all, or not fitted;"
        " auto: one for all from 3 angles on, each its own below",
        "individual",
    )
    optimization: Optimization = _key("", factory=Optimization)
    simulation: Simulation = _key("what `simulate` writes to data_files.file", factory=Simulation)
    output: Output = _key("", factory=Output)


_T = TypeVar("_T")
_YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


class ConfigError(ValueError):
    """A setting that is unknown or of the wrong type; the message names its place."""


def load_config(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Reads a YAML file of settings; what it leaves out keeps its default.

    Args:
      path: the YAML file.
      overrides: settings by dotted name (``"optimization.loss"``) that replace the file's.

    Raises:
      FileNotFoundError: no such file.
      ConfigError: a file that is no YAML mapping in UTF-8, an unknown key (the nearest is
        suggested), or a value of the wrong type.

    Example:
      >>> from jaxkern import xpcs
      >>> import pathlib, tempfile
      >>> tmp = pathlib.Path(tempfile.mkdtemp())
      >>> _ = (tmp / "fit.yaml").write_text("optimization: {loss: huber}")
      >>> xpcs.load_config(tmp / "fit.yaml").optimization.loss
      'huber'
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"there is no settings file {str(path)!r}; `python -m jaxkern xpcs config` writes one"
        )
    content = path.read_bytes()
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path} is not UTF-8 text: byte 0x{content[error.start]:02x} in line {line}; save it "
            "as UTF-8"
        ) from error
    tree = parse_yaml(text, str(path))
    try:
        return parse_config({} if tree is None else tree, overrides)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse_yaml(text: str, what: str) -> Any:
    """What a text of YAML means; errors begin with `what` it is of."""
    import yaml

    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ConfigError(f"{what} is nested far deeper than settings are") from None
    except (yaml.YAMLError, ValueError) as error:
        # A date or a number that Python refuses is a ValueError.
        raise ConfigError(f"{what} is not valid YAML: {error}") from error


def parse_config(tree: Any, overrides: Mapping[str, Any] | None = None) -> Config:
    """The same from a nested mapping."""
    config = _section(Config, tree, "")
    for name, value in (overrides or {}).items():
        config = _replace(config, name.split("."), value, name)
    return config


def _replace(section: _T, keys: Sequence[str], value: Any, name: str) -> _T:
    hints = typing.get_type_hints(type(section))
    if keys[0] not in hints:
        raise ConfigError(_unknown(name, keys[0], hints))
    current = getattr(section, keys[0])
    if len(keys) > 1 and not dataclasses.is_dataclass(current):
        raise ConfigError(f"{name} is not a setting: {keys[0]} has no settings of its own")
    if len(keys) > 1:
        new: Any = _replace(current, keys[1:], value, name)
    else:
        new = _value(value, hints[keys[0]], name)
    return dataclasses.replace(section, **{keys[0]: new})  # type: ignore[type-var]


def _section(kind: type[_T], tree: Any, place: str) -> _T:
    hints = typing.get_type_hints(kind)
    if not isinstance(tree, Mapping):
        example = next((key for key in hints if place and _fits(tree, hints[key])), None)
        raise ConfigError(
            f"{place or 'the settings'}: {_shown(tree)}; wanted keys with values: "
            f"{', '.join(hints)}" + (f"; such as {{{example}: {_shown(tree)}}}" if example else "")
        )
    found = {}
    for key, value in tree.items():
        name = f"{place}.{key}" if place else str(key)
        if key not in hints:
            raise ConfigError(_unknown(name, str(key), hints))
        found[key] = _value(value, hints[key], name)
    return kind(**found)


def _unknown(name: str, key: str, known: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)[0]
    near = difflib.SequenceMatcher(None, key, nearest).ratio() > 0.6
    hint = f"did you mean {nearest}?" if near else f"there are {', '.join(known)}"
    elsewhere = [place for place in settings() if place.rsplit(".", 1)[-1] == key]
    if not near and elsewhere:
        hint = f"did you mean {elsewhere[0]}?"
    return f"unknown key {name}; {hint}"


def _value(value: Any, kind: Any, name: str) -> Any:
    """`value` as the annotation `kind` wants it, or an error."""
    if dataclasses.is_dataclass(kind):
        return _section(typing.cast("type[Any]", kind), value, name)
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        for part in parts:
            try:
                return _value(value, part, name)
            except ConfigError:
                continue
    elif origin is Literal:
        if value in parts and type(value) in {type(part) for part in parts}:
            return value
    elif origin is tuple and isinstance(value, Sequence) and not isinstance(value, str):
        if parts[-1] is Ellipsis:
            return tuple(_value(v, parts[0], f"{name}[{k}]") for k, v in enumerate(value))
        if len(value) == len(parts):
            return tuple(_value(v, p, name) for v, p in zip(value, parts, strict=True))
    elif origin is dict and isinstance(value, Mapping):
        return {str(k): _value(v, parts[1], f"{name}.{k}") for k, v in value.items()}
    elif kind is type(None) and value is None:
        return None
    elif (
        (kind is bool and isinstance(value, bool))
        or (kind is str and isinstance(value, str))
        or (kind is int and isinstance(value, int) and not isinstance(value, bool))
    ):
        return value
    elif kind is float and (number := _number(value)) is not None:
        return number
    example = ""
    if origin is tuple and parts[-1] is Ellipsis and _fits(value, parts[0]):
        example = f", such as [{_shown(value)}]"
    raise ConfigError(f"{name} is {_shown(value)}; wanted {_wanted(kind)}{example}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether a plain value is what a setting of this type takes."""
    if not isinstance(value, bool | int | float | str):
        return False
    try:
        _value(value, kind, "")
    except ConfigError:
        return False
    return True


def _number(value: Any) -> float | None:
    """A finite number. YAML reads 1e-8, which has no dot, as a string: it is one here too."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _wanted(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_wanted(part) for part in parts)
    if origin is Literal:
        return "one of " + ", ".join(str(part) for part in parts)
    if origin is tuple and parts[-1] is Ellipsis:
        return f"a list, each of it {_wanted(parts[0])}"
    if origin is tuple:
        return "a pair [" + ", ".join(_wanted(part) for part in parts) + "]"
    if origin is dict:
        return f"names, each with {_wanted(parts[1])}"
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    return names.get(kind, "null")


def _shown(value: Any) -> str:
    """A value in at most 60 characters; not repr itself, since YAML's aliases nest without end."""
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 4, 60, 60
    try:
        text = short.repr(value)
    except ValueError:
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def settings(section: Any = Config, place: str = "") -> list[str]:
    """Dotted names of all settings."""
    names = []
    for name, kind in typing.get_type_hints(section).items():
        if dataclasses.is_dataclass(kind):
            names += settings(kind, f"{place}{name}.")
        else:
            names.append(place + name)
    return names


def as_tree(config: Any) -> dict[str, Any]:
    """A config as nested dicts and lists, as JSON and YAML hold them."""
    return {item.name: _plain(getattr(config, item.name)) for item in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return as_tree(value)
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return value


def template(config: Config | None = None) -> str:
    """The YAML text of a config (the defaults), each key with its comment and its type.

    Example:
      >>> from jaxkern import xpcs
      >>> print(xpcs.template().splitlines()[0])
      # Settings of `python -m jaxkern xpcs`. Keys that are left out keep these values.
    """
    lines = ["# Settings of `python -m jaxkern xpcs`. Keys that are left out keep these values."]
    _write(Config() if config is None else config, 0, lines)
    return "\n".join(lines) + "\n"


def _write(section: Any, depth: int, lines: list[str]) -> None:
    hints = typing.get_type_hints(type(section))
    pad = "  " * depth
    for item in dataclasses.fields(section):
        about, value = item.metadata["about"], getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            if depth == 0:
                lines.append("")
            lines.append(f"{pad}{item.name}:" + (f"  # {about}" if about else ""))
            _write(value, depth + 1, lines)
            continue
        choices = _wanted(hints[item.name]) if "one of" in _wanted(hints[item.name]) else ""
        comment = "; ".join(text for text in (about, choices) if text)
        if depth == 0:
            lines.append("")
        lines.append(f"{pad}{item.name}: {_scalar(value)}  # {comment}")


def _scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        # With a dot, so that YAML's own rules read a number too.
        text = repr(value)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if isinstance(value, tuple):
        return "[" + ", ".join(_scalar(v) for v in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(k)}: {_scalar(v)}" for k, v in value.items()) + "}"
    if isinstance(value, str):
        # Quoted wherever YAML could take the text for something else.
        plain = re.fullmatch(r"[A-Za-z/_][\w./-]*", value) and value.lower() not in _YAML_WORDS
        return value if plain else json.dumps(value)
    return str(value)
