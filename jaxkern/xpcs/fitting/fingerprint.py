"""What makes two fits the same one, so that the checkpoint of one can be resumed by the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.xpcs.fitting.checkpoint import digest
from jaxkern.xpcs.fitting.noise import Noise
from jaxkern.xpcs.fitting.starting import RowSample, rows_of
from jaxkern.xpcs.model.models import Model


def fingerprint_of(
    model: Model,
    shape: tuple[int, int, int],
    dtype: Any,
    sample: RowSample,
    noise: Noise,
    tables: Sequence[Any],
    options: dict[str, Any],
) -> dict[str, Any]:
    """Data, model, options and software of a fit, as what JSON can hold.

    The data count by their shape, dtype and the sampled rows, which are read in any case, and so
    does sigma where it is given point by point. A model counts by its `tables` at the start: what a
    user's function computes, whatever it is made of.
    """
    import scipy

    from jaxkern.core.version import __version__

    geometry = model.geometry
    native = registry.module("cpu")
    sigma: Any = noise.per_angle
    if sigma is None:
        sigma = rows_of(noise.sigma, sample.rows)
    return {
        "data": [list(shape), np.dtype(dtype).str, digest(sample.rows, sample.values)],
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
