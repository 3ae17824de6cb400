"""``trace``: a profile of a block of code, as files for a viewer and as a table of operations."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

import jax

from jaxkern.core.quantities import format_duration


@dataclasses.dataclass(frozen=True)
class OpTime:
    """One operation of a compiled program, over all its runs in a trace.

    Attributes:
      name, program: names of the operation, such as ``fusion.3``, and of the compiled program.
      scope: named scopes and primitive that it comes from, such as
        ``jit(step)/augment/jaxkern.image_chain.v1``; "" if the compiler created it.
      place: host or device that ran it.
      calls: number of runs.
      seconds: time in the operation itself, without nested operations, summed over all threads.

    Example:
      >>> import jaxkern as jk
      >>> op = jk.benchmarking.OpTime("fusion.3", "jit(step)/tanh", "jit_step", "host", 10, 0.02)
      >>> op.seconds / op.calls
      0.002
    """

    name: str
    scope: str
    program: str
    place: str
    calls: int
    seconds: float


@dataclasses.dataclass
class Trace:
    """The profile of `trace`, complete at the end of its block; ``str()`` is the table.

    Attributes:
      directory: profile for TensorBoard (``tensorboard --logdir DIRECTORY``).
      perfetto: file for https://ui.perfetto.dev.
      ops: all operations of compiled programs, by decreasing time.
      top: number of rows in the table.
    """

    directory: Path
    perfetto: Path | None = None
    ops: list[OpTime] = dataclasses.field(default_factory=list)
    top: int = 15

    @property
    def seconds(self) -> float:
        """Time in operations of compiled programs, summed over all threads."""
        return sum(op.seconds for op in self.ops)

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        paths = {"directory": str(self.directory), "perfetto": str(self.perfetto)}
        return paths | {"seconds": self.seconds, "ops": [dataclasses.asdict(o) for o in self.ops]}

    def __str__(self) -> str:
        if not self.ops:
            return "no operation of a compiled program ran in the trace"
        total = self.seconds
        lines = [f"{'share':>6} {'total':>9} {'calls':>7} {'per call':>9}  operation, source"]
        for op in self.ops[: self.top]:
            each, seconds = format_duration(op.seconds / op.calls), format_duration(op.seconds)
            lines.append(
                f"{op.seconds / total:>6.1%} {seconds:>9} {op.calls:>7,} {each:>9}  "
                f"{op.name:.40}, {op.scope or op.program}"
            )
        if rest := self.ops[self.top :]:
            other = sum(op.seconds for op in rest)
            lines.append(f"{other / total:>6.1%} {format_duration(other):>9} in {len(rest)} more")
        return "\n".join(lines)


@contextlib.contextmanager
def trace(
    directory: str | Path, *, top: int = 15, python: bool = False, file: TextIO | None = None
) -> Iterator[Trace]:
    """Profile a block of code with JAX's profiler and print its longest operations.

    The block must wait for its results (``jax.block_until_ready``), or they are not in the trace.
    Kernels of jaxkern appear by name, and their fallbacks in a named scope of that name.

    Args:
      directory: directory for the profile, for TensorBoard and Perfetto.
      top: number of rows of the printed table; 0 prints nothing.
      python: record every Python call too, which slows down the host.
      file: text file to print to, by default standard output.

    Raises:
      OSError: if the directory is not writable.
      RuntimeError: if another profile is being recorded.

    Example:
      >>> import tempfile, jax, jax.numpy as jnp, jaxkern as jk
      >>> product = jax.jit(lambda x: x @ x)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with jk.benchmarking.trace(folder, top=0) as recorded:
      ...         _ = product(jnp.ones((64, 64))).block_until_ready()
      >>> any("dot_general" in op.scope for op in recorded.ops)
      True
    """
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = int(python)
    # By default sessions are named by the second, so one could overwrite another.
    options.session_id = f"{datetime.datetime.now():%Y_%m_%d_%H_%M_%S_%f}"
    recorded = Trace(folder, top=top or 15)
    with jax.profiler.trace(str(folder), profiler_options=options):
        yield recorded
    written = folder / "plugins" / "profile" / options.session_id
    recorded.perfetto = next(iter(written.glob("*.trace.json.gz")), None)
    ops = (op for path in sorted(written.glob("*.xplane.pb")) for op in read_ops(path))
    recorded.ops = sorted(ops, key=lambda op: -op.seconds)
    if top > 0:
        viewers = f"open {recorded.perfetto} in https://ui.perfetto.dev, or {folder} in TensorBoard"
        print(recorded, viewers, sep="\n", file=file or sys.stdout)


def read_ops(path: Path) -> list[OpTime]:
    """Return the operations in a profile's ``.xplane.pb`` file."""
    scopes = read_scopes(path.read_bytes())
    # For events without the number of their program.
    scopes |= {(program.partition("(")[0], name): s for (program, name), s in scopes.items()}
    times: dict[tuple[str, str, str, str], list[float]] = {}
    # Python 3.11 warns that the classes of JAX 0.10 have no __module__.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                # Sums that a device's profiler adds to the events of its streams.
                if line.name.startswith(("XLA ", "Steps", "Framework", "Source")):
                    continue
                for (program, number, name), seconds in own_seconds(_spans(line.events)):
                    scope = scopes.get((f"{program}({number})" if number else program, name), "")
                    times.setdefault((name, scope, program, plane.name), []).append(seconds)
    return [OpTime(*key, len(seconds), sum(seconds)) for key, seconds in times.items()]


