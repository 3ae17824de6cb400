"""Reads the text of a compiled program: its instructions, their sizes, and what is in fusions."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
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
_ALIAS = re.compile(r"\{[0-9, ]*\}: \((\d+),")
# Bits of the element types whose name does not end in them.
_BITS = {"pred": 8, "token": 0, "opaque": 0}


@dataclass(frozen=True)
class Instruction:
    """One instruction: its name, what it does, the bytes of its result, and where it comes from."""

    name: str
    opcode: str
    shape: str
    bytes: int
    operands: tuple[str, ...]
    op_name: str
    text: str

    @property
    def collective(self) -> str | None:
        """Its kind, such as ``"all-gather"``; the end of an asynchronous one is not counted."""
        kind = self.opcode.removesuffix("-start")
        return kind if kind in COLLECTIVES else None

    @property
    def target(self) -> str | None:
        """Of a custom call."""
        found = _TARGET.search(self.text) if self.opcode == "custom-call" else None
        return None if found is None else found[1]


@dataclass
class Computation:
    """The instructions of one computation, in order of execution where it is scheduled."""

    name: str
    entry: bool
    instructions: list[Instruction] = field(default_factory=list)


class HloModule:
    """A compiled program by its text (``compiled.as_text()``)."""

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
                instruction = _instruction(line)
                if instruction is not None:
                    current.instructions.append(instruction)
        alias = header.partition("input_output_alias={ ")[2].partition(" }")[0]
        self.aliased_parameters = {int(n) for n in _ALIAS.findall(alias)}

    @property
    def entry(self) -> Computation:
        return next(c for c in self.computations.values() if c.entry)

    def executed(self) -> Iterator[tuple[Instruction, int | None]]:
        """Every instruction that runs by itself, and how often; None in a loop of unknown length.

        What is fused into another instruction is not among them.
        """
        yield from self._executed(self.entry, 1)

    def _executed(
        self, computation: Computation, count: int | None
    ) -> Iterator[tuple[Instruction, int | None]]:
        for instruction in computation.instructions:
            yield instruction, count
            if instruction.opcode not in ("while", "conditional", "call", "async-start"):
                continue
            inner = count
            if instruction.opcode == "while":
                trips = self.trips(instruction)
                inner = None if trips is None or count is None else count * trips
            for name in called(instruction):
                if name in self.computations:
                    yield from self._executed(self.computations[name], inner)

    def custom_calls(self) -> Counter[str]:
        """How often each target of a custom call stands in the program."""
        every = (i for c in self.computations.values() for i in c.instructions)
        return Counter(i.target for i in every if i.target is not None)

    def trips(self, loop: Instruction) -> int | None:
        """How often a while instruction runs its body; None where the program does not tell."""
        found = _TRIPS.search(loop.text)
        return None if found is None else int(found[1])

    def fused(self, instruction: Instruction) -> list[Instruction]:
        """What a fusion does; empty for anything else."""
        if instruction.opcode != "fusion":
            return []
        found: list[Instruction] = []
        for name in called(instruction):
            if name in self.computations:
                found += self.computations[name].instructions
        return found

    def parameters(self) -> dict[int, Instruction]:
        """The entry's parameters by number; `Instruction.op_name` is the argument's name."""
        found: dict[int, Instruction] = {}
        for instruction in self.entry.instructions:
            if instruction.opcode == "parameter":
                found[int(instruction.operands[0])] = instruction
        return found


def called(instruction: Instruction) -> list[str]:
    """The computations that an instruction names."""
    found: list[str] = []
    for group in _CALLED.findall(instruction.text):
        found += [name.strip().lstrip("%") for name in group.strip("{}").split(",")]
    return found


def shape_bytes(shape: str) -> int:
    """Bytes of ``f32[2,3]{1,0}`` or of a tuple of such."""
    return sum(size for _, size in arrays(shape))


def arrays(shape: str) -> list[tuple[tuple[int, ...], int]]:
    """Dimensions and bytes of ``f32[2,3]{1,0}``, or of each array in a tuple of such."""
    found = []
    for kind, sizes in _ARRAY.findall(shape):
        bits = _BITS.get(kind)
        if bits is None:
            digits = re.match(r"(?:bf|f|s|u|c)(\d+)", kind)
            if digits is None:
                continue
            bits = int(digits[1])
        dims = tuple(int(n) for n in sizes.split(",") if n)
        found.append((dims, (math.prod(dims) * bits + 7) // 8))
    return found


def _instruction(line: str) -> Instruction | None:
    head = _HEAD.match(line)
    if head is None:
        return None
    rest = line[head.end() :]
    opcode = _OPCODE.search(" " + rest if not rest.startswith("(") else rest)
    if opcode is None:
        return None
    offset = 0 if rest.startswith("(") else 1
    shape = rest[: max(opcode.start() - offset, 0)].strip()
    arguments = rest[opcode.end() - offset :].partition(")")[0]
    operands = tuple(
        part.strip().rsplit(" ", 1)[-1].lstrip("%")
        for part in arguments.split(", ")
        if part.strip()
    )
    named = re.search(r'op_name="((?:[^"\\]|\\.)*)"', line)
    op_name = named[1].replace("\\'", "'").replace('\\"', '"') if named else ""
    return Instruction(
        name=head[1],
        opcode=opcode[1],
        shape=shape,
        bytes=_result_bytes(opcode[1], shape),
        operands=operands,
        op_name=op_name,
        text=line,
    )


def _result_bytes(opcode: str, shape: str) -> int:
    # The tuple of an all-reduce that is begun holds its results; of others (operand, result, ...),
    # each of which is a tuple where several were combined.
    if opcode.endswith("-start") and opcode != "all-reduce-start" and shape.startswith("("):
        parts = _elements(shape)
        return shape_bytes(parts[1] if len(parts) > 1 else shape)
    return shape_bytes(shape)


def _elements(shape: str) -> list[str]:
    """The elements of a tuple's shape, which may be tuples."""
    found, depth, begun = [], 0, 1
    for at, character in enumerate(shape):
        if character in "([{":
            depth += 1
        elif character in ")]}":
            depth -= 1
        if (character == "," and depth == 1) or depth == 0:
            found.append(shape[begun:at])
            begun = at + 1
        if depth == 0:
            break
    return found
