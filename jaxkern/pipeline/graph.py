"""Nodes of a pipeline, the graph that joins them, and the layout of their batches."""

from __future__ import annotations

import copy
import dataclasses
import functools
import re
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from jaxkern.pipeline.arrangement import Order, Shard
from jaxkern.pipeline.rows import Data

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
