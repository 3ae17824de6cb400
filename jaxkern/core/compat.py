"""Access to JAX names that are not public or that differ between the supported versions.

Tested with jax 0.10.0 to 0.12.0.1. All other modules import public JAX names only.
"""

from __future__ import annotations

import atexit
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax._src import api, config, dispatch, xla_bridge
from jax._src.array import ArrayImpl as ArrayImpl

# Public in jax.extend, which imports Pallas and so would double the import time of jaxkern.
from jax._src.core import Primitive as Primitive
from jax._src.core import trace_ctx, trace_state_clean
from jax._src.custom_partitioning_sharding_rule import (
    sdy_sharding_rule_to_mlir,
    str_to_sdy_sharding_rule,
)
from jax._src.interpreters.mlir import lower_with_sharding_in_types
from jax._src.interpreters.partial_eval import DynamicJaxprTrace
from jax._src.lib import _jax  # type: ignore[attr-defined]
from jax._src.lib.mlir.dialects import hlo  # type: ignore[attr-defined]
from jax._src.mesh import get_concrete_mesh
from jax.interpreters import mlir

ir = mlir.ir

# jax.dlpack.from_dlpack takes about 50 us per call, this function under 5 us.
_import_dlpack = _jax.dlpack_managed_tensor_to_buffer


def array_from_dlpack(capsule: Any, device: jax.Device) -> jax.Array:
    """Return the host memory of an aligned DLPack tensor as a committed array on a CPU device."""
    return _import_dlpack(capsule, device, None, None)


def uncommitted(array: jax.Array) -> jax.Array:
    """Return an uncommitted array that shares the memory of an array on one device."""
    arrays = array._arrays  # type: ignore[attr-defined]
    return ArrayImpl(array.aval, array.sharding, arrays, committed=False, _skip_checks=True)


def sdy_sharding_rule(
    rule: str, operand_types: Sequence[Any], result_types: Sequence[Any]
) -> ir.Attribute:
    """Return the MLIR attribute of an Einsum-like sharding rule such as ``"b h w, b -> b c"``."""
    return sdy_sharding_rule_to_mlir(
        str_to_sdy_sharding_rule(rule), list(operand_types), list(result_types)
    )


def varying_axes(x: Any) -> frozenset[str]:
    """Return the manual mesh axes over which ``x`` varies (empty outside ``jax.shard_map``)."""
    return frozenset(jax.typeof(x).manual_axis_type.varying)


def started_backends() -> tuple[str, ...]:
    """Return the platforms whose backends have started in this process; starts none."""
    return tuple(xla_bridge._backends) if xla_bridge.backends_are_initialized() else ()


def running_objects() -> list[Any]:
    """Return JAX's started clients and their executables, which own threads."""
    clients = list(xla_bridge._backends.values())
    return [*clients, *(client.live_executables() for client in clients)]


def unregister_exit_functions() -> None:
    """Unregister JAX's functions that run when the interpreter exits."""
    atexit.unregister(api.clean_up)
    atexit.unregister(dispatch.wait_for_tokens)


def shard_map_devices(parameters: Mapping[str, Any]) -> int:
    """Return the number of devices of a shard_map equation's own manual axes."""
    return math.prod(parameters["mesh"].shape[axis] for axis in _manual_axes(parameters))


def _manual_axes(parameters: Mapping[str, Any]) -> Any:
    return parameters.get("newly_manual_axes", parameters.get("manual_axes", ()))


