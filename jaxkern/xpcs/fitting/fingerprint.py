"""What makes two fits the same one, so that the checkpoint of one can be resumed by the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.xpcs.fitting.checkpoint import digest
from jaxkern.xpcs.fitting.problem import FitProblem
from jaxkern.xpcs.fitting.starting import rows_of

Array = NDArray[np.float64]


def fingerprint_of(
    problem: FitProblem, start: Array, hold: Sequence[str], multistart: Sequence[int]
) -> dict[str, Any]:
    """Data, model, options and software of a fit, as what JSON can hold.

    The data count by their shape, dtype and the sampled rows, which are read in any case, and so
    does sigma where it is given point by point. A model counts by its tables at the start: what a
    user's function computes, whatever it is made of.
    """
    import scipy

    from jaxkern.core.version import __version__

    model, data, layout, noise = problem.model, problem.data, problem.layout, problem.noise
    geometry, sample = model.geometry, data.sample
    native = registry.module("cpu")
    sigma: Any = noise.per_angle
    if sigma is None:
        sigma = rows_of(noise.sigma, sample.rows)
    tables = problem.context.program.tables_at(layout.split(start).physics)
    options = {
        "start": start,
        "lower": problem.lower,
        "upper": problem.upper,
        "hold": list(hold),
        "scaling": layout.scaling,
        "scales": np.stack([layout.contrast, layout.offset]),
        "loss": [problem.loss, problem.context.f_scale],
        "mirrored": problem.mirrored.tolist(),
        "strategy": [data.strategy.value, data.chunk_rows],
        "on_bad_chunk": problem.streaming.on_bad_chunk,
        "multistart": multistart,
        "tolerances": [problem.solver[name] for name in ("ftol", "xtol", "gtol", "max_nfev")],
        "x_scale": problem.solver["x_scale"],
    }
    return {
        "data": [list(data.shape), np.dtype(data.dtype).str, digest(sample.rows, sample.values)],
        "frames": digest(sample.good),
        "sigma": digest(sigma),
        "model": [type(model).__qualname__, list(model.parameter_names), model.shear_power],
        "columns": [list(model.columns_A), list(model.columns_X)],
        "phases": digest(*tables),
        "geometry": digest(
            np.array([geometry.q, geometry.gap or 0.0, geometry.dt]), geometry.t, geometry.phi
        ),
        **{name: _plain(value) for name, value in options.items()},
        "jaxkern": __version__,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "backend": [current_backend(), jax.default_backend()],
        "simd": native.simd_level() if native is not None else None,
    }


def _plain(value: Any) -> Any:
    """Arrays and NumPy's numbers by their numbers, the rest as it is."""
    if isinstance(value, np.ndarray):
        return [float(v) for v in value.ravel()]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
