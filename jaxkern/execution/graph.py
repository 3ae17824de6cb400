"""A composite's forward as a graph of the operators that it calls, recorded on placeholders."""

from __future__ import annotations

import copy
import dataclasses
import functools
import operator as python
from collections.abc import Callable
from typing import Any

import jax

from jaxkern.core.static import exact_key
from jaxkern.execution.operator import (
    CHILDREN,
    Operator,
    callable_tree,
    is_array,
    is_operator,
    is_tree,
    name_of,
)
from jaxkern.execution.options import ACTIVE, Active, ExecutionOptions


class SymbolicError(TypeError):
    """A forward needs a value while its graph is recorded, when there are none."""


class Placeholder:
    """What stands for a value while a graph is recorded: an input, or an operation's result.

    ``source`` is the operation's index, or ``-1 - index`` of an input; ``path`` are the keys to
    look up in the value.
    """

    def __init__(self, recorder: Recorder, source: int, path: tuple[Any, ...] = ()) -> None:
        self._recorder, self._source, self._path = recorder, source, path

    def __getitem__(self, key: Any) -> Placeholder:
        if type(key) in (str, int):
            return Placeholder(self._recorder, self._source, (*self._path, key))
        return self._recorder.arithmetic(python.getitem, self, key)

    def _refuse(self, what: str) -> Any:
        raise SymbolicError(
            f"forward {what} while its graph is recorded, so which operators it calls depends on "
            "data. Move that part into an operator of its own (execution.operator(fn)), use "
            "jax.lax.cond in one, or take execution_strategy='sequential'"
        )

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Reached by isinstance with any class but this one.
        return self._refuse("asks for the type of a value")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse(f"reads the attribute {name!r} of a value")


_REFUSED = {
    "hash": "looks a value up",
    "contains": "looks for something in a value",
    "bool": "decides by a value",
    "int": "takes a value as a number",
    "index": "takes a value as a number",
    "float": "takes a value as a number",
    "len": "asks for the length of a value",
    "iter": "iterates over a value (index it instead, result[0], result[1])",
    "array": "computes with NumPy",
    "jax_array": "computes with JAX between operators",
    "str": "makes text of a value",
    "format": "makes text of a value",
}
_ARITHMETIC: dict[str, Callable[..., Any]] = {
    word: getattr(python, f"__{word}__")
    for word in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("lshift", "rshift", "and", "or", "xor"),
    )
}
_ARITHMETIC["divmod"] = divmod
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert")


def _refusal(what: str) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: self._refuse(what)


