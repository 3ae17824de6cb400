"""`Operator`: a step with a ``forward``; its arrays are data, its other attributes are not."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Hashable, Iterable
from typing import Any, Self

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from jaxkern.core.compat import is_tracing
from jaxkern.core.static import StaticArguments
from jaxkern.execution.options import ACTIVE
from jaxkern.execution.threads import supervised

#: under this name an instance that JAX has made keeps which attributes are its children.
CHILDREN = "_operator_children"
_PLAIN = (str, int, float, complex, bool, bytes, type(None), types.FunctionType, type)


class Operator:
    """A step of a computation: subclass it and write ``forward(self, *, inputs)``.

    ``op(x)`` and ``op(inputs=x)`` call ``forward(inputs=x)``; ``x`` is any pytree.

    An operator is a pytree. Attributes that hold arrays or operators, also inside lists, tuples and
    dicts, are its children: `jax.grad` differentiates with respect to them, `jax.jit` and
    `jaxkern.execution.jit` pass them as operands, and a changed array is used by the next call.
    All other attributes (strings, numbers, functions) are part of its structure: they must be
    hashable, and changing one compiles anew. A number that shall vary is written
    ``jnp.asarray(0.1)``.

    Class attributes:
      host: True for Python that JAX cannot trace, or must not because it acts beside its result
        (reads, writes, sleeps, asks a server): such work runs on threads. What does not say so is
        JAX code, which graphs and maps trace and compile.

    Raises: TypeError, when it is flattened, for an unhashable attribute that holds no array; when a
    host operator is called on values that JAX traces.

    >>> import jax, jax.numpy as jnp, jaxkern.execution as ex
    >>> class Scale(ex.Operator):
    ...     def __init__(self, factor):
    ...         self.factor = jnp.asarray(factor)
    ...     def forward(self, *, inputs):
    ...         return self.factor * inputs
    >>> op = Scale(3.0)
    >>> float(op(2.0)), float(jax.grad(lambda op: op(2.0))(op).factor)
    (6.0, 2.0)
    """

    host: bool = False

    def forward(self, *, inputs: Any) -> Any:
        """The step itself."""
        raise NotImplementedError(
            f"{type(self).__name__} has no forward; write `def forward(self, *, inputs)` in it"
        )

    def __call__(self, inputs: Any) -> Any:
        active = ACTIVE.get()
        if active is not None and active.recorder is not None:
            return active.recorder.call(self, inputs)
        if self.host:
            refuse_traced(self, inputs)
        if active is None:
            return self.forward(inputs=inputs)
        forward = self.forward
        if hasattr(forward, "supervises"):  # of jit and of structural_jit
            return forward(inputs=inputs)
        return supervised(active, name_of(self), "operator", forward, inputs=inputs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, _flatten, cls._unflatten)

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.pop(CHILDREN, None)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__.pop(CHILDREN, None)
        object.__delattr__(self, name)

    @classmethod
    def _unflatten(cls, structure: _Structure, children: Iterable[Any]) -> Self:
        self = object.__new__(cls)
        names, fixed = structure
        attributes = self.__dict__
        for name, value in fixed:
            attributes[name] = value.restored() if type(value) is _Container else value
        attributes.update(zip(names, children, strict=True))
        attributes[CHILDREN] = names
        return self


# The names of the children, and the other attributes.
_Structure = tuple[tuple[str, ...], StaticArguments]


@dataclasses.dataclass(frozen=True)
class _Container:
    """A list, tuple or dict without arrays, as part of a structure."""

    leaves: tuple[Any, ...]
    tree: Any

    def restored(self) -> Any:
        return jax.tree.unflatten(self.tree, self.leaves)


def is_array(value: Any) -> bool:
    """Whether a leaf is data; Python numbers are not asked about here."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def is_tree(value: Any) -> bool:
    """Whether a value is a pytree with a structure, no leaf."""
    return value is not None and not jax.tree_util.all_leaves([value])


