"""Audit of a function's program for hidden costs in time and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import jax
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from jaxkern.core.arguments import check_integer
from jaxkern.core.calls import inner_programs, op_calls, times
from jaxkern.performance.programs import (
    Collective,
    CompiledProgram,
    HloModule,
    Instruction,
    compile_program,
    find_collectives,
)

Severity = Literal["warning", "info"]
_CALLBACKS = ("pure_callback", "io_callback", "debug_callback", "debug_print")
_DONATE = "donate it (donate_argnums) if it is not used after the call"
_MOVES = ("copy", "transpose")
# Other instructions allowed in a fusion that only moves data.
_VIEWS = ("parameter", "bitcast", "reshape", "tuple", "get-tuple-element")


@dataclass(frozen=True)
class Finding:
    """One avoidable cost.

    Attributes:
      kind: ``"copy"``, ``"collective"``, ``"f64"``, ``"donation"``, ``"callback"``, ``"fallback"``
        or ``"constant"``.
      severity: ``"warning"`` if it is rarely intended, ``"info"`` if it may be.
      what, advice: the instruction, operation or argument, and how to avoid the cost.
      bytes: size of the data, for one execution; 0 if size does not matter.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jaxkern import performance
      >>> state = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
      >>> (finding,) = performance.audit(lambda state: state + 1, state).findings
      >>> finding.kind, finding.severity, finding.bytes
      ('donation', 'info', 4194304)
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
    """The result of `audit`: findings (warnings first, then by size), collectives, the platform.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxkern import performance
      >>> report = performance.audit(lambda x: x + 1, jnp.ones(3))
      >>> report.ok, report.platform
      (True, 'cpu')
    """

    findings: tuple[Finding, ...]
    collectives: tuple[Collective, ...]
    platform: str

    @property
    def ok(self) -> bool:
        """True if there are no warnings."""
        return not any(f.severity == "warning" for f in self.findings)

    def of(self, kind: str) -> tuple[Finding, ...]:
        """Return the findings of one kind."""
        return tuple(f for f in self.findings if f.kind == kind)

    def __str__(self) -> str:
        warnings = sum(f.severity == "warning" for f in self.findings)
        counts = f"{warnings} warnings, {len(self.findings)} findings"
        head = f"audit on {self.platform}: {counts if self.findings else 'no findings'}"
        return "\n".join([head, *map(str, self.findings)])


