"""The progress bar of long work, where somebody is looking."""

from __future__ import annotations

import sys
from typing import Any, Self


class ProgressBar:
    """A bar on stderr while it is a terminal and rich is installed; nothing otherwise.

    Args:
      wanted: False for no bar at all.
      text: before the bar, at first.
      unit: what is counted behind the bar.
    """

    def __init__(self, wanted: bool, text: str, unit: str) -> None:
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
            TextColumn(unit + " {task.completed}/{task.total}"),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self._bar.add_task(text, total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, done: int | None = None, total: int | None = None, text: str = "") -> None:
        """What is done, of how much, and what is going on; None and "" leave it as it was."""
        if self._bar is not None:
            changed = {"completed": done, "total": total, "description": text or None}
            known = {name: value for name, value in changed.items() if value is not None}
            self._bar.update(self._task, **known)
