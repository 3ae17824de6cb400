"""Models of g2(tau): baseline + contrast g1^2 with several g1, and functions of the user."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.model.checks import choice
from jaxkern.xpcs.model.models import CONTRAST_BOUNDS, OFFSET_BOUNDS
from jaxkern.xpcs.model.twin import correlation

Array = NDArray[np.float64]

_POSITIVE = (0.0, np.inf)
# Parameters that are fitted on a logarithmic scale, unless their bounds include negative numbers.
LOGARITHMIC = ("rate", "slow_rate", "shear", "D")
_BOUNDS = {
    **dict.fromkeys(LOGARITHMIC, _POSITIVE),
    "stretch": (0.05, 4.0),
    "fraction": (0.0, 1.0),
    "exponent": (-10.0, 10.0),
    "contrast": CONTRAST_BOUNDS,
    "baseline": OFFSET_BOUNDS,
}
# Number of rates of the grid of starting values.
_RATES = 24


@dataclass(frozen=True)
class DecayModel:
    """A function of the delay and its parameters.

    Attributes:
      name: of the model.
      function: tau [n_tau] and parameters by name -> g2 [n_tau], in JAX.
      names: of the parameters.
      shape: for functions baseline + contrast shape(tau, ...), the shape, else None.
      defaults: starting values of a user's function, by name.
    """

    name: str
    function: Callable[..., Any]
    names: tuple[str, ...]
    shape: Callable[..., Any] | None = None
    defaults: tuple[tuple[str, float], ...] = ()

    def bounds(self, name: str) -> tuple[float, float]:
        """Return the default bounds of a parameter, or of "D" or "exponent"."""
        known = self.shape is not None or name not in self.names
        return _BOUNDS[name] if known else (-np.inf, np.inf)

    def candidates(self, tau: Array) -> Array:
        """Return a grid [n, parameters of the shape] of starting values for these delays."""
        rates = np.geomspace(0.05 / tau.max(), 1.0 / tau.min(), _RATES)
        grids: dict[str, Any] = {
            "stretched": (rates, (0.5, 1.0, 1.6)),
            "double": (rates, (0.3, 0.1, 0.03, 0.01), (0.25, 0.5, 0.75)),
            "shear-gaussian": (rates, (0.1, 0.5, 2.0, 8.0)),
            "shear-sinc": (rates, (0.1, 0.5, 2.0, 8.0)),
        }
        axes = (rates,) if self.shape is None else grids.get(self.name, (rates,))
        grid = np.array(list(itertools.product(*axes)))
        if len(axes) > 1 and self.names[1] in LOGARITHMIC:
            grid[:, 1] *= grid[:, 0]  # the second rate in units of the first
        return grid


def exponential(tau: Any, rate: Any) -> Any:
    """Return the shape of a decay with one rate."""
    return jnp.exp(-2.0 * rate * tau)


def _stretched(tau: Any, rate: Any, stretch: Any) -> Any:
    return jnp.exp(-2.0 * jnp.exp(stretch * jnp.log(rate * tau)))


def _double(tau: Any, rate: Any, slow_rate: Any, fraction: Any) -> Any:
    fast, slow = jnp.exp(-rate * tau), jnp.exp(-slow_rate * tau)
    return (fraction * fast + (1.0 - fraction) * slow) ** 2


def _shear_gaussian(tau: Any, rate: Any, shear: Any) -> Any:
    return jnp.exp(-2.0 * rate * tau - (shear * tau) ** 2)


def _shear_sinc(tau: Any, rate: Any, shear: Any) -> Any:
    return correlation(rate * tau, shear * tau, 4)


def _from_shape(name: str, shape: Callable[..., Any]) -> DecayModel:
    names = tuple(inspect.signature(shape).parameters)[1:]

    def function(tau: Any, contrast: Any, baseline: Any, **rest: Any) -> Any:
        return baseline + contrast * shape(tau, **rest)

    return DecayModel(name, function, (*names, "contrast", "baseline"), shape)


_SHAPES = (exponential, _stretched, _double, _shear_gaussian, _shear_sinc)
MODELS: Mapping[str, DecayModel] = {
    name: _from_shape(name, shape)
    for shape in _SHAPES
    for name in [shape.__name__.strip("_").replace("_", "-")]
}


def as_model(model: Any) -> DecayModel:
    """Return the model with a name, or that of a function f(tau, **parameters)."""
    if not callable(model):
        choice(model, "model", [*MODELS, "a function f(tau, **parameters)"])
        return MODELS[model]
    try:
        _, *parameters = inspect.signature(model).parameters.values()
        named = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
        if not parameters or any(p.kind not in named for p in parameters):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            "model: expected a function f(tau, rate, ...) with named parameters, got "
            f"{model!r:.80}; write each parameter in its signature"
        ) from None
    empty = inspect.Parameter.empty
    defaults = ((p.name, float(p.default)) for p in parameters if p.default is not empty)
    name = getattr(model, "__name__", type(model).__name__)
    return DecayModel(name, model, tuple(p.name for p in parameters), None, tuple(defaults))
