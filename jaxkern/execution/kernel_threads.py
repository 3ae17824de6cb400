"""The thread cap of the CPU kernels, one number of the process, for the time of a block."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from jaxkern.core import registry

_lock = threading.Lock()
# Of the blocks that are open now, in the order in which they were entered.
_caps: list[list[int]] = []
_before = 0


def kernel_cap() -> int | None:
    """The cap in force (0: none); None where there are no native kernels."""
    native = registry.module("cpu")
    return None if native is None else int(native.max_workers())


@contextlib.contextmanager
def capped_kernels(count: int | None) -> Iterator[None]:
    """Caps the kernels at ``count`` threads until the block ends; None changes nothing.

    Blocks of several threads may overlap: the one entered last decides. A cap that something else
    has set meanwhile stays.
    """
    global _before
    if count is None:
        yield
        return
    mine = [count]
    with _lock:
        if not _caps:
            _before = kernel_cap() or 0
        _caps.append(mine)
        registry.set_max_workers(count)
    try:
        yield
    finally:
        with _lock:
            was = _caps[-1][0]
            # By identity: equal caps of other threads are other blocks.
            _caps[:] = [cap for cap in _caps if cap is not mine]
            if kernel_cap() == was:
                registry.set_max_workers(_caps[-1][0] if _caps else _before)
