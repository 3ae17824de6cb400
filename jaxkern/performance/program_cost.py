"""Operations and bytes of a traced program: XLA's count, loops multiplied, and the ops' own models.

XLA's cost analysis counts the body of a loop once and takes 1 operation off for each custom call,
whose work it does not know. So every body of a scan is counted by itself and multiplied, the custom
calls are counted back, and each op that runs natively adds its own model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, jaxpr_as_fun

from jaxkern.core import compat
from jaxkern.core.calls import OpCall, inner_programs, op_call, op_calls
from jaxkern.performance.hlo import HloModule
from jaxkern.performance.op_uses import OpUse, op_uses
from jaxkern.performance.operands import constants_as_inputs

# Matrix products and convolutions of a GPU's libraries, which XLA's analysis does know.
_KNOWN_CALLS = ("__cublas", "__cudnn")


@dataclass
class ProgramCost:
    """Operations and bytes of one run; None where a loop's length is only known while it runs.

    Attributes:
      xla_flops, xla_bytes: what XLA counted, loops multiplied.
      op_flops, op_bytes: the models of the ops that run natively.
      dtype: ``"f64"`` or ``"f32"``: in which most operations are done (halves count as f32).
      calls: every call of an op in the trace.
      uses: the different ones that the compiled program makes, and how often.
      notes: what is missing in the counts.
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
        return _sum(self.xla_flops, self.op_flops)

    @property
    def bytes(self) -> float | None:
        return _sum(self.xla_bytes, self.op_bytes)


