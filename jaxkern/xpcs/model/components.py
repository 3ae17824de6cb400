"""Models of several components that scatter together: `Components` and `TwoComponent`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.xpcs.model.models import Geometry, Model, Parameter, trapezoid

# Weights below this value count as this value, whose logarithm is finite.
LEAST_WEIGHT = 1e-30
Component = Callable[[jax.Array], tuple[Any, Any, Any]]


class ComponentTables(NamedTuple):
    """Tables of a model with C components and p parameters, and their derivatives.

    B, A and P are the logarithm of the weight, the decay and the phase, [n_phi, C, n_t], or
    [1, C, n_t] for all angles. Row k of ``tangents_B`` [n_phi or 1, p, C, n_t] is the derivative of
    B with respect to parameter k; likewise ``tangents_A`` and ``tangents_P``.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> B = A = P = np.zeros((1, 2, 8))  # 2 components, 8 frames
      >>> tangents = np.zeros((1, 3, 2, 8))  # 3 parameters
      >>> jk.xpcs.ComponentTables(B, A, P, tangents, tangents, tangents).n_parameters
      3
    """

    B: Any
    A: Any
    P: Any
    tangents_B: Any
    tangents_A: Any
    tangents_P: Any

    @property
    def columns(self) -> tuple[int, ...]:
        """Indices of the parameters of the normal equations: all of them."""
        return tuple(range(self.tangents_B.shape[-3]))

    @property
    def n_parameters(self) -> int:
        """Number of parameters p."""
        return int(self.tangents_B.shape[-3])

    @property
    def arrays(self) -> tuple[Any, ...]:
        """The arrays of the tables."""
        return tuple(self)


class Components(Model):
    """A model of N components that scatter together: a JAX function for each one's tables.

    The correlation of the field is the sum of those of the components::

        g2 = offset + contrast |sum_c w_c[i] w_c[j] exp(-|A_c[i] - A_c[j]| + i (P_c[i] - P_c[j]))|^2

    All work of order n_t^2 runs in the kernels; ``jax.jacfwd`` differentiates the tables.

    Source: He et al., PNAS 122 (2025), SI section F.

    Args:
      geometry: the `Geometry`.
      functions: N functions ``params [p] -> (weight, decay, phase)``, each of the results [n_t], or
        [n_phi, n_t] if it depends on the angle. Weights are at least 0, decays and phases are pure
        numbers. The squares of the weights of a frame should add up to 1.
      parameters: the `Parameter` objects in order, p of them.

    Raises:
      ValueError: for no function, and for repeated names of parameters.

    Example:
      >>> import jax.numpy as jnp, numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), 0.)
      >>> def moving(p):
      ...     return jnp.sqrt(p[0]) * jnp.ones(50), jnp.zeros(50), p[1] * jnp.asarray(geometry.t)
      >>> def resting(p):
      ...     return jnp.sqrt(1 - p[0]) * jnp.ones(50), jnp.zeros(50), jnp.zeros(50)
      >>> parameters = [jk.xpcs.Parameter("part", "", .5, 0., 1.),
      ...               jk.xpcs.Parameter("frequency", "1/s", 1., 0., 10.)]
      >>> model = jk.xpcs.Components(geometry, [moving, resting], parameters)
      >>> jk.xpcs.g2(model, [.5, 2.], contrast=.3).shape
      (1, 50, 50)
    """

    def __init__(
        self, geometry: Geometry, functions: Sequence[Component], parameters: Sequence[Parameter]
    ) -> None:
        names = [parameter.name for parameter in parameters]
        if not functions or not all(map(callable, functions)):
            raise ValueError(f"functions: expected one function or more, got {functions!r}")
        if len(set(names)) != len(names):
            raise ValueError(f"parameters: expected different names, got {names}")
        super().__init__(geometry, parameters, 0, range(len(names)), ())
        self.functions = tuple(functions)

    def phases(self, params: Any) -> tuple[jax.Array, ...]:
        """Compute B, A and P, each [n_phi or 1, N, n_t], from params [p]."""
        vector, n_phi, n_t = self._checked(params), self.geometry.n_phi, self.geometry.n_t
        columns: list[list[jax.Array]] = [[], [], []]
        for number, function in enumerate(self.functions):
            rows = [jnp.asarray(row, vector.dtype) for row in function(vector)]
            shapes = [row.shape for row in rows]
            if len(rows) != 3 or not {*shapes} <= {(n_t,), (n_phi, n_t)}:
                raise ValueError(
                    f"functions[{number}]: expected (weight, decay, phase) of ({n_t},) or "
                    f"{(n_phi, n_t)}, got {shapes}"
                )
            for column, row in zip(columns, rows, strict=True):
                column.append(jnp.atleast_2d(row))

        def stacked(column: list[jax.Array]) -> jax.Array:
            size = max(len(row) for row in column)
            return jnp.stack([jnp.broadcast_to(row, (size, n_t)) for row in column], axis=1)

        weight, decay, phase = map(stacked, columns)
        return _logarithm(weight), decay, phase

    def checked_phases(self, params: Any) -> tuple[jax.Array, ...]:
        """Compute the phases; `phases` checks their shapes."""
        return self.phases(params)

    def tables(self, params: Any) -> ComponentTables:  # type: ignore[override]
        """Compute the tables and their derivatives at params [p]."""

        def twice(x: jax.Array) -> Any:
            phases = self.phases(x)
            return phases, phases

        tangents, phases = jax.jacfwd(twice, has_aux=True)(self._checked(params))
        return ComponentTables(*phases, *(jnp.moveaxis(tangent, -1, 1) for tangent in tangents))

    def tables_of(self, arrays: Sequence[Any]) -> ComponentTables:  # type: ignore[override]
        """Return tables with some `ComponentTables.arrays`."""
        return ComponentTables(*arrays)

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self.functions, self.parameters)

    def __repr__(self) -> str:
        g, count = self.geometry, len(self.functions)
        return f"{type(self).__name__}(n_phi={g.n_phi}, n_t={g.n_t}, {count} components)"


def _logarithm(weight: jax.Array) -> jax.Array:
    """Return log(max(weight, LEAST_WEIGHT)); weight times the derivative is also right at 0."""
    positive = weight > LEAST_WEIGHT
    below = math.log(LEAST_WEIGHT) + (weight - jax.lax.stop_gradient(weight)) / LEAST_WEIGHT
    return jnp.where(positive, jnp.log(jnp.where(positive, weight, 1.0)), below)


def _transport(name: str) -> tuple[Parameter, ...]:
    return (
        Parameter(f"D0_{name}", "Angstrom^2/s", 1e4, 0.0, 1e6),
        Parameter(f"alpha_{name}", "", 0.0, -2.0, 2.0),
        Parameter(f"D_offset_{name}", "Angstrom^2/s", 0.0, -1e4, 1e4),
    )


_TWO_COMPONENTS = (
    *_transport("ref"),
    *_transport("sample"),
    Parameter("v0", "Angstrom/s", 1e3, 0.0, 1e6),
    Parameter("v_beta", "", 1.0, 0.0, 2.0),
    Parameter("v_offset", "Angstrom/s", 0.0, -100.0, 100.0),
    Parameter("f0", "", 0.5, 0.0, 1.0),
    Parameter("f1", "1/s", 0.0, -1.0, 1.0),
    Parameter("f2", "s", 0.0, -1.0, 1.0),
    Parameter("f3", "", 0.0, -1.0, 1.0),
    Parameter("phi0_het", "degree", 0.0, -10.0, 10.0),
)
# Sharpness of the smooth clip of the fraction to [0, 1].
_SHARPNESS = 50.0


class TwoComponent(Components):
    """Heterodyne model: a reference and a sample that flows relative to it, 14 parameters.

    Diffusion of each follows J(t) = max(D0 t^alpha + D_offset, 0) Angstrom^2/s, with t^alpha = 0 at
    t = 0; the sample moves at v(t) = v0 t^v_beta + v_offset Angstrom/s along phi = -phi0_het. Its
    fraction of the scattered field is x(t) = f0 exp(f1 (t - f2)) + f3, smoothly clipped to [0, 1],
    and that of the reference is 1 - x; weights are the fractions over their Euclidean norm. Decays
    are q^2/2 times the integral of J, the phase of the sample is q cos(phi0_het + phi) times the
    integral of v, by the trapezoidal rule with steps of dt.

    The residual leaves out the diagonal, as in other models, and also the row and the column of
    frame 0.

    Source: He et al., PNAS 122 (2025), SI; the formulas are those of the package xpcsjax 0.1.8.

    Args:
      geometry: the `Geometry`; its gap has no effect.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> geometry = jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(50), [0., 90.])
      >>> model = jk.xpcs.TwoComponent(geometry)
      >>> model.parameter_names[:4], jk.xpcs.g2(model, model.defaults, contrast=.3).shape
      (('D0_ref', 'alpha_ref', 'D_offset_ref', 'D0_sample'), (2, 50, 50))
    """

    unused_frames = (0,)

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry, (self._reference, self._sample), _TWO_COMPONENTS)
        diffusion = 0.5 * geometry.q**2
        self.power_laws = (0, diffusion), (3, diffusion), (6, geometry.q)
        self.offsets = 2, 5, 8, 10, 11, 12
        self.exchange = (
            (0, 3),
            (1, 4),
            (2, 5),
            (3, 0),
            (4, 1),
            (5, 2),
            (6, 6),
            (7, 7),
            (8, 8),
            (13, 13),
        )

    def rates(self, params: Any) -> dict[str, jax.Array]:
        """Compute D of both components, the velocity, and the fraction of the sample, [n_t]."""
        p = self._checked(params)
        return {
            "D reference (Angstrom^2/s)": self._diffusion(p[0:3]),
            "D sample (Angstrom^2/s)": self._diffusion(p[3:6]),
            "velocity (Angstrom/s)": self._power_law(p[6:9]),
            "fraction of the sample": self._fractions(p[9:13])[1],
        }

    def alternatives(self, physics: Any) -> list[np.ndarray]:
        """Return parameters [p] with offsets of 0 and a constant fraction, and these exchanged.

        Exchanging the components changes only the sign of the phase, on which g2 does not depend.
        """
        simple = super().alternatives(physics)[0]
        share = float(self._fractions(jnp.asarray(physics[9:13]))[1].mean())
        simple[9:13] = share, 0.0, 0.0, 0.0
        exchanged = simple[[3, 4, 5, 0, 1, 2, *range(6, 14)]]
        exchanged[9] = 1.0 - share
        return [simple, exchanged]

    def _reference(self, p: jax.Array) -> tuple[Any, Any, Any]:
        reference, sample = self._fractions(p[9:13])
        weight = reference / jnp.sqrt(reference**2 + sample**2)
        decay = self._decay(p[0:3])
        return weight, decay, jnp.zeros_like(decay)

    def _sample(self, p: jax.Array) -> tuple[Any, Any, Any]:
        reference, sample = self._fractions(p[9:13])
        weight = sample / jnp.sqrt(reference**2 + sample**2)
        g = self.geometry
        projection = g.q * jnp.cos((p[13] + jnp.asarray(g.phi, p.dtype)) * (math.pi / 180))
        way = g.dt * trapezoid(self._power_law(p[6:9]))
        return weight, self._decay(p[3:6]), projection[:, None] * way

    def _power_law(self, law: jax.Array) -> jax.Array:
        """Compute scale t^exponent + offset [n_t] of (scale, exponent, offset)."""
        scale, exponent, offset = law
        t = jnp.asarray(self.geometry.t, law.dtype)
        power = jnp.where(t > 0, jnp.power(jnp.maximum(t, 1e-10), exponent), 0.0)
        return jnp.asarray(scale * power + offset)

    def _diffusion(self, law: jax.Array) -> jax.Array:
        rate = self._power_law(law)
        return jnp.where(rate < 0, 0.0, rate)  # the derivative of `maximum` at 0 would be 1/2

    def _decay(self, law: jax.Array) -> jax.Array:
        g = self.geometry
        return 0.5 * g.q**2 * g.dt * trapezoid(self._diffusion(law))

    def _fractions(self, law: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute the fractions [n_t] of the reference and the sample, which add up to 1."""
        f0, f1, f2, f3 = law
        t = jnp.asarray(self.geometry.t, law.dtype)
        x = f0 * jnp.exp(jnp.clip(f1 * (t - f2), -700.0, 700.0)) + f3
        y = jax.nn.softplus(_SHARPNESS * x) / _SHARPNESS
        reference = jax.nn.softplus(_SHARPNESS * (1.0 - y)) / _SHARPNESS
        return reference, 1.0 - reference

    def _identity(self) -> tuple[Any, ...]:
        return type(self), self.geometry
