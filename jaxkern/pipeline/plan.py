"""The execution plan of a pipeline: layouts, JAX programs, and where each node runs."""

from __future__ import annotations

import copy
import dataclasses
import functools
import threading
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.arrays import aligned_copy
from jaxkern.core.backend import current_backend
from jaxkern.core.failures import note
from jaxkern.core.keys import fold_records
from jaxkern.core.threads import num_threads
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import PendingShards, ReshardedOrder
from jaxkern.pipeline.nodes import BatchLayout, KeyDerivation, Merge, SourceNode, Vertex, merged
from jaxkern.pipeline.operators import SeededProducer
from jaxkern.pipeline.rows import Data
from jaxkern.ring import RowParts

Placement = Literal["device", "host"]

_IMAGE_SIDES = (4096, 8192)  # assumed maximum sides of images of unknown size


class RecompilationWarning(UserWarning):
    """A pipeline compiled a program again because a node changed the shape of its batches."""


class WorkItem(NamedTuple):
    """The operands of a program: the batches of one or several nodes.

    An array that several batches share is stored once: the leaves of the tree of all batches are
    ``leaves[indices[0]]``, ``leaves[indices[1]]`` and so on.
    """

    leaves: list[Any]
    indices: tuple[int, ...]
    tree: Any
    records: Any  # uint32 [N, 2], high and low half of each record id
    owned: bool = False  # True if only JAX uses the memory of the NumPy arrays
    bad: int = 0  # number of records that could not be read, see `BatchSource.on_bad_record`
    filled: bool = False  # the arrays are in the slot of a ring

    @classmethod
    def of(cls, batches: Sequence[Data], records: np.ndarray, **options: Any) -> WorkItem:
        """Join batches with the records int64 [N]; arrays are compared by identity."""
        leaves, tree = jax.tree.flatten(tuple(batches))
        distinct = {id(leaf): leaf for leaf in leaves}
        index = {key: number for number, key in enumerate(distinct)}
        indices = tuple(index[id(leaf)] for leaf in leaves)
        halves = records.astype(">u8").view(">u4").reshape(-1, 2).astype(np.uint32)
        return cls(list(distinct.values()), indices, tree, halves, **options)

    def batches(self) -> tuple[Data, ...]:
        """Return the batches."""
        return self.tree.unflatten([self.leaves[i] for i in self.indices])

    def with_owned_buffers(self) -> WorkItem:
        """Return the item with copies of the NumPy arrays that something else may use."""
        if self.owned:
            return self
        leaves = [
            aligned_copy(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in self.leaves
        ]
        return self._replace(leaves=leaves, owned=True)

    def fill(self, slot: Any) -> WorkItem:
        """Copy the arrays to a ring's slot; return the item without them."""
        for target, leaf in zip(slot["leaves"], self.leaves, strict=True):
            if leaf is not target:
                np.copyto(target, leaf)
        slot["records"][...] = self.records
        return self._replace(leaves=[], records=None, filled=True)

    def is_like(self, other: WorkItem) -> bool:
        """True if both have the same tree, with arrays of the same shapes and dtypes."""
        return self[1:3] == other[1:3] and all(
            one.shape == two.shape and one.dtype == two.dtype
            for one, two in zip(self.leaves, other.leaves, strict=True)
        )

    @property
    def ragged(self) -> bool:
        """True if it has Ragged images."""
        return row.has_ragged(self.batches())

    @property
    def nbytes(self) -> int:
        """Number of bytes of all arrays."""
        leaves = [*self.leaves, self.records]
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)  # also of shapes


