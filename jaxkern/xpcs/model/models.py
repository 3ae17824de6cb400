"""Geometry and models of the dynamics: phases of correlations as functions of parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

SHEAR_POWERS = (0, 2, 4)
RATE_FLOOR = 1e-10

# Wide enough for noise: half of all estimates of a contrast of 1 exceed it, and bounds that clip
# these bias the other parameters.
CONTRAST_BOUNDS, OFFSET_BOUNDS = (0.0, 2.0), (0.0, 2.0)


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
        t, phi = _vector(self.t, "t"), _vector(np.atleast_1d(self.phi), "phi")
        if t.size < 2 or phi.size < 1:
            raise ValueError(f"t, phi: expected 2 and 1 numbers or more, got {t.size} {phi.size}")
        steps = np.diff(t)
        if t[0] < 0 or not (steps > 0).all():
            at = int(np.argmin(steps > 0))
            raise ValueError(
                f"t: expected increasing times >= 0 in s, got t[0]={t[0]:g}, t[{at}]={t[at]:g}, "
                f"t[{at + 1}]={t[at + 1]:g}"
            )
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
        xp: Any = np if isinstance(self.t, np.ndarray) else jnp
        floor = xp.maximum(abs(self.t[1] - self.t[0]) / 2, 1e-8)
        return xp.maximum(self.t, floor)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """q, gap, dt, t and phi, as operands of a program; a gap of None is no operand."""
        gap = None if self.gap is None else np.float64(self.gap)
        return np.float64(self.q), gap, np.float64(self.dt), self.t, self.phi

    @classmethod
    def from_tracers(cls, numbers: tuple[Any, ...]) -> Geometry:
        """Return a geometry of tracers of `numbers`, without checks."""
        geometry = object.__new__(cls)
        for name, value in zip(("q", "gap", "dt", "t", "phi"), numbers, strict=True):
            object.__setattr__(geometry, name, value)
        return geometry

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Geometry) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


def _positive(value: Any, name: str, unit: str) -> float:
    number = float(value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name}: expected a finite number > 0 in {unit}, got {value!r}")
    return number


def _vector(value: Any, name: str) -> np.ndarray:
    array = np.array(value, np.float64)
    if array.ndim != 1 or not np.isfinite(array).all():
        got = f"shape {array.shape}" if array.ndim != 1 else str(array[~np.isfinite(array)][0])
        raise ValueError(f"{name}: expected finite numbers on one axis, got {got}")
    array.setflags(write=False)
    return array


class Parameter(NamedTuple):
    """A model parameter; one with a finite period is an angle, in which the model is periodic.

    Example:
      >>> import jaxkern as jk
      >>> rate = jk.xpcs.Parameter("rate", "1/s", default=1.0, low=0.0, high=10.0)
      >>> rate.name, rate.period
      ('rate', inf)
    """

    name: str
    unit: str
    default: float
    low: float
    high: float
    period: float = math.inf


class Tables(NamedTuple):
    """Phases of a model at some parameters, and their derivatives.

    A is [n_t] (or [n_phi, n_t]) and X [n_phi, n_t] (or [1, n_t]). Row k of ``tangents_A`` [kA, n_t]
    (or [n_phi, kA, n_t]) is the derivative of A with respect to parameter ``columns_A[k]``;
    likewise ``tangents_X`` [n_phi, kX, n_t] (or [1, kX, n_t]).
    The model has ``n_parameters`` parameters.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> A, X, tangents_A, tangents_X = (np.zeros(s) for s in ((8,), (1, 8), (3, 8), (1, 0, 8)))
      >>> tables = jk.xpcs.Tables(A, X, tangents_A, tangents_X, (0, 1, 2), (), n_parameters=3)
      >>> tables.columns
      (0, 1, 2)
    """

    A: Any
    X: Any
    tangents_A: Any
    tangents_X: Any
    columns_A: tuple[int, ...]
    columns_X: tuple[int, ...]
    n_parameters: int

    @property
    def columns(self) -> tuple[int, ...]:
        """Indices of the parameters of all tangents."""
        return (*self.columns_A, *self.columns_X)

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of the tables."""
        return tuple(self[:4])


