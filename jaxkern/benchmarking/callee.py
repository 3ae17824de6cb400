"""A function with its arguments, callable again and again although it may donate them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.core.timing import call_seconds


class Callee:
    """``fn(*args)`` that leaves ``args`` alive: donated ones are copied before each call.

    Args:
      fn: a jitted function tells which arguments it donates; any other function runs as it is.

    Raises:
      TypeError: ``fn`` is not callable, or is jitted and cannot be traced with these arguments.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if not callable(fn):
            raise TypeError(f"fn is {fn!r:.80}; wanted a function")
        self.fn, self.args = fn, args
        self.donated = _donated(fn, args) if hasattr(fn, "lower") else set[str]()

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
