"""Counts of traces and compilations per function, and the argument that caused each."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.monitoring

from jaxkern.core import compat

_TRACED = "/jax/core/compile/jaxpr_trace_duration"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_EXPLAIN, _LOG = _OPTIONS = ("jax_explain_cache_misses", "jax_log_compiles")
_MISS, _COMPILING = "TRACING CACHE MISS", "Compiling "
# Beginnings of the records that these options cause; other records of the same loggers pass.
_LOGGED = {
    _MISS: _EXPLAIN,
    _COMPILING: _LOG,
    "Finished ": _LOG,
    "Persistent compilation cache hit": _LOG,
    "PERSISTENT COMPILATION CACHE MISS": _EXPLAIN,
    "Writing ": _EXPLAIN,
    "Not writing persistent cache": _EXPLAIN,
}


@dataclass(frozen=True)
class Change:
    """A reason why a function was traced or compiled again.

    Attributes:
      argument: such as ``"batch['image']"``; empty if no argument changed.
      kind: ``"shape"``, ``"dtype"``, ``"weak type"``, ``"sharding"``, ``"static value"``,
        ``"structure"``, ``"function"`` (another object of the same definition) or ``"context"``
        (an option of JAX, a mesh, `jaxkern.backend`, or cleared caches).
      before, now: the two values as text.

    Example:
      >>> from jaxkern import performance
      >>> print(performance.Change("batch['image']", "shape", "(8,)", "(9,)"))
      batch['image']: shape (8,) -> (9,)
    """

    argument: str
    kind: str
    before: str
    now: str

    def __str__(self) -> str:
        if self.kind == "function":
            return "another function object of the same definition: define and jit it once"
        if self.kind == "context":
            return "no argument: an option, mesh or backend changed, or JAX's caches were cleared"
        return f"{self.argument or 'arguments'}: {self.kind} {self.before} -> {self.now}"


_CONTEXT, _FUNCTION = Change("", "context", "", ""), Change("", "function", "", "")


@dataclass
class FunctionCompiles:
    """Traces and compilations of one function while it was watched.

    Attributes:
      name, location: name of the Python function, and ``file:line``; empty for those of JAX itself.
      traces, compiles: number of times that JAX traced it, and requested its compilation from XLA.
      from_cache: number of compilations that the persistent cache served.
      trace_seconds, lowering_seconds, compile_seconds: total times; tracing includes nested traces.
      changes: for each trace or compilation after the first, the differences from the previous one.

    Example:
      >>> from jaxkern import performance
      >>> step = performance.FunctionCompiles("step", traces=3, compiles=3, from_cache=2)
      >>> step.compiles - step.from_cache  # compiled by XLA
      1
    """

    name: str
    location: str = ""
    traces: int = 0
    compiles: int = 0
    from_cache: int = 0
    trace_seconds: float = 0.0
    lowering_seconds: float = 0.0
    compile_seconds: float = 0.0
    changes: list[tuple[Change, ...]] = field(default_factory=list)
    _function: Any = None
    _arguments: dict[Any, Any] | None = None
    _placement: str | None = None
    _traced_since_compile: bool = False

    def __str__(self) -> str:
        seconds = self.trace_seconds + self.lowering_seconds + self.compile_seconds
        where = f" ({self.location})" if self.location else ""
        cached = f", {self.from_cache} from the persistent cache" if self.from_cache else ""
        lines = [
            f"{self.name}{where}: traced {self.traces}x, compiled {self.compiles}x{cached}, "
            f"{seconds:.3f} s"
        ]
        lines += ["  again: " + "; ".join(map(str, change)) for change in self.changes]
        return "\n".join(lines)


class CompileWatch:
    """The counts of `watch_compiles`; they can be read before its context ends.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxkern import performance
      >>> triple = jax.jit(lambda x: 3 * x)
      >>> with performance.watch_compiles() as watch:
      ...     _ = triple(jnp.ones(3)), triple(jnp.ones(3))
      >>> watch[triple].traces, watch[triple].changes
      (1, [])
    """

    def __init__(self) -> None:
        #: in the order of first occurrence
        self.functions: list[FunctionCompiles] = []

    @property
    def traces(self) -> int:
        """Number of traces of all functions."""
        return sum(f.traces for f in self.functions)

    @property
    def compiles(self) -> int:
        """Number of compilations of all functions, including JAX's own small ones."""
        return sum(f.compiles for f in self.functions)

    @property
    def seconds(self) -> float:
        """Time of lowering and compiling, and the longest tracing time of one function."""
        traced = max((f.trace_seconds for f in self.functions), default=0.0)
        return traced + sum(f.lowering_seconds + f.compile_seconds for f in self.functions)

    def __getitem__(self, function: str | Callable[..., Any]) -> FunctionCompiles:
        """Return the counts of a function or a name; KeyError if several have that name."""
        if isinstance(function, str):
            named = [f for f in self.functions if f.name == function]
            if len(named) > 1:
                locations = ", ".join(f.location or "JAX" for f in named)
                raise KeyError(f"{function!r} names functions at {locations}; pass the function")
            return named[0] if named else FunctionCompiles(function)
        plain = inspect.unwrap(function)
        while isinstance(plain, functools.partial):
            plain = inspect.unwrap(plain.func)
        name = getattr(plain, "__name__", compat.UNNAMED)
        code = getattr(plain, "__code__", None)
        if code is None:
            return self[name]
        location = f"{code.co_filename}:{code.co_firstlineno}"
        # If JAX's log is disabled (logging.disable), functions are known by name only.
        located = {f.location: f for f in reversed(self.functions) if f.name == name}
        return located.get(location) or located.get("") or FunctionCompiles(name, location)

    def __str__(self) -> str:
        rows = sorted(self.functions, key=lambda f: -(f.lowering_seconds + f.compile_seconds))
        head = f"{self.traces} traces, {self.compiles} compilations"
        return "\n".join([head, *map(str, rows)])

    def _entry(self, name: str, location: str | None) -> FunctionCompiles:
        """Find or add a function; the newest one of that name if the location is unknown."""
        for f in reversed(self.functions):
            if f.name == name and (location is None or f.location == location):
                return f
        self.functions.append(FunctionCompiles(name, location or ""))
        return self.functions[-1]

    def _add_trace(self, call: compat.TracedCall) -> None:
        f = self._entry(call.name, call.location)
        f.traces += 1
        f._traced_since_compile = True
        earlier = call.earlier if f._arguments is None else [f._arguments]
        if earlier:
            same = f._function is None or f._function is call.function
            changes = min((_differences(call, before) for before in earlier), key=len)
            f.changes.append(tuple(changes) or (_CONTEXT if same else _FUNCTION,))
        f._function, f._arguments = call.function, call.arguments

    def _start_compile(self, name: str, location: str | None, placement: str) -> None:
        f = self._entry(name, location)
        if f._placement not in (None, placement):
            changes = (Change("", "sharding", f._placement or "", placement),)
            if not f._traced_since_compile:
                f.changes.append(changes)
            elif f.changes and f.changes[-1] == (_CONTEXT,):  # `execution.jit` traces again
                f.changes[-1] = changes
        f._placement, f._traced_since_compile = placement, False