def _recorded(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *other: self._recorder.arithmetic(fn, self, *other)


def _reflected(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, other: self._recorder.arithmetic(fn, other, self)


for _word, _what in _REFUSED.items():
    setattr(Placeholder, f"__{_word}__", _refusal(_what))
for _word, _fn in _ARITHMETIC.items():
    setattr(Placeholder, f"__{_word}__", _recorded(_fn))
    setattr(Placeholder, f"__r{_word}__", _reflected(_fn))
for _word in _COMPARED:
    setattr(Placeholder, f"__{_word}__", _recorded(getattr(python, _word)))


@dataclasses.dataclass
class Operation:
    """One call: of ``op`` with arguments that hold placeholders."""

    index: int
    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: the operations whose values it needs
    after: tuple[int, ...]
    #: whether it runs on the host, as Python, and why; else it is traced and compiled
    host: bool
    reason: str


@dataclasses.dataclass
class Graph:
    """The operations in the order of their calls, which is one that works, and the result."""

    operations: list[Operation]
    #: the inputs that are no leaves of the arguments: arrays that were given to operations
    arrays: list[Any]
    result: Any
    #: the composites whose forward was called, and what their attributes held
    read: list[tuple[Operator, dict[str, list[Any]]]]

    def is_current(self) -> bool:
        """Whether the attributes of all composites are what they were."""
        return all(_changed(op, held) is None for op, held in self.read)

    def levels(self) -> list[list[int]]:
        """Operations by the longest chain of operations before them."""
        level: list[int] = []
        for operation in self.operations:
            level.append(1 + max((level[before] for before in operation.after), default=-1))
        return [
            [i for i, at in enumerate(level) if at == depth]
            for depth in range(max(level, default=-1) + 1)
        ]

    def form(self) -> list[Any]:
        """Equal for two graphs that differ in the values of arrays only."""
        calls = [(op.args, op.kwargs) for op in self.operations]
        leaves, tree = jax.tree.flatten((self.result, calls))
        constants = [place(x) if type(x) is Placeholder else exact_key(x) for x in leaves]
        arrays = [(isinstance(x, jax.Array), x.shape, x.dtype) for x in self.arrays]
        return [tree, [(id(op.op), op.host) for op in self.operations], constants, arrays]


class Recorder:
    """Notes down calls on placeholders instead of running them."""

    def __init__(self) -> None:
        self._operations: list[Operation] = []
        self._inputs: list[Any] = []
        self._read: list[tuple[Operator, dict[str, list[Any]]]] = []
        self._scope: tuple[str, ...] = ()

    def record(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Graph:
        """The graph of a call, in which the leaves of the arguments are inputs 0, 1, ..."""
        self._inputs, tree = jax.tree.flatten((args, kwargs))
        inputs = [Placeholder(self, -1 - index) for index in range(len(self._inputs))]
        args, kwargs = jax.tree.unflatten(tree, inputs)
        outer = ACTIVE.get() or Active(ExecutionOptions())
        token = ACTIVE.set(dataclasses.replace(outer, recorder=self))
        try:
            result = self._with_inputs(self.expanded(forward, args, kwargs))
        finally:
            ACTIVE.reset(token)
        graph = Graph(self._operations, self._inputs[len(inputs) :], result, self._read)
        # Placeholders know their recorder and live on in programs: the arrays of a graph do not.
        self._operations, self._inputs, self._read = [], [], []
        return graph

    def concerns(self, arguments: Any) -> bool:
        """Whether there are placeholders in the arguments of a call."""
        return bool(placeholders(arguments))

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds a call; of a composite with host operators inside, the calls inside it."""
        name = name_of(op)
        if isinstance(op, Operator) and _is_composite(op):
            scope, self._scope = self._scope, (*self._scope, name)
            try:
                return self.expanded(op.forward, (), {"inputs": args[0]})
            finally:
                self._scope = scope
        host = getattr(op, "host", False) is True
        return self._add(name, op, args, kwargs, host, f"{'' if host else 'not '}declared host")

    def arithmetic(self, fn: Any, *args: Any) -> Placeholder:
        """Adds a call of Python's own, whose result is JAX's where an operand is."""
        args = self._with_inputs(args)
        host = not any(map(self._is_jax, placeholders(args)))
        reason = f"arithmetic of {'host' if host else 'JAX'} values"
        return self._add(name_of(fn), fn, args, {}, host, reason)

    def _is_jax(self, value: Placeholder) -> bool:
        source, _ = place(value)
        if source < 0:
            return isinstance(self._inputs[-1 - source], jax.Array)
        return not self._operations[source].host

    def _with_inputs(self, tree: Any) -> Any:
        """A tree whose arrays are inputs, so that no program holds them."""

        def kept(leaf: Any) -> Any:
            if type(leaf) is Placeholder or not is_array(leaf):
                return leaf
            self._inputs.append(leaf)
            return Placeholder(self, -len(self._inputs))

        return jax.tree.map(kept, tree)

    def expanded(self, forward: Any, args: Any, kwargs: Any) -> Any:
        """The result of a composite's forward, whose calls are noted down."""
        owner = getattr(forward, "__self__", None)
        forward = getattr(forward, "__func__", forward)
        forward = getattr(forward, "composite", forward)
        if not isinstance(owner, Operator):
            return forward(*args, **kwargs)
        self._read.append((owner, _held(owner)))
        # Functions that are attributes are steps too; the operator itself stays as it is.
        wrapped = copy.copy(owner)
        for name, value in vars(owner).items():
            if not isinstance(value, Operator):
                object.__setattr__(wrapped, name, self._watched(value))
        before = _held(wrapped)
        result = forward(wrapped, *args, **kwargs)
        changed = _changed(wrapped, before)
        if changed is not None:
            raise SymbolicError(
                f"forward of {type(owner).__name__} changes its attribute {changed!r}, which a "
                "graph would do once and never again. Return the new value"
            )
        return result

    def _watched(self, value: Any) -> Any:
        if not isinstance(value, (list, tuple, dict)) and not callable(value):
            return value

        def watched(leaf: Any) -> Any:
            # What `jit` and `structural_jit` made records itself.
            own = isinstance(leaf, (type, Operator)) or hasattr(leaf, "supervises")
            return leaf if own or not callable(leaf) else _Watched(self, leaf)

        return jax.tree.map(watched, value, is_leaf=is_operator)

    def _add(
        self, name: str, op: Any, args: Any, kwargs: dict[str, Any], host: bool, reason: str
    ) -> Placeholder:
        args, kwargs = self._with_inputs((args, kwargs))
        if not host and is_tree(getattr(op, "__self__", None)):
            op = callable_tree(op)  # the arrays of the object are operands
        sources = {place(p)[0] for p in placeholders((args, kwargs))}
        needed = sorted(source for source in sources if source >= 0)
        index = len(self._operations)
        name = "/".join((*self._scope, name))
        same = sum(operation.name.split("#")[0] == name for operation in self._operations)
        if same:
            name = f"{name}#{same + 1}"
        operation = Operation(index, name, op, args, kwargs, tuple(needed), host, reason)
        self._operations.append(operation)
        return Placeholder(self, index)


class _Watched:
    def __init__(self, recorder: Recorder, fn: Any) -> None:
        self._recorder, self._fn = recorder, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if placeholders((args, kwargs)):
            return self._recorder.call(self._fn, *args, **kwargs)
        return self._fn(*args, **kwargs)


def placeholders(tree: Any) -> list[Placeholder]:
    """Those among the leaves of a tree."""
    return [leaf for leaf in jax.tree.leaves(tree) if type(leaf) is Placeholder]


def place(placeholder: Placeholder) -> tuple[int, tuple[Any, ...]]:
    """Its source and path: attributes of these names would hide those of the value."""
    return placeholder._source, placeholder._path


def resolved(tree: Any, values: dict[int, Any]) -> Any:
    """A tree with values in the place of its placeholders, given those of their sources."""

    def value(leaf: Any) -> Any:
        if type(leaf) is not Placeholder:
            return leaf
        source, path = place(leaf)
        return functools.reduce(python.getitem, path, values[source])

    return jax.tree.map(value, tree)


def _is_composite(op: Operator) -> bool:
    """Whether it is not one step: no host operator itself, not compiled as a whole, with hosts."""
    if op.host or hasattr(type(op).forward, "cache_info"):
        return False
    return any(
        getattr(part, "host", False) is True or (is_operator(part) and _is_composite(part))
        for part in jax.tree.leaves(list(vars(op).values()), is_leaf=is_operator)
    )


def _held(op: Operator) -> dict[str, list[Any]]:
    """What each attribute of an operator holds: operators, arrays and all other leaves."""
    return {
        name: jax.tree.leaves(value, is_leaf=is_operator)
        for name, value in vars(op).items()
        if name != CHILDREN
    }


def _changed(op: Operator, held: dict[str, list[Any]]) -> str | None:
    """An attribute that holds something else than it did."""
    now = _held(op)
    for name in now.keys() | held.keys():
        new, old = now.get(name), held.get(name)
        if new is None or old is None or len(new) != len(old) or not all(map(python.is_, new, old)):
            return name
    return None
