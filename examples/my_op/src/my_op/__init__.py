"""RMS normalization with a native kernel, declared on jaxkern's op recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.interpreters.ad import UndefinedPrimal

import jaxkern

jaxkern.load_library("my_op._cpu")

Struct = jax.ShapeDtypeStruct


def rms_norm(x: jax.Array, scale: jax.Array, eps: float = 1e-6) -> jax.Array:
    """Return ``scale * x / sqrt(mean(x**2, axis=-1) + eps)``, over the last axis of ``x``.

    Args:
      x: float ``[..., n]``; float32 uses the native kernel.
      scale: ``[n]``, of the same dtype.
      eps: at least 0; a constant of the compiled program.

    Raises:
      TypeError: if the dtypes differ or are not floating-point.
      ValueError: if ``scale`` does not have the shape ``[n]``, or ``eps`` is negative.

    Example:
      >>> import jax.numpy as jnp, my_op
      >>> my_op.rms_norm(jnp.array([3.0, 3.0]), jnp.ones(2), eps=0.0).tolist()
      [1.0, 1.0]
    """
    if scale.ndim != 1:
        raise ValueError(f"scale: expected shape [n], got {scale.shape}")
    if eps < 0:
        raise ValueError(f"eps: expected at least 0, got {eps}")
    # The leading axes of x are batch axes; along them scale has size 1.
    batch_dims = x.ndim - 1
    scale = scale.reshape((1,) * batch_dims + scale.shape)
    return rms_norm_op(x, scale, batch_dims=batch_dims, eps=float(eps))


def _abstract(x: Struct, other: Struct, *, eps: float) -> Struct:
    if not jnp.issubdtype(x.dtype, jnp.floating) or x.dtype != other.dtype:
        raise TypeError(f"rms_norm: expected one float dtype, got {x.dtype} and {other.dtype}")
    if len(x.shape) != 1 or x.shape != other.shape:
        raise ValueError(
            f"rms_norm: expected two rows of shape [n], got {x.shape} and {other.shape}"
        )
    return x


def _supports(x: Struct, other: Struct, *, eps: float) -> str | None:
    return None if x.dtype == np.float32 else f"the kernels support float32, not {x.dtype}"


def _attributes(*, eps: float) -> dict[str, Any]:
    return {"eps": np.float32(eps)}


def _reciprocal_rms(x: jax.Array, eps: float) -> jax.Array:
    return jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + eps)


# The derivative of x r along v:  A v = r v - x r^3 (x . v) / n,  with r = 1 / sqrt(mean(x^2) + eps)


def _tangent_impl(x: jax.Array, v: jax.Array, *, eps: float) -> jax.Array:
    r = _reciprocal_rms(x, eps)
    return r * v - x * r**3 * jnp.mean(x * v, axis=-1, keepdims=True)


def _tangent_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, batch_dims: int, eps: float
) -> tuple[Any, Any]:
    # Linear in v, so the tangent along v is the op itself; along x the formula is differentiated.
    (x, v), (dx, dv) = primals, tangents
    total = jnp.zeros((), x.dtype)
    if dv is not None:
        total = total + tangent_op(x, dv, batch_dims=batch_dims, eps=eps)
    if dx is not None:
        total = total + jax.jvp(lambda x: _tangent_impl(x, v, eps=eps), [x], [dx])[1]
    return tangent_op(x, v, batch_dims=batch_dims, eps=eps), total


def _tangent_transpose(
    cotangents: Sequence[Any], x: Any, v: Any, *, batch_dims: int, eps: float
) -> tuple[None, Any]:
    # A is symmetric, so the op is its own transpose; a broadcast v gathers from its whole batch.
    assert isinstance(v, UndefinedPrimal)
    ct = tangent_op(x, cotangents[0], batch_dims=batch_dims, eps=eps)
    axes = tuple(i for i in range(batch_dims) if v.aval.shape[i] == 1 and ct.shape[i] != 1)
    return None, jnp.sum(ct, axes, keepdims=True)


tangent_op = jaxkern.Op(
    "my_op.rms_norm_tangent",
    version=1,
    abstract=_abstract,
    impl=_tangent_impl,
    attributes=_attributes,
    supports=_supports,
    jvp=_tangent_jvp,
    transpose=_tangent_transpose,
    cost=lambda x, v, *, eps: jaxkern.Cost(flops=7 * x.shape[0], bytes=None),
)


# y = scale x r, so  dy = scale A dx + dscale x r


def _impl(x: jax.Array, scale: jax.Array, *, eps: float) -> jax.Array:
    return scale * (x * _reciprocal_rms(x, eps))


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, batch_dims: int, eps: float
) -> tuple[Any, Any]:
    (x, scale), (dx, dscale) = primals, tangents
    total = jnp.zeros((), x.dtype)
    if dx is not None:
        total = total + scale * tangent_op(x, dx, batch_dims=batch_dims, eps=eps)
    if dscale is not None:
        total = total + dscale * (x * _reciprocal_rms(x, eps))
    return rms_norm_op(x, scale, batch_dims=batch_dims, eps=eps), total


rms_norm_op = jaxkern.Op(
    "my_op.rms_norm",
    version=1,
    abstract=_abstract,
    impl=_impl,
    attributes=_attributes,
    supports=_supports,
    jvp=_jvp,
    cost=lambda x, scale, *, eps: jaxkern.Cost(flops=4 * x.shape[0], bytes=None),
)
