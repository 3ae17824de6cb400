"""Settings of the host: the allocator of large buffers, and the threads of the CPU kernels."""

from __future__ import annotations

import ctypes
import sys
import warnings

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.threads import MAX_THREADS, worker_cap

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def tune_host_allocator(keep_bytes: int = 1 << 30) -> bool:
    """Make the C library keep freed memory instead of returning it to the system.

    By default glibc maps a large buffer for each call and unmaps it afterwards, so that every page
    of every result causes a page fault. After this call, which affects the whole process, freed
    buffers stay mapped and are reused, and all threads share one heap. Call it after imports and
    before JAX runs anything (``jax.devices()`` starts JAX's threads): if another thread has already
    allocated, nothing is changed.

    Args:
      keep_bytes: approximate maximum number of freed bytes that the process keeps.

    Returns:
      True if the setting took effect; otherwise a ``RuntimeWarning`` gives the reason.

    Raises:
      ValueError: if ``keep_bytes`` is not an integer of at least 0.

    Example:
      >>> import subprocess, sys
      >>> code = "import jaxkern as jk; print(jk.performance.tune_host_allocator())"
      >>> subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
      'True\\n'
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
      count: maximum number of threads; 0 for XLA's pool as the only limit; None for the limit of
        the environment (``JAXKERN_NUM_THREADS``, else the smallest of SLURM's allocation, the
        control group's quota and the affinity).

    Raises:
      ValueError: if ``count`` is not an integer from 0 to 2**31 - 1.

    Example:
      >>> import jaxkern.performance
      >>> jaxkern.performance.set_num_threads(1)
      >>> jaxkern.performance.set_num_threads(None)
    """
    if count is not None:
        count = check_integer("count", count, 0, MAX_THREADS)
    registry.set_max_workers(worker_cap() if count is None else count)
