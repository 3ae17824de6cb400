"""The state of an iteration: where it is, and which pipeline it belongs to.

A pipeline is known by its options and by its nodes: Python functions by their names, operators by
their settings.
"""

from __future__ import annotations

from typing import Any, get_args

from jaxkern.pipeline.epoch import PipelinePlan, Placement

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
        "placement": plan.placement,
        "pipeline": identity(plan),
    }
    return state if plan.cut is None else {**state, "place": place}


def read_state(plan: PipelinePlan, state: Any) -> tuple[int, int, dict[str, Any] | None]:
    """(epoch, batches delivered, place) of a state; see `make_state`.

    Raises: ValueError where it is not this pipeline's.
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
    boundary = bool(state.get("finished")) or state["batch"] == 0
    differences = []
    for name in sorted({*here, *there}):
        if name == "shard" and boundary:
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
            more = "; another number of shards can resume at the end of an epoch only"
        raise ValueError(
            f"the state is of another pipeline: {'; '.join(differences)}{more}. Resume with the "
            "pipeline that made it, or start anew"
        )
    if plan.cut is not None:
        place = state.get("place")
        if not (isinstance(place, dict) or (place is None and boundary)):
            raise ValueError(
                f"the state's place is {place!r:.80} behind {batch} batches; wanted a dict, as "
                "get_state() gives it"
            )
        return epoch, batch, place
    if state.get("finished"):
        return epoch, plan.stream.batches, None
    if batch > plan.stream.batches:
        raise ValueError(
            f"the state is at batch {batch} of epoch {epoch}; an epoch has {plan.stream.batches}"
        )
    return epoch, batch, None


def _first_difference(there: list[str], here: list[str]) -> str:
    for number, (old, new) in enumerate(zip(there, here, strict=False)):
        if old != new:
            return f"node {number} is {old!r} there and {new!r} here"
    longer, where = (there, "there") if len(there) > len(here) else (here, "here")
    return (
        f"{where} only is node {min(len(there), len(here))}: {longer[min(len(there), len(here))]!r}"
    )
