"""What runs a composite: the graph of its nodes, their kinds, and the parts that run as one."""

from __future__ import annotations

import dataclasses
import operator as python
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import jax

from jaxkern.execution.graph import Graph, Node, Placeholder
from jaxkern.execution.jit import Jitted
from jaxkern.execution.jit_options import JITOptions
from jaxkern.execution.operator import Operator, is_array

# Stands for an array in the calls of a program.
_ARRAY = object()


@dataclasses.dataclass
class Part:
    """What runs as one: a host node, or the nodes of one JAX program."""

    name: str
    nodes: list[Node]
    after: tuple[int, ...]
    program: Jitted | None = None
    #: for a program: the nodes whose values others need
    wanted: tuple[int, ...] = ()
    #: what its nodes need from outside, and the arrays that they are called with
    outside: list[Placeholder] = dataclasses.field(default_factory=list)
    arrays: list[Any] = dataclasses.field(default_factory=list)
    #: of the last call that was timed; None: not yet timed, and why
    seconds: float | None = None
    untimed: str = "it has not run"


class Plan:
    """A recorded graph, what is known of its nodes, and the parts it runs in."""

    def __init__(self, graph: Graph, operators: list[Operator], arrays: list[Any]) -> None:
        self.graph = graph
        # Plans are told apart by the ids of the operators, which must not be reused.
        self.operators = operators
        #: those of the composite when it was recorded: a value may be in the graph
        self.arrays = arrays
        #: of each node: "jax", "host" or None as long as it is unknown, and why
        self.kinds: list[str | None] = [None] * len(graph.nodes)
        self.reasons = [""] * len(graph.nodes)
        for node in graph.nodes:
            if getattr(node.op, "host", False) is True:
                self.kinds[node.index], self.reasons[node.index] = "host", "declared host"
        self.parts = self._single_parts()
        self.grouped = False

    def _single_parts(self) -> list[Part]:
        return [Part(node.name, [node], node.after) for node in self.graph.nodes]

    def group(self) -> None:
        """Makes one program of the JAX nodes that wait for the same host nodes.

        No path between two of them can lead over a host node, so that joining them is possible,
        and all of them become ready at the same moment, so that it delays none.
        """
        hosts: list[frozenset[int]] = []
        for node in self.graph.nodes:
            waits = frozenset[int]().union(*(hosts[i] for i in node.after))
            waits |= {i for i in node.after if self.kinds[i] == "host"}
            hosts.append(waits)
        members: OrderedDict[Any, list[Node]] = OrderedDict()
        for node in self.graph.nodes:
            key = node.index if self.kinds[node.index] == "host" else hosts[node.index]
            members.setdefault(key, []).append(node)
        groups = _in_order(list(members.values()))
        part_of = {node.index: i for i, group in enumerate(groups) for node in group}
        result = {p.node for p in _refs(self.graph.result)}
        singles = {part.nodes[0].index: part for part in self.parts}
        # Other threads may be reading the parts of single nodes.
        parts: list[Part] = []
        for number, group in enumerate(groups):
            inside = {node.index for node in group}
            after = {part_of[i] for node in group for i in node.after} - {number}
            part = Part(group[0].name, group, tuple(sorted(after)))
            if self.kinds[group[0].index] == "jax":
                used = {
                    i for n in self.graph.nodes if n.index not in inside for i in n.after
                } | result
                part.wanted = tuple(sorted(inside & used))
                part.name = " + ".join(node.name for node in group)
                part.outside, part.arrays = _operands(group)
                part.program = Jitted(_program(group, part.wanted), JITOptions())
            else:
                # Only of host nodes: a JAX node that ran by itself may have been compiled then.
                single = singles[group[0].index]
                part.seconds, part.untimed = single.seconds, single.untimed
            parts.append(part)
        self.parts, self.grouped = parts, True

    def adopt(self, old: Plan) -> None:
        """Takes over what is known and compiled of a graph that differs in its arrays only."""
        if not _same_form(self.graph, old.graph):
            return
        self.kinds, self.reasons = old.kinds, old.reasons
        if not old.grouped:
            return
        parts: list[Part] = []
        for part in old.parts:
            nodes = [self.graph.nodes[node.index] for node in part.nodes]
            part = dataclasses.replace(part, nodes=nodes)
            if part.program is not None:
                part.outside, part.arrays = _operands(nodes)
            parts.append(part)
        self.parts, self.grouped = parts, True


