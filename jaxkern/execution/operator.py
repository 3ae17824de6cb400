"""`Operator`: a step with a ``forward``; its arrays are data, its other attributes are not."""

from __future__ import annotations

import types
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, ClassVar, Self

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from jaxkern.execution.options import ACTIVE
from jaxkern.execution.supervision import supervised

#: under this name an instance keeps which of its attributes hold arrays.
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
        (reads, writes, sleeps, asks a server): such work runs on threads.

    Raises: TypeError, when it is flattened, for an unhashable attribute that holds no array.

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

    host: ClassVar[bool] = False

    def forward(self, *, inputs: Any) -> Any:
        """The step itself."""
        raise NotImplementedError(
            f"{type(self).__name__} has no forward; write `def forward(self, *, inputs)` in it"
        )

    def __call__(self, inputs: Any) -> Any:
        active = ACTIVE.get()
        if active is None:
            return self.forward(inputs=inputs)
        if active.recorder is not None:
            return active.recorder.call(self, inputs)
        forward = self.forward
        if hasattr(forward, "supervises"):  # of jit and of structural_jit
            return forward(inputs=inputs)
        return supervised(active, type(self).__name__, "operator", forward, inputs=inputs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(
            cls, _flatten_with_keys, cls._unflatten, flatten_func=_flatten
        )

    def __setattr__(self, name: str, value: Any) -> None:
        self.__dict__.pop(CHILDREN, None)
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__.pop(CHILDREN, None)
        object.__delattr__(self, name)

    @classmethod
    def _unflatten(cls, structure: _Structure, children: Iterable[Any]) -> Self:
        self = object.__new__(cls)
        attributes = self.__dict__
        for name, value in zip(structure.names, structure.values, strict=True):
            attributes[name] = value.restored() if type(value) is _Container else value
        attributes.update(zip(structure.children, children, strict=True))
        attributes[CHILDREN] = structure.children
        return self


class _Structure:
    """What of an operator is not data, comparable and hashable."""

    __slots__ = ("_hash", "children", "names", "types", "values")

    def __init__(
        self, children: tuple[str, ...], names: tuple[str, ...], values: tuple[Any, ...]
    ) -> None:
        self.children, self.names, self.values = children, names, values
        # 1, 1.0 and True are equal and make different programs; so are and do 0.0 and -0.0.
        self.types = tuple([type(v) if type(v) is not float or v else repr(v) for v in values])
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Structure)
            and self.children == other.children
            and self.names == other.names
            and self.types == other.types
            and self.values == other.values
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.children, self.names, self.types, self.values))
        return self._hash

    def __repr__(self) -> str:
        return ", ".join(
            f"{name}={value!r}" for name, value in zip(self.names, self.values, strict=True)
        )


class _Container:
    """A list, tuple or dict without arrays, as part of a structure."""

    __slots__ = ("_leaves", "_tree", "_types")

    def __init__(self, leaves: Sequence[Any], tree: Any) -> None:
        self._leaves, self._tree = tuple(leaves), tree
        self._types = tuple(type(v) if type(v) is not float or v else repr(v) for v in leaves)

    def restored(self) -> Any:
        return jax.tree.unflatten(self._tree, self._leaves)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Container)
            and self._types == other._types
            and self._leaves == other._leaves
            and bool(self._tree == other._tree)
        )

    def __hash__(self) -> int:
        return hash((self._leaves, self._types, self._tree))

    def __repr__(self) -> str:
        return repr(self.restored())


def is_array(value: Any) -> bool:
    """Whether a leaf is data; Python numbers are not asked about here."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def _is_operator(value: Any) -> bool:
    return isinstance(value, Operator)


def _is_data(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return False
    leaves = jax.tree.leaves(value, is_leaf=_is_operator)
    return any(is_array(leaf) or _is_operator(leaf) for leaf in leaves)


def _parts(op: Operator) -> tuple[list[Any], _Structure]:
    attributes = op.__dict__
    children: tuple[str, ...] | None = attributes.get(CHILDREN)
    if children is None:
        names = sorted(name for name in attributes if name != CHILDREN)
        children = tuple([name for name in names if _is_data(attributes[name])])
        attributes[CHILDREN] = children
    fixed_names, fixed = [], []
    for name in sorted(attributes):
        if name == CHILDREN or name in children:
            continue
        value = attributes[name]
        if not isinstance(value, _PLAIN):
            if _is_data(value):  # an array was put into a list that had none
                del attributes[CHILDREN]
                return _parts(op)
            leaves, tree = jax.tree.flatten(value)
            if not (len(leaves) == 1 and leaves[0] is value):
                value = _Container(leaves, tree)
            if not is_hashable(value):
                raise TypeError(
                    f"attribute {name!r} of {type(op).__name__} is {value!r:.80}, which has no "
                    "hash and holds no array; wanted arrays, operators, or something hashable "
                    "such as a string, a number or a tuple of them"
                )
        fixed_names.append(name)
        fixed.append(value)
    structure = _Structure(children, tuple(fixed_names), tuple(fixed))
    return [attributes[name] for name in children], structure


def _flatten(op: Operator) -> tuple[list[Any], _Structure]:
    return _parts(op)


def _flatten_with_keys(op: Operator) -> tuple[list[tuple[Any, Any]], _Structure]:
    children, structure = _parts(op)
    keys = [GetAttrKey(name) for name in structure.children]
    return list(zip(keys, children, strict=True)), structure


def is_hashable(value: Any) -> bool:
    """Whether ``hash(value)`` works: a tuple has the method and may fail all the same."""
    try:
        hash(value)
    except TypeError:
        return False
    return isinstance(value, Hashable)


class HostFunction(Operator):
    """A Python function as an operator that runs on the host; see `host`."""

    host = True

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def forward(self, *, inputs: Any) -> Any:
        """Calls the function."""
        return self.fn(inputs)


class JaxFunction(Operator):
    """A JAX function as an operator; see `operator`."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn

    def forward(self, *, inputs: Any) -> Any:
        """Calls the function."""
        return self.fn(inputs)


def operator(fn: Any, *, host: bool = False) -> Operator:
    """A function of one argument as an `Operator`, so that a composite can schedule it.

    Args:
      host: True for Python work that runs on threads; False for JAX functions, and for Python
        functions without side effects, which are found out.

    >>> import jaxkern.execution as ex
    >>> ex.operator(str.upper, host=True)("a")
    'A'
    """
    if not callable(fn):
        raise TypeError(f"operator: got {type(fn).__name__}; wanted a function of one argument")
    return HostFunction(fn) if host else JaxFunction(fn)
