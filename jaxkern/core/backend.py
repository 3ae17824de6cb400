"""The choice between native kernels and pure JAX, and copies of contexts for other threads."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, ExitStack
from typing import Literal, get_args

import jax

from jaxkern.core.compat import current_mesh, thread_options

Backend = Literal["auto", "native", "jax"]

# None: no context is active, so the environment decides.
_context = jax.make_user_context(None)


def _checked(value: str, source: str) -> Backend:
    for name in get_args(Backend):
        if value == name:
            return name
    raise ValueError(
        f"{source} is {value!r}; expected 'auto' (native where a kernel exists), 'native' (an "
        "error if no kernel exists) or 'jax' (pure JAX)"
    )


def backend(name: Backend) -> AbstractContextManager[None]:
    """Force the implementation of every jaxkern op that is traced inside the context.

    The choice is part of ``jax.jit``'s cache key, so a function that is already jitted is
    retraced inside the context. It overrides the environment variable ``JAXKERN_BACKEND``.

    Args:
      name: ``"auto"`` uses the native kernel if one exists and pure JAX otherwise, ``"native"``
        raises an error if the kernel is missing, ``"jax"`` uses pure JAX everywhere.

    Raises:
      ValueError: for any other name.

    Example:
      >>> import jaxkern as jk
      >>> with jk.backend("jax"):
      ...     pass
    """
    return _context(_checked(name, "backend"))


def current_backend() -> Backend:
    """Return the active backend: the innermost context, ``JAXKERN_BACKEND`` or ``"auto"``."""
    value = _context.value
    if value is not None:
        return value
    return _checked(os.environ.get("JAXKERN_BACKEND", "auto") or "auto", "JAXKERN_BACKEND")


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

    def enter(self) -> ExitStack[bool | None]:
        """Enter the contexts in this thread; exiting the returned stack exits them."""
        # Not a generator: contextlib would write to exceptions, and some do not allow that.
        with ExitStack() as stack:
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
