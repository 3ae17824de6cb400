"""What memory a compiled program takes, and what it sends between devices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxkern.core.programs import CompiledProgram, compile_program, memory_analysis
from jaxkern.performance.collectives import (
    Collective,
    ProfilerBusyError,
    find_collectives,
    time_collectives,
)
from jaxkern.performance.hlo import HloModule


@dataclass(frozen=True)
class MemoryReport:
    """Bytes of a program on ONE device, by XLA's plan of its buffers.

    Attributes:
      argument_bytes: of its arguments (those that it uses).
      output_bytes: of its results.
      temporary_bytes: of what it needs in between, taken for the whole run.
      aliased_bytes: of results that take the place of donated arguments.
      generated_code_bytes: of machine code, where the platform tells (0 on CPU).
      collectives: what it sends between devices.
      notes: what is left out, and why.
    """

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    aliased_bytes: int
    generated_code_bytes: int
    collectives: tuple[Collective, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def peak_bytes(self) -> int:
        """All that is held while it runs; scratch that a library takes by itself is not known."""
        held = self.argument_bytes + self.output_bytes + self.temporary_bytes
        return held - self.aliased_bytes

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
        if self.collectives:
            lines += ["collectives", *(f"  {c}" for c in self.collectives)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def memory_report(
    fn: Callable[..., Any], *args: Any, time_collectives: bool = True
) -> MemoryReport:
    """What memory ``fn(*args)`` takes on a device: argument, output, temporary, aliased, peak.

    XLA's plan is exact for what XLA allocates, but for scratch inside a library's calls. On a mesh
    the collectives are listed with the bytes of their results; where the arguments are arrays the
    program is run a few times under JAX's profiler to time them. A program that donates its
    arguments is not run: it would take them away. While another profile is being recorded nothing
    is timed, and ``notes`` says so.

    Args:
      fn: jitted or not.
      *args: arrays or ``jax.ShapeDtypeStruct``.
      time_collectives: whether to run the program where it has collectives.

    Raises:
      TypeError: when ``fn`` cannot be compiled for the arguments.
      NotImplementedError: on a platform that does not tell.

    Example:
      >>> import jax.numpy as jnp
      >>> from jaxkern import performance
      >>> report = performance.memory_report(lambda x: x + 1, jnp.ones(1000, jnp.float32))
      >>> report.argument_bytes, report.output_bytes, report.aliased_bytes
      (4000, 4000, 0)
    """
    built = compile_program(fn, *args)
    found = memory_analysis(built.compiled)
    collectives, notes = measured_collectives(built, args, time_collectives)
    return MemoryReport(
        argument_bytes=int(found.argument_size_in_bytes),
        output_bytes=int(found.output_size_in_bytes),
        temporary_bytes=int(found.temp_size_in_bytes),
        aliased_bytes=int(found.alias_size_in_bytes),
        generated_code_bytes=int(found.generated_code_size_in_bytes),
        collectives=tuple(collectives),
        notes=notes,
    )


def measured_collectives(
    built: CompiledProgram, args: tuple[Any, ...], timed: bool
) -> tuple[list[Collective], tuple[str, ...]]:
    """Collectives of a program, timed where it can be run on its arguments; and notes."""
    found = find_collectives(HloModule(built.compiled.as_text() or ""))
    leaves = jax.tree.leaves(args)
    donated = any(info.donated for info in jax.tree.leaves(built.lowered.args_info))
    structs = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)
    static = jax.tree.structure((args, {})) != built.lowered.in_tree
    if not found or not timed or donated or structs or static:
        return found, ()

    def run() -> Any:
        return built.compiled(*args)

    jax.block_until_ready(run())
    try:
        return time_collectives(found, run), ()
    except ProfilerBusyError:
        note = (
            "the collectives are not timed: another profile is being recorded; call this outside it"
        )
        return found, (note,)
