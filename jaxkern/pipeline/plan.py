"""The execution plan of a pipeline: names, layouts, programs, and where each node runs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.core.threads import num_threads
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import PendingShards, ReshardedOrder
from jaxkern.pipeline.graph import BatchLayout, KeyDerivation, Vertex
from jaxkern.pipeline.nodes import Merge, SourceNode
from jaxkern.pipeline.operators import SeededProducer
from jaxkern.pipeline.program import NodeProgram, WorkItem, salt_of
from jaxkern.pipeline.rows import Data
from jaxkern.ring import RowParts

Placement = Literal["device", "host"]

_IMAGE_SIDES = (4096, 8192)  # assumed maximum sides of images of unknown size


class NativeWork(NamedTuple):
    """The work that native threads do instead of worker threads."""

    source: Vertex  # the only one that reads records
    arrays: Mapping[str, np.ndarray | RowParts]  # of encoded images, where they are stored
    producers: dict[str, SeededProducer]  # by field; the other fields are copied
    masks: bool = False  # a field "valid" says which records the producers could make
    residual: NodeProgram | None = None  # for the remaining fields, when a batch is delivered
    most_threads: int = 1  # as many as the kernels use; reading the limits takes 0.2 ms


def native_work(plan: PipelinePlan) -> NativeWork | None:
    """Return the native work of a plan; None if its batches require Python or a JAX program."""
    if plan.last_sequential is not None or len(plan.inputs) != 1 or registry.module("cpu") is None:
        return None
    (last,) = plan.inputs
    source = last if isinstance(last.node, SourceNode) else last.inputs[0]
    if not isinstance(source.node, SourceNode):
        return None
    if last is not source and not (last.node.native and plan.compiled.get(last) == "host"):
        return None  # before image headers are read
    reader = source.node.source
    rows, encoded = _row_arrays(source.node), reader.encoded_images()
    if rows is None or not (rows or encoded):
        return None
    masks = reader.on_bad_record == "mask"
    if last is source:
        if encoded or masks:
            return None
        return NativeWork(source, rows, {}, most_threads=num_threads())
    fields: dict[str, jax.ShapeDtypeStruct] = {
        name: jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for name, array in rows.items()
    }
    node: Any = copy.copy(last.node)
    producers = node.op.record_producer({**fields, **encoded}, plan.derivations.get(last))
    # Only producers decode images.
    if producers is None or encoded.keys() - producers.keys() or (masks and not encoded):
        return None
    inputs_of_producers = [part for k in producers.keys() & rows.keys() for part in _parts(rows[k])]
    if not all(part.flags.aligned for part in inputs_of_producers):
        return None
    arrays = {**rows, **{name: images.ranges for name, images in encoded.items()}}
    residual = None
    node.op = node.op.residual(fields)
    if node.op is not None:
        vertex = Vertex(node, (source,))
        keys = {vertex: plan.derivations[last]} if last in plan.derivations else {}
        names = {source: source.node.name, vertex: node.name}
        residual = NodeProgram(vertex, {vertex: "host"}, names, keys)
    return NativeWork(source, arrays, producers, masks, residual, num_threads())


def _row_arrays(node: SourceNode) -> Mapping[str, np.ndarray | RowParts] | None:
    """Return the arrays of a source if native threads can copy their rows."""
    arrays = node.source.row_arrays()
    if arrays is None or (node.remainder == "pad" and "mask" in arrays):
        return None
    for array in arrays.values():
        for part in _parts(array):
            if not part.dtype.isnative or (part.size and not part[:1].flags.c_contiguous):
                return None
    return arrays


def _parts(array: np.ndarray | RowParts) -> Sequence[np.ndarray]:
    return array.arrays if isinstance(array, RowParts) else (array,)


class PipelinePlan:
    """The properties of a pipeline that are known before it runs.

    `placement` is where "auto" nodes run. A node that follows a node on the device joins its
    program.
    """

    def __init__(self, output: Vertex, placement: Placement = "device") -> None:
        self.output = output
        self.placement: Placement | None = None  # None if no node is "auto"
        self.vertices = output.ordered()  # inputs first
        self.names: dict[Vertex, str] = {}  # unique
        self.compiled: dict[Vertex, str] = {}  # where vertices with JAX code run
        #: shapes of the first full work item; the others should have the same
        self.first: WorkItem | None = None
        #: the rest of an epoch interrupted with other shards; None for a whole epoch
        self.pending: PendingShards | None = None
        users = Counter(upstream for vertex in self.vertices for upstream in vertex.inputs)
        #: vertices whose batches several other vertices use
        self.shared = {vertex for vertex, count in users.items() if count > 1}
        #: derivations of the keys of vertices from those of the records, if they differ
        self.derivations: dict[Vertex, KeyDerivation] = {}
        self._lock = threading.Lock()
        self._programs: dict[Vertex, NodeProgram] = {}
        counts: Counter[str] = Counter()
        draws: Counter[str | None] = Counter()
        for vertex in self.vertices:
            node = vertex.node
            counts[node.name] += 1
            number = counts[node.name]
            self.names[vertex] = node.name if number == 1 else f"{node.name}#{number}"
            where: str | None = node.compiled_for
            if where == "auto":
                self.placement = where = placement
            after_device = "device" in map(self.compiled.get, vertex.inputs)
            if after_device and (node.compiled_for == "auto" or isinstance(node, Merge)):
                where = "device"
            if where is not None:
                self.compiled[vertex] = where
            if node.stochastic:
                if salt := salt_of(node.stream_name, draws[node.stream_name]):
                    self.derivations[vertex] = salt
                draws[node.stream_name] += 1
        self.layouts = self._all_layouts()
        # The last vertex whose batches depend on all earlier ones, or None:
        lasts = [self.layouts[v].last_sequential for v in self.inputs]
        self.last_sequential = next((last for last in lasts if last is not None), None)
        sources = (vertex.node for vertex in self.vertices if isinstance(vertex.node, SourceNode))
        #: True if a source has a field "valid" for records that it cannot read
        self.masks = any(node.source.on_bad_record == "mask" for node in sources)

    def with_pending(self, pending: PendingShards | None) -> PipelinePlan:
        """Return a plan for the rest of an epoch, or for a whole one; it shares the programs."""
        plan = copy.copy(self)
        plan.pending = pending
        plan.layouts = plan._all_layouts()
        return plan

    @property
    def layout(self) -> BatchLayout:
        """The layout of the pipeline's batches."""
        return self.layouts[self.output]

    @property
    def record_layout(self) -> BatchLayout | None:
        """The last layout that maps rows to records; None if no length is known."""
        last = [vertex for vertex in self.vertices if vertex.node.has_order]
        return self.layouts[last[-1]] if last else None

    def _all_layouts(self) -> dict[Vertex, BatchLayout]:
        def before(ends: list[Vertex]) -> set[Vertex]:
            return {vertex for end in ends for vertex in end.ordered()[:-1]}

        ordered = [v for v in self.vertices if v.node.has_order]
        before_order = before(ordered)
        before_mixture = before([v for v in ordered if not v.node.keeps_remainder])
        before_sequential = before([v for v in self.vertices if v.node.sequential])
        layouts: dict[Vertex, BatchLayout] = {}
        for vertex in self.vertices:
            node = vertex.node
            remainder = node.remainder or vertex.ordered()[0].node.remainder or "partial"
            # No row is dropped before a mixture or a sequential node, which drops rows itself.
            if vertex in before_sequential or (vertex in before_mixture and remainder == "drop"):
                remainder = "partial"
            layout = node.layout([layouts[v] for v in vertex.inputs], remainder)
            if node.has_order and vertex not in before_order:  # a shard may be empty before it
                layout.check_batches(node.name)
                if self.pending is not None:
                    order = ReshardedOrder((layout.order,), self.pending)
                    layout = dataclasses.replace(layout, order=order)
            if node.sequential:
                layout = dataclasses.replace(layout, last_sequential=vertex)
            layouts[vertex] = layout
        return layouts

    @property
    def final_program(self) -> NodeProgram | None:
        """The last program of the pipeline, which runs when batches are delivered."""
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
        return native_work(self)

    def runs_natively(self, workers: int) -> bool:
        """True if native threads make the batches, with `workers` worker threads."""
        return workers > 0 and self.native is not None and current_backend() != "jax"

    def program(self, vertex: Vertex) -> NodeProgram:
        """Return the program whose last node is a JAX vertex."""
        with self._lock:
            if vertex not in self._programs:
                program = NodeProgram(vertex, self.compiled, self.names, self.derivations)
                self._programs[vertex] = program
            return self._programs[vertex]

    @property
    def compilations(self) -> dict[str, int]:
        """Number of compilations of each program, by name."""
        with self._lock:
            return {program.name: program.compilations for program in self._programs.values()}

    def learn(self, item: WorkItem) -> None:
        """Store the shapes of the first full work item."""
        if self.first is None and len(item.records) == self.layout.first_rows:
            self.first = item._replace(leaves=row.spec_of(item.leaves))

    def known_spec(self) -> Data | None:
        """Return the shapes of a batch as declared by sources; None if they must be read."""
        if self.last_sequential is not None:
            return None
        # Two values are assumed for image sizes that only headers contain. Shapes that differ
        # between the two are unknown.
        try:
            first, other = (self._spec_of(self.output, side, {}) for side in _IMAGE_SIDES)
        except Exception:  # raised again with the node's name when the first batch is made
            return None
        return first if first == other else None

    def _spec_of(self, vertex: Vertex, side: int, specs: dict[Vertex, Data | None]) -> Data | None:
        if vertex in specs:  # branches share arrays, so they share the objects that describe shapes
            return specs[vertex]
        program = self.program(vertex) if vertex in self.compiled else None
        inputs: list[Data] = []
        for upstream in vertex.inputs if program is None else program.inputs:
            spec = self._spec_of(upstream, side, specs)
            if spec is None:
                return None
            inputs.append(spec)
        layout = self.layouts[vertex]
        if program is None:
            specs[vertex] = vertex.node.block_spec(inputs, layout, side)
        else:
            records = np.zeros(layout.first_rows, np.int64)
            specs[vertex] = program.spec(WorkItem.of(inputs, records))
        return specs[vertex]

    def spec_after(self, item: WorkItem) -> Data:
        """Return the shapes of the batch computed from a work item."""
        program = self.final_program
        batch = item.batches()[0] if program is None else program.spec(item)
        return dict(row.spec_of(batch))
