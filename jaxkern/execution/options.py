"""`execution_options`, and the execution of calls under them: threads, deadline and trace."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import math
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextvars import ContextVar
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.backend import ThreadContexts
from jaxkern.core.compat import is_tracing
from jaxkern.core.failures import note


class ExecutionTimeout(TimeoutError):
    """The deadline of `execution_options` has passed; the message names the work still running.

    Example:
      >>> import time, jaxkern.execution as ex
      >>> try:
      ...     with ex.execution_options(timeout_seconds=0.001):
      ...         time.sleep(0.01)
      ...         ex.check_timeout()
      ... except ex.ExecutionTimeout:
      ...     print("too late")
      too late
    """


@dataclasses.dataclass(frozen=True)
class ExecutionOptions:
    """The options in force; None means no limit, or no trace.

    Attributes:
      deadline: end of the time limit, as a value of ``time.monotonic()``.
      trace: the directory of the ``jax.profiler`` profile.
      enforced: True in worker threads, whose caller enforces the deadline.

    Example:
      >>> import jaxkern.execution as ex
      >>> with ex.execution_options(max_workers=2) as options:
      ...     options.max_workers, options.timeout_seconds
      (2, None)
    """

    use_parallel: bool = True
    max_workers: int | None = None
    timeout_seconds: float | None = None
    deadline: float | None = None
    trace: Path | None = None
    enforced: bool = False


#: None outside of `execution_options`
OPTIONS: ContextVar[ExecutionOptions | None] = ContextVar("jaxkern_options", default=None)
#: records the calls of a composite instead of running them, see `structural_jit`
RECORDER: ContextVar[Any] = ContextVar("jaxkern_recorder", default=None)


def current_options() -> ExecutionOptions:
    """Return the options in force in this context.

    >>> import jaxkern.execution as ex
    >>> with ex.execution_options(max_workers=3):
    ...     ex.current_options().max_workers
    3
    """
    return OPTIONS.get() or ExecutionOptions()


@contextlib.contextmanager
def execution_options(
    use_parallel: bool | None = None,
    max_workers: int | None = None,
    timeout_seconds: float | None = None,
    trace_execution: bool | str | Path | None = None,
) -> Iterator[ExecutionOptions]:
    """Set options for calls inside a ``with`` block; an inner block inherits what it does not set.

    Args:
      use_parallel: False runs host functions one at a time, in order.
      max_workers: maximum number of concurrent host functions of a call, and of threads of a
        kernel. The latter applies to the whole process and to calls dispatched later.
      timeout_seconds: time limit of the whole block, from its start; the earliest deadline of
        nested blocks applies. After it, pending work is dropped and waiting raises
        `ExecutionTimeout`. Running work cannot be cancelled: it continues until its next operator
        call or `check_timeout`. No limit if longer than ``threading.TIMEOUT_MAX``.
      trace_execution: a directory to write a ``jax.profiler`` profile to; True creates a temporary
        one, see `ExecutionOptions.trace`. Each call then waits for its arrays.

    Raises:
      ValueError: for values that are not positive numbers.

    >>> import numpy as np, jaxkern.execution as ex
    >>> with ex.execution_options(max_workers=2, timeout_seconds=60):
    ...     ex.pmap(lambda x: float(x) + 1, host=True)(np.arange(3.0)).tolist()
    [1.0, 2.0, 3.0]
    """
    options = current_options()
    changes: dict[str, Any] = {}
    if use_parallel is not None:
        changes["use_parallel"] = bool(use_parallel)
    if max_workers is not None:
        changes["max_workers"] = check_integer("max_workers", max_workers, 1)
    if timeout_seconds is not None:
        seconds = check_number("timeout_seconds", timeout_seconds, 1e-9)
        deadline = time.monotonic() + seconds
        if seconds <= threading.TIMEOUT_MAX and deadline < (options.deadline or math.inf):
            changes |= {"timeout_seconds": seconds, "deadline": deadline, "enforced": False}
    if trace_execution is not None:
        directory = tempfile.mkdtemp() if trace_execution is True else trace_execution
        changes["trace"] = Path(directory) if directory else None
    options = dataclasses.replace(options, **changes)
    with contextlib.ExitStack() as stack:
        if "max_workers" in changes:
            stack.enter_context(_limited_kernels(changes["max_workers"]))
        if trace_execution:
            profile = jax.profiler.ProfileOptions()
            profile.python_tracer_level = 0  # the Python tracer slows down every Python call
            folder = str(options.trace)
            stack.enter_context(
                jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=profile)
            )
        stack.callback(OPTIONS.reset, OPTIONS.set(options))
        yield options


_limits_lock = threading.Lock()
# The limit outside of all blocks, then those of the open blocks of all threads; the last applies.
_limits: dict[object, int] = {}


@contextlib.contextmanager
def _limited_kernels(count: int) -> Iterator[None]:
    """Limit the threads of the CPU kernels of this process."""
    native, block = registry.module("cpu"), object()
    with _limits_lock:
        if not _limits:
            _limits[None] = native.max_workers() if native else 0
        _limits[block] = count
        registry.set_max_workers(count)
    try:
        yield
    finally:
        with _limits_lock:
            del _limits[block]
            registry.set_max_workers(list(_limits.values())[-1])
            if len(_limits) == 1:
                _limits.clear()


def remaining_seconds() -> float | None:
    """Return the seconds until the deadline, at least 0, or None without one.

    Example:
      >>> import jaxkern.execution as ex
      >>> with ex.execution_options(timeout_seconds=60):
      ...     0 < ex.remaining_seconds() <= 60
      True
    """
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


class Task(NamedTuple):
    """A function to call after the tasks with the indices ``after`` have finished."""

    name: str
    run: Callable[[], Any]
    after: tuple[int, ...] = ()


def run_tasks(tasks: Sequence[Task], name: str, max_workers: int | None = None) -> list[Any]:
    """Run tasks on threads and return their results in the order of the tasks.

    ``name`` is the name of the call in messages. Raises the error of the first failed task, with a
    note that names it, after running tasks have ended; no task starts after a failure.
    """
    options = current_options()
    limits = [n for n in (max_workers, options.max_workers, len(tasks)) if n]
    limit = min(limits, default=1) if options.use_parallel else 1
    threads = ThreadContexts()

    def run(task: Task) -> Any:
        if options.deadline is not None:
            OPTIONS.set(dataclasses.replace(options, enforced=True))
        with threads.enter():
            return task.run()

    after = {i: {i - 1} - {-1} if limit == 1 else task.after for i, task in enumerate(tasks)}
    order = TopologicalSorter(after)
    order.prepare()
    results: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    futures: dict[Future[Any], int] = {}
    pool = ThreadPoolExecutor(limit, thread_name_prefix="jaxkern-execution")
    try:
        while True:
            for i in () if failed else order.get_ready():
                futures[pool.submit(contextvars.copy_context().run, run, tasks[i])] = i
            if not futures:
                break
            done, _ = wait(futures, remaining_seconds(), FIRST_COMPLETED)
            if not done:
                running = [tasks[i].name for future, i in futures.items() if not future.cancel()]
                pending = len(tasks) - len(results) - len(running)
                raise ExecutionTimeout(
                    f"{name}: the time limit of {options.timeout_seconds:g} s has passed; "
                    f"{len(results)} of {len(tasks)} tasks have finished, {pending} pending ones "
                    f"were dropped, and these cannot be cancelled: {', '.join(running[:8])}"
                )
            for future in done:
                index = futures.pop(future)
                error = future.exception()
                if error is None:
                    results[index] = future.result()
                    order.done(index)
                else:
                    failed[index] = error
            if failed:
                futures = {future: i for future, i in futures.items() if not future.cancel()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if failed:
        pending = len(tasks) - len(results) - len(failed)
        names = ", ".join(tasks[i].name for i in sorted(failed))
        note(failed[min(failed)], "{}", f"{name}: raised by {names}; {pending} tasks did not start")
        raise failed[min(failed)]
    return [results[i] for i in range(len(tasks))]


def run_call(
    options: ExecutionOptions, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function under the options, in a thread if there is a deadline."""
    # A call under a JAX transformation only adds to the enclosing program.
    if is_tracing() or (options.deadline is None and options.trace is None):
        return fn(*args, **kwargs)
    check_timeout(name)

    def call() -> Any:
        annotation = jax.profiler.TraceAnnotation(name)
        with annotation if options.trace else contextlib.nullcontext():
            return jax.block_until_ready(fn(*args, **kwargs))

    if options.deadline is None or options.enforced:
        return call()
    return run_tasks([Task(name, call)], name)[0]


class Supervised:
    """A callable that follows `execution_options`; subclasses implement ``call``."""

    #: the name of the calls in traces and messages
    _name: str
    call: Callable[..., Any]
    #: True if ``call`` enforces the deadline itself, in `run_tasks`
    enforces_deadline = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        if (recorder := RECORDER.get()) is not None:
            return recorder.add_call(self, args, kwargs)
        options = OPTIONS.get()
        if options is None:
            return self.call(*args, **kwargs)
        if self.enforces_deadline:
            options = dataclasses.replace(options, enforced=True)
        return run_call(options, self._name, self.call, *args, **kwargs)
