"""Keeps large host buffers mapped between calls, so that they cost no page faults."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def tune_host_allocator(keep_bytes: int = 1 << 30) -> bool:
    """Tells the C library's allocator to keep freed memory instead of returning it.

    XLA's CPU results come from ``malloc``. By default glibc maps a large buffer anew for each call
    and unmaps it afterwards, so that every page of every result is faulted in again: on small
    virtual machines that takes far longer than filling it. After this call, which affects the whole
    process, freed buffers stay mapped (up to about ``keep_bytes``) and are used again.

    Args:
      keep_bytes: how many freed bytes the process may keep.

    Returns:
      Whether it took effect: False where the C library is not glibc.

    Raises:
      ValueError: when ``keep_bytes`` is negative.

    Example:
      >>> import jaxkern.performance
      >>> jaxkern.performance.tune_host_allocator() in (True, False)
      True
    """
    if keep_bytes < 0:
        raise ValueError(f"keep_bytes is {keep_bytes}; wanted 0 or more")
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    # The values are ints of C; mallopt answers 1 for success. Without mappings of their own, large
    # buffers come from the heap, whose top is given back only beyond the threshold.
    settings = {
        _M_MMAP_MAX: 0,
        _M_TRIM_THRESHOLD: min(keep_bytes, 2**31 - 1),
        _M_TOP_PAD: 16 << 20,
    }
    return bool(sum(mallopt(name, value) for name, value in settings.items()) == len(settings))