class Model:
    """Base class of `Static`, `LaminarFlow`, `CustomModel` and `Components`.

    Attributes:
      geometry: the `Geometry`.
      parameters: the `Parameter` objects in order, p of them.
      parameter_names, units: their names, and their units ("" for a pure number).
      shear_power: power of sinc in g2: 0, 2 or 4.
      columns_A: indices of the parameters on which A depends.
      columns_X: indices of the parameters on which X depends; none for ``shear_power=0``.
      unused_frames: frames that have no weight in residuals and fits; none for most models.
      isotropic: True if fits have one contrast and one offset for all angles.
      power_laws: (index of the scale, phase of a rate of 1 in 1 s) of rates scale t^exponent +
        offset, whose parameters follow each other.
      exchange: pairs of indices; g2 can be the same if the first of each pair is the second of
        another solution, and the parameters in no pair differ. Empty for most models.
      offsets: indices of parameters that are 0 in the simplest case.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(8), 0.))
      >>> model.parameter_names, model.shear_power
      (('D0', 'alpha', 'D_offset'), 0)
    """

    power_laws: tuple[tuple[int, float], ...] = ()
    exchange: tuple[tuple[int, int], ...] = ()
    offsets: tuple[int, ...] = ()
    unused_frames: tuple[int, ...] = ()
    isotropic: bool = False

    def __init__(
        self,
        geometry: Geometry,
        parameters: Sequence[Parameter],
        shear_power: int,
        columns_A: Sequence[int],
        columns_X: Sequence[int],
    ) -> None:
        if not isinstance(geometry, Geometry):
            raise TypeError(f"geometry: expected a Geometry, got {type(geometry).__name__}")
        if shear_power not in SHEAR_POWERS:
            raise ValueError(f"shear_power: expected one of {SHEAR_POWERS}, got {shear_power!r}")
        self.geometry = geometry
        self.parameters = tuple(parameters)
        self.parameter_names = tuple(p.name for p in parameters)
        self.units = tuple(p.unit for p in parameters)
        self.shear_power = int(shear_power)
        self.columns_A = tuple(columns_A)
        self.columns_X = tuple(columns_X) if shear_power else ()

    @property
    def defaults(self) -> np.ndarray:
        """Default values f64 [p]."""
        return np.array([p.default for p in self.parameters], np.float64)

    @property
    def bounds(self) -> np.ndarray:
        """Lower and upper bounds f64 [p, 2]."""
        return np.array([(p.low, p.high) for p in self.parameters], np.float64).reshape(-1, 2)

    @property
    def periods(self) -> np.ndarray:
        """Periods f64 [p]; infinite for parameters that are not periodic."""
        return np.array([p.period for p in self.parameters], np.float64)

    def phases(self, params: Any) -> tuple[jax.Array, ...]:
        """Compute A [n_t] and X [n_phi or 1, n_t] from params [p]."""
        raise NotImplementedError

    def rates(self, params: Any) -> dict[str, jax.Array]:
        """Compute the rates [n_t] whose integrals are the phases, by name with the unit.

        These are "D (Angstrom^2/s)" and "shear rate (1/s)"; a `CustomModel` has none.
        """
        return {}

    def alternatives(self, physics: Any) -> list[np.ndarray]:
        """Return other parameters [p] with similar rates, from which a fit may end elsewhere.

        Here offsets of power laws are 0. A fit often ends with an offset in the place of a scale.
        """
        simple, t = np.array(physics, np.float64), self.geometry.times
        for k, _ in self.power_laws:
            rate = simple[k] * t ** simple[k + 1] + simple[k + 2]
            rate = rate * np.sign(rate.sum())
            above = rate > 0.01 * rate.max()
            if above.sum() > 2:
                exponent, level = np.polyfit(np.log(t[above]), np.log(rate[above]), 1)
                simple[k : k + 3] = np.exp(level), exponent, 0.0
        return [simple]

    def tables(self, params: Any) -> Tables:
        """Compute the phases and their derivatives at params [p]."""

        def twice(x: jax.Array) -> Any:
            phases = self.checked_phases(x)
            return phases, phases

        (dA, dX), (A, X) = jax.jacfwd(twice, has_aux=True)(self._checked(params))
        tangents_A = jnp.moveaxis(dA[..., list(self.columns_A)], -1, -2)
        tangents_X = jnp.moveaxis(dX[..., list(self.columns_X)], -1, -2)
        return self.tables_of((A, X, tangents_A, tangents_X))

    def tables_of(self, arrays: Sequence[Any]) -> Tables:
        """Return tables with some `Tables.arrays`."""
        A, X, tangents_A, tangents_X = arrays
        columns = self.columns_A, self.columns_X
        return Tables(A, X, tangents_A, tangents_X, *columns, len(self.parameters))

    def checked_phases(self, params: Any) -> tuple[jax.Array, ...]:
        """Compute `phases` in JAX's float type, and check their shapes."""
        dtype = jnp.result_type(float)
        A, X = (jnp.asarray(v, dtype) for v in self.phases(self._checked(params)))
        n_phi, n_t = self.geometry.n_phi, self.geometry.n_t
        for name, phase, shared in (("A", A, (n_t,)), ("X", X, (1, n_t))):
            if phase.shape not in (shared, (n_phi, n_t)):
                raise ValueError(
                    f"phases: expected {name} of {shared} or {(n_phi, n_t)}, got {phase.shape}"
                )
        return A, X

    def _checked(self, params: Any) -> jax.Array:
        vector = jnp.asarray(params, jnp.result_type(float))
        if vector.shape != (len(self.parameters),):
            raise ValueError(
                f"params: expected ({len(self.parameters)},): {', '.join(self.parameter_names)}, "
                f"got shape {vector.shape}"
            )
        return vector

    def _identity(self) -> tuple[Any, ...]:
        return (type(self), self.geometry, self.shear_power)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Model) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __repr__(self) -> str:
        shape = f"n_phi={self.geometry.n_phi}, n_t={self.geometry.n_t}"
        return f"{type(self).__name__}({shape}, shear_power={self.shear_power})"


