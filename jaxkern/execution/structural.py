"""`structural_jit`: runs a composite of operators as a graph, recorded on placeholders."""

from __future__ import annotations

import dataclasses
import functools
import operator as python
import time
import types
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax

from jaxkern.core.arguments import check_integer
from jaxkern.core.compat import is_tracing
from jaxkern.core.failures import describe_exception, note
from jaxkern.execution.jit import JitFunction, JITOptions
from jaxkern.execution.operator import Operator, Static, has_tracers, is_array, is_operator, name_of
from jaxkern.execution.options import (
    CONTEXT,
    Supervised,
    Task,
    current_context,
    current_options,
    run_tasks,
)

Strategy = Literal["auto", "parallel", "sequential"]


class SymbolicError(TypeError):
    """``forward`` needs a value while its graph is recorded on placeholders."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """A value in a graph, reached by the keys ``path`` from input ``-1 - source`` or a result."""

    source: int
    path: tuple[Any, ...] = ()


class Placeholder:
    """A value while a graph is recorded; ``_is_jax`` tells whether arithmetic on it is JAX code."""

    def __init__(self, recorder: Recorder, reference: Reference, is_jax: bool) -> None:
        self._recorder, self._reference, self._is_jax = recorder, reference, is_jax

    def __getitem__(self, key: Any) -> Placeholder:
        if type(key) not in (str, int):
            return self._recorder.add_arithmetic(python.getitem, self, key)
        source, path = self._reference.source, (*self._reference.path, key)
        return Placeholder(self._recorder, Reference(source, path), self._is_jax)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # called by isinstance for any class but Placeholder
        raise _symbolic("tests the type of a value")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _symbolic(f"reads the attribute {name!r} of a value")


def _symbolic(action: str) -> SymbolicError:
    return SymbolicError(
        f"forward {action} while its graph is recorded, so the graph depends on data; move that "
        "part into an operator, or set execution_strategy='sequential'"
    )


_REFUSED = (
    *("hash", "contains", "len", "bool", "int", "index", "float", "str", "format", "iter"),
    *("array", "jax_array"),
)
_BINARY = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "divmod"),
    *("lshift", "rshift", "and", "or", "xor"),
)
_OTHER = ("lt", "le", "gt", "ge", "eq", "ne", "neg", "pos", "abs", "invert")


def _define_operators() -> None:
    def refuse(method: str) -> Callable[..., Any]:
        def call(*_: Any, **__: Any) -> Any:
            raise _symbolic(f"calls {method} of a value")

        return call

    def record(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, *other: self._recorder.add_arithmetic(fn, self, *other)

    def reflect(fn: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, other: self._recorder.add_arithmetic(fn, other, self)

    for name in _REFUSED:
        setattr(Placeholder, f"__{name}__", refuse(f"__{name}__"))
    for name in (*_BINARY, *_OTHER):
        fn = divmod if name == "divmod" else getattr(python, f"__{name}__")
        setattr(Placeholder, f"__{name}__", record(fn))
        if name in _BINARY:
            setattr(Placeholder, f"__r{name}__", reflect(fn))


_define_operators()


@dataclasses.dataclass
class Operation:
    """A recorded call of ``op``, whose arguments contain references."""

    index: int
    name: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: True if it runs as Python on the host, False if it is traced and compiled
    host: bool
    reason: str

    @functools.cached_property
    def after(self) -> list[int]:
        """The operations whose results it needs."""
        return sorted(i for i in _sources((self.args, self.kwargs)) if i >= 0)


@dataclasses.dataclass
class Part:
    """A host operation, or the JAX operations that form one program."""

    name: str
    operations: list[Operation]
    after: tuple[int, ...]
    #: the operations whose results other parts or the caller need
    results: tuple[int, ...]
    #: duration in the last call; None if the call did not wait for it
    seconds: float | None = None


class Recorder:
    """Records the operators that a composite calls, instead of running them."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def record(self, forward: Callable[..., Any], leaves: list[Any], tree: Any) -> Any:
        """Call ``forward`` on placeholders; if that fails, restore the operator's attributes."""
        inputs = [
            Placeholder(self, Reference(-1 - i), isinstance(x, jax.Array))
            for i, x in enumerate(leaves)
        ]
        args, kwargs = jax.tree.unflatten(tree, inputs)
        token = CONTEXT.set(dataclasses.replace(current_context(), recorder=self))
        attributes = getattr(getattr(forward, "__self__", None), "__dict__", {})
        before = dict(attributes)
        try:
            return _to_references(forward(*args, **kwargs))
        except BaseException:
            attributes.clear()
            attributes.update(before)
            raise
        finally:
            CONTEXT.reset(token)

    def add_call(self, op: Any, args: Any, kwargs: Any) -> Any:
        """Record a call of an operator or another supervised function."""
        op = op.graph_step if isinstance(op, JitFunction) else op
        if isinstance(op, StructuralOp) or (isinstance(op, Operator) and contains_host(op)):
            reason = "contains host operators"
        else:
            reason = f"host = {getattr(op, 'host', False) is True}"
        return self._add(op, args, kwargs, reason != "host = False", reason)

    def add_arithmetic(self, fn: Any, *args: Any) -> Placeholder:
        """Record a Python operator; it is JAX code if one of its operands is a value of JAX."""
        is_jax = any(
            p._is_jax if type(p) is Placeholder else isinstance(p, jax.Array) for p in args
        )
        reason = f"arithmetic of {'JAX' if is_jax else 'host'} values"
        return self._add(fn, args, {}, not is_jax, reason)

    def _add(self, op: Any, args: Any, kwargs: Any, host: bool, reason: str) -> Placeholder:
        name, index = name_of(op), len(self.operations)
        count = sum(other.name.split("#")[0] == name for other in self.operations)
        name = f"{name}#{count + 1}" if count else name
        args, kwargs = _to_references((args, kwargs))
        self.operations.append(Operation(index, name, op, args, kwargs, host, reason))
        return Placeholder(self, Reference(index), not host)


