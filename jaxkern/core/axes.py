"""Axes: batch axes of operands, ``in_axes`` of ``jax.vmap``, and Explicit axes of a mesh."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import as_int

Struct = jax.ShapeDtypeStruct


# Batch axes of an op's operands: the leading axes, each of full size or of size 1 (broadcast).


def as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def nbytes(x: Any) -> int:
    return int(math.prod(x.shape) * np.dtype(x.dtype).itemsize)


def core_structs(operands: Sequence[Any], batch_dims: int) -> list[Struct]:
    for i, x in enumerate(operands):
        if len(x.shape) < batch_dims:
            raise ValueError(
                f"operand {i} has shape {tuple(x.shape)}, which lacks the {batch_dims} leading "
                "batch axes; use axes of size 1 for an operand that all samples share"
            )
    return [Struct(x.shape[batch_dims:], x.dtype) for x in operands]


def batch_shape(operands: Sequence[Any], batch_dims: int) -> tuple[int, ...]:
    shape = []
    for axis in range(batch_dims):
        sizes = [x.shape[axis] for x in operands]
        full = {*sizes} - {1} or {1}
        if len(full) > 1:
            raise ValueError(
                f"batch axis {axis} has sizes {sizes} over the operands; expected equal sizes, or "
                "size 1 for an operand that all samples share"
            )
        shape.append(full.pop())
    return tuple(shape)


# Axes in the form of ``jax.vmap``: a prefix of a tree, broadcast to its leaves.


def flat_axes(axes: Any, tree: Any, mismatch: str) -> list[int | None]:
    """Return one axis, or None, for each leaf of a tree.

    ``axes`` is an integer or None for all leaves, or a prefix of the tree with these as leaves; a
    list at the top level is converted to a tuple. Raises ValueError with the text ``mismatch`` if
    it is not a prefix, and TypeError for an axis that is neither an integer nor None.
    """
    axes = tuple(axes) if isinstance(axes, list) else axes
    # JAX treats None as a tree without leaves.
    marked = jax.tree.map(lambda a: "none" if a is None else a, axes, is_leaf=lambda a: a is None)
    try:
        leaves = jax.tree.leaves(jax.tree.broadcast(marked, tree))
    except ValueError as error:
        raise ValueError(mismatch) from error
    flat = [None if axis == "none" else axis for axis in leaves]
    for axis in flat:
        if axis is not None and as_int(axis) is None:
            raise TypeError(f"expected an integer or None for an axis, got {axis!r}")
    return flat


def axis_size(name: str, leaf: Any, axis: int) -> int:
    """Return the size of an array's axis; ValueError if the array has no such axis."""
    shape = getattr(leaf, "shape", ())
    if not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"{name} has shape {tuple(shape)}, but in_axes says axis {axis}; "
            "use None in in_axes for arguments without a batch axis"
        )
    return int(shape[axis])


# Plain JAX code on arrays with Explicit mesh axes.


def explicit_axes(values: Sequence[Any]) -> tuple[str, ...]:
    """Return the Explicit mesh axes of the first value that has a mesh in its type."""
    for value in values:
        mesh = jax.typeof(value).sharding.mesh
        if not mesh.empty:
            kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
            return tuple(name for name, kind in kinds if kind == jax.sharding.AxisType.Explicit)
    return ()


def in_auto_mode(fn: Callable[..., Any], out_shardings: Any, axes: tuple[str, ...]) -> Any:
    """Return ``fn`` in Auto mode, with these shardings of its results."""
    return jax.sharding.auto_axes(fn, out_sharding=out_shardings, axes=axes) if axes else fn


def on_batch(fn: Callable[..., Any], ranks: Any, *args: Any) -> Any:
    """Return ``fn(*args)`` of pytrees, computed in Auto mode if they have Explicit mesh axes.

    ``ranks`` has the number of axes of each result [N, ...], which is sharded along N like the
    arguments.
    """
    leaves, tree = jax.tree.flatten(args)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    axes = explicit_axes(arrays)
    if not axes:
        return fn(*args)

    def run(*arrays: Any) -> Any:
        new = iter(arrays)
        filled = [next(new) if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        return fn(*jax.tree.unflatten(tree, filled))

    specs = jax.tree.map(lambda rank: _batch_sharding(arrays, rank), ranks)
    return in_auto_mode(run, specs, axes)(*arrays)


def _batch_sharding(values: Sequence[Any], rank: int) -> Any:
    """Return the sharding of a result [N, ...] whose leading axis is sharded like the values'."""

    def leading(sharding: Any) -> Any:
        return sharding.spec[0] if len(sharding.spec) else None

    shardings = [jax.typeof(value).sharding for value in values]
    best = max(shardings, key=lambda s: (leading(s) is not None, not s.mesh.empty))
    spec = jax.sharding.PartitionSpec(leading(best), *[None] * (rank - 1))
    return jax.sharding.NamedSharding(best.mesh, spec)
