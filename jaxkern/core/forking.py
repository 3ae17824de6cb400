"""Children that are forked from a process in which JAX runs: what they cannot do, how they end.

JAX's threads are the parent's. Whatever waits for one of them in the child waits for ever: a
compilation, and the destructors of JAX's clients and executables, which run as the interpreter
ends. A child therefore ends without those destructors: JAX's objects outlive the interpreter, and
the process ends by ``_exit`` with its own status. Functions of `atexit` run, except JAX's own.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
from typing import Any

from jaxkern.core import compat

# JAX's objects, by the thread that forks; empty in the parent before and after. Threads may fork
# at the same time, so that none may clear the objects of another.
_held: dict[int, list[Any]] = {}
_forked = False
_PACKAGES = ("jax", "jaxlib", "jaxkern")  # their modules refer to C++ objects


def check_not_forked(what: str) -> None:
    """Raises in a child of a process in which JAX had started.

    Args:
      what: the call that would wait for JAX's threads.
    Raises: RuntimeError.
    """
    if _forked:
        raise RuntimeError(
            f"{what} in a child that was started by fork: JAX ran in the parent, and its threads "
            "do not exist here; start the child by multiprocessing's 'spawn' or 'forkserver', such "
            "as multiprocessing.get_context('spawn'), or fork before JAX is used"
        )


def _before() -> None:
    # In the parent, where no thread can have left a lock of JAX behind.
    if not _forked:
        _held[threading.get_ident()] = compat.running_objects()


def _in_parent() -> None:
    _held.pop(threading.get_ident(), None)


def _in_child() -> None:
    global _forked
    if _forked or not _held.get(threading.get_ident()):
        return
    _forked = True
    compat.unregister_exit_functions()
    atexit.register(_end)


def _end() -> None:
    """Keep the objects of JAX's modules alive, and skip C++ destructors of static objects.

    Objects of other modules are deleted, so that open files write their buffers.
    """
    modules = [m for name, m in [*sys.modules.items()] if name.split(".")[0] in _PACKAGES]
    values = [[*vars(module).values()] for module in modules]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(values))
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's atexit whose functions are given the status
        libc.fflush(None)
        libc.on_exit(libc._exit, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
