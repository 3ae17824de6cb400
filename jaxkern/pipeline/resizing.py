"""A pipeline with batches of another size, and the input of its last program."""

from __future__ import annotations

import copy
from typing import Any

import jax
import numpy as np

from jaxkern.pipeline.epoch import Epoch, first_item
from jaxkern.pipeline.graph import Vertex
from jaxkern.pipeline.nodes import Rebatch, SourceNode
from jaxkern.pipeline.pipeline import Pipeline


class Resized:
    """The variants of a pipeline that differ in their batch size alone; they share its caches.

    Attributes:
      sharding: of its batches.
      records: number of records of an epoch, for this process.
      workers: number of worker threads.
      units_ahead: maximum number of batches that they make ahead.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        plan, options, tuning = pipeline._plan, pipeline._options, pipeline._tuning
        self._pipeline = pipeline
        self.sharding, self.workers = options.sharding, tuning.workers
        self.units_ahead = tuning.ahead if tuning.workers else 0
        self.records = max(plan.layout.records // plan.layout.shard[1], 1)

    def pipeline(self, size: int) -> Pipeline:
        """Return the pipeline with batches of a size, without a smaller last one.

        The source's batch size changes, or that of the last `Rebatch`.
        """
        built: dict[tuple[Vertex, bool], Vertex] = {}

        def rebuild(vertex: Vertex, decides: bool) -> Vertex:
            if (vertex, decides) not in built:
                node: Any = vertex.node
                if isinstance(node, SourceNode | Rebatch):
                    node = copy.copy(node)
                    if decides:
                        node.batch_size = size
                if isinstance(node, SourceNode) and node.remainder == "partial":
                    node.remainder = "drop"
                above = decides and not isinstance(node, Rebatch)
                inputs = tuple(rebuild(upstream, above) for upstream in vertex.inputs)
                built[vertex, decides] = Vertex(node, inputs, vertex.storage)
            return built[vertex, decides]

        return Pipeline(rebuild(self._pipeline._output, True), self._pipeline._options)

    def last_program(self, pipeline: Pipeline, size: int) -> tuple[list[Any], Any]:
        """Return the shapes of a work item of all processes, and the compiled program that takes
        it, or None; read one batch if none has been made yet."""
        plan = pipeline._plan
        item = first_item(self._pipeline._plan)
        processes = 1 if self.sharding is None else jax.process_count()

        def spec(leaf: Any, divided: int) -> jax.ShapeDtypeStruct:
            # The buffer of Ragged images grows with them.
            rows = leaf.shape[0] * size // len(item.records) * processes
            # With the sharding of batches, so that the first one finds its program compiled.
            sharding: jax.sharding.Sharding | None = None
            if self.sharding is not None:
                axes = jax.sharding.PartitionSpec(*self.sharding.spec[:divided])
                sharding = jax.sharding.NamedSharding(
                    self.sharding.mesh, axes, memory_kind=self.sharding.memory_kind
                )
            return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=sharding)

        leaves = [spec(leaf, len(leaf.shape)) for leaf in item.joint.leaves]
        if plan.final_program is None:
            return leaves, None
        records = spec(np.empty(item.records.shape, item.records.dtype), divided=1)
        joint = item.joint._replace(leaves=leaves)
        return leaves, plan.final_program.compiled(joint, records, Epoch(plan, 0).key)
