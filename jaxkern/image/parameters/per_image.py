"""Functions of each image's numbers, run by one native op."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from jaxkern.core import compat, registry
from jaxkern.core.backend import current_backend
from jaxkern.core.op import Op
from jaxkern.image.parameters.assembler import ParameterProgram, UnsupportedError
from jaxkern.image.parameters.compile import compile_jaxpr


@dataclasses.dataclass(frozen=True)
class _Function:
    """A program, its results of one image, and the jaxpr that it was compiled from."""

    program: ParameterProgram
    shapes: tuple[tuple[tuple[int, ...], str], ...]
    operand_ranks: tuple[int, ...]
    run: Callable[..., Any] = dataclasses.field(compare=False)


def _abstract(*operands: Any, function: _Function) -> Any:
    return tuple(jax.ShapeDtypeStruct(shape, np.dtype(name)) for shape, name in function.shapes)


def _attributes(function: _Function) -> dict[str, Any]:
    program = function.program
    listed = ("instructions", "constants", "operands", "results")
    attributes = {name: np.frombuffer(getattr(program, name), np.int32) for name in listed}
    ranks = [len(shape) for shape, _ in function.shapes]
    return attributes | {
        "registers": np.asarray(program.registers, np.int32),
        "ranks": np.asarray([*function.operand_ranks, *ranks], np.int32),
    }


parameters = Op(
    "jaxkern.image_parameters",
    version=1,
    abstract=_abstract,
    impl=lambda *operands, function: function.run(*operands),
    attributes=_attributes,
    platforms=("cpu",),
)


def per_image(fn: Callable[..., Any], *args: Any) -> Any:
    """Return ``fn(*args)``, computed by one native call if possible.

    Leaves of ``args`` and of the result that are JAX arrays have the shape [N, ...], or [1, ...] if
    all images share them; others are static. ``fn`` must compute each image from its own elements
    only, and must accept N = 1: it is traced for one image. Results that are the same for all
    images become NumPy arrays [1, ...].

    Without the native library, outside of ``jax.jit``, and for functions with operations that have
    no native counterpart, it is ``fn(*args)`` in JAX.
    """
    if current_backend() == "jax" or not _is_on_cpu() or not compat.is_staging():
        return fn(*args)
    leaves, tree = jax.tree.flatten(args)
    positions = [k for k, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
    operands = [leaves[k] for k in positions]
    if any(isinstance(leaf, np.ndarray) for leaf in leaves) or not operands:
        return fn(*args)  # The values of NumPy arrays are checked.
    # XLA gathers a sharded batch for a call whose operands all have the rank of the batch.
    flat = all(x.ndim == 1 for x in operands)
    operands[0] = operands[0][:, None] if flat else operands[0]
    static = [None if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
    template: Any = None

    def image_function(*arrays: Any) -> list[Any]:
        nonlocal template
        inputs = static.copy()
        for k, array in zip(positions, arrays, strict=True):
            inputs[k] = array
        if flat:
            inputs[positions[0]] = arrays[0][:, 0]
        results, result_tree = jax.tree.flatten(fn(*jax.tree.unflatten(tree, inputs)))
        indices = [k for k, leaf in enumerate(results) if isinstance(leaf, jax.Array)]
        static_results = [None if isinstance(leaf, jax.Array) else leaf for leaf in results]
        template = static_results, indices, result_tree
        return [results[k] for k in indices]

    closed = _traced_for_one_image(image_function, operands)
    traced = [value for value in closed.consts if isinstance(value, jax.core.Tracer)]
    try:
        program, constants = compile_jaxpr(closed.jaxpr, closed.consts)
    except UnsupportedError:
        return fn(*args)
    static_results, indices, result_tree = template
    results = static_results.copy()
    operands += [x[None] for x in traced]
    # JAX caches a compiled call and its function. A jaxpr refers to no tracers of the caller, but
    # only the function accepts operands that vary over the axes of a shard_map.
    varies = any(compat.varying_axes(x) for x in operands)
    run = image_function if varies and not traced else _run_jaxpr(closed, operands)
    values = _call(run, program, closed.jaxpr, constants, operands)
    for k, value in zip(indices, values, strict=True):
        results[k] = value
    return jax.tree.unflatten(result_tree, results)


def _traced_for_one_image(fn: Callable[..., Any], operands: Sequence[Any]) -> Any:
    structs = [
        jax.ShapeDtypeStruct((1, *x.shape[1:]), x.dtype, weak_type=jax.typeof(x).weak_type)
        for x in operands
    ]
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return jax.make_jaxpr(fn)(*structs)


def _is_on_cpu() -> bool:
    device = jax.config.jax_default_device  # type: ignore[attr-defined]
    platform = getattr(device, "platform", device) or jax.default_backend()
    return platform == "cpu" and registry.missing(parameters.target, "cpu") is None


def _run_jaxpr(closed: Any, operands: Sequence[Any]) -> Callable[..., list[Any]]:
    """Return a function of operands, of which the last are the constants that are tracers."""
    count = len(closed.jaxpr.invars)

    def run(*arrays: Any) -> list[Any]:
        traced = iter(arrays[count:])
        constants = [
            next(traced)[0] if isinstance(value, jax.core.Tracer) else value
            for value in closed.consts
        ]
        return jax.core.eval_jaxpr(closed.jaxpr, constants, *arrays[:count])

    if len(operands) == count:
        return run
    return jaxpr_as_fun(_traced_for_one_image(run, operands))


def _call(
    image_function: Callable[..., list[Any]],
    program: ParameterProgram | None,
    jaxpr: Any,
    constants: Sequence[np.ndarray | None],
    operands: Sequence[Any],
) -> list[Any]:
    if program is None:
        return list(constants)
    computed = [k for k, value in enumerate(constants) if value is None]

    def run(*arrays: Any) -> tuple[Any, ...]:
        results = image_function(*(x[None] for x in arrays))
        return tuple(results[k][0] for k in computed)

    avals = [jaxpr.outvars[k].aval for k in computed]
    shapes = tuple((tuple(aval.shape[1:]), np.dtype(aval.dtype).name) for aval in avals)
    function = _Function(program, shapes, tuple(x.ndim - 1 for x in operands), run)
    values = iter(parameters(*operands, batch_dims=1, function=function))
    return [next(values) if value is None else value for value in constants]
