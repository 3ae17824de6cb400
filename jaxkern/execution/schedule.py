"""What runs a graph: its parts, each a host operation or one JAX program, and their times."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from graphlib import TopologicalSorter
from typing import Any

import jax

from jaxkern.core.failures import note
from jaxkern.execution.graph import Graph, Operation, Placeholder, place, placeholders, resolved
from jaxkern.execution.jit import Jitted
from jaxkern.execution.jit_options import JITOptions
from jaxkern.execution.operator import Operator
from jaxkern.execution.options import ACTIVE, current_options
from jaxkern.execution.threads import Task, run_tasks, supervised


@dataclasses.dataclass
class Part:
    """What runs as one: a host operation, or the operations of one JAX program."""

    name: str
    #: operations, and parts that it waits for, by their numbers
    members: tuple[int, ...]
    after: tuple[int, ...]
    program: Jitted | None = None
    #: for a program: what its operations need from outside, and those whose values others need
    outside: list[Placeholder] = dataclasses.field(default_factory=list)
    wanted: tuple[int, ...] = ()
    #: of the last call that was timed; None: not yet timed, and why
    seconds: float | None = None
    untimed: str = "it has not run"

    def run(self, graph: Graph, values: dict[int, Any]) -> None:
        """Adds the values of its operations that others need."""
        operations = [graph.operations[i] for i in self.members]
        if self.program is None:
            (operation,) = operations
            values[operation.index] = _called(operation, values)
            return
        given = resolved(self.outside, values)
        results = self.program([operation.op for operation in operations], given)
        values.update(zip(self.wanted, results, strict=True))

    def run_timed(self, graph: Graph, values: dict[int, Any]) -> None:
        """The same, waited for."""
        compiled = 0 if self.program is None else self.program.misses
        started = time.perf_counter()
        self.run(graph, values)
        jax.block_until_ready([values[i] for i in self.wanted])
        self.seconds = time.perf_counter() - started
        # The time of a call that compiles says nothing about the next one.
        if self.program is not None and self.program.misses != compiled:
            self.seconds, self.untimed = None, "the last call compiled it"


class Schedule:
    """A recorded graph and the parts that it runs in."""

    def __init__(self, graph: Graph, operators: list[Operator]) -> None:
        self.graph = graph
        # Schedules are told apart by the ids of the operators, which must not be reused.
        self.operators = operators
        self.parts = _parts(graph)

    def run(self, leaves: list[Any], name: str, max_workers: int | None) -> Any:
        """The result of a call whose arguments have these leaves."""
        graph, parts = self.graph, self.parts  # another thread may replace the graph
        inputs = [*leaves, *graph.arrays]
        values: dict[int, Any] = {-1 - index: value for index, value in enumerate(inputs)}
        if len(parts) == 1 and parts[0].program is not None and current_options().deadline is None:
            # Nothing but JAX: dispatched and not waited for, as any jitted function.
            parts[0].run(graph, values)
            parts[0].seconds = None
            parts[0].untimed = "nothing but JAX, which the last call did not wait for"
        else:
            tail = seconds_to_the_end([p.seconds or 0.0 for p in parts], [p.after for p in parts])
            tasks = [
                Task(p.name, functools.partial(p.run_timed, graph, values), p.after, priority)
                for p, priority in zip(parts, tail, strict=True)
            ]
            run_tasks(tasks, name, max_workers)
        return resolved(graph.result, values)


def _called(operation: Operation, values: dict[int, Any]) -> Any:
    args, kwargs = resolved((operation.args, operation.kwargs), values)
    active = ACTIVE.get()
    if active is None or isinstance(operation.op, Operator):
        result = operation.op(*args, **kwargs)
    else:
        result = supervised(active, operation.name, "operator", operation.op, *args, **kwargs)
    return jax.block_until_ready(result)


def _parts(graph: Graph) -> list[Part]:
    """One part for each host operation, and one for the others that wait for the same of these.

    No path between two of the latter can lead over a host operation, so that joining them is
    possible, and all of them become ready at the same moment, so that it delays none.
    """
    hosts: list[frozenset[int]] = []
    members: dict[Any, list[int]] = {}
    for operation in graph.operations:
        before = [hosts[i] | {i} if graph.operations[i].host else hosts[i] for i in operation.after]
        hosts.append(frozenset[int]().union(*before))
        key = operation.index if operation.host else hosts[-1]
        members.setdefault(key, []).append(operation.index)
    # A part is after those that it waits for, and host operations are in the order of their calls.
    groups = sorted(
        members.values(),
        key=lambda group: (
            (group[0], 0, 0)
            if graph.operations[group[0]].host
            else (max(hosts[group[0]], default=-1), 1, len(hosts[group[0]]))
        ),
    )
    part_of = {index: number for number, group in enumerate(groups) for index in group}
    result = {place(p)[0] for p in placeholders(graph.result)}
    parts = []
    for number, group in enumerate(groups):
        operations = [graph.operations[i] for i in group]
        name = " + ".join(operation.name for operation in operations)
        after = {part_of[i] for operation in operations for i in operation.after} - {number}
        part = Part(name, tuple(group), tuple(sorted(after)))
        if not operations[0].host:
            elsewhere = (op.after for op in graph.operations if part_of[op.index] != number)
            part.wanted = tuple(sorted(set(group) & result.union(*elsewhere)))
            used = placeholders([(operation.args, operation.kwargs) for operation in operations])
            others = {place(p): p for p in used if place(p)[0] not in group}
            part.outside = list(others.values())
            program = _program(operations, part.outside, part.wanted)
            program.__name__ = name[:80]
            part.program = Jitted(program, JITOptions())
        parts.append(part)
    return parts


def _program(
    operations: list[Operation], outside: list[Placeholder], wanted: tuple[int, ...]
) -> Callable[..., Any]:
    """The operations as one function of their operators and the values from outside."""
    names = [(operation.index, operation.name) for operation in operations]
    calls = [(operation.args, operation.kwargs) for operation in operations]

    def program(ops: list[Any], given: list[Any]) -> list[Any]:
        known = dict(zip(map(place, outside), given, strict=True))
        values: dict[int, Any] = {}

        def value(leaf: Any) -> Any:
            if type(leaf) is Placeholder and place(leaf) in known:
                return known[place(leaf)]
            return resolved(leaf, values)

        for (index, name), op, call in zip(names, ops, calls, strict=True):
            args, kwargs = jax.tree.map(value, call)
            try:
                values[index] = op(*args, **kwargs)
            except Exception as error:
                note(
                    error,
                    "raised by {}, which JAX traces and compiles: if it is Python work, declare "
                    "`host = True` in its class, or make it execution.operator(fn, host=True)",
                    name,
                )
                raise
        return [values[index] for index in wanted]

    return program


def seconds_to_the_end(seconds: Sequence[float], after: Sequence[Sequence[int]]) -> list[float]:
    """Of each part: the longest chain of times from its beginning to the graph's end."""
    tail = [0.0] * len(seconds)
    order = TopologicalSorter(dict(enumerate(after))).static_order()
    for index in reversed(list(order)):
        tail[index] += seconds[index]
        for before in after[index]:
            tail[before] = max(tail[before], tail[index])
    return tail


def critical_path(seconds: Sequence[float], after: Sequence[Sequence[int]]) -> list[int]:
    """The chain of the largest sum of times, from its first to its last member."""
    tail = seconds_to_the_end(seconds, after)
    path: list[int] = []
    following = list(range(len(tail)))
    while following:
        path.append(max(following, key=lambda i: tail[i]))
        following = [i for i, before in enumerate(after) if path[-1] in before]
    return path
