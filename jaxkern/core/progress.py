"""A progress bar for long tasks on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

_Item = TypeVar("_Item")


class ProgressBar:
    """A bar on stderr if it is a terminal and rich is installed; otherwise nothing."""

    def __init__(self, enabled: bool, text: str, unit: str) -> None:
        self._bar: Any = None
        if not (enabled and sys.stderr.isatty()):
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
        """Update the count, the total and the text; None and "" keep the current value."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text or None)


def track(items: Sequence[_Item], text: str, unit: str) -> Iterator[_Item]:
    """Yield the items, and show the number of those that are done."""
    with ProgressBar(True, text, unit) as bar:
        for done, item in enumerate(items, 1):
            yield item
            bar.update(done, len(items))
