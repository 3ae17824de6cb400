"""Memory of a compiled program, and its communication between devices."""

from __future__ import annotations

import dataclasses
import statistics
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxkern.core.programs import CompiledProgram, compile_program, memory_analysis
from jaxkern.performance.hlo import HloModule

_TIMED_RUNS = 3


@dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      name: name of the instruction.
      kind: such as ``"all-gather"``.
      bytes: size of its result on one device, for one execution.
      count: executions in one run of the program; None in a loop of unknown length.
      source: origin in the function, such as ``"jit(f)/mul"``.
      seconds: total time of its executions in one run on one device, including waiting for the
        other devices; the median over devices and runs, or None if it was not measured.
    """

    name: str
    kind: str
    bytes: int
    count: int | None
    source: str
    seconds: float | None = None

    def __str__(self) -> str:
        times = "" if self.count == 1 else f" x {'?' if self.count is None else self.count}"
        time = "" if self.seconds is None else f", {self.seconds * 1e6:.0f} us"
        return f"{self.kind} {self.name}: {self.bytes / 1e6:.3f} MB{times}{time} ({self.source})"


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
      notes: what was not measured, with the reason.
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
        if self.collectives:
            lines += ["collectives", *(f"  {c}" for c in self.collectives)]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def memory_report(
    fn: Callable[..., Any], *args: Any, time_collectives: bool = True
) -> MemoryReport:
    """Report the memory of ``fn(*args)`` on a device: arguments, outputs, temporaries and peak.

    XLA's figures are exact for memory that XLA allocates; scratch space inside library calls is not
    included. On a mesh the report lists the collectives with the bytes of their results. If all
    arguments are arrays, the program runs a few times under JAX's profiler to time them. A program
    that donates its arguments is not run, since it would invalidate them. While another profile is
    being recorded nothing is timed, and ``notes`` says so.

    Args:
      fn: function, jitted or not.
      *args: arrays or ``jax.ShapeDtypeStruct``.
      time_collectives: run the program if it has collectives.

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
    sizes = memory_analysis(program.compiled)
    collectives, notes = find_collectives(program, args, time_collectives)
    return MemoryReport(
        argument_bytes=int(sizes.argument_size_in_bytes),
        output_bytes=int(sizes.output_size_in_bytes),
        temporary_bytes=int(sizes.temp_size_in_bytes),
        aliased_bytes=int(sizes.alias_size_in_bytes),
        generated_code_bytes=int(sizes.generated_code_size_in_bytes),
        collectives=tuple(collectives),
        notes=notes,
    )


def find_collectives(
    program: CompiledProgram, args: tuple[Any, ...], timed: bool
) -> tuple[list[Collective], tuple[str, ...]]:
    """Return the collectives of a program, timed if it can run on its arguments, and notes."""
    collectives = [
        Collective(i.name, i.collective, i.bytes, count, i.op_name)
        for i, count in HloModule(program.compiled.as_text() or "").executed()
        if i.collective is not None
    ]
    donated = any(info.donated for info in jax.tree.leaves(program.lowered.args_info))
    structs = any(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(args))
    static = jax.tree.structure((args, {})) != program.lowered.in_tree
    if not collectives or not timed or donated or structs or static:
        return collectives, ()
    jax.block_until_ready(program.compiled(*args))
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.profiler.start_trace(folder)
        except RuntimeError:
            return collectives, (
                "the collectives are not timed, because another profile is being recorded",
            )
        try:
            for _ in range(_TIMED_RUNS):
                jax.block_until_ready(program.compiled(*args))
        finally:
            jax.profiler.stop_trace()
        seconds = _profiled_seconds(Path(folder), {c.name for c in collectives})
    return [dataclasses.replace(c, seconds=seconds.get(c.name)) for c in collectives], ()


def _profiled_seconds(folder: Path, names: set[str]) -> dict[str, float]:
    """Return the median over runs and devices of each instruction's time in a profile."""
    # An asynchronous collective has two events; the second one includes the wait.
    shown = {name.replace("-start", "-done"): name for name in names} | {n: n for n in names}
    sums: dict[str, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    with warnings.catch_warnings():
        # Python warns that the reader's classes have no __module__ (JAX 0.12).
        warnings.simplefilter("ignore", DeprecationWarning)
        for path in folder.rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                for event in (event for line in plane.lines for event in line.events):
                    if event.name in shown:
                        stats = dict(event.stats)
                        run = (stats.get("run_id"), stats.get("device_ordinal", plane.name))
                        sums[shown[event.name]][run] += event.duration_ns * 1e-9
    return {name: statistics.median(runs.values()) for name, runs in sums.items()}
