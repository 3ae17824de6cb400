"""Checks of batches: every way to map and to broadcast operands, and samples of other sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.testing.case import OpCase
from jaxkern.testing.differentials import is_inexact

# Of the check `large_batch`: above any number of samples that a kernel leaves to one thread, and no
# multiple of a power of 2; within so many bytes of operands and results.
_LARGE_SAMPLES, _LARGE_BYTES, _LARGE_PART = 33_333, 8 << 20, 4096
# How many sizes are changed one at a time.
_SINGLE_SIZES = 4
# By how many times more than one rounding of the operands a right kernel may be off.
_ROUNDINGS = 1000.0


def vmap_mixes(case: OpCase) -> None:
    """Every mix of two mapped or unmapped operands, one kernel call each, nothing replicated."""
    for mapped in _pairwise_mixes(case):
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.mixed(mapped)
        program = jax.jit(jax.vmap(case.call, axes))
        for eqn in _op_equations(case, program.trace(*operands).jaxpr):
            for i, (var, m) in enumerate(zip(eqn.invars, mapped, strict=True)):
                size = var.aval.shape[0]
                assert size == (case.count if m else 1), (
                    f"operand {i} has size {size} along the new axis with in_axes={axes}"
                )
        case.equal(program(*operands), case.twin.values(*full), f"vmap with in_axes={axes}")


def vmap_axes(case: OpCase) -> None:
    """Mapped axes that are not the first, and other output axes."""
    last = [np.moveaxis(x, 0, -1) for x in case.stacked]
    fn = jax.vmap(case.call, in_axes=-1, out_axes=-1)
    wanted = tuple(np.moveaxis(w, 0, -1) for w in case.wanted)
    case.equal(jax.jit(fn)(*last), wanted, "the last axis")


def vmap_nested(case: OpCase) -> None:
    """A vmap in a vmap that map the operands alternately, and a grid of 2 x N/2 samples."""
    half = (2, case.count // 2)
    grid = [x.reshape(*half, *x.shape[1:]) for x in case.stacked]
    wanted = tuple(w.reshape(*half, *w.shape[1:]) for w in case.wanted)
    case.equal(jax.jit(jax.vmap(jax.vmap(case.call)))(*grid), wanted, "a grid")
    square = (case.count, case.count)
    for mapped in case.halves():
        inner = tuple(0 if m else None for m in mapped)
        outer = tuple(None if m else 0 for m in mapped)
        nested = jax.vmap(jax.vmap(case.call, inner), outer)
        program = jax.jit(nested).lower(*case.stacked).compile()
        # An operand of the inner vmap is the same for all rows, one of the outer for all columns.
        full = [
            np.broadcast_to(x[None] if m else x[:, None], (*square, *x.shape[1:]))
            for x, m in zip(case.stacked, mapped, strict=True)
        ]
        wanted = _over_axes(case, full, square)
        case.equal(program(*case.stacked), wanted, f"inner {inner}, outer {outer}")
        if case.native:
            calls = case.custom_calls(program.as_text())
            assert calls == 1, f"nested vmaps have {calls} custom calls; wanted 1"


def batch_axes(case: OpCase) -> None:
    """Three batch axes of 2: full ones, and operands broadcast along each of them by turns."""
    batch = (2, 2, 2)
    # Of 4 samples, the second four are the first four in another order.
    rows = [(k + k // case.count) % case.count for k in range(8)]
    grid = [x[rows].reshape(*batch, *x.shape[1:]) for x in case.stacked]
    program = jax.jit(lambda *xs: case.call(*xs, batch_dims=3))
    case.equal(program(*grid), _over_axes(case, grid, batch), "three batch axes")
    for turn in range(3 if len(grid) > 1 else 0):
        # The last operand stays whole, so that the batch axes keep their sizes.
        narrow = [np.take(x, [0], axis=(i + turn) % 3) for i, x in enumerate(grid[:-1])]
        narrow.append(grid[-1])
        full = [np.broadcast_to(x, (*batch, *x.shape[3:])) for x in narrow]
        what = f"batch axes of sizes {[x.shape[:3] for x in narrow]}"
        case.equal(program(*narrow), _over_axes(case, full, batch), what)


def empty_batch(case: OpCase) -> None:
    """A batch of no samples gives results of no samples."""
    none = [x[:0] for x in case.stacked]
    wanted = tuple(w[:0] for w in case.wanted)
    case.equal(jax.jit(jax.vmap(case.call))(*none), wanted, "an empty batch")


def large_batch(case: OpCase) -> None:
    """Every row of a batch that kernels divide among threads, in an order without a period."""
    if not case.native:
        return
    sample = sum(x.nbytes for x in [*case.stacked, *case.wanted]) // case.count
    count = max(case.count, min(_LARGE_SAMPLES, _LARGE_BYTES // max(sample, 1)))
    rows = case.random.integers(case.count, size=count)
    got = jax.block_until_ready(case.batched(*(x[rows] for x in case.stacked)))
    for begin in range(0, count, _LARGE_PART):
        part = slice(begin, min(begin + _LARGE_PART, count))
        wanted = tuple(w[rows[part]] for w in case.wanted)
        what = f"samples {part.start} to {part.stop - 1} of a batch of {count}"
        case.equal(tuple(np.asarray(r)[part] for r in got), wanted, what)


def other_sizes(case: OpCase) -> None:
    """Sizes that no sample has, where abstract, twin and kernel take them.

    Axes of one size change together: all sizes at once or, where those do not go together, one at
    a time. They grow; where no operand holds integers, which may be indices, they also shrink to 1.
    Differences are let pass where a rounding of the operands makes such ones in the twin's results.
    """
    present = sorted({n for x in case.first for n in x.shape if n > 0})
    changes = [{n: 2 * n + 1 for n in present}]
    if len(case.floats) == len(case.first):
        changes.append(dict.fromkeys(present, 1))
    for change in changes:
        if not _equal_at(case, change) and len(present) > 1:
            for n in present[:_SINGLE_SIZES]:
                _equal_at(case, {n: change[n]})


def _equal_at(case: OpCase, sizes: dict[int, int]) -> bool:
    """Compares at sizes that replace the samples'; False where they are refused."""
    operands = [_resized(x, sizes) for x in case.stacked]
    if all(x.shape == y.shape for x, y in zip(operands, case.stacked, strict=True)):
        return False
    try:
        case.op.core_results([x[0] for x in operands], 0, case.static)
        wanted = case.twin.values(*operands)
    except Exception:  # what is raised on bad input is the op's own choice
        return False
    try:
        got = jax.block_until_ready(case.batched(*operands))
    except jax.errors.JaxRuntimeError as error:  # a kernel may refuse, it may not be wrong
        if "INVALID_ARGUMENT" in str(error):
            return False
        raise
    try:
        case.equal(got, wanted, f"operands of shapes {[x.shape[1:] for x in operands]}")
    except AssertionError:
        # Repeated elements are a matrix without an inverse, or ties to be sorted, where the samples
        # have none of it: what a rounding decides tells nothing of the kernel.
        nudged = case.twin.values(*(_nudged(case, x) for x in operands))
        if any(
            _gap(g, w) > _ROUNDINGS * _gap(n, w)
            for g, n, w in zip(got, nudged, wanted, strict=True)
        ):
            raise
        return False
    return True


