"""Handling of children that are forked from a process in which JAX runs.

JAX's threads exist only in the parent. In the child, everything that waits for one of them blocks
forever, also the destructors at exit. Therefore a child exits without these, by ``_exit``.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from typing import Any

from jaxkern.core import compat

# References to JAX's objects during a fork, by the id of the forking thread, because several
# threads may fork at the same time. In the parent it is empty before and after each fork.
_references: dict[int, list[Any]] = {}
_forked = False
_PACKAGES = ("jax", "jaxlib", "jaxkern")  # their modules refer to C++ objects


def check_not_forked(what: str) -> None:
    """Raise RuntimeError in a child of a process in which JAX had started; `what` is the call."""
    if _forked:
        raise RuntimeError(
            f"{what} in a forked child: JAX ran in the parent, and its threads do not exist here; "
            "use multiprocessing's 'spawn' or 'forkserver', or fork before JAX is used"
        )


def _before() -> None:
    # Runs in the parent: in the child, a lock of JAX may be held by a thread that does not exist.
    if not _forked:
        _references[threading.get_ident()] = compat.running_objects()


def _in_parent() -> None:
    _references.pop(threading.get_ident(), None)


def _in_child() -> None:
    global _forked
    if _forked or not _references.get(threading.get_ident()):
        return
    _forked = True
    compat.unregister_exit_functions()
    atexit.register(_end)


def _end() -> None:
    """Keep the objects of JAX's modules alive, and skip C++ destructors of static objects.

    Objects of other modules are deleted, so open files flush their buffers.
    """
    modules = [m for name, m in [*sys.modules.items()] if name.split(".")[0] in _PACKAGES]
    values = [[*vars(module).values()] for module in modules]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(values))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's atexit variant that passes the exit status
        libc.fflush(None)
        libc.on_exit(libc._exit, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
