"""Files on the workers of a dask.distributed cluster: one at a time on each, in any order.

Importing this asks for `distributed`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import threading
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing import resource_tracker
from typing import Any

from distributed import (
    CancelledError,
    Client,
    KilledWorker,
    LocalCluster,
    WorkerPlugin,
    get_worker,
    wait,
)

from jaxkern.core.arguments import check_integer
from jaxkern.core.memory import GIB, memory_limit
from jaxkern.core.paths import home_path
from jaxkern.core.registry import module, set_max_workers
from jaxkern.core.threads import num_threads

# What a worker has one of, and each file takes: so it has one file at a time.
_ONE = "jaxkern"
# Without `workers=` a local cluster has a process for so many CPUs.
_CPUS = 4
# So long a scheduler has to answer.
_PATIENCE = "30s"
# Seconds between two looks for new workers.
_LOOK = 1.0
# Instead of a number of attempts: of a task that dask had given up.
_ALONE = -1
_LIMIT = "JAXKERN_MEMORY_LIMIT"
# What a process had before each of the tasks that run in it.
_before: list[tuple[int, str | None]] = []
_share = threading.Lock()


class _Workplace(WorkerPlugin):  # type: ignore[misc]  # of a package without types
    """What each worker gets when it starts, also one that comes late or a second time.

    It holds what the calls have in common, packed, and lets a worker have one of them at a time.
    """

    def __init__(self, common: Any):
        self._packed = zlib.compress(pickle.dumps(common), 1)
        self._common: Any = None

    async def setup(self, worker: Any) -> None:
        await worker.set_resources(**{_ONE: 1})

    def common(self) -> Any:
        if self._common is None:
            self._common = pickle.loads(zlib.decompress(self._packed))
        return self._common


def opened(
    engine: Any, scheduler: str | None, workers: int | None
) -> contextlib.AbstractContextManager[Any]:
    """`on_workers` of a cluster; see `correlate_files`, whose arguments these are.

    Raises:
      TypeError: an engine that is no client of dask's.
      ValueError: choices that do not go together.
      FileNotFoundError: a scheduler that is neither an address nor a file that is there.
    """
    if isinstance(engine, Client):
        if scheduler is not None or workers is not None:
            raise ValueError("a client has its scheduler and workers; wanted none beside it")
        return contextlib.nullcontext(partial(_on_workers, engine))
    if not isinstance(engine, str):
        raise TypeError(f'engine is {engine!r:.80}; wanted None, "dask" or a distributed.Client')
    if workers is not None:
        check_integer("workers", workers, 1)
        if scheduler is not None:
            raise ValueError("a scheduler has workers of its own; wanted it or workers")
    if scheduler is not None and ":" not in scheduler and not home_path(scheduler).is_file():
        raise FileNotFoundError(
            f"the scheduler is {scheduler!r}; wanted an address, such as tcp://node1:8786, or the "
            "file that a scheduler wrote"
        )
    return _opened(scheduler, workers)


@contextlib.contextmanager
def _opened(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            place: dict[str, Any] = {"address": stack.enter_context(_local_cluster(workers))}
        else:
            path = home_path(scheduler)
            told = {"scheduler_file": str(path)} if path.is_file() else {"address": scheduler}
            place = {**told, "timeout": _PATIENCE}
        yield partial(_on_workers, stack.enter_context(Client(**place)))


def _local_cluster(workers: int | None) -> LocalCluster:
    """Processes on this machine, which share its threads and memory.

    Ctrl-C is for this process alone, which ends them.
    """
    count = max(1, num_threads() // _CPUS) if workers is None else workers
    threads = max(1, num_threads() // count)
    with _without_interrupts():
        return LocalCluster(
            n_workers=count,
            threads_per_worker=threads,
            # dask counts mapped files as memory of a worker, and would end it for them.
            memory_limit=0,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
            env={
                # XLA's own threads, which dask does not count.
                "NPROC": str(threads),
                _LIMIT: repr(memory_limit() / count),
            },
        )


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Threads and processes that begin here never see Ctrl-C; they inherit the mask."""
    resource_tracker.ensure_running()  # which would unblock it as it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_workers(
    client: Client,
    run: Callable[[Any, Any], Any],
    tasks: Sequence[Any],
    common: Any,
    retries: int,
) -> Iterator[tuple[Any, Any]]:
    """Each task with what ``run(task, common)`` gave on some worker, or its exception; as they end.

    A task that raises is tried again behind the others. One whose worker dies begins again
    elsewhere. Where its workers died too often, dask gives it up, and with it what waited for the
    same workers: there are never more tasks on the cluster than workers, and what was given up is
    tried once more at the end, alone, so that it can only blame itself.
    """
    name = f"jaxkern-{uuid.uuid4().hex[:8]}"
    client.register_plugin(_Workplace(common), name=name)
    waiting = deque((task, 0) for task in tasks)
    given_up: deque[Any] = deque()
    running: dict[Any, tuple[Any, int]] = {}

    def submit(task: Any, tried: int) -> None:
        future = client.submit(_run_here, name, run, task, resources={_ONE: 1}, pure=False)
        running[future] = (task, tried)

    try:
        while waiting or running or given_up:
            room = _workplaces(client)
            while waiting and len(running) < room:
                submit(*waiting.popleft())
            if not running:
                submit(given_up.popleft(), _ALONE)
            with contextlib.suppress(TimeoutError, CancelledError):
                wait(list(running), _LOOK, return_when="FIRST_COMPLETED")
            for future in [future for future in running if future.done()]:
                task, tried = running.pop(future)
                found = _found(future)
                future.release()
                if isinstance(found, KilledWorker) and tried != _ALONE:
                    given_up.append(task)
                elif isinstance(found, Exception) and 0 <= tried < retries:
                    waiting.append((task, tried + 1))
                else:
                    yield task, found
    finally:
        with contextlib.suppress(Exception):  # as of a scheduler that is gone
            client.cancel(list(running))
            client.unregister_worker_plugin(name)