class _ThreadState(threading.local):
    """Traces and compilations in progress in one thread."""

    def __init__(self) -> None:
        self.pending: list[compat.TracedCall] = []
        self.locations: dict[str, str] = {}
        self.cached = False


class _Listener(logging.Filter):
    """Listener to JAX's events and log records, installed while there are watches."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.watches: list[CompileWatch] = []
        self.thread = _ThreadState()
        # What users want to see: options of the thread that opened the first watch, and loggers.
        self.options: dict[str, bool] = {}
        self.enabled: dict[str, bool] = {}
        self.undo = contextlib.ExitStack()

    def open(self, watch: CompileWatch) -> None:
        with self.lock:
            self.watches.append(watch)
            if len(self.watches) == 1:
                self.thread = _ThreadState()
                self.install()

    def install(self) -> None:
        jax.monitoring.register_event_duration_secs_listener(self.on_duration)
        self.undo.callback(jax.monitoring.unregister_event_duration_listener, self.on_duration)
        jax.monitoring.register_event_listener(self.on_event)
        self.undo.callback(jax.monitoring.unregister_event_listener, self.on_event)
        self.options = _read_options()
        # A context such as jax.log_compiles() applies to one thread; a new thread has none.
        with ThreadPoolExecutor(1) as pool:
            for option, value in pool.submit(_read_options).result().items():
                self.undo.callback(jax.config.update, option, value)
                jax.config.update(option, True)
        for name in compat.COMPILE_LOGGERS:
            logger = logging.getLogger(name)
            self.undo.callback(logger.setLevel, logger.level)
            self.enabled[name] = logger.isEnabledFor(logging.WARNING)
            if not self.enabled[name]:
                logger.setLevel(logging.WARNING)
            logger.addFilter(self)
            self.undo.callback(logger.removeFilter, self)

    def close(self, watch: CompileWatch) -> None:
        with self.lock:
            self.watches = [w for w in self.watches if w is not watch]
            if not self.watches:
                self.undo.close()

    def on_event(self, event: str, **_: Any) -> None:
        if event == _CACHE_HIT:
            self.thread.cached = True

    def on_duration(self, event: str, duration_secs: float, **about: Any) -> None:
        if event not in (_TRACED, _LOWERED, _COMPILED):
            return
        name = _plain(str(about.get("fun_name", "unknown")))
        state = self.thread
        with self.lock:
            call = self.finish_trace(name) if event == _TRACED else None
            if event == _TRACED:
                state.locations[name] = "" if call is None else call.location
            for watch in self.watches:
                f = watch._entry(name, state.locations.get(name))
                if event == _TRACED:
                    f.trace_seconds += duration_secs
                    f.traces += call is None  # without a log record it was not counted
                    f._traced_since_compile = True
                elif event == _LOWERED:
                    f.lowering_seconds += duration_secs
                else:
                    f.compiles += 1
                    f.from_cache += state.cached
                    f.compile_seconds += duration_secs
            if event == _COMPILED:
                state.cached = False

    def finish_trace(self, name: str) -> compat.TracedCall | None:
        """Return the call whose trace ended; traces that started after it have failed."""
        pending = self.thread.pending
        for index in reversed(range(len(pending))):
            if pending[index].name == name:
                call = pending[index]
                del pending[index:]
                return call
        return None

    def filter(self, record: logging.LogRecord) -> bool:
        text, args = str(record.msg), record.args
        if text.startswith(_MISS):
            call = compat.traced_call()
            if call is not None:
                self.thread.pending.append(call)
                with self.lock:
                    for watch in self.watches:
                        watch._add_trace(_with_fixed_arguments(call))
        elif text.startswith(_COMPILING) and isinstance(args, tuple) and len(args) >= 3:
            name = _plain(str(args[0]))
            with self.lock:
                for watch in self.watches:
                    watch._start_compile(name, self.thread.locations.get(name), str(args[2]))
        shown = (self.options[option] for head, option in _LOGGED.items() if text.startswith(head))
        return next(shown, True) and self.enabled[record.name]


_listener = _Listener()


@contextlib.contextmanager
def watch_compiles() -> Iterator[CompileWatch]:
    """Count traces and compilations of the entire process, in a context.

    For each trace of a function after the first it records what changed since the previous one.
    Contexts can be nested. Within the context only traces and compilations become slower.

    Yields:
      A `CompileWatch`: ``watch[fn].compiles``, ``watch[fn].changes``, ``print(watch)``.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxkern import performance
      >>> double = jax.jit(lambda x: 2 * x)
      >>> with performance.watch_compiles() as watch:
      ...     _ = double(jnp.ones(3)), double(jnp.zeros(3)), double(jnp.ones(4))
      >>> watch[double].compiles, str(watch[double].changes[0][0])
      (2, 'x: shape (3,) -> (4,)')
    """
    watch = CompileWatch()
    _listener.open(watch)
    try:
        yield watch
    finally:
        _listener.close(watch)


def _read_options() -> dict[str, bool]:
    return {option: bool(getattr(jax.config, option)) for option in _OPTIONS}


def _with_fixed_arguments(call: compat.TracedCall) -> compat.TracedCall:
    """Return the call of the user's function if `execution.jit` bound some of its arguments."""
    fixed = getattr(call.function, "fixed_arguments", None)
    if fixed is None:
        return call
    return call._replace(
        function=call.function.target,
        arguments={**call.arguments, **fixed},
        earlier=[{**arguments, **fixed} for arguments in call.earlier],
    )


