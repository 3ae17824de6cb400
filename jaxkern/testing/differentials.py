"""Derivatives of an op's call, or of its twin, as functions of operands, directions and cotangents.

All are of ONE call of ``fn``, by the float operands ``which``; ``vmap`` them for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

Function = Callable[..., Any]


def is_inexact(x: Any) -> bool:
    return bool(jnp.issubdtype(x.dtype, jnp.inexact))


def of_floats(fn: Function, operands: Sequence[Any], which: Sequence[int]) -> Function:
    """``fn`` as a function of the operands ``which`` alone, and of its float results."""

    def along(*xs: Any) -> tuple[Any, ...]:
        full = list(operands)
        for i, x in zip(which, xs, strict=True):
            full[i] = x
        return tuple(r for r in fn(*full) if is_inexact(r))

    return along


def tangent(fn: Function, which: Sequence[int]) -> Function:
    """``(operands, moved) -> (results, tangents)``, floats alone; ``moved``: one each of which."""

    def moved(operands: Sequence[Any], directions: Sequence[Any]) -> Any:
        primals = [operands[i] for i in which]
        return jax.jvp(of_floats(fn, operands, which), primals, list(directions))

    return moved


def weighted(results: Sequence[Any], cotangents: Sequence[Any]) -> Any:
    """The sum of results times cotangents: its gradient is the pull of those cotangents."""
    total: Any = 0.0
    for r, c in zip(results, cotangents, strict=True):
        term = jnp.real(r * c)
        # A sum of half types is taken in float32, as are its ones on the way back.
        total = total + jnp.sum(term.astype(jnp.promote_types(term.dtype, jnp.float32)))
    return total


def gradient(fn: Function, which: Sequence[int]) -> Function:
    """``(operands, cotangents) -> gradients`` by the operands ``which``."""

    def pulled(operands: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        along = of_floats(fn, operands, which)
        loss = lambda *xs: weighted(along(*xs), cotangents)  # noqa: E731
        return jax.grad(loss, tuple(range(len(which))))(*(operands[i] for i in which))

    return pulled


def forward_over_reverse(fn: Function, which: Sequence[int]) -> Function:
    """``(operands, moved, cotangents)``: how the gradient changes along ``moved``."""

    def second(operands: Sequence[Any], directions: Sequence[Any], cotangents: Any) -> Any:
        along = of_floats(fn, operands, which)
        slope = jax.grad(lambda *xs: weighted(along(*xs), cotangents), tuple(range(len(which))))
        return jax.jvp(slope, [operands[i] for i in which], list(directions))[1]

    return second


def reverse_over_forward(fn: Function, which: Sequence[int]) -> Function:
    """``(operands, moved, cotangents)``: the gradient of the tangent along ``moved``.

    The same numbers as `forward_over_reverse`, by other rules.
    """

    def second(operands: Sequence[Any], directions: Sequence[Any], cotangents: Any) -> Any:
        along = of_floats(fn, operands, which)

        def loss(*xs: Any) -> Any:
            return weighted(jax.jvp(along, list(xs), list(directions))[1], cotangents)

        return jax.grad(loss, tuple(range(len(which))))(*(operands[i] for i in which))

    return second