def _gap(got: Any, wanted: Any) -> float:
    """The largest difference; infinite where one of them is not finite alone."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    wide: Any = np.complex128 if jnp.iscomplexobj(wanted) else np.float64
    got, wanted = got.astype(wide), wanted.astype(wide)
    same = (got == wanted) | (np.isnan(got) & np.isnan(wanted))
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.where(same, 0.0, np.abs(got - wanted))
    return float(np.max(np.nan_to_num(away, nan=np.inf, posinf=np.inf), initial=0.0))


def _resized(stacked: Any, sizes: dict[int, int]) -> Any:
    """Samples whose axes repeat, or lose, their last elements."""
    for axis in range(1, stacked.ndim):
        n = stacked.shape[axis]
        if n in sizes:
            stacked = np.take(stacked, np.arange(sizes[n]) % n, axis=axis)
    return stacked


def _nudged(case: OpCase, x: Any) -> Any:
    """Floats that are off by a rounding, up or down."""
    if not is_inexact(x):
        return x
    kind: Any = jnp.finfo(x.dtype)  # type: ignore[no-untyped-call]
    signs = case.random.choice([-1.0, 1.0], x.shape)
    return np.asarray(x * (1.0 + signs * float(kind.eps))).astype(x.dtype)


def _over_axes(case: OpCase, full: Sequence[Any], batch: Sequence[int]) -> tuple[Any, ...]:
    """The twin's results over several batch axes, padded to whole batches of its programs."""
    samples = int(np.prod(batch))
    rows = np.arange(-(-samples // case.count) * case.count) % samples
    flat = [x.reshape(samples, *x.shape[len(batch) :])[rows] for x in full]
    values = case.twin.values(*flat)
    return tuple(v[:samples].reshape(*batch, *v.shape[1:]) for v in values)


def _pairwise_mixes(case: OpCase) -> list[tuple[bool, ...]]:
    """Mixes in which each two operands are mapped both, neither, and either one alone.

    An operand is mapped in a set of its own of half of the mixes, of which the first, where all are
    mapped, is one: of two such sets each has a mix that the other lacks, and some mix is in neither
    (Kleitman and Spencer, Families of k-independent sets, 1973).
    """
    count, half = len(case.first), 2
    if count < 3:
        return [m for m in itertools.product((True, False), repeat=count) if any(m)]
    while math.comb(2 * half - 1, half - 1) < count:
        half += 1
    sets = list(itertools.combinations(range(1, 2 * half), half - 1))
    while True:  # until no mix is without a mapped operand
        own = [sets[k] for k in case.random.choice(len(sets), count, replace=False)]
        mixes = [tuple(k == 0 or k in some for some in own) for k in range(2 * half)]
        if all(map(any, mixes)):
            return mixes


def _op_equations(case: OpCase, program: Any) -> list[Any]:
    found = [eqn for eqn in program.jaxpr.eqns if eqn.primitive is case.op.primitive]
    assert len(found) == 1, f"the vmapped op is {len(found)} operations; wanted 1"
    return found
