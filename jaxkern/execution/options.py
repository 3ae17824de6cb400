"""`execution_options`: parallelism, kernel threads, time limit and trace of a ``with`` block."""

from __future__ import annotations

import contextlib
import dataclasses
import numbers
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import jax

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer


class ExecutionTimeout(TimeoutError):
    """The deadline of `execution_options` has passed; the message names the work still running."""


@dataclasses.dataclass(frozen=True)
class ExecutionOptions:
    """The options in force; None means no limit, or no trace.

    Attributes:
      deadline: end of the time limit, as a value of ``time.monotonic()``.
      trace: the directory of the ``jax.profiler`` profile.
    """

    use_parallel: bool = True
    max_workers: int | None = None
    timeout_seconds: float | None = None
    deadline: float | None = None
    trace: Path | None = None

    def run(self, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, wait for its arrays, and record the call if there is a trace."""
        with contextlib.ExitStack() as stack:
            if self.trace is not None:
                stack.enter_context(jax.profiler.TraceAnnotation(name))
            return jax.block_until_ready(fn(*args, **kwargs))


@dataclasses.dataclass(frozen=True, slots=True)
class CallContext:
    """The state that a call inherits in addition to its arguments."""

    options: ExecutionOptions = dataclasses.field(default_factory=ExecutionOptions)
    # True in a worker thread, whose caller enforces the deadline.
    in_worker: bool = False
    # Records the calls of a composite instead of running them, see `structural_jit`.
    recorder: Any = None


#: None outside of `execution_options` and recordings, so that ordinary calls read one variable.
CONTEXT: ContextVar[CallContext | None] = ContextVar("jaxkern_execution", default=None)


def current_options() -> ExecutionOptions:
    """Return the options in force in this context.

    >>> import jaxkern.execution as ex
    >>> with ex.execution_options(max_workers=3):
    ...     ex.current_options().max_workers
    3
    """
    return (CONTEXT.get() or CallContext()).options


@contextlib.contextmanager
def execution_options(
    use_parallel: bool | None = None,
    max_workers: int | None = None,
    timeout_seconds: float | None = None,
    trace_execution: bool | str | Path | None = None,
) -> Iterator[ExecutionOptions]:
    """Set options for calls inside a ``with`` block; an inner block inherits what it does not set.

    The options belong to the context (``contextvars``): other threads and asyncio tasks do not see
    them, but the worker threads of a call do. The thread limit of jaxkern's CPU kernels is an
    exception: it applies to the whole process. Changing it does not recompile, and a call that was
    dispatched earlier keeps its limit.

    Args:
      use_parallel: False runs host functions one at a time, in order.
      max_workers: maximum number of concurrent host functions of a call, and of threads of a
        kernel.
      timeout_seconds: time limit of the whole block, from its start; the earliest deadline of
        nested blocks applies. After it, pending work is dropped and waiting raises
        `ExecutionTimeout`. Running work cannot be cancelled: a Python function continues in its
        thread until its next operator call or `check_timeout`, and the interpreter waits for it at
        exit. No limit if longer than ``threading.TIMEOUT_MAX``.
      trace_execution: a directory to write a ``jax.profiler`` profile to, which TensorBoard, XProf
        and https://ui.perfetto.dev open; True creates a temporary one, see
        `ExecutionOptions.trace`. Each call then waits for its arrays, so that the profile has its
        time under its name. JAX allows one profile per process at a time.

    Raises:
      ValueError: for a number that is not positive.
      TypeError: for a ``timeout_seconds`` that is not a number.
      ExecutionTimeout: from calls inside the block after the deadline.

    >>> import numpy as np, jaxkern.execution as ex
    >>> with ex.execution_options(max_workers=2, timeout_seconds=60):
    ...     ex.pmap(lambda x: float(x) + 1, host=True)(np.arange(3.0)).tolist()
    [1.0, 2.0, 3.0]
    """
    outer = CONTEXT.get() or CallContext()
    options = outer.options
    if use_parallel is not None:
        options = dataclasses.replace(options, use_parallel=bool(use_parallel))
    if max_workers is not None:
        max_workers = check_integer("max_workers", max_workers, 1)
        options = dataclasses.replace(options, max_workers=max_workers)
    if timeout_seconds is not None:
        options = _with_timeout(options, timeout_seconds)
    if trace_execution is not None:
        directory = tempfile.mkdtemp() if trace_execution is True else trace_execution
        options = dataclasses.replace(options, trace=Path(directory) if directory else None)
    with contextlib.ExitStack() as stack:
        if max_workers is not None:
            stack.enter_context(_limited_kernels(max_workers))
        if trace_execution:
            profile = jax.profiler.ProfileOptions()
            profile.python_tracer_level = 0  # the Python tracer slows down every Python call
            stack.enter_context(
                jax.profiler.trace(
                    str(options.trace), create_perfetto_trace=True, profiler_options=profile
                )
            )
        enforced = outer.in_worker and options.deadline == outer.options.deadline
        token = CONTEXT.set(dataclasses.replace(outer, options=options, in_worker=enforced))
        stack.callback(CONTEXT.reset, token)
        yield options


def _with_timeout(options: ExecutionOptions, seconds: Any) -> ExecutionOptions:
    message = f"timeout_seconds: expected a positive number of seconds or None, got {seconds!r}"
    is_number = isinstance(seconds, numbers.Real) and not isinstance(seconds, bool)
    if not is_number:
        raise TypeError(message)
    if not seconds > 0:  # also for NaN
        raise ValueError(message)
    if seconds > threading.TIMEOUT_MAX:
        return options
    deadline = time.monotonic() + float(seconds)
    if options.deadline is not None and options.deadline <= deadline:
        return options
    return dataclasses.replace(options, timeout_seconds=float(seconds), deadline=deadline)


_limits_lock = threading.Lock()
# The limits of the open blocks of all threads, in the order of entry; the last one applies.
_limits: list[list[int]] = []
_initial_limit = 0


@contextlib.contextmanager
def _limited_kernels(count: int) -> Iterator[None]:
    """Limit the threads of the CPU kernels of this process; a limit set inside stays."""
    global _initial_limit
    native = registry.module("cpu")
    if native is None:
        yield
        return
    limit = [count]
    with _limits_lock:
        if not _limits:
            _initial_limit = native.max_workers()
        _limits.append(limit)
        native.set_max_workers(count)
    try:
        yield
    finally:
        with _limits_lock:
            unchanged = native.max_workers() == _limits[-1][0]
            # By identity: an equal limit may belong to another thread.
            _limits[:] = [other for other in _limits if other is not limit]
            if unchanged:
                native.set_max_workers(_limits[-1][0] if _limits else _initial_limit)


def remaining_seconds() -> float | None:
    """Return the seconds until the deadline in force, at least 0, or None without one."""
    deadline = current_options().deadline
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def check_timeout(name: str = "this work") -> None:
    """Raise `ExecutionTimeout` after the deadline; call it in long loops of host functions.

    >>> import jaxkern.execution as ex
    >>> ex.check_timeout()  # does nothing without a timeout
    """
    if remaining_seconds() == 0:
        raise ExecutionTimeout(
            f"{name}: the time limit of {current_options().timeout_seconds:g} s has passed; "
            "increase execution_options(timeout_seconds=...)"
        )
