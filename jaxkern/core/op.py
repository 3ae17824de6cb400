"""The op recipe: one declaration that makes a native kernel behave like any JAX function."""

from __future__ import annotations

import functools
import math
import string
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jaxkern.core import compat, registry
from jaxkern.core.backend import current_backend
from jaxkern.core.cost import Cost

Struct = jax.ShapeDtypeStruct
Static = Mapping[str, Any]

_OPS: dict[str, Op] = {}


def ops() -> dict[str, Op]:
    """Every op that was declared in this process, by name."""
    return dict(_OPS)


class Op:
    """A function with native kernels and a pure-JAX twin, usable under every JAX transformation.

    An op is declared for ONE sample. A call may give its operands leading batch axes, and ``vmap``
    adds more: they all reach one kernel call. A batch axis of size 1 is broadcast: the kernel reads
    it with stride 0.

    Args:
      name: dotted, such as ``"jaxkern.image_chain"``. The FFI target is ``f"{name}.v{version}"``.
      version: of the target's contract: raise it whenever operands, attributes or meaning change.
      abstract: ``abstract(*operands, **static)`` takes a ``jax.ShapeDtypeStruct`` for each operand of
        one sample and returns one for the result, or a tuple of them. It raises on bad input: this
        is what users see at trace time.
      impl: ``impl(*operands, **static)``, the same for one sample in pure JAX. It is the fallback,
        and what is differentiated unless ``jvp`` is given.
      attributes: ``attributes(**static)`` returns the FFI attributes: structure only, such as enum
        values and sizes of the result. Whatever varies at run time must be an operand.
      supports: ``supports(*operands, **static) -> str | None``: why no native kernel takes these
        operands (a dtype, say), or None when one does.
      jvp: ``jvp(primals, tangents, batch_dims, **static)`` returns ``(results, tangents)`` of batched
        operands; a missing tangent is None. By default ``impl`` is differentiated.
      transpose: for linear ops: ``transpose(cotangents, *operands, batch_dims, **static)`` with
        ``jax.interpreters.ad.UndefinedPrimal`` in the place of the linear operands.
      cost: ``cost(*operands, **static)`` returns the `Cost` of one sample.
      aliases: ``{operand: result}`` indices where the result may overwrite the operand.
      differentiable: operands for which a tangent may be nonzero; by default all float operands.

    Example:
      >>> import jax, jax.numpy as jnp, jaxkern as jk
      >>> double = jk.Op("docs.double", version=1, abstract=lambda x: x, impl=lambda x: 2 * x)
      >>> double(jnp.arange(3.0)).tolist(), jax.grad(double)(1.5).tolist()
      ([0.0, 2.0, 4.0], 2.0)
    """

    def __init__(
        self,
        name: str,
        *,
        version: int,
        abstract: Callable[..., Any],
        impl: Callable[..., Any],
        attributes: Callable[..., Mapping[str, Any]] | None = None,
        supports: Callable[..., str | None] | None = None,
        jvp: Callable[..., Any] | None = None,
        transpose: Callable[..., Any] | None = None,
        cost: Callable[..., Cost] | None = None,
        aliases: Mapping[int, int] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.target = f"{name}.v{version}"
        self.abstract = abstract
        self.impl = impl
        self.attributes = attributes
        self.supports = supports
        self.jvp = jvp
        self.transpose = transpose
        self.aliases = dict(aliases or {})
        self._cost = cost
        self._primitive = _make_primitive(self)
        _OPS[name] = self

    def __repr__(self) -> str:
        return f"Op({self.name!r}, version={self.version})"

    def __call__(self, *operands: Any, batch_dims: int = 0, **static: Hashable) -> Any:
        """Applies the op to arrays with ``batch_dims`` leading batch axes, each full or of size 1."""
        arrays = [jnp.asarray(x) for x in operands]
        varying = frozenset[str]().union(*(compat.varying_axes(x) for x in arrays))
        arrays = [_pvary(x, varying) for x in arrays]
        results = self._primitive.bind(
            *arrays,
            batch_dims=batch_dims,
            static=tuple(sorted(static.items())),
            backend=current_backend(),
        )
        single = not isinstance(self._core_results(arrays, batch_dims, static), tuple)
        return results[0] if single else tuple(results)

    def batched_impl(self, *operands: Any, batch_dims: int, **static: Any) -> tuple[Any, ...]:
        """The pure-JAX implementation over ``batch_dims`` leading axes, sizes of 1 broadcast."""
        full = _batch_shape(operands, batch_dims)

        def one(*xs: Any) -> tuple[Any, ...]:
            return _as_tuple(self.impl(*xs, **static))

        fn, arrays = one, list(operands)
        # The innermost batch axis is mapped first; an operand of size 1 there is squeezed instead.
        for axis in range(batch_dims - 1, -1, -1):
            mapped = tuple(0 if x.shape[axis] == full[axis] else None for x in operands)
            if all(m is None for m in mapped):  # every operand has size 1 here, so full is 1
                mapped = tuple(0 for _ in operands)
            fn = jax.vmap(fn, in_axes=mapped)
        for axis in range(batch_dims - 1, -1, -1):
            arrays = [
                x if original.shape[axis] == full[axis] else lax.squeeze(x, (axis,))
                for x, original in zip(arrays, operands, strict=True)
            ]
        return _as_tuple(fn(*arrays))

    def cost(self, *operands: Any, batch_dims: int = 0, **static: Any) -> Cost:
        """Floating-point operations and bytes of a call, from shapes and dtypes alone.

        Bytes count every operand once as it is stored (a broadcast one is not multiplied) and every
        result once, unless the op declares otherwise.
        """
        structs = [Struct(x.shape, x.dtype) for x in operands]
        samples = math.prod(_batch_shape(structs, batch_dims))
        results = _as_tuple(self._core_results(structs, batch_dims, static))
        moved = sum(_nbytes(x) for x in structs) + samples * sum(_nbytes(x) for x in results)
        if self._cost is None:
            return Cost(flops=None, bytes=moved)
        one = self._cost(*_core_structs(structs, batch_dims), **static)
        flops = None if one.flops is None else samples * one.flops
        return Cost(flops=flops, bytes=moved if one.bytes is None else samples * one.bytes)

    def problem(self, platform: str, structs: Sequence[Any], static: Static) -> str | None:
        """Why ``platform`` runs this call in pure JAX; None where a native kernel takes it."""
        reason = registry.missing(self.target, platform)
        if reason is None and self.supports is not None:
            reason = self.supports(*structs, **static)
        return reason

    def _core_results(self, operands: Sequence[Any], batch_dims: int, static: Static) -> Any:
        result = self.abstract(*_core_structs(operands, batch_dims), **static)
        return tuple(result) if isinstance(result, (tuple, list)) else result


def _as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def _nbytes(x: Any) -> int:
    return math.prod(x.shape) * np.dtype(x.dtype).itemsize


def _core_structs(operands: Sequence[Any], batch_dims: int) -> list[Struct]:
    for i, x in enumerate(operands):
        if len(x.shape) < batch_dims:
            raise ValueError(
                f"operand {i} has shape {tuple(x.shape)}, which lacks the {batch_dims} leading batch "
                "axes; give it axes of size 1 where it is the same for every sample"
            )
    return [Struct(x.shape[batch_dims:], x.dtype) for x in operands]


def _batch_shape(operands: Sequence[Any], batch_dims: int) -> tuple[int, ...]:
    shape = []
    for axis in range(batch_dims):
        sizes = {x.shape[axis] for x in operands}
        full = sizes - {1} or {1}
        if len(full) > 1:
            raise ValueError(
                f"batch axis {axis} has sizes {[x.shape[axis] for x in operands]} over the operands; "
                "wanted one size, or 1 for an operand that is the same for every sample"
            )
        shape.append(full.pop())
    return tuple(shape)


def _pvary(x: Any, axes: frozenset[str]) -> Any:
    # Inside shard_map a replicated operand becomes varying; the transpose of this cast is the sum of
    # the cotangent over the devices.
    missing = tuple(sorted(axes - compat.varying_axes(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def _make_primitive(op: Op) -> Primitive:
    primitive = Primitive(op.target)
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
    return primitive


# Abstract evaluation.


def _abstract_eval(
    op: Op, *avals: Any, batch_dims: int, static: tuple[tuple[str, Any], ...], backend: str
) -> list[Any]:
    cores = _as_tuple(op._core_results(avals, batch_dims, dict(static)))
    batch = _batch_shape(avals, batch_dims)
    if all(aval.sharding.mesh.empty for aval in avals):
        return [jax.core.ShapedArray((*batch, *core.shape), core.dtype) for core in cores]

    # Under a mesh a result's type also tells its sharding and its manual axes. JAX's own rules for
    # reductions and broadcasts know them, so they are asked on a stand-in with the same batch axes.
    def stand_in(*operands: Any) -> list[Any]:
        total: Any = 0.0
        for x in operands:
            y = lax.convert_element_type(x, jnp.float32)
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
    return jax.jit(functools.partial(op._primitive.bind, **dict(parameters)))


def _eager(op: Op, *operands: Any, **parameters: Any) -> Any:
    return _jitted(op, tuple(parameters.items()))(*operands)


# Differentiation.


def _jvp(
    op: Op, primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any
) -> tuple[Any, Any]:
    static, batch_dims = dict(parameters["static"]), parameters["batch_dims"]
    given = [None if isinstance(t, ad.Zero) else t for t in tangents]
    if op.jvp is not None:
        results, out = op.jvp(primals, given, batch_dims=batch_dims, **static)
        return _as_tuple(results), _as_tuple(out)
    results = op._primitive.bind(*primals, **parameters)
    active = [i for i, t in enumerate(given) if t is not None]

    def tangent_map(operands: Sequence[Any], moved: Sequence[Any]) -> tuple[Any, ...]:
        def along(*xs: Any) -> tuple[Any, ...]:
            full = list(operands)
            for i, x in zip(active, xs, strict=True):
                full[i] = x
            return op.batched_impl(*full, batch_dims=batch_dims, **static)

        return jax.jvp(along, [operands[i] for i in active], list(moved))[1]

    moved = [given[i] for i in active]
    explicit = _explicit_axes(results)
    if explicit:
        # The twin's gathers and products need not follow Explicit mode's typing rules: let XLA place
        # them, and state only where the result lives.
        specs = [jax.typeof(r).sharding for r in results]
        tangent_map = jax.sharding.auto_axes(tangent_map, out_sharding=tuple(specs), axes=explicit)
    return results, list(tangent_map(tuple(primals), tuple(moved)))


def _explicit_axes(values: Sequence[Any]) -> tuple[str, ...]:
    mesh = jax.typeof(values[0]).sharding.mesh
    if mesh.empty:
        return ()
    return tuple(
        name
        for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
        if kind == jax.sharding.AxisType.Explicit
    )


def _transpose(op: Op, cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> Any:
    assert op.transpose is not None
    given = [ad.instantiate_zeros(ct) if isinstance(ct, ad.Zero) else ct for ct in cotangents]
    return op.transpose(
        given, *operands, batch_dims=parameters["batch_dims"], **dict(parameters["static"])
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
    # XLA partitions leading axes. An axis along which some operand with other batch axes is
    # broadcast goes behind them, so that it never stops them from being partitioned.
    everywhere = all(s or axis is not None for s, axis in zip(shared, axes, strict=True))
    place = 0 if everywhere else batch_dims
    moved = [
        jnp.expand_dims(x, place) if axis is None else jnp.moveaxis(x, axis, place)
        for x, axis in zip(operands, axes, strict=True)
    ]
    results = op._primitive.bind(*moved, **{**parameters, "batch_dims": batch_dims + 1})
    return results, [place] * len(results)


# Lowering.


def _lower(op: Op, platform: str, ctx: Any, *operands: Any, **parameters: Any) -> Any:
    static, batch_dims, backend = (parameters[k] for k in ("static", "batch_dims", "backend"))
    if backend == "jax":
        return _lower_fallback(op, ctx, *operands, **parameters)
    problem = op.problem(platform, _core_structs(ctx.avals_in, batch_dims), dict(static))
    if problem is None:
        return _lower_native(op, ctx, operands, batch_dims, dict(static))
    if backend == "native":
        raise _no_native(op, platform, problem)
    return _lower_fallback(op, ctx, *operands, **parameters)


def _no_native(op: Op, platform: str, problem: str) -> NotImplementedError:
    return NotImplementedError(
        f"{op.name} has no native kernel for this call on {platform}: {problem}; the backend is "
        "'native' (JAXKERN_BACKEND or jaxkern.backend): use 'auto' to let pure JAX take its place"
    )


def _lower_fallback(op: Op, ctx: Any, *operands: Any, **parameters: Any) -> Any:
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
    op: Op, ctx: Any, operands: Sequence[Any], batch_dims: int, static: Static
) -> Any:
    avals_in = list(ctx.avals_in)
    batch = _batch_shape(avals_in, batch_dims)
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
        results = [
            mlir.ir.RankedTensorType.get(a.shape, mlir.dtype_to_ir_type(a.dtype))
            for a in ctx.avals_out
        ]
        extra["extra_attributes"] = {
            "mhlo.frontend_attributes": mlir.ir_attribute({"num_batch_dims": str(leading)}),
            "sdy.sharding_rule": compat.sdy_sharding_rule(
                _sharding_rule(avals_in, ctx.avals_out, leading),
                [v.type for v in values],
                results,
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
    """Shardy's rule: the leading axes are shared factors, every other axis is a factor of its own."""
    letters = iter(f"{a}{b}" for a in string.ascii_lowercase for b in string.digits)
    shared = [next(letters) for _ in range(leading)]

    def term(aval: Any) -> str:
        return " ".join(shared + [next(letters) for _ in aval.shape[leading:]])

    return ", ".join(map(term, avals_in)) + " -> " + ", ".join(map(term, avals_out))
