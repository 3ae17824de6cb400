"""`Operator`: a step with a ``forward``; its arrays are data, its other attributes static."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, Self

import jax
import numpy as np
from jax.tree_util import GetAttrKey

from jaxkern.core.compat import is_tracing
from jaxkern.core.static import exact_key
from jaxkern.execution.options import OPTIONS, RECORDER, Supervised, run_call

# The attribute in which an unflattened instance stores the names of its children, so that
# `jax.tree.map` may replace arrays by anything.
_CHILD_NAMES = "_operator_children"
_STATIC_TYPES = (str, int, float, complex, bool, bytes, type(None), types.FunctionType, type)


class Static:
    """A static value, or tree of them; equal only to one with the same structure, types and bits.

    Each read of ``value`` returns new lists and dicts, which callers may change.
    """

    __slots__ = ("_leaves", "_tree", "key")

    def __init__(self, value: Any) -> None:
        self._leaves, self._tree = jax.tree.flatten(value)
        self.key = self._tree, exact_key(tuple(self._leaves))

    @property
    def value(self) -> Any:
        """The static value."""
        return jax.tree.unflatten(self._tree, self._leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and bool(self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def is_hashable(self) -> bool:
        """Return True if all values are hashable, also inside of tuples."""
        try:
            hash(self)
        except TypeError:
            return False
        return True


class Operator:
    """A step of a computation: subclass it and write ``forward(self, *, inputs)``.

    ``op(x)`` and ``op(inputs=x)`` call ``forward(inputs=x)``; ``x`` is any pytree.

    An operator is a pytree. Attributes that contain arrays or operators, also in lists, tuples and
    dicts, are its children. All other attributes (strings, numbers, functions) are static: they
    must be hashable, and changing one recompiles. Write ``jnp.asarray(0.1)`` for a number that
    varies.

    Attributes:
      host: a class attribute; True for Python code that JAX cannot trace, or that has side effects.
        Such operators run on threads. Graphs and maps trace and compile all others.

    Raises:
      TypeError: when the operator is flattened and an attribute is neither hashable nor contains an
        array; when a host operator is called on traced values.

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
        """Compute the result of the step."""
        raise NotImplementedError(
            f"{type(self).__name__} has no forward; define `def forward(self, *, inputs)`"
        )

    def __call__(self, inputs: Any) -> Any:
        if (recorder := RECORDER.get()) is not None:
            return recorder.add_call(self, (inputs,), {})
        if self.host:
            check_not_traced(self, inputs)
        options = OPTIONS.get()
        if options is None or isinstance(type(self).forward, Supervised):
            return self.forward(inputs=inputs)
        return run_call(options, name_of(self), self.forward, inputs=inputs)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        jax.tree_util.register_pytree_with_keys(cls, _flatten, cls._unflatten)

    def __setattr__(self, name: str, value: Any) -> None:
        if self.__dict__.pop(_CHILD_NAMES, None) is not None and is_tracing():
            raise TypeError(
                f"{type(self).__name__}.{name} is changed while JAX traces the operator, which a "
                "compiled program cannot do; return the new value instead"
            )
        object.__setattr__(self, name, value)

    @classmethod
    def _unflatten(cls, structure: _Structure, children: Iterable[Any]) -> Self:
        self = object.__new__(cls)
        names, static = structure
        self.__dict__.update((name, value.value) for name, value in static)
        self.__dict__.update(zip(names, children, strict=True))
        self.__dict__[_CHILD_NAMES] = names
        return self


# The names of the children, and the static attributes.
_Structure = tuple[tuple[str, ...], tuple[tuple[str, Static], ...]]


def _flatten(op: Operator) -> tuple[list[tuple[Any, Any]], _Structure]:
    children, static = [], []
    child_names = op.__dict__.get(_CHILD_NAMES, ())
    for name, value in sorted(op.__dict__.items()):
        if name in child_names or _contains_data(value):
            children.append((GetAttrKey(name), value))
        elif name != _CHILD_NAMES:
            static.append((name, Static(value)))
            if not static[-1][1].is_hashable():
                raise TypeError(
                    f"{type(op).__name__}.{name}: expected arrays, operators or a hashable value, "
                    f"got {value!r:.80}"
                )
    return children, (tuple(key.name for key, _ in children), tuple(static))


def _contains_data(value: Any) -> bool:
    if isinstance(value, _STATIC_TYPES):
        return False
    leaves = jax.tree.leaves(value, is_leaf=is_operator)
    return any(is_array(leaf) or is_operator(leaf) for leaf in leaves)


def is_array(value: Any) -> bool:
    """Return True for arrays of JAX and NumPy and for ``jax.ShapeDtypeStruct``."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct))


def is_operator(value: Any) -> bool:
    """Return True for an `Operator`; the ``is_leaf`` of tree functions."""
    return isinstance(value, Operator)


def _is_tree(value: Any) -> bool:
    return value is not None and not jax.tree_util.all_leaves([value])


def unbind(fn: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split a callable pytree, or a method of one, into a function and its first argument."""
    if isinstance(fn, types.MethodType) and _is_tree(fn.__self__):
        return fn.__func__, (fn.__self__,)
    return (type(fn).__call__, (fn,)) if _is_tree(fn) else (fn, ())


def name_of(step: Any) -> str:
    """Return the name of a function, also of one in an operator or a partial, or of a type."""
    inner = getattr(step, "fn" if isinstance(step, Operator) else "func", None)
    return str(getattr(step, "__name__", type(step).__name__)) if inner is None else name_of(inner)


def check_not_traced(step: Any, inputs: Any) -> None:
    """Raise TypeError for a host operator whose inputs are traced by JAX."""
    if is_tracing() and any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(inputs)):
        raise TypeError(
            f"{name_of(step)} has host = True, but JAX traces its inputs and would run it only "
            "once; call it outside, in structural_jit, or through jax.pure_callback"
        )


class _FunctionOperator(Operator):
    def __init__(self, fn: Any, host: bool) -> None:
        self.fn, self.host = fn, host

    def forward(self, *, inputs: Any) -> Any:
        return self.fn(inputs)


def operator(fn: Any, *, host: bool = False) -> Operator:
    """Return an `Operator` that calls a function of one argument; ``host`` as in `Operator`.

    >>> import jaxkern.execution as ex
    >>> ex.operator(str.upper, host=True)("a")
    'A'
    """
    if not callable(fn):
        raise TypeError(f"operator: expected a function of one argument, got {type(fn).__name__}")
    return _FunctionOperator(fn, host or getattr(fn, "host", False) is True)
