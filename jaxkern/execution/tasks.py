"""Execution of calls under `execution_options`: on threads, within limits and a deadline."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from graphlib import TopologicalSorter
from typing import Any, NamedTuple

import jax

from jaxkern.core.compat import is_tracing
from jaxkern.core.contexts import ThreadContexts
from jaxkern.core.failures import note
from jaxkern.execution.options import (
    CONTEXT,
    CallContext,
    ExecutionTimeout,
    check_timeout,
    remaining_seconds,
)


class Task(NamedTuple):
    """A function to call after the tasks with the indices ``after`` have finished."""

    name: str
    run: Callable[[], Any]
    after: tuple[int, ...] = ()


def run_tasks(tasks: Sequence[Task], name: str, max_workers: int | None = None) -> list[Any]:
    """Run tasks on threads and return their results in the order of the tasks.

    Args:
      tasks: tasks, each after the tasks that it depends on.
      name: the name of the call in messages.
      max_workers: maximum number of concurrent tasks; the options in force may lower it.

    Raises:
      ExecutionTimeout: after the deadline in force, see `execution_options`.
      Exception: the error of the first failed task, with a note that names it. No task starts after
        a failure; tasks that are already running complete first.
    """
    context = CONTEXT.get() or CallContext()
    options = context.options
    limits = [n for n in (max_workers, options.max_workers, len(tasks)) if n]
    limit = min(limits, default=1) if options.use_parallel else 1
    threads = ThreadContexts()
    contexts = contextvars.copy_context()
    worker = context.in_worker or options.deadline is not None
    contexts.run(CONTEXT.set, dataclasses.replace(context, in_worker=worker, recorder=None))

    def run(task: Task) -> Any:
        with threads.enter():
            return task.run()

    after = {i: {i - 1} - {-1} if limit == 1 else task.after for i, task in enumerate(tasks)}
    order = TopologicalSorter(after)
    order.prepare()
    finished: dict[int, Any] = {}
    failed: dict[int, BaseException] = {}
    futures: dict[Future[Any], int] = {}
    pool = ThreadPoolExecutor(limit, thread_name_prefix="jaxkern-execution")
    try:
        while True:
            if not failed:
                for i in order.get_ready():
                    futures[pool.submit(contexts.copy().run, run, tasks[i])] = i
            if not futures:
                break
            done, _ = wait(futures, remaining_seconds(), FIRST_COMPLETED)
            if not done:
                running = [tasks[i].name for future, i in futures.items() if not future.cancel()]
                raise _timeout(name, len(tasks), len(finished), running)
            for future in done:
                index = futures.pop(future)
                error = future.exception()
                if error is None:
                    finished[index] = future.result()
                    order.done(index)
                else:
                    failed[index] = error
            if failed:
                futures = {future: i for future, i in futures.items() if not future.cancel()}
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if failed:
        pending = len(tasks) - len(finished) - len(failed)
        names = ", ".join(tasks[i].name for i in sorted(failed))
        error = failed[min(failed)]
        note(error, "{}", f"{name}: raised by {names}; {pending} tasks did not start")
        raise error
    return [finished[i] for i in range(len(tasks))]


def _timeout(name: str, count: int, finished: int, running: list[str]) -> ExecutionTimeout:
    seconds = (CONTEXT.get() or CallContext()).options.timeout_seconds
    names = ", ".join(running[:8]) + (", ..." if len(running) > 8 else "")
    return ExecutionTimeout(
        f"{name}: the time limit of {seconds:g} s has passed; {finished} of {count} tasks have "
        f"finished, {count - finished - len(running)} pending ones were dropped, and "
        f"{len(running)} cannot be cancelled and continue: {names or 'none'}"
    )


def run_call(
    context: CallContext, name: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """Call a function under the options of the context, in a thread if there is a deadline."""
    options = context.options
    # A call under a JAX transformation only adds to the enclosing program.
    if is_tracing() or (options.deadline is None and options.trace is None):
        return fn(*args, **kwargs)
    check_timeout(name)
    if options.deadline is None or context.in_worker:
        return options.run(name, fn, *args, **kwargs)
    call = functools.partial(options.run, name, fn, *args, **kwargs)
    return run_tasks([Task(name, call)], name)[0]


class Supervised:
    """A callable that follows `execution_options`; subclasses implement ``call``."""

    #: the name of the calls in traces and messages
    _name: str
    call: Callable[..., Any]
    #: True if ``call`` enforces the deadline itself, in `run_tasks`
    enforces_deadline = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        context = CONTEXT.get()
        if context is None:
            return self.call(*args, **kwargs)
        if context.recorder is not None:
            if context.recorder.has_placeholders((args, kwargs)):
                return self.record(context.recorder, *args, **kwargs)
            context = dataclasses.replace(context, recorder=None)
        token = CONTEXT.set(context)
        try:
            if self.enforces_deadline and context.options.deadline is not None:
                check_timeout(self._name)
                context = dataclasses.replace(context, in_worker=True)
            return run_call(context, self._name, self.call, *args, **kwargs)
        finally:
            CONTEXT.reset(token)

    def record(self, recorder: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Add the call to a graph that is being recorded."""
        return recorder.add_call(self, args, kwargs)


def has_tracers(tree: Any) -> bool:
    """Return True if a leaf of a tree is traced by JAX."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))
