"""Calls under `execution_options`: tasks on threads, in order, within limits and a deadline."""

from __future__ import annotations

import contextvars
import dataclasses
import functools
import heapq
import queue
import threading
import time
from collections.abc import Callable, Sequence
from graphlib import TopologicalSorter
from typing import Any

import jax

from jaxkern.core.compat import is_tracing
from jaxkern.core.contexts import ThreadContexts
from jaxkern.core.failures import note
from jaxkern.execution.options import (
    ACTIVE,
    Active,
    ExecutionOptions,
    ExecutionTimeout,
    check_timeout,
)

# These watch the time themselves, and can say what of their work still runs.
_WATCHFUL = ("graph", "vmap", "pmap")


@dataclasses.dataclass
class Task:
    """A piece of work: ``run`` is called when the tasks that it is ``after`` have ended."""

    name: str
    run: Callable[[], Any]
    after: tuple[int, ...] = ()
    #: of several at a time, among those that could begin, that of the largest number goes first
    priority: float = 0.0


def run_tasks(tasks: Sequence[Task], what: str, max_workers: int | None = None) -> list[Any]:
    """The results of all tasks, in their order.

    Args:
      what: the call's name in messages.
      max_workers: the most at a time; the options in force may lower it. None: as many as there are
        tasks.

    Raises:
      ExecutionTimeout: when the time in force is over, see `execution_options`.
      Exception: of the task with the lowest number that failed, with a note that names it; nothing
        is begun after a failure, and what runs is waited for.
    """
    active = ACTIVE.get() or Active(ExecutionOptions())
    limit = min(max_workers or len(tasks), active.options.max_workers or len(tasks))
    run = _Run(tasks, what, limit if active.options.use_parallel else 1, active)
    try:
        return run.results()
    finally:
        run.end()


def supervised(
    active: Active, name: str, category: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """``fn(*args, **kwargs)`` under the options of ``active``, which is the context's."""
    options = active.options
    # A trace of JAX belongs to its thread and has no times of its own.
    if is_tracing() or (options.deadline is None and options.trace is None):
        return fn(*args, **kwargs)
    check_timeout(name)
    if options.deadline is not None and not active.worker and category not in _WATCHFUL:
        # In its thread, which is a worker of this one.
        active = dataclasses.replace(active, worker=True)
        call = functools.partial(supervised, active, name, category, fn, *args, **kwargs)
        return run_tasks([Task(name, call)], name)[0]
    if options.trace is None:
        # Under a deadline, what a device still computes counts as the call's own time.
        return jax.block_until_ready(fn(*args, **kwargs))
    span = options.trace.begin(name, category, active.span)
    token = ACTIVE.set(dataclasses.replace(active, span=span))
    try:
        result = jax.block_until_ready(fn(*args, **kwargs))
    except BaseException as error:
        options.trace.end(span, error)
        raise
    finally:
        ACTIVE.reset(token)
    options.trace.end(span)
    return result


class Supervised:
    """A callable that keeps to `execution_options` by itself; its work is in ``call``."""

    #: also read through a method of it
    supervises = True
    #: the category of its spans
    kind: str
    _name: str
    call: Callable[..., Any]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        active = ACTIVE.get()
        if active is None:
            return self.call(*args, **kwargs)
        if active.recorder is not None and active.recorder.concerns((args, kwargs)):
            return self.recorded(active.recorder, *args, **kwargs)
        return supervised(active, self._name, self.kind, self.call, *args, **kwargs)

    def recorded(self, recorder: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call in a graph that is being recorded."""
        return recorder.call(self, *args, **kwargs)


class _Run:
    """One call of `run_tasks`: the caller chooses what begins, its threads work."""

    def __init__(self, tasks: Sequence[Task], what: str, limit: int, active: Active) -> None:
        self._tasks, self._what, self._limit = tasks, what, limit
        self._options = active.options
        # One at a time needs no thread, unless somebody has to leave it behind.
        self._inline = limit == 1 and active.options.deadline is None
        self._context, self._contexts = contextvars.copy_context(), ThreadContexts()
        worker = active.worker or not self._inline
        self._context.run(ACTIVE.set, dataclasses.replace(active, worker=worker, recorder=None))
        self._order = TopologicalSorter({i: task.after for i, task in enumerate(tasks)})
        self._begun: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        self._threads = 0
        self._running: set[int] = set()
        self._finished = 0

    def results(self) -> list[Any]:
        results: list[Any] = [None] * len(self._tasks)
        errors: dict[int, BaseException] = {}
        ready: list[tuple[float, int]] = []
        self._order.prepare()
        while True:
            for index in self._order.get_ready():
                priority = 0.0 if self._limit == 1 else self._tasks[index].priority
                heapq.heappush(ready, (-priority, index))
            while ready and not errors and len(self._running) < self._limit:
                self._begin(heapq.heappop(ready)[1])
            if not self._running:
                break
            index, result, error = self._wait()
            self._running.discard(index)
            if error is None:
                results[index] = result
                self._finished += 1
                self._order.done(index)
            else:
                errors[index] = error
        if errors:
            raise self._error(errors)
        return results

    def _begin(self, index: int) -> None:
        self._running.add(index)
        if self._inline:
            self._work(index)
            return
        self._begun.put(index)
        if self._threads < len(self._running):
            self._threads += 1
            # A daemon: work that a timeout has given up on must not keep the process from ending.
            name = f"jaxkern-execution-{self._threads}"
            threading.Thread(target=self._serve, name=name, daemon=True).start()

    def _serve(self) -> None:
        while (index := self._begun.get()) is not None:
            self._work(index)

    def _work(self, index: int) -> None:
        def run() -> Any:
            with self._contexts.enter():
                return self._tasks[index].run()

        try:
            self._ended.put((index, self._context.copy().run(run), None))
        except BaseException as error:  # whatever it is belongs to the caller
            self._ended.put((index, None, error))

    def end(self) -> None:
        """Lets the threads go when they are done."""
        for _ in range(self._threads):
            self._begun.put(None)

    def _wait(self) -> tuple[int, Any, BaseException | None]:
        if self._options.deadline is None:
            return self._ended.get()
        while True:
            left = self._options.deadline - time.monotonic()
            try:
                # Python waits for no longer than its TIMEOUT_MAX at a time.
                return self._ended.get(timeout=min(max(0.0, left), threading.TIMEOUT_MAX))
            except queue.Empty:
                if left <= threading.TIMEOUT_MAX:
                    raise self._timeout() from None

    def _timeout(self) -> ExecutionTimeout:
        running = sorted(self._running)
        dropped = len(self._tasks) - self._finished - len(running)
        names = ", ".join(self._tasks[index].name for index in running[:8])
        names += ", ..." if len(running) > 8 else ""
        return ExecutionTimeout(
            f"{self._what}: the {self._options.timeout_seconds:g} s of "
            "execution_options(timeout_seconds=...) are over. "
            f"{self._finished} of {len(self._tasks)} finished, {dropped} were not begun and are "
            f"dropped, {len(running)} still run and cannot be cancelled ({names}): a Python "
            "function goes on to its next operator call or execution.check_timeout(), a "
            "compilation or a computation of a device to its end"
        )

    def _error(self, errors: dict[int, BaseException]) -> BaseException:
        first, *others = sorted(errors)
        text = f"{self._what}: raised by {self._tasks[first].name}"
        if others:
            names = ", ".join(self._tasks[index].name for index in others)
            text += f"; these failed too: {names}"
        left = len(self._tasks) - self._finished - len(errors)
        if left:
            text += f"; {left} were not begun"
        note(errors[first], "{}", text)
        return errors[first]
