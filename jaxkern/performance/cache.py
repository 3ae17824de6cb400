"""JAX's persistent compilation cache, also for programs that compile fast."""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
from jax.experimental.compilation_cache import compilation_cache

from jaxkern.core.paths import home_path

_HIT = "/jax/compilation_cache/cache_hits"
_MISS = "/jax/compilation_cache/cache_misses"


@dataclass
class CacheReport:
    """Hits and misses of the persistent cache since it was enabled, updated as they occur.

    Attributes:
      directory: directory of the cached programs.
      hits, misses: number of compilations that were read from the cache, or added to it.
    """

    directory: Path
    hits: int = 0
    misses: int = 0

    @property
    def entries(self) -> int:
        """Current number of programs in the directory, including those of other processes."""
        return sum(1 for path in self._files() if path.name.endswith("-cache"))

    @property
    def bytes(self) -> int:
        """Current size of the directory."""
        total = 0
        for path in self._files():
            # Another process may delete the file meanwhile.
            with contextlib.suppress(FileNotFoundError):
                total += path.stat().st_size
        return total

    def _files(self) -> list[Path]:
        return [path for path in self.directory.rglob("*") if path.is_file()]

    def __str__(self) -> str:
        return (
            f"compilation cache {self.directory}: {self.hits} hits, {self.misses} misses; "
            f"{self.entries} programs, {self.bytes / 1e6:.1f} MB"
        )


_lock = threading.Lock()
_current: CacheReport | None = None
_SETTINGS: dict[str, Any] = {
    "jax_enable_compilation_cache": True,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}
_saved_settings: dict[str, Any] = {}


def enable_persistent_cache(directory: str | os.PathLike[str]) -> CacheReport:
    """Cache compiled programs in a directory, including small ones and those that compile fast.

    Programs with host callbacks are never cached. The directory grows without bound unless
    ``jax.config.update("jax_compilation_cache_max_size", bytes)`` sets a limit. A further call with
    another directory switches to that directory.

    Args:
      directory: path; created if it does not exist.

    Returns:
      A `CacheReport` that counts hits and misses from now on.

    Raises:
      ValueError: if the path is empty, or begins with ``~`` and the user has no home directory.
      OSError: if the directory cannot be created or written to; NotADirectoryError for a file.

    Example:
      >>> import tempfile
      >>> from jaxkern import performance
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     report = performance.enable_persistent_cache(folder)
      ...     performance.disable_persistent_cache()
      >>> report.hits
      0
    """
    global _current
    path = _writable_directory(directory)
    settings = {**_SETTINGS, "jax_compilation_cache_dir": str(path)}
    with _lock:
        if _current is None:
            jax.monitoring.register_event_listener(_count)
            _saved_settings.update({name: getattr(jax.config, name) for name in settings})
        _current = CacheReport(path)
        for name, value in settings.items():
            jax.config.update(name, value)
        # JAX reads these settings only at its first compilation, or after a reset.
        compilation_cache.reset_cache()
        return _current


def disable_persistent_cache() -> None:
    """Restore the cache directory and thresholds that JAX had before `enable_persistent_cache`."""
    global _current
    with _lock:
        if _current is None:
            return
        jax.monitoring.unregister_event_listener(_count)
        _current = None
        for name, value in _saved_settings.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _count(event: str, **_: Any) -> None:
    if event in (_HIT, _MISS):
        with _lock:
            if _current is not None:
                _current.hits += event == _HIT
                _current.misses += event == _MISS


def _writable_directory(directory: str | os.PathLike[str]) -> Path:
    if not os.fspath(directory):
        raise ValueError("directory: expected a path, got an empty string")
    path = home_path(directory).absolute()
    if path.is_file():
        raise NotADirectoryError(f"directory: expected a directory, got the file {path}")
    path.mkdir(parents=True, exist_ok=True)
    tempfile.TemporaryFile(dir=path).close()  # raises if the directory is not writable
    return path
