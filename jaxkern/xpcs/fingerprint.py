"""What makes two fits the same one, so that the checkpoint of one can be resumed by the other."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.xpcs.checkpoint import digest
from jaxkern.xpcs.models import Model
from jaxkern.xpcs.noise import Noise
from jaxkern.xpcs.starting import RowSample


def fingerprint_of(
    model: Model,
    shape: tuple[int, int, int],
    dtype: Any,
    sample: RowSample,
    noise: Noise,
    options: dict[str, Any],
) -> dict[str, Any]:
    """Data, model, options and software of a fit, as what JSON can hold.

    The data count by their shape, dtype and the sampled rows, which are read in any case.
    """
    import scipy

    from jaxkern import __version__

    geometry = model.geometry
    native = registry.module("cpu")
    sigma: Any = noise.per_angle
    return {
        "data": [list(shape), np.dtype(dtype).str, digest(sample.rows, sample.values)],
        "frames": digest(sample.good),
        "sigma": digest(sigma) if sigma is not None else "point by point",
        "model": [type(model).__qualname__, list(model.parameter_names), model.shear_power],
        "phases": _code_digest(model),
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


def _code_digest(model: Model) -> str:
    """Of a user's own function: its code, which tells most changes of it."""
    function = getattr(model, "phases_fn", None)
    code = getattr(function, "__code__", None)
    if code is None:
        return type(model).__qualname__
    cells = [c.cell_contents for c in getattr(function, "__closure__", None) or ()]
    numbers: list[NDArray[Any]] = [
        np.asarray(c) for c in cells if isinstance(c, int | float | np.ndarray)
    ]
    constants = [c for c in code.co_consts if isinstance(c, int | float | str)]
    text = f"{code.co_names}{constants}".encode()
    return digest(np.frombuffer(code.co_code + text, np.uint8), *numbers)


def _plain(value: Any) -> Any:
    """Arrays by their numbers, the rest as it is."""
    if isinstance(value, np.ndarray):
        return [float(v) for v in value.ravel()]
    return value
