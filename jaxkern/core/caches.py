"""Caches: the least recently used values in memory, and indices of files on disk."""

from __future__ import annotations

import contextlib
import io
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from jaxkern.core.arrays import npz_bytes
from jaxkern.core.paths import home_path, write_atomically

_Value = TypeVar("_Value")

#: ns; a file that changed more recently may change again without a new time stamp
SETTLED = 2_000_000_000


class LruCache(Generic[_Value]):
    """The most recently used values up to a total size; safe to use from several threads.

    A value above ``limit`` is not stored. Each value counts 1, or ``size(value)``.

    >>> cache = LruCache(2)
    >>> for key in "abc":
    ...     evicted = cache.put(key, key.upper())
    >>> cache.get("a"), cache.get("c"), evicted
    (None, 'C', ['A'])
    """

    def __init__(self, limit: int, size: Callable[[_Value], int] = lambda value: 1) -> None:
        self._limit, self._size, self._total = limit, size, 0
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, _Value] = OrderedDict()

    def get(self, key: Hashable) -> _Value | None:
        """Return the value of a key and mark it as used; None if it is not stored."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: Hashable, value: _Value) -> list[_Value]:
        """Store a value unless the key exists; evict the least recently used ones, return them."""
        evicted: list[_Value] = []
        with self._lock:
            if key in self._values or self._size(value) > self._limit:
                return evicted
            self._values[key] = value
            self._total += self._size(value)
            while self._total > self._limit:
                evicted.append(self._values.popitem(last=False)[1])
                self._total -= self._size(evicted[-1])
        return evicted

    def values(self) -> list[_Value]:
        """Return the stored values, the least recently used one first."""
        with self._lock:
            return list(self._values.values())


def cache_folder() -> Path | None:
    """Return ``$XDG_CACHE_HOME/jaxkern``; None for a user without a home folder."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths.
    if folder and Path(folder).is_absolute():
        return Path(folder) / "jaxkern"
    try:
        return home_path("~/.cache/jaxkern")
    except ValueError:
        return None


def read_index(path: Path, about: Mapping[str, Any]) -> dict[str, np.ndarray] | None:
    """Read the arrays of an index file; None if it is missing, damaged or about something else.

    ``about`` is the JSON-compatible description of version and contents passed to `write_index`.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
            arrays = dict(archive)
        same = json.loads(arrays.pop("about").tobytes()) == about
        return arrays if same else None
    except Exception:  # NumPy raises many types for damaged archives
        return None


def write_index(path: Path, about: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Write an index file atomically; do nothing if it cannot be written.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "index"
    >>> write_index(path, {"version": 1}, {"x": np.arange(3)})
    >>> read_index(path, {"version": 1})["x"].tolist(), read_index(path, {"version": 2})
    ([0, 1, 2], None)
    """
    description = np.frombuffer(json.dumps(about).encode(), np.uint8)
    with contextlib.suppress(OSError):
        write_atomically(path, npz_bytes({"about": description, **arrays}))
