"""`structural_jit`: runs a composite of operators as a graph, recorded on placeholders."""

from __future__ import annotations

import dataclasses
import functools
import operator as python
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax

from jaxkern.core.compat import is_tracing
from jaxkern.core.failures import describe_exception, note
from jaxkern.execution.jit import JitFunction, JITOptions
from jaxkern.execution.operator import Operator, Static, is_array, is_operator, name_of
from jaxkern.execution.options import RECORDER, Supervised, Task, current_options, run_tasks

Strategy = Literal["auto", "parallel", "sequential"]


class SymbolicError(TypeError):
    """``forward`` needs a value while its graph is recorded on placeholders."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """A value in a graph, reached by the keys ``path`` from input ``-1 - source`` or a result."""

    source: int
    path: tuple[Any, ...] = ()


class Placeholder:
    """A value while a graph is recorded; it can be indexed and passed to operators only."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference

    def __getitem__(self, key: Any) -> Placeholder:
        if type(key) not in (str, int):
            raise _symbolic(f"indexes a value by a {type(key).__name__}")
        return Placeholder(Reference(self._reference.source, (*self._reference.path, key)))

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # called by isinstance for any class but Placeholder
        raise _symbolic("tests the type of a value")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _symbolic(f"reads the attribute {name!r} of a value")


def _symbolic(action: str) -> SymbolicError:
    return SymbolicError(
        f"forward {action} while its graph is recorded; move that part into an operator, or set "
        "execution_strategy='sequential'"
    )


def _refuse(method: str) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise _symbolic(f"calls {method} of a value")

    return call


# Methods that would work on a placeholder without its value. Python refuses arithmetic.
for _method in ("bool", "eq", "ne", "hash", "str", "format", "iter", "contains", "array"):
    setattr(Placeholder, f"__{_method}__", _refuse(f"__{_method}__"))


class Operation(NamedTuple):
    """A recorded call of ``op``, whose arguments contain references."""

    number: int
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: True if it runs as Python on the host, False if it is traced and compiled
    host: bool
    #: the operations whose results it needs
    needs: set[int]


class Part(NamedTuple):
    """A host operation, or the JAX operations that form one program."""

    name: str
    operations: list[Operation]
    after: tuple[int, ...]
    #: the operations whose results other parts or the caller need
    results: tuple[int, ...]

    @property
    def host(self) -> bool:
        return self.operations[0].host


class Recorder:
    """Records the operators that a composite calls, instead of running them."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def record(self, composite: Callable[..., Any], leaves: list[Any], tree: Any) -> Any:
        """Call on operators and placeholders; if that fails, restore the operators' attributes."""
        inputs = [
            leaf if is_operator(leaf) else Placeholder(Reference(-1 - i))
            for i, leaf in enumerate(leaves)
        ]
        args, kwargs = jax.tree.unflatten(tree, inputs)
        before = [(vars(leaf), dict(vars(leaf))) for leaf in leaves if is_operator(leaf)]
        token = RECORDER.set(self)
        try:
            return _to_references(composite(*args, **kwargs))
        except BaseException:
            for attributes, values in before:
                attributes.clear()
                attributes.update(values)
            raise
        finally:
            RECORDER.reset(token)

    def add_call(self, op: Any, args: Any, kwargs: Any) -> Placeholder:
        """Record a call of an operator or another supervised function."""
        op = op.graph_step if isinstance(op, JitFunction) else op
        number, (args, kwargs) = len(self.operations), _to_references((args, kwargs))
        needs = {i for i in _sources((args, kwargs)) if i >= 0}
        self.operations.append(Operation(number, op, args, kwargs, runs_on_host(op), needs))
        return Placeholder(Reference(number))


def runs_on_host(op: Any) -> bool:
    """Return True for host operators, graphs, and operators that have such attributes."""
    if isinstance(op, StructuralOp) or getattr(op, "host", False) is True:
        return True
    attributes = list(vars(op).values()) if is_operator(op) else []
    return any(map(runs_on_host, jax.tree.leaves(attributes, is_leaf=is_operator)))


