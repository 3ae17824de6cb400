"""Thread-local contexts, copied to worker threads."""

from __future__ import annotations

import contextlib

import jax

from jaxkern.core.backend import backend, current_backend
from jaxkern.core.compat import current_mesh, thread_options


class ThreadContexts:
    """Snapshot of the contexts of the current thread, to be entered in other threads.

    It covers `jaxkern.backend`, the mesh of ``jax.set_mesh``, and JAX's options (64-bit types,
    default device, matmul precision and so on).

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
        """Enter the contexts in this thread; exiting the returned stack exits them."""
        # Not a generator: contextlib would write to exceptions, and some do not allow that.
        with contextlib.ExitStack() as stack:
            if current_backend() != self._backend:
                stack.enter_context(backend(self._backend))
            if self._mesh is not None and current_mesh() != self._mesh:
                stack.enter_context(jax.set_mesh(self._mesh))
            current, target = dict(thread_options()), dict(self._options)
            for option in current | target:
                value = target[option] if option in target else option.get_global()
                if option.value != value:
                    stack.enter_context(option(value))
            return stack.pop_all()
