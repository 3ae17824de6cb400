"""Values that several threads need: computed by the first one that asks."""

from __future__ import annotations

import threading
from typing import Any


class Shared:
    """Values that threads ask for by key, each computed once; the last few are kept."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._lock = threading.Lock()
        self._entries: dict[Any, _Entry] = {}

    def get(self, key: Any, compute: Any) -> Any:
        """The value of `key`; `compute()` makes it, in the first thread that asks."""
        with self._lock:
            entry = self._entries.pop(key, None) or _Entry()
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
        self.value: Any = None