_D_OF_T, _SHEAR_RATE = "D (Angstrom^2/s)", "shear rate (1/s)"
_DIFFUSION = (
    Parameter("D0", "Angstrom^2/s", 1000.0, 100.0, 1e5),
    Parameter("alpha", "", 0.5, -2.0, 2.0),
    Parameter("D_offset", "Angstrom^2/s", 10.0, -1e5, 1e5),
)
_SHEAR = (
    Parameter("gamma_dot_t0", "1/s", 0.01, 1e-6, 0.5),
    Parameter("beta", "", 0.5, -2.0, 2.0),
    Parameter("gamma_dot_t_offset", "1/s", 0.0, -0.1, 0.1),
    # g2 has even powers of sinc, so a flow and its reverse are equivalent.
    Parameter("phi0", "degree", 0.0, -90.0, 90.0, 180.0),
)


def _rate(times: np.ndarray, power_law: jax.Array) -> jax.Array:
    """Compute max(scale times^exponent + offset, RATE_FLOOR) [n_t] of (scale, exponent, offset)."""
    scale, exponent, offset = power_law
    rate = scale * jnp.power(jnp.asarray(times, jnp.result_type(float)), exponent) + offset
    # The derivative of `maximum` at the floor would be 1/2. NaN remains NaN.
    return jnp.where(rate <= RATE_FLOOR, RATE_FLOOR, rate)


def _accumulated(times: np.ndarray, power_law: jax.Array) -> jax.Array:
    return trapezoid(_rate(times, power_law))


def trapezoid(rate: jax.Array) -> jax.Array:
    """Integrate a rate [n_t] by the trapezoidal rule, in units of frames, [n_t]."""
    return jnp.concatenate([jnp.zeros(1, rate.dtype), jnp.cumsum((rate[:-1] + rate[1:]) / 2)])


def _diffusion_phase(g: Geometry, power_law: jax.Array) -> jax.Array:
    return 0.5 * g.q**2 * g.dt * _accumulated(g.times, power_law)


