"""Host work on threads: in the order of its dependencies, within a limit and a deadline."""

from __future__ import annotations

import contextvars
import dataclasses
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxkern.core.contexts import ThreadContexts
from jaxkern.core.failures import note
from jaxkern.execution.options import ACTIVE, Active, ExecutionOptions, ExecutionTimeout

_IDLE_SECONDS = 10.0


class _Threads:
    """Threads that are kept for a while after their work.

    There is always one more: work that waits for other work can therefore not lock up, and a
    limit is that of each call. They are daemons, as work that a timeout has given up on must not
    keep the process from ending.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[queue.SimpleQueue[Callable[[], None]]] = []
        self._count = 0

    def start(self, work: Callable[[], None]) -> None:
        with self._lock:
            if self._idle:
                self._idle.pop().put(work)
                return
            self._count += 1
            name = f"jaxkern-execution-{self._count}"
        inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        inbox.put(work)
        threading.Thread(target=self._serve, args=(inbox,), name=name, daemon=True).start()

    def _serve(self, inbox: queue.SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                work = inbox.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    if inbox in self._idle:
                        self._idle.remove(inbox)
                        return
                continue  # it has just been chosen
            work()
            del work  # an idle thread keeps nobody's arrays
            with self._lock:
                self._idle.append(inbox)


_threads = _Threads()


def start(work: Callable[[], None]) -> None:
    """Runs ``work``, which must not raise, in a thread."""
    _threads.start(work)


@dataclasses.dataclass
class Unit:
    """A piece of host work: ``run`` is called when the units that it is ``after`` have ended."""

    name: str
    run: Callable[[], Any]
    after: tuple[int, ...] = ()
    #: among units that could start, that of the largest number goes first
    priority: float = 0.0


def run_units(units: Sequence[Unit], what: str, max_workers: int | None = None) -> list[Any]:
    """The results of all units, in their order.

    Args:
      what: the call's name in messages.
      max_workers: the most at a time; the options in force may lower it. None: as many as there are
        units.

    Raises:
      ExecutionTimeout: when the time in force is over, see `execution_options`.
      Exception: of the unit with the lowest number that failed, with a note that names it; nothing
        is begun after a failure, and what runs is waited for.
    """
    active = ACTIVE.get() or Active(ExecutionOptions())
    options = active.options
    limit = max_workers or len(units)
    if options.max_workers is not None:
        limit = min(limit, options.max_workers)
    if not options.use_parallel:
        limit = 1
    return _Run(units, what, max(1, limit), active).results()


class _Run:
    def __init__(self, units: Sequence[Unit], what: str, limit: int, active: Active) -> None:
        self._units, self._what, self._limit = units, what, limit
        self._options = active.options
        self._active = dataclasses.replace(active, worker=True, recorder=None)
        self._waiting = [len(set(unit.after)) for unit in units]
        self._followers: list[list[int]] = [[] for _ in units]
        for index, unit in enumerate(units):
            for before in set(unit.after):
                self._followers[before].append(index)
        self._ready = [index for index, count in enumerate(self._waiting) if count == 0]
        self._running: set[int] = set()
        self._finished = 0
        self._results: list[Any] = [None] * len(units)
        self._errors: dict[int, BaseException] = {}

    def results(self) -> list[Any]:
        # One at a time needs no thread, unless somebody has to leave it behind.
        if self._limit == 1 and self._options.deadline is None:
            self._inline()
        else:
            self._threaded()
        if self._errors:
            raise self._error()
        return self._results

    def _next(self) -> int:
        best = max(self._ready, key=lambda index: (self._units[index].priority, -index))
        self._ready.remove(best)
        return best

    def _done(self, index: int) -> None:
        self._finished += 1
        for follower in self._followers[index]:
            self._waiting[follower] -= 1
            if self._waiting[follower] == 0:
                self._ready.append(follower)

    def _inline(self) -> None:
        while self._ready:
            index = min(self._ready)
            self._ready.remove(index)
            try:
                self._results[index] = self._units[index].run()
            except Exception as error:
                self._errors[index] = error
                return
            self._done(index)

    def _threaded(self) -> None:
        contexts = ThreadContexts()
        ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
        while self._running or (self._ready and not self._errors):
            while self._ready and not self._errors and len(self._running) < self._limit:
                index = self._next()
                self._running.add(index)
                start(self._job(index, contexts, ended))
            index, result, error = self._wait(ended)
            self._running.discard(index)
            if error is not None:
                self._errors[index] = error
            else:
                self._results[index] = result
                self._done(index)

    def _job(
        self,
        index: int,
        contexts: ThreadContexts,
        ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]],
    ) -> Callable[[], None]:
        context = contextvars.copy_context()
        run, active = self._units[index].run, self._active

        def inside() -> Any:
            ACTIVE.set(active)
            with contexts.entered():
                return run()

        def job() -> None:
            try:
                result, error = context.run(inside), None
            except BaseException as problem:  # whatever it is belongs to the caller
                result, error = None, problem
            ended.put((index, result, error))

        return job

    def _wait(
        self, ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]]
    ) -> tuple[int, Any, BaseException | None]:
        if self._options.deadline is None:
            return ended.get()
        while True:
            left = self._options.deadline - time.monotonic()
            try:
                # Python waits for no longer than its TIMEOUT_MAX at a time.
                return ended.get(timeout=min(max(0.0, left), threading.TIMEOUT_MAX))
            except queue.Empty:
                if left <= threading.TIMEOUT_MAX:
                    raise self._timeout() from None

    def _timeout(self) -> ExecutionTimeout:
        running = sorted(self._running)
        dropped = len(self._units) - self._finished - len(running)
        names = ", ".join(self._units[index].name for index in running[:8])
        names += ", ..." if len(running) > 8 else ""
        return ExecutionTimeout(
            f"{self._what}: the {self._options.timeout_seconds:g} s of "
            "execution_options(timeout_seconds=...) are over. "
            f"{self._finished} of {len(self._units)} finished, {dropped} were not begun and are "
            f"dropped, {len(running)} still run and cannot be cancelled ({names}): a Python "
            "function goes on to its next operator call or execution.check_timeout(), a "
            "compilation or a computation of a device to its end"
        )

    def _error(self) -> BaseException:
        first = min(self._errors)
        error = self._errors[first]
        text = f"{self._what}: raised by {self._units[first].name}"
        others = [self._units[index].name for index in sorted(self._errors) if index != first]
        if others:
            text += f"; these failed too: {', '.join(others)}"
        left = len(self._units) - self._finished - len(self._errors)
        if left:
            text += f"; {left} were not begun"
        note(error, "{}", text)
        return error
