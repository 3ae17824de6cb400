"""Conditions of a measurement: q, time step and gap, from the file and the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.analysis.settings import Config, ConfigError, DataFiles, Experiment
from jaxkern.xpcs.files.prepare import same_direction, select_q

# Defaults of `simulate`. For measurements these numbers must be known.
SIMULATED_DT = 0.1  # s
SIMULATED_GAP = 2.0e6  # Angstrom

_SAME_DT = 1e-6


@dataclass(frozen=True)
class QRing:
    """Entries of a file that are fitted together.

    Attributes:
      chosen: [n] bool.
      q: q of the model, 1/Angstrom; the mean over the chosen entries.
      description: q as text, with the requested value and the range if they differ.
      notes: messages that are always printed.
    """

    chosen: NDArray[np.bool_]
    q: float
    description: str
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
    """Return the entries `inside` at the q of the settings.

    These are the entries with the nearest q at each angle, see `select_q`. If the file has a `grid`
    of q and phi, they are those of the nearest q only, so that an empty cell is not replaced by a
    cell of the next ring.
    """
    if not 0 <= files.q_tolerance < 1:
        raise ConfigError(
            f"data_files.q_tolerance: expected a relative difference from 0 to 1, got "
            f"{files.q_tolerance:g}"
        )
    chosen = np.zeros(len(q), bool)
    q, phi = q[inside], phi[inside]
    requested = float(q.mean()) if files.q is None else files.q
    try:
        selected = select_q(q, requested, files.q_tolerance, phi=phi)
        if grid and files.q is not None:
            selected = np.isclose(q, q[np.abs(q - requested).argmin()], rtol=1e-9, atol=0)
    except ValueError as error:
        if files.q is not None:
            raise ConfigError(f"{path}: {error}") from error
        selected = np.zeros(len(q), bool)
    if files.q is None and not selected.all():
        raise ConfigError(f"{path} has several q; set data_files.q to one of {some(q)}")
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
    notes = []
    if missing:
        tolerance = f"within {files.q_tolerance:.3g} of q {requested:.6g}"
        notes.append(
            f"{len(missing)} angles of the file have no matrix "
            + (f"of q {mean:.6g}" if grid else tolerance)
            + f" and are left out: phi {some(np.array(missing))}"
        )
    return QRing(chosen, mean, description, tuple(notes))


def time_step(
    experiment: Experiment, measured: float | None, path: Path
) -> tuple[float, str, tuple[str, ...]]:
    """Return the seconds between frames, a description with their source, and notes."""
    dt = experiment.dt
    if dt is None and measured is None:
        raise ConfigError(f"{path} has no time between frames; set experiment.dt, in seconds")
    if dt is None or measured is None:
        seconds = dt if dt is not None else measured
        assert seconds is not None
        return seconds, f"dt {seconds:.6g} s ({'settings' if measured is None else 'file'})", ()
    if abs(dt - measured) <= _SAME_DT * measured:
        return dt, f"dt {dt:.6g} s (file and settings)", ()
    difference = f"experiment.dt is {dt:.9g} s, but the frames of {path} are {measured:.9g} s apart"
    if not experiment.dt_override:
        raise ConfigError(
            f"{difference}; remove experiment.dt, or set experiment.dt_override: true if the file "
            "is wrong"
        )
    return dt, f"dt {dt:.6g} s (settings)", (f"{difference}; experiment.dt_override is set",)


def shear_gap(config: Config) -> float | None:
    """Return the gap in Angstrom, which files do not store; None if the model does not need it."""
    gap = config.experiment.gap
    if gap is None and config.analysis.model == "laminar_flow":
        raise ConfigError(
            "experiment.gap: expected the gap between stator and rotor in Angstrom for the model "
            f"laminar_flow, got null (the default of `simulate` is {SIMULATED_GAP:g})"
        )
    return gap


def simulated_conditions(config: Config) -> tuple[float, float]:
    """Return dt and gap of simulated data."""
    dt, gap = config.experiment.dt, config.experiment.gap
    return (SIMULATED_DT if dt is None else dt), (SIMULATED_GAP if gap is None else gap)


def some(values: NDArray[np.float64], most: int = 12) -> str:
    """Format the different numbers in order, at most `most` of them."""
    different = np.unique(values)
    shown = ", ".join(f"{x:.6g}" for x in different[:most])
    if len(different) <= most:
        return shown
    return f"{shown}, ... ({len(different)} from {different[0]:.6g} to {different[-1]:.6g})"