def _sum(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a + b


def program_cost(program: ClosedJaxpr, compiled: Any, platform: str, devices: int) -> ProgramCost:
    """The cost of a traced and compiled program that runs on ``devices`` of a platform at once."""
    cost = ProgramCost(calls=list(op_calls(program)), dtype=_main_dtype(program.jaxpr))
    counted = _Counter(cost.notes, devices)
    module = HloModule(compiled.as_text() or "")
    base = counted.analysis(compiled, module)
    counted.tell_foreign(module, {call.op.target for call in cost.calls})
    extra = counted.beyond(program.jaxpr)
    if extra is None:
        cost.xla_flops = cost.xla_bytes = None
    else:
        # XLA analyzes the program of one device; what is beyond it is of all.
        cost.xla_flops, cost.xla_bytes = (max(float(v), 0.0) for v in base * devices + extra)
    cost.uses = op_uses(cost.calls, module, platform, devices, cost.notes)
    for use in cost.uses:
        if not use.native:
            continue  # XLA compiled its pure-JAX implementation, and counted it
        flops, moved = use.call.cost
        cost.op_flops = _sum(cost.op_flops, _scaled(flops, use.count))
        cost.op_bytes = _sum(cost.op_bytes, _scaled(moved, use.count))
        if flops is None:
            cost.notes.append(f"{use.call.op.name} declares no cost: its operations are unknown")
    cost.notes = list(dict.fromkeys(cost.notes))
    return cost


class _Counter:
    """XLA's counts as arrays (flops, bytes), and what it leaves out of loops."""

    def __init__(self, notes: list[str], devices: int) -> None:
        self.notes = notes
        self.devices = devices

    def analysis(self, compiled: Any, module: HloModule) -> np.ndarray:
        found = compiled.cost_analysis() or {}
        if isinstance(found, (list, tuple)):
            found = found[0] if found else {}
        unknown = sum(
            count
            for target, count in module.custom_calls().items()
            if not target.startswith(_KNOWN_CALLS)
        )
        flops = max(found.get("flops", 0.0) + unknown, 0.0)
        return np.asarray([flops, max(found.get("bytes accessed", 0.0), 0.0)])

    def tell_foreign(self, module: HloModule, targets: set[str]) -> None:
        foreign = {
            target: count
            for target, count in module.custom_calls().items()
            if target not in targets and not target.startswith(_KNOWN_CALLS)
        }
        for target, count in sorted(foreign.items()):
            self.notes.append(
                f"{count} custom call(s) to {target}: what they do is not counted; give "
                "flops_per_sample and bytes_per_sample where it matters"
            )

    def alone(self, program: Jaxpr, around: JaxprEqn | None) -> np.ndarray | None:
        """XLA's counts of a part of the program, compiled by itself; None if it cannot be.

        Of all devices; inside the shard_map ``around`` it of one of those that share its work.
        """
        try:
            return self._alone(program, around)
        except Exception as error:  # nested shard_maps, or what only makes sense where it stands
            self.notes.append(
                "the body of a loop cannot be compiled by itself, so that its operations and bytes "
                f"are unknown ({type(error).__name__})"
            )
            return None

    def _alone(self, program: Jaxpr, around: JaxprEqn | None) -> np.ndarray:
        structs = [_struct(v) for v in (*program.constvars, *program.invars)]
        run = jaxpr_as_fun(ClosedJaxpr(constants_as_inputs(program), ()))
        sharing = 1
        if around is not None:
            # Every device gets operands of the body's own, local shapes.
            run = compat.local_on_mesh(run, around.params)
            sharing = compat.shard_map_devices(around.params)
        compiled = jax.jit(run).lower(*structs).compile()
        module = HloModule(compiled.as_text() or "")
        devices = len(program_devices(compiled))
        if around is None and devices < self.devices:
            self.notes.append(
                "the body of a loop is counted as one device would run it: what the others repeat "
                "in it is not counted again"
            )
        found: np.ndarray = self.analysis(compiled, module) * devices / sharing
        return found

    def beyond(self, jaxpr: Jaxpr, around: JaxprEqn | None = None) -> np.ndarray | None:
        """What the loops of a program do that XLA's count of it leaves out; None if unknown."""
        total = np.zeros(2)
        for eqn in jaxpr.eqns:
            if op_call(eqn) is not None:
                continue
            part = self._beyond_equation(eqn, around)
            if part is None:
                return None
            total = total + part
        return total

    def _beyond_equation(self, eqn: JaxprEqn, around: JaxprEqn | None) -> np.ndarray | None:
        inner = inner_programs(eqn)
        if eqn.primitive.name == "while":
            self.notes.append(
                "a while loop runs a number of times that only the data tell: operations and bytes "
                "are unknown; give flops_per_sample and bytes_per_sample"
            )
            return None
        mapped = eqn.primitive.name == "shard_map"
        parts = [self.beyond(part.jaxpr, eqn if mapped else around) for part in inner]
        known = [
            part * program.devices
            for part, program in zip(parts, inner, strict=True)
            if part is not None
        ]
        if len(known) < len(inner):
            return None
        if eqn.primitive.name == "scan":
            length, unroll = int(eqn.params["length"]), int(eqn.params.get("unroll", 1))
            seen = length if unroll >= length else unroll + length % unroll
            if length == seen and not known[0].any():
                return np.zeros(2)
            body = self.alone(inner[0].jaxpr, around)
            if body is None:
                return None
            beyond: np.ndarray = length * (body + known[0]) - seen * body
            return beyond
        if eqn.primitive.name == "cond":
            if not any(part.any() for part in known):
                return np.zeros(2)
            # XLA counts the branch that does most, of each property.
            counts = [self.alone(part.jaxpr, around) for part in inner]
            if any(count is None for count in counts):
                return None
            bodies = [count for count in counts if count is not None]
            full = [body + part for body, part in zip(bodies, known, strict=True)]
            return np.asarray(np.max(full, axis=0) - np.max(bodies, axis=0))
        return np.asarray(sum(known, np.zeros(2)))


def program_devices(compiled: Any) -> list[jax.Device]:
    """The devices that run a compiled program, by their ids; the first one where it tells none."""
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    found = {d for s in shardings for d in getattr(s, "device_set", ())}
    return sorted(found, key=lambda d: d.id) or [jax.local_devices()[0]]


def _struct(variable: Any) -> Any:
    return jax.ShapeDtypeStruct(variable.aval.shape, variable.aval.dtype)


def _scaled(value: float | None, count: int | None) -> float | None:
    if value == 0 or count == 0:
        return 0.0
    return None if value is None or count is None else value * count


# Which precision most of the work is in: of every equation the elements it makes, times what a
# product contracts, in the widest real type among what it reads and makes.


def _main_dtype(jaxpr: Jaxpr) -> str:
    work = {"f32": 0.0, "f64": 0.0}
    _collect_work(jaxpr, 1.0, work)
    return "f64" if work["f64"] > work["f32"] else "f32"


def _collect_work(jaxpr: Jaxpr, count: float, work: dict[str, float]) -> None:
    for eqn in jaxpr.eqns:
        inner = inner_programs(eqn)
        for part in inner:
            _collect_work(part.jaxpr, count * (part.times or 1), work)
        if inner or eqn.primitive.name in _MOVES:
            continue
        dtype = _widest([*eqn.invars, *eqn.outvars])
        if dtype is None:
            continue
        elements = float(sum(_size(v) for v in eqn.outvars))
        call = op_call(eqn)
        if call is not None:
            elements = float(call.cost.flops or elements)
        elif eqn.primitive.name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            shape = _struct(eqn.invars[0]).shape
            elements *= 2 * math.prod(shape[axis] for axis in contracted)
        work[dtype] += count * elements


_MOVES = frozenset(
    {
        "broadcast_in_dim",
        "concatenate",
        "convert_element_type",
        "copy",
        "dynamic_slice",
        "dynamic_update_slice",
        "gather",
        "iota",
        "pad",
        "reshape",
        "rev",
        "slice",
        "squeeze",
        "transpose",
    }
)


def _size(variable: Any) -> int:
    return math.prod(variable.aval.shape)


def _widest(variables: Sequence[Any]) -> str | None:
    kinds = [np.dtype(v.aval.dtype) for v in variables if _is_real(v.aval)]
    if not kinds:
        return None
    return "f64" if any(d in (np.float64, np.complex128) for d in kinds) else "f32"


def _is_real(aval: Any) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, np.inexact))
