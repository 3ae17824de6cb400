"""Contexts that belong to a thread, carried to those that work for it."""

from __future__ import annotations

import contextlib

import jax
import numpy as np

from jaxkern.core.backend import backend, current_backend


class ThreadContexts:
    """The `jaxkern.backend` and the 64-bit types (``jax.enable_x64``) of the thread that makes it.

    >>> import jax
    >>> with jax.enable_x64(True):
    ...     contexts = ThreadContexts()
    >>> with contexts.entered():
    ...     jax.numpy.arange(3).dtype
    dtype('int64')
    """

    def __init__(self) -> None:
        self._backend, self._x64 = current_backend(), _has_x64()

    def entered(self) -> contextlib.ExitStack[bool | None]:
        """The same contexts in this thread, from now to the end of the ``with``."""
        # A generator's context manager writes to the exceptions that pass it; some refuse that.
        with contextlib.ExitStack() as stack:
            if current_backend() != self._backend:
                stack.enter_context(backend(self._backend))
            if _has_x64() != self._x64:
                stack.enter_context(jax.enable_x64(self._x64))
            return stack.pop_all()


def _has_x64() -> bool:
    return bool(jax.dtypes.canonicalize_dtype(np.int64) == np.int64)
