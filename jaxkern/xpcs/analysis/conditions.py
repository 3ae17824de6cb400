"""Under which conditions data were measured: q, time step and gap, of the file and the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.analysis.settings import Config, ConfigError, DataFiles, Experiment
from jaxkern.xpcs.files.prepare import same_direction, select_q

# What `simulate` takes where the settings say nothing; a measurement is never guessed.
SIMULATED_DT = 0.1  # s
SIMULATED_GAP = 2.0e6  # Angstrom

_SAME_DT = 1e-6


@dataclass(frozen=True)
class QRing:
    """The entries of a file that are fitted together.

    Attributes:
      chosen: [n] bool.
      q: of the model, 1/Angstrom; the mean of the chosen entries'.
      told: q in words, with what was asked for and the range where they differ.
      notes: what a user must know even where nothing else is printed.
    """

    chosen: NDArray[np.bool_]
    q: float
    told: str
    notes: tuple[str, ...]


def choose_ring(
    files: DataFiles,
    q: NDArray[np.float64],
    phi: NDArray[np.float64],
    inside: NDArray[np.bool_],
    path: Path,
    *,
    grid: bool,
) -> QRing:
    """The entries at the settings' q, of those `inside`.

    At each angle the nearest, see `select_q`; those of the nearest q alone where the file has a
    `grid` of q and phi, so that an empty cell is not replaced by one of the next ring.

    Raises:
      ConfigError: q is not set and the file has several, or no entry is near enough.
    """
    if not 0 <= files.q_tolerance < 1:
        raise ConfigError(
            f"data_files.q_tolerance is {files.q_tolerance:g}; wanted a part of q, of 0 to 1 (it "
            "is relative)"
        )
    chosen = np.zeros(len(q), bool)
    q, phi = q[inside], phi[inside]
    wanted = float(q.mean()) if files.q is None else files.q
    try:
        taken = select_q(q, wanted, files.q_tolerance, phi=phi)
        if grid and files.q is not None:
            taken = np.isclose(q, q[np.abs(q - wanted).argmin()], rtol=1e-9, atol=0)
    except ValueError as error:
        if files.q is not None:
            raise ConfigError(f"{path}: {error}") from error
        taken = np.zeros(len(q), bool)
    if files.q is None and not taken.all():
        raise ConfigError(f"{path} has several q; set data_files.q to one of {some(q)}")
    chosen[inside] = taken
    found = q[taken]
    low, high = float(found.min()), float(found.max())
    mean = low if low == high else float(found.mean())
    details = []
    if high - low > 1e-6 * mean:
        details.append(f"the mean of {low:.6g} to {high:.6g}")
    if abs(wanted - mean) > 1e-6 * mean:
        details.append(f"asked for {wanted:.6g}")
    told = f"q {mean:.6g} 1/Angstrom" + (f" ({', '.join(details)})" if details else "")
    left = sorted({float(p) for p in phi if not same_direction(p, phi[taken]).any()})
    notes = []
    if left:
        notes.append(
            f"{len(left)} angles of the file have no matrix "
            + (f"of q {mean:.6g}" if grid else f"within {files.q_tolerance:.3g} of q {wanted:.6g}")
            + f" and are left out: phi {some(np.array(left))}"
        )
    return QRing(chosen, mean, told, tuple(notes))


def time_step(
    experiment: Experiment, measured: float | None, path: Path
) -> tuple[float, str, tuple[str, ...]]:
    """Seconds between frames, in words with where they come from, and notes as of `QRing`.

    Raises:
      ConfigError: neither the file nor the settings say it, or they differ.
    """
    given = experiment.dt
    if given is None and measured is None:
        raise ConfigError(
            f"{path} does not say the time between its frames; set experiment.dt, in seconds"
        )
    if given is None or measured is None:
        seconds = given if given is not None else measured
        assert seconds is not None
        return seconds, f"dt {seconds:.6g} s ({'settings' if measured is None else 'file'})", ()
    if abs(given - measured) <= _SAME_DT * measured:
        return given, f"dt {given:.6g} s (file and settings)", ()
    differ = f"experiment.dt is {given:.9g} s and the frames of {path} are {measured:.9g} s apart"
    if not experiment.dt_override:
        raise ConfigError(
            f"{differ}; leave experiment.dt out, or set experiment.dt_override: true if the file "
            "is wrong"
        )
    return given, f"dt {given:.6g} s (settings)", (f"{differ}; experiment.dt_override is set",)


def gap_of(config: Config) -> float | None:
    """The gap in Angstrom, which no file holds; None where the model needs none.

    Raises:
      ConfigError: it is not set and the model has shear.
    """
    gap = config.experiment.gap
    if gap is None and config.analysis.model == "laminar_flow":
        raise ConfigError(
            "experiment.gap is not set; the model laminar_flow needs the gap between stator and "
            f"rotor in Angstrom, which no file holds (`simulate` takes {SIMULATED_GAP:g} where "
            "it is not set)"
        )
    return gap


def simulated(config: Config) -> tuple[float, float]:
    """dt and gap of simulated data."""
    dt, gap = config.experiment.dt, config.experiment.gap
    return (SIMULATED_DT if dt is None else dt), (SIMULATED_GAP if gap is None else gap)


def some(values: NDArray[np.float64], most: int = 12) -> str:
    """Different numbers in order, the first few of many."""
    different = np.unique(values)
    shown = ", ".join(f"{x:.6g}" for x in different[:most])
    if len(different) <= most:
        return shown
    return f"{shown}, ... ({len(different)} from {different[0]:.6g} to {different[-1]:.6g})"
