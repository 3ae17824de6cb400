"""Memory of a compiled program, and its communication between devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxkern.performance.programs import CompiledProgram, compile_program


@dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      name: name of the instruction.
      kind: such as ``"all-gather"``.
      bytes: size of its result on one device, for one execution.
      count: executions in one run of the program; None in a loop of unknown length.
      source: origin in the function, such as ``"jit(f)/mul"``.
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
      argument_bytes: size of the arguments that the program uses.
      output_bytes: size of the results.
      temporary_bytes: size of temporaries, allocated for the entire run.
      aliased_bytes: size of results that are stored in donated arguments.
      generated_code_bytes: size of the machine code, if the platform reports it (0 on CPU).
      collectives: communication between devices.
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

    Scratch space inside library calls is not included. On a mesh the report lists the collectives
    with the bytes of their results. Nothing is run.

    Args:
      fn: function, jitted or not.
      *args: arrays or ``jax.ShapeDtypeStruct``.

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
