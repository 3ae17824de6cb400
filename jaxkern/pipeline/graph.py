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
#: the rows of an epoch whose length is unknown before its end
UNKNOWN = 2**60
#: Records are processed this many at a time wherever a pass over an epoch is cut into pieces: their
#: numbers, their random parameters, the documents to pack. A call for a few records costs as much
#: as one for some hundred; the arrays of a thousand records stay in the cache.
RECORDS_PER_CALL = 1024
#: maps the keys of records [N] to those of a node; traced, and hashable
KeyDerivation = Callable[[jax.Array], jax.Array]


class Block(NamedTuple):
    """One batch inside a pipeline: its fields, and the records int64 [N] of its rows."""

    data: Data
    records: np.ndarray


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """How the rows of a shard form the batches of an epoch at some node: batch k holds the rows
    from k * batch_size. `last_sequential` is the last node up to here whose batches depend on all
    earlier ones, or None."""

    batch_size: int
    remainder: Remainder
    seed: int
    shuffle: bool
    shard: Shard
    order: Order
    last_sequential: Vertex | None = None

    @property
    def known(self) -> bool:
        """True if the number of rows is known before the end."""
        return self.last_sequential is None

    @functools.cached_property
    def real_rows(self) -> int:
        """Number of rows of this shard without padding, before any row is dropped."""
        return self.order.rows_in(self.shard)

    @functools.cached_property
    def rows(self) -> int:
        """Number of rows of this shard, equally many in all shards unless "partial"; or UNKNOWN."""
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
        """Raise if an epoch has no batch at the node of a name."""
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
        """Return the (shard, rows) to read for rows: padding repeats the last row."""
        requested = np.arange(rows.start, rows.stop)
        if self.real_rows:
            return self.shard, np.minimum(requested, self.real_rows - 1)
        return (0, self.shard[1]), np.zeros_like(requested)  # a shard can be empty


@dataclasses.dataclass(frozen=True, eq=False)
class Vertex:
    """A node and its inputs in a graph; pipelines with a common beginning share vertices."""

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
    """A step of a pipeline. The batches of an epoch are a pure function of their index, except
    those of sequential nodes."""

    name: str = ""
    description: str = ""  # equal for two nodes if they give the same batches; for states
    #: where its JAX code runs: on the device as batches are delivered, or on the host in worker
    #: threads; neighbours there compile into one program. None for Python code
    compiled_for: Literal["auto", "device", "host"] | None = None
    sequential: bool = False  # its batches depend on all earlier ones, see `SequentialNode`
    has_order: bool = False  # it decides which record a row is: sources and mixtures
    keeps_remainder: bool = False  # with an order, but its input drops or pads rows as without it
    fills_slots: bool = False  # `block` writes to the arrays of a ring's slot
    native: bool = False  # record producers of its `op` may do all that the node does
    stochastic: bool = False  # it needs random keys
    stream_name: str | None = None  # of its keys; None for the key of the record itself
    fresh: bool = False  # nobody writes to the arrays of a block later, see `BatchSource.fresh`
    once: bool = False  # its records can be read only once
    batch_size: int | None = None  # of a node that decides it
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
        """Return the vertex of this node, or of one that does the same there, after a vertex; raise
        if the node cannot follow it."""
        return Vertex(self, (vertex,))

    def layout(self, inputs: Sequence[BatchLayout], remainder: Remainder) -> BatchLayout:
        """Return the layout of the node's batches; `remainder` is for nodes that decide it."""
        return inputs[0]

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        """Make one batch, in a worker thread, in the arrays `out` if the node `fills_slots`."""
        raise NotImplementedError

    def block_spec(self, inputs: Sequence[Data], layout: BatchLayout, side: int) -> Data | None:
        """Return the shapes of the first batch of Python code; None if only making it shows them.
        `side` is the `image_side` of `BatchSource.batch_spec`."""
        return None


def qualified_name(value: Callable[..., Any] | Any) -> str:
    """Return the name of a function or of an object's class, without addresses."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "")


def digest(text: str) -> str:
    """Return eight hexadecimal digits of a description; memory addresses do not count."""
    return f"{zlib.crc32(re.sub(r' at 0x[0-9a-f]+', '', text).encode()):08x}"
