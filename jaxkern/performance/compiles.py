"""Counts traces and compilations per function, and names the argument that caused each."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import jax
import jax.monitoring

from jaxkern.core import compat
from jaxkern.performance.changes import Change, differences

_TRACED = "/jax/core/compile/jaxpr_trace_duration"
_LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"
_COMPILED = "/jax/core/compile/backend_compile_duration"
_CACHE_HIT = "/jax/compilation_cache/cache_hits"
_OPTIONS = ("jax_explain_cache_misses", "jax_log_compiles")
# What these options make JAX log; other records of the same loggers pass.
_MISS, _COMPILING = "TRACING CACHE MISS", "Compiling "
_LOGGED = {
    _MISS: "jax_explain_cache_misses",
    _COMPILING: "jax_log_compiles",
    "Finished ": "jax_log_compiles",
    "Persistent compilation cache hit": "jax_log_compiles",
    "PERSISTENT COMPILATION CACHE MISS": "jax_explain_cache_misses",
    "Writing ": "jax_explain_cache_misses",
    "Not writing persistent cache": "jax_explain_cache_misses",
}
_OF_CONTEXT = Change("", "context", "", "")


@dataclass
class FunctionCompiles:
    """One function's traces and compilations while it was watched.

    Attributes:
      name: of the Python function.
      location: ``file:line`` of its definition; empty for functions of JAX itself.
      traces: how often Python ran it to make a program.
      compiles: how often XLA was asked for a program.
      from_cache: how many of those came from the persistent cache.
      trace_seconds, lowering_seconds, compile_seconds: sums; a trace includes those inside it.
      changes: for each trace or compilation that followed an earlier one: what differed from it.
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
    """What `watch_compiles` saw. It may be read inside its context too.

    Attributes:
      functions: a `FunctionCompiles` for each function, in the order of first sight.
    """

    def __init__(self) -> None:
        self.functions: list[FunctionCompiles] = []

    @property
    def traces(self) -> int:
        """Traces of all functions."""
        return sum(f.traces for f in self.functions)

    @property
    def compiles(self) -> int:
        """Compilations of all functions, JAX's own small ones included."""
        return sum(f.compiles for f in self.functions)

    @property
    def seconds(self) -> float:
        """Seconds of lowering and compiling, and of tracing as far as that is not counted twice."""
        traced = max((f.trace_seconds for f in self.functions), default=0.0)
        return traced + sum(f.lowering_seconds + f.compile_seconds for f in self.functions)

    def __getitem__(self, function: str | Callable[..., Any]) -> FunctionCompiles:
        """Of a function (jitted or not) or a name; with counts of 0 where it was not seen.

        Raises: KeyError where several functions have that name.
        """
        if isinstance(function, str):
            found = [f for f in self.functions if f.name == function]
            if len(found) > 1:
                places = ", ".join(f.location or "JAX" for f in found)
                raise KeyError(f"{function!r} is the name of {len(found)} functions ({places})")
            return found[0] if found else FunctionCompiles(function)
        plain = inspect.unwrap(function)
        while isinstance(plain, functools.partial):
            plain = inspect.unwrap(plain.func)
        name = getattr(plain, "__name__", compat.UNNAMED)
        code = getattr(plain, "__code__", None)
        if code is None:
            return self[name]
        location = f"{code.co_filename}:{code.co_firstlineno}"
        # Without JAX's log (logging.disable) there are counts by name only.
        for known in (location, ""):
            for f in self.functions:
                if f.location == known and f.name == name:
                    return f
        return FunctionCompiles(name, location)

    def __str__(self) -> str:
        rows = sorted(self.functions, key=lambda f: -(f.lowering_seconds + f.compile_seconds))
        head = f"{self.traces} traces, {self.compiles} compilations"
        return "\n".join([head, *map(str, rows)])

    def _of(self, name: str, location: str | None) -> FunctionCompiles:
        """The newest of that name where the location is not known."""
        for f in reversed(self.functions):
            if f.name == name and (location is None or f.location == location):
                return f
        new = FunctionCompiles(name, location or "")
        self.functions.append(new)
        return new

    def _traced(self, call: compat.TracedCall) -> None:
        f = self._of(call.name, call.location)
        f.traces += 1
        f._traced_since_compile = True
        before = f._arguments
        if before is None and call.earlier:
            before = min(call.earlier, key=lambda old: len(differences(call, old)))
        if before is not None:
            changes = differences(call, before)
            if not changes:
                same = f._function is None or f._function is call.function
                changes = [_OF_CONTEXT if same else Change("", "function", "", "")]
            f.changes.append(tuple(changes))
        f._function, f._arguments = call.function, call.arguments

    def _took(self, name: str, location: str, seconds: float, counted: bool) -> None:
        f = self._of(name, location)
        f.trace_seconds += seconds
        f.traces += not counted
        f._traced_since_compile = True

    def _compiling(self, name: str, location: str | None, placement: str) -> None:
        f = self._of(name, location)
        if f._placement not in (None, placement):
            changes = (Change("", "sharding", f._placement or "", placement),)
            if not f._traced_since_compile:
                f.changes.append(changes)
            elif f.changes and f.changes[-1] == (_OF_CONTEXT,):  # `execution.jit` traces anew
                f.changes[-1] = changes
        f._placement, f._traced_since_compile = placement, False

    def _compiled(self, name: str, location: str | None, seconds: float, cached: bool) -> None:
        f = self._of(name, location)
        f.compiles += 1
        f.from_cache += cached
        f.compile_seconds += seconds


