"""Keeps large host buffers mapped between calls, so that they cost no page faults."""

from __future__ import annotations

import ctypes
import sys
import warnings

from jaxkern.core.arguments import check_integer

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -2, -4, -8


def tune_host_allocator(keep_bytes: int = 1 << 30) -> bool:
    """Tells the C library's allocator to keep freed memory instead of returning it.

    XLA's CPU results come from ``malloc``. By default glibc maps a large buffer anew for each call
    and unmaps it afterwards, so that every page of every result is faulted in again: on small
    virtual machines that takes far longer than filling it. After this call, which affects the whole
    process, freed buffers stay mapped (up to about ``keep_bytes``) and are used again.

    Call it at the start of the program, after imports and before JAX runs anything
    (``jax.devices()`` starts JAX's threads). Threads that have allocated have heaps of their own,
    and those cannot be told to keep large buffers: then nothing is changed. From this call on all
    threads share one heap.

    Args:
      keep_bytes: how many freed bytes the process may keep.

    Returns:
      Whether it took effect. When it did not, a ``RuntimeWarning`` says why: it came too late, or
      the allocator is not glibc's.

    Raises:
      ValueError: when ``keep_bytes`` is no whole number from 0 on.

    Example:
      >>> import subprocess, sys
      >>> code = "import jaxkern as jk; print(jk.performance.tune_host_allocator())"
      >>> subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
      'True\\n'
    """
    keep_bytes = check_integer("keep_bytes", keep_bytes, 0)
    problem = _problem()
    if problem is None:
        # The values are ints of C; mallopt answers 1 for success. Without mappings of their own,
        # large buffers come from the heap, whose top is given back only beyond the threshold. Heaps
        # of further threads hold 64 MiB at most, and what is larger is mapped anew all the same.
        settings = {
            _M_ARENA_MAX: 1,
            _M_MMAP_MAX: 0,
            _M_TRIM_THRESHOLD: min(keep_bytes, 2**31 - 1),
            _M_TOP_PAD: 16 << 20,
        }
        mallopt = ctypes.CDLL(None).mallopt
        refused = [name for name, value in settings.items() if mallopt(name, value) != 1]
        problem = f"mallopt refuses the options {refused}" if refused else None
    if problem is not None:
        warnings.warn(f"tune_host_allocator has no effect: {problem}", RuntimeWarning, stacklevel=2)
    return problem is None


def _problem() -> str | None:
    """Why the allocator cannot be told to keep memory; None where it can."""
    if not sys.platform.startswith("linux"):
        return f"it is for glibc, and this is {sys.platform}"
    process = ctypes.CDLL(None)
    try:
        glibc = ctypes.CDLL("libc.so.6")
        ours, theirs = (ctypes.cast(x.malloc, ctypes.c_void_p).value for x in (process, glibc))
        arenas = _arenas(glibc)
    except (OSError, AttributeError):
        return "the C library is not glibc"
    if ours != theirs:
        return "another allocator takes the place of glibc's malloc in this process"
    if arenas > 1:
        return (
            f"threads have allocated from {arenas} heaps already; call it at the program's start, "
            "before JAX runs anything"
        )
    return None


def _arenas(glibc: ctypes.CDLL) -> int:
    """How many heaps ``malloc`` has made: one until a second thread allocates."""
    open_stream, close = glibc.open_memstream, glibc.fclose
    open_stream.restype = ctypes.c_void_p
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = ctypes.c_void_p(open_stream(ctypes.byref(text), ctypes.byref(size)))
    if not stream:
        raise OSError("open_memstream failed")
    described = glibc.malloc_info(0, stream) == 0
    close(stream)
    count = ctypes.string_at(text, size.value).count(b"<heap nr=") if described else 0
    glibc.free(text)
    if not count:
        raise OSError("malloc_info does not describe the heaps")
    return count
