"""Parser for the text of a compiled program (HLO): instructions, sizes, fusions and loops."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_COLLECTIVE = re.compile(
    "all-(gather|reduce|to-all)|collective-(broadcast|permute)|ragged-all-to-all|reduce-scatter"
)
# Instructions that run other computations, which are not fused into them.
CONTROL_FLOW = ("while", "conditional", "call", "async-start")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,]*)\]")
_HEAD = re.compile(r"^\s*(?:ROOT )?%?([^\s=]+) = ")
_OPCODE = re.compile(r"\s([a-z][a-z0-9\-]*)\(")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([^\s(]+) .*\{\s*$")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|branch_computations|true_computation|false_computation)="
    r"(\{[^}]*\}|%?[\w.\-]+)"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
_TARGET = re.compile(r'custom_call_target="([^"]+)"')
_OP_NAME = re.compile(r'op_name="((?:[^"\\]|\\.)*)"')
_ALIAS = re.compile(r"\{[0-9, ]*\}: \((\d+),")
# Bits of the element types whose name does not end in their number of bits.
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """One instruction; ``bytes`` is the size of its result, ``op_name`` its origin in Python."""

    name: str
    opcode: str
    shape: str
    bytes: int
    operands: tuple[str, ...]
    op_name: str
    text: str

    @property
    def collective(self) -> str | None:
        """Kind of collective, such as ``"all-gather"``; None for ``-done`` instructions."""
        kind = self.opcode.removesuffix("-start")
        return kind if _COLLECTIVE.fullmatch(kind) else None

    @property
    def target(self) -> str | None:
        """Target of a custom call."""
        match = _TARGET.search(self.text) if self.opcode == "custom-call" else None
        return None if match is None else match[1]

    @property
    def called(self) -> list[str]:
        """Names of the computations that the instruction refers to."""
        groups = (group.strip("{}").split(",") for group in _CALLED.findall(self.text))
        return [name.strip().lstrip("%") for group in groups for name in group]

    @property
    def trips(self) -> int | None:
        """Number of iterations of a while instruction; None if the program does not state it."""
        match = _TRIPS.search(self.text)
        return None if match is None else int(match[1])


@dataclass
class Computation:
    """The instructions of one computation."""

    name: str
    entry: bool
    instructions: list[Instruction] = field(default_factory=list)


class HloModule:
    """A compiled program, parsed from ``compiled.as_text()``."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, Computation] = {}
        header, current = "", None
        for line in text.splitlines():
            if line.startswith("HloModule"):
                header = line
            opened = _COMPUTATION.match(line)
            if opened and " = " not in line.split("{")[0]:
                current = Computation(opened[2], bool(opened[1]))
                self.computations[current.name] = current
            elif line.startswith("}"):
                current = None
            elif current is not None:
                instruction = _parse(line)
                if instruction is not None:
                    current.instructions.append(instruction)
        alias = header.partition("input_output_alias={ ")[2].partition(" }")[0]
        self.aliased_parameters = {int(n) for n in _ALIAS.findall(alias)}

    @property
    def entry(self) -> Computation:
        return next(c for c in self.computations.values() if c.entry)

    def callees(self, instruction: Instruction) -> list[Computation]:
        """Computations that an instruction runs."""
        names = instruction.called
        return [self.computations[name] for name in names if name in self.computations]

    def executed(self) -> Iterator[tuple[Instruction, int | None]]:
        """Yield each instruction outside fusions and its number of executions in one run.

        The number is None within a loop of unknown length.
        """
        yield from self._executed(self.entry, 1)

    def _executed(
        self, computation: Computation, count: int | None
    ) -> Iterator[tuple[Instruction, int | None]]:
        for instruction in computation.instructions:
            yield instruction, count
            if instruction.opcode not in CONTROL_FLOW:
                continue
            trips = instruction.trips if instruction.opcode == "while" else 1
            inner = None if trips is None or count is None else count * trips
            for callee in self.callees(instruction):
                yield from self._executed(callee, inner)

    def custom_calls(self) -> Counter[str]:
        """Count the custom calls in the program's text by target."""
        every = (i for c in self.computations.values() for i in c.instructions)
        return Counter(i.target for i in every if i.target is not None)

    def fused(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions inside a fusion; an empty list for other instructions."""
        if instruction.opcode != "fusion":
            return []
        return [i for callee in self.callees(instruction) for i in callee.instructions]

    def parameters(self) -> dict[int, Instruction]:
        """Return the entry's parameters by number; ``op_name`` is the argument's name."""
        return {int(i.operands[0]): i for i in self.entry.instructions if i.opcode == "parameter"}


def shape_bytes(shape: str) -> int:
    """Return the size in bytes of ``f32[2,3]{1,0}`` or of a tuple of such shapes."""
    return sum(size for _, size in arrays(shape))


def arrays(shape: str) -> list[tuple[tuple[int, ...], int]]:
    """Return dimensions and bytes of each array in a shape such as ``(f32[2,3]{1,0}, s8[4])``."""
    result = []
    for kind, sizes in _ARRAY.findall(shape):
        bits = _BITS.get(kind)
        if bits is None:
            digits = re.match(r"(?:bf|f|s|u|c)(\d+)", kind)
            if digits is None:
                continue
            bits = int(digits[1])
        dims = tuple(int(n) for n in sizes.split(",") if n)
        result.append((dims, (math.prod(dims) * bits + 7) // 8))
    return result


def _parse(line: str) -> Instruction | None:
    head = _HEAD.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    opcode = _OPCODE.search(" " + rest if not rest.startswith("(") else rest)
    if opcode is None:
        return None
    offset = 0 if rest.startswith("(") else 1
    shape = rest[: max(opcode.start() - offset, 0)].strip()
    arguments = [a.strip() for a in rest[opcode.end() - offset :].partition(")")[0].split(", ")]
    operands = tuple(a.rsplit(" ", 1)[-1].lstrip("%") for a in arguments if a)
    named = _OP_NAME.search(line)
    op_name = named[1].replace("\\'", "'").replace('\\"', '"') if named else ""
    size = _result_bytes(opcode[1], shape)
    return Instruction(head[1], opcode[1], shape, size, operands, op_name, line)


def _result_bytes(opcode: str, shape: str) -> int:
    # The tuple of an all-reduce-start holds its results. Tuples of other asynchronous starts are
    # (operand, result, ...), where each element is a tuple if several collectives were combined.
    if opcode.endswith("-start") and opcode != "all-reduce-start" and shape.startswith("("):
        elements = _tuple_elements(shape)
        return shape_bytes(elements[1] if len(elements) > 1 else shape)
    return shape_bytes(shape)


def _tuple_elements(shape: str) -> list[str]:
    elements, depth, start = [], 0, 1
    for index, character in enumerate(shape):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            elements.append(shape[start:index])
            start = index + 1
        if depth == 0:
            break
    return elements
