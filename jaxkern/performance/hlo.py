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
_CONTROL_FLOW = ("while", "conditional", "call", "async-start")
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
        groups = [group.strip("{}").split(",") for group in _CALLED.findall(instruction.text)]
        names = [name.strip().lstrip("%") for group in groups for name in group]
        return [self.computations[name] for name in names if name in self.computations]

    def executed(
        self, computation: Computation | None = None, count: int | None = 1
    ) -> Iterator[tuple[Instruction, int | None]]:
        """Yield each instruction outside fusions and its number of executions in one run.

        The number is None within a loop of unknown length.
        """
        for instruction in (computation or self.entry).instructions:
            yield instruction, count
            if instruction.opcode not in _CONTROL_FLOW:
                continue
            inner = count
            if instruction.opcode == "while":
                trips = _TRIPS.search(instruction.text)
                inner = None if trips is None or count is None else count * int(trips[1])
            for callee in self.callees(instruction):
                yield from self.executed(callee, inner)

    def custom_calls(self) -> Counter[str]:
        """Count the custom calls in the program's text by target."""
        every = (i for c in self.computations.values() for i in c.instructions)
        targets = (_TARGET.search(i.text) for i in every if i.opcode == "custom-call")
        return Counter(match[1] for match in targets if match is not None)

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
    total = 0
    for kind, sizes in _ARRAY.findall(shape):
        digits = re.match(r"(?:bf|f|s|u|c)(\d+)", kind)
        if kind != "pred" and digits is None:
            continue  # such as a token
        bits = 8 if digits is None else int(digits[1])
        total += (math.prod(int(n) for n in sizes.split(",") if n) * bits + 7) // 8
    return total


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
