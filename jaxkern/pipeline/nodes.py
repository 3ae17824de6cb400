"""The graph of a pipeline: vertices, the layout of batches, and nodes that run in Python."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import threading
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from jaxkern.core.failures import describe_exception, note
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import Order, Shard, SourceOrder
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.source import BatchSource

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Blocks

Remainder = Literal["partial", "drop", "pad"]
#: number of rows of an epoch whose length is unknown before its end
UNKNOWN = 2**60
#: number of records per call when record ids, random parameters or documents to pack are computed
#: in chunks. A call for a few records costs as much as one for a few hundred, and the arrays of a
#: thousand records fit into the CPU cache.
RECORDS_PER_CALL = 1024
#: (keys of records [N]) -> keys of a node [N]; traced and hashable
KeyDerivation = Callable[[jax.Array], jax.Array]


class Block(NamedTuple):
    """One batch inside a pipeline: its fields, and the record ids int64 [N] of its rows."""

    data: Data
    records: np.ndarray


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """Layout of the batches of an epoch at a node.

    Batch k contains the rows of the shard from k * batch_size on. `last_sequential` is the last
    node up to here whose batches depend on all earlier ones, or None.
    """

    batch_size: int
    remainder: Remainder
    seed: int
    shuffle: bool
    shard: Shard
    order: Order
    last_sequential: Vertex | None = None

    @property
    def known(self) -> bool:
        """True if the number of rows is known before the end of the epoch."""
        return self.last_sequential is None

    @functools.cached_property
    def real_rows(self) -> int:
        """Number of rows of this shard, without padding and before rows are dropped."""
        return self.order.rows_in(self.shard)

    @functools.cached_property
    def rows(self) -> int:
        """Number of rows of this shard, or UNKNOWN; equal in all shards unless "partial"."""
        size, (_, count) = self.batch_size, self.shard
        if not self.known:
            return UNKNOWN
        if self.remainder == "drop":
            return self.order.rows_in((count - 1, count)) // size * size
        if self.remainder == "pad":
            return -(-self.order.rows_in((0, count)) // size) * size
        return self.real_rows

    @property
    def batches(self) -> int:
        """Number of batches of an epoch."""
        return -(-self.rows // self.batch_size)

    @property
    def first_rows(self) -> int:
        """Number of rows of the first batch."""
        return min(self.batch_size, self.rows)

    def check_batches(self, name: str) -> None:
        """Raise ValueError if an epoch has no batch; `name` is the name of the node."""
        if self.rows == 0:
            index, count = self.shard
            raise ValueError(
                f"shard {index} of {count} of {self.order.total} records has no batch of "
                f"{self.batch_size} at {name!r} (remainder: {self.remainder}); use a smaller "
                "batch_size, fewer shards, or pad_remainder=True"
            )

    def mask_of(self, rows: range) -> np.ndarray:
        """Return bool [N]: True for rows that are not padding."""
        return np.arange(rows.start, rows.stop) < self.real_rows

    def rows_of(self, batch: int) -> range:
        """Return the rows of one batch."""
        start = batch * self.batch_size
        return range(start, min(start + self.batch_size, self.rows))

    def read_rows(self, rows: range) -> tuple[Shard, np.ndarray]:
        """Return the (shard, rows) to read for the requested rows; padding repeats the last row."""
        requested = np.arange(rows.start, rows.stop)
        if self.real_rows:
            return self.shard, np.minimum(requested, self.real_rows - 1)
        return (0, self.shard[1]), np.zeros_like(requested)  # the shard is empty


@dataclasses.dataclass(frozen=True, eq=False)
class Vertex:
    """A node and its inputs in a graph; pipelines with a common prefix share vertices."""

    node: PipelineNode
    inputs: tuple[Vertex, ...] = ()

    def ordered(self) -> list[Vertex]:
        """Return this vertex and all upstream of it, each once, inputs first."""
        vertices: dict[Vertex, None] = {}

        def visit(vertex: Vertex) -> None:
            if vertex not in vertices:
                for upstream in vertex.inputs:
                    visit(upstream)
                vertices[vertex] = None

        visit(self)
        return list(vertices)

    @property
    def sequential(self) -> bool:
        """True if a node up to this vertex is sequential."""
        return any(vertex.node.sequential for vertex in self.ordered())


class PipelineNode:
    """A step of a pipeline.

    The batches of an epoch are a pure function of their index, except those of sequential nodes.
    """

    name: str = ""
    description: str = ""  # equal for two nodes that return the same batches; stored in states
    #: where its JAX code runs: on the device when batches are delivered, or on the host in worker
    #: threads. Adjacent nodes with the same value compile into one program. None for Python code
    compiled_for: Literal["auto", "device", "host"] | None = None
    sequential: bool = False  # its batches depend on all earlier ones, see `SequentialNode`
    has_order: bool = False  # it determines the record of each row, as sources and mixtures do
    keeps_remainder: bool = False  # has an order, but does not change the remainder of its input
    fills_slots: bool = False  # `block` writes to the arrays of a ring's slot
    native: bool = False  # record producers of its `op` may replace the node
    stochastic: bool = False  # requires random keys
    stream_name: str | None = None  # stream of its keys; None for the key of the record itself
    fresh: bool = False  # the arrays of a block are not modified later, see `BatchSource.fresh`
    once: bool = False  # its records can be read only once
    batch_size: int | None = None  # None if the node does not set it
    remainder: Remainder | None = None

    def describe(self) -> str:
        """Return the description, or the name."""
        return self.description or self.name

    def summary(self) -> str:
        """Return the node's part of a pipeline's repr, without reading data."""
        return self.describe()

    def with_seed(self, seed: int) -> PipelineNode:
        """Return the node with another seed, if it has one."""
        if getattr(self, "seed", None) is None:
            return self
        node = copy.copy(self)
        vars(node)["seed"] = seed
        return node

    def remarks(self) -> Sequence[str]:
        """Return lines for `Pipeline.explain` on how the node reads its records."""
        return ()

    def after(self, vertex: Vertex) -> Vertex:
        """Return the vertex of this node, or of an equivalent one, after a vertex.

        Raises an error if the node cannot follow it.
        """
        return Vertex(self, (vertex,))

    def layout(self, inputs: Sequence[BatchLayout], remainder: Remainder) -> BatchLayout:
        """Return the layout of the node's batches; `remainder` is for nodes that set it."""
        return inputs[0]

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        """Make one batch, in a worker thread; write it to `out` if the node `fills_slots`."""
        raise NotImplementedError

    def block_spec(self, inputs: Sequence[Data], layout: BatchLayout, side: int) -> Data | None:
        """Return the shapes of the first batch of a Python node; None if they are not known.

        `side` is the `image_side` of `BatchSource.batch_spec`.
        """
        return None


