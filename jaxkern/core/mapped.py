"""Arrays in files that are mapped into memory: whether the files still hold them."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np


def check_mapped(name: str, array: np.ndarray) -> None:
    """Raises OSError where an array's file was cut short since it was mapped.

    Touching what is no longer there ends the process (SIGBUS), so that this is asked before a file
    is read; one that is cut between the two ends it still. Costs about a microsecond; arrays that
    are not mapped are none of its business.

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
        size = base.size()  # of the very file, by its descriptor
    except (OSError, ValueError):  # no file is behind the map
        return
    if not array.size:
        return
    # The map itself knows no place in the file; NumPy's array does.
    begin = getattr(owner, "offset", 0) - owner.__array_interface__["data"][0]
    needed = begin + np.lib.array_utils.byte_bounds(array)[1]
    if size < needed:
        where = getattr(owner, "filename", None)
        raise OSError(
            f"{name} is mapped from {'a file' if where is None else where}, which has {size} bytes "
            f"now; the array ends at {needed}, and reading it would end the process. Open the file "
            "again; to replace one that is in use, write another one and rename it"
        )
