"""Operations and bytes of a traced program, and its op calls with operands to time each alone.

XLA's cost analysis counts the body of a loop once, and subtracts 1 operation for each custom call,
whose work it does not know. Here the body of every scan is compiled and counted separately and
multiplied by its length, the subtraction is undone, and the cost model of each native op is added.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.interpreters import partial_eval

from jaxkern.core import compat
from jaxkern.core.calls import OpCall, inner_programs, op_call, op_calls, times
from jaxkern.performance.programs import (
    CompiledProgram,
    HloModule,
    program_devices,
    synthetic_values,
)

# Matrix products and convolutions of GPU libraries, which XLA's analysis does include.
_KNOWN_CALLS = ("__cublas", "__cudnn")


@dataclasses.dataclass(frozen=True)
class ProgramCost:
    """Operations and bytes of one run; None if they depend on a loop of unknown length.

    Attributes:
      dtype: precision of most inputs and outputs, ``"f64"`` or ``"f32"`` (including half types).
      notes: what the counts do not include.
    """

    flops: float | None
    bytes: float | None
    dtype: str
    notes: list[str]


def program_cost(traced: ClosedJaxpr, program: CompiledProgram, platform: str) -> ProgramCost:
    """Return the cost of a traced and compiled program on all its devices."""
    jaxpr, devices = traced.jaxpr, len(program.devices)
    notes: list[str] = []
    counter = _Counter(platform, devices, notes)
    targets = {call.op.target for call in op_calls(jaxpr)}
    for target, count in sorted(_opaque_calls(program.module).items()):
        if target not in targets:
            notes.append(
                f"{count} custom call(s) to {target} are not counted; pass flops_per_sample and "
                "bytes_per_sample if they matter"
            )
    # XLA analyzes the program of one device; the missing part covers all devices.
    total = counter.analyze(program.compiled, program.module) * devices + counter.missing(jaxpr)
    flops, moved = (None if math.isnan(v) else max(float(v), 0.0) for v in total)
    return ProgramCost(flops, moved, _main_dtype(jaxpr), list(dict.fromkeys(notes)))


def _opaque_calls(module: HloModule) -> dict[str, int]:
    calls = module.custom_calls().items()
    return {target: count for target, count in calls if not target.startswith(_KNOWN_CALLS)}


class _Counter:
    """Counts as arrays [flops, bytes], in which NaN is unknown."""

    def __init__(self, platform: str, devices: int, notes: list[str]) -> None:
        self.platform, self.devices, self.notes = platform, devices, notes

    def analyze(self, compiled: Any, module: HloModule) -> np.ndarray:
        """Return XLA's counts for one device."""
        analysis = compiled.cost_analysis() or {}
        if isinstance(analysis, (list, tuple)):
            analysis = analysis[0] if analysis else {}
        flops = analysis.get("flops", 0.0) + sum(_opaque_calls(module).values())
        return np.maximum([flops, analysis.get("bytes accessed", 0.0)], 0.0)

    def count_alone(self, program: Jaxpr, shard_map: JaxprEqn | None) -> np.ndarray:
        """Return XLA's counts for a part of the program compiled separately, on all devices.

        Inside ``shard_map`` the counts are for one of the devices that share its work. They are
        unknown if the part cannot be compiled separately, such as nested shard_maps.
        """
        opened = constants_as_inputs(program)
        avals: list[Any] = [v.aval for v in opened.invars]
        structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
        run, sharing = jaxpr_as_fun(ClosedJaxpr(opened, ())), 1
        try:
            if shard_map is not None:
                # Every device receives operands of the body's local shapes.
                run = compat.local_on_mesh(run, shard_map.params)
                sharing = compat.shard_map_devices(shard_map.params)
            compiled = jax.jit(run).lower(*structs).compile()
        except Exception as error:
            self.notes.append(
                "the body of a loop cannot be compiled separately, so its operations and bytes are "
                f"unknown ({type(error).__name__})"
            )
            return np.full(2, np.nan)
        devices = len(program_devices(compiled))
        if shard_map is None and devices < self.devices:
            self.notes.append(
                "the body of a loop is counted as one device would run it: work that several "
                "devices repeat is counted once"
            )
        module = HloModule(compiled.as_text() or "")
        return self.analyze(compiled, module) * (devices / sharing)

    def missing(self, jaxpr: Jaxpr, shard_map: JaxprEqn | None = None) -> np.ndarray:
        """Return the work of native ops and loops that XLA's count of a program omits."""
        total = np.zeros(2)
        for eqn in jaxpr.eqns:
            call = op_call(eqn)
            if call is None:
                total += self._missing_in(eqn, shard_map)
            elif call.problem(self.platform) is None:  # else XLA counted the fallback
                total += [np.nan if v is None else v for v in call.cost]
                if call.cost.flops is None:
                    self.notes.append(f"{call.op.name} declares no cost: its work is unknown")
        return total

    def _missing_in(self, eqn: JaxprEqn, shard_map: JaxprEqn | None) -> np.ndarray:
        name, inner = eqn.primitive.name, inner_programs(eqn)
        if name == "while":
            self.notes.append(
                "a while loop runs a number of times that depends on the data: operations and "
                "bytes are unknown; pass flops_per_sample and bytes_per_sample"
            )
            return np.full(2, np.nan)
        outer = eqn if name == "shard_map" else shard_map
        parts = [self.missing(part.jaxpr, outer) * part.devices for part in inner]
        if name == "scan":
            length, unroll = int(eqn.params["length"]), int(eqn.params.get("unroll", 1))
            counted = length if unroll >= length else unroll + length % unroll
            extra = length * parts[0] if length else np.zeros(2)
            if length > counted:
                extra += (length - counted) * self.count_alone(inner[0].jaxpr, shard_map)
            return extra
        if name == "cond" and any(part.any() for part in parts):
            # XLA counts the branch with the most work, separately for flops and bytes.
            bodies = [self.count_alone(part.jaxpr, shard_map) for part in inner]
            return np.asarray(np.max(np.add(bodies, parts), axis=0) - np.max(bodies, axis=0))
        return np.asarray(sum(parts, np.zeros(2)))


