"""Measurement of JAX's compile time in a ``with`` block."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

import jax

_COMPILING = "/jax/core/compile/"


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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        jax.monitoring.unregister_event_duration_listener(self._on_event)
