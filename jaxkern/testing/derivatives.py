"""Checks of forward, reverse, second and vmapped derivatives against the reference."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.testing.case import (
    OpCase,
    float_function,
    forward_over_reverse,
    gradient,
    is_inexact,
    reverse_over_forward,
    tangent,
)


def forward(case: OpCase) -> None:
    """Results and tangents of jvp: one sample, a batch, vmapped; for subsets of the operands."""
    if not case.differentiable:
        return
    directions = case.directions()
    results = tuple(w for w in case.expected if is_inexact(w))
    expected = results, case.reference.tangents(case.stacked, directions)
    if _has_own_rule(case):
        one = jax.jit(tangent(case.call, case.floats))
        actual = one(case.first, [d[0] for d in directions])
        case.equal(actual, jax.tree.map(lambda w: w[0], expected), "jvp")
        vmapped = jax.jit(jax.vmap(tangent(case.call, case.floats)))
        case.equal(vmapped(case.stacked, directions), expected, "vmap of jvp")
        batch = jax.jit(tangent(case.call_batch, case.floats))
        case.equal(batch(case.stacked, directions), expected, "jvp of a batch")
    for subset in _operand_sets(case):
        pairs = list(zip(directions, case.floats, strict=True))
        moved = [d for d, i in pairs if i in subset]
        all_directions = [d if i in subset else np.zeros_like(d) for d, i in pairs]
        program = jax.jit(tangent(case.call_batch, subset))
        expected = results, case.reference.tangents(case.stacked, all_directions)
        case.equal(program(case.stacked, moved), expected, f"jvp along the operands {subset}")


def reverse(case: OpCase) -> None:
    """Check vjp under remat, of a batch, vmapped, and with operands that all samples share."""
    if not case.differentiable:
        return
    cotangents = case.cotangents()
    expected = case.reference.gradients(case.stacked, cotangents)
    if _has_own_rule(case):
        remat = jax.jit(gradient(jax.checkpoint(case.call), case.floats))
        actual = remat(case.first, [c[0] for c in cotangents])
        case.equal(actual, tuple(w[0] for w in expected), "vjp under remat")
        vmapped = jax.jit(jax.vmap(gradient(case.call, case.floats)))
        case.equal(vmapped(case.stacked, cotangents), expected, "vmap of vjp")
        batch = jax.jit(gradient(case.call_batch, case.floats))
        case.equal(batch(case.stacked, cotangents), expected, "vjp of a batch")
    for mapped in case.alternating_masks():
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.broadcast_unmapped(mapped)
        summed, terms = gradient_sums(case, mapped, case.reference.gradients(full, cotangents))
        over = jax.vmap(case.call, axes)
        fn = jax.jit(gradient(over if _has_own_rule(case) else jax.checkpoint(over), case.floats))
        case.equal(fn(operands, cotangents), summed, f"vjp of a vmap with in_axes={axes}", terms)


def gradient_sums(
    case: OpCase, mapped: Sequence[bool], gradients: Any
) -> tuple[tuple[Any, ...], list[float]]:
    """Return gradients, summed over samples for unmapped operands, and `OpCase.equal`'s terms."""
    expected, terms = [], []
    for g, i in zip(gradients, case.floats, strict=True):
        wide = g.astype(_wide(g))
        expected.append(g if mapped[i] else np.asarray(np.sum(wide, axis=0), g.dtype))
        sums = 0.0 if mapped[i] else np.sum(np.abs(wide), axis=0)
        terms.append(float(np.max(np.nan_to_num(sums), initial=0.0)))
    return tuple(expected), terms


def _has_own_rule(case: OpCase) -> bool:
    """Return True if the op has a derivative rule, or a single float operand."""
    # Otherwise derivatives are those of the reference, which compile slowly: only batches with
    # subsets of the operands and with shared operands are checked, and one sample in `jacobians`.
    return case.op.jvp is not None or len(case.floats) == 1


def _wide(x: Any) -> Any:
    return np.complex128 if jnp.iscomplexobj(x) else np.float64


def _operand_sets(case: OpCase) -> list[list[int]]:
    """Return each float operand alone if the op has a derivative rule, else every other one."""
    if len(case.floats) == 1:
        return []
    if case.op.jvp is not None:
        return [[i] for i in case.floats]
    return [case.floats[0::2], case.floats[1::2]]


