"""Reads a function's program and reports what costs time or memory without being asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jaxkern.core.calls import inner_programs, op_calls, times
from jaxkern.core.programs import CompiledProgram, compile_program
from jaxkern.performance.collectives import Collective
from jaxkern.performance.hlo import HloModule, Instruction
from jaxkern.performance.program_memory import measured_collectives

Severity = Literal["warning", "info"]
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print")
_MOVES = ("copy", "transpose")
# What a fusion that only moves data may hold besides.
_VIEWS = ("parameter", "bitcast", "reshape", "tuple", "get-tuple-element")


@dataclass(frozen=True)
class Finding:
    """One thing that costs more than it must.

    Attributes:
      kind: ``"copy"``, ``"collective"``, ``"f64"``, ``"donation"``, ``"callback"``, ``"fallback"``
        or ``"constant"``.
      severity: ``"warning"`` for what is rarely meant, ``"info"`` for what may be.
      what: the instruction, operation or argument.
      bytes: that it concerns, for one execution; 0 where size is not the point.
      advice: what to do.
    """

    kind: str
    severity: Severity
    what: str
    bytes: int
    advice: str

    def __str__(self) -> str:
        size = f" ({self.bytes / 1e6:.3f} MB)" if self.bytes else ""
        return f"{self.severity}: {self.kind}: {self.what}{size}\n  {self.advice}"


@dataclass(frozen=True)
class Audit:
    """The findings of `audit`, warnings first, large ones first.

    Attributes:
      findings: each with its severity, size and what to do.
      collectives: of the program, with bytes and times.
      platform: that it was compiled for.
      notes: what is left out, and why.
    """

    findings: tuple[Finding, ...]
    collectives: tuple[Collective, ...]
    platform: str
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether there is no warning."""
        return not any(f.severity == "warning" for f in self.findings)

    def of(self, kind: str) -> tuple[Finding, ...]:
        """The findings of a kind."""
        return tuple(f for f in self.findings if f.kind == kind)

    def __str__(self) -> str:
        notes = [f"note: {note}" for note in self.notes]
        if not self.findings:
            return "\n".join([f"audit on {self.platform}: nothing found", *notes])
        warnings = sum(f.severity == "warning" for f in self.findings)
        head = f"audit on {self.platform}: {warnings} warnings, {len(self.findings)} findings"
        return "\n".join([head, *map(str, self.findings), *notes])


def audit(
    fn: Callable[..., Any], *args: Any, min_bytes: int = 1 << 20, time_collectives: bool = False
) -> Audit:
    """Reads the traced and compiled program of ``fn(*args)`` for hidden costs.

    Hidden copies and transposes, arguments copied at entry, all-gathers and other collectives,
    f64 where no argument has it, missed and unusable donations, host callbacks, ops of this package
    that run in pure JAX, and large constants. Nothing is run, unless ``time_collectives`` asks for
    it and the arguments are arrays that are not donated.

    Args:
      fn: jitted (with its own donation) or not.
      *args: arrays or ``jax.ShapeDtypeStruct``.
      min_bytes: smaller copies, collectives, donations and constants are not reported.
      time_collectives: whether to run the program to time its collectives.

    Raises:
      TypeError: when ``fn`` cannot be compiled for the arguments.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxkern import performance
      >>> step = lambda state: state + 1
      >>> state = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
      >>> [f.kind for f in performance.audit(step, state).findings]
      ['donation']
      >>> performance.audit(jax.jit(step, donate_argnums=0), state).findings
      ()
    """
    if min_bytes < 0:
        raise ValueError(f"min_bytes is {min_bytes}; wanted 0 or more")
    built = compile_program(fn, *args)
    program = HloModule(built.compiled.as_text() or "")
    traced: ClosedJaxpr = built.traced.jaxpr
    collectives, notes = measured_collectives(built, args, time_collectives)
    found = [
        *_fallbacks(built, traced),
        *_callbacks(traced),
        *_upcasts(traced),
        *_constants(traced, min_bytes),
        *_donations(built, program, min_bytes),
        *_copies(program, min_bytes),
        *_collectives(collectives, min_bytes),
    ]
    found.sort(key=lambda f: (f.severity != "warning", -f.bytes))
    return Audit(tuple(found), tuple(collectives), built.platform, notes)


