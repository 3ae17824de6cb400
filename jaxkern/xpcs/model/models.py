"""Models of the dynamics: how parameters make the phases of two-time correlations.

A model returns a dimensionless diffusion phase A[n_t] and a shear phase X[n_phi, n_t]. The kernels
turn them into g2 = offset + contrast exp(-2 |A_i - A_j|) sinc(X_i - X_j)^shear_power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.xpcs.model.geometry import Geometry

SHEAR_POWERS = (0, 2, 4)
RATE_FLOOR = 1e-10

# Wide enough for noise: where the truth is a contrast of 1, half of all estimates lie above it, and
# bounds that cut these bias the other parameters.
CONTRAST_BOUNDS, OFFSET_BOUNDS = (0.0, 2.0), (0.0, 2.0)


class Parameter(NamedTuple):
    """A model parameter: its name, unit, default and bounds.

    A parameter with a period is an angle: the model is the same at values that differ by it.
    """

    name: str
    unit: str
    default: float
    low: float
    high: float
    period: float = math.inf


class Tables(NamedTuple):
    """Phases of a model at one point of its parameters, and their derivatives.

    A is [n_t] (or [n_phi, n_t]) and X [n_phi, n_t] (or [1, n_t]). Row k of ``tangents_A`` [kA, n_t]
    (or [n_phi, kA, n_t]) is the derivative of A by parameter ``columns_A[k]``; likewise
    ``tangents_X`` [n_phi, kX, n_t] (or [1, kX, n_t]). The model has ``n_parameters`` parameters.
    """

    A: Any
    X: Any
    tangents_A: Any
    tangents_X: Any
    columns_A: tuple[int, ...]
    columns_X: tuple[int, ...]
    n_parameters: int


class Model:
    """What every model has; the base of `Static`, `LaminarFlow` and `CustomModel`.

    Attributes:
      geometry: the `Geometry`.
      parameters: the `Parameter` s in order, p of them.
      shear_power: the power of sinc in g2: 0, 2 or 4.
      columns_A: the indices of the parameters on which A depends.
      columns_X: the indices of the parameters on which X depends; none for ``shear_power=0``.
    """

    def __init__(
        self,
        geometry: Geometry,
        parameters: Sequence[Parameter],
        shear_power: int,
        columns_A: Sequence[int],
        columns_X: Sequence[int],
    ) -> None:
        if not isinstance(geometry, Geometry):
            raise TypeError(f"geometry is a {type(geometry).__name__}; wanted a Geometry")
        if shear_power not in SHEAR_POWERS:
            raise ValueError(f"shear_power={shear_power!r}; wanted one of {SHEAR_POWERS}")
        self.geometry = geometry
        self.parameters = tuple(parameters)
        self.shear_power = int(shear_power)
        self.columns_A = tuple(columns_A)
        self.columns_X = tuple(columns_X) if shear_power else ()

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Names in parameter order."""
        return tuple(p.name for p in self.parameters)

    @property
    def units(self) -> tuple[str, ...]:
        """Units in parameter order; "" for a pure number."""
        return tuple(p.unit for p in self.parameters)

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

    def phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """A [n_t] and X [n_phi or 1, n_t] of params [p]."""
        raise NotImplementedError

    def rates(self, params: Any) -> dict[str, jax.Array]:
        """The rates of which the phases are integrals, each [n_t], by name with the unit.

        Those that the model knows: "D (Angstrom^2/s)" and "shear rate (1/s)"; a model of your own
        has none.
        """
        return {}

    def tables(self, params: Any) -> Tables:
        """Phases and their derivatives at params [p]."""
        params = self._checked(params)
        p = len(self.parameters)
        if p == 0:
            A, X = self._typed_phases(params)
            moved_A, moved_X = (jnp.zeros((*v.shape, 0), v.dtype) for v in (A, X))
        else:

            def twice(x: jax.Array) -> Any:
                phases = self._typed_phases(x)
                return phases, phases

            (moved_A, moved_X), (A, X) = jax.jacfwd(twice, has_aux=True)(params)
        tangents_A = jnp.moveaxis(moved_A[..., list(self.columns_A)], -1, -2)
        tangents_X = jnp.moveaxis(moved_X[..., list(self.columns_X)], -1, -2)
        return Tables(A, X, tangents_A, tangents_X, self.columns_A, self.columns_X, p)

    def checked_phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """`phases` in JAX's float type, with their shapes checked."""
        return self._typed_phases(self._checked(params))

    def _checked(self, params: Any) -> jax.Array:
        given = jnp.asarray(params, jnp.result_type(float))
        if given.shape != (len(self.parameters),):
            raise ValueError(
                f"params has shape {given.shape}; wanted ({len(self.parameters)},): "
                f"{', '.join(self.parameter_names)}"
            )
        return given

    def _typed_phases(self, params: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The phases as arrays of JAX's float type, of checked shapes."""
        dtype = jnp.result_type(float)
        A, X = (jnp.asarray(v, dtype) for v in self.phases(params))
        n_phi, n_t = self.geometry.n_phi, self.geometry.n_t
        if A.shape not in ((n_t,), (n_phi, n_t)):
            raise ValueError(
                f"phases: A has shape {A.shape}; wanted [n_t] = ({n_t},), or one row for each "
                f"angle, ({n_phi}, {n_t})"
            )
        if X.shape not in ((1, n_t), (n_phi, n_t)):
            raise ValueError(
                f"phases: X has shape {X.shape}; wanted [n_phi, n_t] = ({n_phi}, {n_t}), or "
                f"(1, {n_t}) where it is the same for all angles"
            )
        return A, X

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
    # g2 has even powers of sinc, so that a flow and its reverse are the same.
    Parameter("phi0", "degree", 0.0, -90.0, 90.0, 180.0),
)


