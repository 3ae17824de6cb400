"""The ops that a compiled program calls: how often, and with which operands.

A trace also has calls that XLA removes, merges or moves out of loops.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, jaxpr_as_fun
from jax.interpreters import mlir

from jaxkern.core.calls import OpCall, inner_programs, op_call, times
from jaxkern.performance.hlo import CONTROL_FLOW, Computation, HloModule, Instruction, arrays


@dataclass(frozen=True)
class OpUse:
    """Equal calls of an op: the same operands, parameters and backend.

    Attributes:
      members: their indices in the program's `jaxkern.core.calls.op_calls`.
      count: number of calls in one run, on all devices; None if a loop's length is unknown.
      native: True if the calls are custom calls, False if XLA compiled the fallback.
    """

    call: OpCall
    members: tuple[int, ...]
    count: int | None
    native: bool


def op_uses(
    calls: Sequence[OpCall], program: HloModule, platform: str, devices: int, notes: list[str]
) -> list[OpUse]:
    """Return the distinct calls of a compiled program that runs on ``devices``, with counts.

    Custom calls are counted in the compiled program: those in the body of a loop as often as it
    runs, and of a conditional those in the branch with the most work (0 for other branches). Calls
    that XLA removed are left out. Other calls keep the count of the trace ``calls``, and a note is
    appended to ``notes``.
    """
    groups: dict[object, list[int]] = {}
    for index, call in enumerate(calls):
        static = tuple(sorted(call.static.items()))
        key = (call.op.target, call.operands, static, call.batch_dims, call.backend, call.devices)
        groups.setdefault(key, []).append(index)
    traced = [
        OpUse(
            calls[members[0]],
            tuple(members),
            _sum(times(calls[k].count, calls[k].devices) for k in members),
            calls[members[0]].problem(platform) is None,
        )
        for members in groups.values()
    ]
    native = {k: use.call for k, use in enumerate(traced) if use.native}
    compiled = _CompiledCalls(program, native, devices).counts()
    uses = []
    for k, use in enumerate(traced):
        name = use.call.op.name
        if not use.native:
            notes.append(f"calls of {name} in pure JAX are counted as traced: XLA may run fewer")
            uses.append(use)
            continue
        # Calls that look alike in the compiled program are counted together.
        alike = next((keys for keys in compiled if k in keys), None)
        if alike is None:
            continue
        count = times(compiled[alike], use.call.devices)
        if len(alike) > 1:
            total = _sum(_sum(calls[m].count for m in traced[j].members) for j in alike)
            count = use.count if total == compiled[alike] else None
        if count is None and use.count is not None:
            notes.append(
                f"calls of {name} are counted as traced: the compiled program does not distinguish "
                "them or state how often they run, and XLA may run fewer"
            )
        uses.append(OpUse(use.call, use.members, use.count if count is None else count, True))
    return uses


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(n for n in known if n is not None)


# The traced calls that a custom call may correspond to, by index.
_Keys = frozenset[int]


class _CompiledCalls:
    """The custom calls of a compiled program, matched with traced calls."""

    def __init__(self, program: HloModule, calls: Mapping[int, OpCall], devices: int) -> None:
        self.program, self.calls = program, calls
        # The text has only a part of a call that XLA partitions; a part may look like another call.
        self.match_shapes = all(call.devices == devices for call in calls.values())
        self.shapes = {k: _shapes(call) for k, call in calls.items()}
        self.attributes = {k: _attributes(call) for k, call in calls.items()}
        self.present: set[_Keys] = set()

    def counts(self) -> dict[_Keys, int | None]:
        """Count the calls in one run on one device, grouped by indistinguishable calls."""
        if not self.calls:
            return {}
        if not self.program.computations:  # this compiler has no text form of programs
            return {frozenset(self.calls): None}
        total = self._count(self.program.entry)
        merged: dict[_Keys, int | None] = {}
        for keys in self.present:
            count = total.get(keys, 0)
            for other in [other for other in merged if other & keys]:
                count = _sum([count, merged.pop(other)])
                keys |= other
            merged[keys] = count
        return merged

    def _count(self, computation: Computation) -> dict[_Keys, int | None]:
        total: dict[_Keys, int | None] = {}
        shapes = {i.name: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            if instruction.opcode == "custom-call":
                keys = self._match(instruction, shapes)
                parts: list[dict[_Keys, int | None]] = [{keys: 1}] if keys else []
            elif instruction.opcode in (*CONTROL_FLOW, "fusion"):
                parts = [self._count(callee) for callee in self.program.callees(instruction)]
            else:
                continue
            if instruction.opcode == "conditional":
                parts = [max(parts, key=self._work)] if parts else []
            trips = instruction.trips if instruction.opcode == "while" else 1
            for part in parts:
                for keys, count in part.items():
                    total[keys] = _sum([total.get(keys, 0), times(count, trips)])
        return total

    def _match(self, instruction: Instruction, shapes: Mapping[str, str]) -> _Keys:
        keys = [k for k, call in self.calls.items() if call.op.target == instruction.target]
        operands = " ".join(shapes.get(name, "") for name in instruction.operands)
        compiled = tuple(
            tuple(_without_ones(dims, size) for dims, size in arrays(shape))
            for shape in (operands, instruction.shape)
        )
        if self.match_shapes:
            keys = [k for k in keys if self.shapes[k] == compiled] or keys
        keys = [k for k in keys if all(a in instruction.text for a in self.attributes[k])] or keys
        if keys:
            self.present.add(frozenset(keys))
        return frozenset(keys)

    def _work(self, counts: Mapping[_Keys, int | None]) -> tuple[float, float]:
        """Return flops and bytes of a branch's calls; an unknown count is infinite."""
        flops = moved = 0.0
        for keys, count in counts.items():
            factor = math.inf if count is None else count
            costs = [self.calls[k].cost for k in keys]
            flops += max(cost.flops * factor if cost.flops else 0 for cost in costs)
            moved += max(cost.bytes * factor if cost.bytes else 0 for cost in costs)
        return flops, moved