def _in_order(groups: list[list[Node]]) -> list[list[Node]]:
    """The groups so that each comes behind those that it needs."""
    part_of = {node.index: i for i, group in enumerate(groups) for node in group}
    needs = [
        {part_of[before] for node in group for before in node.after} - {i}
        for i, group in enumerate(groups)
    ]
    placed: list[int] = []
    while len(placed) < len(groups):
        free = [i for i in range(len(groups)) if i not in placed and needs[i] <= set(placed)]
        assert free, "groups of a graph without cycles have an order"
        placed.extend(free)
    return [groups[i] for i in placed]


def _refs(tree: Any) -> list[Placeholder]:
    return [leaf for leaf in jax.tree.leaves(tree) if type(leaf) is Placeholder]


def resolved(tree: Any, value: Callable[[Placeholder], Any]) -> Any:
    """A tree with values in the place of its placeholders."""
    return jax.tree.map(lambda leaf: value(leaf) if type(leaf) is Placeholder else leaf, tree)


def _is_given(leaf: Any) -> bool:
    return type(leaf) is not Placeholder and is_array(leaf)


def _same_form(one: Graph, other: Graph) -> bool:
    """Whether two graphs differ in the values of arrays only."""
    if not identical([node.op for node in one.nodes], [node.op for node in other.nodes]):
        return False
    trees = [(graph.result, [(n.args, n.kwargs) for n in graph.nodes]) for graph in (one, other)]
    (mine, my_tree), (theirs, their_tree) = map(jax.tree.flatten, trees)
    same_trees = bool(my_tree == their_tree)  # type: ignore[operator]
    return same_trees and [*map(_form, mine)] == [*map(_form, theirs)]


def _form(leaf: Any) -> Any:
    if type(leaf) is Placeholder:
        return Placeholder, leaf.origin
    return (leaf.shape, leaf.dtype) if is_array(leaf) else (type(leaf), leaf)


def _operands(nodes: list[Node]) -> tuple[list[Placeholder], list[Any]]:
    """What the program of these nodes needs from outside, and the arrays that they are given."""
    inside = {node.index for node in nodes}
    leaves = jax.tree.leaves([(node.args, node.kwargs) for node in nodes])
    outside = [p for p in _refs(leaves) if p.node not in inside]
    return outside, [leaf for leaf in leaves if _is_given(leaf)]


def _program(nodes: list[Node], wanted: tuple[int, ...]) -> Callable[..., Any]:
    """The nodes as one function of their operators, the values from outside, and their arrays."""
    inside = {node.index for node in nodes}
    indices = [node.index for node in nodes]
    # Without the arrays themselves, which may be replaced and should then be freed.
    calls = jax.tree.map(
        lambda leaf: _ARRAY if _is_given(leaf) else leaf, [(n.args, n.kwargs) for n in nodes]
    )

    def program(ops: list[Any], outside: list[Any], arrays: list[Any]) -> list[Any]:
        values: dict[int, Any] = {}
        outer, given = iter(outside), iter(arrays)

        def value(leaf: Any) -> Any:
            if type(leaf) is Placeholder:
                return leaf.resolved(values.__getitem__) if leaf.node in inside else next(outer)
            return next(given) if leaf is _ARRAY else leaf

        for index, op, call in zip(indices, ops, calls, strict=True):
            args, kwargs = jax.tree.map(value, call)
            values[index] = op(*args, **kwargs)
        return [values[index] for index in wanted]

    return program


def identical(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists hold the same objects."""
    return len(one) == len(other) and all(map(python.is_, one, other))
