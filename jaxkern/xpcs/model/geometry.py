"""The geometry of an XPCS measurement: wavevector, gap, frame times and angles."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class Geometry:
    """Wavevector, gap, times and angles of measured two-time correlations.

    Geometries with equal numbers are equal and have the same hash, so they share jitted functions.

    Args:
      q: magnitude of the wavevector, 1/Angstrom.
      gap: distance of the plates in shear flow, Angstrom; None for models without shear.
      dt: time between frames, s. It scales the phases. Only the power laws use `t`, so the two may
        differ.
      t: times of the frames since the start of the process, s, [n_t]: not negative, strictly
        increasing, n_t >= 2.
      phi: azimuthal angles of the matrices, degrees, [n_phi] or one number.

    Raises:
      ValueError: for numbers that are not finite, q, gap or dt not above 0, negative times, and t
        or phi of a wrong shape or order.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(q=.0054, gap=2e6, dt=.1, t=.1 * np.arange(50), phi=[0., 90.])
      >>> geometry.n_phi, geometry.n_t
      (2, 50)
    """

    q: float
    gap: float | None
    dt: float
    t: Any
    phi: Any
    _key: tuple[Any, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        gap = None if self.gap is None else _positive(self.gap, "gap", "Angstrom")
        numbers = (_positive(self.q, "q", "1/Angstrom"), gap, _positive(self.dt, "dt", "s"))
        t, phi = _vector(self.t, "t"), _vector(self.phi, "phi", scalar=True)
        if t.size < 2:
            raise ValueError(f"t: expected 2 or more frames, got {t.size}")
        if not np.all(t[1:] > t[:-1]):
            at = int(np.argmin(t[1:] > t[:-1]))
            raise ValueError(
                f"t: expected strictly increasing times, got t[{at}]={t[at]:g} and "
                f"t[{at + 1}]={t[at + 1]:g}; sort the frames and remove repeated times"
            )
        if t[0] < 0:
            raise ValueError(
                f"t: expected times >= 0 since the start of the process, in s, got t[0]={t[0]:g}; "
                "the power laws use these"
            )
        if phi.size < 1:
            raise ValueError("phi: expected one or more angles in degrees, got none")
        for name, value in zip(("q", "gap", "dt", "t", "phi"), (*numbers, t, phi), strict=True):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_key", (*numbers, t.tobytes(), phi.tobytes()))

    @property
    def n_t(self) -> int:
        """Number of frames."""
        return int(self.t.size)

    @property
    def n_phi(self) -> int:
        """Number of angles."""
        return int(self.phi.size)

    @property
    def times(self) -> np.ndarray:
        """Times [n_t] for the power laws, in s: t, at least max(half of the first step, 1e-8)."""
        floor = max(abs(self.t[1] - self.t[0]) / 2, 1e-8)
        times: np.ndarray = np.where(self.t > floor, self.t, floor)
        return times

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _positive(value: Any, name: str, unit: str) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name}: expected a finite number > 0 in {unit}, got {value!r}")
    return number


def _vector(value: Any, name: str, scalar: bool = False) -> np.ndarray:
    array = np.array(value, np.float64)
    if scalar and array.ndim == 0:
        array = array[None]
    if array.ndim != 1:
        raise ValueError(f"{name}: expected one axis, got shape {array.shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name}: expected finite numbers, got infinity or NaN")
    array.setflags(write=False)
    return array
