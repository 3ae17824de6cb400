"""Contexts that belong to a thread, carried to those that work for it."""

from __future__ import annotations

import contextlib

import jax

from jaxkern.core.backend import backend, current_backend
from jaxkern.core.compat import current_mesh, thread_options


class ThreadContexts:
    """What ``with`` blocks have set in the thread that makes it, for threads that work for it.

    That is `jaxkern.backend`, the mesh of ``jax.set_mesh``, and the options of JAX: 64-bit types,
    the default device, the precision of products, and the others.

    >>> import jax
    >>> with jax.enable_x64(True):
    ...     contexts = ThreadContexts()
    >>> with contexts.enter():
    ...     jax.numpy.arange(3).dtype
    dtype('int64')
    """

    def __init__(self) -> None:
        self._backend, self._mesh = current_backend(), current_mesh()
        self._options = thread_options()

    def enter(self) -> contextlib.ExitStack[bool | None]:
        """The same contexts in this thread, from now to the end of the ``with``."""
        # A generator's context manager writes to the exceptions that pass it; some refuse that.
        with contextlib.ExitStack() as stack:
            if current_backend() != self._backend:
                stack.enter_context(backend(self._backend))
            if self._mesh is not None and current_mesh() != self._mesh:
                stack.enter_context(jax.set_mesh(self._mesh))
            here, wanted = dict(thread_options()), dict(self._options)
            for option in here | wanted:
                value = wanted[option] if option in wanted else option.get_global()
                if option.value != value:
                    stack.enter_context(option(value))
            return stack.pop_all()
