"""Checks of derivatives, forward, reverse and vmapped, against the pure-JAX implementation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.testing.check import OpCheck, check


def _along(case: OpCheck, fn: Callable[..., Any], operands: Any) -> tuple[Callable[..., Any], Any]:
    """``fn`` as a function of its float operands alone, and those."""

    def along(*xs: Any) -> tuple[Any, ...]:
        full = list(operands)
        for i, x in zip(case.floats, xs, strict=True):
            full[i] = x
        return tuple(r for r in fn(*full) if jnp.issubdtype(r.dtype, jnp.inexact))

    return along, [operands[i] for i in case.floats]


def _noise(case: OpCheck, like: Any) -> Any:
    return jax.tree.map(
        lambda x: jnp.asarray(case.random.standard_normal(x.shape), x.dtype), tuple(like)
    )


def nothing_to_do(case: OpCheck) -> bool:
    results = jax.eval_shape(case.reference, *case.first)
    return not case.floats or not any(jnp.issubdtype(r.dtype, jnp.inexact) for r in results)


@check
def forward(case: OpCheck) -> None:
    """jvp along a random direction and along each operand alone; vmap of jvp."""
    if nothing_to_do(case):
        return
    fn, primals = _along(case, case.call, case.first)
    ref, _ = _along(case, case.reference, case.first)
    tangents = _noise(case, primals)
    directions = [tangents]
    for i in range(len(primals)):
        directions.append(tuple(t if i == j else 0 * t for j, t in enumerate(tangents)))
    along = jax.jit(lambda t: jax.jvp(fn, primals, list(t)))
    wanted = jax.jit(lambda t: jax.jvp(ref, primals, list(t)))
    for direction in directions:
        got = along(direction)
        case.equal(got, wanted(direction), "jvp")
    batch = tuple(jnp.stack([t, 2 * t, -t]) for t in tangents)
    got = jax.jit(jax.vmap(lambda t: jax.jvp(fn, primals, list(t))[1]))(batch)
    case.equal(got, jax.jit(jax.vmap(lambda t: wanted(t)[1]))(batch), "vmap of jvp")


@check
def reverse(case: OpCheck) -> None:
    """vjp of a random cotangent, grad of a sum of squares, vmap of both, and under remat."""
    if nothing_to_do(case):
        return
    fn, primals = _along(case, case.call, case.first)
    ref, _ = _along(case, case.reference, case.first)
    results, pull = jax.vjp(fn, *primals)
    pull_reference = jax.jit(lambda c: jax.vjp(ref, *primals)[1](c))
    cotangents = _noise(case, results)
    case.equal(pull(cotangents), pull_reference(cotangents), "vjp")
    batch = jax.tree.map(lambda c: jnp.stack([c, 2 * c, -c]), cotangents)
    got, expected = jax.jit(jax.vmap(pull))(batch), jax.vmap(pull_reference)(batch)
    case.equal(got, expected, "vmap of vjp")

    one, wanted = (gradient(case, f) for f in (case.call, case.reference))
    stacked = case.stacked
    each = jax.jit(jax.vmap(wanted))(*stacked)
    case.equal(jax.jit(jax.vmap(one))(*stacked), each, "vmap of grad")
    whole = gradient(case, lambda *xs: case.call(*xs, batch_dims=1))
    case.equal(jax.jit(whole)(*stacked), each, "grad of a batch")
    remat = gradient(case, jax.checkpoint(case.call))
    case.equal(jax.jit(remat)(*case.first), jax.jit(wanted)(*case.first), "grad under remat")


def gradient(case: OpCheck, fn: Callable[..., Any]) -> Callable[..., Any]:
    def loss(*operands: Any) -> Any:
        floats = [r for r in fn(*operands) if jnp.issubdtype(r.dtype, jnp.inexact)]
        return sum(jnp.sum(r.astype(jnp.float32) ** 2) for r in floats)

    return jax.grad(loss, tuple(case.floats))


@check
def jacobians(case: OpCheck) -> None:
    """jacfwd and jacrev with respect to the smallest float operand."""
    if nothing_to_do(case):
        return
    i = min(case.floats, key=lambda i: case.first[i].size)
    rest = list(case.first)

    def one(fn: Callable[..., Any]) -> Callable[[Any], Any]:
        return lambda x: tuple(
            r for r in fn(*rest[:i], x, *rest[i + 1 :]) if jnp.issubdtype(r.dtype, jnp.inexact)
        )

    got, wanted = one(case.call), one(case.reference)
    forward = jax.jit(jax.jacfwd(wanted))(rest[i])
    case.equal(jax.jit(jax.jacfwd(got))(rest[i]), forward, "jacfwd")
    results = jax.eval_shape(wanted, rest[i])
    if sum(r.size for r in results) <= 4096:
        backward = jax.jit(jax.jacrev(wanted))(rest[i])
        case.equal(jax.jit(jax.jacrev(got))(rest[i]), backward, "jacrev")
