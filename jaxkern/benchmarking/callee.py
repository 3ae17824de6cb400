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
from jaxkern.execution.operator import Operator


class Callee:
    """``fn(*args)`` that does not invalidate ``args``: donated arrays are copied before each call.

    Args:
      fn: any function. A function of ``jax.jit`` or `jaxkern.execution.jit` states which arguments
        it donates.

    Raises:
      TypeError: if ``fn`` is not callable, or is jitted and cannot be traced with these arguments.
      ValueError: if ``fn`` is a method that donates its own operator.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not callable(fn):
            raise TypeError(f"fn: expected a function, got {fn!r:.80}")
        self.fn, self.args = fn, args
        donated = _donated_by_jaxkern(fn, args)
        if donated is None:
            donated = _donated_by_jax(fn, args) if hasattr(fn, "lower") else set()
        self.donated = donated

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


def _donated_by_jaxkern(fn: Any, args: tuple[Any, ...]) -> set[str] | None:
    """Return the paths in ``args`` that `jaxkern.execution.jit` donates; None for other functions.

    Raises:
      ValueError: if it donates the operator that is called, which cannot be copied.
    """
    method, forward = getattr(fn, "__func__", None), getattr(type(fn), "forward", None)
    if isinstance(fn, JitFunction):
        jitted, donated = fn, [fn.donated_name(i) for i in range(len(args))]
    elif isinstance(method, JitFunction):
        jitted, donated = method, [method.donated_name(1 + i) for i in range(len(args))]
    elif isinstance(fn, Operator) and isinstance(forward, JitFunction):
        jitted, donated = forward, [forward.donated_name("inputs")]
    else:
        return None
    if jitted is not fn and (owner := jitted.donated_name(0)):
        raise ValueError(
            f"{name_of(fn)} donates its own operator ({owner!r} is in donate_argnames), so it can "
            "be called only once; remove it from donate_argnames, or pass a function that takes "
            "the operator as an argument"
        )
    return {
        _keystr(path)
        for path, leaf in jax.tree.leaves_with_path(args)
        if isinstance(leaf, jax.Array) and path[0].idx < len(donated) and donated[path[0].idx]
    }


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