def _plain(name: str) -> str:
    """Return ``f`` for XLA's module name ``jit(f)``."""
    return name[4:-1] if name.startswith("jit(") and name.endswith(")") else name


def _differences(call: compat.TracedCall, before: dict[Any, Any]) -> list[Change]:
    now = call.arguments
    changes = []
    for path in now | before:
        difference = _difference(before.get(path, _ABSENT), now.get(path, _ABSENT))
        if difference is not None:
            changes.append(Change(_argument_name(call.function, path), *difference))
    return changes


class _Absent:
    def __repr__(self) -> str:
        return "absent"


_ABSENT = _Absent()


def _difference(old: Any, new: Any) -> tuple[str, str, str] | None:
    """Return the kind of difference and both values as text; None for equal arguments."""
    arrays = [isinstance(x, jax.core.AbstractValue) for x in (old, new)]
    if all(arrays):
        for attribute in ("shape", "dtype", "weak_type", "sharding"):
            before, now = getattr(old, attribute, None), getattr(new, attribute, None)
            if before != now:
                return attribute.replace("_", " "), str(before), str(now)
    if type(old) is type(new) and old == new:
        return None
    kind = "structure" if any(arrays) or old is _ABSENT or new is _ABSENT else "static value"
    before, now = (str(x) if a else repr(x) for x, a in zip((old, new), arrays, strict=True))
    return kind, before, now


def _argument_name(function: Any, path: tuple[Any, ...]) -> str:
    """Return ``batch['image']`` for a path in ``(args, kwargs)``, using the parameters' names."""
    if len(path) < 2:
        return ""
    key, rest = path[1], jax.tree_util.keystr(path[2:])
    if path[0].idx == 1:
        return f"{key.key}{rest}"
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return f"args[{key.idx}]{rest}"
    for position, parameter in enumerate(parameters):
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            return f"{parameter.name}[{key.idx - position}]{rest}"
        if position == key.idx:
            return f"{parameter.name}{rest}"
    return f"args[{key.idx}]{rest}"
