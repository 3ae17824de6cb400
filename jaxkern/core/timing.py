"""Wall times of calls, and the time that JAX spends compiling."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Self

import jax

_COMPILING = "/jax/core/compile/"


def call_seconds(
    fn: Callable[..., Any],
    *args: Any,
    calls: int = 3,
    seconds: float = 0.0,
    warmup: int = 1,
    most: int = 10_000,
    fresh: Callable[[], tuple[Any, ...]] | None = None,
) -> list[float]:
    """Return the seconds of ``calls`` calls, or of up to ``most`` until ``seconds`` have passed.

    ``warmup`` calls before are not timed. ``fresh`` makes new arguments for each call, for a
    function that donates them; its time is not included.
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


class CompileClock:
    """Context manager that sums the time this thread spends tracing, lowering and compiling."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []

    @property
    def seconds(self) -> float:
        total, reached = 0.0, -float("inf")
        for begin, end in sorted(self.spans):
            total += max(0.0, end - max(begin, reached))
            reached = max(reached, end)
        return total

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith(_COMPILING) and threading.get_ident() == self._thread:
            now = time.perf_counter()
            self.spans.append((now - duration_secs, now))

    def __enter__(self) -> Self:
        self._thread = threading.get_ident()
        jax.monitoring.register_event_duration_secs_listener(self._on_event)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)
