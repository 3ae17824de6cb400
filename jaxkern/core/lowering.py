"""Lowering of an op to a custom call or to its pure-JAX implementation."""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.interpreters import mlir

from jaxkern.core import compat, registry
from jaxkern.core.axes import batch_shape, core_structs
from jaxkern.core.declaration import Declaration


def lower(op: Declaration, platform: str, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    static, batch_dims, backend = (parameters[k] for k in ("static", "batch_dims", "backend"))
    if backend == "jax":
        return lower_fallback(op, ctx, *operands, **parameters)
    problem = op.problem(platform, core_structs(ctx.avals_in, batch_dims), dict(static))
    if problem is None:
        return _lower_native(op, ctx, operands, batch_dims, dict(static))
    if backend == "native":
        raise _no_native(op, platform, problem)
    return lower_fallback(op, ctx, *operands, **parameters)


def _no_native(op: Declaration, platform: str, problem: str) -> NotImplementedError:
    return NotImplementedError(
        f"{op.name} has no native kernel for this call on {platform}: {problem}; the backend is "
        "'native' (JAXKERN_BACKEND or jaxkern.backend): use 'auto' to fall back to pure JAX"
    )


def lower_fallback(op: Declaration, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    platforms = ctx.platforms or ctx.module_context.platforms
    if parameters["backend"] == "native" and not set(platforms) <= set(registry.PLATFORMS):
        raise _no_native(op, ", ".join(platforms), "jaxkern ships kernels for cpu and cuda")
    run = functools.partial(
        op.batched_impl, batch_dims=parameters["batch_dims"], **dict(parameters["static"])
    )
    # XLA propagates shardings here: trace without them, then pin the results.
    plain = [jax.core.ShapedArray(a.shape, a.dtype) for a in ctx.avals_in]
    results = [jax.core.ShapedArray(a.shape, a.dtype) for a in ctx.avals_out]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        values = mlir.lower_fun(run, multiple_results=True)(
            ctx.replace(avals_in=plain, avals_out=results), *operands
        )
    return compat.pin_shardings(ctx, values, ctx.avals_out)


def _lower_native(
    op: Declaration, ctx: Any, operands: Sequence[Any], batch_dims: int, static: Mapping[str, Any]
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
