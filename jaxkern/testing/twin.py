"""An op's pure-JAX implementation over samples: what every check compares with.

Its programs are the slowest to compile by far, so there are four, for batches of N samples: values,
tangents, gradients, and second derivatives. Callers spell a broadcast operand out.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.op import Op
from jaxkern.testing.differentials import forward_over_reverse, gradient, tangent


class Twin:
    """``op.impl`` over batches of ``count`` samples, or of a multiple of it, as NumPy arrays."""

    def __init__(self, op: Op, static: dict[str, Any], floats: Sequence[int], count: int) -> None:
        def one(*operands: Any) -> tuple[Any, ...]:
            # Not `op.impl` itself: this one says so when impl and abstract disagree.
            return op.batched_impl(*operands, batch_dims=0, **static)

        self.one = one
        self._floats, self._count = floats, count

    def values(self, *stacked: Any) -> tuple[Any, ...]:
        """The results of each sample."""
        return self._chunks(self._values, stacked)

    def tangents(self, stacked: Any, directions: Any) -> tuple[Any, ...]:
        """The tangents of the float results along directions of the float operands."""
        return self._chunks(self._tangents, tuple(stacked), tuple(directions))

    def gradients(self, stacked: Any, cotangents: Any) -> tuple[Any, ...]:
        """Each sample's gradients by the float operands."""
        return self._chunks(self._gradients, tuple(stacked), tuple(cotangents))

    def seconds(self, stacked: Any, directions: Any, cotangents: Any) -> tuple[Any, ...]:
        """How each sample's gradients change along directions."""
        return self._chunks(self._seconds, tuple(stacked), tuple(directions), tuple(cotangents))

    @functools.cached_property
    def _values(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(lambda xs: self.one(*xs)))

    @functools.cached_property
    def _tangents(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(lambda *given: tangent(self.one, self._floats)(*given)[1]))

    @functools.cached_property
    def _gradients(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(gradient(self.one, self._floats)))

    @functools.cached_property
    def _seconds(self) -> Callable[..., Any]:
        return jax.jit(jax.vmap(forward_over_reverse(self.one, self._floats)))

    def _chunks(self, program: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        """Batches of one size, so that each program compiles once."""
        total, size = len(jax.tree.leaves(arguments)[0]), self._count
        assert total % size == 0
        parts = []
        for k in range(0, total, size):
            part = jax.tree.map(lambda x, k=k: np.asarray(x[k : k + size]), arguments)
            parts.append([np.asarray(r) for r in program(*part)])
        return tuple(np.concatenate(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True))