def contains_host(op: Operator) -> bool:
    """Return True for an operator with host operators, or maps of them, among its attributes."""
    parts = jax.tree.leaves(list(vars(op).values()), is_leaf=is_operator)
    return any(
        getattr(part, "host", False) is True or (is_operator(part) and contains_host(part))
        for part in parts
    )


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
        before = [hosts[i] | {i} if operations[i].host else hosts[i] for i in operation.after]
        hosts.append(frozenset[int]().union(*before))
        key = operation.index if operation.host else hosts[-1]
        groups.setdefault(key, []).append(operation)

    def position(group: list[Operation]) -> tuple[int, int, int]:
        # Host operations in the order of the calls; a program after the last one that it needs.
        before = hosts[group[0].index]
        return (
            (group[0].index, 0, 0) if group[0].host else (max(before, default=-1), 1, len(before))
        )

    ordered = sorted(groups.values(), key=position)
    part_of = {operation.index: n for n, group in enumerate(ordered) for operation in group}
    used = _sources(result)
    parts = []
    for number, group in enumerate(ordered):
        name = " + ".join(operation.name for operation in group)
        after = {part_of[i] for operation in group for i in operation.after} - {number}
        outside = (op.after for op in operations if part_of[op.index] != number)
        results = {operation.index for operation in group} & used.union(*outside)
        parts.append(Part(name, group, tuple(sorted(after)), tuple(sorted(results))))
    return parts


def _program(ops: list[Any], calls: list[Any], layout: Any) -> list[Any]:
    """Call the operations of a part; `JitFunction` compiles this for each structure of a part."""
    names, results = layout
    values: dict[int, Any] = {}
    for (index, name), op, call in zip(names, ops, calls, strict=True):
        args, kwargs = _resolve(call, values)
        try:
            values[index] = op(*args, **kwargs)
        except Exception as error:
            text = "raised by {}, which JAX compiles; for Python code, set host = True"
            note(error, text, name)
            raise
    return [values[i] for i in results]


