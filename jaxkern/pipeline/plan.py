"""A pipeline made ready to run: names, layouts, programs, and where each node runs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections import Counter
from typing import Literal

import numpy as np

from jaxkern.core.backend import current_backend
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import PendingShards, ReshardedOrder
from jaxkern.pipeline.graph import BatchLayout, KeyDerivation, Vertex
from jaxkern.pipeline.native import NativeWork, native_work
from jaxkern.pipeline.nodes import Merge, SourceNode
from jaxkern.pipeline.program import DedupedLeaves, NodeProgram, WorkItem, salt_of
from jaxkern.pipeline.rows import Data

Placement = Literal["device", "host"]

_IMAGE_SIDES = (4096, 8192)  # assumed largest sides of images, if the side is unknown


class PipelinePlan:
    """The properties of a pipeline that are known before it runs.

    Args:
      output: the last vertex.
      placement: where "auto" nodes run. A node that follows a node on the device joins its program.

    Attributes:
      placement: as given; None if no node is "auto".
      output: the last vertex.
      vertices: all vertices, inputs first.
      names: of the vertices; unique.
      layouts: of the vertices.
      compiled: the vertices with JAX code, and where it runs.
      masks: True if a source has a field "valid" for records that it cannot read.
      last_sequential: the last vertex whose batches depend on all earlier ones, or None.
      shared: the vertices whose batches several others use.
      pending: the rest of an epoch that other shards began; None for a whole epoch.
      first: shapes of the first full work item; the others should have the same.
    """

    def __init__(self, output: Vertex, placement: Placement = "device") -> None:
        self.output = output
        self.placement: Placement | None = None
        self.vertices = output.ordered()
        self.lock = threading.Lock()
        self.names: dict[Vertex, str] = {}
        self.layouts: dict[Vertex, BatchLayout] = {}
        self.compiled: dict[Vertex, str] = {}
        self.first: WorkItem | None = None
        self.pending: PendingShards | None = None
        users = Counter(upstream for vertex in self.vertices for upstream in vertex.inputs)
        self.shared = {vertex for vertex, count in users.items() if count > 1}
        self._derivations: dict[Vertex, KeyDerivation] = {}
        self._programs: dict[Vertex, NodeProgram] = {}
        counts: Counter[str] = Counter()
        draws: Counter[str | None] = Counter()
        for vertex in self.vertices:
            node = vertex.node
            counts[node.name] += 1
            number = counts[node.name]
            self.names[vertex] = node.name if number == 1 else f"{node.name}#{number}"
            node.check_upstream(vertex.ordered()[:-1])
            self.layouts[vertex] = self._layout_of(vertex)
            where = node.compiled_for
            on_device = "device" in map(self.compiled.get, vertex.inputs)
            if where == "auto":
                self.placement = placement
                where = "device" if on_device else placement
            if isinstance(node, Merge) and on_device:
                where = "device"
            if where is not None:
                self.compiled[vertex] = where
            if node.stochastic:
                if salt := salt_of(node.stream_name, draws[node.stream_name]):
                    self._derivations[vertex] = salt
                draws[node.stream_name] += 1
        lasts = [self.layouts[v].last_sequential for v in self.inputs]
        self.last_sequential = next((last for last in lasts if last is not None), None)
        sources = (vertex.node for vertex in self.vertices if isinstance(vertex.node, SourceNode))
        self.masks = any(node.source.on_bad_record == "mask" for node in sources)

    def with_pending(self, pending: PendingShards | None) -> PipelinePlan:
        """Return the same plan for the rest of an epoch, or a whole one; it shares programs."""
        plan = copy.copy(self)
        plan.pending, plan.layouts = pending, {}
        for vertex in self.vertices:
            plan.layouts[vertex] = plan._layout_of(vertex)
        return plan

    @property
    def layout(self) -> BatchLayout:
        """The layout of the pipeline's batches."""
        return self.layouts[self.output]

    @property
    def record_layout(self) -> BatchLayout | None:
        """The last layout that says which record a row is; None if no length is known."""
        last = [vertex for vertex in self.vertices if vertex.node.has_order]
        return self.layouts[last[-1]] if last else None

    def _layout_of(self, vertex: Vertex) -> BatchLayout:
        layout = self._full_layout_of(vertex)
        inside = vertex in self._before_mixtures
        if self.pending is None or inside or not vertex.node.has_order:
            return layout
        return layout.replace(order=ReshardedOrder(layout.order, self.pending))

    def _full_layout_of(self, vertex: Vertex) -> BatchLayout:
        node, inputs = vertex.node, [self.layouts[v] for v in vertex.inputs]
        before_sequential = vertex in self._before_sequential
        if node.has_order:
            # No row is dropped before a mixture or a sequential node: the node after decides that.
            inside = vertex in self._before_mixtures
            remainder = node.remainder  # type: ignore[attr-defined]
            if before_sequential or (inside and remainder == "drop"):
                remainder = "partial"
            layout: BatchLayout = node.layout(inputs, remainder)  # type: ignore[call-arg]
            if not inside:  # there a shard of one input may be empty
                _check_batches(layout)
            return layout
        if not node.sequential:
            return node.layout(inputs)
        layout = dataclasses.replace(node.layout(inputs), last_sequential=vertex)
        # The last sequential node decides what happens to rows that do not fill a batch.
        if before_sequential:
            return dataclasses.replace(layout, remainder="partial")
        final = getattr(vertex.ordered()[0].node, "remainder", None)
        return layout if final is None else dataclasses.replace(layout, remainder=final)

    @functools.cached_property
    def _before_mixtures(self) -> set[Vertex]:
        ends = (vertex for vertex in self.vertices if vertex.node.has_order and vertex.inputs)
        return {upstream for end in ends for upstream in end.ordered()[:-1]}

    @functools.cached_property
    def _before_sequential(self) -> set[Vertex]:
        ends = (vertex for vertex in self.vertices if vertex.node.sequential)
        return {upstream for end in ends for upstream in end.ordered()[:-1]}

    @property
    def final_program(self) -> NodeProgram | None:
        """The program that ends the pipeline, which runs as batches are delivered."""
        on_device = self.compiled.get(self.output) == "device"
        return self.program(self.output) if on_device else None

    @property
    def inputs(self) -> tuple[Vertex, ...]:
        """The vertices whose batches the engine makes."""
        program = self.final_program
        return (self.output,) if program is None else program.inputs

    @functools.cached_property
    def native(self) -> NativeWork | None:
        """The work that native threads can do instead of worker threads, or None."""
        if self.last_sequential is not None:
            return None
        return native_work(self.inputs, self.compiled, self._derivations)

    def runs_natively(self, workers: int) -> bool:
        """True if native threads make the batches with a number of workers."""
        return workers > 0 and self.native is not None and current_backend() != "jax"

    def program(self, vertex: Vertex) -> NodeProgram:
        """Return the program that ends in a JAX vertex."""
        with self.lock:
            if vertex not in self._programs:
                self._programs[vertex] = NodeProgram(
                    vertex, self.compiled, self.names, self._derivations
                )
            return self._programs[vertex]

    @property
    def programs(self) -> list[NodeProgram]:
        """The programs made so far."""
        with self.lock:
            return list(self._programs.values())

    def learn(self, item: WorkItem) -> None:
        """Store the shapes of the first full work item."""
        if self.first is None and len(item.records) == min(
            self.layout.batch_size, self.layout.rows
        ):
            specs = item.joint._replace(leaves=row.spec_of(item.joint.leaves))
            self.first = WorkItem(specs, item.records)

    def known_spec(self) -> Data | None:
        """Return the shapes of a batch as sources declare them; None if only reading shows them.

        Image sizes that are unknown before the headers are read have two assumed values, so that
        shapes that depend on them are unknown.
        """
        if self.last_sequential is not None:
            return None
        try:
            first, other = (self._spec_of(self.output, side, {}) for side in _IMAGE_SIDES)
        except Exception:  # making the first batch raises it again, with the node's name
            return None
        return first if first == other else None

    def _spec_of(
        self, vertex: Vertex, image_side: int, specs: dict[Vertex, Data | None]
    ) -> Data | None:
        if vertex in specs:  # branches share arrays, and therefore the objects of their shapes
            return specs[vertex]
        program = self.program(vertex) if vertex in self.compiled else None
        inputs: list[Data] = []
        for upstream in vertex.inputs if program is None else program.inputs:
            spec = self._spec_of(upstream, image_side, specs)
            if spec is None:
                return None
            inputs.append(spec)
        layout = self.layouts[vertex]
        if program is None:
            specs[vertex] = vertex.node.block_spec(inputs, layout, image_side)
        else:
            records = np.zeros((layout.first_rows, 2), np.uint32)
            specs[vertex] = program.spec(DedupedLeaves.of(inputs), records)
        return specs[vertex]

    def spec_after(self, item: WorkItem) -> Data:
        """Return the shapes of the batch that comes of a work item."""
        program = self.final_program
        if program is None:
            return dict(row.spec_of(item.joint.batches()[0]))
        return dict(row.spec_of(program.spec(item.joint, item.records)))


def _check_batches(layout: BatchLayout) -> None:
    """Raise if an epoch has no batch."""
    if layout.rows == 0:
        index, count = layout.shard
        raise ValueError(
            f"shard {index} of {count} of {layout.records} records has no batch of "
            f"{layout.batch_size} (remainder: {layout.remainder}); use a smaller batch_size, fewer "
            "shards, or pad_remainder=True"
        )
