"""The text of `explain()`: a graph, its critical path, and why the rest is not parallel."""

from __future__ import annotations

from jaxkern.execution.options import current_options
from jaxkern.execution.schedule import Part, Schedule, critical_path


def explanation(name: str, schedule: Schedule, strategy: str, workers: int | None) -> str:
    """A graph, its levels, its critical path, and what is not parallel, as text."""
    operations, parts = schedule.graph.operations, schedule.parts
    where = {index: number for number, part in enumerate(parts) for index in part.members}
    lines = [f"{name}: {len(operations)} operators in {len(parts)} parts, strategy {strategy!r}"]
    width = max((len(operation.name) for operation in operations), default=0)
    for operation in operations:
        needs = ", ".join(operations[i].name for i in operation.after) or "the inputs"
        lines.append(
            f"  {operation.name:{width}}  {'host' if operation.host else 'jax':4}  "
            f"part {where[operation.index]}  needs {needs}  ({operation.reason})"
        )
    for depth, level in enumerate(schedule.graph.levels()):
        lines.append(f"level {depth}: " + ", ".join(operations[i].name for i in level))
    # What is not yet timed counts as 0; the picosecond takes the longer of two equal chains.
    seconds = [part.seconds or 0.0 for part in parts]
    path = critical_path([s + 1e-12 for s in seconds], [part.after for part in parts])
    length, total = sum(seconds[i] for i in path), sum(seconds)
    chain = " -> ".join(f"{parts[i].name} {_time(parts[i])}" for i in path)
    lines.append(f"critical path: {length * 1e3:.3f} ms of {total * 1e3:.3f} ms in all: {chain}")
    lines.extend(f"not yet timed: {p.name} ({p.untimed})" for p in parts if p.seconds is None)
    lines.extend("not parallel: " + reason for reason in _limits(parts, path, strategy, workers))
    return "\n".join(lines)


def _time(part: Part) -> str:
    return "not yet timed" if part.seconds is None else f"{part.seconds * 1e3:.3f} ms"


def _limits(parts: list[Part], path: list[int], strategy: str, workers: int | None) -> list[str]:
    found = []
    options = current_options()
    if strategy == "sequential":
        found.append("everything, as the strategy is 'sequential'")
    if not options.use_parallel:
        found.append("everything, as execution_options(use_parallel=False) is in force")
    limits = [n for n in (workers, options.max_workers) if n is not None]
    if limits and min(limits) < len(parts):
        found.append(f"more than {min(limits)} parts at a time (max_workers)")
    for part in parts:
        if part.program is not None and len(part.members) > 1:
            found.append(f"{part.name}: one JAX program, which XLA schedules")
    for index in path[1:]:
        before = ", ".join(parts[i].name for i in parts[index].after)
        found.append(f"{parts[index].name}: needs the results of {before}")
    return found
