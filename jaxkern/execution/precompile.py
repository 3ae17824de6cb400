"""`precompile`: programs for sample shapes, before the calls that need them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from jaxkern.core.contexts import ThreadContexts
from jaxkern.execution.jitted import Jitted
from jaxkern.execution.operator import Operator
from jaxkern.execution.threads import start


class Precompilation:
    """Programs being compiled by `precompile`."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self._ended.is_set()

    def wait(self, timeout: float | None = None) -> None:
        """Waits for the end; raises what the compilation raised, or TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(
                f"precompile: not ready after {timeout} s; compilation goes on in its thread"
            )
        if self._error is not None:
            raise self._error


def precompile(fn: Any, *samples: Any, background: bool = False) -> Precompilation:
    """Compiles a jitted function for the shapes and dtypes of each sample, ahead of its calls.

    Args:
      fn: what `jit` returned, or an operator of a class that it compiled.
      samples: of a function, a tuple of arguments or the single argument; of an operator, its
        ``inputs``. Arrays or ``jax.ShapeDtypeStruct`` (with a sharding where the arrays will have
        one); strings and other fixed leaves as they will be passed.
      background: compile in a thread and return at once. The thread has the caller's
        `jaxkern.backend` and 64-bit types. A call that needs the program waits for it.

    Returns:
      A handle: ``wait()`` for the end and for errors, ``done``.

    Raises:
      TypeError: for a function that is not jitted; without ``background`` also what compiling
        raises.

    >>> import jax, jax.numpy as jnp, jaxkern.execution as ex
    >>> double = ex.jit(lambda x: 2 * x)
    >>> ex.precompile(double, jax.ShapeDtypeStruct((3,), jnp.float32)).done
    True
    >>> double(jnp.ones(3)).tolist(), double.cache_info().misses
    ([2.0, 2.0, 2.0], 0)
    """
    jitted, calls = _calls_of(fn, samples)
    handle = Precompilation()
    contexts = ThreadContexts()

    def work() -> None:
        try:
            with contexts.entered():
                for args, kwargs in calls:
                    jitted.precompile(args, kwargs)
        except BaseException as error:  # the caller's, who waits for it
            handle._error = error
        handle._ended.set()

    if background:
        start(work)
    else:
        work()
        handle.wait()
    return handle


def _calls_of(
    fn: Any, samples: Sequence[Any]
) -> tuple[Jitted, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    if isinstance(fn, Jitted):
        tuples = [sample if isinstance(sample, tuple) else (sample,) for sample in samples]
        return fn, [(sample, {}) for sample in tuples]
    forward = type(fn).__dict__.get("forward", getattr(type(fn), "forward", None))
    if isinstance(fn, Operator) and isinstance(forward, Jitted):
        return forward, [((fn,), {"inputs": sample}) for sample in samples]
    raise TypeError(
        f"precompile: {getattr(fn, '__name__', type(fn).__name__)} is not jitted; wanted what "
        "jaxkern.execution.jit returned, or an operator of a class that it compiled"
    )
