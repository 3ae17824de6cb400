"""How often a compiled program calls each op: a trace has calls that XLA leaves out or merges."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jax.interpreters import mlir

from jaxkern.core.calls import OpCall, times
from jaxkern.performance.hlo import Computation, HloModule, Instruction, arrays, called


@dataclass(frozen=True)
class OpUse:
    """Equal calls of an op: the same operands, parameters and backend.

    Attributes:
      members: their places among the program's `jaxkern.core.calls.op_calls`.
      count: calls of one run, on all devices; None where a loop's length is unknown.
      native: whether each is a custom call; else XLA compiled the op's pure-JAX implementation.
    """

    call: OpCall
    members: tuple[int, ...]
    count: int | None
    native: bool


def op_uses(
    calls: Sequence[OpCall], program: HloModule, platform: str, devices: int, notes: list[str]
) -> list[OpUse]:
    """The different calls that a compiled program makes, and how often.

    Custom calls are counted in the compiled program: bodies of loops as often as they run, and of a
    conditional those of the branch whose calls do most (the other branches' count 0). Calls that
    XLA removed are left out. What cannot be counted there keeps the count of the trace, with a
    note.

    Args:
      calls: of the trace.
      program: as it was compiled.
      platform: that it was compiled for.
      devices: that run it at once.
      notes: get what is not known.
    """
    groups: dict[object, list[int]] = {}
    for at, call in enumerate(calls):
        static = tuple(sorted(call.static.items()))
        key = (call.op.target, call.operands, static, call.batch_dims, call.backend, call.devices)
        groups.setdefault(key, []).append(at)
    uses = [
        OpUse(calls[at[0]], tuple(at), _sum(_traced(calls[k]) for k in at), False)
        for at in groups.values()
    ]
    native = [use.call.problem(platform) is None for use in uses]
    compiled = _Compiled(
        program, {k: use.call for k, use in enumerate(uses) if native[k]}, devices
    ).counts()
    found = []
    for k, use in enumerate(uses):
        if not native[k]:
            notes.append(
                f"calls of {use.call.op.name} in pure JAX are counted as traced: XLA may run fewer"
            )
            found.append(use)
            continue
        # Calls that look alike in the compiled program count together.
        alike = next((together for together in compiled if k in together), None)
        if alike is None:
            continue
        count = times(compiled[alike], use.call.devices)
        if len(alike) > 1:
            traced = _sum(_sum(calls[at].count for at in uses[j].members) for j in alike)
            count = use.count if traced == compiled[alike] else None
        if count is None and use.count is not None:
            notes.append(
                f"calls of {use.call.op.name} are counted as traced: the compiled program does not "
                "tell them apart or how often it makes them, and XLA may run fewer"
            )
        found.append(OpUse(use.call, use.members, use.count if count is None else count, True))
    return found


def _traced(call: OpCall) -> int | None:
    return times(call.count, call.devices)


def _sum(counts: Iterable[int | None]) -> int | None:
    known = list(counts)
    return None if None in known else sum(n for n in known if n is not None)


# Which calls of the trace a custom call may be, by their keys.
_Keys = frozenset[int]


class _Compiled:
    """A compiled program, and the native calls that may be in it."""

    def __init__(self, program: HloModule, calls: Mapping[int, OpCall], devices: int) -> None:
        self.program = program
        self.calls = calls
        # Of a call that XLA partitions the text has a part, which may look like another call.
        self.whole = all(call.devices == devices for call in calls.values())
        self.forms = {k: _form(call) for k, call in calls.items()}
        self.attributes = {k: _attributes(call) for k, call in calls.items()}
        self.present: set[_Keys] = set()

    def counts(self) -> dict[_Keys, int | None]:
        """Calls of one run of one device; keys that cannot be told apart stand together."""
        if not self.calls:
            return {}
        if not self.program.computations:  # a compiler that shows no text
            return {frozenset(self.calls): None}
        found = self._computation(self.program.entry)
        merged: dict[_Keys, int | None] = {}
        for keys in self.present:
            count = found.get(keys, 0)
            for other in [other for other in merged if other & keys]:
                count = _sum([count, merged.pop(other)])
                keys |= other
            merged[keys] = count
        return merged

    def _computation(self, computation: Computation) -> dict[_Keys, int | None]:
        total: dict[_Keys, int | None] = {}
        shapes = {i.name: i.shape for i in computation.instructions}
        for instruction in computation.instructions:
            if instruction.opcode == "custom-call":
                keys = self._keys(instruction, shapes)
                parts: list[dict[_Keys, int | None]] = [{keys: 1}] if keys else []
            elif instruction.opcode in ("while", "conditional", "call", "async-start", "fusion"):
                parts = [
                    self._computation(self.program.computations[name])
                    for name in called(instruction)
                    if name in self.program.computations
                ]
            else:
                continue
            if instruction.opcode == "conditional":
                parts = [max(parts, key=self._work)] if parts else []
            trips = self.program.trips(instruction) if instruction.opcode == "while" else 1
            for part in parts:
                for keys, count in part.items():
                    total[keys] = _sum([total.get(keys, 0), times(count, trips)])
        return total

    def _keys(self, instruction: Instruction, shapes: Mapping[str, str]) -> _Keys:
        keys = [k for k, call in self.calls.items() if call.op.target == instruction.target]
        operands = " ".join(shapes.get(name, "") for name in instruction.operands)
        whole = tuple(
            tuple(_array(dims, size) for dims, size in arrays(shape))
            for shape in (operands, instruction.shape)
        )
        if self.whole:
            keys = [k for k in keys if self.forms[k] == whole] or keys
        keys = [k for k in keys if all(a in instruction.text for a in self.attributes[k])] or keys
        found = frozenset(keys)
        if found:
            self.present.add(found)
        return found

    def _work(self, counts: Mapping[_Keys, int | None]) -> tuple[float, float]:
        """Flops and bytes of a branch's calls; unknown often is more than any."""
        flops = moved = 0.0
        for keys, count in counts.items():
            often = math.inf if count is None else count
            costs = [self.calls[k].cost for k in keys]
            flops += max((cost.flops or 0) * often if cost.flops else 0 for cost in costs)
            moved += max((cost.bytes or 0) * often if cost.bytes else 0 for cost in costs)
        return flops, moved


def _array(dims: Sequence[int], size: int) -> tuple[tuple[int, ...], int]:
    # Axes of size 1 come and go where a call is lowered.
    return tuple(n for n in dims if n != 1), size


def _form(call: OpCall) -> tuple[tuple[tuple[tuple[int, ...], int], ...], ...]:
    """Shapes and bytes of operands and of results, as in a compiled program's custom call."""
    return tuple(
        tuple(_array(x.shape, math.prod(x.shape) * x.dtype.itemsize) for x in structs)
        for structs in (call.operands, call.results)
    )


def _attributes(call: OpCall) -> list[str]:
    """The parameters of a custom call as a compiled program's text has them."""
    op = call.op
    if op.attributes is None:
        return []
    with mlir.make_ir_context():
        return [f"{k} = {mlir.ir_attribute(v)}" for k, v in op.attributes(**call.static).items()]