def _rate(times: np.ndarray, scale: Any, exponent: Any, offset: Any) -> jax.Array:
    """max(scale times^exponent + offset, RATE_FLOOR), [n_t]."""
    rate = scale * jnp.power(jnp.asarray(times, jnp.result_type(float)), exponent) + offset
    # Not `maximum`, whose derivative at the floor itself would be a half. NaN stays NaN.
    return jnp.where(rate <= RATE_FLOOR, RATE_FLOOR, rate)


def _accumulated(times: np.ndarray, scale: Any, exponent: Any, offset: Any) -> jax.Array:
    """Cumulative trapezoid of the rate, in steps, [n_t]."""
    rate = _rate(times, scale, exponent, offset)
    steps = (rate[:-1] + rate[1:]) / 2
    return jnp.concatenate([jnp.zeros(1, rate.dtype), jnp.cumsum(steps)])


class Static(Model):
    """Anomalous diffusion without flow: 3 parameters, D0, alpha and D_offset.

    D(t) = max(D0 t^alpha + D_offset, 1e-10) Angstrom^2/s, A = q^2/2 times its integral, X = 0.

    Source: He et al., PNAS 121 (2024) e2401162121 (transport coefficient of a power law).

    Args:
      geometry: the `Geometry`; its gap and angles do not matter here.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.))
      >>> model.parameter_names, model.defaults.tolist()
      (('D0', 'alpha', 'D_offset'), [1000.0, 0.5, 10.0])
    """

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry, _DIFFUSION, 0, (0, 1, 2), ())

    def phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """A [n_t] and X = 0 [1, n_t] of params [3]."""
        D0, alpha, D_offset = self._checked(params)
        A = _diffusion_phase(self.geometry, D0, alpha, D_offset)
        return A, jnp.zeros((1, self.geometry.n_t), A.dtype)

    def rates(self, params: Any) -> dict[str, jax.Array]:
        """D(t) [n_t] of params [3]."""
        return {_D_OF_T: _rate(self.geometry.times, *self._checked(params))}