# Program name, number of the program in the process, and operation.
Key = tuple[str, str, str]
Span = tuple[float, float, Key]


def _spans(events: Iterable[Any]) -> Iterator[Span]:
    """Yield (begin, end, key) in nanoseconds of the events that are operations."""
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            program, number = str(stats.get("hlo_module", "")), str(stats.get("program_id", ""))
            end = event.start_ns + event.duration_ns
            yield event.start_ns, end, (program, number, str(stats["hlo_op"]))


def own_seconds(spans: Iterable[Span]) -> list[tuple[Key, float]]:
    """Return the key and time of each span of one thread, without the spans nested in it.

    >>> a, b, c = ("f", "1", "while"), ("f", "1", "call"), ("f", "1", "add")
    >>> spans = [(0, 9e9, a), (1e9, 8e9, b), (2e9, 3e9, c), (3e9, 5e9, c), (9e9, 1e10, a)]
    >>> [seconds for _, seconds in own_seconds(spans)]
    [2.0, 4.0, 1.0, 2.0, 1.0]
    """
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    own = [end - begin for begin, end, _ in ordered]
    enclosing: list[int] = []
    for i, (begin, end, _) in enumerate(ordered):
        while enclosing and ordered[enclosing[-1]][1] <= begin:
            enclosing.pop()
        if enclosing:
            own[enclosing[-1]] -= min(end, ordered[enclosing[-1]][1]) - begin
        enclosing.append(i)
    return [(key, time * 1e-9) for (_, _, key), time in zip(ordered, own, strict=True)]


# Events name a program and an instruction. The scope of an instruction (HLO's ``op_name``) is in
# the serialized programs, which the profile contains too. Both are protocol buffers; the functions
# below read the required part of their wire format, with the field numbers of openxla's
# xplane.proto and hlo.proto.

# XSpace.planes; XPlane.name, .event_metadata (a map: its entries' value); XEventMetadata.name,
# .stats; XStat.bytes_value.
_PLANES, _PLANE_NAME, _EVENT_METADATA, _MAP_VALUE, _PROGRAM, _STATS, _BYTES = 1, 2, 4, 2, 2, 5, 6
# HloProto.hlo_module, HloModuleProto.computations, HloComputationProto.instructions;
# HloInstructionProto.name, .metadata; OpMetadata.op_name.
_INSTRUCTIONS, _NAME, _METADATA, _OP_NAME = (1, 3, 2), 1, 7, 2


def read_scopes(profile: bytes) -> dict[tuple[str, str], str]:
    """Return ``{(program with its number, such as jit_f(3), instruction): scope}`` of an XSpace."""
    scopes = {}
    for plane in _fields(profile, _PLANES):
        if b"/host:metadata" in _fields(plane, _PLANE_NAME):
            for metadata in _fields(plane, _EVENT_METADATA, _MAP_VALUE):
                program = _text(metadata, _PROGRAM)
                for instruction in _fields(metadata, _STATS, _BYTES, *_INSTRUCTIONS):
                    scope = _text(instruction, _METADATA, _OP_NAME)
                    scopes[program, _text(instruction, _NAME)] = scope
    return scopes


def _text(message: bytes, *path: int) -> str:
    return b"".join(_fields(message, *path)[:1]).decode(errors="replace")


def _fields(message: bytes, *path: int) -> list[bytes]:
    """Return the values (text, bytes or messages) at a path of nested fields."""
    values, offset = [], 0
    while offset < len(message):
        tag, offset = _varint(message, offset)
        number, size = tag >> 3, {1: 8, 5: 4}.get(tag & 7, 0)  # 0: a number, 2: bytes
        if tag & 7 in (0, 2):
            size, offset = _varint(message, offset)
        if tag & 7 == 2 and number == path[0]:
            values.append(message[offset : offset + size])
        offset += size if tag & 7 else 0
    return [v for value in values for v in _fields(value, *path[1:])] if path[1:] else values


def _varint(message: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[offset]
        value |= (byte & 0x7F) << shift
        offset, shift = offset + 1, shift + 7
        if byte < 0x80:
            return value, offset
