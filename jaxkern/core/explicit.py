"""Helpers that run plain JAX code on arrays with Explicit mesh axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax


def explicit_axes(values: Sequence[Any]) -> tuple[str, ...]:
    """Return the Explicit mesh axes of the first value that has a mesh in its type."""
    for value in values:
        mesh = jax.typeof(value).sharding.mesh
        if not mesh.empty:
            return tuple(
                name
                for name, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
                if kind == jax.sharding.AxisType.Explicit
            )
    return ()


def in_auto_mode(fn: Callable[..., Any], out_shardings: Any, axes: tuple[str, ...]) -> Any:
    """Return ``fn`` in Auto mode, with these shardings of its results."""
    if not axes:
        return fn
    return jax.sharding.auto_axes(fn, out_sharding=out_shardings, axes=axes)


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
    shardings = [jax.typeof(value).sharding for value in values]
    best = max(shardings, key=lambda s: (_leading(s) is not None, not s.mesh.empty))
    spec = jax.sharding.PartitionSpec(_leading(best), *[None] * (rank - 1))
    return jax.sharding.NamedSharding(best.mesh, spec)


def _leading(sharding: Any) -> Any:
    return sharding.spec[0] if len(sharding.spec) else None
