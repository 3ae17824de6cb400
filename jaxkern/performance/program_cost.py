"""Operations and bytes of a traced program: XLA's count, loops multiplied, and the ops' models.

XLA's cost analysis counts the body of a loop once, and subtracts 1 operation for each custom call,
whose work it does not know. Here the body of every scan is compiled and counted separately and
multiplied by its length, the subtraction is undone, and the cost model of each native op is added.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from jaxkern.core import compat
from jaxkern.core.calls import inner_programs, op_call, op_calls
from jaxkern.performance.hlo import HloModule
from jaxkern.performance.op_uses import constants_as_inputs

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


def program_cost(program: ClosedJaxpr, compiled: Any, platform: str, devices: int) -> ProgramCost:
    """Return the cost of a traced and compiled program that runs on ``devices``."""
    jaxpr = program.jaxpr
    notes: list[str] = []
    counter = _Counter(platform, devices, notes)
    module = HloModule(compiled.as_text() or "")
    targets = {call.op.target for call in op_calls(jaxpr)}
    for target, count in sorted(_opaque_calls(module).items()):
        if target not in targets:
            notes.append(
                f"{count} custom call(s) to {target} are not counted; pass flops_per_sample and "
                "bytes_per_sample if they matter"
            )
    # XLA analyzes the program of one device; the missing part covers all devices.
    total = counter.analyze(compiled, module) * devices + counter.missing(jaxpr)
    flops, moved = (None if math.isnan(v) else max(float(v), 0.0) for v in total)
    notes = list(dict.fromkeys(notes))
    return ProgramCost(flops, moved, _main_dtype(jaxpr), notes)


def program_devices(compiled: Any) -> list[jax.Device]:
    """Return the devices of a compiled program in the order of their ids."""
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    devices = {d for s in shardings for d in getattr(s, "device_set", ())}
    return sorted(devices, key=lambda d: d.id) or [jax.local_devices()[0]]


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
