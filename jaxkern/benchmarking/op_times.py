"""``trace``: a profile of what runs in a block, as files for a viewer and as a table."""

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

from jaxkern.benchmarking.hlo_scopes import read_scopes
from jaxkern.core.quantities import format_duration

_NANOSECOND = 1e-9


@dataclasses.dataclass(frozen=True)
class OpTime:
    """One operation of a compiled program, over all its runs in a trace.

    Attributes:
      name: in the compiled program, such as ``fusion.3``.
      scope: the named scopes and the operation that it comes from, such as
        ``jit(step)/augment/jaxkern.image_chain.v1``; "" where the compiler made it up.
      program: the compiled program's name.
      place: the host or the device that ran it.
      calls: how often it ran.
      seconds: in the operation itself, without those that ran inside it; of all threads together.
    """

    name: str
    scope: str
    program: str
    place: str
    calls: int
    seconds: float


@dataclasses.dataclass
class Trace:
    """What `trace` recorded; filled when the block ends, ``str()`` of it is the table.

    Attributes:
      directory: what TensorBoard's profiler opens: ``tensorboard --logdir DIRECTORY``.
      perfetto: the file that https://ui.perfetto.dev opens.
      ops: every operation of compiled programs, the longest first.
    """

    directory: Path
    perfetto: Path | None = None
    ops: list[OpTime] = dataclasses.field(default_factory=list)
    top: int = 15

    @property
    def seconds(self) -> float:
        """In operations of compiled programs, all threads together."""
        return sum(op.seconds for op in self.ops)

    def as_dict(self) -> dict[str, Any]:
        return {
            "directory": str(self.directory),
            "perfetto": str(self.perfetto),
            "seconds": self.seconds,
            "ops": [dataclasses.asdict(op) for op in self.ops],
        }

    def __str__(self) -> str:
        if not self.ops:
            return "no operation of a compiled program ran in the trace"
        shown, total = self.ops[: self.top], self.seconds
        width = min(40, max(len(op.name) for op in shown))
        heading = f"{'share':>6} {'total':>9} {'calls':>7} {'a call':>9}"
        lines = [f"{heading}  {'operation':<{width}}  from"]
        lines += [
            f"{100 * op.seconds / total:>5.1f}% {format_duration(op.seconds):>9} {op.calls:>7,} "
            f"{format_duration(op.seconds / op.calls):>9}  {op.name:<{width}.{width}}  "
            f"{op.scope or op.program}"
            for op in shown
        ]
        if (rest := len(self.ops) - len(shown)) > 0:
            left = total - sum(op.seconds for op in shown)
            lines.append(f"{100 * left / total:>5.1f}% {format_duration(left):>9} in {rest} more")
        return "\n".join(lines)


@contextlib.contextmanager
def trace(
    directory: str | Path, *, top: int = 15, python: bool = False, file: TextIO | None = None
) -> Iterator[Trace]:
    """Profiles the block with JAX's profiler and prints the operations that took longest.

    The block must wait for its results (``jax.block_until_ready``), or they are not in the trace.
    Kernels of jaxkern have their own names, and their pure-JAX twins the named scope of the op, as
    whatever runs under ``jax.named_scope``.

    Args:
      directory: gets the profile, for TensorBoard and Perfetto.
      top: rows of the table that is printed; 0 prints nothing.
      python: record every Python call too; slows the host's side.
      file: that is printed to, by default standard output.

    Raises:
      OSError: the directory cannot be written to.
      RuntimeError: another profile is being recorded.

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
    # By default sessions are named by the second, and one replaces another.
    options.session_id = f"{datetime.datetime.now():%Y_%m_%d_%H_%M_%S_%f}"
    recorded = Trace(folder, top=top or 15)
    try:
        jax.profiler.start_trace(str(folder), profiler_options=options)
    except RuntimeError as error:
        raise RuntimeError(f"JAX's profiler cannot start: {error}; end the other profile") from None
    try:
        yield recorded
    finally:
        jax.profiler.stop_trace()
    written = folder / "plugins" / "profile" / options.session_id
    recorded.perfetto = next(iter(written.glob("*.trace.json.gz")), None)
    profiles = sorted(written.glob("*.xplane.pb"))
    if not profiles:
        raise RuntimeError(f"JAX's profiler wrote nothing to {written}")
    for path in profiles:
        recorded.ops += read_ops(path)
    recorded.ops.sort(key=lambda op: -op.seconds)
    if top > 0:
        out = file or sys.stdout
        print(recorded, file=out)
        print(f"open {recorded.perfetto} in https://ui.perfetto.dev, or {folder} in", file=out)
        print("TensorBoard", file=out)


def read_ops(path: Path) -> list[OpTime]:
    """The operations in a profile's ``.xplane.pb``, which other tools may have written too."""
    scopes = read_scopes(path.read_bytes())
    # For events that do not say a program's number.
    of_names = {(program.partition("(")[0], name): s for (program, name), s in scopes.items()}
    found: dict[tuple[str, str, str, str], list[float]] = {}
    # JAX 0.10's classes have no __module__, of which Python 3.11 warns.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                # Sums that a device's profiler adds to what its streams show.
                if line.name.startswith(("XLA ", "Steps", "Framework", "Source")):
                    continue
                for (program, number, name), seconds in own_seconds(_spans(line.events)):
                    scope = (
                        scopes.get((f"{program}({number})", name), "")
                        if number
                        else of_names.get((program, name), "")
                    )
                    found.setdefault((name, scope, program, plane.name), []).append(seconds)
    return [OpTime(*key, len(seconds), sum(seconds)) for key, seconds in found.items()]


# A program's name and its number in the process, and the operation.
Key = tuple[str, str, str]
Span = tuple[float, float, Key]


def _spans(events: Iterable[Any]) -> list[Span]:
    """(begin, end, key) of the events that are operations of programs."""
    spans = []
    for event in events:
        stats = dict(event.stats)
        if "hlo_op" in stats:
            module, number = stats.get("hlo_module", ""), stats.get("program_id", "")
            key = (str(module), str(number), str(stats["hlo_op"]))
            spans.append((event.start_ns, event.start_ns + event.duration_ns, key))
    return spans


def own_seconds(spans: Iterable[Span]) -> list[tuple[Key, float]]:
    """Each span's key and its seconds without the spans inside it, of one thread.

    >>> loop, add = ("f", "1", "while"), ("f", "1", "add")
    >>> own_seconds([(0, 10e9, loop), (1e9, 4e9, add), (4e9, 9e9, add)])
    [(('f', '1', 'while'), 2.0), (('f', '1', 'add'), 3.0), (('f', '1', 'add'), 5.0)]
    """
    ordered = sorted(spans, key=lambda span: (span[0], -span[1]))
    own = [end - begin for begin, end, _ in ordered]
    around: list[int] = []
    for i, (begin, end, _) in enumerate(ordered):
        while around and ordered[around[-1]][1] <= begin:
            around.pop()
        if around:
            own[around[-1]] -= min(end, ordered[around[-1]][1]) - begin
        around.append(i)
    return [(key, left * _NANOSECOND) for (_, _, key), left in zip(ordered, own, strict=True)]
