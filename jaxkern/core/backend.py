"""Native kernels or pure JAX: the ``backend`` context and ``JAXKERN_BACKEND``."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from typing import Literal, get_args

import jax

Backend = Literal["auto", "native", "jax"]

# None: no context is active, so the environment decides.
_context = jax.make_user_context(None)


def _checked(value: str, source: str) -> Backend:
    for name in get_args(Backend):
        if value == name:
            return name  # type: ignore[no-any-return]
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
    return _context(_checked(name, "backend"))  # type: ignore[no-any-return]


def current_backend() -> Backend:
    """Return the active backend: the innermost context, ``JAXKERN_BACKEND`` or ``"auto"``."""
    value = _context.value
    if value is not None:
        return value  # type: ignore[no-any-return]
    return _checked(os.environ.get("JAXKERN_BACKEND", "auto") or "auto", "JAXKERN_BACKEND")
