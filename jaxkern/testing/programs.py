"""Checks of programs: jit, control flow, donation, backends, concurrent runs, declarations."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.backend import Backend, backend
from jaxkern.core.op import ops
from jaxkern.testing.case import OpCase, expect

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
