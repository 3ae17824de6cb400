"""Check of memory-mapped arrays against files that were truncated."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def check_mapped(name: str, array: np.ndarray) -> None:
    """Raise OSError if an array's file was truncated after it was mapped.

    Access beyond the end of the file terminates the process (SIGBUS), so call this before reading.
    A file that is truncated between the check and the access still terminates it. The check takes
    about 1 us and accepts arrays that are not mapped.

    >>> check_mapped("x", np.zeros(3))
    """
    owner: Any = array
    while isinstance(owner, np.ndarray):
        base = owner.base
        if isinstance(base, memoryview):
            base = base.obj
        if isinstance(base, mmap.mmap):
            break
        owner = base
    else:
        return
    try:
        size = base.size()  # the current size of the file
    except (OSError, ValueError):  # an anonymous map
        return
    if not array.size:
        return
    # The mmap object does not know its offset in the file; NumPy's array does.
    begin = getattr(owner, "offset", 0) - owner.__array_interface__["data"][0]
    needed = begin + np.lib.array_utils.byte_bounds(array)[1]
    if size < needed:
        path = getattr(owner, "filename", None)
        raise OSError(
            f"{name} is mapped from {'a file' if path is None else path}, which was truncated to "
            f"{size} bytes; the array ends at byte {needed}. Open the file again. To replace a "
            "file that is in use, write a new file and rename it"
        )
