"""The progress bar of long fits: passes and cost, and the chunks of the running pass."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Any


class ProgressBar:
    """A bar on stderr while it is a terminal; nothing otherwise."""

    def __init__(self, wanted: bool) -> None:
        self._bar: Any = None
        if not (wanted and sys.stderr.isatty()):
            return
        try:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
        except ImportError:
            return
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("chunk {task.completed}/{task.total}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task("fit: pass 1", total=None)

    def __enter__(self) -> ProgressBar:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, done: int, total: int) -> None:
        """`done` of the `total` chunks of this pass are in."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def after_pass(self, number: int, cost: float) -> None:
        """Pass `number` is finished."""
        if self._bar is not None:
            text = f"fit: pass {number + 1}, cost {cost:.6g}"
            self._bar.update(self._task, description=text, completed=0)