class Static(Model):
    """Anomalous diffusion without flow: 3 parameters, D0, alpha and D_offset.

    D(t) = max(D0 t^alpha + D_offset, 1e-10) Angstrom^2/s, A = q^2/2 times its integral, X = 0.

    Source: He et al., PNAS 121 (2024) e2401162121 (transport coefficient of a power law).

    Args:
      geometry: the `Geometry`; its gap and angles have no effect.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.))
      >>> model.parameter_names, model.defaults.tolist()
      (('D0', 'alpha', 'D_offset'), [1000.0, 0.5, 10.0])
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry, _DIFFUSION, 0, (0, 1, 2), ())
        self.power_laws, self.offsets = ((0, 0.5 * geometry.q**2),), (2,)

    def phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """Compute A [n_t] and X = 0 [1, n_t] from params [3]."""
        A = _diffusion_phase(self.geometry, self._checked(params))
        return A, jnp.zeros((1, self.geometry.n_t), A.dtype)

    def rates(self, params: Any) -> dict[str, jax.Array]:
        """Compute D(t) [n_t] from params [3]."""
        return {_D_OF_T: _rate(self.geometry.times, self._checked(params))}


class StaticIsotropic(Static):
    """Anomalous diffusion that is the same at all angles: `Static` with one contrast and offset.

    A fit treats all angles as one: its scaling is "constant" unless it is "fixed". Diffusion alone
    does not depend on the angle, so that angles differ only by noise.

    Args:
      geometry: the `Geometry`; its gap and angles have no effect.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), [0., 90.])
      >>> jk.xpcs.g2(jk.xpcs.StaticIsotropic(geometry), [1000., .5, 10.]).shape
      (2, 50, 50)
    """

    isotropic = True


class LaminarFlow(Model):
    """Anomalous diffusion in shear between plates: 7 parameters.

    Its parameters are those of `Static`, and those of the shear rate gamma(t) =
    max(gamma_dot_t0 t^beta + gamma_dot_t_offset, 1e-10) in 1/s. The shear phase X is
    q gap / (2 pi) cos(phi0 - phi) times the integral of gamma; g2 has sinc(dX)^shear_power.

    Source: He et al., PNAS 121 (2024) e2401162121; Burghardt et al., Phys. Rev. E 85 (2012) 021402.

    Args:
      geometry: the `Geometry`, with a gap.
      shear_power: power of sinc in g2: 4, 2, or 0 for no shear.

    Raises:
      ValueError: if the geometry has no gap.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, 2e6, .1, .1 * np.arange(50), [0., 45., 90.])
      >>> A, X = jk.xpcs.LaminarFlow(geometry).phases([1000., .5, 10., .01, .5, 0., 0.])
      >>> A.shape, X.shape
      ((50,), (3, 50))
    """

    def __init__(self, geometry: Geometry, shear_power: int = 4) -> None:
        super().__init__(geometry, _DIFFUSION + _SHEAR, shear_power, (0, 1, 2), (3, 4, 5, 6))
        if geometry.gap is None:
            raise ValueError("geometry: expected a gap in Angstrom for LaminarFlow, got None")
        diffusion, shear = 0.5 * geometry.q**2, geometry.q * geometry.gap / (2 * math.pi)
        self.power_laws, self.offsets = ((0, diffusion), (3, shear)), (2, 5)

    def phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """Compute A [n_t] and X [n_phi, n_t] from params [7]."""
        p, g = self._checked(params), self.geometry
        assert g.gap is not None
        strain = _accumulated(g.times, p[3:6])
        # The difference is computed in degrees, so that a small phi0 - phi keeps its digits.
        projection = jnp.cos((p[6] - jnp.asarray(g.phi, strain.dtype)) * (math.pi / 180))
        X = (g.q * g.gap * g.dt / (2 * math.pi)) * projection[:, None] * strain
        return _diffusion_phase(g, p[:3]), X

    def rates(self, params: Any) -> dict[str, jax.Array]:
        """Compute D(t) and the shear rate, each [n_t], from params [7]."""
        p, times = self._checked(params), self.geometry.times
        return {_D_OF_T: _rate(times, p[:3]), _SHEAR_RATE: _rate(times, p[3:6])}


class CustomModel(Model):
    """A user-defined model: a JAX function of parameters that returns the phases.

    All work of order n_t^2 runs in the kernels; ``jax.jacfwd`` differentiates the phases.

    Args:
      geometry: the `Geometry`.
      phases_fn: ``phases_fn(params [p]) -> (A, X)``, A [n_t] (or [n_phi, n_t]) and X [n_phi, n_t],
        or [1, n_t] for all angles.
      parameter_names: p different names.
      units: p strings; "" by default.
      defaults: p numbers; 1 by default.
      bounds: p pairs (low, high); infinite by default.
      periods: p numbers, finite for angles; infinite by default.
      shear_power: power of sinc in g2: 4, 2, or 0, which ignores X.
      columns_A: parameters, by name or index, on which A depends; all by default. Fewer parameters
        are less work.
      columns_X: the same for X; all by default, none for ``shear_power=0``.

    Raises:
      ValueError: for repeated names, and for another number of units, defaults, bounds or periods.

    Example:
      >>> import jax.numpy as jnp, numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.)
      >>> def linear(params):
      ...     return params[0] * jnp.asarray(geometry.t), jnp.zeros((1, 50))
      >>> jk.xpcs.CustomModel(geometry, linear, ["rate"], shear_power=0).tables([2.]).A.shape
      (50,)
    """

    def __init__(
        self,
        geometry: Geometry,
        phases_fn: Callable[[jax.Array], tuple[Any, Any]],
        parameter_names: Sequence[str],
        *,
        units: Sequence[str] | None = None,
        defaults: Any = None,
        bounds: Any = None,
        periods: Any = None,
        shear_power: int = 4,
        columns_A: Sequence[int | str] | None = None,
        columns_X: Sequence[int | str] | None = None,
    ) -> None:
        names, p = list(parameter_names), len(parameter_names)
        if isinstance(parameter_names, str) or len(set(names)) != p:
            raise ValueError(
                f"parameter_names: expected a list of different names, got {parameter_names!r}"
            )

        def column(name: str, value: Any, default: Any, *more: int) -> list[Any]:
            rows = np.broadcast_to(default, (p, *more)) if value is None else np.array(value)
            if rows.shape != (p, *more):
                raise ValueError(f"{name}: expected shape {(p, *more)}, got {rows.shape}")
            return list(rows.tolist())

        columns = (
            names,
            column("units", units, ""),
            column("defaults", defaults, 1.0),
            column("bounds", bounds, (-np.inf, np.inf), 2),
            column("periods", periods, np.inf),
        )
        rows = [
            Parameter(name, unit, float(default), float(low), float(high), float(period))
            for name, unit, default, (low, high), period in zip(*columns, strict=True)
        ]
        for row in rows:
            if not (row.low < row.high and row.period > 0):
                raise ValueError(f"bounds, periods: expected low < high and periods > 0, got {row}")
        super().__init__(
            geometry,
            rows,
            shear_power,
            range(p) if columns_A is None else _indices(columns_A, names, "columns_A"),
            range(p) if columns_X is None else _indices(columns_X, names, "columns_X"),
        )
        self.phases_fn = phases_fn

    def phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """Call ``phases_fn`` with params [p]."""
        A, X = self.phases_fn(self._checked(params))
        return jnp.asarray(A), jnp.asarray(X)

    def _identity(self) -> tuple[Any, ...]:
        settings = (self.parameters, self.columns_A, self.columns_X)
        return (*super()._identity(), self.phases_fn, settings)


def _indices(columns: Sequence[int | str], names: list[str], argument: str) -> list[int]:
    indices = [names.index(c) if isinstance(c, str) and c in names else c for c in columns]
    valid = [k for k in indices if isinstance(k, int) and 0 <= k < len(names)]
    if len(set(valid)) != len(indices):
        raise ValueError(
            f"{argument}: expected different names or indices of {names}, got {list(columns)!r}"
        )
    return valid
