"""`structural_jit`: a composite of operators, its JAX parts compiled, its host parts on threads."""

from __future__ import annotations

import functools
import threading
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax

from jaxkern.core.arguments import check_integer
from jaxkern.core.compat import is_tracing
from jaxkern.core.failures import describe_exception
from jaxkern.execution.explanation import explanation
from jaxkern.execution.graph import Graph, Recorder, SymbolicError
from jaxkern.execution.operator import Operator, is_array
from jaxkern.execution.schedule import Schedule
from jaxkern.execution.signature import operators_in
from jaxkern.execution.threads import Supervised

Strategy = Literal["auto", "parallel", "sequential"]
_KEPT_SCHEDULES = 64


class Structural(Supervised):
    """A composite that `structural_jit` has made."""

    kind = "graph"

    def __init__(self, fn: Callable[..., Any], strategy: Strategy, workers: int | None) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.composite = fn
        self._strategy, self._workers = strategy, workers
        self._name = getattr(fn, "__name__", None) or type(fn).__name__
        # A composite may call itself, on constants, while it is recorded.
        self._lock = threading.RLock()
        self._schedules: OrderedDict[Any, Schedule | str] = OrderedDict()
        self._last: Schedule | str | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def recorded(self, recorder: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A composite inside another one is part of the same graph."""
        return recorder.expanded(self, args, kwargs)

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call without a look at `execution_options`."""
        if is_tracing() or any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(args)):
            return self.composite(*args, **kwargs)
        owner, rest = self._owner(args)
        leaves = jax.tree.leaves((rest, kwargs))
        self._last = schedule = self._scheduled(owner, rest, kwargs, leaves)
        if isinstance(schedule, str):
            return self.composite(*args, **kwargs)
        limit = 1 if self._strategy == "sequential" else self._workers
        return schedule.run(leaves, self._name, limit)

    def _owner(self, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
        if isinstance(self.composite, Operator):
            return self.composite, args
        if isinstance(self.composite, types.FunctionType) and args:
            first = args[0]
            if isinstance(first, Operator) and getattr(type(first), "forward", None) is self:
                return first, args[1:]
        return None, args

    def _scheduled(self, owner: Any, rest: Any, kwargs: Any, leaves: list[Any]) -> Schedule | str:
        """The schedule of a call, or why it has none."""
        structure = jax.tree.structure(owner)
        operators = operators_in(owner)
        kinds = tuple(
            (isinstance(x, jax.Array), x.shape, x.dtype) if is_array(x) else type(x) for x in leaves
        )
        tree = jax.tree.structure((rest, kwargs))
        key = (structure, tree, kinds, tuple(map(id, operators)))
        with self._lock:
            found = self._schedules.get(key)
            if found is None or (isinstance(found, Schedule) and not found.graph.is_current()):
                graph = self._recorded(owner, rest, kwargs)
                if isinstance(graph, str):
                    found = graph
                elif isinstance(found, Schedule) and found.graph.form() == graph.form():
                    # With other arrays, which its programs take as operands.
                    found.graph = graph
                else:
                    found = Schedule(graph, operators)
                self._schedules[key] = found
                if len(self._schedules) > _KEPT_SCHEDULES:
                    self._schedules.popitem(last=False)
            self._schedules.move_to_end(key)
        return found

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
                what = describe_exception(error)
                raise SymbolicError(f"{note}; while it was recorded: {what}") from error
            return (
                str(error)
                if isinstance(error, SymbolicError)
                else f"it cannot be called on placeholders ({describe_exception(error)})"
            )

    def explain(self) -> str:
        """The graph of the last call, as text.

        Its operators with what runs them and why, the levels, the critical path with the times that
        were measured in the last call, the parts that are not yet timed (as those that the last
        call compiled) and count as 0, and what keeps the rest from being parallel.
        """
        last = self._last
        if last is None:
            return f"{self._name}: not called yet; call it once and there is a graph to explain"
        if isinstance(last, str):
            return f"{self._name}: runs as written, one call after the other, because {last}"
        return explanation(self._name, last, self._strategy, self._workers)


def structural_jit(
    fn: Any = None,
    *,
    execution_strategy: Strategy = "auto",
    max_workers: int | None = None,
) -> Any:
    """Runs a composite of operators by the graph of what needs what.

    The composite's ``forward`` (or the function) is called once on placeholders, which records the
    operators that it calls; also functions that are its attributes, and arithmetic between results.
    Each runs when what it needs is there: those that are declared ``host = True`` on threads, all
    others, as far as they wait for the same host operators, as one compiled program. Arithmetic is
    JAX's where a value of JAX is in it, as in Python. Under ``jax.jit``, ``grad`` or ``vmap`` the
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
      Exception: what JAX says to an operator that it cannot trace, with a note that names it.
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
        max_workers = check_integer("max_workers", max_workers, 1)
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