class _Thread(threading.local):
    """What is under way in one thread."""

    def __init__(self) -> None:
        self.pending: list[compat.TracedCall] = []
        self.locations: dict[str, str] = {}
        self.cached = False


class _Tap(logging.Filter):
    """Listens to JAX's events and log for all watches that are open; nothing is left behind."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.RLock()
        self.watches: list[CompileWatch] = []
        self.thread = _Thread()
        # In the thread that opened the first watch, and without any context.
        self.options: dict[str, bool] = {}
        self.globals: dict[str, bool] = {}
        self.levels: dict[str, tuple[int, bool]] = {}

    def open(self, watch: CompileWatch) -> None:
        with self.lock:
            self.watches.append(watch)
            if len(self.watches) > 1:
                return
            self.thread = _Thread()
            jax.monitoring.register_event_duration_secs_listener(self.timed)
            jax.monitoring.register_event_listener(self.happened)
            self.options = _options()
            # A context such as jax.log_compiles() belongs to a thread: a new one has none.
            with ThreadPoolExecutor(1) as pool:
                self.globals = pool.submit(_options).result()
            for option in _OPTIONS:
                jax.config.update(option, True)
            for name in compat.COMPILE_LOGGERS:
                logger = logging.getLogger(name)
                enabled = logger.isEnabledFor(logging.WARNING)
                self.levels[name] = (logger.level, enabled)
                if not enabled:
                    logger.setLevel(logging.WARNING)
                logger.addFilter(self)

    def close(self, watch: CompileWatch) -> None:
        with self.lock:
            self.watches = [w for w in self.watches if w is not watch]
            if self.watches:
                return
            for name, (level, _) in self.levels.items():
                logger = logging.getLogger(name)
                logger.removeFilter(self)
                logger.setLevel(level)
            for option, value in self.globals.items():
                jax.config.update(option, value)
            jax.monitoring.unregister_event_listener(self.happened)
            jax.monitoring.unregister_event_duration_listener(self.timed)

    def happened(self, event: str, **_: Any) -> None:
        if event == _CACHE_HIT:
            self.thread.cached = True

    def timed(self, event: str, duration_secs: float, **about: Any) -> None:
        if event not in (_TRACED, _LOWERED, _COMPILED):
            return
        name = _plain(str(about.get("fun_name", "unknown")))
        here = self.thread
        with self.lock:
            if event == _TRACED:
                call = self.begun(name)
                location = here.locations[name] = "" if call is None else call.location
                for watch in self.watches:
                    watch._took(name, location, duration_secs, counted=call is not None)
                return
            known = here.locations.get(name)
            for watch in self.watches:
                if event == _LOWERED:
                    watch._of(name, known).lowering_seconds += duration_secs
                else:
                    watch._compiled(name, known, duration_secs, here.cached)
            if event == _COMPILED:
                here.cached = False

    def begun(self, name: str) -> compat.TracedCall | None:
        """The call whose trace ended; what was begun after it has failed."""
        pending = self.thread.pending
        for place in range(len(pending) - 1, -1, -1):
            if pending[place].name == name:
                call = pending[place]
                del pending[place:]
                return call
        return None

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if text.startswith(_MISS):
            call = compat.traced_call()
            if call is not None:
                self.thread.pending.append(call)
                with self.lock:
                    for watch in self.watches:
                        watch._traced(_whole(call))
        elif text.startswith(_COMPILING) and isinstance(record.args, tuple):
            self.compiling(record.args)
        wanted = (
            self.options[option] for start, option in _LOGGED.items() if text.startswith(start)
        )
        return next(wanted, True) and self.levels[record.name][1]

    def compiling(self, arguments: tuple[Any, ...]) -> None:
        if len(arguments) < 3:
            return
        name = _plain(str(arguments[0]))
        with self.lock:
            for watch in self.watches:
                watch._compiling(name, self.thread.locations.get(name), str(arguments[2]))


_tap = _Tap()


class watch_compiles:
    """Counts traces and compilations of the whole process while its context is open.

    Each trace after the first of a function says what changed since the one before: an argument's
    shape, dtype, weak type, static value or tree, or that the function object itself is new. Works
    in nested contexts and with calls from any thread. While no watch is open nothing is installed,
    so that calls cost nothing; while one is open only traces and compilations cost more.

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

    def __init__(self) -> None:
        self._open: list[CompileWatch] = []

    def __enter__(self) -> CompileWatch:
        watch = CompileWatch()
        _tap.open(watch)
        self._open.append(watch)
        return watch

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        _tap.close(self._open.pop())


def _options() -> dict[str, bool]:
    return {option: bool(getattr(jax.config, option)) for option in _OPTIONS}


def _whole(call: compat.TracedCall) -> compat.TracedCall:
    """The call of the user's function, also where `execution.jit` made a program of it."""
    fixed = getattr(call.function, "fixed_arguments", None)
    if fixed is None:
        return call
    return call._replace(
        function=call.function.target,
        arguments={**call.arguments, **fixed},
        earlier=[{**arguments, **fixed} for arguments in call.earlier],
    )


def _plain(name: str) -> str:
    """``f`` of ``jit(f)``, as XLA's modules are named."""
    return name[4:-1] if name.startswith("jit(") and name.endswith(")") else name
