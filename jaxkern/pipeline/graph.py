"""Nodes of a pipeline, the graph that joins them, and the layout of their batches."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from jaxkern.pipeline.arrangement import Order, Shard
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.source import EncodedImages
from jaxkern.ring import RecordProducer

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch

Remainder = Literal["partial", "drop", "pad"]
#: the rows of an epoch whose length is unknown before its end
UNKNOWN = 2**60
#: Records are processed this many at a time wherever a pass over an epoch is cut into pieces: their
#: numbers, their random parameters, the documents to pack. A call for a few records costs as much
#: as one for some hundred; the arrays of a thousand records stay in the cache.
RECORDS_PER_CALL = 1024
#: maps the keys of records [N] to those of a node; traced, and hashable
KeyDerivation = Callable[[jax.Array], jax.Array]


class SeededProducer(Protocol):
    """Factory of record producers: ``image.ChainProducer`` or ``EncodedProducer``."""

    def at(self, seed: int, epoch: int) -> RecordProducer:
        """Return the producer for a seed and an epoch."""


class Block(NamedTuple):
    """One batch inside a pipeline: its fields, and the records int64 [N] of its rows."""

    data: Data
    records: np.ndarray


@dataclasses.dataclass(frozen=True)
class BatchLayout:
    """How the rows of a shard form the batches of an epoch at some node.

    Batch k holds the rows from k * batch_size.

    Attributes:
      records: number of records over all shards.
      rows: number of rows of this shard, with padding and without dropped rows; `UNKNOWN` if only
        the end of the epoch shows it.
      batch_size: rows of a batch; the last batch is smaller if remainder is "partial".
      remainder: what happens to rows that do not fill a batch.
      seed: of random draws for records.
      shuffle: True if the source is shuffled.
      shard: (index, count).
      order: maps rows to records.
      real_rows: number of rows of this shard without padding, before any row is dropped.
      last_sequential: the last node up to here whose batches depend on all earlier ones; None if
        every batch can be made by its index.
    """

    records: int
    rows: int
    batch_size: int
    remainder: Remainder
    seed: int
    shuffle: bool
    shard: Shard
    order: Order
    real_rows: int
    last_sequential: Vertex | None = None

    @classmethod
    def over(
        cls,
        order: Order,
        batch_size: int,
        remainder: Remainder,
        seed: int,
        shuffle: bool,
        shard: Shard,
    ) -> BatchLayout:
        """Return the layout of all rows of a shard, equally many in all shards unless "partial"."""
        real = rows = order.rows_in(shard)
        if remainder == "drop":
            rows = order.rows_in((shard[1] - 1, shard[1])) // batch_size * batch_size
        elif remainder == "pad":
            rows = -(-order.rows_in((0, shard[1])) // batch_size) * batch_size
        return cls(order.total, rows, batch_size, remainder, seed, shuffle, shard, order, real)

    def replace(self, shard: Shard | None = None, order: Order | None = None) -> BatchLayout:
        """Return the same layout of another shard or order."""
        order, shard = order or self.order, shard or self.shard
        options = self.batch_size, self.remainder, self.seed, self.shuffle
        return BatchLayout.over(order, *options, shard)

    @property
    def known(self) -> bool:
        """True if the number of rows is known before the end."""
        return self.rows < UNKNOWN

    @property
    def batches(self) -> int:
        """Number of batches of an epoch."""
        return -(-self.rows // self.batch_size)

    @property
    def first_rows(self) -> int:
        """Number of rows of the first batch."""
        return min(self.batch_size, self.rows)

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
    storage: dict[str, Any] = dataclasses.field(default_factory=dict)

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


class PipelineNode:
    """A step of a pipeline. The batches of an epoch are a pure function of their index, except
    those of sequential nodes.

    Attributes:
      name: in messages, states and explanations.
      compiled_for: where its JAX code runs: on the "device", as batches are delivered, on the
        "host", in worker threads, or "auto"; neighbours there compile into one program. None for
        Python code.
      sequential: True if its batches depend on all earlier ones, see `SequentialNode`.
      has_order: True if it decides which record a row is: sources and mixtures.
      fills_slots: True if `block` writes to the arrays of a ring's slot.
      native: True if `record_producer` may return producers that do all that the node does.
      stochastic: True if the node needs random keys.
      stream_name: the random stream of its keys; None for the key of the record itself.
      fresh: True if nobody writes to the arrays of a block later, see `BatchSource.fresh`.
    """

    name: str = ""
    compiled_for: Literal["auto", "device", "host"] | None = None
    sequential: bool = False
    has_order: bool = False
    fills_slots: bool = False
    native: bool = False

    @property
    def stochastic(self) -> bool:
        return False

    @property
    def stream_name(self) -> str | None:
        return None

    @property
    def fresh(self) -> bool:
        return False

    def describe(self) -> str:
        """Return a text that is equal for two nodes if they give the same batches; for states."""
        raise NotImplementedError

    def summary(self) -> str:
        """Return the node's part of a pipeline's repr, without reading data."""
        return self.describe()

    def layout(self, inputs: Sequence[BatchLayout]) -> BatchLayout:
        """Return the layout of the node's batches."""
        return inputs[0]

    def specialize_for(self, upstream: Vertex) -> PipelineNode:
        """Return the node to use after a vertex, perhaps another one if lengths are unknown."""
        return self

    def check_upstream(self, upstream: Sequence[Vertex]) -> None:
        """Raise if the node cannot follow these vertices, all that are upstream."""

    def block(self, epoch: Epoch, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        """Make one batch, in a worker thread, in the arrays `out` if the node `fills_slots`."""
        raise NotImplementedError

    def block_spec(
        self, inputs: Sequence[Data], layout: BatchLayout, image_side: int
    ) -> Data | None:
        """Return the shapes of the first batch of Python code; None if only making it shows them.

        Args:
          inputs: shapes of the input batches.
          layout: of the node.
          image_side: see `BatchSource.batch_spec`.
        """
        return None

    def record_producer(
        self,
        fields: Mapping[str, jax.ShapeDtypeStruct | EncodedImages],
        derive: KeyDerivation | None,
    ) -> dict[str, SeededProducer] | None:
        """Return the producers of fields whose records native threads can make one by one.

        Args:
          fields: shape and dtype of a record of each field, or its encoded images.
          derive: maps the keys of records [N] to those of the node; None if they are the same.
        Returns: None if there are no such producers.
        """
        return None

    def residual_node(self, fields: Mapping[str, jax.ShapeDtypeStruct]) -> PipelineNode | None:
        """Return the JAX code for what the producers do not do; None if they do everything.

        It takes the arrays of a batch that no producer makes and returns those that it changes.

        Args:
          fields: as for `record_producer`, without encoded images.
        """
        return None


def is_sequential(vertex: Vertex) -> bool:
    """True if a node up to this vertex is sequential."""
    return any(each.node.sequential for each in vertex.ordered())


def qualified_name(value: Callable[..., Any] | Any) -> str:
    """Return the name of a function or of an object's class, without addresses."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "")


def digest(text: str) -> str:
    """Return eight hexadecimal digits of a description; memory addresses do not count."""
    return f"{zlib.crc32(re.sub(r' at 0x[0-9a-f]+', '', text).encode()):08x}"