class NodeProgram:
    """The JAX nodes that end in the vertex `root` as one program of the batches of its `inputs`.

    `compiled` maps vertices with JAX code to where they run; `derivations` maps vertices to the
    derivation of their keys from those of the records. `compilations` counts traces, one for each
    set of shapes.
    """

    def __init__(
        self,
        root: Vertex,
        compiled: Mapping[Vertex, str],
        names: Mapping[Vertex, str],
        derivations: Mapping[Vertex, KeyDerivation],
    ) -> None:
        self._root, self._names, self._derivations = root, names, derivations
        self.where = where = compiled[root]
        region = {root}
        for vertex in reversed(root.ordered()):
            if vertex in region and compiled.get(vertex) == where:
                region.update(vertex.inputs)
        ordered = [vertex for vertex in root.ordered() if vertex in region]
        self._vertices = [vertex for vertex in ordered if compiled.get(vertex) == where]
        self.inputs = tuple(vertex for vertex in ordered if compiled.get(vertex) != where)
        self.compilations = 0
        self._seen: list[list[row.Fields]] = []
        self._lock = threading.Lock()
        self._jitted = jax.jit(self._trace, static_argnums=(1, 2))

    @property
    def name(self) -> str:
        """The names of its nodes, in order."""
        return " >> ".join(self._names[vertex] for vertex in self._vertices)

    def __call__(self, item: WorkItem, key: Any) -> Data:
        """Return the batch for the batches of `inputs` and the key data uint32 [2] of the epoch."""
        return self._jitted(*item[:4], key)

    def spec(self, item: WorkItem) -> Data:
        """Return the shapes of the batch without compiling."""

        def evaluate(leaves: list[Any], records: Any, key: Any) -> Data:
            return self._evaluate(item._replace(leaves=leaves, records=records), key)

        key = np.zeros(2, np.uint32)
        return jax.eval_shape(evaluate, item.leaves, item.records, key)

    def compiled(self, item: WorkItem, key: Any) -> Any:
        """Return the ``jax.stages.Compiled`` that a call with these shapes uses."""
        return self._jitted.lower(*item[:4], key).compile()

    def _trace(
        self, leaves: list[Any], indices: tuple[int, ...], tree: Any, records: Any, key: Any
    ) -> Data:
        item = WorkItem(leaves, indices, tree, records)
        self._count(item.batches())
        return self._evaluate(item, key)

    def _evaluate(self, item: WorkItem, key: Any) -> Data:
        records = item.records
        values: dict[Vertex, Data] = dict(zip(self.inputs, item.batches(), strict=True))
        keys: Any = None
        for vertex in self._vertices:
            batches = [values[upstream] for upstream in vertex.inputs]
            who = f"node {self._names[vertex]!r}"
            if len(batches) > 1:
                values[vertex] = merged(batches)
                continue
            node: Any = vertex.node
            node_keys = None
            if node.stochastic:
                if keys is None:
                    first = jax.random.wrap_key_data(key, impl="threefry2x32")
                    keys = fold_records(first, records[:, 0], records[:, 1])
                derive = self._derivations.get(vertex)
                node_keys = keys if derive is None else derive(keys)
            try:
                result = node.apply_batch(batches[0], node_keys)
                row.check_rows(result, records.shape[0], who)
            except Exception as error:
                note(error, "in {} of the pipeline", who)
                raise
            values[vertex] = result
        return values[self._root]

    def _count(self, batches: tuple[Data, ...]) -> None:
        fields = [row.fields_of(batch) for batch in batches]
        with self._lock:
            self.compilations += 1
            known = fields in self._seen
            before = self._seen[-1] if self._seen else fields
            self._seen.append(fields)
        changed = [
            f"{self._names[vertex]}{name}: {old}, now {new}"
            for vertex, one, other in zip(self.inputs, before, fields, strict=True)
            for name, old, new in row.differences(one, other)
        ]
        if known or not changed:
            return
        warnings.warn(
            f"the program {self.name!r} was compiled again (compilation {self.compilations}), "
            f"because the shapes of batches changed: {'; '.join(changed)}; pad or resize to one "
            "shape in the node named",
            RecompilationWarning,
            stacklevel=2,
        )


@dataclasses.dataclass(frozen=True)
class Salt:
    """Derivation of a node's keys from those of the records [N]; equal salts derive equal keys."""

    number: int

    def __call__(self, keys: jax.Array) -> jax.Array:
        return jax.vmap(lambda key: jax.random.fold_in(key, np.uint32(self.number)))(keys)


def salt_of(stream_name: str | None, occurrence: int) -> Salt | None:
    """Return the salt of the n-th stochastic node of a stream; None for the records' own keys."""
    if stream_name is None and occurrence == 0:
        return None
    # The high bit is set because transforms fold in small numbers.
    return Salt(zlib.crc32(f"{stream_name} {occurrence}".encode()) | 0x80000000)


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
        #: the last vertex whose batches depend on all earlier ones, or None
        self.last_sequential = self.layout.last_sequential
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
