"""A function with its arguments, callable again and again although it may donate them."""

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
    """``fn(*args)`` that leaves ``args`` alive: donated ones are copied before each call.

    Args:
      fn: a function that ``jax.jit`` or `jaxkern.execution.jit` made tells which arguments it
        donates; any other function runs as it is.

    Raises:
      TypeError: ``fn`` is not callable, or is jitted and cannot be traced with these arguments.
      ValueError: ``fn`` donates the operator whose method it is.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not callable(fn):
            raise TypeError(f"fn is {fn!r:.80}; wanted a function")
        self.fn, self.args = fn, args
        donated = _donated_by_name(fn, args)
        if donated is None:
            donated = _donated(fn, args) if hasattr(fn, "lower") else set()
        self.donated = donated

    def fresh(self) -> tuple[Any, ...]:
        """The arguments of one call; donated arrays are copies, and they are there."""
        if not self.donated:
            return self.args
        copied: tuple[Any, ...] = jax.tree.map_with_path(
            lambda path, x: jnp.copy(x) if _place(path) in self.donated else x, self.args
        )
        jax.block_until_ready(copied)
        return copied

    def __call__(self) -> Any:
        """One call, finished; notices a donation that ``fn`` hid."""
        result = jax.block_until_ready(self.fn(*self.fresh()))
        for path, leaf in jax.tree.leaves_with_path(self.args):
            if isinstance(leaf, jax.Array) and leaf.is_deleted():
                raise ValueError(
                    f"args{_place(path)} is gone after the first call of {name_of(self.fn)}: a "
                    "jitted function inside it donates it, so that there can be no second call; "
                    "pass that jitted function itself, whose donated arguments are copied before "
                    "each call, or a function that makes this array"
                )
        return result

    def seconds(self) -> float:
        """Of one call; the copies of donated arguments are made before it."""
        return call_seconds(self.fn, *self.fresh(), calls=1, warmup=0)[0]

    def turn(self, calls: int, back_to_back: bool) -> float:
        """Seconds of a call, the mean; each is waited for, or all of them at the end."""
        if not back_to_back:
            return sum(self.seconds() for _ in range(calls)) / calls
        started = time.perf_counter()
        for _ in range(calls):
            result = self.fn(*self.args)
        jax.block_until_ready(result)
        return (time.perf_counter() - started) / calls


def _donated_by_name(fn: Any, args: tuple[Any, ...]) -> set[str] | None:
    """The places in ``args`` that `jaxkern.execution.jit` donates; None for functions of others.

    Raises:
      ValueError: it donates the operator that is called, of which there is only the caller's.
    """
    method, forward = getattr(fn, "__func__", None), getattr(type(fn), "forward", None)
    if isinstance(fn, JitFunction):
        jitted, wanted = fn, [fn.donated_name(i) for i in range(len(args))]
    elif isinstance(method, JitFunction):
        jitted, wanted = method, [method.donated_name(1 + i) for i in range(len(args))]
    elif isinstance(fn, Operator) and isinstance(forward, JitFunction):
        jitted, wanted = forward, [forward.donated_name("inputs")]
    else:
        return None
    if jitted is not fn and (owner := jitted.donated_name(0)):
        raise ValueError(
            f"{name_of(fn)} donates the operator that it belongs to ({owner!r} is in "
            "donate_argnames), so that there can be no second call; wanted donate_argnames of "
            "other arguments, or a function that gets the operator as an argument"
        )
    return {
        _place(path)
        for path, leaf in jax.tree.leaves_with_path(args)
        if isinstance(leaf, jax.Array) and path[0].idx < len(wanted) and wanted[path[0].idx]
    }


def _donated(fn: Any, args: tuple[Any, ...]) -> set[str]:
    """The places in ``args`` of what a jitted function donates."""
    try:
        given, _ = fn.lower(*args).args_info
    except TypeError as error:
        odd = [
            f"args{_place(path)} is a {type(leaf).__name__}"
            for path, leaf in jax.tree.leaves_with_path(args)
            if not isinstance(leaf, (int, float, complex)) and not hasattr(leaf, "dtype")
        ]
        raise TypeError(
            f"{name_of(fn)} cannot be traced with these arguments"
            + (f" ({'; '.join(odd)})" if odd else "")
            + "; wanted arrays and numbers, and static_argnums or static_argnames in jax.jit for "
            f"anything else. JAX says: {error}"
        ) from error
    donated = {_place(path) for path, info in jax.tree.leaves_with_path(given) if info.donated}
    if donated and len(given) < len(args):
        # Static arguments are not among those that JAX tells of, and shift their places.
        return {
            _place(path)
            for path, leaf in jax.tree.leaves_with_path(args)
            if isinstance(leaf, jax.Array)
        }
    return donated


def _place(path: Any) -> str:
    return jax.tree_util.keystr(path)


def name_of(fn: Any) -> str:
    """A function's name; the wrapped one's for a partial."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
