"""A function with its arguments that can be called repeatedly although it may donate them."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.core.timing import call_seconds
from jaxkern.execution.jit import JitFunction


class Callee:
    """``fn(*args)`` that does not invalidate ``args``: donated arrays are copied before each call.

    Args:
      fn: any function. A function of ``jax.jit`` states which arguments it donates.

    Raises:
      TypeError: if ``fn`` is not callable, or is jitted and cannot be traced with these arguments.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not callable(fn):
            raise TypeError(f"fn: expected a function, got {fn!r:.80}")
        self.fn, self.args = fn, args
        jitted = hasattr(fn, "lower") and not isinstance(fn, JitFunction)
        self.donated = _donated_by_jax(fn, args) if jitted else set()

    def fresh(self) -> tuple[Any, ...]:
        """Return arguments for one call, in which donated arrays are finished copies."""
        if not self.donated:
            return self.args
        copied: tuple[Any, ...] = jax.tree.map_with_path(
            lambda path, x: jnp.copy(x) if _keystr(path) in self.donated else x, self.args
        )
        jax.block_until_ready(copied)
        return copied

    def __call__(self) -> Any:
        """Call once and wait for the result; detect a donation inside ``fn``."""
        result = jax.block_until_ready(self.fn(*self.fresh()))
        for path, leaf in jax.tree.leaves_with_path(self.args):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise ValueError(
                    f"args{_keystr(path)} was deleted by the first call of {name_of(self.fn)}, "
                    "because a jitted function inside it donates the array; pass that jitted "
                    "function, whose donated arguments are copied before each call, or a function "
                    "that creates the array"
                )
        return result

    def seconds(self) -> float:
        """Return the time of one call, without copies of donated arguments."""
        return call_seconds(self.fn, *self.fresh(), calls=1, warmup=0)[0]

    def mean_seconds(self, calls: int, back_to_back: bool) -> float:
        """Return the mean time of calls, waiting after each call or only after the last."""
        if not back_to_back:
            return sum(self.seconds() for _ in range(calls)) / calls
        started = time.perf_counter()
        for _ in range(calls):
            result = self.fn(*self.args)
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / calls


def _donated_by_jax(fn: Any, args: tuple[Any, ...]) -> set[str]:
    """Return the paths in ``args`` that a function of ``jax.jit`` donates."""
    leaves = jax.tree.leaves_with_path(args)
    try:
        infos, _ = fn.lower(*args).args_info
    except TypeError as error:
        other = [
            f"args{_keystr(path)} is a {type(leaf).__name__}"
            for path, leaf in leaves
            if not isinstance(leaf, (int, float, complex)) and not hasattr(leaf, "dtype")
        ]
        raise TypeError(
            f"{name_of(fn)} cannot be traced with these arguments"
            + (f" ({'; '.join(other)})" if other else "")
            + "; pass arrays and numbers, and use static_argnums or static_argnames of jax.jit for "
            f"other objects: {error}"
        ) from error
    donated = {_keystr(path) for path, info in jax.tree.leaves_with_path(infos) if info.donated}
    if donated and len(infos) < len(args):
        # JAX omits static arguments, which shifts the paths of the others: copy all arrays.
        return {_keystr(path) for path, leaf in leaves if isinstance(leaf, jax.Array)}
    return donated


def _keystr(path: Any) -> str:
    return jax.tree_util.keystr(path)


def name_of(fn: Any) -> str:
    """Return the name of a function; for a partial, that of the wrapped function."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
