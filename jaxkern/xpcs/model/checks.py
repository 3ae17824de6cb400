"""Argument checks of the functions of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.xpcs.model.models import Model
from jaxkern.xpcs.model.ops import DATA_DTYPES


def is_concrete(value: Any) -> bool:
    """True for concrete values, False for tracers of JAX transformations."""
    return not isinstance(value, jax.core.Tracer)


def choice(value: Any, name: str, options: Sequence[Any]) -> int:
    """Return the index of a value among its options."""
    for index, option in enumerate(options):
        if value is option or (isinstance(option, str) and value == option):
            return index
    raise ValueError(f"{name}: expected one of {', '.join(map(repr, options))}, got {value!r}")


def per_angle(value: Any, name: str, n_phi: int, dtype: Any) -> jax.Array:
    """Broadcast one number, or one for each angle, to [n_phi]."""
    array = jnp.asarray(value, dtype)
    if array.shape not in ((), (1,), (n_phi,)):
        raise ValueError(f"{name}: expected the shape () or ({n_phi},), got {array.shape}")
    return jnp.broadcast_to(array, (n_phi,))


def check_data(data: Any, shape: tuple[int | None, ...]) -> jax.Array:
    """Return data as an array, after checks of its shape (None: any size) and dtype."""
    expected = ", ".join("rows" if n is None else str(n) for n in shape)
    array = jnp.asarray(data)
    pairs = zip(array.shape, shape, strict=False)
    if array.ndim != len(shape) or any(n not in (None, size) for size, n in pairs):
        raise ValueError(f"data: expected [n_phi, n_t, n_t] = ({expected}), got {array.shape}")
    if array.dtype not in DATA_DTYPES:
        names = ", ".join(d.__name__ for d in DATA_DTYPES)
        raise ValueError(f"data: expected one of {names}, got {array.dtype}")
    if isinstance(data, np.ndarray) and data.shape[-1] == data.shape[-2] > 2:
        # A cheap check of NumPy arrays; `fit` checks more rows of all kinds of data.
        empty = [~part.any(axis=-1) for part in (data[:, 0, 1:], data[:, 1:, 0])]
        if (empty[0] != empty[1]).any():
            raise ValueError(
                "data: expected both triangles, c2 + c2.T with the diagonal once, got one triangle "
                f"at angle {int((empty[0] != empty[1]).argmax())}"
            )
    return array


def check_measured(model: Model, data: Any, sigma: Any) -> tuple[jax.Array, jax.Array]:
    """Return data [n_phi, n_t, n_t] and sigma of a model, after their checks."""
    n_phi, n_t = model.geometry.n_phi, model.geometry.n_t
    measured = check_data(data, (n_phi, n_t, n_t))
    return measured, check_sigma(sigma, measured.shape, jnp.result_type(float))


def check_sigma(sigma: Any, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Return sigma of data of a shape [n_phi, m, n] as [1], [n_phi] or the shape."""
    array = jnp.atleast_1d(jnp.asarray(sigma, dtype))
    if array.shape not in ((1,), shape[:1], shape):
        raise ValueError(
            f"sigma: expected one number, one for each angle {shape[:1]}, or one for each point "
            f"{shape}, got shape {jnp.shape(sigma)}"
        )
    if is_concrete(array) and not np.all(np.asarray(array) >= 0):
        raise ValueError("sigma: expected numbers >= 0 (0: no weight), got negative ones or NaN")
    return array


def check_f_scale(f_scale: Any, dtype: Any) -> jax.Array:
    """Return the scale of a robust loss as a scalar array, after checking that it is positive."""
    array = jnp.asarray(f_scale, dtype)
    positive = not is_concrete(f_scale) or np.all(np.asarray(f_scale) > 0)
    if array.shape not in ((), (1,)) or not positive:
        raise ValueError(f"f_scale: expected one number > 0, got {f_scale!r}, shape {array.shape}")
    return array.reshape(())


def check_keep(keep: Any, n_phi: int, n_t: int, unused_frames: tuple[int, ...] = ()) -> jax.Array:
    """Return the mask of used frames as u8 [1 or n_phi, n_t]."""
    array = jnp.ones((1, n_t), jnp.uint8) if keep is None else jnp.asarray(keep)
    if array.shape not in ((n_t,), (1, n_t), (n_phi, n_t)):
        raise ValueError(f"keep: expected ({n_t},) or ({n_phi}, {n_t}), got shape {array.shape}")
    mask = (array != 0).astype(jnp.uint8).reshape(-1, n_t)
    return mask.at[:, list(unused_frames)].set(0) if unused_frames else mask


def check_quantization(quantization: Any, data: jax.Array, n_phi: int, dtype: Any) -> jax.Array:
    """Return step and zero of integer data as [1 or n_phi, 2]; (1, 0) for floats."""
    floats = jnp.issubdtype(data.dtype, jnp.floating)
    if floats != (quantization is None):
        raise ValueError(
            "quantization: expected (step, zero) for uint16 data, and None for floats, got "
            f"{quantization} for {data.dtype}"
        )
    array = jnp.asarray([1.0, 0.0] if floats else quantization, dtype)
    if array.shape not in ((2,), (1, 2), (n_phi, 2)):
        raise ValueError(f"quantization: expected (step, zero) or ({n_phi}, 2), got {array.shape}")
    return array.reshape(-1, 2)