def _fallbacks(built: CompiledProgram, traced: ClosedJaxpr) -> Iterator[Finding]:
    seen = set()
    for call in op_calls(traced):
        problem = call.problem(built.platform)
        if problem is None or (call.op.name, problem) in seen:
            continue
        seen.add((call.op.name, problem))
        chosen = call.backend == "jax"
        yield Finding(
            "fallback",
            "info" if chosen else "warning",
            f"{call.op.name} runs in pure JAX: {problem}",
            0,
            "leave the context or unset JAXKERN_BACKEND"
            if chosen
            else "see jaxkern.doctor(); within jaxkern.backend('native') this is an error",
        )


def _callbacks(traced: ClosedJaxpr) -> Iterator[Finding]:
    for eqn, count, place in _equations(traced.jaxpr, 1):
        if eqn.primitive.name in _CALLBACKS:
            often = "an unknown number of times" if count is None else f"{count} times"
            called = eqn.params.get("callback")
            name = getattr(called, "callback_func", called)
            label = getattr(name, "__name__", eqn.primitive.name)
            yield Finding(
                "callback",
                "warning",
                f"{eqn.primitive.name} of {label}, {often} a run{place}",
                0,
                "each call waits for Python and moves data to the host; write it in JAX, or take "
                "it out of the function. The persistent cache keeps no such program",
            )


def _upcasts(traced: ClosedJaxpr) -> Iterator[Finding]:
    jaxpr = traced.jaxpr
    if any(_is_double(v.aval) for v in jaxpr.invars):
        return
    for variable, value in zip(jaxpr.constvars, traced.consts, strict=True):
        if _is_double(variable.aval):
            yield Finding(
                "f64",
                "warning",
                f"a constant {variable.aval.str_short()} is f64",
                int(np.asarray(value).nbytes),
                "make it np.float32 before it is closed over",
            )
    seen = set()
    for eqn, _, place in _equations(jaxpr, 1):
        if any(_is_double(getattr(v, "aval", None)) for v in eqn.invars) or inner_programs(eqn):
            continue
        for out in eqn.outvars:
            aval: Any = out.aval
            # A Python number is a weak scalar: it does not widen what it meets.
            if not _is_double(aval) or (aval.weak_type and aval.size == 1):
                continue
            what = f"{eqn.primitive.name} makes {aval.str_short()}{place}"
            if what not in seen:
                seen.add(what)
                yield Finding(
                    "f64",
                    "warning",
                    what,
                    int(aval.size * aval.dtype.itemsize),
                    "no argument is f64: give the dtype (dtype=jnp.float32, np.float32(...)), or "
                    "cast the argument where f64 is meant",
                )


def _constants(traced: ClosedJaxpr, min_bytes: int) -> Iterator[Finding]:
    for value in traced.consts:
        size = int(getattr(value, "nbytes", 0))
        if size >= min_bytes and size:
            yield Finding(
                "constant",
                "warning",
                f"{value.dtype}{list(value.shape)} is closed over",
                size,
                "it becomes part of the program, which compiles longer and holds a copy: pass it "
                "as an argument",
            )


def _donations(built: CompiledProgram, program: HloModule, min_bytes: int) -> Iterator[Finding]:
    parameters = program.parameters()
    aliased = {p.op_name for n, p in parameters.items() if n in program.aliased_parameters}
    arguments = _arguments(built)
    outputs = [(o.shape, o.dtype) for o in jax.tree.leaves(built.lowered.out_info)]
    for name, info in arguments:
        if name in aliased and (info.shape, info.dtype) in outputs:
            outputs.remove((info.shape, info.dtype))
    for name, info in arguments:
        size = int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize
        if name in aliased or size < min_bytes or not size:
            continue
        kind = f"{name}: {info.dtype}{list(info.shape)}"
        if info.donated:
            yield Finding(
                "donation",
                "warning",
                f"{kind} is donated and no result takes its place",
                size,
                "it is lost without a gain: donate what has the shape, dtype and sharding of a "
                "result",
            )
        elif (info.shape, info.dtype) in outputs:
            outputs.remove((info.shape, info.dtype))
            yield Finding(
                "donation",
                "info",
                f"{kind} has the shape and dtype of a result",
                size,
                "where it is not needed after the call: jax.jit(fn, donate_argnums=...) saves a "
                "buffer of its size",
            )


