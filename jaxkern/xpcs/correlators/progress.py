"""The progress bar of a correlation: frames, what is read of them in a second, the time left."""

from __future__ import annotations

import time
from datetime import timedelta

from jaxkern.core.progress import ProgressBar
from jaxkern.core.quantities import format_quantity


class CorrelationProgress(ProgressBar):
    """A bar that counts frames; `begin` starts a pass over them, or several."""

    def __init__(self, wanted: bool, what: str) -> None:
        super().__init__(wanted, what, "frame")
        self._what = what
        self.begin(0, 0)

    def begin(self, total: int, frame_bytes: int) -> None:
        """Of `total` frames none is done; a frame has `frame_bytes` bytes."""
        self._done, self._total = 0.0, total
        self._bytes, self._since = frame_bytes, time.monotonic()
        self.update(0, total)

    def advance(self, frames: float) -> None:
        """So many frames more are done."""
        self._done += frames
        rate = self._done / max(time.monotonic() - self._since, 1e-9)
        left = max(self._total - self._done, 0) / max(rate, 1e-9)
        self.update(
            round(self._done),
            text=f"{self._what}: {rate:,.0f} frames/s, "
            f"{format_quantity(rate * self._bytes, 'B/s')}, "
            f"{timedelta(seconds=round(min(left, 1e9)))} left",
        )

    def reached(self, part: float) -> None:
        """Such a part of all frames is done."""
        self.advance(part * self._total - self._done)
