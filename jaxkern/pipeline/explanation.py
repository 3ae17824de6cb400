"""Explanations: where each node runs, and what each node does to one record."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from jaxkern.pipeline import rows as row
from jaxkern.pipeline.epoch import Blocks, Epoch
from jaxkern.pipeline.nodes import Vertex
from jaxkern.pipeline.plan import PipelinePlan, Placement
from jaxkern.pipeline.rows import Data


@dataclasses.dataclass(frozen=True)
class Stage:
    """A record after one node.

    Attributes:
      name: name of the node.
      node: description of the node.
      where: "host" for code in worker threads, "device" for JAX code on JAX's device.
      batch, row: index of the batch after the node, and row of the record in it.
      fields: the fields of the record: NumPy arrays without the batch axis.

    Example:
      >>> import jaxkern as jk
      >>> increment = lambda batch: {"y": batch["x"] + 1}
      >>> pipe = jk.from_source({"x": [1, 2, 3]}, batch_size=2) >> increment
      >>> last = pipe.explain(2).stages[-1]
      >>> last.batch, last.row, last.fields["y"].item()
      (1, 0, 4)
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
    """The fields of one record after each node of a pipeline; ``str`` formats them as text.

    Attributes:
      record, epoch: as requested.
      stages: one for each node, in order; the last one is what the pipeline yields.

    Example:
      >>> import jaxkern as jk
      >>> increment = lambda batch: {"y": batch["x"] + 1}
      >>> pipe = jk.from_source({"x": [1, 2, 3]}, batch_size=2) >> increment
      >>> explanation = pipe.explain(2)
      >>> [list(stage.fields) for stage in explanation.stages]
      [['x'], ['y']]
    """

    record: int
    epoch: int
    stages: tuple[Stage, ...]

    def __str__(self) -> str:
        stages = "\n".join(map(str, self.stages))
        return f"record {self.record} in epoch {self.epoch}\n{stages}"


@dataclasses.dataclass(frozen=True)
class Overview:
    """Places where the nodes of a pipeline run; ``str`` formats them as text.

    Attributes:
      nodes: (name, description, where) of each node, in order; where is "native threads", "worker
        threads" ("worker threads, in order" if its batches depend on all earlier ones), "host
        program" for JAX on the CPU in worker threads, or "device program"; without workers
        "iterating thread" instead of the first two.
      placement: where each Compose with ``on="auto"`` runs; None without such a Compose.
      remarks: lines that describe how sources and sequential nodes read their records.

    Example:
      >>> import jaxkern as jk
      >>> increment = lambda batch: {"y": batch["x"] + 1}
      >>> pipe = jk.from_source({"x": [1, 2, 3]}, batch_size=2, num_workers=2) >> increment
      >>> [where for _, _, where in pipe.explain().nodes]
      ['worker threads', 'worker threads']
    """

    nodes: tuple[tuple[str, str, str], ...]
    placement: Placement | None
    remarks: tuple[str, ...] = ()

    def __str__(self) -> str:
        width = max(len(name) for name, _, _ in self.nodes)
        lines = [f"{name:{width}}  {where}: {text}" for name, text, where in self.nodes]
        if self.placement is not None:
            lines.append(f"augmentation runs on the {self.placement}")
        return "\n".join([*lines, *self.remarks])


def overview(plan: PipelinePlan, workers: int) -> Overview:
    """Return where each node of a plan runs with `workers` worker threads."""
    natively = plan.native if plan.runs_natively(workers) else None
    native = set() if natively is None else {natively.source, *plan.inputs}
    threads = "worker threads" if workers else "iterating thread"
    places = {"device": "device program", "host": "host program", None: threads}
    nodes = []
    remarks: list[str] = []
    for vertex in plan.vertices:
        node = vertex.node
        remarks += node.remarks()
        where = "native threads" if vertex in native else places[plan.compiled.get(vertex)]
        if node.sequential:
            where = f"{threads}, in order"
        nodes.append((plan.names[vertex], node.describe(), where))
    return Overview(tuple(nodes), plan.placement, tuple(remarks))


def explain(plan: PipelinePlan, record: int, epoch: int) -> Explanation:
    """Compute a record as an iteration does, up to the first sequential node."""
    vertices = [vertex for vertex in plan.vertices if plan.layouts[vertex].known]
    if not vertices:
        name = plan.vertices[0].node.describe()
        raise ValueError(f"the records of {name} can only be read in order, by iteration")
    layout = plan.layouts[vertices[-1]]
    bound = layout.order.record_id_bound
    if not 0 <= record < bound:
        raise ValueError(f"record {record} of {bound}; expected 0 to {bound - 1}")
    located = layout.order.row_of(layout.shard[1], epoch, record)
    if located is None:
        raise ValueError(f"record {record} is not in epoch {epoch}")
    shard, position = located
    if shard != layout.shard[0]:
        raise ValueError(
            f"record {record} belongs to shard {shard} in epoch {epoch}, and this is shard "
            f"{layout.shard[0]} of {layout.shard[1]}"
        )
    if position >= layout.rows:
        raise ValueError(
            f"record {record} is dropped in epoch {epoch}: it is row {position} of its shard, and "
            f"the full batches hold {layout.rows}"
        )
    stages = _stages(Epoch(plan, epoch), vertices[-1], position)
    return Explanation(record, epoch, tuple(stages))


def _stages(epoch: Epoch, output: Vertex, position: int) -> Iterator[Stage]:
    """Yield a row after each node up to a vertex."""
    plan = epoch.plan
    vertices: list[Vertex] = []
    for vertex in output.ordered():
        if vertex.node.has_order and vertex.inputs:  # its inputs have different batches
            upstream = {v for before in vertex.inputs for v in before.ordered()}
            vertices = [v for v in vertices if v not in upstream]
            layout = epoch.layouts[vertex]
            for part in layout.order.parts(layout.shard, epoch.number, np.array([position])):
                before = vertex.inputs[part.source]
                inner = epoch.at(before, part.shard, part.epoch)
                yield from _stages(inner, before, int(part.rows[0]))
        vertices.append(vertex)
    blocks = Blocks(epoch)
    for vertex in vertices:
        batch, index = divmod(position, epoch.layouts[vertex].batch_size)
        record = row.row_of(row.on_host(blocks.block(vertex, batch).data), index)
        fields = jax.tree.map(np.array, record)  # later nodes may change arrays in place
        where = "device" if plan.compiled.get(vertex) == "device" else "host"
        yield Stage(plan.names[vertex], vertex.node.describe(), where, batch, index, fields)


def _values(value: Any) -> str:
    array = np.asarray(value)
    if array.size == 0:
        return "empty"
    if array.size <= 8:
        return f"= {array.tolist()}"
    numbers = array.astype(np.float64)
    return f"min {numbers.min():.6g}, mean {numbers.mean():.6g}, max {numbers.max():.6g}"
