"""The leaves of a call and of its result: which are arrays, and which are fixed in the program."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.compat import ArrayImpl
from jaxkern.core.static import exact_key
from jaxkern.execution.operator import Operator, is_array, is_hashable, is_tree

_NUMBERS = (bool, int, float, complex)


class Fixed:
    """A value that belongs to the program; it equals those with the same types and bits."""

    __slots__ = ("key", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.key = value, exact_key(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and bool(self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)


def form(leaf: Any) -> Any:
    """What of a leaf a program depends on; None where JAX traces it.

    Arrays and numbers are operands, as in ``jax.jit``: their types count, and the shardings of
    those that are bound to devices. Everything else is `Fixed`.
    """
    kind = type(leaf)
    if kind is ArrayImpl:
        return (leaf.aval, leaf.sharding) if leaf.committed else leaf.aval
    if kind in _NUMBERS:
        return kind
    if kind is Fixed:
        return leaf
    if isinstance(leaf, str):  # those of NumPy are scalars too
        return Fixed(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)):
        x64 = jax.config.jax_enable_x64  # type: ignore[attr-defined]
        return _numpy_aval(leaf.shape, leaf.dtype, x64)
    if isinstance(leaf, jax.core.Tracer):
        return None
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return _aval(leaf) if leaf.sharding is None else (_aval(leaf), leaf.sharding)
    if isinstance(leaf, jax.Array):
        return (_aval(leaf), leaf.sharding) if leaf.committed else _aval(leaf)
    for number in _NUMBERS:  # what JAX makes of subclasses such as IntEnum is that of the number
        if isinstance(leaf, number):
            return number
    return Fixed(leaf)


def _aval(leaf: Any) -> Any:
    # Random keys make their type anew each time.
    extended = jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
    return (leaf.shape, leaf.dtype) if extended else jax.typeof(leaf)


@functools.lru_cache(4096)
def _numpy_aval(shape: tuple[int, ...], dtype: np.dtype[Any], x64: bool) -> Any:
    del x64  # what JAX makes of 64-bit types depends on it
    # Structured and object arrays are refused by JAX, in its own words.
    return jax.typeof(np.broadcast_to(np.zeros((), dtype), shape))


class FixedResult:
    """A part of a result that is no array: it travels in the structure of what JAX returns."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


# JAX puts the raw value into its place when it builds the result.
jax.tree_util.register_pytree_node(
    FixedResult, lambda fixed: ((), (type(fixed.value), fixed.value)), lambda aux, _: aux[1]
)


def checked_call(fn: Callable[..., Any], args: Any, kwargs: Any, name: str) -> Any:
    """Calls a function under a trace of JAX, with the parts of its result that are no arrays fixed.

    Raises:
      TypeError: for a result without a hash, and where an operator's attributes have changed.
    """
    before = [(op, *jax.tree.flatten(op)) for op in operators_in((args, kwargs))]
    result = fn(*args, **kwargs)
    for op, leaves, tree in before:
        now, tree_now = jax.tree.flatten(op)
        same = len(now) == len(leaves) and all(map(operator.is_, now, leaves))
        if not (same and tree == tree_now):  # type: ignore[operator]
            raise TypeError(
                f"forward of {type(op).__name__} changes an attribute of its operator, which a "
                "compiled program cannot do: the change would be lost after the first call. "
                "Return the new value, or make a new operator of it"
            )
    return jax.tree.map(lambda leaf: _as_result(leaf, name), result)


def _as_result(leaf: Any, name: str) -> Any:
    # The texts of NumPy are scalars too.
    if isinstance(leaf, _NUMBERS) or (is_array(leaf) and not isinstance(leaf, (str, bytes))):
        return leaf
    if hasattr(leaf, "__jax_array__"):
        return leaf
    if not is_hashable(leaf):
        raise TypeError(
            f"{name} returns a {type(leaf).__name__}, which is no array and has no hash; return "
            "arrays, pytrees of arrays, or something hashable such as a string"
        )
    return FixedResult(leaf)


def operators_in(tree: Any) -> list[Operator]:
    """All operators of a pytree, those inside operators included."""
    found: list[Operator] = []
    for leaf in jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Operator)):
        if isinstance(leaf, Operator):
            found.append(leaf)
            found.extend(operators_in(list(vars(leaf).values())))
    return found


def refuse_hidden_arrays(place: str, value: Any) -> None:
    """Raises TypeError for an object, fixed in a program, with arrays that would be fixed too.

    Also for one whose method it is, or of which a ``functools.partial`` was made.
    """
    if isinstance(value, functools.partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            refuse_hidden_arrays(place, part)
        return
    method = isinstance(value, types.MethodType)
    owner = value.__self__ if method else value
    # Other pytrees do not change, and are constants as under jax.jit.
    if is_tree(owner) and not (method or isinstance(owner, Operator)):
        return
    attribute = _array_attribute(owner)
    if attribute is not None:
        what = f"{'a method of ' if method else ''}a {type(owner).__name__}, which"
        raise TypeError(
            f"{place} is {what} holds an array in its attribute {attribute!r}: its value would be "
            "fixed in the compiled program and later changes ignored. Make the class a "
            "jaxkern.execution.Operator or another pytree and pass that, or pass the array as an "
            "argument"
        )


def refuse_hidden_in_operators(arguments: Any) -> None:
    """The same for plain objects that are attributes of operators."""
    for op in operators_in(arguments):
        for name, value in vars(op).items():
            if not is_tree(value):
                refuse_hidden_arrays(f"attribute {name!r} of {type(op).__name__}", value)


def _array_attribute(value: Any) -> str | None:
    """The attribute in which an object holds an array."""
    if isinstance(value, (type, types.ModuleType, jax.Array)):
        return None
    if hasattr(value, "__code__") or hasattr(value, "__jax_array__"):
        return None
    attributes = dict(getattr(value, "__dict__", {}))
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            attributes[name] = getattr(value, name, None)
    for name, attribute in attributes.items():
        try:
            leaves = jax.tree.leaves(attribute)
        except ValueError:  # a dict whose keys have no order is no pytree
            continue
        if any(isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves):
            return str(name)
    return None
