"""A composite's forward as a graph of the operators that it calls, recorded on placeholders."""

from __future__ import annotations

import copy
import dataclasses
import operator as python
from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxkern.execution.operator import CHILDREN, JaxFunction, Operator
from jaxkern.execution.options import ACTIVE, Active, ExecutionOptions


class SymbolicError(TypeError):
    """A forward needs a value while its graph is recorded, when there are none."""


class Placeholder:
    """What stands for a value while a graph is recorded: an input, or what a node will return.

    ``node`` is negative for input ``-1 - node``; ``path`` are the keys to look up in the value.
    """

    def __init__(self, recorder: Recorder, node: int, path: tuple[Any, ...] = ()) -> None:
        self._recorder, self._node, self._path = recorder, node, path

    def __getitem__(self, key: Any) -> Placeholder:
        if _placeholders(key):
            found: Placeholder = self._recorder.function(python.getitem, self, key)
            return found
        return Placeholder(self._recorder, self._node, (*self._path, key))

    def resolved(self, values: Callable[[int], Any]) -> Any:
        """The value, given those of nodes and inputs."""
        value = values(self._node)
        for key in self._path:
            value = value[key]
        return value

    @property
    def origin(self) -> tuple[int, tuple[Any, ...]]:
        """The node that it comes from, and the keys to look up in its value."""
        return self._node, self._path

    @property
    def node(self) -> int:
        """The node that it comes from."""
        return self._node

    def _refuse(self, what: str) -> Any:
        raise SymbolicError(
            f"forward {what} while its graph is recorded, so which operators it calls depends on "
            "data. Move that part into an operator of its own (execution.operator(fn)), use "
            "jax.lax.cond in one, or take execution_strategy='sequential'"
        )

    def __hash__(self) -> int:
        return int(self._refuse("looks a value up"))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        # Reached by isinstance with any class but this one.
        return self._refuse("asks for the type of a value")

    def __bool__(self) -> bool:
        return bool(self._refuse("decides by a value"))

    def __int__(self) -> int:
        return int(self._refuse("takes a value as a number"))

    def __index__(self) -> int:
        return int(self._refuse("takes a value as a number"))

    def __float__(self) -> float:
        return float(self._refuse("takes a value as a number"))

    def __len__(self) -> int:
        return int(self._refuse("asks for the length of a value"))

    def __iter__(self) -> Any:
        return self._refuse("iterates over a value (index it instead, result[0], result[1])")

    def __contains__(self, item: Any) -> bool:
        return bool(self._refuse("looks for something in a value"))

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return self._refuse("computes with NumPy")

    def __jax_array__(self) -> Any:
        return self._refuse("computes with JAX between operators")

    def __str__(self) -> str:
        return str(self._refuse("makes text of a value"))

    def __format__(self, spec: str) -> str:
        return str(self._refuse("makes text of a value"))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse(f"reads the attribute {name!r} of a value")


def _binary(fn: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Any, Any], Any]:
    def method(self: Placeholder, other: Any) -> Any:
        pair = (other, self) if swapped else (self, other)
        return self._recorder.function(fn, *pair)

    return method


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    word: getattr(python, word)
    for word in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"),
        *("lshift", "rshift", "xor"),
    )
}
_BINARY |= {"and": python.and_, "or": python.or_, "divmod": divmod}
for _word, _fn in _BINARY.items():
    setattr(Placeholder, f"__{_word}__", _binary(_fn, False))
    setattr(Placeholder, f"__r{_word}__", _binary(_fn, True))
for _word in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Placeholder, f"__{_word}__", _binary(getattr(python, _word), False))
for _word in ("neg", "pos", "abs", "invert"):

    def _unary(self: Placeholder, fn: Any = getattr(python, _word)) -> Any:  # noqa: B008
        return self._recorder.function(fn, self)

    setattr(Placeholder, f"__{_word}__", _unary)


@dataclasses.dataclass
class Node:
    """One call: of ``op`` with arguments that hold placeholders."""

    index: int
    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: the nodes whose values it needs
    after: tuple[int, ...]


@dataclasses.dataclass
class Graph:
    """The nodes in the order of their calls, which is one that works, and the result."""

    nodes: list[Node]
    result: Any

    def levels(self) -> list[list[int]]:
        """Nodes by the longest chain of nodes before them."""
        level: list[int] = []
        for node in self.nodes:
            level.append(1 + max((level[before] for before in node.after), default=-1))
        return [
            [i for i, at in enumerate(level) if at == depth]
            for depth in range(max(level, default=-1) + 1)
        ]


