"""The state of an iteration: its position, and the pipeline that it belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxkern.pipeline.arrangement import PendingShards, ReshardedOrder, Span
from jaxkern.pipeline.plan import PipelinePlan

VERSION = 1


def identity(plan: PipelinePlan) -> dict[str, Any]:
    """Return a JSON-able value that is equal for pipelines that yield the same batches.

    Python functions are identified by their names, operators by their settings.
    """
    layout = plan.layouts[next(v for v in plan.vertices if not v.inputs)]
    numbers = {vertex: number for number, vertex in enumerate(plan.vertices)}
    nodes = []
    for vertex in plan.vertices:
        inputs = [numbers[upstream] for upstream in vertex.inputs]
        suffix = "" if inputs in ([], [numbers[vertex] - 1]) else f" of {inputs}"
        nodes.append(f"{vertex.node.describe()}{suffix}")
    return {
        "records": layout.order.total if layout.known else None,
        "batch_size": layout.batch_size,
        "shuffle": layout.shuffle,
        "seed": layout.seed,
        "remainder": plan.layout.remainder,
        "shard": list(layout.shard),
        "nodes": nodes,
    }


class Resumption(NamedTuple):
    """The batch at which an iteration resumes, in an epoch or in the rest of a resharded one."""

    epoch: int
    batch: int = 0
    position: dict[str, Any] | None = None
    finished: bool = False
    pending: PendingShards | None = None


def make_state(
    plan: PipelinePlan, epoch: int, batch: int, finished: bool, position: dict[str, Any] | None
) -> dict[str, Any]:
    """Return the state after the first `batch` batches of an epoch; `finished` if these are all.

    `position` is the position of the last sequential node; None without such a node, and at the
    beginning.
    """
    state = {
        "version": VERSION,
        "epoch": epoch,
        "batch": batch,
        "finished": finished,
        "rows": _delivered_rows(plan, batch, finished, position),
        "pipeline": identity(plan),
    }
    if plan.pending is not None:
        count, spans = plan.pending
        state["pending"] = {"shards": count, "spans": [list(span) for span in spans]}
    return state if plan.last_sequential is None else {**state, "position": position}


def _delivered_rows(
    plan: PipelinePlan, batch: int, finished: bool, position: dict[str, Any] | None
) -> int | None:
    """Count the delivered rows of this shard; None if a node has buffered some rows."""
    layout, last = plan.record_layout, plan.last_sequential
    if layout is None:
        return None
    if last is None:  # without the rows that are dropped at the end
        return min(batch * plan.layout.batch_size, layout.real_rows)
    if finished:
        return layout.real_rows
    if position is None:
        return 0
    node: Any = last.node
    at, origin = position["at"], position.get("origin")
    if not node.row_by_row or not isinstance(at, int) or origin is None:
        return None
    size = plan.layouts[last.inputs[0]].batch_size
    return min(at * size + int(origin), layout.real_rows)


def read_state(plan: PipelinePlan, state: Any) -> Resumption:
    """Return where a state of this shard resumes; ValueError if it is of another pipeline."""
    _check(plan, state)
    pending = _pending_of(state)
    if pending is not None and state["pipeline"]["shard"] != identity(plan)["shard"]:
        pending = None  # the epoch has ended
    epoch, batch, position = state["epoch"], state["batch"], state.get("position")
    start = Resumption(epoch, batch, position, bool(state.get("finished")), pending)
    if plan.last_sequential is not None:
        begins = start.finished or batch == 0
        if not (isinstance(position, dict) or (position is None and begins)):
            raise ValueError(f"the state's position is {position!r:.80}; expected a dict")
        return start
    batches = (plan if pending is None else plan.with_pending(pending)).layout.batches
    if start.finished:
        return start._replace(batch=batches)  # the number of shards may have changed
    if batch > batches:
        raise ValueError(f"the state is at batch {batch} of epoch {epoch}, which has {batches}")
    return start


def read_states(plan: PipelinePlan, states: Sequence[Any]) -> Resumption:
    """Return where the states of all shards resume, with any number of shards.

    Raises: ValueError unless they are of this pipeline, of the same epoch, and of all shards.
    """
    if not states:
        raise ValueError("there are no states; expected those of all shards")
    for state in states:
        _check(plan, state, ignored=("shard", "batch_size"))
    states = sorted(states, key=lambda state: tuple(state["pipeline"]["shard"]))
    shards = [tuple(state["pipeline"]["shard"]) for state in states]
    count = shards[0][1]
    expected = [(index, count) for index in range(count)]
    if shards != expected:
        missing = sorted({*expected} - {*shards})
        raise ValueError(
            f"the states are of the shards {shards}; expected each of the {count} once"
            + (f", but shard {missing[0][0]} is missing" if missing else "")
        )
    for name in ("epoch", "pending"):
        values = {str(state.get(name)) for state in states}
        if len(values) > 1:
            raise ValueError(
                f"the states have {name} {' and '.join(sorted(values))}; expected states that all "
                "shards saved at the same time"
            )
    epoch, pending = states[0]["epoch"], _pending_of(states[0])
    if all(state.get("finished") for state in states):
        batches = plan.layout.batches if plan.last_sequential is None else 0
        return Resumption(epoch, batches, finished=True)
    if pending is None and all(state["batch"] == 0 for state in states):
        return Resumption(epoch)
    if plan.record_layout is None:
        raise ValueError("a stream has no length: resume it with the same number of shards")
    order = plan.record_layout.order
    spans: list[Span] = []
    for index, state in enumerate(states):
        rows = state.get("rows")
        if not isinstance(rows, int) or rows < 0:
            raise ValueError(
                f"the state of shard {index} is between rows of a node (rows: {rows!r}); resume "
                "with the same number of shards, or at the end of an epoch"
            )
        if pending is not None:
            spans += ReshardedOrder((order,), pending).remaining_spans((index, count), rows)
        elif rows < (stop := order.rows_in((index, count))):
            spans.append(Span(index, rows, stop))
    begun = count if pending is None else pending.shards
    return Resumption(epoch, pending=PendingShards(begun, tuple(spans)))


def _pending_of(state: dict[str, Any]) -> PendingShards | None:
    value = state.get("pending")
    if value is None:
        return None
    try:
        spans = tuple(Span(*map(int, span)) for span in value["spans"])
        pending = PendingShards(int(value["shards"]), spans)
        valid = all(0 <= s.shard < pending.shards and 0 <= s.start <= s.stop for s in spans)
    except (TypeError, ValueError, KeyError):
        valid = False
    if not valid:
        raise ValueError(f"the state's pending is {value!r:.80}; expected that of get_state()")
    return pending


def _check(plan: PipelinePlan, state: Any, ignored: Sequence[str] = ()) -> None:
    """Raise ValueError if a state is of another pipeline; `ignored` options may differ."""
    if not isinstance(state, dict) or not {"version", "epoch", "batch", "pipeline"} <= set(state):
        raise ValueError(f"the state is {state!r:.80}; expected the dict of get_state()")
    if state["version"] != VERSION:  # first, because versions may differ in everything else
        raise ValueError(f"the state has version {state['version']!r}; expected {VERSION}")
    here, there = identity(plan), state["pipeline"]
    epoch, batch = state["epoch"], state["batch"]
    numbers = all(isinstance(n, int) and n >= 0 for n in (epoch, batch))
    if not (numbers and isinstance(there, dict) and isinstance(there.get("nodes"), list)):
        raise ValueError(
            f"the state is at batch {batch!r} of epoch {epoch!r} of the pipeline {there!r:.80}; "
            "expected numbers from 0, and a pipeline as get_state() describes it"
        )
    begun = batch > 0 or state.get("pending") is not None
    if state.get("finished") or not begun:
        ignored = ("shard", *ignored)  # the number of hosts may change between epochs
    names = [name for name in sorted({*here, *there}) if here.get(name) != there.get(name)]
    names = [name for name in names if name not in ignored]
    differences = [_difference(name, there.get(name), here.get(name)) for name in names]
    if "shard" in names:
        differences.append("other shards need all states: set_state([s_0, s_1, ...])")
    if names:
        raise ValueError(
            f"the state is of another pipeline: {'; '.join(differences)}. Resume with the pipeline "
            "that made it, or start from the beginning"
        )


def _difference(name: str, there: Any, here: Any) -> str:
    """Describe an option that differs; for the nodes, the first difference."""
    if name != "nodes":
        return f"{name} is {there!r} there and {here!r} here"
    for number, (old, new) in enumerate(zip(there, here, strict=False)):
        if old != new:
            return f"node {number} is {old!r} there and {new!r} here"
    longer, where = (there, "there") if len(there) > len(here) else (here, "here")
    number = min(len(there), len(here))
    return f"node {number} exists only {where}: {longer[number]!r}"
