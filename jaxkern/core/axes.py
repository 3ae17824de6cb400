"""Axes in the form of ``jax.vmap``: a prefix of a tree, broadcast to its leaves."""

from __future__ import annotations

from typing import Any

import jax

from jaxkern.core.arguments import as_int


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
