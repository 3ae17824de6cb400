"""What a pipeline does: where each node runs, and one record's way through it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxkern.pipeline import rows as row
from jaxkern.pipeline.combining import Combined
from jaxkern.pipeline.epoch import Epoch, PipelinePlan, Placement
from jaxkern.pipeline.graph import Batches, Vertex
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import SequentialNode


@dataclasses.dataclass(frozen=True)
class Stage:
    """A record behind one node.

    Attributes:
      name: of the node.
      node: its description.
      where: "host" for code in worker threads, "device" for JAX code on JAX's device.
      batch, row: where the record is in the stream there.
      fields: its fields: NumPy arrays without the batch's axis.
    """

    name: str
    node: str
    where: str
    batch: int
    row: int
    fields: Data

    def __str__(self) -> str:
        lines = [f"{self.name} ({self.where}; batch {self.batch}, row {self.row}): {self.node}"]
        for path, value in jax.tree_util.tree_flatten_with_path(self.fields)[0]:
            name = ".".join(str(getattr(key, "key", key)) for key in path)
            lines.append(f"  {name}: {row.described(value)} {_values(value)}")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What `Pipeline.explain` found; its str is a readable account.

    Attributes:
      record, epoch: as asked.
      stages: one for each node, in order; the last one is what the pipeline yields.
    """

    record: int
    epoch: int
    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        stages = "\n".join(map(str, self.stages))
        return f"record {self.record} in epoch {self.epoch}\n{stages}"


@dataclasses.dataclass(frozen=True)
class Overview:
    """Where the nodes of a pipeline run, and why; its str is a readable account.

    Attributes:
      nodes: (name, description, where) of each node, in order; where is "native threads", "worker
        threads" ("in order" where its batches depend on those before), "host program" for JAX on
        the CPU in worker threads, or "device program"; without workers "iterating thread" in the
        place of the first two.
      placement: where a Compose runs that was left open; None where none was.
      seconds: of a batch, median, with each place; empty where nothing was left open.
      remarks: of sources and of nodes that read in order, on how they read their records.
    """

    nodes: tuple[tuple[str, str, str], ...]
    placement: Placement | None
    seconds: dict[Placement, float]
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        width = max(len(name) for name, _, _ in self.nodes)
        lines = [f"{name:{width}}  {where}: {text}" for name, text, where in self.nodes]
        if self.placement is not None:
            times = ", ".join(f"{1e3 * s:.3g} ms on the {k}" for k, s in self.seconds.items())
            measured = f"; a batch takes {times}" if times else ""
            lines.append(f"augmentation runs on the {self.placement}{measured}")
        lines += self.remarks
        return "\n".join(lines)


def overview(plan: PipelinePlan, seconds: dict[Placement, float], workers: int) -> Overview:
    """Where each node of a plan runs with so many workers."""
    native: set[Vertex] = set()
    if workers and plan.native is not None:
        native = {plan.native.source, *plan.frontier}
    threads = "worker threads" if workers else "iterating thread"
    places = {"device": "device program", "host": "host program", None: threads}
    nodes = []
    remarks: list[str] = []
    for vertex in plan.vertices:
        if isinstance(vertex.node, SourceNode):
            remarks += vertex.node.source.remarks()
        where = "native threads" if vertex in native else places[plan.compiled.get(vertex)]
        if isinstance(vertex.node, SequentialNode):
            where = f"{threads}, in order"
            remarks += vertex.node.remarks()
        nodes.append((plan.names[vertex], vertex.node.describe(), where))
    return Overview(tuple(nodes), plan.placement, seconds, tuple(remarks))


def explain(plan: PipelinePlan, record: int, epoch: int) -> Explanation:
    """Replays the batches that hold a record, as an iteration would make them.

    Up to the first node that reads in order: in which batch behind it a record comes, if any, only
    those before tell.
    """
    vertices = [vertex for vertex in plan.vertices if plan.streams[vertex].known]
    if not vertices:
        raise ValueError(
            f"the records of {plan.vertices[0].node.describe()} come one after the other, and none "
            "can be replayed alone; iterate"
        )
    stream = plan.streams[vertices[-1]]
    numbers = stream.order.numbers
    if not 0 <= record < numbers:
        raise ValueError(f"record {record} of {numbers}; wanted 0 to {numbers - 1}")
    found = stream.order.row_of(stream.shard[1], epoch, record)
    if found is None:
        raise ValueError(f"record {record} is not among those of epoch {epoch}")
    shard, place = found
    if shard != stream.shard[0]:
        raise ValueError(
            f"record {record} belongs to shard {shard} in epoch {epoch}, and this is shard "
            f"{stream.shard[0]} of {stream.shard[1]}"
        )
    if place >= stream.rows:
        raise ValueError(
            f"record {record} is dropped in epoch {epoch}: it is row {place} of its shard, and the "
            f"full batches hold {stream.rows}"
        )
    return Explanation(record, epoch, tuple(_stages(Epoch(plan, epoch), vertices[-1], place, plan)))


def _stages(run: Batches, output: Vertex, place: int, plan: PipelinePlan) -> Iterator[Stage]:
    """A row's, behind every node up to a vertex."""
    vertices: list[Vertex] = []
    for vertex in output.ordered():
        if isinstance(vertex.node, Combined):
            # What it takes the row from has batches of its own.
            before = {v for given in vertex.inputs for v in given.ordered()}
            vertices = [v for v in vertices if v not in before]
            stream = run.stream_of(vertex)
            order: Any = stream.order
            for part in order.parts(stream.shard, run.number, np.array([place])):
                given = vertex.inputs[part.source]
                inner = run.at(given, part.shard, part.epoch)
                yield from _stages(inner, given, int(part.rows[0]), plan)
        vertices.append(vertex)
    with run.together():
        for vertex in vertices:
            batch, at = divmod(place, run.stream_of(vertex).batch_size)
            found: Any = row.row_of(row.on_host(run.block(vertex, batch).data), at)
            fields = jax.tree.map(np.array, found)  # the nodes behind may work in place
            where = "device" if plan.compiled.get(vertex) == "device" else "host"
            node = vertex.node.describe()
            yield Stage(plan.names[vertex], node, where, batch, at, fields)


def _values(value: Any) -> str:
    array = np.asarray(value)
    if array.size == 0:
        return "empty"
    if array.size <= 8:
        return f"= {array.tolist()}"
    numbers = array.astype(np.float64)
    return f"min {numbers.min():.6g}, mean {numbers.mean():.6g}, max {numbers.max():.6g}"
