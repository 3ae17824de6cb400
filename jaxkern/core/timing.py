"""Wall times of calls, from the dispatch until every result is there."""

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
    """Seconds of each call of a function: ``calls`` of them, and more until ``seconds`` are spent.

    The calls of the warm-up are not among them, so that neither compilation nor a first touch is.

    Args:
      fn: takes ``args``; its result is waited for, pytrees of other things than arrays too.
      most: of calls, however short they are.
      fresh: makes the arguments of each call, in place of ``args`` and before its time, of a
        function that takes them away.
    """
    for _ in range(warmup):
        jax.block_until_ready(fn(*(args if fresh is None else fresh())))
    times: list[float] = []
    spent = 0.0
    while len(times) < calls or (spent < seconds and len(times) < most):
        given = args if fresh is None else jax.block_until_ready(fresh())
        started = time.perf_counter()
        jax.block_until_ready(fn(*given))
        times.append(time.perf_counter() - started)
        spent += times[-1]
    return times
