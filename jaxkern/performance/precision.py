"""Mixed precision: parameters in one dtype, arithmetic in another, results in a third."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

T = TypeVar("T")


@dataclass(frozen=True)
class Policy:
    """Which floating dtype a function keeps, computes in and returns.

    Only floating arrays are cast: integers, booleans, keys and whatever else a pytree holds stay
    as they are. A kernel of this package accumulates half types in f32 or wider whatever the
    policy says; a matmul of JAX does so when it is asked (``preferred_element_type=jnp.float32``):
    casting its result up afterwards does not.

    Args:
      param_dtype: of parameters at rest, and of their gradients.
      compute_dtype: of arguments inside the function.
      output_dtype: of results.

    Raises:
      TypeError: for a dtype that is not floating.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxkern import performance
      >>> policy = performance.Policy(compute_dtype=jnp.bfloat16)
      >>> layer = policy.wrap(lambda w, x: (x.dtype, x @ w)[1])
      >>> layer(jnp.ones((3, 2)), jnp.ones((4, 3))).dtype
      dtype('float32')
    """

    param_dtype: Any = jnp.float32
    compute_dtype: Any = jnp.bfloat16
    output_dtype: Any = jnp.float32

    def __post_init__(self) -> None:
        for name in ("param_dtype", "compute_dtype", "output_dtype"):
            given = getattr(self, name)
            try:
                dtype = jnp.dtype(given)
            except TypeError as error:
                raise TypeError(f"{name} is {given!r}; wanted a floating dtype") from error
            if not jnp.issubdtype(dtype, jnp.floating):
                raise TypeError(f"{name} is {given!r}; wanted a floating dtype such as 'bfloat16'")
            object.__setattr__(self, name, dtype)

    def cast_to_param(self, tree: T) -> T:
        """Floating arrays of a pytree in ``param_dtype``."""
        return _cast(tree, self.param_dtype)

    def cast_to_compute(self, tree: T) -> T:
        """Floating arrays of a pytree in ``compute_dtype``."""
        return _cast(tree, self.compute_dtype)

    def cast_to_output(self, tree: T) -> T:
        """Floating arrays of a pytree in ``output_dtype``."""
        return _cast(tree, self.output_dtype)

    def wrap(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """``fn`` with its arguments cast to ``compute_dtype`` and its results to ``output_dtype``.

        Differentiating the wrapped function gives gradients in the dtype of its arguments: a
        gradient by parameters in f32 is f32.
        """

        @functools.wraps(fn)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self.cast_to_compute((args, kwargs))
            return self.cast_to_output(fn(*args, **kwargs))

        return wrapped

    def __str__(self) -> str:
        return (
            f"params={self.param_dtype}, compute={self.compute_dtype}, output={self.output_dtype}"
        )


def _cast(tree: T, dtype: Any) -> T:
    def one(leaf: Any) -> Any:
        found = getattr(leaf, "dtype", None)
        if found is None or not hasattr(leaf, "astype") or not jnp.issubdtype(found, jnp.floating):
            return leaf
        return leaf.astype(dtype)

    cast: T = jax.tree.map(one, tree)
    return cast