def _without_ones(dims: Sequence[int], size: int) -> tuple[tuple[int, ...], int]:
    # Lowering may add or remove axes of size 1.
    return tuple(n for n in dims if n != 1), size


def _shapes(call: OpCall) -> tuple[tuple[tuple[tuple[int, ...], int], ...], ...]:
    """Return shapes and bytes of operands and of results, as in a custom call's text."""
    return tuple(
        tuple(_without_ones(x.shape, math.prod(x.shape) * x.dtype.itemsize) for x in structs)
        for structs in (call.operands, call.results)
    )


def _attributes(call: OpCall) -> list[str]:
    """Return the attributes of a call as they appear in a custom call's text."""
    op = call.op
    if op.attributes is None:
        return []
    with mlir.make_ir_context():
        return [f"{k} = {mlir.ir_attribute(v)}" for k, v in op.attributes(**call.static).items()]


# Operands, so that each op can be timed alone -----------------------------------------------------


def call_operands(program: ClosedJaxpr, leaves: Sequence[Any]) -> Iterator[tuple[Any, ...] | None]:
    """Yield the operands of each call of `jaxkern.core.calls.op_calls`, in the same order.

    Only the values that a call depends on are computed. In a loop, the operands of the first
    iteration are yielded. None is yielded for unknown operands: in ``shard_map``, in a branch that
    is not executed, and in a loop without iterations.
    """
    yield from _walk(*_with_constants(program.jaxpr, program.consts, leaves))


def constants_as_inputs(jaxpr: Jaxpr) -> Jaxpr:
    """Return the program with its constants as its first inputs."""
    opened: Jaxpr = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    return opened


def _with_constants(
    jaxpr: Jaxpr, consts: Sequence[Any], values: Sequence[Any] | None
) -> tuple[Jaxpr, Sequence[Any] | None]:
    opened = constants_as_inputs(jaxpr)
    inputs = None if values is None else [*consts, *values]
    return opened, inputs if inputs is not None and len(inputs) == len(opened.invars) else None


def _walk(jaxpr: Jaxpr, values: Sequence[Any] | None) -> Iterator[tuple[Any, ...] | None]:
    for index, eqn in enumerate(jaxpr.eqns):
        is_call, inner = op_call(eqn) is not None, inner_programs(eqn)
        if not is_call and not any(_has_call(part.jaxpr) for part in inner):
            continue
        operands = None if values is None else _evaluate_operands(jaxpr, index, values)
        if is_call:
            yield operands
            continue
        for k, part in enumerate(inner):
            entering = None if operands is None else _inner_inputs(eqn, k, operands)
            yield from _walk(*_with_constants(part.jaxpr, part.consts, entering))


def _has_call(jaxpr: Jaxpr) -> bool:
    return any(
        op_call(eqn) is not None or any(_has_call(p.jaxpr) for p in inner_programs(eqn))
        for eqn in jaxpr.eqns
    )


def _evaluate_operands(jaxpr: Jaxpr, index: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Evaluate the operands of an equation from the inputs of its program."""
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


def synthetic_operands(call: OpCall) -> tuple[jax.Array, ...]:
    """Return operands of a call's shapes: floats between 0 and 1, and zeros of other dtypes."""
    random = np.random.default_rng(0)

    def one(struct: Any) -> jax.Array:
        if jnp.issubdtype(struct.dtype, np.floating):
            return jnp.asarray(random.uniform(0, 1, struct.shape), struct.dtype)
        return jnp.zeros(struct.shape, struct.dtype)

    return tuple(map(one, call.operands))