def local_on_mesh(fn: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """Return ``fn`` mapped over a shard_map equation's mesh and manual axes, all replicated."""
    mesh, axes = parameters["mesh"], set(_manual_axes(parameters))
    specs = dict.fromkeys(("in_specs", "out_specs"), jax.sharding.PartitionSpec())
    # Every device gets equal operands, so varying axes are not checked.
    mapped: Callable[..., Any]
    mapped = jax.shard_map(fn, mesh=mesh, axis_names=axes, check_vma=False, **specs)
    return mapped


def is_partitioned(ctx: mlir.LoweringRuleContext) -> bool:
    """True if XLA's partitioner handles this operation for more than one device."""
    axis_context: Any = ctx.module_context.axis_context
    if hasattr(axis_context, "num_devices"):
        return bool(axis_context.num_devices != 1)
    mesh = axis_context.mesh
    return bool(mesh.size > 1 and set(axis_context.manual_axes) != set(mesh.axis_names))


def pin_shardings(
    ctx: mlir.LoweringRuleContext, values: Sequence[Any], avals: Sequence[Any]
) -> list[Any]:
    """Constrain ``values`` to the shardings that Explicit mode put into ``avals``."""
    return [
        lower_with_sharding_in_types(ctx, value, aval)
        for value, aval in zip(values, avals, strict=True)
    ]


def tensor_type(aval: Any) -> Any:
    """Return the MLIR type of an array, symbolic sizes included."""
    unknown = ir.ShapedType.get_dynamic_size()
    shape = [n if isinstance(n, int) else unknown for n in aval.shape]
    return ir.RankedTensorType.get(shape, mlir.dtype_to_ir_type(aval.dtype))


def reshape(value: Any, aval: Any) -> Any:
    """Reshape an MLIR value to the shape of ``aval``."""
    target = tensor_type(aval)
    if value.type == target:
        return value
    if not all(isinstance(n, int) for n in aval.shape):
        raise NotImplementedError(
            f"a native call with the symbolic shape {aval.shape} cannot be partitioned; export it "
            "for one device, or with jaxkern.backend('jax')"
        )
    return hlo.reshape(target, value)


# The name in JAX's events of a function object without a ``__name__``.
UNNAMED = "<unnamed function>"

# Loggers that write under jax_log_compiles and jax_explain_cache_misses.
COMPILE_LOGGERS = (
    "jax._src.interpreters.partial_eval",
    "jax._src.interpreters.pxla",
    "jax._src.dispatch",
    "jax._src.compiler",
    "jax._src.compilation_cache",
)


class TracedCall(NamedTuple):
    """A call that JAX is about to trace.

    ``arguments``: path in ``(args, kwargs)`` -> aval or value. ``earlier``: the arguments of
    earlier traces of the same function object, in unspecified order.
    """

    function: Any
    name: str
    location: str
    arguments: dict[tuple[Any, ...], Any]
    earlier: list[dict[tuple[Any, ...], Any]]


def traced_call() -> TracedCall | None:
    """Return the call that JAX explains in its log; for use in a log handler or filter."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "explain":
        frame = frame.f_back
    if frame is None:
        return None
    variables = frame.f_locals
    try:
        debug = variables["debug_info"]
        keys = [key[-3:] for key in variables["keys"] if not callable(key[0])]
        fun, file = variables["fun"], debug.func_filename
        # A callable object has neither a name nor a source line.
        name = str(debug.func_name if file else getattr(fun, "__name__", UNNAMED))
        location = f"{file}:{debug.func_lineno}" if file else ""
        earlier = [_traced_arguments(key[1][0]) for key in keys]
        return TracedCall(fun, name, location, _traced_arguments(variables["in_avals"]), earlier)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _traced_arguments(flat: Any) -> dict[tuple[Any, ...], Any]:
    # On 0.10 static values are nodes without leaves.
    def is_static(x: Any) -> bool:
        return type(x).__name__ == "Static"

    tree = flat.unflatten()
    leaves = jax.tree.leaves_with_path(tree, is_leaf=lambda x: x is None or is_static(x))
    return {tuple(path): leaf.val if is_static(leaf) else leaf for path, leaf in leaves}


def is_tracing() -> bool:
    """True if JAX is tracing a function in this thread."""
    return not trace_state_clean()


def is_staging() -> bool:
    """True if JAX is tracing a function to a program in this thread, as for ``jax.jit``."""
    trace: Any = trace_ctx.trace
    while trace is not None and not isinstance(trace, DynamicJaxprTrace):
        trace = getattr(trace, "parent_trace", None)  # as of jvp and vmap
    return trace is not None


def program_context() -> tuple[Any, ...]:
    """Return options of JAX, mesh and backend: ``jax.jit``'s cache key without arguments."""
    return (
        config.trace_context(),
        get_concrete_mesh(),
        config.optimization_level.value,
        config.memory_fitting_level.value,
    )


def thread_options() -> list[tuple[Any, Any]]:
    """Return the JAX options that are set for this thread only, with their values."""
    return [
        (option, option.get_local())
        for option in config.config_states.values()
        if isinstance(option, config.State) and option.get_local() is not config.config_ext.unset
    ]


def current_mesh() -> Any:
    """Return the mesh of ``jax.set_mesh``; None if unset."""
    mesh = get_concrete_mesh()
    return None if mesh is None or mesh.empty else mesh