def qualified_name(value: Callable[..., Any] | Any) -> str:
    """Return the name of a function or of an object's class, without addresses."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "")


def digest(text: str) -> str:
    """Return a hash of a description, eight hexadecimal digits; memory addresses are ignored."""
    return f"{zlib.crc32(re.sub(r' at 0x[0-9a-f]+', '', text).encode()):08x}"


@dataclasses.dataclass(eq=False)
class SourceNode(PipelineNode):
    """Reads the records of a batch in the order of the epoch."""

    source: BatchSource
    batch_size: int = dataclasses.field()  # required, unlike in the base class
    shuffle: bool
    seed: int
    remainder: Remainder = dataclasses.field()
    explicit_shard: tuple[int, int] | None
    arranged: Order | None = None

    name = "source"
    has_order = True
    fills_slots = True

    def __post_init__(self) -> None:
        self.fresh = self.source.fresh

    @functools.cached_property
    def shard(self) -> tuple[int, int]:
        return self.explicit_shard or (jax.process_index(), jax.process_count())

    @property
    def order(self) -> Order:
        return self.arranged or SourceOrder(len(self.source), self.seed, self.shuffle)

    def with_seed(self, seed: int) -> SourceNode:
        arranged = self.arranged and self.arranged.with_seed(seed)
        return dataclasses.replace(self, seed=seed, arranged=arranged)

    def describe(self) -> str:
        return self._with_arrangement(self.source.describe())

    def summary(self) -> str:
        return self._with_arrangement(repr(self.source))

    def _with_arrangement(self, text: str) -> str:
        return text if self.arranged is None else f"{self.arranged.describe()} of {text}"

    def remarks(self) -> Sequence[str]:
        return self.source.remarks()

    def layout(self, inputs: Sequence[BatchLayout], remainder: Remainder) -> BatchLayout:
        shuffle = self.shuffle
        return BatchLayout(self.batch_size, remainder, self.seed, shuffle, self.shard, self.order)

    def block_spec(self, inputs: Sequence[Data], layout: BatchLayout, side: int) -> Data | None:
        spec = self.source.batch_spec(layout.first_rows, side)
        if spec is None or layout.remainder != "pad":
            return spec
        if "mask" in spec:  # `block` raises for it
            return None
        return {**spec, "mask": jax.ShapeDtypeStruct((layout.first_rows,), np.bool_)}

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        layout = blocks.epoch.layouts[vertex]
        rows = layout.rows_of(batch)
        records = blocks.epoch.records(layout, rows)
        data = self.source.gather(records, None if out is None else row.without_mask(out))
        row.check_rows(data, len(records), f"{self.source!r}.gather")
        if layout.remainder == "pad":
            data = row.with_mask(data, layout.mask_of(rows))
        return Block(data, records)


class HostNode(PipelineNode):
    """A Python function of a batch of NumPy arrays, which worker threads call."""

    def __init__(self, fn: Callable[[Data], Data], name: str | None = None) -> None:
        self.fn = fn
        self.name = name or qualified_name(fn)
        self.description = f"function {qualified_name(fn)}"

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        before = blocks.block(vertex.inputs[0], batch)
        try:
            result = self.fn(row.on_host(before.data))
        except ValueError as error:
            if "read-only" in describe_exception(error):
                note(error, "the batch is shared by branches, or is JAX's: create a new array")
            raise
        row.check_rows(result, len(before.records), f"node {blocks.epoch.plan.names[vertex]!r}")
        leaves = jax.tree.map(lambda x: row.canonical(np.asarray(x)), result)
        return Block(leaves, before.records)


class Cache(PipelineNode):
    """Stores the fields of every record in memory, so that later epochs do not compute them again.

    The nodes before it must not depend on the epoch, on random draws or on other records. Pipelines
    that branch after the same `Cache` share it. A state does not contain it, so a resumed pipeline
    fills it again.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Cache
    >>> calls = []
    >>> decode = lambda batch: calls.append(0) or batch
    >>> pipe = jk.from_source({"x": [0, 1, 2]}, batch_size=1, num_workers=0) >> decode >> Cache()
    >>> epochs = [len(list(pipe)) for _ in range(2)]
    >>> len(calls) - 3 <= 1
    True
    """

    name = "cache"
    description = "Cache()"

    def __init__(self) -> None:
        self._stores: dict[int, _RecordStore] = {}  # by the upper bound of the record ids

    def after(self, vertex: Vertex) -> Vertex:
        for node in (each.node for each in vertex.ordered()):
            why = "is random, and would repeat its draws" if node.stochastic else None
            if node.sequential:
                why = "makes batches that are not known in advance"
            if why is not None:
                raise ValueError(
                    f"Cache() follows {node.name!r}, which {why}; put the cache before it"
                )
        node = copy.copy(self)
        node._stores = {}  # this pipeline has separate records
        return Vertex(node, (vertex,))

    def block_spec(self, inputs: Sequence[Data], layout: BatchLayout, side: int) -> Data | None:
        return inputs[0]

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        (upstream,) = vertex.inputs
        layout = blocks.epoch.layouts[upstream]
        bound = layout.order.record_id_bound
        store = self._stores.get(bound) or self._stores.setdefault(bound, _RecordStore(bound))
        rows = layout.rows_of(batch)
        records = blocks.epoch.records(layout, rows)
        data = store.read(records)
        if data is not None:
            masked = {"mask": layout.mask_of(rows)} if store.masked else {}
            return Block({**data, **masked}, records)
        data = row.on_host(blocks.block(upstream, batch).data)
        stored = data
        if layout.remainder == "pad" and "mask" in data:
            # Padding depends on the position in the epoch, not on the record.
            stored = row.without_mask(data)
            mask = data["mask"]
            if mask.dtype != bool or not np.array_equal(mask, layout.mask_of(rows)):
                raise ValueError(
                    "the field 'mask', which depends on the position in an epoch, was changed "
                    "before Cache(); change it after the cache"
                )
        store.write(records, stored, masked=stored is not data)
        return Block(data, records)


class _RecordStore:
    """The stored fields of records, by record; memory is allocated when records are written."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._written = np.zeros(count, bool)
        self._fields: dict[str, Any] | None = None
        self._limits: dict[str, tuple[int, int]] = {}  # (max_height, max_width) of Ragged fields
        self._lock = threading.Lock()  # also orders the values of a record and its flag
        self.masked = False  # True if batches have the field "mask" of a padded epoch

    def read(self, records: np.ndarray) -> Data | None:
        with self._lock:
            if self._fields is None or not self._written[records].all():
                return None
        fields: Data = {}
        for name, store in self._fields.items():
            if name in self._limits:
                images = [store[record] for record in records.tolist()]
                fields[name] = row.ragged_of(images, *self._limits[name])
            else:
                fields[name] = jax.tree.map(lambda values: values.take(records, axis=0), store)
        return fields

    def write(self, records: np.ndarray, data: Data, masked: bool) -> None:
        with self._lock:
            if self._fields is None:
                self.masked = masked
                self._fields = {name: self._empty(name, value) for name, value in data.items()}
        for name, value in data.items():
            store = self._fields[name]
            if name in self._limits:
                images = row.images_of(value, range(len(value)))
                for record, image in zip(records.tolist(), images, strict=True):
                    store[record] = image.copy()
            else:
                jax.tree.map(lambda values, new: values.__setitem__(records, new), store, value)
        with self._lock:
            self._written[records] = True

    def _empty(self, name: str, value: Any) -> Any:
        if row.is_ragged(value):
            self._limits[name] = value.max_height, value.max_width
            return {}
        # Untouched pages of an empty array use no memory.
        return jax.tree.map(lambda x: np.empty((self._count, *x.shape[1:]), x.dtype), value)