def _copies(program: HloModule, min_bytes: int) -> Iterator[Finding]:
    # Of donated arguments a copy is made for another reason.
    parameters = {
        p.name: p for n, p in program.parameters().items() if n not in program.aliased_parameters
    }
    for instruction, count in program.executed():
        kind = _moved(instruction, program)
        if kind is None or instruction.bytes < min_bytes or not instruction.bytes:
            continue
        source = next((parameters[o] for o in instruction.operands if o in parameters), None)
        looped = count is None or count > 1
        often = "" if count == 1 else f", {'unknown' if count is None else count} times a run"
        where = f" from {instruction.op_name}" if instruction.op_name else ""
        # XLA writes a transpose as a copy into another order of axes.
        turned = "transpose" in instruction.op_name or any(
            inner.opcode == "transpose" for inner in program.fused(instruction)
        )
        entry = source is not None and kind == "copy" and source.shape == instruction.shape
        entry = entry and not turned
        if entry and source is not None:
            what = f"the argument {source.op_name or source.name} is copied at entry"
            advice = (
                "it is updated or returned and was not donated: donate it (donate_argnums) where "
                "it is not needed afterwards"
            )
        else:
            kind = "transpose" if turned else kind
            what = f"{kind} {instruction.name}{where}"
            advice = (
                "a pass over memory that computes nothing: keep the layout that the next operation "
                "reads (order of axes), or move it out of the loop"
            )
        yield Finding(
            "copy",
            "warning" if looped or entry else "info",
            what + often,
            instruction.bytes,
            advice,
        )


def _moved(instruction: Instruction, program: HloModule) -> str | None:
    if instruction.opcode.removesuffix("-start") in _MOVES:
        return instruction.opcode.removesuffix("-start")
    inside = [i.opcode for i in program.fused(instruction) if i.opcode not in _VIEWS]
    if inside and set(inside) <= set(_MOVES):
        return inside[-1]
    return None


def _collectives(found: Sequence[Collective], min_bytes: int) -> Iterator[Finding]:
    for c in found:
        if c.bytes < min_bytes:
            continue
        gathers = c.kind in ("all-gather", "all-to-all")
        yield Finding(
            "collective",
            "warning" if gathers else "info",
            str(c),
            c.bytes,
            "the whole array is made on every device: shard the operands along the axes that the "
            "operation maps over, or constrain the result (jax.lax.with_sharding_constraint)"
            if gathers
            else "expected where values are combined over devices; fewer and larger ones cost less",
        )


def _arguments(built: CompiledProgram) -> list[tuple[str, Any]]:
    names = list(built.traced.jaxpr.jaxpr.debug_info.arg_names or ())
    infos = jax.tree.leaves_with_path(built.lowered.args_info)
    if len(names) != len(infos):
        names = [f"argument {jax.tree_util.keystr(path)}" for path, _ in infos]
    return [(str(name), info) for name, (_, info) in zip(names, infos, strict=True)]


def _equations(
    jaxpr: Jaxpr, count: int | None, around: str = ""
) -> Iterator[tuple[JaxprEqn, int | None, str]]:
    """Every equation, how often it runs, and its place: that of the call where JAX kept no own."""
    for eqn in jaxpr.eqns:
        line = source_info_util.summarize(eqn.source_info)
        place = f", at {line}" if line else around
        yield eqn, count, place
        for inner in inner_programs(eqn):
            yield from _equations(inner.jaxpr, times(count, inner.times), place)


def _is_double(aval: Any) -> bool:
    return getattr(aval, "dtype", None) in (np.dtype(np.float64), np.dtype(np.complex128))