def audit(fn: Callable[..., Any], *args: Any, min_bytes: int = 1 << 20) -> Audit:
    """Check the traced and compiled program of ``fn(*args)`` for hidden costs; run nothing.

    It reports copies and transposes, arguments copied at entry, collectives, f64 values that no f64
    argument explains, missed and unusable donations, host callbacks, ops of this package that run
    in pure JAX, and large constants.

    Args:
      fn: function, jitted (with its own donation) or not.
      *args: arrays or ``jax.ShapeDtypeStruct``.
      min_bytes: smaller copies, collectives, donations and constants are not reported.

    Raises:
      TypeError, ValueError: if ``fn`` cannot be compiled, or ``min_bytes`` is negative.

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
    check_integer("min_bytes", min_bytes, 0)
    program = compile_program(fn, *args)
    traced: ClosedJaxpr = program.traced.jaxpr
    collectives = find_collectives(program)
    findings = [
        *_fallbacks(program, traced),
        *_callbacks(traced),
        *_upcasts(traced),
        *_constants(traced, min_bytes),
        *_donations(program, min_bytes),
        *_copies(program.module, min_bytes),
        *_collectives(collectives, min_bytes),
    ]
    findings.sort(key=lambda f: (f.severity != "warning", -f.bytes))
    return Audit(tuple(findings), collectives, program.platform)


def _fallbacks(program: CompiledProgram, traced: ClosedJaxpr) -> Iterator[Finding]:
    calls = [(call, call.problem(program.platform)) for call in op_calls(traced)]
    unique = {(call.op.name, problem): call for call, problem in calls if problem is not None}
    for (name, problem), call in unique.items():
        what = f"{name} runs in pure JAX: {problem}"
        forced = call.backend == "jax"
        advice = "unset JAXKERN_BACKEND" if forced else "see jaxkern.doctor()"
        yield Finding("fallback", "info" if forced else "warning", what, 0, advice)


def _callbacks(traced: ClosedJaxpr) -> Iterator[Finding]:
    for eqn, count, source in _equations(traced.jaxpr, 1):
        if eqn.primitive.name in _CALLBACKS:
            repeats = "an unknown number of times" if count is None else f"{count} times"
            callback = eqn.params.get("callback")
            function = getattr(callback, "callback_func", callback)
            label = getattr(function, "__name__", eqn.primitive.name)
            what = f"{eqn.primitive.name} of {label}, {repeats} per run{source}"
            advice = "each call waits for Python, and such a program is not cached; write it in JAX"
            yield Finding("callback", "warning", what, 0, advice)


def _upcasts(traced: ClosedJaxpr) -> Iterator[Finding]:
    jaxpr = traced.jaxpr
    if any(_is_double(v.aval) for v in jaxpr.invars):
        return
    for variable, value in zip(jaxpr.constvars, traced.consts, strict=True):
        if _is_double(variable.aval):
            what = f"a constant {variable.aval.str_short()} is f64"
            advice = "convert it with np.float32 before the function captures it"
            yield Finding("f64", "warning", what, int(np.asarray(value).nbytes), advice)
    advice = "no argument is f64: pass dtype=jnp.float32, or cast the argument if f64 is intended"
    seen = set()
    for eqn, _, source in _equations(jaxpr, 1):
        if any(_is_double(getattr(v, "aval", None)) for v in eqn.invars) or inner_programs(eqn):
            continue
        avals: list[Any] = [variable.aval for variable in eqn.outvars]
        for aval in avals:
            # A Python number is a weakly typed scalar and does not promote its operands.
            if not _is_double(aval) or (aval.weak_type and aval.size == 1):
                continue
            what = f"{eqn.primitive.name} makes {aval.str_short()}{source}"
            if what not in seen:
                seen.add(what)
                size = int(aval.size * aval.dtype.itemsize)
                yield Finding("f64", "warning", what, size, advice)


def _constants(traced: ClosedJaxpr, min_bytes: int) -> Iterator[Finding]:
    for value in traced.consts:
        size = int(getattr(value, "nbytes", 0))
        if size >= min_bytes and size:
            what = f"the function captures {value.dtype}{list(value.shape)}"
            advice = "it becomes part of the program and is copied; pass it as an argument"
            yield Finding("constant", "warning", what, size, advice)


def _donations(program: CompiledProgram, min_bytes: int) -> Iterator[Finding]:
    parameters = program.module.parameters()
    aliased = {p.op_name for n, p in parameters.items() if n in program.module.aliased_parameters}
    arguments = _named_arguments(program)
    outputs = [(o.shape, o.dtype) for o in jax.tree.leaves(program.lowered.out_info)]
    for name, info in arguments:
        if name in aliased and (info.shape, info.dtype) in outputs:
            outputs.remove((info.shape, info.dtype))
    for name, info in arguments:
        size = int(np.prod(info.shape, dtype=np.int64)) * info.dtype.itemsize
        if name in aliased or size < min_bytes or not size:
            continue
        what = f"{name}: {info.dtype}{list(info.shape)}"
        if info.donated:
            what += " is donated, but no result can reuse its memory"
            advice = "donate arguments that have the shape, dtype and sharding of a result"
            yield Finding("donation", "warning", what, size, advice)
        elif (info.shape, info.dtype) in outputs:
            outputs.remove((info.shape, info.dtype))
            what += " has the shape and dtype of a result"
            yield Finding("donation", "info", what, size, _DONATE)


def _copies(module: HloModule, min_bytes: int) -> Iterator[Finding]:
    # Copies of donated arguments have other causes.
    parameters = {
        p.name: p for n, p in module.parameters().items() if n not in module.aliased_parameters
    }
    for instruction, count in module.executed():
        kind = _moves(instruction, module)
        if kind is None or instruction.bytes < min_bytes or not instruction.bytes:
            continue
        repeats = "" if count == 1 else f", {'unknown' if count is None else count} times per run"
        # XLA writes a transpose as a copy into another order of axes.
        transposed = "transpose" in instruction.op_name or any(
            inner.opcode == "transpose" for inner in module.fused(instruction)
        )
        source = next((parameters[o] for o in instruction.operands if o in parameters), None)
        if kind != "copy" or transposed or (source and source.shape != instruction.shape):
            source = None
        if source is not None:
            what = f"the argument {source.op_name or source.name} is copied at entry"
            advice = _DONATE
        else:
            where = f" from {instruction.op_name}" if instruction.op_name else ""
            what = f"{'transpose' if transposed else kind} {instruction.name}{where}"
            advice = "use the axis order of the next operation, or move it out of the loop"
        severity: Severity = "warning" if source or count is None or count > 1 else "info"
        yield Finding("copy", severity, what + repeats, instruction.bytes, advice)


def _moves(instruction: Instruction, module: HloModule) -> str | None:
    if instruction.opcode.removesuffix("-start") in _MOVES:
        return instruction.opcode.removesuffix("-start")
    inside = [i.opcode for i in module.fused(instruction) if i.opcode not in _VIEWS]
    return inside[-1] if inside and set(inside) <= set(_MOVES) else None


def _collectives(collectives: Sequence[Collective], min_bytes: int) -> Iterator[Finding]:
    for c in collectives:
        severity: Severity = "info"
        advice = "expected where devices combine values; fewer, larger collectives are faster"
        if c.kind in ("all-gather", "all-to-all"):
            severity = "warning"
            advice = "shard the operands, or constrain the result (with_sharding_constraint)"
        if c.bytes >= min_bytes:
            yield Finding("collective", severity, str(c), c.bytes, advice)


def _named_arguments(program: CompiledProgram) -> list[tuple[str, Any]]:
    names = list(program.traced.jaxpr.jaxpr.debug_info.arg_names or ())
    infos = jax.tree.leaves_with_path(program.lowered.args_info)
    if len(names) != len(infos):
        names = [f"argument {jax.tree_util.keystr(path)}" for path, _ in infos]
    return [(str(name), info) for name, (_, info) in zip(names, infos, strict=True)]


def _equations(
    jaxpr: Jaxpr, count: int | None, outer: str = ""
) -> Iterator[tuple[JaxprEqn, int | None, str]]:
    """Yield every equation, its number of runs, and its source line or its caller's."""
    for eqn in jaxpr.eqns:
        line = source_info_util.summarize(eqn.source_info)
        source = f", at {line}" if line else outer
        yield eqn, count, source
        for inner in inner_programs(eqn):
            yield from _equations(inner.jaxpr, times(count, inner.times), source)


def _is_double(aval: Any) -> bool:
    return getattr(aval, "dtype", None) in (np.dtype(np.float64), np.dtype(np.complex128))
