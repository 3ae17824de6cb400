"""What an op becomes in a compiled program: a custom call, or its pure-JAX implementation."""

from __future__ import annotations

import functools
import string
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
from jax.interpreters import mlir

from jaxkern.core import compat, registry
from jaxkern.core.batch import batch_shape, core_structs

if TYPE_CHECKING:
    from jaxkern.core.op import Op


def lower(op: Op, platform: str, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    static, batch_dims, backend = (parameters[k] for k in ("static", "batch_dims", "backend"))
    if backend == "jax":
        return lower_fallback(op, ctx, *operands, **parameters)
    problem = op.problem(platform, core_structs(ctx.avals_in, batch_dims), dict(static))
    if problem is None:
        return _lower_native(op, ctx, operands, batch_dims, dict(static))
    if backend == "native":
        raise _no_native(op, platform, problem)
    return lower_fallback(op, ctx, *operands, **parameters)


def _no_native(op: Op, platform: str, problem: str) -> NotImplementedError:
    return NotImplementedError(
        f"{op.name} has no native kernel for this call on {platform}: {problem}; the backend is "
        "'native' (JAXKERN_BACKEND or jaxkern.backend): use 'auto' to let pure JAX take its place"
    )


def lower_fallback(op: Op, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    platforms = ctx.platforms or ctx.module_context.platforms
    if parameters["backend"] == "native" and not set(platforms) <= set(registry.PLATFORMS):
        raise _no_native(op, ", ".join(platforms), "jaxkern ships kernels for cpu and cuda")
    run = functools.partial(
        op.batched_impl, batch_dims=parameters["batch_dims"], **dict(parameters["static"])
    )
    # Shardings are XLA's business here: trace without them, then pin the results.
    plain = [jax.core.ShapedArray(a.shape, a.dtype) for a in ctx.avals_in]
    results = [jax.core.ShapedArray(a.shape, a.dtype) for a in ctx.avals_out]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        values = mlir.lower_fun(run, multiple_results=True)(
            ctx.replace(avals_in=plain, avals_out=results), *operands
        )
    return compat.pin_shardings(ctx, values, ctx.avals_out)


def _lower_native(
    op: Op, ctx: Any, operands: Sequence[Any], batch_dims: int, static: Mapping[str, Any]
) -> Any:
    avals_in = list(ctx.avals_in)
    batch = batch_shape(avals_in, batch_dims)
    attributes = dict(op.attributes(**static)) if op.attributes is not None else {}
    extra: dict[str, Any] = {}
    values = list(operands)
    if compat.is_partitioned(ctx) and batch_dims > 0:
        leading = _partitionable(avals_in, batch)
        for i, aval in enumerate(avals_in):
            # XLA pads a partitioned axis of size 1 with zeros, so a broadcast operand is widened.
            shape = (*batch[:leading], *aval.shape[leading:])
            if shape != tuple(aval.shape):
                values[i] = _broadcast(values[i], aval, shape)
                avals_in[i] = jax.core.ShapedArray(shape, aval.dtype)
        result_types = [
            mlir.ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype))
            for a in ctx.avals_out
        ]
        extra["extra_attributes"] = {
            "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(leading)}),
            "sdy.sharding_rule": compat.sdy_sharding_rule(
                _sharding_rule(avals_in, ctx.avals_out, leading),
                [v.type for v in values],
                result_types,
            ),
        }
    rule = jax.ffi.ffi_lowering(op.target, operand_output_aliases=op.aliases or None, **extra)
    results = rule(ctx.replace(avals_in=avals_in), *values, **attributes)
    return compat.pin_shardings(ctx, results, ctx.avals_out)


def _partitionable(avals: Sequence[Any], batch: Sequence[int]) -> int:
    """How many leading batch axes every operand that has any batch axis of its own spans."""
    own = [a for a in avals if any(n != 1 for n in a.shape[: len(batch)])]
    count = 0
    while count < len(batch) and all(a.shape[count] == batch[count] for a in own):
        count += 1
    return count


def _broadcast(value: Any, aval: Any, shape: Sequence[int]) -> Any:
    result = mlir.ir.RankedTensorType.get(shape, mlir.dtype_to_ir_type(aval.dtype))
    return compat.broadcast_in_dim(result, value, range(len(shape)))


def _sharding_rule(avals_in: Sequence[Any], avals_out: Sequence[Any], leading: int) -> str:
    """Shardy's rule: the leading axes are shared factors, every other axis has its own."""
    letters = iter(f"{a}{b}" for a in string.ascii_lowercase for b in string.digits)
    shared = [next(letters) for _ in range(leading)]

    def term(aval: Any) -> str:
        return " ".join(shared + [next(letters) for _ in aval.shape[leading:]])

    return ", ".join(map(term, avals_in)) + " -> " + ", ".join(map(term, avals_out))
