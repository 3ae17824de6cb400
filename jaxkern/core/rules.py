"""Rules for JAX's transformations of an op: abstract evaluation, differentiation, batching."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from jaxkern.core import registry
from jaxkern.core.axes import as_tuple, batch_shape, explicit_axes, in_auto_mode
from jaxkern.core.declaration import Declaration
from jaxkern.core.lowering import lower, lower_fallback


def register_rules(op: Declaration) -> None:
    """Register evaluation, differentiation, batching and lowering of an op's primitive."""
    primitive = op.primitive
    primitive.multiple_results = True
    primitive.def_abstract_eval(functools.partial(_abstract_eval, op))
    primitive.def_impl(functools.partial(_eager, op))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, op)
    if op.transpose is not None:
        ad.primitive_transposes[primitive] = functools.partial(_transpose, op)
    batching.primitive_batchers[primitive] = functools.partial(_batch, op)
    mlir.register_lowering(primitive, functools.partial(lower_fallback, op))
    for platform in registry.PLATFORMS:
        mlir.register_lowering(primitive, functools.partial(lower, op, platform), platform=platform)


# Abstract evaluation.


def _abstract_eval(
    op: Declaration, *avals: Any, batch_dims: int, static: tuple[tuple[str, Any], ...], backend: str
) -> list[Any]:
    cores = as_tuple(op.core_results(avals, batch_dims, dict(static)))
    batch = batch_shape(avals, batch_dims)
    if all(aval.sharding.mesh.empty for aval in avals):
        return [jax.core.ShapedArray((*batch, *core.shape), core.dtype) for core in cores]

    # Under a mesh a result's type includes its sharding and manual axes. JAX's own rules for
    # reductions and broadcasts derive them on a substitute with the same batch axes.
    def stand_in(*operands: Any) -> list[Any]:
        total: Any = 0.0
        for x in operands:
            y = lax.convert_element_type(jnp.real(x), jnp.float32)
            total = total + jnp.sum(y, axis=tuple(range(batch_dims, y.ndim)))
        return [
            lax.convert_element_type(
                lax.broadcast_in_dim(total, (*batch, *core.shape), tuple(range(batch_dims))),
                core.dtype,
            )
            for core in cores
        ]

    return [v.aval for v in jax.make_jaxpr(stand_in)(*avals).jaxpr.outvars]


# Eager execution: a jitted call, cached by the static part.


@functools.lru_cache(maxsize=1024)
def _jitted(op: Declaration, parameters: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(functools.partial(op.primitive.bind, **dict(parameters)))


def _eager(op: Declaration, *operands: Any, **parameters: Any) -> Any:
    call = _jitted(op, tuple(parameters.items()))
    if not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return call(*operands)
    # With jit disabled an op is still one operation.
    with jax.disable_jit(False):
        return call(*operands)


# Differentiation.


def _jvp(
    op: Declaration, primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any
) -> tuple[Any, Any]:
    static, batch_dims = dict(parameters["static"]), parameters["batch_dims"]
    nonzero = [None if isinstance(t, ad.Zero) else t for t in tangents]
    if op.jvp is not None:
        results, out = op.jvp(primals, nonzero, batch_dims=batch_dims, **static)
        return as_tuple(results), as_tuple(out)
    results = op.primitive.bind(*primals, **parameters)
    active = [i for i, t in enumerate(nonzero) if t is not None]

    def tangent_map(operands: Sequence[Any], moved: Sequence[Any]) -> tuple[Any, ...]:
        def along(*xs: Any) -> tuple[Any, ...]:
            full = list(operands)
            for i, x in zip(active, xs, strict=True):
                full[i] = x
            return op.batched_impl(*full, batch_dims=batch_dims, **static)

        tangents: tuple[Any, ...] = jax.jvp(along, [operands[i] for i in active], list(moved))[1]
        return tangents

    moved = [nonzero[i] for i in active]
    # The fallback's gathers and products need not follow Explicit mode's typing rules.
    specs = tuple(jax.typeof(r).sharding for r in results)
    tangent_map = in_auto_mode(tangent_map, specs, explicit_axes(results))
    return results, list(tangent_map(tuple(primals), tuple(moved)))


def _transpose(
    op: Declaration, cotangents: Sequence[Any], *operands: Any, **parameters: Any
) -> Any:
    assert op.transpose is not None
    dense = [ad.instantiate_zeros(ct) if isinstance(ct, ad.Zero) else ct for ct in cotangents]
    return op.transpose(
        dense, *operands, batch_dims=parameters["batch_dims"], **dict(parameters["static"])
    )


# Batching: one more leading axis, of size 1 where an operand is not mapped.


def _batch(
    op: Declaration, operands: Sequence[Any], axes: Sequence[int | None], **parameters: Any
) -> tuple[Any, list[int]]:
    batch_dims = parameters["batch_dims"]
    shared = [
        axis is None and all(n == 1 for n in x.shape[:batch_dims])
        for x, axis in zip(operands, axes, strict=True)
    ]
    # XLA partitions leading axes. If an operand with other batch axes is broadcast along the new
    # axis, the new axis becomes the last batch axis, so the others can still be partitioned.
    everywhere = all(s or axis is not None for s, axis in zip(shared, axes, strict=True))
    position = 0 if everywhere else batch_dims
    moved = [
        jnp.expand_dims(x, position) if axis is None else jnp.moveaxis(x, axis, position)
        for x, axis in zip(operands, axes, strict=True)
    ]
    results = op.primitive.bind(*moved, **{**parameters, "batch_dims": batch_dims + 1})
    return results, [position] * len(results)
