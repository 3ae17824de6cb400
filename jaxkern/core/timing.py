"""Wall times of calls, from dispatch until all results are ready."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax


def call_seconds(
    fn: Callable[..., Any],
    *args: Any,
    calls: int = 3,
    seconds: float = 0.0,
    warmup: int = 1,
    most: int = 10_000,
    fresh: Callable[[], tuple[Any, ...]] | None = None,
) -> list[float]:
    """Time ``calls`` calls of a function, and more until ``seconds`` have passed.

    Warm-up calls are not included, so compilation and first page faults do not count.

    Args:
      fn: function of ``args``; each call waits until its result is ready.
      args: arguments of each call.
      calls: minimum number of timed calls.
      seconds: minimum total time in seconds.
      warmup: number of untimed calls before.
      most: maximum number of timed calls.
      fresh: makes new arguments for each call instead of ``args``, for a function that donates
        its arguments. Its time is not included.

    Returns:
      The time of each call in seconds.
    """
    for _ in range(warmup):
        jax.block_until_ready(fn(*(args if fresh is None else fresh())))
    times: list[float] = []
    spent = 0.0
    while len(times) < calls or (spent < seconds and len(times) < most):
        arguments = args if fresh is None else jax.block_until_ready(fresh())
        started = time.perf_counter()
        jax.block_until_ready(fn(*arguments))
        times.append(time.perf_counter() - started)
        spent += times[-1]
    return times
