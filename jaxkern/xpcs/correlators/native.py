"""Calls of the native kernels, and the progress bar of a correlation."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import timedelta
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from jaxkern.core.backend import current_backend
from jaxkern.core.progress import ProgressBar
from jaxkern.core.quantities import format_quantity
from jaxkern.core.registry import missing as why_missing
from jaxkern.core.registry import module
from jaxkern.core.threads import num_threads

_T = TypeVar("_T")


class CorrelationProgress(ProgressBar):
    """Progress bar with frames/s, bytes/s and the remaining time; `begin` starts a pass."""

    def __init__(self, shown: bool, name: str) -> None:
        super().__init__(shown, name, "frame")
        self._name = name
        self.begin(0, 0)

    def begin(self, total: int, frame_bytes: int) -> None:
        """Start a pass over `total` frames of `frame_bytes` bytes each."""
        self._done, self._total = 0.0, total
        self._bytes, self._since = frame_bytes, time.monotonic()
        self.update(0, total)

    def advance(self, frames: float) -> None:
        """Add `frames` to the number of completed frames."""
        self._done += frames
        rate = self._done / max(time.monotonic() - self._since, 1e-9)
        seconds = max(self._total - self._done, 0) / max(rate, 1e-9)
        self.update(
            round(self._done),
            text=f"{self._name}: {rate:,.0f} frames/s, "
            f"{format_quantity(rate * self._bytes, 'B/s')}, "
            f"{timedelta(seconds=round(min(seconds, 1e9)))} left",
        )

    def set_fraction(self, fraction: float) -> None:
        """Set the completed fraction of all frames."""
        self.advance(fraction * self._total - self._done)


def native_module() -> ModuleType | None:
    """Return the native library, or None if the backend is "jax" or the library is missing."""
    if current_backend() == "jax":
        return None
    native = module("cpu")
    if native is None and current_backend() == "native":
        raise RuntimeError(
            f"backend('native') is set without native kernels: {why_missing('multitau', 'cpu')}"
        )
    return native


def run_watched(call: Callable[..., Any], total: int, watch: Callable[[float], None]) -> Any:
    """Run a native function in a thread, and call `watch` with its progress every 0.1 s."""
    done = np.zeros(2, np.int64)  # completed work, and 1 to stop
    with ThreadPoolExecutor(1, "jaxkern-multitau") as worker:
        running = worker.submit(call, threads=num_threads(), progress=done)
        try:
            while not wait([running], timeout=0.1).done:
                watch(done[0] / max(total, 1))
        except BaseException:
            done[1] = 1
            raise
        return running.result()


def computed_ahead(
    call: Callable[..., _T], arguments: Iterable[tuple[Any, ...]], name: str
) -> Iterator[_T]:
    """Yield the results for each tuple of arguments; a thread computes one result ahead."""
    with ThreadPoolExecutor(1, name) as worker:
        pending: deque[Future[_T]] = deque()
        for each in arguments:
            pending.append(worker.submit(call, *each))
            if len(pending) == 2:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
