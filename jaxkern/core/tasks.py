"""Independent tasks, such as one for each file: here or on a cluster."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jaxkern.core.paths import OutputInUse

#: runs tasks by a function of the task and the common arguments, with a number of retries.
RunAll = Callable[[Callable[[Any, Any], Any], Sequence[Any], Any, int], Iterator[tuple[Any, Any]]]


def run_in_turn(
    run: Callable[[Any, Any], Any], tasks: Sequence[Any], common: Any, retries: int
) -> Iterator[tuple[Any, Any]]:
    """Yield each task with the result of ``run(task, common)``, or its exception after retries.

    Tasks whose output another process writes are postponed.
    """
    waiting = deque((task, 0) for task in tasks)
    while waiting:
        task, attempts = waiting.popleft()
        try:
            result = run(task, common)
        except OutputInUse:
            waiting.append((task, attempts))
            continue
        except Exception as error:
            if attempts < retries:
                waiting.append((task, attempts + 1))
                continue
            result = error
        yield task, result


def choose_engine(
    engine: Any, scheduler: str | None, workers: int | None
) -> contextlib.AbstractContextManager[RunAll]:
    """Return a context of a function that runs the tasks; it starts when it is entered."""
    if engine is None:
        if scheduler is not None or workers is not None:
            raise ValueError('engine: expected "dask" for scheduler and workers, got None')
        return contextlib.nullcontext(run_in_turn)
    if isinstance(engine, str) and engine != "dask":
        raise ValueError(f'engine: expected None, "dask" or a distributed.Client, got {engine!r}')
    try:
        from jaxkern.core import dask_engine
    except ModuleNotFoundError as error:
        if error.name not in ("dask", "distributed"):
            raise
        raise ImportError(
            "dask.distributed is required: pip install 'jaxkern-native[dask]'"
        ) from error
    return dask_engine.open_engine(engine, scheduler, workers)
