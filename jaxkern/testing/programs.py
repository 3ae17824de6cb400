"""Checks of programs: eager, jit, control flow, vmap, donation, backends, cost."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.core.backend import Backend, backend
from jaxkern.testing.check import OpCheck, check


@check
def eager_and_jit(case: OpCheck) -> None:
    """Each sample alone, eagerly and jitted, and all samples at once."""
    jitted, reference = jax.jit(case.call), jax.jit(case.reference)
    for sample in case.samples:
        wanted = reference(*map(jnp.asarray, sample))
        case.equal(case.call(*sample), wanted, "eager")
        case.equal(jitted(*sample), wanted, "jit")
    wanted = case.references(*case.stacked)
    batched = jax.jit(lambda *xs: case.call(*xs, batch_dims=1))
    case.equal(batched(*case.stacked), wanted, "a batch axis")


@check
def one_native_call(case: OpCheck) -> None:
    """One custom call for a whole batch, and no loop around it."""
    if not case.native:
        return
    calls = case.custom_calls(lambda *xs: case.call(*xs, batch_dims=1), *case.stacked)
    assert calls == 1, f"the compiled batch has {calls} custom calls to {case.op.target}; wanted 1"


@check
def no_retrace(case: OpCheck) -> None:
    """Other values of the same shapes take the compiled program."""
    traces = 0

    def fn(*xs: Any) -> Any:
        nonlocal traces
        traces += 1
        return case.call(*xs)

    jitted = jax.jit(fn)
    for sample in case.samples:
        jitted(*map(jnp.asarray, sample))
    assert traces == 1, f"traced {traces} times for {case.count} samples of one shape"


@check
def control_flow(case: OpCheck) -> None:
    """scan, while_loop, fori_loop, cond and remat."""
    stacked, wanted = case.stacked, case.references(*case.stacked)
    scanned = jax.jit(lambda *xs: jax.lax.scan(lambda c, x: (c, case.call(*x)), 0, xs)[1])
    case.equal(scanned(*stacked), wanted, "scan")

    def looped(*xs: Any) -> Any:
        def body(i: Any, outs: Any) -> Any:
            one = case.call(*(jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs))
            return tuple(out.at[i].set(r) for out, r in zip(outs, one, strict=True))

        outs = tuple(jnp.zeros(w.shape, w.dtype) for w in wanted)
        condition = lambda state: state[0] < case.count  # noqa: E731
        step = lambda state: (state[0] + 1, body(state[0], state[1]))  # noqa: E731
        return jax.lax.while_loop(condition, step, (0, outs))[1]

    case.equal(jax.jit(looped)(*stacked), wanted, "while_loop")
    first = case.first

    def zeros(*xs: Any) -> tuple[Any, ...]:
        return tuple(jnp.zeros_like(w) for w in case.reference(*xs))

    chosen = jax.jit(lambda on, *xs: jax.lax.cond(on, case.call, zeros, *xs))
    case.equal(chosen(True, *first), case.reference(*first), "cond")
    case.equal(chosen(False, *first), zeros(*first), "cond, the other branch")
    case.equal(jax.jit(jax.checkpoint(case.call))(*first), case.reference(*first), "remat")


@check
def vmap_mixes(case: OpCheck) -> None:
    """Every mix of mapped and unmapped operands, one kernel call each, nothing replicated."""
    first, stacked = case.first, case.stacked
    mixes = [m for m in itertools.product((True, False), repeat=len(first)) if any(m)]
    if len(mixes) > 12:
        mixes = [mixes[0], *(mixes[i] for i in case.random.choice(len(mixes), 11, replace=False))]
    for mapped in mixes:
        axes = tuple(0 if m else None for m in mapped)
        operands = [s if m else f for s, f, m in zip(stacked, first, mapped, strict=True)]
        fn = jax.vmap(case.call, axes)
        wanted = jax.jit(jax.vmap(case.reference, axes))(*operands)
        case.equal(jax.jit(fn)(*operands), wanted, f"vmap with in_axes={axes}")
        for eqn in _op_equations(case, fn, operands):
            for i, (var, m) in enumerate(zip(eqn.invars, mapped, strict=True)):
                size = var.aval.shape[0]
                assert size == (case.count if m else 1), (
                    f"operand {i} has size {size} along the new axis with in_axes={axes}"
                )
    if case.native:
        calls = case.custom_calls(jax.vmap(case.call), *stacked)
        assert calls == 1, f"a vmapped op has {calls} custom calls; wanted 1"


@check
def vmap_axes(case: OpCheck) -> None:
    """Mapped axes that are not the first, and other output axes."""
    stacked, wanted = case.stacked, case.references(*case.stacked)
    last = [jnp.moveaxis(x, 0, -1) for x in stacked]
    fn = jax.vmap(case.call, in_axes=-1, out_axes=-1)
    case.equal(jax.jit(fn)(*last), tuple(jnp.moveaxis(w, 0, -1) for w in wanted), "the last axis")


@check
def vmap_nested(case: OpCheck) -> None:
    """Two nested vmaps that map the operands alternately, and a grid of 2 x N/2 samples."""
    stacked, half = case.stacked, case.count // 2
    grid = [x.reshape(2, half, *x.shape[1:]) for x in stacked]
    wanted = tuple(w.reshape(2, half, *w.shape[1:]) for w in case.references(*stacked))
    case.equal(jax.jit(jax.vmap(jax.vmap(case.call)))(*grid), wanted, "a grid")
    for start in (0, 1):
        inner = tuple(0 if (i + start) % 2 else None for i in range(len(stacked)))
        outer = tuple(None if a == 0 else 0 for a in inner)
        if all(a is None for a in inner) or all(a is None for a in outer):
            continue
        wanted = jax.jit(jax.vmap(jax.vmap(case.reference, inner), outer))(*stacked)
        nested = jax.vmap(jax.vmap(case.call, inner), outer)
        case.equal(jax.jit(nested)(*stacked), wanted, f"inner {inner}, outer {outer}")
        if case.native:
            calls = case.custom_calls(nested, *stacked)
            assert calls == 1, f"nested vmaps have {calls} custom calls; wanted 1"


@check
def empty_batch(case: OpCheck) -> None:
    """A batch of no samples gives results of no samples."""
    none = [x[:0] for x in case.stacked]
    wanted = tuple(w[:0] for w in case.references(*case.stacked))
    case.equal(jax.jit(jax.vmap(case.call))(*none), wanted, "an empty batch")


@check
def donation(case: OpCheck) -> None:
    """Donated operands give the same results; where the op aliases, the program says so."""
    wanted = case.references(*case.stacked)
    batched = lambda *xs: case.call(*xs, batch_dims=1)  # noqa: E731
    everything = tuple(range(len(case.first)))
    donating = jax.jit(batched, donate_argnums=everything)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        case.equal(donating(*[x.copy() for x in case.stacked]), wanted, "donated operands")
        keep = case.stacked
        jax.block_until_ready(jax.jit(batched)(*keep))
        case.equal(tuple(keep), tuple(case.stacked), "operands that are not donated")
        if case.op.aliases and case.native:
            text = donating.lower(*case.stacked).compile().as_text() or ""
            assert "output_to_operand_aliasing" in text, "the custom call aliases nothing"


@check
def backends(case: OpCheck) -> None:
    """'native' calls the kernel, 'jax' does not; a context entered after jit takes effect."""
    batched = jax.jit(lambda *xs: case.call(*xs, batch_dims=1))
    wanted = case.references(*case.stacked)
    target = f'custom_call_target="{case.op.target}"'
    names: tuple[Backend, ...] = ("auto", "jax", "native", "jax", "auto")
    for name in names:
        native = name != "jax" and case.native
        with backend(name):
            if name == "native" and not case.native:
                try:
                    batched(*case.stacked)
                except NotImplementedError:
                    continue
                raise AssertionError("'native' ran an op that has no native kernel")
            text = batched.lower(*case.stacked).compile().as_text() or ""
            assert (target in text) == native, f"backend {name!r}: custom call is {target in text}"
            case.equal(batched(*case.stacked), wanted, f"backend {name!r}")


@check
def cost(case: OpCheck) -> None:
    """The cost grows with the batch, and bytes count what must be read and written."""
    one = case.op.cost(*case.first, **case.static)
    many = case.op.cost(*case.stacked, batch_dims=1, **case.static)
    assert one.bytes, f"a call moves {one.bytes} bytes"
    assert many.bytes == case.count * one.bytes, f"{one} for one, {many} for all"
    assert one.flops is None or many.flops == case.count * one.flops


def _op_equations(case: OpCheck, fn: Any, operands: Any) -> list[Any]:
    jaxpr = jax.make_jaxpr(fn)(*operands)
    found = [eqn for eqn in jaxpr.jaxpr.eqns if eqn.primitive is case.op.primitive]
    assert len(found) == 1, f"the vmapped op is {len(found)} operations; wanted 1"
    return found
