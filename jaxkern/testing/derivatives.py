"""Checks of derivatives, forward, reverse, second and vmapped, against the twin's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.testing.case import OpCase
from jaxkern.testing.differentials import (
    forward_over_reverse,
    gradient,
    is_inexact,
    of_floats,
    reverse_over_forward,
    tangent,
)


def forward(case: OpCase) -> None:
    """Results and tangents of jvp: one sample, a batch, vmapped; along some operands alone."""
    if not case.differentiable:
        return
    directions = case.directions()
    results = tuple(w for w in case.wanted if is_inexact(w))
    wanted = results, case.twin.tangents(case.stacked, directions)
    if _own_rules(case):
        one = jax.jit(tangent(case.call, case.floats))
        got = one(case.first, [d[0] for d in directions])
        case.equal(got, jax.tree.map(lambda w: w[0], wanted), "jvp")
        vmapped = jax.jit(jax.vmap(tangent(case.call, case.floats)))
        case.equal(vmapped(case.stacked, directions), wanted, "vmap of jvp")
        whole = jax.jit(tangent(case.call_batch, case.floats))
        case.equal(whole(case.stacked, directions), wanted, "jvp of a batch")
    for some in _operand_sets(case):
        moved = [d for d, i in zip(directions, case.floats, strict=True) if i in some]
        still = [
            d if i in some else np.zeros_like(d)
            for d, i in zip(directions, case.floats, strict=True)
        ]
        alone = jax.jit(tangent(case.call_batch, some))
        wanted = results, case.twin.tangents(case.stacked, still)
        case.equal(alone(case.stacked, moved), wanted, f"jvp along the operands {some} alone")


def reverse(case: OpCase) -> None:
    """vjp under remat, of a batch, vmapped, and by operands that are the same for all samples."""
    if not case.differentiable:
        return
    cotangents = case.cotangents()
    wanted = case.twin.gradients(case.stacked, cotangents)
    if _own_rules(case):
        remat = jax.jit(gradient(jax.checkpoint(case.call), case.floats))
        got = remat(case.first, [c[0] for c in cotangents])
        case.equal(got, tuple(w[0] for w in wanted), "vjp under remat")
        vmapped = jax.jit(jax.vmap(gradient(case.call, case.floats)))
        case.equal(vmapped(case.stacked, cotangents), wanted, "vmap of vjp")
        whole = jax.jit(gradient(case.call_batch, case.floats))
        case.equal(whole(case.stacked, cotangents), wanted, "vjp of a batch")
    for mapped in case.halves():
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.mixed(mapped)
        summed, terms = gradient_sums(case, mapped, case.twin.gradients(full, cotangents))
        over = jax.vmap(case.call, axes)
        fn = jax.jit(gradient(over if _own_rules(case) else jax.checkpoint(over), case.floats))
        case.equal(fn(operands, cotangents), summed, f"vjp of a vmap with in_axes={axes}", terms)


def gradient_sums(
    case: OpCase, mapped: Sequence[bool], gradients: Any
) -> tuple[tuple[Any, ...], list[float]]:
    """Gradients of a batch, from each sample's: summed for operands that all samples share.

    With what `OpCase.equal` wants to know of the terms of each sum.
    """
    wanted, terms = [], []
    for g, i in zip(gradients, case.floats, strict=True):
        wide = g.astype(_wide(g))
        wanted.append(g if mapped[i] else np.asarray(np.sum(wide, axis=0), g.dtype))
        sums = 0.0 if mapped[i] else np.sum(np.abs(wide), axis=0)
        terms.append(float(np.max(np.nan_to_num(sums), initial=0.0)))
    return tuple(wanted), terms


def _own_rules(case: OpCase) -> bool:
    """Whether there is a rule to test, or one float operand only.

    Without one, derivatives are the twin's, which take long to compile: then a batch is seen where
    some operands move and where some are shared, and one sample in `jacobians`.
    """
    return case.op.jvp is not None or len(case.floats) == 1


def _wide(x: Any) -> Any:
    return np.complex128 if jnp.iscomplexobj(x) else np.float64


def _operand_sets(case: OpCase) -> list[list[int]]:
    """Each float operand alone where the op has a rule of its own, else every other one."""
    if len(case.floats) == 1:
        return []
    if case.op.jvp is not None:
        return [[i] for i in case.floats]
    return [case.floats[0::2], case.floats[1::2]]


def jacobians(case: OpCase) -> None:
    """jacfwd and jacrev with respect to the smallest real operand."""
    real = [i for i in case.floats if not jnp.iscomplexobj(case.first[i])]
    if not case.differentiable or not real:
        return
    i = min(real, key=lambda i: case.first[i].size)
    x, place = case.first[i], case.floats.index(i)
    # The twin's columns: tangents along each unit vector, in whole batches of its programs.
    rows = -(-max(x.size, 1) // case.count) * case.count
    directions = [np.zeros((rows, *case.first[j].shape), case.first[j].dtype) for j in case.floats]
    units = directions[place].reshape(rows, x.size)
    units[np.arange(x.size), np.arange(x.size)] = 1
    repeated = [np.broadcast_to(o, (rows, *o.shape)) for o in case.first]
    columns = case.twin.tangents(repeated, directions)
    wanted = tuple(
        np.moveaxis(c[: x.size], 0, -1).reshape((*c.shape[1:], *x.shape)) for c in columns
    )
    fn = of_floats(case.call, case.first, [i])
    case.equal(jax.jit(jax.jacfwd(fn))(x), wanted, "jacfwd")
    results = [r for r in case.results if is_inexact(r)]
    size = sum(r.size for r in results)
    if size <= 4096 and not any(jnp.issubdtype(r.dtype, np.complexfloating) for r in results):
        case.equal(jax.jit(jax.jacrev(fn))(x), wanted, "jacrev")


def second(case: OpCase) -> None:
    """Second derivatives of an op with a jvp of its own, forward over reverse and the other way."""
    if not case.differentiable or case.op.jvp is None:
        return  # without a jvp, derivatives of every order are the twin's
    if any(jnp.iscomplexobj(x) for x in case.first):
        return
    directions, cotangents = case.directions(), case.cotangents()
    wanted = case.twin.seconds(case.stacked, directions, cotangents)
    for what, order in (
        ("forward over reverse", forward_over_reverse),
        ("reverse over forward", reverse_over_forward),
    ):
        fn = jax.jit(jax.vmap(order(case.call, case.floats)))
        case.equal(fn(case.stacked, directions, cotangents), wanted, what)


def transposition(case: OpCase) -> None:
    """The transpose rule by the operands in which the op is linear, full and broadcast."""
    if not case.differentiable or case.op.transpose is None:
        return
    refused: Exception | None = None
    sets, taken = _linear_sets(case), 0
    for linear in sets:
        try:
            comparisons = _transposes(case, linear)
        except Exception as error:  # of several sets of one size, a rule may be for one
            refused = error
            continue
        taken += 1
        for got, wanted, what in comparisons:
            case.equal(got, wanted, what)
    assert taken, f"the transpose rule takes none of the operands {sets}: {refused!r}"


def _transposes(case: OpCase, linear: Sequence[int]) -> list[tuple[Any, Any, str]]:
    """What the op's rule and the twin give, and of what."""
    comparisons = []
    grid = (2, case.count // 2)
    cotangents = case.cotangents()
    tall = tuple(c.reshape(*grid, *c.shape[1:]) for c in cotangents)
    wholes = [x.reshape(*grid, *x.shape[1:]) for x in case.stacked]
    # Axes of the grid along which the linear operands are one for all samples.
    for axes in ((), (0,), (1,), (0, 1)):
        operands = list(wholes)
        for i in linear:
            for axis in axes:
                operands[i] = np.take(operands[i], [0], axis)
        full = [
            np.broadcast_to(o, w.shape).reshape(x.shape)
            for o, w, x in zip(operands, wholes, case.stacked, strict=True)
        ]
        pulled = case.twin.gradients(full, cotangents)
        wanted = []
        for i in linear:
            g = pulled[case.floats.index(i)]
            g = g.reshape(*grid, *g.shape[1:])
            summed = np.sum(g.astype(_wide(g)), axis=axes, keepdims=True) if axes else g
            wanted.append(np.asarray(summed, g.dtype))

        def transposed(cs: Any, operands: Any = operands) -> Any:
            fn = of_floats(lambda *xs: case.call(*xs, batch_dims=2), operands, linear)
            return jax.linear_transpose(fn, *(operands[i] for i in linear))(cs)

        what = f"transpose by the operands {linear}, broadcast along the batch axes {axes}"
        comparisons.append((jax.jit(transposed)(tall), tuple(wanted), what))
    return comparisons


def _linear_sets(case: OpCase) -> list[list[int]]:
    """The largest sets of float operands in which the twin is jointly linear."""
    ones = case.stacked
    others = [np.roll(x, 1, axis=0) for x in ones]
    sums = [x + y for x, y in zip(ones, others, strict=True)]

    def linear(some: Sequence[int]) -> bool:
        values = [
            case.twin.values(
                *(m if i in some else x for i, (x, m) in enumerate(zip(ones, moved, strict=True)))
            )
            for moved in (ones, others, sums)
        ]
        return all(
            np.allclose(both, one + other, rtol=1e-3, atol=1e-4)
            for one, other, both in zip(*values, strict=True)
            if is_inexact(both)
        )

    for size in range(len(case.floats), 0, -1):
        if found := [list(s) for s in itertools.combinations(case.floats, size) if linear(s)]:
            return found
    return []
