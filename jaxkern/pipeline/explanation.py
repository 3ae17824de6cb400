"""One record's way through a pipeline, stage by stage."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from jaxkern.pipeline import rows as row
from jaxkern.pipeline.epoch import Epoch, Plan
from jaxkern.pipeline.rows import Data


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


def explain(plan: Plan, record: int, epoch: int) -> Explanation:
    """Replays the batches that hold a record, as an iteration would make them."""
    stream = plan.stream
    if not 0 <= record < stream.records:
        raise ValueError(f"record {record} of {stream.records}; wanted 0 to {stream.records - 1}")
    run = Epoch(plan, epoch)
    shard, place = run.order(stream).row_of(record)
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
    stages = []
    with run.together():
        for vertex in plan.vertices:
            batch, at = divmod(place, plan.streams[vertex].batch_size)
            found: Any = row.row_of(row.on_host(run.block(vertex, batch).data), at)
            fields = jax.tree.map(np.array, found)  # the nodes behind may work in place
            where = "device" if plan.compiled.get(vertex) == "device" else "host"
            node = vertex.node.describe()
            stages.append(Stage(plan.names[vertex], node, where, batch, at, fields))
    return Explanation(record, epoch, tuple(stages))


def _values(value: Any) -> str:
    array = np.asarray(value)
    if array.size == 0:
        return "empty"
    if array.size <= 8:
        return f"= {array.tolist()}"
    numbers = array.astype(np.float64)
    return f"min {numbers.min():.6g}, mean {numbers.mean():.6g}, max {numbers.max():.6g}"
