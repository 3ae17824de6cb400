"""What a program sends between devices: the bytes of each collective, and its time as measured."""

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

from jaxkern.performance.hlo import HloModule

_RUNS = 3


@dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
      name: of the instruction.
      kind: such as ``"all-gather"``.
      bytes: of its result on one device, for one execution.
      count: executions in a run of the program; None in a loop of unknown length.
      source: where it comes from in the function, such as ``"jit(f)/mul"``.
      seconds: of all its executions in a run on one device, waiting for the others included: the
        median over devices and runs; None where it was not measured.
    """

    name: str
    kind: str
    bytes: int
    count: int | None
    source: str
    seconds: float | None = None

    def __str__(self) -> str:
        times = "" if self.count == 1 else f" x {'?' if self.count is None else self.count}"
        took = "" if self.seconds is None else f", {self.seconds * 1e6:.0f} us"
        return f"{self.kind} {self.name}: {self.bytes / 1e6:.3f} MB{times}{took} ({self.source})"


def find_collectives(program: HloModule) -> list[Collective]:
    """The collectives of a program, without times."""
    return [
        Collective(i.name, i.collective, i.bytes, count, i.op_name)
        for i, count in program.executed()
        if i.collective is not None
    ]


class ProfilerBusyError(RuntimeError):
    """Another profile is being recorded, and JAX records one at a time."""


def time_collectives(found: list[Collective], run: Callable[[], Any]) -> list[Collective]:
    """The same with their times, from a profile of ``run`` (which has run before).

    Raises:
      ProfilerBusyError: another profile is being recorded.
    """
    if not found:
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            jax.profiler.start_trace(folder)
        except RuntimeError as error:
            raise ProfilerBusyError(str(error)) from error
        try:
            for _ in range(_RUNS):
                jax.block_until_ready(run())
        finally:
            jax.profiler.stop_trace()
        spent = _seconds(Path(folder), {c.name for c in found})
    timed = []
    for c in found:
        # One sum for each run on each device.
        sums = spent.get(c.name, {})
        seconds = statistics.median(sums.values()) if sums else None
        timed.append(dataclasses.replace(c, seconds=seconds))
    return timed


def _seconds(folder: Path, names: set[str]) -> dict[str, dict[Any, float]]:
    # An asynchronous one is two events.
    shown = {name.replace("-start", "-done"): name for name in names} | {n: n for n in names}
    found: dict[str, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    with warnings.catch_warnings():
        # The classes of the profile's reader say on 0.12 that they have no module.
        warnings.simplefilter("ignore", DeprecationWarning)
        for path in folder.rglob("*.xplane.pb"):
            for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
                for line in plane.lines:
                    for event in line.events:
                        if event.name not in shown:
                            continue
                        about = dict(event.stats)
                        key = (about.get("run_id"), about.get("device_ordinal", plane.name))
                        found[shown[event.name]][key] += event.duration_ns * 1e-9
    return found