class StructuralOp(Supervised):
    """A composite returned by `structural_jit`."""

    enforces_deadline = True

    def __init__(
        self, fn: Callable[..., Any], name: str, strategy: Strategy, workers: int | None
    ) -> None:
        functools.update_wrapper(self, fn, updated=())
        self.composite = fn
        self._name, self._strategy = name, strategy
        self._workers = 1 if strategy == "sequential" else workers
        self._program = JitFunction(_program, JITOptions(), name)
        # The reasons why calls have no graph, by the structure of their arguments.
        self._failures: dict[Any, str] = {}
        self._last: list[Part] | str = "it has not been called yet"

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the composite without regard to `execution_options`."""
        if is_tracing() or has_tracers((args, kwargs)):
            return self.composite(*args, **kwargs)
        forward, rest = self.composite, args
        if isinstance(forward, Operator):
            forward, rest = forward.forward, ()
            kwargs = {"inputs": args[0] if args else kwargs["inputs"]}
        elif args and isinstance(args[0], Operator) and type(args[0]).forward is self:
            forward, rest = types.MethodType(forward, args[0]), args[1:]
        leaves, tree = jax.tree.flatten((rest, kwargs))
        recorder = Recorder()
        if tree not in self._failures:
            try:
                result = recorder.record(forward, leaves, tree)
            except Exception as error:  # JAX, NumPy and others raise their own errors
                self._failures[tree] = self._failure(error)
        if tree in self._failures:
            self._last = self._failures[tree]
            return forward(*rest, **kwargs)
        self._last = parts = _make_parts(recorder.operations, result)
        values = {-1 - index: value for index, value in enumerate(leaves)}
        run = functools.partial(self._run_part, values)
        if len(parts) == 1 and not parts[0].operations[0].host and not current_options().deadline:
            run(parts[0])  # asynchronous, like any jitted function
        else:
            tasks = [Task(p.name, functools.partial(run, p, True), p.after) for p in parts]
            run_tasks(tasks, self._name, self._workers)
        return _resolve(result, values)

    def _failure(self, error: Exception) -> str:
        """Return why a composite has no graph; with the strategy "parallel", raise the error."""
        reason = str(error) if isinstance(error, SymbolicError) else describe_exception(error)
        if self._strategy == "parallel":
            raise SymbolicError(f"structural_jit: {self._name} has no graph: {reason}") from error
        return f"runs as written, one call after another: {reason}"

    def _run_part(self, values: dict[int, Any], part: Part, wait: bool = False) -> None:
        """Add the results of a part to the values; with ``wait``, record the time."""
        started = time.perf_counter()
        operation = part.operations[0]
        if operation.host:
            args, kwargs = _resolve((operation.args, operation.kwargs), values)
            values[operation.index] = operation.op(*args, **kwargs)
        else:
            results = self._call_program(values, part)
            values.update(zip(part.results, results, strict=True))
        if wait:
            jax.block_until_ready([values[i] for i in part.results])
            part.seconds = time.perf_counter() - started

    def _call_program(self, values: dict[int, Any], part: Part) -> list[Any]:
        members = {op.index for op in part.operations}

        def operand(leaf: Any) -> Any:
            if type(leaf) is Reference and leaf.source not in members:
                return _resolve(leaf, values)
            return leaf if is_array(leaf) else Static(leaf)

        ops = [op.op for op in part.operations]
        calls = [jax.tree.map(operand, (op.args, op.kwargs)) for op in part.operations]
        names = [(op.index, op.name) for op in part.operations]
        layout = Static((tuple(names), part.results))
        results: list[Any] = self._program.call(ops, calls, layout)
        return results

    def explain(self) -> str:
        """Describe the parts of the last call, its critical path, and limits of parallelism."""
        parts = self._last
        if isinstance(parts, str):
            return f"{self._name}: {parts}"
        count = sum(len(part.operations) for part in parts)
        lines = [f"{self._name}: {count} operators in {len(parts)} parts, {self._strategy!r}"]
        for number, part in enumerate(parts):
            kind = "host" if part.operations[0].host else "jax "
            needs = ", ".join(map(str, part.after)) or "no part"
            reasons = ", ".join(dict.fromkeys(op.reason for op in part.operations))
            lines.append(f"  {number}: {kind}  {part.name}, needs {needs} ({reasons})")
        path = critical_path(parts)
        lines.append(
            f"critical path: {_total(path) * 1e3:.3f} ms of {_total(parts) * 1e3:.3f} ms: "
            + " -> ".join(f"{part.name} {_milliseconds(part)}" for part in path)
        )
        if self._workers is not None:
            lines.append(f"not parallel: at most {self._workers} parts at a time")
        if not current_options().use_parallel:
            lines.append("not parallel: execution_options(use_parallel=False)")
        return "\n".join(lines)


def _milliseconds(part: Part) -> str:
    return "not timed" if part.seconds is None else f"{part.seconds * 1e3:.3f} ms"


def _total(parts: list[Part]) -> float:
    return sum(part.seconds or 0.0 for part in parts)


def critical_path(parts: list[Part]) -> list[Part]:
    """Return the chain of parts with the largest total time; each part comes after its needs."""
    chains: list[list[Part]] = []
    for part in parts:
        before = max((chains[i] for i in part.after), key=_total, default=[])
        chains.append([*before, part])
    return max(chains, key=_total, default=[])


def structural_jit(
    fn: Any = None, *, execution_strategy: Strategy = "auto", max_workers: int | None = None
) -> Any:
    """Run a composite of operators in parallel, by the graph of their dependencies.

    Args:
      fn: a subclass of `Operator`, an operator, or a function that calls operators; None returns a
        decorator.
      execution_strategy: "parallel" raises if there is no graph because the calls depend on data;
        "auto" then runs the composite as written; "sequential" runs one part at a time, in order.
      max_workers: maximum number of concurrent parts.

    Returns:
      The same object, with ``explain()`` (``op.forward.explain()`` for a class).

    Raises:
      SymbolicError: with "parallel", if ``forward`` depends on data.
      ValueError: for an unknown strategy.

    >>> import jaxkern.execution as ex
    >>> up, down = ex.operator(str.upper, host=True), ex.operator(str.lower, host=True)
    >>> both = ex.structural_jit(lambda text: {"up": up(text), "down": down(text)})
    >>> both("Jax")
    {'down': 'jax', 'up': 'JAX'}
    >>> print(both.explain().splitlines()[1])
      0: host  upper, needs no part (host = True)
    """
    if execution_strategy not in get_args(Strategy):
        raise ValueError(
            f"execution_strategy: expected one of {get_args(Strategy)}, got {execution_strategy!r}"
        )
    if max_workers is not None:
        max_workers = check_integer("max_workers", max_workers, 1)
    if fn is None:
        return functools.partial(
            structural_jit, execution_strategy=execution_strategy, max_workers=max_workers
        )
    name = getattr(fn, "__name__", None) or type(fn).__name__
    if not callable(fn) or (isinstance(fn, type) and not issubclass(fn, Operator)):
        raise TypeError(
            f"structural_jit: expected an Operator, a subclass of it or a function, got {name}"
        )
    if isinstance(fn, type):
        fn.forward = StructuralOp(fn.forward, name, execution_strategy, max_workers)  # type: ignore
        return fn
    return StructuralOp(fn, name, execution_strategy, max_workers)