def unbound(fn: Any) -> tuple[Any, tuple[Any, ...]]:
    """A function, and what it takes before the arguments of a call.

    That is a pytree that is called, or whose method is: its leaves are operands, so that no array
    of it is fixed in a program.
    """
    if isinstance(fn, types.MethodType) and is_tree(fn.__self__):
        return fn.__func__, (fn.__self__,)
    return (type(fn).__call__, (fn,)) if is_tree(fn) else (fn, ())


def callable_tree(fn: Any) -> Any:
    """The same function as a pytree, so that its arrays can be passed to a program."""
    target, first = unbound(fn)
    return jax.tree_util.Partial(target, *first)


def is_operator(value: Any) -> bool:
    """Whether a part of a tree is an operator, for ``is_leaf``."""
    return isinstance(value, Operator)


def _is_data(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return False
    leaves = jax.tree.leaves(value, is_leaf=is_operator)
    return any(is_array(leaf) or is_operator(leaf) for leaf in leaves)


def _flatten(op: Operator) -> tuple[list[tuple[Any, Any]], _Structure]:
    children, fixed = [], []
    kept = op.__dict__.get(CHILDREN, ())
    for name, value in sorted(op.__dict__.items()):
        if name in kept or _is_data(value):
            children.append((GetAttrKey(name), value))
        elif name != CHILDREN:
            fixed.append((name, _fixed(op, name, value)))
    names = tuple([key.name for key, _ in children])
    return children, (names, StaticArguments(fixed))


def _fixed(op: Operator, name: str, value: Any) -> Any:
    """An attribute without arrays, comparable and hashable."""
    if isinstance(value, _PLAIN):
        return value
    leaves, tree = jax.tree.flatten(value)
    if not (len(leaves) == 1 and leaves[0] is value):
        value = _Container(tuple(leaves), tree)
    if not is_hashable(value):
        raise TypeError(
            f"attribute {name!r} of {type(op).__name__} is {value!r:.80}, which has no "
            "hash and holds no array; wanted arrays, operators, or something hashable "
            "such as a string, a number or a tuple of them"
        )
    return value


def is_hashable(value: Any) -> bool:
    """Whether ``hash(value)`` works: a tuple has the method and may fail all the same."""
    try:
        hash(value)
    except TypeError:
        return False
    return isinstance(value, Hashable)


def name_of(step: Any) -> str:
    """The name of an operator or a function, for graphs and messages."""
    fn = getattr(step, "fn", None) if isinstance(step, Operator) else None
    return str(getattr(step, "__name__", type(step).__name__)) if fn is None else name_of(fn)


def refuse_traced(step: Any, inputs: Any) -> None:
    """Raises TypeError for host work on values of which only a trace of JAX knows."""
    if is_tracing() and any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(inputs)):
        raise TypeError(
            f"{name_of(step)} is host work (host = True), and JAX is tracing its inputs: it would "
            "be done once, on no values, and left out of the program. Call it outside of that, in "
            "a graph (structural_jit), or by jax.pure_callback"
        )


class _Function(Operator):
    """A function as an operator; see `operator`."""

    def __init__(self, fn: Any, host: bool) -> None:
        self.fn, self.host = fn, host

    def forward(self, *, inputs: Any) -> Any:
        """Calls the function."""
        return self.fn(inputs)


def operator(fn: Any, *, host: bool = False) -> Operator:
    """A function of one argument as an `Operator`, so that a composite can schedule it.

    Args:
      host: True for Python work, which runs on threads; False for a JAX function.

    >>> import jaxkern.execution as ex
    >>> ex.operator(str.upper, host=True)("a")
    'A'
    """
    if not callable(fn):
        raise TypeError(f"operator: got {type(fn).__name__}; wanted a function of one argument")
    return _Function(fn, host or getattr(fn, "host", False) is True)
