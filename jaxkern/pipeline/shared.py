"""Values that several threads need: computed by the first one that asks."""

from __future__ import annotations

import threading
from typing import Any


class Shared:
    """Values that threads ask for by key, each computed once; the last few are kept.

    Args:
      keep: how many, of those that may still be asked for.
    """

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._entries: dict[Any, _Entry] = {}

    def get(self, key: Any, compute: Any, taken: int = 0, whole: int = 1) -> Any:
        """The value of `key`; `compute()` makes it, in the first thread that asks.

        Args:
          taken: how much of it this call is for; once all has been asked for, it is let go. Who
            asks then has it computed again.
          whole: how much there is.
        """
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
            entry.taken += taken
            if entry.taken < whole:
                self._entries[key] = entry  # behind the others: it was used last
            while len(self._entries) > self._keep:
                del self._entries[next(iter(self._entries))]
        with entry.lock:
            if not entry.done:
                entry.value = compute()
                entry.done = True
            return entry.value


class _Entry:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done = False
        self.taken = 0
        self.value: Any = None
