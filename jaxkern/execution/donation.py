"""Compiled functions that write their results to the memory of earlier results."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def donated(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose result can take the memory of an earlier result.

    Large results on the CPU are fresh memory, and its page faults can take longer than the kernel
    that fills it. The compiled function has a further argument ``out``: an earlier result, which is
    deleted, and whose memory the new result takes (buffer donation, ``donate_argnums`` of
    `jax.jit`). Copy what you keep. Arrays of ``out`` without a result of equal shape and dtype are
    deleted, too, and JAX warns about them.

    Args:
      function: of arrays and pytrees, as for `jax.jit`, without an argument ``out``.

    Returns:
      The compiled function. Without ``out`` (or with None) it returns fresh memory; this is another
      program, so that a loop compiles twice.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxkern.execution import donated
      >>> scale, batch = donated(lambda x: 2 * x), None
      >>> for i in range(3):
      ...     batch = scale(jnp.full(4, i), out=batch)
      >>> batch.tolist()
      [4, 4, 4, 4]
    """

    @functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
    def compiled(out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return function(*args, **kwargs)

    @functools.wraps(function)
    def call(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        return compiled(out, args, kwargs)

    return call
