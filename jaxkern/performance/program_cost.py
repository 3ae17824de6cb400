"""Operations and bytes of a traced program: XLA's count, loops multiplied, and the ops' models.

XLA's cost analysis counts the body of a loop once, and subtracts 1 operation for each custom call,
whose work it does not know. Here the body of every scan is compiled and counted separately and
multiplied by its length, the subtraction is undone, and the cost model of each native op is added.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from jaxkern.core import compat
from jaxkern.core.calls import OpCall, inner_programs, op_call, op_calls
from jaxkern.performance.hlo import HloModule
from jaxkern.performance.op_uses import OpUse, constants_as_inputs, op_uses

# Matrix products and convolutions of GPU libraries, which XLA's analysis does include.
_KNOWN_CALLS = ("__cublas", "__cudnn")


@dataclass
class ProgramCost:
    """Operations and bytes of one run; None if they depend on a loop of unknown length.

    Attributes:
      xla_flops, xla_bytes: XLA's counts, loops multiplied.
      op_flops, op_bytes: cost models of the ops that run natively.
      dtype: precision of most inputs and outputs, ``"f64"`` or ``"f32"`` (including half types).
      calls: every call of an op in the trace.
      uses: distinct calls of the compiled program, with counts.
      notes: what the counts do not include.
    """

    xla_flops: float | None = 0.0
    xla_bytes: float | None = 0.0
    op_flops: float | None = 0.0
    op_bytes: float | None = 0.0
    dtype: str = "f32"
    calls: list[OpCall] = field(default_factory=list)
    uses: list[OpUse] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def flops(self) -> float | None:
        return _add(self.xla_flops, self.op_flops)

    @property
    def bytes(self) -> float | None:
        return _add(self.xla_bytes, self.op_bytes)


def _add(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def program_cost(program: ClosedJaxpr, compiled: Any, platform: str, devices: int) -> ProgramCost:
    """Return the cost of a traced and compiled program that runs on ``devices``."""
    cost = ProgramCost(calls=list(op_calls(program)), dtype=_main_dtype(program.jaxpr))
    counter = _Counter(cost.notes, devices)
    module = HloModule(compiled.as_text() or "")
    base = counter.analyze(compiled, module)
    targets = {call.op.target for call in cost.calls}
    for target, count in sorted(_opaque_calls(module).items()):
        if target not in targets:
            cost.notes.append(
                f"{count} custom call(s) to {target} are not counted; pass flops_per_sample and "
                "bytes_per_sample if they matter"
            )
    extra = counter.missing(program.jaxpr)
    if extra is None:
        cost.xla_flops = cost.xla_bytes = None
    else:
        # XLA analyzes the program of one device; the missing part covers all devices.
        cost.xla_flops, cost.xla_bytes = (max(float(v), 0.0) for v in base * devices + extra)
    cost.uses = op_uses(cost.calls, module, platform, devices, cost.notes)
    for use in cost.uses:
        if not use.native:
            continue  # XLA compiled and counted its fallback
        flops, moved = use.call.cost
        cost.op_flops = _add(cost.op_flops, _scale(flops, use.count))
        cost.op_bytes = _add(cost.op_bytes, _scale(moved, use.count))
        if flops is None:
            cost.notes.append(f"{use.call.op.name} declares no cost: its operations are unknown")
    cost.notes = list(dict.fromkeys(cost.notes))
    return cost


def program_devices(compiled: Any) -> list[jax.Device]:
    """Return the devices of a compiled program in the order of their ids."""
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    devices = {d for s in shardings for d in getattr(s, "device_set", ())}
    return sorted(devices, key=lambda d: d.id) or [jax.local_devices()[0]]


def _opaque_calls(module: HloModule) -> dict[str, int]:
    calls = module.custom_calls().items()
    return {target: count for target, count in calls if not target.startswith(_KNOWN_CALLS)}


class _Counter:
    """XLA's counts as arrays [flops, bytes], and the part of loops that they omit."""

    def __init__(self, notes: list[str], devices: int) -> None:
        self.notes = notes
        self.devices = devices

    def analyze(self, compiled: Any, module: HloModule) -> np.ndarray:
        analysis = compiled.cost_analysis() or {}
        if isinstance(analysis, (list, tuple)):
            analysis = analysis[0] if analysis else {}
        flops = analysis.get("flops", 0.0) + sum(_opaque_calls(module).values())
        return np.maximum([flops, analysis.get("bytes accessed", 0.0)], 0.0)

    def count_alone(self, program: Jaxpr, shard_map: JaxprEqn | None) -> np.ndarray | None:
        """Return XLA's counts for a part of the program compiled separately, on all devices.

        Inside ``shard_map`` the counts are for one of the devices that share its work. Returns None
        if the part cannot be compiled separately, such as nested shard_maps.
        """
        try:
            return self._count_alone(program, shard_map)
        except Exception as error:
            self.notes.append(
                "the body of a loop cannot be compiled separately, so its operations and bytes are "
                f"unknown ({type(error).__name__})"
            )
            return None

    def _count_alone(self, program: Jaxpr, shard_map: JaxprEqn | None) -> np.ndarray:
        structs = [_struct(v) for v in (*program.constvars, *program.invars)]
        run = jaxpr_as_fun(ClosedJaxpr(constants_as_inputs(program), ()))
        sharing = 1
        if shard_map is not None:
            # Every device receives operands of the body's local shapes.
            run = compat.local_on_mesh(run, shard_map.params)
            sharing = compat.shard_map_devices(shard_map.params)
        compiled = jax.jit(run).lower(*structs).compile()
        devices = len(program_devices(compiled))
        if shard_map is None and devices < self.devices:
            self.notes.append(
                "the body of a loop is counted as one device would run it: work that several "
                "devices repeat is counted once"
            )
        module = HloModule(compiled.as_text() or "")
        return np.asarray(self.analyze(compiled, module) * devices / sharing)

    def missing(self, jaxpr: Jaxpr, shard_map: JaxprEqn | None = None) -> np.ndarray | None:
        """Return the work of a program's loops that XLA's count omits; None if unknown."""
        total = np.zeros(2)
        for eqn in jaxpr.eqns:
            if op_call(eqn) is not None:
                continue
            part = self._missing_in(eqn, shard_map)
            if part is None:
                return None
            total = total + part
        return total

    def _missing_in(self, eqn: JaxprEqn, shard_map: JaxprEqn | None) -> np.ndarray | None:
        name, inner = eqn.primitive.name, inner_programs(eqn)
        if name == "while":
            self.notes.append(
                "a while loop runs a number of times that depends on the data: operations and "
                "bytes are unknown; pass flops_per_sample and bytes_per_sample"
            )
            return None
        outer = eqn if name == "shard_map" else shard_map
        parts = [self.missing(part.jaxpr, outer) for part in inner]
        known = [p * i.devices for p, i in zip(parts, inner, strict=True) if p is not None]
        if len(known) < len(inner):
            return None
        if name == "scan":
            length, unroll = int(eqn.params["length"]), int(eqn.params.get("unroll", 1))
            seen = length if unroll >= length else unroll + length % unroll
            if length == seen and not known[0].any():
                return np.zeros(2)
            body = self.count_alone(inner[0].jaxpr, shard_map)
            return None if body is None else length * (body + known[0]) - seen * body
        if name == "cond":
            if not any(part.any() for part in known):
                return np.zeros(2)
            # XLA counts the branch with the most work, separately for flops and bytes.
            counts = [self.count_alone(part.jaxpr, shard_map) for part in inner]
            bodies = [count for count in counts if count is not None]
            if len(bodies) < len(counts):
                return None
            full = [body + part for body, part in zip(bodies, known, strict=True)]
            return np.asarray(np.max(full, axis=0) - np.max(bodies, axis=0))
        return np.asarray(sum(known, np.zeros(2)))


def _struct(variable: Any) -> Any:
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def _scale(value: float | None, count: int | None) -> float | None:
    if value == 0 or count == 0:
        return 0.0
    return None if value is None or count is None else value * count


def _main_dtype(jaxpr: Jaxpr) -> str:
    """Return the precision of most floating-point elements of the program's inputs and outputs."""
    elements = {"f32": 0, "f64": 0}
    for aval in (v.aval for v in (*jaxpr.constvars, *jaxpr.invars, *jaxpr.outvars)):
        dtype = getattr(aval, "dtype", None)
        if dtype is not None and jnp.issubdtype(dtype, np.inexact):
            double = dtype in (np.float64, np.complex128)
            elements["f64" if double else "f32"] += math.prod(getattr(aval, "shape", ()))
    return "f64" if elements["f64"] > elements["f32"] else "f32"