class Recorder:
    """Notes down calls on placeholders instead of running them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._scope: tuple[str, ...] = ()

    def record(self, forward: Callable[..., Any], args: Any, kwargs: Any) -> Graph:
        """The graph of a call, in which the leaves of the arguments are inputs 0, 1, ..."""
        leaves, tree = jax.tree.flatten((args, kwargs))
        inputs = [Placeholder(self, -1 - index) for index in range(len(leaves))]
        args, kwargs = jax.tree.unflatten(tree, inputs)
        outer = ACTIVE.get() or Active(ExecutionOptions())
        token = ACTIVE.set(dataclasses.replace(outer, recorder=self))
        try:
            result = self.expanded(forward, args, kwargs)
        finally:
            ACTIVE.reset(token)
        # Placeholders know their recorder, and live on in programs: not so the arrays of nodes.
        nodes, self.nodes = self.nodes, []
        return Graph(nodes, result)

    def concerns(self, arguments: Any) -> bool:
        """Whether there are placeholders in the arguments of a call."""
        return bool(_placeholders(arguments))

    def call(self, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds a call of an operator; of a composite, the calls inside it if it lets them be."""
        name = _name(op)
        if isinstance(op, Operator) and not op.host and _is_composite(op):
            count, scope = len(self.nodes), self._scope
            self._scope = (*scope, name)
            try:
                return self.expanded(op.forward, (), {"inputs": args[0]})
            except Exception:  # whatever it is, it shows when the operator itself is run
                del self.nodes[count:]
            finally:
                self._scope = scope
        return self._add(name, op, args, kwargs)

    def nested(self, composite: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Adds the calls inside a composite that is no operator; if it cannot, its call."""
        count = len(self.nodes)
        try:
            return self.expanded(composite, args, kwargs)
        except Exception:  # as above
            del self.nodes[count:]
        return self._add(_name(composite), composite, args, kwargs)

    def function(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        """Adds a call of a plain function."""
        return self._add(_name(fn), fn, args, kwargs)

    def expanded(self, forward: Any, args: Any, kwargs: Any) -> Any:
        owner = getattr(forward, "__self__", None)
        forward = getattr(forward, "__func__", forward)
        forward = getattr(forward, "composite", forward)
        if not isinstance(owner, Operator):
            return forward(*args, **kwargs)
        # Functions that are attributes are steps too; the operator itself stays as it is.
        wrapped = copy.copy(owner)
        for name, value in vars(owner).items():
            if not isinstance(value, Operator):
                object.__setattr__(wrapped, name, self._watched(value))
        before = _identities(wrapped)
        result = forward(wrapped, *args, **kwargs)
        after = _identities(wrapped)
        changed = [n for n in before.keys() | after.keys() if before.get(n) != after.get(n)]
        if changed:
            raise SymbolicError(
                f"forward of {type(owner).__name__} changes its attribute {changed[0]!r}, which a "
                "graph would do once and never again. Return the new value"
            )
        return result

    def _watched(self, value: Any) -> Any:
        if isinstance(value, (list, tuple, dict)) or (
            callable(value) and not isinstance(value, type)
        ):
            return jax.tree.map(
                lambda leaf: (
                    _Watched(self, leaf)
                    if callable(leaf) and not isinstance(leaf, (type, Operator))
                    else leaf
                ),
                value,
                is_leaf=lambda leaf: isinstance(leaf, Operator),
            )
        return value

    def _add(self, name: str, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        needed = sorted({p.node for p in _placeholders((args, kwargs)) if p.node >= 0})
        index = len(self.nodes)
        full = "/".join((*self._scope, name))
        same = sum(node.name.split("#")[0] == full for node in self.nodes)
        if same:
            full = f"{full}#{same + 1}"
        self.nodes.append(Node(index, full, op, args, kwargs, tuple(needed)))
        return Placeholder(self, index)


def _identities(op: Operator) -> dict[str, list[int]]:
    """What tells whether attributes were replaced, or lists and dicts among them changed."""
    return {
        name: [id(value), *(map(id, jax.tree.leaves(value)) if type(value) in (list, dict) else ())]
        for name, value in vars(op).items()
        if name != CHILDREN
    }


class _Watched:
    def __init__(self, recorder: Recorder, fn: Any) -> None:
        self._recorder, self._fn = recorder, fn

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _placeholders((args, kwargs)):
            return self._recorder.function(self._fn, *args, **kwargs)
        return self._fn(*args, **kwargs)


def _placeholders(tree: Any) -> list[Placeholder]:
    return [leaf for leaf in jax.tree.leaves(tree) if type(leaf) is Placeholder]


def _name(op: Any) -> str:
    if isinstance(op, Operator):
        fn = getattr(op, "fn", None)
        return type(op).__name__ if fn is None else _name(fn)
    return str(getattr(op, "__name__", type(op).__name__))


def _is_composite(op: Operator) -> bool:
    # One that is compiled as a whole is one step.
    if isinstance(op, JaxFunction) or hasattr(type(op).forward, "cache_info"):
        return False
    leaves = jax.tree.leaves(list(vars(op).values()), is_leaf=lambda x: isinstance(x, Operator))
    return any(isinstance(leaf, Operator) for leaf in leaves)


def longest_path(seconds: Sequence[float], after: Sequence[Sequence[int]]) -> list[int]:
    """The chain of the largest sum of seconds, from its first to its last member."""
    total: list[float] = []
    before: list[int | None] = []
    for index, previous in enumerate(after):
        best = max(previous, key=lambda i: total[i], default=None)
        before.append(best)
        total.append(seconds[index] + (0.0 if best is None else total[best]))
    if not total:
        return []
    at: int | None = max(range(len(total)), key=lambda i: total[i])
    path = []
    while at is not None:
        path.append(at)
        at = before[at]
    return path[::-1]
