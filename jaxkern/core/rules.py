"""Rules for JAX's transformations of an op, and its lowering to a custom call or to pure JAX."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.interpreters import ad, batching, mlir

from jaxkern.core import compat, registry
from jaxkern.core.axes import as_tuple, batch_shape, core_structs, explicit_axes, in_auto_mode

if TYPE_CHECKING:
    from jaxkern.core.op import Op


def register_rules(op: Op) -> None:
    """Register evaluation, differentiation, batching and lowering of an op's primitive."""
    primitive = op.primitive
    primitive.multiple_results = True
    primitive.def_abstract_eval(functools.partial(_abstract_eval, op))
    primitive.def_impl(functools.partial(_eager, op))
    ad.primitive_jvps[primitive] = functools.partial(_jvp, op)
    if op.transpose is not None:
        ad.primitive_transposes[primitive] = functools.partial(_transpose, op)
    batching.primitive_batchers[primitive] = functools.partial(_batch, op)
    mlir.register_lowering(primitive, functools.partial(_lower_fallback, op))
    for platform in registry.PLATFORMS:
        mlir.register_lowering(
            primitive, functools.partial(_lower, op, platform), platform=platform
        )


# Abstract evaluation.


def _abstract_eval(
    op: Op, *avals: Any, batch_dims: int, static: tuple[tuple[str, Any], ...], backend: str
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
def _jitted(op: Op, parameters: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return jax.jit(functools.partial(op.primitive.bind, **dict(parameters)))


def _eager(op: Op, *operands: Any, **parameters: Any) -> Any:
    call = _jitted(op, tuple(parameters.items()))
    if not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return call(*operands)
    # With jit disabled an op is still one operation.
    with jax.disable_jit(False):
        return call(*operands)


# Differentiation.


def _jvp(
    op: Op, primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any
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

        return jax.jvp(along, [operands[i] for i in active], list(moved))[1]

    moved = [nonzero[i] for i in active]
    # The fallback's gathers and products need not follow Explicit mode's typing rules.
    specs = tuple(jax.typeof(r).sharding for r in results)
    tangent_map = in_auto_mode(tangent_map, specs, explicit_axes(results))
    return results, list(tangent_map(tuple(primals), tuple(moved)))


def _transpose(op: Op, cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> Any:
    assert op.transpose is not None
    dense = [ad.instantiate_zeros(ct) if isinstance(ct, ad.Zero) else ct for ct in cotangents]
    return op.transpose(
        dense, *operands, batch_dims=parameters["batch_dims"], **dict(parameters["static"])
    )


# Batching: one more leading axis, of size 1 where an operand is not mapped.


def _batch(
    op: Op, operands: Sequence[Any], axes: Sequence[int | None], **parameters: Any
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


# Lowering.


def _lower(op: Op, platform: str, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    static, batch_dims = dict(parameters["static"]), parameters["batch_dims"]
    if parameters["backend"] != "jax":
        problem = op.problem(platform, core_structs(ctx.avals_in, batch_dims), static)
        if problem is None:
            return _lower_native(op, ctx, operands, batch_dims, static)
        if parameters["backend"] == "native":
            raise _no_native(op, platform, problem)
    return _lower_fallback(op, ctx, *operands, **parameters)


def _no_native(op: Op, platform: str, problem: str) -> NotImplementedError:
    return NotImplementedError(
        f"{op.name} has no native kernel for this call on {platform}: {problem}; the backend is "
        "'native' (JAXKERN_BACKEND or jaxkern.backend): use 'auto' to fall back to pure JAX"
    )


def _lower_fallback(op: Op, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    platforms = ctx.platforms or ctx.module_context.platforms
    if parameters["backend"] == "native" and not set(platforms) <= set(registry.PLATFORMS):
        raise _no_native(op, ", ".join(platforms), "jaxkern ships kernels for cpu and cuda")
    run = functools.partial(
        op.batched_impl, batch_dims=parameters["batch_dims"], **dict(parameters["static"])
    )
    # XLA propagates shardings here: trace without them, then pin the results.
    plain, results = (
        [jax.core.ShapedArray(a.shape, a.dtype) for a in avals]
        for avals in (ctx.avals_in, ctx.avals_out)
    )
    inner = ctx.replace(avals_in=plain, avals_out=results)
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        values = mlir.lower_fun(run, multiple_results=True)(inner, *operands)
    return compat.pin_shardings(ctx, values, ctx.avals_out)


def _lower_native(
    op: Op, ctx: Any, operands: Sequence[Any], batch_dims: int, static: Mapping[str, Any]
) -> Any:
    attributes = dict(op.attributes(**static)) if op.attributes is not None else {}
    call = _CustomCall(list(operands), list(ctx.avals_in), list(ctx.avals_out))
    extra: dict[str, Any] = {}
    if compat.is_partitioned(ctx) and batch_dims > 0:
        leading = call.make_partitionable(batch_shape(ctx.avals_in, batch_dims))
        extra["extra_attributes"] = {
            "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(leading)}),
            "sdy.sharding_rule": compat.sdy_sharding_rule(
                call.sharding_rule(leading),
                [v.type for v in call.values],
                [compat.tensor_type(a) for a in call.avals_out],
            ),
        }
    # A broadcast operand is smaller than the result, so they cannot share memory.
    aliases = {
        i: j
        for i, j in op.aliases.items()
        if compat.tensor_type(call.avals_in[i]) == compat.tensor_type(call.avals_out[j])
    }
    rule = jax.ffi.ffi_lowering(op.target, operand_output_aliases=aliases or None, **extra)
    results = rule(
        ctx.replace(avals_in=call.avals_in, avals_out=call.avals_out), *call.values, **attributes
    )
    shaped = [compat.reshape(r, a) for r, a in zip(results, ctx.avals_out, strict=True)]
    return compat.pin_shardings(ctx, shaped, ctx.avals_out)


class _CustomCall:
    """The operands and results of one custom call, in the form that XLA can partition.

    XLA shards the leading ``num_batch_dims`` axes of all operands and results in the same way. It
    pads an axis of size 1 with zeros, and replicates only operands of lower rank than
    ``num_batch_dims``. Therefore an operand that all samples share drops its batch axes, and the
    other operands get extra batch axes of size 1 until its rank is below ``num_batch_dims``.
    Handlers accept operands without batch axes.
    """

    def __init__(self, values: list[Any], avals_in: list[Any], avals_out: list[Any]) -> None:
        self.values, self.avals_in, self.avals_out = values, avals_in, avals_out
        self.shared = [False] * len(values)

    def make_partitionable(self, batch: Sequence[int]) -> int:
        """Reshape operands; return the number of leading batch axes that XLA may shard."""
        rank = len(batch)
        self.shared = [
            all(n == 1 for n in a.shape[:rank]) and any(n != 1 for n in batch)
            for a in self.avals_in
        ]
        own = [a for a, shared in zip(self.avals_in, self.shared, strict=True) if not shared]
        spanned = 0
        while spanned < rank and all(a.shape[spanned] == batch[spanned] for a in own):
            spanned += 1
        core_ranks = [
            len(a.shape) - rank for a, s in zip(self.avals_in, self.shared, strict=True) if s
        ]
        leading = max([spanned, *(n + 1 for n in core_ranks)]) if spanned else 0

        def widen(aval: Any) -> Any:
            ones = (1,) * (leading - spanned)
            shape = (*aval.shape[:spanned], *ones, *aval.shape[spanned:])
            return jax.core.ShapedArray(shape, aval.dtype)

        for i, aval in enumerate(self.avals_in):
            if not self.shared[i]:
                self.avals_in[i] = widen(aval)
            elif leading:
                self.avals_in[i] = jax.core.ShapedArray(aval.shape[rank:], aval.dtype)
            self.values[i] = compat.reshape(self.values[i], self.avals_in[i])
        self.avals_out = [widen(a) for a in self.avals_out]
        return leading

    def sharding_rule(self, leading: int) -> str:
        """Return Shardy's rule: leading axes share factors, every other axis has a factor."""
        letters = iter(f"{a}{b}" for a in string.ascii_lowercase for b in string.digits)
        batch = [next(letters) for _ in range(leading)]

        def term(aval: Any, shared: bool) -> str:
            own = aval.shape if shared else aval.shape[leading:]
            return " ".join(([] if shared else batch) + [next(letters) for _ in own])

        operands = map(term, self.avals_in, self.shared)
        results = (term(a, False) for a in self.avals_out)
        return ", ".join(operands) + " -> " + ", ".join(results)
