"""Axes given as in ``jax.vmap``: a prefix of a tree, spread over its leaves."""

from __future__ import annotations

from typing import Any

import jax


def flat_axes(axes: Any, tree: Any, mismatch: str) -> list[int | None]:
    """One axis, or None, for each leaf of a tree.

    Args:
      axes: an integer or None for all leaves, or a prefix of the tree with them in it; a list at
        the top is a tuple.
      mismatch: what is wrong and what is wanted, where it is no prefix of the tree.

    Raises:
      ValueError: with ``mismatch``.
      TypeError: where something else than an integer or None stands for an axis.
    """
    axes = tuple(axes) if isinstance(axes, list) else axes
    # None would be a tree without leaves.
    marked = jax.tree.map(lambda a: "none" if a is None else a, axes, is_leaf=lambda a: a is None)
    try:
        found = jax.tree.leaves(jax.tree.broadcast(marked, tree))
    except ValueError as error:
        raise ValueError(mismatch) from error
    flat = [None if axis == "none" else axis for axis in found]
    for axis in flat:
        if axis is not None and (isinstance(axis, bool) or not hasattr(axis, "__index__")):
            raise TypeError(f"{axis!r} stands for an axis; wanted an integer, or None")
    return flat


def rows_on(name: str, leaf: Any, axis: int) -> int:
    """The rows of an array on an axis.

    Raises: ValueError where it has no such axis.
    """
    shape = getattr(leaf, "shape", ())
    if not -len(shape) <= axis < len(shape):
        raise ValueError(
            f"{name} has shape {tuple(shape)}; wanted rows on axis {axis}, or None in in_axes for "
            "what has none"
        )
    return int(shape[axis])
