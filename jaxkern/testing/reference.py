"""The reference implementation of an op over samples, and derivatives of its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.op import Op

Function = Callable[..., Any]


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def expect(actual: Any, expected: Any, label: str) -> None:
    assert actual == expected, f"{label}: expected {expected}, got {actual}"


def float_function(fn: Function, operands: Sequence[Any], which: Sequence[int]) -> Function:
    """Return ``fn`` as a function of the operands ``which`` that returns only float results."""

    def along(*xs: Any) -> tuple[Any, ...]:
        full = list(operands)
        for i, x in zip(which, xs, strict=True):
            full[i] = x
        return tuple(r for r in fn(*full) if is_inexact(r))

    return along


def tangent(fn: Function, which: Sequence[int]) -> Function:
    """Return ``(operands, directions) -> (results, tangents)`` of float operands and results."""

    def moved(operands: Sequence[Any], directions: Sequence[Any]) -> Any:
        primals = [operands[i] for i in which]
        return jax.jvp(float_function(fn, operands, which), primals, list(directions))

    return moved


def weighted(results: Sequence[Any], cotangents: Sequence[Any]) -> Any:
    """Return the sum of results times cotangents; its gradient is the vjp of the cotangents."""
    total: Any = 0.0
    for r, c in zip(results, cotangents, strict=True):
        term = jnp.real(r * c)
        # Sums of half types accumulate in float32, forward and backward.
        total = total + jnp.sum(term.astype(jnp.promote_types(term.dtype, jnp.float32)))
    return total


def gradient(fn: Function, which: Sequence[int]) -> Function:
    """Return ``(operands, cotangents) -> gradients`` with respect to the operands ``which``."""

    def pulled(operands: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        along = float_function(fn, operands, which)
        loss = lambda *xs: weighted(along(*xs), cotangents)  # noqa: E731
        return jax.grad(loss, tuple(range(len(which))))(*(operands[i] for i in which))

    return pulled


def forward_over_reverse(fn: Function, which: Sequence[int]) -> Function:
    """Return ``(operands, directions, cotangents) ->`` the derivative of the gradient."""

    def second(operands: Sequence[Any], directions: Sequence[Any], cotangents: Any) -> Any:
        along = float_function(fn, operands, which)
        slope = jax.grad(lambda *xs: weighted(along(*xs), cotangents), tuple(range(len(which))))
        return jax.jvp(slope, [operands[i] for i in which], list(directions))[1]

    return second


def reverse_over_forward(fn: Function, which: Sequence[int]) -> Function:
    """Return the gradient of the tangent; as `forward_over_reverse`, but by other rules."""

    def second(operands: Sequence[Any], directions: Sequence[Any], cotangents: Any) -> Any:
        along = float_function(fn, operands, which)

        def loss(*xs: Any) -> Any:
            return weighted(jax.jvp(along, list(xs), list(directions))[1], cotangents)

        return jax.grad(loss, tuple(range(len(which))))(*(operands[i] for i in which))

    return second


class Reference:
    """``op.impl`` over batches whose size is a multiple of ``count``, with NumPy results."""

    def __init__(self, op: Op, static: dict[str, Any], floats: Sequence[int], count: int) -> None:
        def one(*operands: Any) -> tuple[Any, ...]:
            # Unlike `op.impl`, this raises if impl and abstract disagree.
            return op.batched_impl(*operands, batch_dims=0, **static)

        self.one, self._count = one, count
        self._values = jax.jit(jax.vmap(lambda xs: one(*xs)))
        self._tangents = jax.jit(jax.vmap(lambda *xs: tangent(one, floats)(*xs)[1]))
        self._gradients = jax.jit(jax.vmap(gradient(one, floats)))
        self._second = jax.jit(jax.vmap(forward_over_reverse(one, floats)))

    def values(self, *stacked: Any) -> tuple[Any, ...]:
        """Return the results of each sample."""
        return self._chunks(self._values, stacked)

    def tangents(self, stacked: Any, directions: Any) -> tuple[Any, ...]:
        """Return the tangents of the float results."""
        return self._chunks(self._tangents, tuple(stacked), tuple(directions))

    def gradients(self, stacked: Any, cotangents: Any) -> tuple[Any, ...]:
        """Return the gradients of each sample with respect to the float operands."""
        return self._chunks(self._gradients, tuple(stacked), tuple(cotangents))

    def second_derivatives(self, stacked: Any, directions: Any, cotangents: Any) -> tuple[Any, ...]:
        """Return the derivatives of the gradients of each sample along directions."""
        return self._chunks(self._second, tuple(stacked), tuple(directions), tuple(cotangents))

    def _chunks(self, program: Callable[..., Any], *arguments: Any) -> tuple[Any, ...]:
        """Call a program on batches of one size, so that it is compiled once."""
        total, size = len(jax.tree.leaves(arguments)[0]), self._count
        assert total % size == 0
        parts = []
        for k in range(0, total, size):
            part = jax.tree.map(lambda x, k=k: np.asarray(x[k : k + size]), arguments)
            parts.append([np.asarray(r) for r in program(*part)])
        return tuple(np.concatenate(p) if len(p) > 1 else p[0] for p in zip(*parts, strict=True))
