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
    """Return the seconds of each of at least ``calls`` calls, and more until ``seconds`` passed.

    ``warmup`` calls before are not timed. At most ``most`` calls are made. ``fresh`` makes new
    arguments for each call, for a function that donates them; its time is not included.
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
