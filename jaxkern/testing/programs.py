"""Checks of programs and of batches: control flow, donation, backends, vmap, other sizes."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.backend import Backend, backend
from jaxkern.core.op import ops
from jaxkern.testing.case import OpCase, expect, is_inexact

# For `large_batch`: an odd number of samples, more than a kernel processes in one thread; the
# maximum size of operands and results in bytes; the number of samples compared at a time.
_LARGE_SAMPLES, _LARGE_BYTES, _LARGE_PART = 33_333, 8 << 20, 4096
_SINGLE_SIZES = 4  # number of sizes that `other_sizes` changes one at a time
# Maximum error of a correct kernel, relative to the effect of one rounding of its operands.
_ROUNDINGS = 1000.0


def vmap_mixes(case: OpCase) -> None:
    """Every pair of operands, mapped or not: one kernel call, and no operand is replicated."""
    for mapped in _pairwise_masks(case):
        axes = tuple(0 if m else None for m in mapped)
        operands, full = case.broadcast_unmapped(mapped)
        program = jax.jit(jax.vmap(case.call, axes))
        for eqn in _op_equations(case, program.trace(*operands).jaxpr):
            for i, (var, m) in enumerate(zip(eqn.invars, mapped, strict=True)):
                size, label = var.aval.shape[0], f"operand {i}: new axis with in_axes={axes}"
                expect(size, case.count if m else 1, label)
        case.equal(program(*operands), case.reference.values(*full), f"vmap with in_axes={axes}")


def vmap_axes(case: OpCase) -> None:
    """Mapped axes and output axes other than the first."""
    last = [np.moveaxis(x, 0, -1) for x in case.stacked]
    fn = jax.vmap(case.call, in_axes=-1, out_axes=-1)
    expected = tuple(np.moveaxis(w, 0, -1) for w in case.expected)
    case.equal(jax.jit(fn)(*last), expected, "the last axis")


def vmap_nested(case: OpCase) -> None:
    """Nested vmaps: over a grid of 2 x N/2 samples, and each over every other operand."""
    half = (2, case.count // 2)
    grid = [x.reshape(*half, *x.shape[1:]) for x in case.stacked]
    expected = tuple(w.reshape(*half, *w.shape[1:]) for w in case.expected)
    case.equal(jax.jit(jax.vmap(jax.vmap(case.call)))(*grid), expected, "a grid")
    square = (case.count, case.count)
    for mapped in case.alternating_masks():
        inner = tuple(0 if m else None for m in mapped)
        outer = tuple(None if m else 0 for m in mapped)
        nested = jax.vmap(jax.vmap(case.call, inner), outer)
        program = jax.jit(nested).lower(*case.stacked).compile()
        # The inner vmap maps an operand over the columns, the outer one over the rows.
        full = [
            np.broadcast_to(x[None] if m else x[:, None], (*square, *x.shape[1:]))
            for x, m in zip(case.stacked, mapped, strict=True)
        ]
        expected = _reference_over_axes(case, full, square)
        case.equal(program(*case.stacked), expected, f"inner {inner}, outer {outer}")
        if case.native:
            expect(case.custom_calls(program.as_text()), 1, "custom calls of nested vmaps")


def batch_axes(case: OpCase) -> None:
    """Three batch axes of size 2, with full operands and with operands of size 1 on one axis."""
    batch = (2, 2, 2)
    # For 4 samples, rows 4 to 7 are rows 0 to 3 in another order.
    rows = [(k + k // case.count) % case.count for k in range(8)]
    grid = [x[rows].reshape(*batch, *x.shape[1:]) for x in case.stacked]
    program = jax.jit(lambda *xs: case.call(*xs, batch_dims=3))
    case.equal(program(*grid), _reference_over_axes(case, grid, batch), "three batch axes")
    for turn in range(3 if len(grid) > 1 else 0):
        # The last operand determines the sizes of the batch axes.
        narrow = [np.take(x, [0], axis=(i + turn) % 3) for i, x in enumerate(grid[:-1])]
        narrow.append(grid[-1])
        full = [np.broadcast_to(x, (*batch, *x.shape[3:])) for x in narrow]
        label = f"batch axes of sizes {[x.shape[:3] for x in narrow]}"
        case.equal(program(*narrow), _reference_over_axes(case, full, batch), label)


def empty_batch(case: OpCase) -> None:
    """The results of an empty batch are empty."""
    empty = [x[:0] for x in case.stacked]
    expected = tuple(w[:0] for w in case.expected)
    case.equal(jax.jit(jax.vmap(case.call))(*empty), expected, "an empty batch")


def large_batch(case: OpCase) -> None:
    """Every row of a batch that kernels divide between threads, in random order."""
    if not case.native:
        return
    sample = sum(x.nbytes for x in [*case.stacked, *case.expected]) // case.count
    count = max(case.count, min(_LARGE_SAMPLES, _LARGE_BYTES // max(sample, 1)))
    rows = case.random.integers(case.count, size=count)
    actual = jax.block_until_ready(case.batched(*(x[rows] for x in case.stacked)))
    for begin in range(0, count, _LARGE_PART):
        part = slice(begin, min(begin + _LARGE_PART, count))
        expected = tuple(w[rows[part]] for w in case.expected)
        label = f"samples {part.start} to {part.stop - 1} of a batch of {count}"
        case.equal(tuple(np.asarray(r)[part] for r in actual), expected, label)


def other_sizes(case: OpCase) -> None:
    """Sizes that differ from those of the samples, if the op accepts them."""
    # Axes of equal size change together: all at once or, if the op rejects that, one at a time.
    # Sizes increase, and decrease to 1 if no operand holds integers, which may be indices.
    present = sorted({n for x in case.first for n in x.shape if n > 0})
    changes = [{n: 2 * n + 1 for n in present}]
    if len(case.floats) == len(case.first):
        changes.append(dict.fromkeys(present, 1))
    for change in changes:
        if not _compare_sizes(case, change) and len(present) > 1:
            for n in present[:_SINGLE_SIZES]:
                _compare_sizes(case, {n: change[n]})


def _compare_sizes(case: OpCase, sizes: dict[int, int]) -> bool:
    """Compare at sizes that replace those of the samples; return False if the op rejects them."""
    operands = [_resize(x, sizes) for x in case.stacked]
    if all(x.shape == y.shape for x, y in zip(operands, case.stacked, strict=True)):
        return False
    try:
        case.op.core_results([x[0] for x in operands], 0, case.static)
        expected = case.reference.values(*operands)
    except Exception:  # an op may raise any error for bad input
        return False
    try:
        actual = jax.block_until_ready(case.batched(*operands))
    except jax.errors.JaxRuntimeError as error:  # a kernel may reject sizes
        if "INVALID_ARGUMENT" in str(error):
            return False
        raise
    try:
        case.equal(actual, expected, f"operands of shapes {[x.shape[1:] for x in operands]}")
    except AssertionError:
        # Repeated elements can make a matrix singular or create ties in a sort. A result that a
        # rounding changes says nothing about the kernel.
        perturbed = case.reference.values(*(_perturb(case, x) for x in operands))
        if any(
            _max_difference(g, w) > _ROUNDINGS * _max_difference(n, w)
            for g, n, w in zip(actual, perturbed, expected, strict=True)
        ):
            raise
        return False
    return True


def _max_difference(actual: Any, expected: Any) -> float:
    """Return the largest difference; infinite if only one of two values is finite."""
    wide: Any = np.complex128 if jnp.iscomplexobj(expected) else np.float64
    actual, expected = (np.asarray(x).astype(wide) for x in (actual, expected))
    same = (actual == expected) | (np.isnan(actual) & np.isnan(expected))
    with np.errstate(invalid="ignore", over="ignore"):
        away = np.where(same, 0.0, np.abs(actual - expected))
    return float(np.max(np.nan_to_num(away, nan=np.inf, posinf=np.inf), initial=0.0))


def _resize(stacked: Any, sizes: dict[int, int]) -> Any:
    """Repeat or truncate the elements along axes whose size is a key of ``sizes``."""
    for axis in range(1, stacked.ndim):
        n = stacked.shape[axis]
        if n in sizes:
            stacked = np.take(stacked, np.arange(sizes[n]) % n, axis=axis)
    return stacked


def _perturb(case: OpCase, x: Any) -> Any:
    """Change floats by one rounding, up or down."""
    if not is_inexact(x):
        return x
    kind: Any = jnp.finfo(x.dtype)  # type: ignore[no-untyped-call]
    signs = case.random.choice([-1.0, 1.0], x.shape)
    return np.asarray(x * (1.0 + signs * float(kind.eps))).astype(x.dtype)


def _reference_over_axes(
    case: OpCase, full: Sequence[Any], batch: Sequence[int]
) -> tuple[Any, ...]:
    """Return reference results over several batch axes; samples are padded to full batches."""
    samples = int(np.prod(batch))
    rows = np.arange(-(-samples // case.count) * case.count) % samples
    flat = [x.reshape(samples, *x.shape[len(batch) :])[rows] for x in full]
    values = case.reference.values(*flat)
    return tuple(v[:samples].reshape(*batch, *v.shape[1:]) for v in values)


def _pairwise_masks(case: OpCase) -> list[tuple[bool, ...]]:
    """Return masks of mapped operands that contain all four combinations of any two operands.

    Operand i is mapped in a distinct set of half of the masks, which includes the first, where all
    operands are mapped. Of two such sets, each has a mask that the other lacks, and some mask is in
    neither (Kleitman and Spencer, Families of k-independent sets, 1973).
    """
    count, half = len(case.first), 2
    if count < 3:
        return [m for m in itertools.product((True, False), repeat=count) if any(m)]
    while math.comb(2 * half - 1, half - 1) < count:
        half += 1
    sets = list(itertools.combinations(range(1, 2 * half), half - 1))
    while True:  # until each mask has a mapped operand
        chosen = [{0, *sets[k]} for k in case.random.choice(len(sets), count, replace=False)]
        masks = [tuple(k in mapped for mapped in chosen) for k in range(2 * half)]
        if all(map(any, masks)):
            return masks


def _op_equations(case: OpCase, program: Any) -> list[Any]:
    equations = [eqn for eqn in program.jaxpr.eqns if eqn.primitive is case.op.primitive]
    expect(len(equations), 1, "operations of the vmapped op")
    return equations


# Programs -----------------------------------------------------------------------------------------

# Parameters of `repeated_runs`.
_RUNS, _THREADS, _SAMPLES, _BYTES = 10, 8, 4096, 1 << 20


def eager_and_jit(case: OpCase) -> None:
    """Single samples, eager and jitted, and a batch of all samples."""
    jitted = jax.jit(case.call)
    for k, sample in enumerate(case.samples):
        expected = tuple(w[k] for w in case.expected)
        case.equal(case.call(*sample), expected, "eager")
        case.equal(jitted(*sample), expected, "jit")
    case.equal(case.batched(*case.stacked), case.expected, "a batch axis")


def one_native_call(case: OpCase) -> None:
    """A batch is one custom call, without a loop."""
    if not case.native:
        return
    for label, fn in ("batch", case.batched), ("vmapped op", jax.jit(jax.vmap(case.call))):
        calls = case.custom_calls(fn.lower(*case.stacked).compile().as_text())
        expect(calls, 1, f"{label}: custom calls of {case.op.target}")


def no_retrace(case: OpCase) -> None:
    """Other values of the same shapes use the compiled program."""
    traces = 0

    def fn(*xs: Any) -> Any:
        nonlocal traces
        traces += 1
        return case.call(*xs)

    jitted = jax.jit(fn)
    for sample in case.samples:
        jitted(*sample)
    expect(traces, 1, f"traces for {case.count} samples of one shape")


def control_flow(case: OpCase) -> None:
    """scan, while_loop (fori_loop is one of them), cond and remat, in one program."""
    stacked, expected = case.stacked, case.expected
    first, one = case.first, tuple(w[0] for w in expected)

    def looped(*xs: Any) -> Any:
        def body(i: Any, outs: Any) -> Any:
            one = case.call(*(jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs))
            return tuple(out.at[i].set(r) for out, r in zip(outs, one, strict=True))

        outs = tuple(jnp.zeros(w.shape, w.dtype) for w in expected)
        condition = lambda state: state[0] < case.count  # noqa: E731
        step = lambda state: (state[0] + 1, body(*state))  # noqa: E731
        return jax.lax.while_loop(condition, step, (0, outs))[1]

    def zeros(*_: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros(w.shape, w.dtype) for w in one)

    @jax.jit
    def program(on: Any, xs: Any, x: Any) -> dict[str, Any]:
        return {
            "scan": jax.lax.scan(lambda c, x: (c, case.call(*x)), 0, tuple(xs))[1],
            "while_loop": looped(*xs),
            "cond": jax.lax.cond(on, case.call, zeros, *x),
            "remat": jax.checkpoint(case.call)(*x),
        }

    actual = program(True, stacked, first)
    for label, right in ("scan", expected), ("while_loop", expected), ("cond", one), ("remat", one):
        case.equal(actual[label], right, label)
    nothing = tuple(np.zeros_like(w) for w in one)
    case.equal(program(False, stacked, first)["cond"], nothing, "cond, the other branch")


def donation(case: OpCase) -> None:
    """Donated operands give the same results; an op with aliases has them in the program."""
    donating = jax.jit(case.call_batch, donate_argnums=tuple(range(len(case.first))))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        program = donating.lower(*case.stacked).compile()
        donated = [jax.device_put(x.copy()) for x in case.stacked]
        case.equal(program(*donated), case.expected, "donated operands")
    keep = [jax.device_put(x.copy()) for x in case.stacked]
    jax.block_until_ready(case.batched(*keep))
    case.equal(tuple(keep), tuple(case.stacked), "operands that are not donated")
    if case.op.aliases and case.native:
        text = program.as_text() or ""
        assert "output_to_operand_aliasing" in text, "the custom call has no aliases"


def backends(case: OpCase) -> None:
    """'native' calls the kernel, 'jax' does not; a context entered after jit applies."""
    target = f"@{case.op.target}("
    names: tuple[Backend, ...] = ("auto", "jax", "native", "jax", "auto")
    for name in names:
        native = name != "jax" and case.native
        with backend(name):
            if name == "native" and not case.native:
                try:
                    case.batched(*case.stacked)
                except NotImplementedError:
                    continue
                raise AssertionError("backend 'native': the op has no kernel and raises no error")
            text = case.batched.lower(*case.stacked).as_text()
            expect(target in text, native, f"backend {name!r}: custom call")
            case.equal(case.batched(*case.stacked), case.expected, f"backend {name!r}")


def repeated_runs(case: OpCase) -> None:
    """Repeated runs of a large batch, sequential and concurrent, are bit-identical."""
    if not case.native:
        return
    size = max(1, sum(x.nbytes for x in [*case.stacked, *case.expected]))
    copies = max(1, min(_SAMPLES // case.count, _BYTES // size))
    operands = [jax.device_put(np.concatenate([x] * copies)) for x in case.stacked]
    expected = tuple(np.concatenate([w] * copies) for w in case.expected)
    program = jax.jit(case.call_batch).lower(*operands).compile()

    def run(_: int = 0) -> list[bytes]:
        return [np.asarray(r).tobytes() for r in program(*operands)]

    case.equal(program(*operands), expected, "a large batch")
    first = run()
    for k in range(_RUNS):
        # Fill memory that a result may reuse, to detect elements that are not written.
        filler = [jnp.array(np.full(len(bits), k, np.uint8)) for bits in first]
        jax.block_until_ready(filler)
        del filler
        assert run() == first, f"run {k + 2} of the same program on the same input differs"
    with ThreadPoolExecutor(_THREADS) as pool:
        for k, bits in enumerate(pool.map(run, range(_THREADS * _RUNS))):
            assert bits == first, f"run {k + 1} of {_THREADS} concurrent threads differs"


def declaration(case: OpCase) -> None:
    """The name is unique, and the results of impl have the types that abstract returns."""
    name = case.op.name
    assert ops().get(name) is case.op, f"another op has the name {name!r}; rename one of them"
    jax.eval_shape(case.reference.one, *case.first)


def cost(case: OpCase) -> None:
    """The cost is proportional to the batch size, and the number of bytes is not zero."""
    one = case.op.cost(*case.first, **case.static)
    many = case.op.cost(*case.stacked, batch_dims=1, **case.static)
    assert one.bytes, f"cost: expected bytes to be positive, got {one.bytes}"
    flops = None if one.flops is None else case.count * one.flops
    expect(many, (flops, case.count * one.bytes), f"cost of {case.count} samples")