class Merge(PipelineNode):
    """Combines the fields of several branches into one batch; ``&`` of pipelines creates it."""

    name = "merge"

    def layout(self, inputs: Sequence[BatchLayout], remainder: Remainder) -> BatchLayout:
        first = inputs[0]
        for number, other in enumerate(inputs[1:], 1):
            if other.last_sequential is not first.last_sequential:
                raise ValueError(
                    "a node drops, adds or joins records in one branch of a merge only; put it "
                    "before the branches: base = source >> Filter(...); base & base >> ..."
                )
            for name in (field.name for field in dataclasses.fields(first)):
                one, two = getattr(first, name), getattr(other, name)
                if one != two:
                    raise ValueError(
                        f"branch 0 of a merge has {name} = {one!r} and branch {number} {two!r}; "
                        "expected the same records in the same batches"
                    )
        return first

    def block_spec(self, inputs: Sequence[Data], layout: BatchLayout, side: int) -> Data | None:
        return merged(inputs)

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        branches = [blocks.block(upstream, batch) for upstream in vertex.inputs]
        return Block(merged([branch.data for branch in branches]), branches[0].records)


def merged(branches: Sequence[Data]) -> Data:
    """Return one dict of all fields; a field in several branches must be the same object."""
    fields: Data = {}
    for number, branch in enumerate(branches):
        for name, value in branch.items():
            if name in fields and name != "mask" and _identity(fields[name]) != _identity(value):
                raise ValueError(
                    f"field {name!r} differs between the branches of a merge (again in branch "
                    f"{number}); rename it or drop it in all branches but one"
                )
            fields.setdefault(name, value)
    return fields


def _identity(field: Any) -> Any:
    """Return a value that is equal for fields that consist of the same array objects."""
    leaves, structure = jax.tree.flatten(field)
    return [*map(id, leaves)], structure
