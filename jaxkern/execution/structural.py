"""`structural_jit`: a composite of operators, its JAX parts compiled, its host parts on threads."""

from __future__ import annotations

import functools
import threading
import time
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax

from jaxkern.core.arguments import whole_number
from jaxkern.core.compat import is_tracing
from jaxkern.core.failures import described
from jaxkern.execution.explanation import explanation
from jaxkern.execution.graph import Graph, Node, Recorder, SymbolicError
from jaxkern.execution.operator import Operator, is_array
from jaxkern.execution.options import ACTIVE, current_options
from jaxkern.execution.plan import Part, Plan, identical, resolved
from jaxkern.execution.signature import Fixed, checked_call, form, operators_in
from jaxkern.execution.supervision import supervised
from jaxkern.execution.threads import Unit, run_units

Strategy = Literal["auto", "parallel", "sequential"]
_KEPT_PLANS = 64


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
            if plan is None or (isinstance(plan, Plan) and not identical(plan.arrays, arrays)):
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
                what = described(error)
                raise SymbolicError(f"{note}; while it was recorded: {what}") from error
            return (
                str(error)
                if isinstance(error, SymbolicError)
                else f"it cannot be called on placeholders ({described(error)})"
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
            parts[0].seconds = None
            parts[0].untimed = "nothing but JAX, which the last call did not wait for"
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
        return resolved(plan.graph.result, lambda p: p.resolved(values.__getitem__))

    def _run_program(self, part: Part, values: dict[int, Any]) -> None:
        assert part.program is not None
        given = [p.resolved(values.__getitem__) for p in part.outside]
        results = part.program([node.op for node in part.nodes], given, part.arrays)
        values.update(zip(part.wanted, results, strict=True))

    def _run_part(self, plan: Plan, part: Part, values: dict[int, Any]) -> None:
        started = time.perf_counter()
        compiled = 0 if part.program is None else part.program.misses
        if part.program is not None:
            self._run_program(part, values)
            jax.block_until_ready([values[i] for i in part.wanted])
        else:
            node = part.nodes[0]
            args, kwargs = resolved(
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
        if part.program is not None and part.program.misses != compiled:
            part.seconds, part.untimed = None, "the last call compiled it"
        elif part.program is None and plan.kinds[part.nodes[0].index] == "jax":
            part.seconds, part.untimed = None, "run by itself, the last call may have compiled it"
        else:
            part.seconds = time.perf_counter() - started

    def explain(self) -> str:
        """The graph of the last call, as text.

        Its nodes with what runs them and why, the levels, the critical path with the times that
        were measured in the last call, the parts that are not yet timed (as those that the last
        call compiled) and count as 0, and what keeps the rest from being parallel.
        """
        plan = self._last
        if plan is None:
            return f"{self._name}: not called yet; call it once and there is a graph to explain"
        if isinstance(plan, str):
            return f"{self._name}: runs as written, one call after the other, because {plan}"
        return explanation(self._name, plan, self._strategy, self._workers)


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
        places = [i for i, x in enumerate(leaves) if type(form(x)) is not Fixed]

        def call(operands: list[Any]) -> Any:
            for place, operand in zip(places, operands, strict=True):
                leaves[place] = operand
            op, args, kwargs = jax.tree.unflatten(tree, leaves)
            if is_tree:
                return checked_call(type(op).__call__, (op, *args), kwargs, node.name)
            return checked_call(node.op, args, kwargs, node.name)

        jax.eval_shape(call, [leaves[place] for place in places])
    except Exception as error:  # whatever it is, the host's run will show it
        return "host", f"JAX cannot trace it ({type(error).__name__})"
    return "jax", "JAX traces it"


def _seconds_to_the_end(parts: list[Part]) -> list[float]:
    """Of each part: the longest chain of measured times from its beginning to the graph's end.

    What is not yet timed counts as 0.
    """
    seconds = [part.seconds or 0.0 for part in parts]
    tail = list(seconds)
    for index in reversed(range(len(parts))):
        for before in parts[index].after:
            tail[before] = max(tail[before], seconds[before] + tail[index])
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
    if max_workers is not None:
        max_workers = whole_number("max_workers", max_workers, 1)
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
