"""`structural_jit`: a composite of operators, its JAX parts compiled, its host parts on threads."""

from __future__ import annotations

import dataclasses
import functools
import operator as python
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax

from jaxkern.core.compat import is_tracing
from jaxkern.execution.explanation import explanation
from jaxkern.execution.graph import Graph, Node, Placeholder, Recorder, SymbolicError
from jaxkern.execution.jit_options import JITOptions
from jaxkern.execution.jitted import Jitted
from jaxkern.execution.operator import Operator, is_array
from jaxkern.execution.options import ACTIVE, current_options
from jaxkern.execution.program import flat_function
from jaxkern.execution.signature import operators_in, split
from jaxkern.execution.supervision import supervised
from jaxkern.execution.threads import Unit, run_units

Strategy = Literal["auto", "parallel", "sequential"]
_KEPT_PLANS = 64
# Stands for an array in the calls of a program.
_ARRAY = object()


@dataclasses.dataclass
class _Part:
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
    seconds: float = 0.0


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

    def _single_parts(self) -> list[_Part]:
        return [_Part(node.name, [node], node.after) for node in self.graph.nodes]

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
        seconds = {part.nodes[0].index: part.seconds for part in self.parts}
        # Other threads may be reading the parts of single nodes.
        parts: list[_Part] = []
        for number, group in enumerate(groups):
            inside = {node.index for node in group}
            after = {part_of[i] for node in group for i in node.after} - {number}
            part = _Part(group[0].name, group, tuple(sorted(after)))
            if self.kinds[group[0].index] == "jax":
                used = {
                    i for n in self.graph.nodes if n.index not in inside for i in n.after
                } | result
                part.wanted = tuple(sorted(inside & used))
                part.name = " + ".join(node.name for node in group)
                part.outside, part.arrays = _operands(group)
                part.program = Jitted(_program(group, part.wanted), JITOptions())
            part.seconds = sum(seconds.get(node.index, 0.0) for node in group)
            parts.append(part)
        self.parts, self.grouped = parts, True

    def adopt(self, old: Plan) -> None:
        """Takes over what is known and compiled of a graph that differs in its arrays only."""
        if not _same_form(self.graph, old.graph):
            return
        self.kinds, self.reasons = old.kinds, old.reasons
        if not old.grouped:
            return
        parts: list[_Part] = []
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


def _resolved(tree: Any, value: Callable[[Placeholder], Any]) -> Any:
    return jax.tree.map(lambda leaf: value(leaf) if type(leaf) is Placeholder else leaf, tree)


def _is_given(leaf: Any) -> bool:
    return type(leaf) is not Placeholder and is_array(leaf)


def _same_form(one: Graph, other: Graph) -> bool:
    """Whether two graphs differ in the values of arrays only."""
    if not _identical([node.op for node in one.nodes], [node.op for node in other.nodes]):
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


