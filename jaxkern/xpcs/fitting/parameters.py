"""The vector of fitted parameters [contrast..., offset..., physics...]: layout, bounds, starts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.xpcs.fitting.passes import AngleSums, PassPoint
from jaxkern.xpcs.fitting.solver import NormalPoint
from jaxkern.xpcs.model.models import CONTRAST_BOUNDS, OFFSET_BOUNDS, Model
from jaxkern.xpcs.model.normal import join_angles

Array = NDArray[np.float64]

Scaling = Literal["individual", "constant", "auto", "fixed", "fourier"]


@dataclass(frozen=True)
class FitLayout:
    """The vector of fitted parameters; `contrast` and `offset` [n_phi] are their start.

    Contrast and offset of the angles are `basis` [n_phi, k] times k coefficients each, such as the
    identity for individual ones. Without coefficients, they remain at their start.
    """

    basis: Array
    labels: tuple[str, ...]  # of the coefficients [k], such as "[0]"
    physics_names: tuple[str, ...]
    physics_units: tuple[str, ...]
    contrast: Array
    offset: Array

    @property
    def n_phi(self) -> int:
        return len(self.contrast)

    @property
    def n_scales(self) -> int:
        """Number of coefficients of the contrast, and of the offset."""
        return len(self.labels)

    @property
    def size(self) -> int:
        return 2 * self.n_scales + len(self.physics_names)

    @property
    def names(self) -> tuple[str, ...]:
        scales = (f"{name}{label}" for name in ("contrast", "offset") for label in self.labels)
        return (*scales, *self.physics_names)

    @property
    def units(self) -> tuple[str, ...]:
        return ("",) * (2 * self.n_scales) + self.physics_units

    def vector(self, physics: Array) -> Array:
        """Return the fitted parameters of some physics and the start of contrast and offset.

        The coefficients are the least-squares solution.
        """
        inverse = np.linalg.pinv(self.basis)
        return np.concatenate([inverse @ self.contrast, inverse @ self.offset, physics])

    def split(self, x: Any) -> PassPoint:
        """Return physics, and contrast and offset of every angle; `x` may be a tracer."""
        scales = self.n_scales
        pairs = x[: 2 * scales].reshape(2, scales) @ self.basis.T
        pairs = pairs if scales else (self.contrast, self.offset)
        return PassPoint(x[2 * scales :], *pairs)

    def jacobian(self, angle: int) -> Array:
        """Return the derivative [2 + p, P] of contrast, offset and physics of an angle by x."""
        slopes = np.zeros((2 + len(self.physics_names), self.size))
        slopes[:2, : 2 * self.n_scales] = np.kron(np.eye(2), self.basis[angle])
        slopes[2:, 2 * self.n_scales :] = np.eye(len(self.physics_names))
        return slopes

    def limits(self, low: float, high: float) -> tuple[Array, Array]:
        """Return the bounds [k] of the coefficients if all angles have values from low to high."""
        inverse = np.linalg.pinv(self.basis)
        # Rounded, since sums of 1/n should be 1, and no zero multiplies an infinite bound.
        parts = np.array([[np.maximum(inverse, 0.0)], [np.minimum(inverse, 0.0)]]).sum(-1).round(12)
        with np.errstate(invalid="ignore"):
            ends = np.where(parts == 0, 0.0, parts * np.array([[low], [high]]))
            return ends[0, 0] + ends[1, 1], ends[0, 1] + ends[1, 0]

    def join(self, sums: AngleSums) -> NormalPoint:
        """Return the normal equations of the vector from those of the angles."""
        jtj, jtr = join_angles(sums.jtj, sums.jtr, self.basis, np)
        return NormalPoint(jtj, jtr, float(sums.cost.sum()), sums)


def fourier_series(phi: Array, order: int) -> tuple[tuple[str, ...], Array]:
    """Return the labels and the basis [n_phi, 2 order + 1] of a Fourier series in phi, degrees."""
    check_integer("fourier_order", order, 1)
    harmonics = np.arange(1, order + 1)
    angles = np.deg2rad(phi)[:, None] * harmonics
    pairs = np.stack([np.cos(angles), np.sin(angles)], -1).reshape(len(phi), 2 * order)
    basis = np.hstack([np.ones((len(phi), 1)), pairs])
    rank = int(np.linalg.matrix_rank(basis))
    if rank < basis.shape[1]:
        raise ValueError(
            f"fourier_order: expected angles that determine the {2 * order + 1} coefficients of "
            f"order {order}, got {len(phi)} angles, which determine {rank}; pass a lower order, or "
            'scaling="individual"'
        )
    return ("[c0]", *(f"[{kind}{m}]" for m in harmonics for kind in "cs")), basis


def physics_vector(values: Any, names: Sequence[str], defaults: Any, argument: str = "p0") -> Array:
    """Return physics parameters [p] from an array, a mapping by name over the defaults, or None."""
    vector = np.array(defaults, np.float64)
    if isinstance(values, Mapping):
        for name, value in values.items():
            if name not in names:
                raise ValueError(unknown_name(name, names, argument))
            vector[names.index(name)] = numbers(value, f"{argument}[{name!r}]")
    elif values is not None:
        vector = numbers(values, argument)
        if vector.shape != (len(names),):
            raise ValueError(
                f"{argument}: expected [{len(names)}], {', '.join(names)}, got {vector.shape}"
            )
    if not np.isfinite(vector).all():
        raise ValueError(f"{argument}: expected finite numbers, got {vector.tolist()}")
    return vector


def numbers(values: Any, argument: str) -> Array:
    """Return an array of numbers; the message of its ValueError names the argument."""
    try:
        return np.array(values, np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{argument}: expected numbers, got {values!r:.80}") from None


def unknown_name(name: str, names: Sequence[str], argument: str) -> str:
    """Return the message for an unknown parameter name."""
    near = get_close_matches(str(name), names, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"{argument}: expected one of the parameters {', '.join(names)}, got {name!r}{hint}"


@dataclass(frozen=True)
class PeriodicBounds:
    """Bounds of the fitted parameters, of which those that span a period do not bind the solver.

    A bound inside a period would stop a search that has to cross it. Values of such a parameter
    outside its bounds are shifted by multiples of the period instead, once, in the result.
    """

    lower: Array  # [p], as the user gave them
    upper: Array
    period: Array  # [p], infinite for parameters that are not periodic

    @property
    def unbound(self) -> NDArray[np.bool_]:
        """True for parameters [p] that span a period."""
        return np.isfinite(self.period) & (self.upper - self.lower >= self.period)

    @property
    def solver(self) -> tuple[Array, Array]:
        """The lower and upper bounds [p] for the solver."""
        lower = np.where(self.unbound, -np.inf, self.lower)
        return lower, np.where(self.unbound, np.inf, self.upper)

    def difference(self, a: Array, b: Array) -> Array:
        """Return a - b [p], which for periodic parameters is at most half a period."""
        periodic = np.isfinite(self.period)
        period = np.where(periodic, self.period, 1.0)
        return a - b - np.where(periodic, period * np.round((a - b) / period), 0.0)

    def wrap(self, x: Array) -> Array:
        """Return x [p] with periodic parameters shifted inside their bounds."""
        below, above = np.maximum(self.lower - x, 0.0), np.maximum(x - self.upper, 0.0)
        turns = np.ceil(below / self.period) - np.ceil(above / self.period)
        return np.where(self.unbound, x + turns * np.where(self.unbound, self.period, 0.0), x)


def fit_bounds(bounds: Any, layout: FitLayout, model: Model) -> PeriodicBounds:
    """Return the bounds of all fitted parameters from the argument of `fit`."""
    scales, names = layout.n_scales, layout.names
    pairs = [
        layout.limits(*CONTRAST_BOUNDS),
        layout.limits(*OFFSET_BOUNDS),
        zip(*model.bounds, strict=True),
    ]
    lower, upper = map(np.concatenate, zip(*pairs, strict=True))
    if isinstance(bounds, Mapping):
        for name, pair in bounds.items():
            if numbers(pair, f"bounds[{name!r}]").shape != (2,):
                raise ValueError(f"bounds[{name!r}]: expected (lower, upper), got {pair!r:.80}")
            low, high = map(float, pair)
            if name in ("contrast", "offset"):
                first = 0 if name == "contrast" else scales
                part = slice(first, first + scales)
                lower[part], upper[part] = layout.limits(low, high)
            elif name not in names:
                raise ValueError(unknown_name(name, names, "bounds"))
            else:
                lower[names.index(name)], upper[names.index(name)] = low, high
    elif bounds is not None:
        # A scipy.optimize.Bounds has the attributes lb and ub.
        sides: Any = (bounds.lb, bounds.ub) if hasattr(bounds, "lb") else bounds
        if not hasattr(sides, "__len__"):
            raise ValueError(f"bounds: expected (lower, upper) or a mapping, got {bounds!r:.80}")
        if len(sides) != 2:
            raise ValueError(
                f"bounds: expected (lower, upper), or a mapping by name, got {len(sides)} entries"
            )
        for target, side, label in zip((lower, upper), sides, ("lower", "upper"), strict=True):
            value = numbers(side, f"{label} bounds")
            if value.shape == (len(layout.physics_names),):
                target[2 * scales :] = value
            elif value.shape in ((), target.shape):
                target[:] = value
            else:
                raise ValueError(
                    f"{label} bounds: expected [{layout.size}] for {', '.join(names)}, or "
                    f"[{len(layout.physics_names)}] for the physics alone, got {value.shape}"
                )
    for name, low, high in zip(names, lower, upper, strict=True):
        if not low < high:
            raise ValueError(f"bounds of {name}: expected lower < upper, got {low:g} and {high:g}")
    period = np.concatenate([np.full(2 * scales, np.inf), model.periods])
    return PeriodicBounds(lower, upper, period)


def first_start(
    layout: FitLayout,
    physics: Array,
    bounds: PeriodicBounds,
    estimated: tuple[bool, bool],
    strict: bool,
    free: NDArray[np.bool_],
) -> Array:
    """Return the start of all fitted parameters within the bounds.

    Contrast or offset is moved inside its bounds if it was `estimated` from the data. Other values
    are moved to their bounds, with a warning, unless the bounds are `strict`; those of parameters
    that are not `free` remain.
    """
    start, scales, (lower, upper) = layout.vector(physics), layout.n_scales, bounds.solver
    for k, is_estimated in enumerate(estimated):
        part = slice(k * scales, (k + 1) * scales)
        if is_estimated:
            with np.errstate(invalid="ignore"):
                margin = np.minimum(1e-3 * (upper[part] - lower[part]), 1e-3)
            start[part] = np.clip(start[part], lower[part] + margin, upper[part] - margin)
    outside = [
        f"{name} within {low:g} .. {high:g}, got {value:g}"
        for name, value, low, high, fitted in zip(
            layout.names, start, lower, upper, free, strict=True
        )
        if fitted and not low <= value <= high
    ]
    if outside:
        text = f"p0: expected {'; '.join(outside)}"
        if strict:
            raise ValueError(f"{text}; change p0 or the bounds")
        warnings.warn(f"{text}: the fit starts at the bound", RuntimeWarning, stacklevel=4)
    return np.where(free, np.clip(start, lower, upper), start)


def drawn_starts(
    start: Array,
    bounds: PeriodicBounds,
    layout: FitLayout,
    free: NDArray[np.bool_],
    count: int,
    seed: int,
) -> list[Array]:
    """Return `count` random starts; see `spread`."""
    moving = int(free[2 * layout.n_scales :].sum())
    cube = np.random.default_rng(seed).random((count, moving))
    return list(spread(cube, start, bounds, layout, free))


def spread(
    cube: Array,
    start: Array,
    bounds: PeriodicBounds,
    layout: FitLayout,
    free: NDArray[np.bool_],
) -> Array:
    """Map points [k, m] of the unit cube to starts [k, p] with other values of the m free physics.

    Exponents and angles are uniform within their bounds. Amplitudes, which have a unit, are uniform
    in the logarithm: over positive bounds, or over four decades on each side of 0. A parameter
    without bounds is uniform around its start.
    """
    starts = np.tile(start, (len(cube), 1))
    moving = np.flatnonzero(free[2 * layout.n_scales :]) + 2 * layout.n_scales
    for k, u in zip(moving, cube.T, strict=True):
        low, high = bounds.lower[k], bounds.upper[k]
        amplitude = layout.units[k] not in ("", "degree")
        if not (np.isfinite(low) and np.isfinite(high)):
            value = start[k] + (2 * u - 1) * max(abs(start[k]), 1.0)
        elif low > 0 and high > 100 * low:
            value = low * (high / low) ** u
        elif amplitude and low <= 0 <= high:
            share = -low / (high - low)
            below = u < share
            size = np.where(below, u / max(share, 1e-300), (u - share) / max(1.0 - share, 1e-300))
            value = np.where(below, low, high) * 1e-4 ** np.where(below, size, 1.0 - size)
        else:
            value = low + (high - low) * u
        starts[:, k] = np.clip(value, low, high)
    return starts
