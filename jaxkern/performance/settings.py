"""Settings of a process: the compilation cache, the allocator, the threads of the CPU kernels."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import threading
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.monitoring
from jax.experimental.compilation_cache import compilation_cache

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.paths import home_path
from jaxkern.core.threads import MAX_THREADS, worker_cap

_HIT = "/jax/compilation_cache/cache_hits"
_MISS = "/jax/compilation_cache/cache_misses"


@dataclass
class CacheReport:
    """Compilations read from the persistent cache (hits) or added to it, since it was enabled.

    Example:
      >>> import pathlib
      >>> from jaxkern import performance
      >>> report = performance.CacheReport(pathlib.Path("programs"), hits=3, misses=1)
      >>> report.hits / (report.hits + report.misses)
      0.75
    """

    directory: Path
    hits: int = 0
    misses: int = 0

    @property
    def entries(self) -> int:
        """Current number of programs in the directory, including those of other processes."""
        return sum(path.name.endswith("-cache") for path in self._files())

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
    """Restore the cache directory and thresholds that JAX had before `enable_persistent_cache`.

    Example:
      >>> import tempfile
      >>> from jaxkern import performance
      >>> _ = performance.enable_persistent_cache(tempfile.mkdtemp())
      >>> performance.disable_persistent_cache()
    """
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


# The host -----------------------------------------------------------------------------------------

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def tune_host_allocator(keep_bytes: int = 1 << 30) -> bool:
    r"""Make the C library keep freed memory instead of returning it to the system.

    By default glibc maps a large buffer for each call and unmaps it afterwards, so that every page
    of every result causes a page fault. After this call, which affects the whole process, freed
    buffers stay mapped and are reused, and all threads share one heap. Results still cause page
    faults for up to 20 calls, until the heap has grown to several results: XLA frees a result on
    another thread after it has allocated the next, and glibc does not reuse the hole of an aligned
    block for the same size. `jaxkern.donated` avoids page faults from the second call on without
    these conditions. Call this function after imports and before JAX runs anything
    (``jax.devices()`` starts JAX's threads): if another thread has already allocated, nothing is
    changed.

    Args:
      keep_bytes: approximate maximum number of freed bytes that the process keeps.

    Returns:
      True if the setting took effect; otherwise a ``RuntimeWarning`` gives the reason.

    Example:
      >>> import subprocess, sys
      >>> code = "import jaxkern as jk; print(jk.performance.tune_host_allocator())"
      >>> subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
      'True\n'
    """
    keep_bytes = check_integer("keep_bytes", keep_bytes, 0)
    problem = _problem()
    if problem is None:
        # Without mmap, large buffers come from the heap, whose top is returned to the system only
        # above the trim threshold. Heaps of further threads are limited to 64 MiB, hence one arena.
        options = {
            _M_ARENA_MAX: 1,
            _M_MMAP_MAX: 0,
            _M_TRIM_THRESHOLD: min(keep_bytes, 2**31 - 1),
            _M_TOP_PAD: 16 << 20,
        }
        mallopt = ctypes.CDLL(None).mallopt
        failed = [name for name, value in options.items() if mallopt(name, value) != 1]
        problem = f"mallopt rejected the options {failed}" if failed else None
    if problem is not None:
        warnings.warn(f"tune_host_allocator has no effect: {problem}", RuntimeWarning, stacklevel=2)
    return problem is None


def _problem() -> str | None:
    """Return the reason why the allocator cannot be tuned, or None."""
    if not sys.platform.startswith("linux"):
        return f"it requires glibc on Linux, and this platform is {sys.platform}"
    process = ctypes.CDLL(None)
    try:
        glibc = ctypes.CDLL("libc.so.6")
        ours, theirs = (ctypes.cast(x.malloc, ctypes.c_void_p).value for x in (process, glibc))
        arenas = _count_arenas(glibc)
    except (OSError, AttributeError):
        return "the C library is not glibc"
    if ours != theirs:
        return "another allocator replaces glibc's malloc in this process"
    if arenas > 1:
        return f"threads have already allocated from {arenas} heaps; call it before JAX runs"
    return None


def _count_arenas(glibc: ctypes.CDLL) -> int:
    """Count the heaps of ``malloc``: one until a second thread allocates."""
    open_stream, close = glibc.open_memstream, glibc.fclose
    open_stream.restype = ctypes.c_void_p
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(open_stream(ctypes.byref(text), ctypes.byref(size)))
    if not stream:
        raise OSError("open_memstream failed")
    succeeded = glibc.malloc_info(0, stream) == 0
    close(stream)
    count = ctypes.string_at(text, size.value).count(b"<heap nr=") if succeeded else 0
    glibc.free(text)
    if not count:
        raise OSError("malloc_info does not list the heaps")
    return count


def set_num_threads(count: int | None) -> None:
    """Limit the number of threads of the CPU kernels, from the next call on.

    XLA's own operations run in XLA's thread pool, whose size is the process's CPU affinity
    (``taskset``, ``srun --cpu-bind=cores``).

    Args:
      count: maximum number of threads, up to 2**31 - 1; 0 for XLA's pool as the only limit; None
        for `num_threads`, the limit of the environment.

    Example:
      >>> import jaxkern.performance
      >>> jaxkern.performance.set_num_threads(1)
      >>> jaxkern.performance.set_num_threads(None)
    """
    if count is not None:
        count = check_integer("count", count, 0, MAX_THREADS)
    registry.set_max_workers(worker_cap() if count is None else count)
