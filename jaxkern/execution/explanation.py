"""The text of `explain()`: a graph, its critical path, and why the rest is not parallel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jaxkern.execution.graph import longest_path
from jaxkern.execution.options import current_options

if TYPE_CHECKING:
    from jaxkern.execution.plan import Part, Plan


def explanation(name: str, plan: Plan, strategy: str, workers: int | None) -> str:
    """The graph of a plan, its levels, its critical path, and what is not parallel, as text."""
    nodes, parts = plan.graph.nodes, plan.parts
    where = {node.index: number for number, part in enumerate(parts) for node in part.nodes}
    lines = [f"{name}: {len(nodes)} operators in {len(parts)} parts, strategy {strategy!r}"]
    width = max((len(node.name) for node in nodes), default=0)
    for node in nodes:
        needs = ", ".join(nodes[i].name for i in node.after) or "the inputs"
        kind = plan.kinds[node.index] or "unknown"
        lines.append(
            f"  {node.name:{width}}  {kind:7} part {where[node.index]}  needs {needs}"
            f"  ({plan.reasons[node.index]})"
        )
    for depth, level in enumerate(plan.graph.levels()):
        lines.append(f"level {depth}: " + ", ".join(nodes[i].name for i in level))
    # What is not yet timed counts as 0; the picosecond takes the longer of two equal chains.
    seconds = [part.seconds or 0.0 for part in parts]
    path = longest_path([s + 1e-12 for s in seconds], [part.after for part in parts])
    length, total = sum(seconds[i] for i in path), sum(seconds)
    chain = " -> ".join(f"{parts[i].name} {_time(parts[i])}" for i in path)
    lines.append(f"critical path: {length * 1e3:.3f} ms of {total * 1e3:.3f} ms in all: {chain}")
    lines.extend(f"not yet timed: {p.name} ({p.untimed})" for p in parts if p.seconds is None)
    lines.extend("not parallel: " + reason for reason in _limits(plan, path, strategy, workers))
    return "\n".join(lines)


def _time(part: Part) -> str:
    return "not yet timed" if part.seconds is None else f"{part.seconds * 1e3:.3f} ms"


def _limits(plan: Plan, path: list[int], strategy: str, workers: int | None) -> list[str]:
    parts, found = plan.parts, []
    options = current_options()
    if strategy == "sequential":
        found.append("everything, as the strategy is 'sequential'")
    if not options.use_parallel:
        found.append("everything, as execution_options(use_parallel=False) is in force")
    limits = [n for n in (workers, options.max_workers) if n is not None]
    if limits and min(limits) < len(parts):
        found.append(f"more than {min(limits)} parts at a time (max_workers)")
    for part in parts:
        if part.program is not None and len(part.nodes) > 1:
            found.append(f"{part.name}: one JAX program, which XLA schedules")
    for index in path[1:]:
        before = ", ".join(parts[i].name for i in parts[index].after)
        found.append(f"{parts[index].name}: needs the results of {before}")
    if not plan.grouped:
        found.append("JAX operators are compiled together from the next call on")
    return found
