"""Argument checks of the XPCS functions: what was given, what was wanted, what to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.xpcs.model.ops import DATA_DTYPES


def is_concrete(value: Any) -> bool:
    """Whether values can be looked at: not so inside a JAX transformation."""
    return not isinstance(value, jax.core.Tracer)


def choice(value: Any, name: str, options: Sequence[Any]) -> int:
    """The place of a value among a few."""
    for place, option in enumerate(options):
        if value is option or (isinstance(option, str) and value == option):
            return place
    raise ValueError(f"{name}={value!r}; wanted one of {', '.join(map(repr, options))}")


def per_angle(value: Any, name: str, n_phi: int, dtype: Any) -> jax.Array:
    """One number, or one for each angle, as [n_phi]."""
    array = jnp.asarray(value, dtype)
    if array.shape not in ((), (1,), (n_phi,)):
        raise ValueError(
            f"{name} has shape {array.shape}; wanted one number, or one for each angle: ({n_phi},)"
        )
    return jnp.broadcast_to(array, (n_phi,))


def data_of(data: Any, shape: tuple[int | None, ...]) -> jax.Array:
    """Correlations of the wanted shape (None: any size), of a dtype that the kernels read."""
    wanted = ", ".join("rows" if n is None else str(n) for n in shape)
    array = jnp.asarray(data)
    fits = array.ndim == len(shape) and all(
        w is None or w == n for n, w in zip(array.shape, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"data has shape {array.shape}; wanted [n_phi, n_t, n_t] = ({wanted})")
    if array.dtype not in DATA_DTYPES:
        names = ", ".join(d.__name__ for d in DATA_DTYPES)
        raise ValueError(f"data is {array.dtype}; wanted one of {names}")
    if isinstance(data, np.ndarray) and data.shape[-1] == data.shape[-2] > 2:
        # Where that costs nothing; `fit` looks at all kinds of data, and at more of them.
        empty = [~part.any(axis=-1) for part in (data[:, 0, 1:], data[:, 1:, 0])]
        if (empty[0] != empty[1]).any():
            raise ValueError(
                f"data has one triangle only at angle {int((empty[0] != empty[1]).argmax())}; "
                "wanted both, c2 + c2.T with the diagonal once"
            )
    return array


def sigma_of(sigma: Any, n_phi: int, shape: tuple[int, ...], dtype: Any) -> tuple[jax.Array, int]:
    """Standard deviations as [1], [n_phi] or `shape`, and their rank in one angle, 0 or 2."""
    array = jnp.asarray(sigma, dtype)
    if array.ndim == 0:
        array = array[None]
    if array.shape not in ((1,), (n_phi,), shape):
        raise ValueError(
            f"sigma has shape {jnp.shape(sigma)}; wanted one number, one for each angle "
            f"({n_phi},), or one for each point {shape}"
        )
    if is_concrete(array) and not np.all(np.asarray(array) >= 0):
        raise ValueError(
            "sigma is negative or NaN somewhere; wanted standard deviations, 0 for points that "
            "shall not count"
        )
    return array, array.ndim - 1


def f_scale_of(f_scale: Any, dtype: Any) -> jax.Array:
    """The residual beyond which a robust loss turns [], above 0."""
    array = jnp.asarray(f_scale, dtype)
    if array.shape not in ((), (1,)):
        raise ValueError(f"f_scale has shape {array.shape}; wanted one number")
    if is_concrete(f_scale) and not np.all(np.asarray(f_scale) > 0):
        raise ValueError(f"f_scale is {f_scale!r}; wanted a number above 0")
    return array.reshape(())


def kept_frames(keep: Any, n_phi: int, n_t: int) -> jax.Array:
    """Which frames count, as u8 [1 or n_phi, n_t]."""
    if keep is None:
        return jnp.ones((1, n_t), jnp.uint8)
    array = jnp.asarray(keep)
    if array.shape not in ((n_t,), (1, n_t), (n_phi, n_t)):
        raise ValueError(
            f"keep has shape {array.shape}; wanted one value for each frame: ({n_t},), or "
            f"({n_phi}, {n_t})"
        )
    return (array != 0).astype(jnp.uint8).reshape(-1, n_t)


def quantization_of(quantization: Any, data: jax.Array, n_phi: int, dtype: Any) -> jax.Array:
    """Step and zero of integer data as [1 or n_phi, 2]; (1, 0) for floats."""
    floats = jnp.issubdtype(data.dtype, jnp.floating)
    if floats and quantization is not None:
        raise ValueError(
            f"quantization is given for data of {data.dtype}; wanted uint16 data, or none"
        )
    if quantization is None:
        if not floats:
            raise ValueError(
                f"data is {data.dtype}, quantized, but quantization is missing; give (step, zero): "
                "the value is zero + step * data"
            )
        quantization = np.array([1.0, 0.0])
    array = jnp.asarray(quantization, dtype)
    if array.shape not in ((2,), (1, 2), (n_phi, 2)):
        raise ValueError(
            f"quantization has shape {array.shape}; wanted (step, zero), or one pair for each "
            f"angle: ({n_phi}, 2)"
        )
    return array.reshape(-1, 2)
