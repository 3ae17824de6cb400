"""A pipeline with batches of another size, and what its last program takes then."""

from __future__ import annotations

import copy
from typing import Any

import jax
import numpy as np

from jaxkern.pipeline.epoch import Epoch
from jaxkern.pipeline.graph import Vertex
from jaxkern.pipeline.nodes import Rebatch, SourceNode
from jaxkern.pipeline.pipeline import Pipeline


class Resized:
    """The forms of a pipeline that differ in their batch size alone.

    Caches are shared with the pipeline that is given, and a Compose that is left open runs where it
    does there.

    Attributes:
      sharding: of its batches.
      records: of an epoch, for this process.
      workers: its worker threads.
      units_ahead: what they make ahead, at most.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        pipeline._decide()
        self._given, plan, options = pipeline, pipeline._plan, pipeline._options
        tuning = pipeline._tuning
        self.sharding, self.workers = options.sharding, tuning.workers
        self.units_ahead = tuning.ahead if tuning.workers else 0
        self.records = max(plan.stream.records // plan.stream.shard[1], 1)

    def pipeline(self, size: int) -> Pipeline:
        """The pipeline with batches of a size, without a smaller last one.

        The source's batch size changes, or that of the last `Rebatch`, which keeps what is before
        it.
        """
        built: dict[tuple[Vertex, bool], Vertex] = {}

        def again(vertex: Vertex, decides: bool) -> Vertex:
            if (vertex, decides) not in built:
                node: Any = vertex.node
                if isinstance(node, SourceNode | Rebatch):
                    node = copy.copy(node)
                    if decides:
                        node.batch_size = size
                if isinstance(node, SourceNode) and node.remainder == "partial":
                    node.remainder = "drop"
                above = decides and not isinstance(node, Rebatch)
                inputs = tuple(again(before, above) for before in vertex.inputs)
                built[vertex, decides] = Vertex(node, inputs, vertex.storage)
            return built[vertex, decides]

        made = Pipeline(again(self._given._output, True), self._given._options)
        if self._given._plan.placement is not None:
            made._replan(self._given._plan.placement)
        return made

    def last_program(self, pipeline: Pipeline, size: int) -> tuple[list[Any], Any]:
        """Shapes of what workers hand over for a batch of all processes, and what takes it.

        That is the compiled program that ends the pipeline, or None; reads one batch where none has
        been made yet.
        """
        given, plan = self._given._plan, pipeline._plan
        known = given.first_unit()
        every = 1 if self.sharding is None else jax.process_count()

        def spec(leaf: Any, divided: int) -> jax.ShapeDtypeStruct:
            # The buffer of Ragged images grows with them.
            rows = leaf.shape[0] * size // len(known.records) * every
            # As batches come, so that the first one finds its program compiled.
            placed: jax.sharding.Sharding | None = None
            if self.sharding is not None:
                kept = jax.sharding.PartitionSpec(*self.sharding.spec[:divided])
                placed = jax.sharding.NamedSharding(
                    self.sharding.mesh, kept, memory_kind=self.sharding.memory_kind
                )
            return jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype, sharding=placed)

        leaves = [spec(leaf, len(leaf.shape)) for leaf in known.joint.leaves]
        if plan.tail is None:
            return leaves, None
        records = spec(np.empty(known.records.shape, known.records.dtype), divided=1)
        joint = known.joint._replace(leaves=leaves)
        return leaves, plan.tail.compiled(joint, records, Epoch(plan, 0).key)