def _main_dtype(jaxpr: Jaxpr) -> str:
    """Return the precision of most floating-point elements of the program's inputs and outputs."""
    elements = {"f32": 0, "f64": 0}
    for aval in (v.aval for v in (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars)):
        dtype = getattr(aval, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, np.inexact):
            double = dtype in (np.float64, np.complex128)
            elements["f64" if double else "f32"] += math.prod(getattr(aval, "shape", ()))
    return "f64" if elements["f64"] > elements["f32"] else "f32"


# Op calls -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class OpUse:
    """Equal calls of an op, counted over all devices, and operands of one of them.

    ``is_own``: True if the operands are those of the program, False if they are synthetic.
    """

    call: OpCall
    operands: Sequence[Any]
    is_own: bool


def op_uses(program: ClosedJaxpr, leaves: Sequence[Any] | None) -> list[OpUse]:
    """Return the distinct calls of a program; ``leaves`` are its inputs, if they are known.

    Calls with equal operands, parameters and backend are one use. In a loop, the operands are those
    of the first iteration. They are synthetic in ``shard_map``, in a branch that is not executed,
    and in a loop without iterations.
    """
    uses: dict[object, OpUse] = {}
    inputs = _with_constants(program.jaxpr, program.consts, leaves)
    for call, operands in zip(op_calls(program), _walk(*inputs), strict=True):
        static = tuple(sorted(call.static.items()))
        key = (call.op.target, call.operands, static, call.batch_dims, call.backend)
        count, earlier = times(call.count, call.devices), uses.get(key)
        if earlier is not None:
            before = earlier.call.count
            count = None if count is None or before is None else count + before
        call = dataclasses.replace(call, count=count)
        if earlier is not None and earlier.is_own:
            uses[key] = dataclasses.replace(earlier, call=call)
        elif operands is None:
            synthetic = [jnp.asarray(synthetic_values(x.shape, x.dtype)) for x in call.operands]
            uses[key] = OpUse(call, synthetic, False)
        else:
            uses[key] = OpUse(call, operands, True)
    return list(uses.values())


def without_unused_calls(program: ClosedJaxpr) -> ClosedJaxpr:
    """Remove calls whose results are not used, as XLA does: the forward pass of some gradients."""
    outputs = [True] * len(program.jaxpr.outvars)
    jaxpr, _ = partial_eval.dce_jaxpr(program.jaxpr, outputs, instantiate=True)
    return ClosedJaxpr(jaxpr, program.consts)


def constants_as_inputs(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program with its constants as its first inputs."""
    return jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )


def _with_constants(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any] | None
) -> tuple[Jaxpr, Sequence[Any] | None]:
    opened = constants_as_inputs(jaxpr)
    inputs = None if values is None else [*consts, *values]
    return opened, inputs if inputs is not None and len(inputs) == len(opened.invars) else None


def _walk(jaxpr: Jaxpr, values: Sequence[Any] | None) -> Iterator[tuple[Any, ...] | None]:
    for index, eqn in enumerate(jaxpr.eqns):
        is_call, inner = op_call(eqn) is not None, inner_programs(eqn)
        if not is_call and not any(any(op_calls(part.jaxpr)) for part in inner):
            continue
        operands = None if values is None else _evaluate_operands(jaxpr, index, values)
        if is_call:
            yield operands
            continue
        for k, part in enumerate(inner):
            entering = None if operands is None else _inner_inputs(eqn, k, operands)
            yield from _walk(*_with_constants(part.jaxpr, part.consts, entering))


def _evaluate_operands(jaxpr: Jaxpr, index: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Evaluate the operands of an equation from the inputs of its program, and nothing else."""
    invars = jaxpr.eqns[index].invars
    prefix = jaxpr.replace(
        eqns=jaxpr.eqns[:index],
        outvars=[v for v in invars if not isinstance(v, Literal)],
        effects=frozenset(),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    results = iter(jax.jit(jaxpr_as_fun(ClosedJaxpr(prefix, ())))(*values))
    return tuple(v.val if isinstance(v, Literal) else next(results) for v in invars)


def _inner_inputs(eqn: JaxprEqn, k: int, operands: Sequence[Any]) -> Sequence[Any] | None:
    """Return the inputs of the k-th program of an equation when it first runs, or None."""
    name, params = eqn.primitive.name, eqn.params
    if name == "scan":
        if params["length"] == 0:
            return None
        first = -1 if params["reverse"] else 0
        body: Sequence[Any] = inner_programs(eqn)[0].jaxpr.invars
        # Scanned operands have one more axis than the body's input; constants and carry do not.
        return [
            x[first] if np.ndim(x) > len(v.aval.shape) else x
            for x, v in zip(operands, body, strict=True)
        ]
    if name == "while":
        condition, body_end = params["cond_nconsts"], params["body_nconsts"]
        body_end += condition
        constants = operands[:condition] if k == 0 else operands[condition:body_end]
        return [*constants, *operands[body_end:]]
    if name == "cond":
        index, *rest = operands
        branch = int(np.clip(int(np.asarray(index)), 0, len(params["branches"]) - 1))
        return rest if branch == k else None
    return None if name in ("shard_map", "custom_linear_solve") else operands
