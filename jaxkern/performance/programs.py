"""Compiled programs: devices, memory, collectives, and instructions parsed from the text of HLO."""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.execution.operator import name_of

_ARRAYS = (jax.Array, jax.ShapeDtypeStruct, np.ndarray, np.generic, bool, int, float, complex)


@dataclass(frozen=True)
class CompiledProgram:
    """A jitted function, and its compilation stages for some arguments."""

    function: Any
    traced: Any
    lowered: Any
    compiled: Any

    @cached_property
    def module(self) -> HloModule:
        return HloModule(self.compiled.as_text() or "")

    @property
    def devices(self) -> list[jax.Device]:
        return program_devices(self.compiled)

    @property
    def platform(self) -> str:
        """``"cpu"``, ``"cuda"``, or JAX's name of another platform."""
        name = self.devices[0].platform
        return "cuda" if name == "gpu" else name


def compile_program(fn: Callable[..., Any], *args: Any) -> CompiledProgram:
    """Trace, lower and compile ``fn`` for ``args``; TypeError if it cannot be traced for these."""
    if not callable(fn):
        raise TypeError(f"fn: expected a function, jitted or not, got {fn!r:.80}")
    jitted: Any = fn if hasattr(fn, "trace") and hasattr(fn, "lower") else jax.jit(fn)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*donated")
        try:
            traced = jitted.trace(*args)
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, TypeError) as error:
            others = [
                f"args{jax.tree_util.keystr(path)} is of type {type(leaf).__name__}"
                for path, leaf in jax.tree.leaves_with_path(args)
                if not isinstance(leaf, _ARRAYS)
            ]
            reason = "; ".join([str(error).strip().partition("\n")[0], *others])
            raise TypeError(
                f"{name_of(fn)} cannot be compiled for these arguments: {reason}; expected a "
                "function that jax.jit accepts, and arrays or jax.ShapeDtypeStruct (bind other "
                "values with functools.partial)"
            ) from error
        lowered = traced.lower()
        compiled = lowered.compile()
    return CompiledProgram(jitted, traced, lowered, compiled)


def program_devices(compiled: Any) -> list[jax.Device]:
    """Return the devices of a compiled program in the order of their ids."""
    shardings = jax.tree.leaves((compiled.input_shardings, compiled.output_shardings))
    devices = {d for s in shardings for d in getattr(s, "device_set", ())}
    return sorted(devices, key=lambda d: d.id) or [jax.local_devices()[0]]


def synthetic_values(shape: Sequence[int], dtype: Any) -> Any:
    """Return floats from 0 to 1, or zeros of other dtypes, which are valid as indices."""
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        return jax.lax.full(shape, 0, dtype)
    if jnp.issubdtype(dtype, np.inexact):
        return np.random.default_rng(0).random(shape, np.float32).astype(dtype)
    return np.zeros(shape, dtype)


@dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      name, kind: name of the instruction, and such as ``"all-gather"``.
      bytes: size of its result on one device, for one execution.
      count: executions in one run of the program; None in a loop of unknown length.
      source: origin in the function, such as ``"jit(f)/mul"``.

    Example:
      >>> from jaxkern import performance
      >>> gather = performance.Collective("all-gather.1", "all-gather", 1 << 20, 10, "jit(f)/mul")
      >>> gather.bytes * gather.count
      10485760
    """

    name: str
    kind: str
    bytes: int
    count: int | None
    source: str

    def __str__(self) -> str:
        times = "" if self.count == 1 else f" x {'?' if self.count is None else self.count}"
        return f"{self.kind} {self.name}: {self.bytes / 1e6:.3f} MB{times} ({self.source})"


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of a program on ONE device, according to XLA's buffer assignment.

    Attributes:
      argument_bytes, output_bytes: size of the arguments that the program uses, and of the results.
      temporary_bytes: size of temporaries, allocated for the entire run.
      aliased_bytes: size of results that are stored in donated arguments.
      generated_code_bytes: size of the machine code, if the platform reports it (0 on CPU).
      collectives: communication between devices.

    Example:
      >>> from jaxkern import performance
      >>> report = performance.MemoryReport(4000, 4000, 800, 4000, 0)
      >>> report.peak_bytes
      4800
    """

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    aliased_bytes: int
    generated_code_bytes: int
    collectives: tuple[Collective, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """Memory in use while the program runs, without scratch space of external libraries."""
        return self.argument_bytes + self.output_bytes + self.temporary_bytes - self.aliased_bytes

    def __str__(self) -> str:
        rows = [
            ("arguments", self.argument_bytes),
            ("outputs", self.output_bytes),
            ("temporary", self.temporary_bytes),
            ("aliased", -self.aliased_bytes),
            ("peak", self.peak_bytes),
            ("generated code", self.generated_code_bytes),
        ]
        lines = [f"{name:<15}{value / 1e6:>12.3f} MB" for name, value in rows]
        lines += ["collectives"] * bool(self.collectives)
        return "\n".join([*lines, *(f"  {c}" for c in self.collectives)])


def memory_report(fn: Callable[..., Any], *args: Any) -> MemoryReport:
    """Report the memory of ``fn(*args)`` on a device: arguments, outputs, temporaries and peak.

    ``args`` are arrays or ``jax.ShapeDtypeStruct``; nothing is run. On a mesh the report lists the
    collectives with the bytes of their results.

    Raises:
      TypeError: if ``fn`` cannot be compiled for the arguments.
      NotImplementedError: if the platform does not report memory.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxkern import performance
      >>> report = performance.memory_report(lambda x: x + 1, jnp.ones(1000, jnp.float32))
      >>> report.argument_bytes, report.output_bytes, report.aliased_bytes
      (4000, 4000, 0)
    """
    program = compile_program(fn, *args)
    return analyze_memory(program.compiled, find_collectives(program))


def analyze_memory(compiled: Any, collectives: tuple[Collective, ...] = ()) -> MemoryReport:
    """Return XLA's memory statistics of a compiled program."""
    sizes = compiled.memory_analysis()
    if sizes is None:
        raise NotImplementedError(
            f"the platform {jax.default_backend()!r} does not report a program's memory; expected "
            "one that supports compiled.memory_analysis(), such as cpu, gpu or tpu"
        )
    return MemoryReport(
        argument_bytes=int(sizes.argument_size_in_bytes),
        output_bytes=int(sizes.output_size_in_bytes),
        temporary_bytes=int(sizes.temp_size_in_bytes),
        aliased_bytes=int(sizes.alias_size_in_bytes),
        generated_code_bytes=int(sizes.generated_code_size_in_bytes),
        collectives=collectives,
    )


def find_collectives(program: CompiledProgram) -> tuple[Collective, ...]:
    """Return the collectives of a program in order."""
    return tuple(
        Collective(i.name, i.collective, i.bytes, count, i.op_name)
        for i, count in program.module.executed()
        if i.collective is not None
    )


# The text of a program ----------------------------------------------------------------------------

_COLLECTIVE = re.compile(
    "all-(gather|reduce|to-all)|collective-(broadcast|permute)|ragged-all-to-all|reduce-scatter"
)
# Instructions that run other computations, which are not fused into them.
_CONTROL_FLOW = ("while", "conditional", "call", "async-start")
_ARRAY = re.compile(r"\b([a-z][a-z0-9]*)\[([0-9,]*)\]")
_HEAD = re.compile(r"^\s*(?:ROOT )?%?([^\s=]+) =(?= )")
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


class HloModule:
    """A compiled program, parsed from ``compiled.as_text()``: instructions by computation."""

    def __init__(self, text: str) -> None:
        self.computations: dict[str, list[Instruction]] = {}
        self.entry: list[Instruction] = []
        header, current = "", None
        for line in text.splitlines():
            if line.startswith("HloModule"):
                header = line
            opened = _COMPUTATION.match(line)
            if opened and " = " not in line.split("{")[0]:
                current = self.entry if opened[1] else []
                self.computations[opened[2]] = current
            elif line.startswith("}"):
                current = None
            elif current is not None and (instruction := _parse(line)) is not None:
                current.append(instruction)
        alias = header.partition("input_output_alias={ ")[2].partition(" }")[0]
        self.aliased_parameters = {int(n) for n in _ALIAS.findall(alias)}

    def callees(self, instruction: Instruction) -> list[list[Instruction]]:
        """Return the computations that an instruction runs."""
        groups = [group.strip("{}").split(",") for group in _CALLED.findall(instruction.text)]
        names = [name.strip().lstrip("%") for group in groups for name in group]
        return [self.computations[name] for name in names if name in self.computations]

    def executed(
        self, computation: list[Instruction] | None = None, count: int | None = 1
    ) -> Iterator[tuple[Instruction, int | None]]:
        """Yield each instruction outside fusions and its number of executions in one run.

        The number is None within a loop of unknown length.
        """
        for instruction in self.entry if computation is None else computation:
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
        every = itertools.chain(*self.computations.values())
        targets = (_TARGET.search(i.text) for i in every if i.opcode == "custom-call")
        return Counter(match[1] for match in targets if match is not None)

    def fused(self, instruction: Instruction) -> list[Instruction]:
        """Return the instructions inside a fusion; an empty list for other instructions."""
        if instruction.opcode != "fusion":
            return []
        return [*itertools.chain(*self.callees(instruction))]

    def parameters(self) -> dict[int, Instruction]:
        """Return the entry's parameters by number; ``op_name`` is the argument's name."""
        return {int(i.operands[0]): i for i in self.entry if i.opcode == "parameter"}


def shape_bytes(shape: str) -> int:
    """Return the size in bytes of ``f32[2,3]{1,0}`` or of a tuple of such shapes."""
    total = 0
    for kind, sizes in _ARRAY.findall(shape):
        digits = re.match(r"(?:bf|f|s|u|c)(\d+)", kind)
        if kind == "pred" or digits is not None:  # not a token
            bits = 8 if digits is None else int(digits[1])
            total += (math.prod(int(n) for n in sizes.split(",") if n) * bits + 7) // 8
    return total


def _parse(line: str) -> Instruction | None:
    head = _HEAD.match(line)
    opcode = head and _OPCODE.search(line, head.end())
    if not head or not opcode:
        return None
    shape = line[head.end() : opcode.start()].strip()
    arguments = [a.strip() for a in line[opcode.end() :].partition(")")[0].split(", ")]
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
        depth += (character in "([{") - (character in ")]}")
        if (character == "," and depth == 1) or depth == 0:
            elements.append(shape[start:index])
            start = index + 1
        if depth == 0:
            break
    return elements