def jacobians(case: OpCase) -> None:
    """Check jacfwd and jacrev with respect to the smallest real operand."""
    real = [i for i in case.floats if not jnp.iscomplexobj(case.first[i])]
    if not case.differentiable or not real:
        return
    i = min(real, key=lambda i: case.first[i].size)
    x, position = case.first[i], case.floats.index(i)
    # The columns of the reference are tangents along the unit vectors, in full batches.
    rows = -(-max(x.size, 1) // case.count) * case.count
    directions = [np.zeros((rows, *case.first[j].shape), case.first[j].dtype) for j in case.floats]
    units = directions[position].reshape(rows, x.size)
    units[np.arange(x.size), np.arange(x.size)] = 1
    repeated = [np.broadcast_to(o, (rows, *o.shape)) for o in case.first]
    columns = case.reference.tangents(repeated, directions)
    expected = tuple(
        np.moveaxis(c[: x.size], 0, -1).reshape((*c.shape[1:], *x.shape)) for c in columns
    )
    fn = float_function(case.call, case.first, [i])
    case.equal(jax.jit(jax.jacfwd(fn))(x), expected, "jacfwd")
    results = [r for r in case.results if is_inexact(r)]
    size = sum(r.size for r in results)
    if size <= 4096 and not any(jnp.issubdtype(r.dtype, np.complexfloating) for r in results):
        case.equal(jax.jit(jax.jacrev(fn))(x), expected, "jacrev")


def second(case: OpCase) -> None:
    """Second derivatives of an op with a jvp, forward over reverse and reverse over forward."""
    if not case.differentiable or case.op.jvp is None:
        return  # without a jvp, all derivatives come from the reference
    if any(jnp.iscomplexobj(x) for x in case.first):
        return
    directions, cotangents = case.directions(), case.cotangents()
    expected = case.reference.second_derivatives(case.stacked, directions, cotangents)
    for order in forward_over_reverse, reverse_over_forward:
        fn = jax.jit(jax.vmap(order(case.call, case.floats)))
        case.equal(fn(case.stacked, directions, cotangents), expected, order.__name__)


def transposition(case: OpCase) -> None:
    """The transpose rule for the operands in which the op is linear, full and broadcast."""
    if not case.differentiable or case.op.transpose is None:
        return
    refused: Exception | None = None
    sets, accepted = _linear_sets(case), 0
    for linear in sets:
        try:
            comparisons = _transposes(case, linear)
        except Exception as error:  # a rule may be linear in only one of the sets
            refused = error
            continue
        accepted += 1
        for actual, expected, label in comparisons:
            case.equal(actual, expected, label)
    assert accepted, f"the transpose rule rejects all of the operands {sets}: {refused!r}"


def _transposes(case: OpCase, linear: Sequence[int]) -> list[tuple[Any, Any, str]]:
    """Return results of the op's rule and of the reference, with labels."""
    comparisons = []
    grid = (2, case.count // 2)
    cotangents = case.cotangents()
    cotangents_on_grid = tuple(c.reshape(*grid, *c.shape[1:]) for c in cotangents)
    operands_on_grid = [x.reshape(*grid, *x.shape[1:]) for x in case.stacked]
    # Axes of the grid along which all samples share the linear operands.
    for axes in ((), (0,), (1,), (0, 1)):
        operands = list(operands_on_grid)
        for i in linear:
            for axis in axes:
                operands[i] = np.take(operands[i], [0], axis)
        full = [
            np.broadcast_to(o, w.shape).reshape(x.shape)
            for o, w, x in zip(operands, operands_on_grid, case.stacked, strict=True)
        ]
        pulled = case.reference.gradients(full, cotangents)
        expected = []
        for i in linear:
            g = pulled[case.floats.index(i)]
            g = g.reshape(*grid, *g.shape[1:])
            summed = np.sum(g.astype(_wide(g)), axis=axes, keepdims=True) if axes else g
            expected.append(np.asarray(summed, g.dtype))

        def transposed(cs: Any, operands: Any = operands) -> Any:
            fn = float_function(lambda *xs: case.call(*xs, batch_dims=2), operands, linear)
            return jax.linear_transpose(fn, *(operands[i] for i in linear))(cs)

        label = f"transpose by the operands {linear}, broadcast along the batch axes {axes}"
        comparisons.append((jax.jit(transposed)(cotangents_on_grid), tuple(expected), label))
    return comparisons


def _linear_sets(case: OpCase) -> list[list[int]]:
    """Return the largest sets of float operands in which the reference is jointly linear."""
    ones = case.stacked
    others = [np.roll(x, 1, axis=0) for x in ones]
    sums = [x + y for x, y in zip(ones, others, strict=True)]

    def is_linear(subset: Sequence[int]) -> bool:
        values = [
            case.reference.values(
                *(m if i in subset else x for i, (x, m) in enumerate(zip(ones, moved, strict=True)))
            )
            for moved in (ones, others, sums)
        ]
        return all(
            np.allclose(both, one + other, rtol=1e-3, atol=1e-4)
            for one, other, both in zip(*values, strict=True)
            if is_inexact(both)
        )

    for size in range(len(case.floats), 0, -1):
        if sets := [list(s) for s in itertools.combinations(case.floats, size) if is_linear(s)]:
            return sets
    return []
