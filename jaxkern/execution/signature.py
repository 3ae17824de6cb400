"""The leaves of a call: which are operands of its program, which are fixed in it, and its key."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.compat import ArrayImpl
from jaxkern.execution.operator import Operator, is_hashable

NUMBERS = (bool, int, float, complex)


class FixedArgument:
    """An argument that ``static_argnames`` names: a leaf, whatever it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, FixedArgument)
            and type(other.value) is type(self.value)
            and bool(other.value == self.value)
        )

    def __hash__(self) -> int:
        return hash(self.value)


class FixedResult:
    """A part of a result that is no array: it travels in the structure of what JAX returns."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


# JAX puts the raw value into its place when it builds the result.
jax.tree_util.register_pytree_node(
    FixedResult, lambda fixed: ((), (type(fixed.value), fixed.value)), lambda aux, _: aux[1]
)


@dataclasses.dataclass(frozen=True)
class Split:
    """A call's leaves, taken apart."""

    #: hashable; equal for calls that one program serves
    key: tuple[Any, ...]
    operands: list[Any]
    #: where the operands stand among the leaves
    positions: tuple[int, ...]
    #: all leaves, None in the place of operands
    fixed: tuple[Any, ...]
    traced: bool


def quick_key(leaves: Sequence[Any], tree: Any) -> tuple[Any, ...] | None:
    """The key that `split` finds, for the kinds of leaves that most calls have; None for others."""
    key: list[Any] = [tree]
    for leaf in leaves:
        kind = type(leaf)
        if kind is ArrayImpl:
            key.append(leaf.aval)
        elif kind in NUMBERS:
            key.append(kind)
        elif kind is str:
            key.append((str, leaf))
        elif kind is np.ndarray or isinstance(leaf, np.generic):
            key.append((leaf.shape, leaf.dtype))
        else:
            return None
    return tuple(key)


def split(leaves: Sequence[Any], tree: Any, describe: Callable[[int], str]) -> Split:
    """Tells operands from what is fixed.

    Arrays and numbers are operands, as in ``jax.jit``; everything else is fixed.

    Args:
      describe: names the leaf of an index, for errors.

    Raises:
      TypeError: for a fixed leaf without a hash, and for one that holds arrays.
    """
    key: list[Any] = [tree]
    operands: list[Any] = []
    positions: list[int] = []
    fixed: list[Any] = [None] * len(leaves)
    traced = False
    for index, leaf in enumerate(leaves):
        if type(leaf) is ArrayImpl:
            key.append(leaf.aval)
        elif isinstance(leaf, (jax.Array, jax.ShapeDtypeStruct)):
            traced = traced or isinstance(leaf, jax.core.Tracer)
            key.append(jax.typeof(leaf))
        elif isinstance(leaf, (np.ndarray, np.generic)):
            # Structured and object arrays are refused by JAX, in its own words.
            key.append((leaf.shape, leaf.dtype))
        elif isinstance(leaf, NUMBERS):
            # What JAX makes of subclasses such as IntEnum is that of the number.
            key.append(next(kind for kind in NUMBERS if isinstance(leaf, kind)))
        else:
            if not is_hashable(leaf):
                raise TypeError(
                    f"{describe(index)} is a {type(leaf).__name__}, which is no array and has no "
                    "hash, so that no compiled program can be found for it; pass an array, a "
                    "pytree of arrays, or something hashable"
                )
            fixed[index] = leaf
            key.append((type(leaf), leaf))
            continue
        operands.append(leaf)
        positions.append(index)
    return Split(tuple(key), operands, tuple(positions), tuple(fixed), traced)


def refuse_hidden_arrays(leaves: Sequence[Any], describe: Callable[[int], str]) -> None:
    """Raises TypeError for an object, fixed in a program, with arrays that would be fixed too."""
    for index, leaf in enumerate(leaves):
        value = leaf.value if isinstance(leaf, FixedArgument) else leaf
        name = _hidden_array(value)
        if name is not None:
            raise TypeError(
                f"{describe(index)} is a {type(value).__name__}, no pytree, and holds an array in "
                f"its attribute {name!r}: its value would be fixed in the compiled program and "
                "later changes ignored. Make the class a jaxkern.execution.Operator or another "
                "pytree, or pass the array as an argument"
            )


def refuse_hidden_in_operators(tree: Any) -> None:
    """The same for plain objects that are attributes of operators."""
    for op in operators_in(tree):
        for name, value in vars(op).items():
            hidden = _hidden_array(value)
            if hidden is not None:
                raise TypeError(
                    f"attribute {name!r} of {type(op).__name__} is a {type(value).__name__}, no "
                    f"pytree, and holds an array in its attribute {hidden!r}: its value would be "
                    "fixed in the compiled program and later changes ignored. Make that class an "
                    "Operator or another pytree too"
                )


def operators_in(tree: Any) -> list[Operator]:
    """All operators of a pytree, those inside operators included."""
    found: list[Operator] = []
    for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Operator)):
        if isinstance(leaf, Operator):
            found.append(leaf)
            found.extend(operators_in(list(vars(leaf).values())))
    return found


def _hidden_array(value: Any) -> str | None:
    """The attribute in which an object that is no pytree holds an array."""
    if not hasattr(value, "__dict__") or isinstance(value, (type, types.ModuleType, jax.Array)):
        return None
    if hasattr(value, "__code__") or not jax.tree_util.all_leaves([value]):
        return None
    for name, attribute in vars(value).items():
        leaves = jax.tree.leaves(attribute)
        if any(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves):
            return str(name)
    return None