class LaminarFlow(Model):
    """Anomalous diffusion in shear between plates: 7 parameters.

    Besides those of `Static`: gamma(t) = max(gamma_dot_t0 t^beta + gamma_dot_t_offset, 1e-10) in
    1/s, and X = q gap / (2 pi) cos(phi0 - phi) times its integral.

    The shear factor enters g2 as sinc^4 by default, g1 being ``exp(-|dA|) sinc(dX)^2``: that is
    what the software computes with which published fits were made. Some papers write one power less
    (``shear_power=2``).

    Source: He et al., PNAS 121 (2024) e2401162121; Burghardt et al., Phys. Rev. E 85 (2012) 021402.

    Args:
      geometry: the `Geometry`, with a gap.
      shear_power: the power of sinc in g2: 4, 2, or 0 for none.

    Raises:
      ValueError: when the geometry has no gap.

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
            raise ValueError("the geometry has no gap; LaminarFlow wants one, in Angstrom")

    def phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """A [n_t] and X [n_phi, n_t] of params [7]."""
        D0, alpha, D_offset, gamma, beta, gamma_offset, phi0 = self._checked(params)
        g = self.geometry
        assert g.gap is not None
        strain = _accumulated(g.times, gamma, beta, gamma_offset)
        # The angle is taken in degrees up to here, so that a small phi0 - phi keeps its digits.
        along = jnp.cos((phi0 - jnp.asarray(g.phi, strain.dtype)) * (math.pi / 180))
        X = (g.q * g.gap * g.dt / (2 * math.pi)) * along[:, None] * strain
        return _diffusion_phase(g, D0, alpha, D_offset), X

    def rates(self, params: Any) -> dict[str, jax.Array]:
        """D(t) and the shear rate, each [n_t], of params [7]."""
        given, times = self._checked(params), self.geometry.times
        return {_D_OF_T: _rate(times, *given[:3]), _SHEAR_RATE: _rate(times, *given[3:6])}


def _diffusion_phase(g: Geometry, D0: Any, alpha: Any, D_offset: Any) -> jax.Array:
    return 0.5 * g.q**2 * g.dt * _accumulated(g.times, D0, alpha, D_offset)


class CustomModel(Model):
    """A model of your own: any JAX function of parameters that returns the phases.

    Everything that grows with n_t^2 still runs in the kernels; derivatives of the phases are taken
    with ``jax.jacfwd``.

    Args:
      geometry: the `Geometry`.
      phases_fn: ``phases_fn(params [p]) -> (A, X)``, A [n_t] (or [n_phi, n_t]) and X [n_phi, n_t],
        or [1, n_t] where it is the same for all angles.
      parameter_names: p different names.
      units: p words; by default "".
      defaults: p numbers; by default 1.
      bounds: p pairs (low, high); by default none.
      periods: p numbers, of parameters that are angles; infinite for the others, as by default.
      shear_power: the power of sinc in g2: 4, 2, or 0, where X does not matter.
      columns_A: the parameters, by name or index, on which A depends: the fewer, the less work. By
        default all.
      columns_X: the same for X. By default all, none for ``shear_power=0``.

    Raises:
      ValueError: for names that repeat, and for units, defaults or bounds of another number.

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
        if isinstance(parameter_names, str):
            raise ValueError(f"parameter_names={parameter_names!r}; wanted a list of names")
        names = list(parameter_names)
        p = len(names)
        if len(set(names)) != p:
            raise ValueError(f"parameter_names={names!r} repeats a name; wanted different ones")
        words = [""] * p if units is None else list(units)
        start = np.ones(p) if defaults is None else np.asarray(defaults, np.float64)
        limits = [(-np.inf, np.inf)] * p if bounds is None else bounds
        box = np.asarray(limits, np.float64).reshape(-1, 2) if p == 0 else np.asarray(limits)
        turns = np.full(p, np.inf) if periods is None else np.asarray(periods, np.float64)
        if len(words) != p or start.shape != (p,) or box.shape != (p, 2):
            raise ValueError(
                f"{p} parameters, but {len(words)} units, defaults of shape {start.shape} and "
                f"bounds of shape {box.shape}; wanted {p}, ({p},) and ({p}, 2)"
            )
        if turns.shape != (p,) or not np.all(turns > 0):
            raise ValueError(f"periods={periods!r}; wanted {p} numbers above 0")
        if not np.all(box[:, 0] < box[:, 1]):
            raise ValueError(f"bounds={limits!r}; wanted pairs with low < high")
        rows = [
            Parameter(name, word, float(value), float(low), float(high), float(period))
            for name, word, value, (low, high), period in zip(
                names, words, start, box, turns, strict=True
            )
        ]
        every = range(p)
        super().__init__(
            geometry,
            rows,
            shear_power,
            every if columns_A is None else _indices(columns_A, names, "columns_A"),
            every if columns_X is None else _indices(columns_X, names, "columns_X"),
        )
        self.phases_fn = phases_fn

    def phases(self, params: Any) -> tuple[jax.Array, jax.Array]:
        """What ``phases_fn`` returns for params [p]."""
        A, X = self.phases_fn(self._checked(params))
        return jnp.asarray(A), jnp.asarray(X)

    def _identity(self) -> tuple[Any, ...]:
        settings = (self.parameters, self.columns_A, self.columns_X)
        return (*super()._identity(), self.phases_fn, settings)


def _indices(columns: Sequence[int | str], names: list[str], what: str) -> list[int]:
    found = []
    for column in columns:
        if column in names:
            found.append(names.index(str(column)))
        elif isinstance(column, int) and 0 <= column < len(names):
            found.append(column)
        else:
            raise ValueError(f"{what} has {column!r}; wanted names or indices of {names}")
    if len(set(found)) != len(found):
        raise ValueError(f"{what}={list(columns)!r} repeats a parameter")
    return found