class Structural:
    """A composite that `structural_jit` has made."""

    #: calls keep to `execution_options` by themselves
    supervises = True

    def __init__(self, fn: Callable[..., Any], strategy: Strategy, workers: int | None) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.composite = fn
        self._strategy, self._workers = strategy, workers
        self._name = getattr(fn, "__name__", None) or type(fn).__name__
        # A composite may call itself, on constants, while it is recorded.
        self._lock = threading.RLock()
        self._plans: OrderedDict[Any, Plan | str] = OrderedDict()
        self._last: Plan | str | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        active = ACTIVE.get()
        if active is not None:
            if active.recorder is not None:
                # A composite inside another one is part of the same graph.
                return active.recorder.nested(self, args, kwargs)
            return supervised(active, self._name, "graph", self._call, args, kwargs)
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if is_tracing() or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
            return self.composite(*args, **kwargs)
        owner, rest = self._owner(args)
        leaves = jax.tree.leaves((rest, kwargs))
        plan = self._plan(owner, rest, kwargs, leaves)
        self._last = plan
        if isinstance(plan, str):
            return self.composite(*args, **kwargs)
        return self._run(plan, leaves)

    def _owner(self, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        if isinstance(self.composite, Operator):
            return self.composite, args
        if isinstance(self.composite, types.FunctionType) and args:
            first = args[0]
            if isinstance(first, Operator) and getattr(type(first), "forward", None) is self:
                return first, args[1:]
        return None, args

    def _plan(self, owner: Any, rest: Any, kwargs: Any, leaves: list[Any]) -> Plan | str:
        arrays: list[Any] = []
        operators: list[Operator] = []
        structure = None
        if owner is not None:
            arrays, structure = jax.tree.flatten(owner)
            operators = operators_in(owner)
        kinds = tuple((x.shape, x.dtype) if is_array(x) else type(x) for x in leaves)
        tree = jax.tree.structure((rest, kwargs))
        key = (structure, tree, kinds, tuple(map(id, operators)))
        with self._lock:
            plan = self._plans.get(key)
            if plan is None or (isinstance(plan, Plan) and not _identical(plan.arrays, arrays)):
                old, graph = plan, self._recorded(owner, rest, kwargs)
                plan = Plan(graph, operators, arrays) if isinstance(graph, Graph) else graph
                if isinstance(old, Plan) and isinstance(plan, Plan):
                    plan.adopt(old)
                self._plans[key] = plan
                if len(self._plans) > _KEPT_PLANS:
                    self._plans.popitem(last=False)
            self._plans.move_to_end(key)
        return plan

    def _recorded(self, owner: Any, rest: Any, kwargs: Any) -> Graph | str:
        """The graph of a call, or why it has none."""
        forward: Any = self.composite
        if isinstance(self.composite, Operator):
            forward = self.composite.forward
            rest, kwargs = (), {"inputs": rest[0] if rest else kwargs["inputs"]}
        elif owner is not None:
            forward = types.MethodType(self.composite, owner)
        try:
            return Recorder().record(forward, rest, kwargs)
        except Exception as error:  # what JAX, NumPy and others say to a placeholder
            if self._strategy == "parallel":
                note = f"structural_jit: {self._name} has no graph to run in parallel"
                if isinstance(error, SymbolicError):
                    error.add_note(note)
                    raise
                what = f"{type(error).__name__}: {error}"
                raise SymbolicError(f"{note}; while it was recorded: {what}") from error
            return (
                str(error)
                if isinstance(error, SymbolicError)
                else (f"it cannot be called on placeholders ({type(error).__name__}: {error})")
            )

    def _run(self, plan: Plan, leaves: list[Any]) -> Any:
        values: dict[int, Any] = {-1 - index: leaf for index, leaf in enumerate(leaves)}
        if all(kind is not None for kind in plan.kinds) and not plan.grouped:
            with self._lock:
                if not plan.grouped:
                    plan.group()
        parts = plan.parts
        timed = current_options().deadline is not None
        if len(parts) == 1 and parts[0].program is not None and not timed:
            # Nothing but JAX: dispatched and not waited for, as any jitted function.
            self._run_program(parts[0], values)
        elif parts:
            tail = _seconds_to_the_end(parts)
            units = [
                Unit(
                    part.name,
                    functools.partial(self._run_part, plan, part, values),
                    part.after,
                    tail[index],
                )
                for index, part in enumerate(parts)
            ]
            limit = 1 if self._strategy == "sequential" else self._workers
            run_units(units, self._name, limit)
        return _resolved(plan.graph.result, lambda p: p.resolved(values.__getitem__))

    def _run_program(self, part: _Part, values: dict[int, Any]) -> None:
        assert part.program is not None
        given = [p.resolved(values.__getitem__) for p in part.outside]
        results = part.program([node.op for node in part.nodes], given, part.arrays)
        values.update(zip(part.wanted, results, strict=True))

    def _run_part(self, plan: Plan, part: _Part, values: dict[int, Any]) -> None:
        started = time.perf_counter()
        compiled = 0 if part.program is None else part.program.misses
        if part.program is not None:
            self._run_program(part, values)
            jax.block_until_ready([values[i] for i in part.wanted])
        else:
            node = part.nodes[0]
            args, kwargs = _resolved(
                (node.args, node.kwargs), lambda p: p.resolved(values.__getitem__)
            )
            if plan.kinds[node.index] is None:
                plan.kinds[node.index], plan.reasons[node.index] = _kind(node, args, kwargs)
            started = time.perf_counter()
            values[node.index] = result = jax.block_until_ready(_called(node, args, kwargs))
            if plan.kinds[node.index] == "jax":
                # A program would make arrays of JAX of these, and of other types perhaps.
                other = [x for x in jax.tree.leaves(result) if not isinstance(x, jax.Array)]
                if other:
                    plan.reasons[node.index] = f"it returns a {type(other[0]).__name__}"
                    plan.kinds[node.index] = "host"
        # The time of a call that compiles says nothing about the next one.
        if part.program is None or part.program.misses == compiled:
            part.seconds = time.perf_counter() - started

    def explain(self) -> str:
        """The graph of the last call, as text.

        Its nodes with what runs them and why, the levels, the critical path with the times that
        were measured in the last call, and what keeps the rest from being parallel.
        """
        plan = self._last
        if plan is None:
            return f"{self._name}: not called yet; call it once and there is a graph to explain"
        if isinstance(plan, str):
            return f"{self._name}: runs as written, one call after the other, because {plan}"
        return explanation(self._name, plan, self._strategy, self._workers)


def _identical(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(python.is_, one, other))


def _called(node: Node, args: Any, kwargs: Any) -> Any:
    active = ACTIVE.get()
    if active is None or isinstance(node.op, Operator):
        return node.op(*args, **kwargs)
    return supervised(active, node.name, "operator", node.op, *args, **kwargs)


def _kind(node: Node, args: Any, kwargs: Any) -> tuple[str, str]:
    """Whether JAX can trace a node with these arguments, and if not, why."""
    for leaf in jax.tree.leaves((args, kwargs)):
        if not is_array(leaf) and not isinstance(leaf, (bool, int, float, complex)):
            return "host", f"an argument is a {type(leaf).__name__}"
    # The operator is an operand: a trace that changes it changes a copy, and is an error.
    is_tree = not jax.tree_util.all_leaves([node.op])
    try:
        leaves, tree = jax.tree.flatten((node.op if is_tree else None, args, kwargs))
        parts = split(leaves, tree, lambda index: f"{node.name}: leaf {index}")
        call = lambda given: (given[0] if is_tree else node.op)(*given[1], **given[2])  # noqa: E731
        jax.eval_shape(flat_function(call, tree, parts, node.name), *parts.operands)
    except Exception as error:  # whatever it is, the host's run will show it
        return "host", f"JAX cannot trace it ({type(error).__name__})"
    return "jax", "JAX traces it"


def _seconds_to_the_end(parts: list[_Part]) -> list[float]:
    """Of each part: the longest chain of measured times from its beginning to the graph's end."""
    tail = [part.seconds for part in parts]
    for index in reversed(range(len(parts))):
        for before in parts[index].after:
            tail[before] = max(tail[before], parts[before].seconds + tail[index])
    return tail


def structural_jit(
    fn: Any = None,
    *,
    execution_strategy: Strategy = "auto",
    max_workers: int | None = None,
) -> Any:
    """Runs a composite of operators by the graph of what needs what.

    The composite's ``forward`` (or the function) is called once on placeholders, which records the
    operators that it calls; also functions that are its attributes, and arithmetic between results.
    From then on each operator runs when what it needs is there: those of Python on threads, those
    that JAX can trace, as far as they wait for the same host operators, as one compiled program.
    The first call of new shapes runs them one by one and finds out which is which. An operator
    that acts beside its result must be declared ``host = True``: JAX traces a sleep or a write
    without complaint, and would then leave it out. Under ``jax.jit``, ``grad`` or ``vmap`` the
    composite is called as it is written.

    Args:
      fn: a subclass of `Operator`, an operator, or a function that calls operators; without it, a
        decorator.
      execution_strategy: "parallel" makes it an error when there is no graph because the calls
        depend on data; "auto" then runs the composite as written; "sequential" runs one part after
        the other, in the order of the calls.
      max_workers: the most host operators at a time; None for as many as are ready.

    Returns:
      The same, with ``explain()`` (of a class: ``op.forward.explain()``).

    Raises:
      SymbolicError: with "parallel", for a forward that decides by data.
      ValueError: for another strategy.

    >>> import jaxkern.execution as ex
    >>> up, down = ex.operator(str.upper, host=True), ex.operator(str.lower, host=True)
    >>> both = ex.structural_jit(lambda text: {"up": up(text), "down": down(text)})
    >>> both("Jax")
    {'down': 'jax', 'up': 'JAX'}
    >>> print(both.explain().splitlines()[3])
    level 0: upper, lower
    """
    if execution_strategy not in get_args(Strategy):
        raise ValueError(
            f"execution_strategy is {execution_strategy!r}; wanted 'auto', 'parallel' or "
            "'sequential'"
        )
    if max_workers is not None and max_workers < 1:
        raise ValueError(f"max_workers is {max_workers}; wanted a whole number above 0")
    if fn is None:
        return functools.partial(
            structural_jit, execution_strategy=execution_strategy, max_workers=max_workers
        )
    if isinstance(fn, type):
        if not issubclass(fn, Operator):
            raise TypeError(
                f"structural_jit: {fn.__name__} is a class; wanted a subclass of "
                "jaxkern.execution.Operator, an operator, or a function"
            )
        made: Any = Structural(fn.forward, execution_strategy, max_workers)
        made._name = fn.__name__
        fn.forward = made  # type: ignore[method-assign]
        return fn
    if not callable(fn):
        raise TypeError(
            f"structural_jit: got {type(fn).__name__}; wanted an Operator or a function"
        )
    return Structural(fn, execution_strategy, max_workers)
