"""`execution_options`: how host work runs inside a ``with`` block, for one context of a program."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.execution.trace import ExecutionTrace, Span


class ExecutionTimeout(TimeoutError):
    """The time of `execution_options` is over; the message says what goes on regardless."""


@dataclasses.dataclass(frozen=True)
class ExecutionOptions:
    """What `execution_options` has set: what is None was never set, or no limit."""

    use_parallel: bool = True
    max_workers: int | None = None
    timeout_seconds: float | None = None
    #: of ``time.monotonic()``
    deadline: float | None = None
    trace: ExecutionTrace | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Active:
    """What concerns a call, beside its arguments; absent from the context in ordinary programs."""

    options: ExecutionOptions
    # The span that encloses the call, in a trace.
    span: Span | None = None
    # Whether this thread works for another one, which watches the time.
    worker: bool = False
    # What notes down the calls of a composite instead of running them.
    recorder: Any = None


#: One variable for everything, so that a call outside any `execution_options` reads it and no more.
ACTIVE: ContextVar[Active | None] = ContextVar("jaxkern_execution", default=None)


def current_options() -> ExecutionOptions:
    """The options in force here.

    >>> import jaxkern.execution as ex
    >>> with ex.execution_options(max_workers=3):
    ...     ex.current_options().max_workers
    3
    """
    active = ACTIVE.get()
    return ExecutionOptions() if active is None else active.options


@contextlib.contextmanager
def execution_options(
    use_parallel: bool | None = None,
    max_workers: int | None = None,
    timeout_seconds: float | None = None,
    trace_execution: bool | str | Path | None = None,
) -> Iterator[ExecutionOptions]:
    """Sets how work runs inside the ``with`` block; an inner block keeps what it does not name.

    The options belong to the context (``contextvars``): other threads and other asyncio tasks do
    not see them, and the threads that work for a call here do. One thing reaches further: the
    thread cap of jaxkern's CPU kernels is one number of the process. It takes no compilation to
    change it; as execution is asynchronous, calls that were dispatched before keep what they found.

    Args:
      use_parallel: False runs host functions one after the other, in order.
      max_workers: the most host functions of a call at a time, and the most threads of the
        kernels, until the block ends.
      timeout_seconds: of the whole block, from its beginning; the sooner deadline of nested ones.
        When it is over, what has not begun is dropped, and waiting ends with an error. What runs
        cannot be stopped: a Python function goes on in its thread to its next operator call or
        `check_timeout`, a compilation and a computation of a device to their ends. Infinity is no
        limit.
      trace_execution: True to note down each operator's time, in `ExecutionOptions.trace`; a path
        to write it there as a Chrome trace at the end as well. Every call is then waited for.

    Raises:
      ValueError: for a number that is not above 0.
      TypeError: for a ``timeout_seconds`` that is no number.
      ExecutionTimeout: from calls inside, when the time is over.

    >>> import numpy as np, jaxkern.execution as ex
    >>> with ex.execution_options(max_workers=2, trace_execution=True) as options:
    ...     ex.pmap(lambda x: float(x) + 1, host=True)(np.arange(3.0)).tolist()
    [1.0, 2.0, 3.0]
    >>> sorted(span.name for span in options.trace.spans)
    ['<lambda>[0]', '<lambda>[1]', '<lambda>[2]', 'pmap(<lambda>)']
    """
    outer = ACTIVE.get()
    options = ExecutionOptions() if outer is None else outer.options
    changes: dict[str, Any] = {}
    if use_parallel is not None:
        changes["use_parallel"] = bool(use_parallel)
    if max_workers is not None:
        changes["max_workers"] = check_integer("max_workers", max_workers, 1)
    if timeout_seconds is not None:
        seconds = _seconds(timeout_seconds)
        deadline = time.monotonic() + seconds
        if deadline < (math.inf if options.deadline is None else options.deadline):
            changes |= {"timeout_seconds": seconds, "deadline": deadline}
    path = trace_execution if isinstance(trace_execution, (str, Path)) else None
    if trace_execution is not None:
        changes["trace"] = ExecutionTrace() if trace_execution else None
    options = dataclasses.replace(options, **changes)
    base = Active(options) if outer is None else dataclasses.replace(outer, options=options)
    if "trace" in changes:
        base = dataclasses.replace(base, span=None)
    token = ACTIVE.set(base)
    try:
        with _capped_kernels(max_workers):
            yield options
    finally:
        ACTIVE.reset(token)
        if path is not None and options.trace is not None:
            options.trace.save(path)


_cap_lock = threading.Lock()
# Of the blocks that are open now, in the order in which they were entered.
_caps: list[list[int]] = []
_cap_before = 0


def _kernel_cap() -> int | None:
    """The cap in force (0: none); None where there are no native kernels."""
    native = registry.module("cpu")
    return None if native is None else int(native.max_workers())


@contextlib.contextmanager
def _capped_kernels(count: int | None) -> Iterator[None]:
    """Caps the kernels at ``count`` threads until the block ends; None changes nothing.

    Blocks of several threads may overlap: the one entered last decides. A cap that something else
    has set meanwhile stays.
    """
    global _cap_before
    if count is None:
        yield
        return
    mine = [count]
    with _cap_lock:
        if not _caps:
            _cap_before = _kernel_cap() or 0
        _caps.append(mine)
        registry.set_max_workers(count)
    try:
        yield
    finally:
        with _cap_lock:
            was = _caps[-1][0]
            # By identity: equal caps of other threads are other blocks.
            _caps[:] = [cap for cap in _caps if cap is not mine]
            if _kernel_cap() == was:
                registry.set_max_workers(_caps[-1][0] if _caps else _cap_before)


def _seconds(timeout: Any) -> float:
    wanted = f"timeout_seconds is {timeout!r}; wanted seconds above 0, or None for no limit"
    if isinstance(timeout, bool) or not hasattr(timeout, "__float__"):
        raise TypeError(wanted)
    try:
        seconds = float(timeout)
    except OverflowError:  # an integer beyond all floats
        seconds = math.inf if timeout > 0 else -math.inf
    if not seconds > 0:
        raise ValueError(wanted)
    return seconds


def remaining_seconds() -> float | None:
    """Seconds until the deadline in force, at least 0; None without one."""
    deadline = current_options().deadline
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def check_timeout(what: str = "this work") -> None:
    """Raises `ExecutionTimeout` when the time is over: for long loops inside host functions.

    >>> import jaxkern.execution as ex
    >>> ex.check_timeout()  # without a timeout, nothing
    """
    options = current_options()
    if options.deadline is not None and time.monotonic() >= options.deadline:
        raise ExecutionTimeout(
            f"{what}: the {options.timeout_seconds:g} s of execution_options(timeout_seconds=...) "
            "are over"
        )
