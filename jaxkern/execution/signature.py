"""The leaves of a call: which are operands of its program, which are fixed in it, and its key."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.compat import ArrayImpl
from jaxkern.core.static import exact_key
from jaxkern.execution.operator import Operator, is_hashable

NUMBERS = (bool, int, float, complex)


class FixedArgument:
    """An argument that ``static_argnames`` names: a leaf, whatever it is."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FixedArgument) and (
            other.value is self.value or bool(exact_key(other.value) == exact_key(self.value))
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


# Those of the types that are fixed in a program which come most often: a set is asked quickly.
FIXED = frozenset({str, FixedArgument, types.FunctionType, types.BuiltinFunctionType, type})


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


@functools.lru_cache(4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any], x64: bool) -> Any:
    del x64  # what JAX makes of 64-bit types depends on it
    return jax.typeof(np.broadcast_to(np.zeros((), dtype), shape))


def numpy_aval(array: Any) -> Any:
    """What an array of NumPy is in JAX."""
    return _aval(array.shape, array.dtype, jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def quick_key(leaves: Sequence[Any], tree: Any) -> tuple[Any, ...] | None:
    """The key that `split` finds; None where there are traced values or types that are rare.

    It may be without a hash.
    """
    key: list[Any] = [tree]
    for leaf in leaves:
        kind = type(leaf)
        if kind is ArrayImpl:
            key.append(leaf.aval)
        elif kind in NUMBERS:
            key.append(kind)
        elif kind in FIXED or isinstance(leaf, str):
            key.append((kind, leaf))
        elif isinstance(leaf, (np.ndarray, np.generic)):
            key.append(numpy_aval(leaf))
        elif isinstance(leaf, jax.Array):  # of random keys
            if isinstance(leaf, jax.core.Tracer):
                return None
            key.append((leaf.shape, leaf.dtype))
        elif isinstance(leaf, (jax.ShapeDtypeStruct, *NUMBERS)):
            return None
        else:
            key.append((kind, leaf))
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
            # Random keys make their type anew each time, which takes 20 us.
            extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
            key.append((leaf.shape, leaf.dtype) if extended else jax.typeof(leaf))
        elif isinstance(leaf, (np.ndarray, np.generic)) and not isinstance(leaf, str):
            # Structured and object arrays are refused by JAX, in its own words.
            key.append(numpy_aval(leaf))
        elif isinstance(leaf, NUMBERS):
            # What JAX makes of subclasses such as IntEnum is that of the number.
            key.append(next(kind for kind in NUMBERS if isinstance(leaf, kind)))
        else:
            if not is_hashable(leaf):
                if isinstance(leaf, FixedArgument):
                    raise TypeError(
                        f"{describe(index)} is a {type(leaf.value).__name__}, which has no hash, "
                        "and static_argnames names it: no compiled program can be found for its "
                        "value; pass a tuple or something else that is hashable, or make it an "
                        "operand"
                    )
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


def refuse_hidden_in_function(fn: Any) -> None:
    """The same for a callable object, and for the object that a method is bound to."""
    if isinstance(fn, functools.partial):
        for part in (fn.func, *fn.args, *fn.keywords.values()):
            refuse_hidden_in_function(part)
        return
    owner = fn.__self__ if isinstance(fn, types.MethodType) else fn
    hidden = _hidden_array(owner)
    if hidden is not None:
        raise TypeError(
            f"{owner!r:.80} is no pytree and holds an array in its attribute {hidden!r}: its value "
            "would be fixed in the compiled program and later changes ignored. Make the class a "
            "jaxkern.execution.Operator or another pytree, or pass the array as an argument"
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
        try:
            leaves = jax.tree.leaves(attribute)
        except ValueError:  # a dict whose keys have no order is no pytree
            continue
        if any(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves):
            return str(name)
    return None
