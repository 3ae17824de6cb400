"""The state of an iteration: where it is, and which pipeline it belongs to.

A pipeline is known by its options and by its nodes: Python functions by their names, operators by
their settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, get_args

from jaxkern.pipeline.arrangement import Continuation, Span
from jaxkern.pipeline.epoch import PipelinePlan, Placement, Remains
from jaxkern.pipeline.sequential.node import SequentialNode

VERSION = 1


def identity(plan: PipelinePlan) -> dict[str, Any]:
    """What must be equal for two pipelines to give the same batches; JSON-able."""
    stream = plan.streams[next(v for v in plan.vertices if not v.inputs)]
    numbers = {vertex: number for number, vertex in enumerate(plan.vertices)}
    nodes = []
    for vertex in plan.vertices:
        inputs = [numbers[before] for before in vertex.inputs]
        behind = "" if inputs in ([], [numbers[vertex] - 1]) else f" of {inputs}"
        nodes.append(f"{vertex.node.describe()}{behind}")
    return {
        "records": stream.records if stream.known else None,
        "batch_size": stream.batch_size,
        "shuffle": stream.shuffle,
        "seed": stream.seed,
        "remainder": plan.stream.remainder,
        "shard": list(stream.shard),
        "nodes": nodes,
    }


class Resumption(NamedTuple):
    """Where an iteration goes on.

    Attributes:
      epoch, batch, place, finished: as of `make_state`.
      remains: what other shards left of the epoch, which is then what there is; None for all of it.
    """

    epoch: int
    batch: int
    place: dict[str, Any] | None
    finished: bool
    remains: Remains | None = None


def make_state(
    plan: PipelinePlan, epoch: int, batch: int, finished: bool, place: dict[str, Any] | None
) -> dict[str, Any]:
    """The state behind the first `batch` batches of an epoch.

    Args:
      finished: whether these are all.
      place: of the last sequential node; None where there is none, and at the beginning.
    """
    state = {
        "version": VERSION,
        "epoch": epoch,
        "batch": batch,
        "finished": finished,
        "rows": _rows_done(plan, batch, finished, place),
        "placement": plan.placement,
        "pipeline": identity(plan),
    }
    if plan.remains is not None:
        count, spans = plan.remains
        state["remains"] = {"shards": count, "spans": [list(span) for span in spans]}
    return state if plan.cut is None else {**state, "place": place}


def _rows_done(
    plan: PipelinePlan, batch: int, finished: bool, place: dict[str, Any] | None
) -> int | None:
    """How many rows of this shard are done with; None where a node holds something of them."""
    stream = plan.origin
    if stream is None:
        return None
    if plan.cut is None:
        return min(batch * plan.stream.batch_size, stream.real_rows)
    if finished:
        return stream.real_rows
    if place is None:
        return 0
    row_by_row = getattr(type(plan.cut.node), "flow", None) is SequentialNode.flow
    if not row_by_row or not isinstance(place["at"], int) or {"part", "pass"} & place.keys():
        return None
    size = plan.streams[plan.cut.inputs[0]].batch_size
    return min(place["at"] * size + int(place.get("row", 0)), stream.real_rows)


def read_state(plan: PipelinePlan, state: Any) -> Resumption:
    """Where a state of this shard says that the iteration goes on.

    Raises: ValueError where it is not this pipeline's.
    """
    _check(plan, state)
    epoch, batch, finished = state["epoch"], state["batch"], bool(state.get("finished"))
    remains = _remains_of(state)
    if remains is not None and state["pipeline"]["shard"] != identity(plan)["shard"]:
        remains = None  # the epoch has ended
    if plan.cut is not None:
        place = state.get("place")
        if not (isinstance(place, dict) or (place is None and (finished or batch == 0))):
            raise ValueError(
                f"the state's place is {place!r:.80} behind {batch} batches; wanted a dict, as "
                "get_state() gives it"
            )
        return Resumption(epoch, batch, place, finished, remains)
    batches = (plan if remains is None else plan.continued(remains)).stream.batches
    if finished:
        return Resumption(epoch, batches, None, True, remains)
    if batch > batches:
        raise ValueError(f"the state is at batch {batch} of epoch {epoch}; an epoch has {batches}")
    return Resumption(epoch, batch, None, False, remains)


def read_states(plan: PipelinePlan, states: Sequence[Any]) -> Resumption:
    """Where the states of all shards of an epoch say that the iteration goes on, with any shards.

    Raises: ValueError where they are not this pipeline's, not of one epoch, or not of all shards.
    """
    if not states:
        raise ValueError("there are no states; wanted those of all shards")
    for state in states:
        _check(plan, state, ignored=("shard", "batch_size"))
    shards = [tuple(state["pipeline"]["shard"]) for state in states]
    count = shards[0][1]
    missing = sorted({(index, count) for index in range(count)} - {*shards})
    if missing or len(shards) != count:
        raise ValueError(
            f"the states are of the shards {sorted(shards)}; wanted each of the {count} once"
            + (f": there is none of shard {missing[0][0]}" if missing else "")
        )
    for name in ("epoch", "remains"):
        found = {str(state.get(name)) for state in states}
        if len(found) > 1:
            raise ValueError(
                f"the states have {name} {' and '.join(sorted(found))}; wanted those that all "
                "shards saved at the same time"
            )
    epoch = states[0]["epoch"]
    if all(state.get("finished") for state in states):
        return Resumption(epoch, plan.stream.batches if plan.cut is None else 0, None, True)
    remains = _remains_of(states[0])
    if remains is None and all(state["batch"] == 0 for state in states):
        return Resumption(epoch, 0, None, False)
    if plan.origin is None:
        raise ValueError("a stream has no length that other shards could divide anew")
    whole = plan.origin.order
    before = None if remains is None else Continuation(whole, *remains)
    spans: list[Span] = []
    for (index, _), state in sorted(zip(shards, states, strict=True), key=lambda pair: pair[0]):
        rows = state.get("rows")
        if not isinstance(rows, int) or rows < 0:
            raise ValueError(
                f"the state of shard {index} is within what a node holds (rows: {rows!r}), which "
                "other shards cannot take over; resume with the same number of shards, or at the "
                "end of an epoch"
            )
        if before is not None:
            spans += before.left((index, count), rows)
        elif rows < (stop := whole.rows_in((index, count))):
            spans.append(Span(index, rows, stop))
    begun = count if remains is None else remains.shards
    return Resumption(epoch, 0, None, False, Remains(begun, tuple(spans)))


def _remains_of(state: dict[str, Any]) -> Remains | None:
    found = state.get("remains")
    if found is None:
        return None
    try:
        spans = tuple(Span(*map(int, span)) for span in found["spans"])
        remains = Remains(int(found["shards"]), spans)
        sound = all(0 <= s.shard < remains.shards and 0 <= s.start <= s.stop for s in spans)
    except (TypeError, ValueError, KeyError):
        sound = False
    if not sound:
        raise ValueError(f"the state's remains are {found!r:.80}; wanted what get_state() gives")
    return remains


def _check(plan: PipelinePlan, state: Any, ignored: Sequence[str] = ()) -> None:
    """Raises ValueError where a state is not this pipeline's.

    Args:
      ignored: what may differ.
    """
    if not isinstance(state, dict) or not {"version", "epoch", "batch", "pipeline"} <= set(state):
        raise ValueError(
            f"the state is {state!r:.80}; wanted the dict that get_state() of an iteration returned"
        )
    if state["version"] != VERSION:  # before the rest, which versions may hold in other ways
        raise ValueError(
            f"the state has version {state['version']!r}; this jaxkern reads {VERSION}"
        )
    here, there = identity(plan), state["pipeline"]
    epoch, batch = state["epoch"], state["batch"]
    whole = all(isinstance(n, int) and n >= 0 for n in (epoch, batch))
    if not (whole and isinstance(there, dict) and isinstance(there.get("nodes"), list)):
        raise ValueError(
            f"the state is at batch {batch!r} of epoch {epoch!r} of the pipeline {there!r:.80}; "
            "wanted numbers from 0, and a pipeline as get_state() describes it"
        )
    if state.get("placement") not in (None, *get_args(Placement)):  # older states have none
        raise ValueError(
            f"the state's placement is {state['placement']!r}; wanted 'device', 'host' or None, as "
            "get_state() gives it"
        )
    begun = state["batch"] > 0 or state.get("remains") is not None
    boundary = bool(state.get("finished")) or not begun
    differences = []
    for name in sorted({*here, *there}):
        if name in ignored or (name == "shard" and boundary):
            continue  # hosts may come and go between epochs
        if here.get(name) == there.get(name):
            continue
        if name == "nodes":
            differences.append(_first_difference(there.get(name, []), here[name]))
        else:
            differences.append(f"{name} is {there.get(name)!r} there and {here.get(name)!r} here")
    if differences:
        more = ""
        if any(text.startswith("shard ") for text in differences):
            more = (
                "; within an epoch, another number of shards goes on with the states of all of "
                "them: set_state([s_0, s_1, ...])"
            )
        raise ValueError(
            f"the state is of another pipeline: {'; '.join(differences)}{more}. Resume with the "
            "pipeline that made it, or start anew"
        )


def _first_difference(there: list[str], here: list[str]) -> str:
    for number, (old, new) in enumerate(zip(there, here, strict=False)):
        if old != new:
            return f"node {number} is {old!r} there and {new!r} here"
    longer, where = (there, "there") if len(there) > len(here) else (here, "here")
    return (
        f"{where} only is node {min(len(there), len(here))}: {longer[min(len(there), len(here))]!r}"
    )