def _workplaces(client: Client) -> int:
    """How many workers can take a task, which come and go; 1 where all are still to come."""
    told = client.scheduler_info(n_workers=-1)
    if "workers" not in told:
        raise ConnectionError(
            "the scheduler is gone; a second start does what is not finished, on another one"
        )
    workers = told["workers"].values()
    ready = [w for w in workers if w["status"] == "running" and w["resources"].get(_ONE)]
    return max(1, len(ready))


def _found(future: Any) -> Any:
    """A task's result or exception."""
    if future.status == "finished":
        return future.result()
    if future.status == "error":
        return future.exception()
    return RuntimeError(f"the cluster has let go of it ({future.status})")


def _run_here(name: str, run: Callable[[Any, Any], Any], task: Any) -> Any:
    """A task on a worker, with the threads and the memory that dask gives the worker."""
    worker = get_worker()
    with _share_of(worker):
        return run(task, worker.plugins[name].common())


@contextlib.contextmanager
def _share_of(worker: Any) -> Iterator[None]:
    """Threads and memory of a worker. Behind the last task of a process, in which several workers
    may be, it has its own again."""
    native, limit = module("cpu"), worker.memory_manager.memory_limit
    with _share:
        _before.append((native.max_workers() if native else 0, os.environ.get(_LIMIT)))
        # JAXKERN_NUM_THREADS, where a worker has it, was heeded when jaxkern was imported.
        if native is not None and "JAXKERN_NUM_THREADS" not in os.environ:
            set_max_workers(worker.state.nthreads)
        if limit:
            os.environ.setdefault(_LIMIT, repr(limit / GIB))
    try:
        yield
    finally:
        with _share:
            threads, told = _before.pop()
            if not _before:
                if native is not None:
                    set_max_workers(threads)
                if told is None:
                    os.environ.pop(_LIMIT, None)
