"""JAX's persistent compilation cache, so that a second process does not compile again."""

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
    """Hits and misses of the persistent cache since it was enabled; it counts on by itself.

    Attributes:
      directory: where the programs are.
      hits: compilations that were read from it.
      misses: compilations that were not there, and are now.
    """

    directory: Path
    hits: int = 0
    misses: int = 0

    @property
    def entries(self) -> int:
        """Programs in the folder now, those of other processes included."""
        return sum(1 for path in self._files() if path.name.endswith("-cache"))

    @property
    def bytes(self) -> int:
        """Size of the folder now."""
        total = 0
        for path in self._files():
            # Another process may take it away meanwhile.
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
_before: dict[str, Any] = {}


def enable_persistent_cache(directory: str | os.PathLike[str]) -> CacheReport:
    """Keeps compiled programs in a folder, also those that compile fast or are small.

    By default JAX keeps only what took a second or more to compile, and small kernels take less.
    Calling it again with another folder moves on to that one.

    A program is found again when its text, the versions of JAX and XLA, the devices and the
    compiler options are the same. Programs with host callbacks are never kept. The folder grows:
    ``jax.config.update("jax_compilation_cache_max_size", bytes)`` bounds it.

    Args:
      directory: made where it is missing.

    Returns:
      A `CacheReport` with the hits and misses from now on.

    Raises:
      ValueError: when the path is empty, or begins with ``~`` and the user has no home folder.
      NotADirectoryError: when it is a file.
      PermissionError: when the folder cannot be made or written to.
      OSError: when it cannot be made for another reason.

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
    path = _usable(directory)
    settings = {**_SETTINGS, "jax_compilation_cache_dir": str(path)}
    with _lock:
        if _current is None:
            jax.monitoring.register_event_listener(_count)
            _before.update({name: getattr(jax.config, name) for name in settings})
        _current = CacheReport(path)
        for name, value in settings.items():
            jax.config.update(name, value)
        # JAX decides once, at its first compilation, whether and where there is a cache.
        compilation_cache.reset_cache()
        return _current


def disable_persistent_cache() -> None:
    """Undoes `enable_persistent_cache`: JAX's folder and thresholds are what they were before."""
    global _current
    with _lock:
        if _current is None:
            return
        jax.monitoring.unregister_event_listener(_count)
        _current = None
        for name, value in _before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _count(event: str, **_: Any) -> None:
    if event not in (_HIT, _MISS):
        return
    with _lock:
        if _current is not None:
            _current.hits += event == _HIT
            _current.misses += event == _MISS


def _usable(directory: str | os.PathLike[str]) -> Path:
    wanted = "wanted a folder that this process may write to"
    if not os.fspath(directory):
        raise ValueError(f"the cache directory is empty text; {wanted}")
    path = home_path(directory).absolute()
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"the cache directory {path} is a file; {wanted}")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        kind = PermissionError if isinstance(error, PermissionError) else OSError
        raise kind(f"the cache directory {path} cannot be made: {error}; {wanted}") from error
    try:
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise PermissionError(
            f"the cache directory {path} cannot be written to: {error}; {wanted}"
        ) from error
    return path