def _to_references(tree: Any) -> Any:
    return jax.tree.map(lambda x: x._reference if type(x) is Placeholder else x, tree)


def _sources(tree: Any) -> set[int]:
    return {leaf.source for leaf in jax.tree.leaves(tree) if type(leaf) is Reference}


def _resolve(tree: Any, values: dict[int, Any]) -> Any:
    """Replace references in a tree by values, where these are known."""

    def value(leaf: Any) -> Any:
        if type(leaf) is not Reference or leaf.source not in values:
            return leaf
        return functools.reduce(python.getitem, leaf.path, values[leaf.source])

    return jax.tree.map(value, tree)


def _make_parts(operations: list[Operation], result: Any) -> list[Part]:
    """Return one part per host operation, and one for others with the same host predecessors."""
    # No path between two operations of such a group passes through a host operation, and they
    # become ready at the same time.
    hosts: list[frozenset[int]] = []
    groups: dict[Any, list[Operation]] = {}
    for operation in operations:
        before = [hosts[i] | {i} if operations[i].host else hosts[i] for i in operation.needs]
        hosts.append(frozenset[int]().union(*before))
        groups.setdefault(operation.number if operation.host else hosts[-1], []).append(operation)
    # Each part after the parts that it needs.
    ordered = sorted(
        groups.values(), key=lambda group: (len(hosts[group[0].number]), group[0].number)
    )
    part_of = {operation.number: n for n, group in enumerate(ordered) for operation in group}
    used = _sources(result).union(
        *({i for i in op.needs if part_of[i] != part_of[op.number]} for op in operations)
    )
    parts = []
    for number, group in enumerate(ordered):
        after = {part_of[i] for operation in group for i in operation.needs} - {number}
        results = tuple(operation.number for operation in group if operation.number in used)
        name = " + ".join(name_of(operation.op) for operation in group)
        parts.append(Part(name, group, tuple(sorted(after)), results))
    return parts


def _program(ops: list[Any], calls: list[Any], layout: Any) -> list[Any]:
    """Call the operations of a part; `JitFunction` compiles this for each structure of a part."""
    indices, results = layout
    values: dict[int, Any] = {}
    for index, op, call in zip(indices, ops, calls, strict=True):
        args, kwargs = _resolve(call, values)
        try:
            values[index] = op(*args, **kwargs)
        except Exception as error:
            text = "raised by {}, which JAX compiles; for Python code, set host = True"
            note(error, text, name_of(op))
            raise
    return [values[i] for i in results]


def _forward(op: Operator, inputs: Any) -> Any:
    return op.forward(inputs=inputs)


