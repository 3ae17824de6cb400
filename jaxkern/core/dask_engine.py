"""Tasks on the workers of a dask.distributed cluster, one per worker."""

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
from functools import cached_property, partial
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
from jaxkern.core.paths import OutputInUse, home_path
from jaxkern.core.registry import module, set_max_workers
from jaxkern.core.threads import num_threads

# A worker has one unit of this resource and each file needs it: a worker has one file at a time.
_RESOURCE = "jaxkern"
# CPUs per process of a local cluster without `workers=`.
_CPUS = 4
_SCHEDULER_TIMEOUT = "30s"
# Seconds between two queries for new workers.
_POLL_SECONDS = 1.0
# Number of attempts that marks the last attempt of a task whose workers were killed.
_ALONE = -1
_LIMIT = "JAXKERN_MEMORY_LIMIT"
# Settings of this process before each of the running tasks.
_saved: list[tuple[int, str | None]] = []
_lock = threading.Lock()


class _CommonArguments(WorkerPlugin):  # type: ignore[misc]  # distributed has no types
    """Gives each worker, also later ones, the common arguments and one unit of the resource."""

    def __init__(self, common: Any):
        self._packed = zlib.compress(pickle.dumps(common), 1)

    async def setup(self, worker: Any) -> None:
        await worker.set_resources(**{_RESOURCE: 1})

    @cached_property
    def common(self) -> Any:
        return pickle.loads(zlib.decompress(self._packed))


def open_engine(
    engine: Any, scheduler: str | None, workers: int | None
) -> contextlib.AbstractContextManager[Any]:
    """Return a context of a function that runs tasks on a cluster, see `choose_engine`."""
    if isinstance(engine, Client):
        if scheduler is not None or workers is not None:
            raise ValueError("scheduler, workers: expected None for a client as engine")
        return contextlib.nullcontext(partial(_on_workers, engine))
    if not isinstance(engine, str):
        raise TypeError(f'engine: expected None, "dask" or a Client, got {engine!r:.80}')
    if workers is not None:
        check_integer("workers", workers, 1)
        if scheduler is not None:
            raise ValueError("workers: expected None, since the scheduler has its workers")
    if scheduler is not None and ":" not in scheduler and not home_path(scheduler).is_file():
        raise FileNotFoundError(
            "scheduler: expected an address, such as tcp://node1:8786, or the file that a "
            f"scheduler wrote, got {scheduler!r}"
        )
    return _connect(scheduler, workers)


@contextlib.contextmanager
def _connect(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        if scheduler is None:
            options = {"address": stack.enter_context(_local_cluster(workers))}
        else:
            file = home_path(scheduler)
            key = "scheduler_file" if file.is_file() else "address"
            options = {"timeout": _SCHEDULER_TIMEOUT}
            options[key] = str(file) if file.is_file() else scheduler
        yield partial(_on_workers, stack.enter_context(Client(**options)))


def _local_cluster(workers: int | None) -> LocalCluster:
    """Start processes on this machine, which share its threads and memory, without Ctrl-C."""
    count = max(1, num_threads() // _CPUS) if workers is None else workers
    threads = max(1, num_threads() // count)
    with _without_interrupts():
        return LocalCluster(
            n_workers=count,
            threads_per_worker=threads,
            # dask would kill workers for mapped files, which it counts as memory.
            memory_limit=0,
            # No dashboard. Without an address, the scheduler would warn if port 8787 is in use.
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=logging.CRITICAL,
            # dask does not limit XLA's threads, whose number is NPROC.
            env={"NPROC": str(threads), _LIMIT: repr(memory_limit() / count)},
        )


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT in threads and processes that are started in this context."""
    resource_tracker.ensure_running()  # starting it later would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _on_workers(
    client: Client, run: Callable[[Any, Any], Any], tasks: Sequence[Any], common: Any, retries: int
) -> Iterator[tuple[Any, Any]]:
    """Yield each finished task with the result of ``run(task, common)``, or its exception.

    dask restarts a task whose worker was killed on another worker, and gives it up after several
    times, together with tasks that wait for the same workers. Therefore there are never more tasks
    on the cluster than workers, and tasks that were given up are retried alone at the end.
    """
    name = f"jaxkern-{uuid.uuid4().hex[:8]}"
    client.register_plugin(_CommonArguments(common), name=name)
    waiting = deque((task, 0) for task in tasks)
    given_up: deque[Any] = deque()
    running: dict[Any, tuple[Any, int]] = {}

    def submit(task: Any, attempts: int) -> None:
        options = {"resources": {_RESOURCE: 1}, "pure": False}
        running[client.submit(_run_on_worker, name, run, task, **options)] = (task, attempts)

    try:
        while waiting or running or given_up:
            workers = _count_workers(client)
            while waiting and len(running) < workers:
                submit(*waiting.popleft())
            if not running:
                submit(given_up.popleft(), _ALONE)
            with contextlib.suppress(TimeoutError, CancelledError):
                wait(list(running), _POLL_SECONDS, return_when="FIRST_COMPLETED")
            for future in [future for future in running if future.done()]:
                task, attempts = running.pop(future)
                result = _result(future)
                future.release()
                if isinstance(result, KilledWorker) and attempts != _ALONE:
                    given_up.append(task)
                elif isinstance(result, OutputInUse):
                    waiting.append((task, attempts))
                elif isinstance(result, Exception) and 0 <= attempts < retries:
                    waiting.append((task, attempts + 1))
                else:
                    yield task, result
    finally:
        with contextlib.suppress(Exception):  # the scheduler may be gone
            client.cancel(list(running))
            client.unregister_worker_plugin(name)


def _count_workers(client: Client) -> int:
    """Return the number of workers that can run a task at present, at least 1."""
    info = client.scheduler_info(n_workers=-1)
    if "workers" not in info:
        raise ConnectionError("the scheduler is gone; run again with another scheduler to continue")
    workers = info["workers"].values()
    ready = [w for w in workers if w["status"] == "running" and w["resources"].get(_RESOURCE)]
    return max(1, len(ready))


def _result(future: Any) -> Any:
    """Return a task's result or exception."""
    if future.status in ("finished", "error"):
        return future.exception() or future.result()
    return RuntimeError(f"the cluster dropped the task ({future.status})")


def _run_on_worker(name: str, run: Callable[[Any, Any], Any], task: Any) -> Any:
    worker = get_worker()
    with _worker_limits(worker):
        return run(task, worker.plugins[name].common)


@contextlib.contextmanager
def _worker_limits(worker: Any) -> Iterator[None]:
    """Apply a worker's limits until the last task of its process, which workers may share, ends."""
    native, limit = module("cpu"), worker.memory_manager.memory_limit
    with _lock:
        _saved.append((native.max_workers() if native else 0, os.environ.get(_LIMIT)))
        # JAXKERN_NUM_THREADS was applied when jaxkern was imported, and takes precedence.
        if native is not None and "JAXKERN_NUM_THREADS" not in os.environ:
            set_max_workers(worker.state.nthreads)
        if limit:
            os.environ.setdefault(_LIMIT, repr(limit / GIB))
    try:
        yield
    finally:
        with _lock:
            threads, memory = _saved.pop()
            if not _saved:
                if native is not None:
                    set_max_workers(threads)
                if memory is None:
                    os.environ.pop(_LIMIT, None)
