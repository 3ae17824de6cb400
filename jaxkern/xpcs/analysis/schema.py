"""What can be set of a fit, a simulation and their plots, with defaults: a tree of dataclasses.

A key's type is its annotation, and its comment in the template is the `about` of its field. A key
that is not here is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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
    checkpoint_frequency: int = _key("passes between two checkpoints", 1)
    checkpoint_dir: str | None = _key("null: checkpoints/ in the output directory")
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
    strategy: Literal["auto", "memory", "stream", "STANDARD", "LARGE", "CHUNKED", "STREAMING"] = (
        _key("auto: by size and memory limit", "auto")
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
