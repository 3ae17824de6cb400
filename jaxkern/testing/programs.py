"""Checks of programs: eager, jit, control flow, donation, backends, and runs side by side."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.backend import Backend, backend
from jaxkern.testing.case import OpCase

# Of the check `repeated_runs`.
_RUNS, _THREADS, _SAMPLES, _BYTES = 10, 8, 4096, 1 << 20


def eager_and_jit(case: OpCase) -> None:
    """Each sample alone, eagerly and jitted, and all samples at once."""
    jitted = jax.jit(case.call)
    for k, sample in enumerate(case.samples):
        wanted = tuple(w[k] for w in case.wanted)
        case.equal(case.call(*sample), wanted, "eager")
        case.equal(jitted(*sample), wanted, "jit")
    case.equal(case.batched(*case.stacked), case.wanted, "a batch axis")


def one_native_call(case: OpCase) -> None:
    """One custom call for a whole batch, and no loop around it."""
    if not case.native:
        return
    programs: dict[str, Any] = {
        "batch": case.batched,
        "vmapped op": jax.jit(jax.vmap(case.call)),
    }
    for what, fn in programs.items():
        calls = case.custom_calls(fn.lower(*case.stacked).compile().as_text())
        assert calls == 1, f"the {what} has {calls} custom calls to {case.op.target}; wanted 1"


def no_retrace(case: OpCase) -> None:
    """Other values of the same shapes take the compiled program."""
    traces = 0

    def fn(*xs: Any) -> Any:
        nonlocal traces
        traces += 1
        return case.call(*xs)

    jitted = jax.jit(fn)
    for sample in case.samples:
        jitted(*sample)
    assert traces == 1, f"traced {traces} times for {case.count} samples of one shape"


def control_flow(case: OpCase) -> None:
    """scan, while_loop (fori_loop is one of the two), cond and remat, in one program."""
    stacked, wanted = case.stacked, case.wanted
    first, one = case.first, tuple(w[0] for w in wanted)

    def looped(*xs: Any) -> Any:
        def body(i: Any, outs: Any) -> Any:
            one = case.call(*(jax.lax.dynamic_index_in_dim(x, i, keepdims=False) for x in xs))
            return tuple(out.at[i].set(r) for out, r in zip(outs, one, strict=True))

        outs = tuple(jnp.zeros(w.shape, w.dtype) for w in wanted)
        condition = lambda state: state[0] < case.count  # noqa: E731
        step = lambda state: (state[0] + 1, body(state[0], state[1]))  # noqa: E731
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

    got = program(True, stacked, first)
    for what, right in ("scan", wanted), ("while_loop", wanted), ("cond", one), ("remat", one):
        case.equal(got[what], right, what)
    nothing = tuple(np.zeros_like(w) for w in one)
    case.equal(program(False, stacked, first)["cond"], nothing, "cond, the other branch")


def donation(case: OpCase) -> None:
    """Donated operands give the same results; where the op aliases, the program says so."""
    donating = jax.jit(case.call_batch, donate_argnums=tuple(range(len(case.first))))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Some donated buffers were not usable")
        program = donating.lower(*case.stacked).compile()
        given = [jax.device_put(x.copy()) for x in case.stacked]
        case.equal(program(*given), case.wanted, "donated operands")
    keep = [jax.device_put(x.copy()) for x in case.stacked]
    jax.block_until_ready(case.batched(*keep))
    case.equal(tuple(keep), tuple(case.stacked), "operands that are not donated")
    if case.op.aliases and case.native:
        text = program.as_text() or ""
        assert "output_to_operand_aliasing" in text, "the custom call aliases nothing"


def backends(case: OpCase) -> None:
    """'native' calls the kernel, 'jax' does not; a context entered after jit takes effect."""
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
                raise AssertionError("'native' ran an op that has no native kernel")
            text = case.batched.lower(*case.stacked).as_text()
            assert (target in text) == native, f"backend {name!r}: custom call is {target in text}"
            case.equal(case.batched(*case.stacked), case.wanted, f"backend {name!r}")


def repeated_runs(case: OpCase) -> None:
    """The same bits from many runs of a large batch, alone and in many threads at once.

    Runs that differ show a race, or memory that is read before it is written. Equal runs do not
    prove that there is none: another machine may interleave threads as this one never did.
    """
    if not case.native:
        return
    size = max(1, sum(x.nbytes for x in [*case.stacked, *case.wanted]))
    copies = max(1, min(_SAMPLES // case.count, _BYTES // size))
    operands = [jax.device_put(np.concatenate([x] * copies)) for x in case.stacked]
    wanted = tuple(np.concatenate([w] * copies) for w in case.wanted)
    program = jax.jit(case.call_batch).lower(*operands).compile()

    def run(_: int = 0) -> list[bytes]:
        return [np.asarray(r).tobytes() for r in program(*operands)]

    case.equal(program(*operands), wanted, "a large batch")
    first = run()
    for k in range(_RUNS):
        # Freed memory with other content, for a result that is not written everywhere.
        junk = [jnp.array(np.full(len(bits), k, np.uint8)) for bits in first]
        jax.block_until_ready(junk)
        del junk
        assert run() == first, f"run {k + 2} of one program on one input has other bits"
    with ThreadPoolExecutor(_THREADS) as pool:
        for k, bits in enumerate(pool.map(run, range(_THREADS * _RUNS))):
            assert bits == first, f"run {k + 1} in {_THREADS} threads at once has other bits"
