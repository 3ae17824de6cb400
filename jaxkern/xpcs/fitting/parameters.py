"""Where each fitted parameter stands: [contrast..., offset..., physics...] and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.fitting.pass_program import AngleSums
from jaxkern.xpcs.fitting.passes import PassPoint
from jaxkern.xpcs.fitting.solver import NormalPoint
from jaxkern.xpcs.model.models import CONTRAST_BOUNDS, OFFSET_BOUNDS
from jaxkern.xpcs.model.normal import joined

Array = NDArray[np.float64]

Scaling = Literal["individual", "constant", "auto", "fixed"]


def resolve_scaling(scaling: str, n_phi: int) -> str:
    """ "auto" as what it stands for: from three angles on they share one contrast and offset."""
    if scaling == "auto":
        return "constant" if n_phi >= 3 else "individual"
    if scaling not in ("individual", "constant", "fixed"):
        raise ValueError(
            f"scaling is {scaling!r}; wanted 'individual', 'constant', 'auto' or 'fixed'"
        )
    return scaling


@dataclass(frozen=True)
class FitLayout:
    """The vector of fitted parameters under a scaling; contrast and offset [n_phi] are a start."""

    scaling: str
    physics_names: tuple[str, ...]
    physics_units: tuple[str, ...]
    contrast: Array
    offset: Array

    @property
    def n_phi(self) -> int:
        return len(self.contrast)

    @property
    def n_scales(self) -> int:
        """Fitted contrasts (as many offsets)."""
        return {"individual": self.n_phi, "constant": 1, "fixed": 0}[self.scaling]

    @property
    def size(self) -> int:
        return 2 * self.n_scales + len(self.physics_names)

    @property
    def names(self) -> tuple[str, ...]:
        if self.scaling == "individual":
            scales = tuple(f"{s}[{k}]" for s in ("contrast", "offset") for k in range(self.n_phi))
        else:
            scales = ("contrast", "offset") if self.scaling == "constant" else ()
        return scales + self.physics_names

    @property
    def units(self) -> tuple[str, ...]:
        return ("",) * (2 * self.n_scales) + self.physics_units

    def vector(self, physics: Array) -> Array:
        """The fitted parameters at these physics and the start of contrast and offset."""
        if self.scaling == "individual":
            return np.concatenate([self.contrast, self.offset, physics])
        if self.scaling == "constant":
            return np.concatenate([[self.contrast.mean(), self.offset.mean()], physics])
        return physics.copy()

    def split(self, x: Array) -> PassPoint:
        """Contrast and offset of every angle and the physics of a vector."""
        scales, n_phi = self.n_scales, self.n_phi
        physics = np.ascontiguousarray(x[2 * scales :])
        if scales == 0:
            return PassPoint(physics, self.contrast, self.offset)
        each = np.broadcast_to(x[: 2 * scales].reshape(2, scales), (2, n_phi))
        return PassPoint(physics, *each.copy())

    def join(self, sums: AngleSums) -> NormalPoint:
        """The normal equations of the whole vector from those of the angles."""
        jtj, jtr = joined(sums.jtj, sums.jtr, self.scaling, np)
        return NormalPoint(jtj, jtr, float(sums.cost.sum()))


def physics_vector(given: Any, names: Sequence[str], defaults: Any, what: str = "p0") -> Array:
    """Physics parameters [p] from an array, a mapping by name (the rest are defaults) or None."""
    base = np.array(defaults, np.float64)
    if given is None:
        return base
    if isinstance(given, Mapping):
        for name, value in given.items():
            if name not in names:
                raise ValueError(unknown_name(name, names, what))
            base[names.index(name)] = float(value)
        vector = base
    else:
        vector = np.array(given, np.float64)
        if vector.shape != (len(names),):
            raise ValueError(
                f"{what} has the shape {vector.shape}; wanted [{len(names)}], the model's "
                f"parameters {', '.join(names)}"
            )
    if not np.isfinite(vector).all():
        raise ValueError(f"{what} is {vector.tolist()}; wanted finite numbers")
    return vector


def unknown_name(name: str, names: Sequence[str], what: str) -> str:
    near = get_close_matches(name, names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{what} names the parameter {name!r}; wanted one of {', '.join(names)}{hint}"


def bounds_vectors(given: Any, layout: FitLayout, model_bounds: Any) -> tuple[Array, Array]:
    """(lower [p], upper [p]) of all fitted parameters.

    `given` is None for the model's own, a mapping by name of (lower, upper) that replaces some
    ("contrast" and "offset" stand for those of every angle), or a pair (lower, upper) of arrays
    or numbers for all fitted parameters, or for the physics alone.
    """
    scales = layout.n_scales
    pairs = (
        [CONTRAST_BOUNDS] * scales
        + [OFFSET_BOUNDS] * scales
        + [tuple(pair) for pair in model_bounds]
    )
    lower, upper = (np.array(side, np.float64) for side in zip(*pairs, strict=True))
    names = layout.names
    if isinstance(given, Mapping):
        for name, (low, high) in given.items():
            if name in names:
                places = [names.index(name)]
            else:
                places = [k for k, known in enumerate(names) if known.startswith(f"{name}[")]
            if not places and not (layout.scaling == "fixed" and name in ("contrast", "offset")):
                raise ValueError(unknown_name(name, names, "bounds"))
            lower[places], upper[places] = low, high
    elif given is not None:
        # SciPy's own Bounds too.
        sides = (given.lb, given.ub) if hasattr(given, "lb") else tuple(given)
        if len(sides) != 2:
            raise ValueError(
                f"bounds has {len(sides)} entries; wanted a pair (lower, upper) of numbers or "
                "arrays, or a mapping name -> (lower, upper)"
            )
        for target, side, label in zip((lower, upper), sides, ("lower", "upper"), strict=True):
            value = np.asarray(side, np.float64)
            if value.ndim == 0 or value.shape == target.shape:
                target[:] = value
            elif value.shape == (len(layout.physics_names),):
                target[2 * scales :] = value
            else:
                raise ValueError(
                    f"the {label} bounds have the shape {value.shape}; wanted "
                    f"[{layout.size}] for {', '.join(names)}, or "
                    f"[{len(layout.physics_names)}] for the physics alone"
                )
    for name, low, high in zip(names, lower, upper, strict=True):
        if not low < high:
            raise ValueError(f"the bounds of {name} are {low:g} and {high:g}; wanted lower < upper")
    return lower, upper


@dataclass(frozen=True)
class Turns:
    """Periodic parameters whose bounds span a period: the solver has no bounds for these.

    A bound inside the period would end a search that has to pass it. Values outside the bounds are
    moved by whole periods instead, once, in the result.
    """

    free: NDArray[np.bool_]  # [p]: which parameters these are
    period: Array  # [p]
    lower: Array  # [p], the bounds as given
    upper: Array

    @classmethod
    def of(cls, layout: FitLayout, periods: Array, lower: Array, upper: Array) -> Turns:
        """From the periods [p] of the physics (infinite: none) and the bounds of all parameters."""
        period = np.concatenate([np.full(2 * layout.n_scales, np.inf), periods])
        return cls(np.isfinite(period) & (upper - lower >= period), period, lower, upper)

    def bounds(self) -> tuple[Array, Array]:
        """The bounds [p] of the solver."""
        return np.where(self.free, -np.inf, self.lower), np.where(self.free, np.inf, self.upper)

    def wrap(self, x: Array) -> Array:
        """x [p] with these parameters inside their bounds."""
        result = x.copy()
        for k in np.flatnonzero(self.free):
            below, above = max(self.lower[k] - x[k], 0.0), max(x[k] - self.upper[k], 0.0)
            turns = np.ceil(below / self.period[k]) - np.ceil(above / self.period[k])
            result[k] += turns * self.period[k]
        return result


def check_start(x: Array, lower: Array, upper: Array, names: Sequence[str]) -> None:
    """Raises ValueError for a start outside the bounds."""
    for name, value, low, high in zip(names, x, lower, upper, strict=True):
        if not low <= value <= high:
            raise ValueError(
                f"p0 has {name} = {value:g}, outside its bounds {low:g} .. {high:g}; give another "
                "start, or bounds that contain it"
            )