class StructuralOp(Supervised):
    """A composite returned by `structural_jit`."""

    enforces_deadline = True

    def __init__(self, fn: Callable[..., Any], name: str, strategy: Strategy) -> None:
        functools.update_wrapper(self, fn, updated=())
        self._composite: Callable[..., Any] = _forward if isinstance(fn, Operator) else fn
        self._first: tuple[Any, ...] = (fn,) if isinstance(fn, Operator) else ()
        self._name, self._strategy = name, strategy
        self._program = JitFunction(_program, JITOptions(), name)
        # The reasons why calls have no graph, by the structure of their arguments.
        self._failures: dict[Any, str] = {}
        self._last: list[Part] | str = "it has not been called yet"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the composite without regard to `execution_options`."""
        args = (*self._first, *args)
        if is_tracing():
            return self._composite(*args, **kwargs)
        leaves, tree = jax.tree.flatten((args, kwargs), is_leaf=is_operator)
        recorder, reason = Recorder(), self._failures.get(tree)
        if self._strategy == "sequential" or not current_options().use_parallel:
            reason = "parallel execution is disabled"
        if reason is None:
            try:
                result = recorder.record(self._composite, leaves, tree)
            except Exception as error:  # JAX, NumPy and others raise their own errors
                reason = describe_exception(error)
                if self._strategy == "parallel":
                    raise SymbolicError(f"{self._name} has no graph: {reason}") from error
                self._failures[tree] = reason
        if reason is not None:
            self._last = f"runs as written, one call after another: {reason}"
            return self._composite(*args, **kwargs)
        self._last = parts = _make_parts(recorder.operations, result)
        values = {-1 - index: value for index, value in enumerate(leaves)}
        if len(parts) == 1 and not parts[0].host and not current_options().deadline:
            self._run_part(values, parts[0])  # asynchronous, like any jitted function
        else:
            run = functools.partial(self._run_part, values, wait=True)
            tasks = [Task(part.name, functools.partial(run, part), part.after) for part in parts]
            run_tasks(tasks, self._name)
        return _resolve(result, values)

    def _run_part(self, values: dict[int, Any], part: Part, wait: bool = False) -> None:
        """Add the results of a part to the values."""
        if part.host:
            (operation,) = part.operations
            args, kwargs = _resolve((operation.args, operation.kwargs), values)
            values[operation.number] = operation.op(*args, **kwargs)
        else:

            def operand(leaf: Any) -> Any:
                # A reference to a result of the part itself remains, and is static.
                is_static = type(leaf) is not Reference and not is_array(leaf)
                return Static(leaf) if is_static else _resolve(leaf, values)

            calls = jax.tree.map(operand, [(op.args, op.kwargs) for op in part.operations])
            layout = Static((tuple(op.number for op in part.operations), part.results))
            results = self._program.call([op.op for op in part.operations], calls, layout)
            values.update(zip(part.results, results, strict=True))
        if wait:
            jax.block_until_ready([values[i] for i in part.results])

    def explain(self) -> str:
        """Describe the parts of the last call, or why it had none."""
        parts = self._last
        if isinstance(parts, str):
            return f"{self._name}: {parts}"
        count = sum(len(part.operations) for part in parts)
        lines = [f"{self._name}: {count} operators in {len(parts)} parts"]
        for number, part in enumerate(parts):
            needs = ", ".join(map(str, part.after)) or "no part"
            lines.append(
                f"  {number}: {'host' if part.host else 'jax '}  {part.name}, needs {needs}"
            )
        return "\n".join(lines)


def structural_jit(fn: Any = None, *, execution_strategy: Strategy = "auto") -> Any:
    """Run a composite of operators in parallel, by the graph of their dependencies.

    Args:
      fn: a subclass of `Operator`, an operator, or a function that calls operators; None returns a
        decorator.
      execution_strategy: "parallel" raises `SymbolicError` if there is no graph because the calls
        depend on data; "auto" then runs the composite as written, as "sequential" always does.

    Returns:
      The same object, with ``explain()`` (``op.forward.explain()`` for a class).

    >>> import jaxkern.execution as ex
    >>> up, down = ex.operator(str.upper, host=True), ex.operator(str.lower, host=True)
    >>> both = ex.structural_jit(lambda text: {"up": up(text), "down": down(text)})
    >>> both("Jax")
    {'down': 'jax', 'up': 'JAX'}
    >>> print(both.explain().splitlines()[1])
      0: host  upper, needs no part
    """
    if execution_strategy not in get_args(Strategy):
        raise ValueError(
            f"execution_strategy: expected one of {get_args(Strategy)}, got {execution_strategy!r}"
        )
    if fn is None:
        return functools.partial(structural_jit, execution_strategy=execution_strategy)
    name = getattr(fn, "__name__", None) or type(fn).__name__
    if not callable(fn) or (isinstance(fn, type) and not issubclass(fn, Operator)):
        raise TypeError(
            f"structural_jit: expected an Operator, a subclass of it or a function, got {name}"
        )
    if isinstance(fn, type):
        fn.forward = StructuralOp(fn.forward, name, execution_strategy)  # type: ignore
        return fn
    return StructuralOp(fn, name, execution_strategy)
