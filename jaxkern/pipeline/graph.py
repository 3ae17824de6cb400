"""What a pipeline is made of: nodes, how they are joined, and the stream of batches at each."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from jaxkern.pipeline.arrangement import Order, Shard
from jaxkern.pipeline.feed import Feed
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sources.source import EncodedImages
from jaxkern.ring import RecordProducer

Remainder = Literal["partial", "drop", "pad"]
#: the rows of an epoch whose length only its end tells, for arithmetic that need not ask
UNKNOWN = 2**60
#: from the records' keys [N] to a node's; traced, and hashable
Derivation = Callable[[jax.Array], jax.Array]


class SeededProducer(Protocol):
    """A record producer for any seed and epoch: ``image.ChainProducer`` or ``EncodedProducer``."""

    def at(self, seed: int, epoch: int) -> RecordProducer:
        """The one for these."""


class Block(NamedTuple):
    """One batch on its way: its fields, and the records int64 [N] that its rows come from."""

    data: Data
    records: np.ndarray


@dataclasses.dataclass(frozen=True)
class Stream:
    """The batches of an epoch at some node; the rows of batch k are those from k * batch_size.

    Attributes:
      records: that there are, over all shards.
      rows: of this shard in an epoch, with padding and without what is dropped; `UNKNOWN` where
        only the end of the epoch tells.
      batch_size: rows of a batch; the last has fewer where remainder is "partial".
      remainder: what becomes of the rows that fill no batch.
      seed: of what is drawn for records.
      shuffle: of the source.
      shard: (index, count).
      order: which record a row is.
      real_rows: of this shard without padding, before anything is dropped.
      cut: the last node before here whose batches depend on all before them; None where there is
        none, and every batch can be made by its index.
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
    cut: Vertex | None = None

    @classmethod
    def over(
        cls,
        order: Order,
        batch_size: int,
        remainder: Remainder,
        seed: int,
        shuffle: bool,
        shard: Shard,
    ) -> Stream:
        """All rows of a shard, in batches; of equally many rows in all shards if not "partial"."""
        real = order.rows_in(shard)
        rows = real
        if remainder == "drop":
            rows = order.rows_in((shard[1] - 1, shard[1])) // batch_size * batch_size
        elif remainder == "pad":
            rows = -(-order.rows_in((0, shard[1])) // batch_size) * batch_size
        return cls(order.total, rows, batch_size, remainder, seed, shuffle, shard, order, real)

    def of(self, shard: Shard | None = None, order: Order | None = None) -> Stream:
        """The same of another shard or order."""
        return Stream.over(
            order or self.order,
            self.batch_size,
            self.remainder,
            self.seed,
            self.shuffle,
            shard or self.shard,
        )

    @property
    def known(self) -> bool:
        """Whether the number of rows is known before the end."""
        return self.rows < UNKNOWN

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch_size)

    def mask_of(self, rows: range) -> np.ndarray:
        """bool [N]: which of these rows are no padding."""
        return np.arange(rows.start, rows.stop) < self.real_rows

    @property
    def first_rows(self) -> int:
        """Rows of the first batch."""
        return min(self.batch_size, self.rows)

    def rows_of(self, batch: int) -> range:
        """The rows of one batch."""
        start = batch * self.batch_size
        return range(start, min(start + self.batch_size, self.rows))

    def read_rows(self, rows: range) -> tuple[Shard, np.ndarray]:
        """(shard, rows) that rows are read from: padding repeats the last one."""
        wanted = np.arange(rows.start, rows.stop)
        if self.real_rows:
            return self.shard, np.minimum(wanted, self.real_rows - 1)
        return (0, self.shard[1]), np.zeros_like(wanted)  # a shard may have no row at all


@dataclasses.dataclass(frozen=True, eq=False)
class Vertex:
    """A node in its place in a graph; pipelines that share their beginning share vertices."""

    node: PipelineNode
    inputs: tuple[Vertex, ...] = ()
    storage: dict[str, Any] = dataclasses.field(default_factory=dict)

    def ordered(self) -> list[Vertex]:
        """This vertex and all before it, inputs first, each once."""
        found: dict[Vertex, None] = {}

        def visit(vertex: Vertex) -> None:
            if vertex not in found:
                for before in vertex.inputs:
                    visit(before)
                found[vertex] = None

        visit(self)
        return list(found)


class Batches(Protocol):
    """What a node may ask of the epoch that it makes a batch of."""

    number: int

    @property
    def key(self) -> np.ndarray:
        """uint32 [2], the data of the key that the records' keys are folded from."""

    def at(self, vertex: Vertex, shard: Shard, number: int) -> Batches:
        """An epoch of what stands before a vertex, perhaps another one and of another shard."""

    def name_of(self, vertex: Vertex) -> str:
        """A vertex's name in messages."""

    def stream_of(self, vertex: Vertex) -> Stream:
        """The stream behind a vertex."""

    def records(self, stream: Stream, rows: range) -> np.ndarray:
        """The records int64 [N] of rows."""

    def block(self, vertex: Vertex, batch: int) -> Block:
        """One batch at a vertex."""

    def shared_block(self, vertex: Vertex, batch: int, rows: int) -> Block:
        """One batch that several batches behind it are cut from, for so many of its rows; each of
        them is asked for once."""

    def numbered(self, number: int) -> Batches:
        """Another epoch of the same plan."""

    def feed(self, vertex: Vertex, at: Any) -> Feed:
        """What a sequential vertex reads, from a place on."""

    def close(self) -> None:
        """Ends the threads before sequential vertices."""

    def together(self) -> AbstractContextManager[None]:
        """Blocks that are made within, by this thread, are made once."""


class PipelineNode:
    """A step of a pipeline. The batches of an epoch are a pure function of their index, except
    those of a `SequentialNode`.

    Attributes:
      name: in messages, states and explanations.
      compiled_for: where its JAX code runs, which compiles into one program with its neighbours
        there: on JAX's "device", as batches are delivered, or on the "host" in worker threads,
        "auto" being either; None for Python code.
    """

    name: str = ""
    compiled_for: Literal["auto", "device", "host"] | None = None

    @property
    def stochastic(self) -> bool:
        """Whether it needs keys."""
        return False

    @property
    def stream_name(self) -> str | None:
        """The random stream of its keys; None is the record's own key."""
        return None

    def describe(self) -> str:
        """What must be equal for two pipelines to give the same batches; in a state."""
        raise NotImplementedError

    def summary(self) -> str:
        """The node in a pipeline's repr; reads no data."""
        return self.describe()

    def stream(self, inputs: Sequence[Stream]) -> Stream:
        """The stream behind the node."""
        return inputs[0]

    def behind(self, vertex: Vertex) -> PipelineNode:
        """The node that does this behind a vertex: another one where lengths are unknown."""
        return self

    def check_place(self, before: Sequence[Vertex]) -> None:
        """Raises where the node cannot stand behind these vertices; they are all before it."""

    def block(self, epoch: Batches, vertex: Vertex, batch: int) -> Block:
        """One batch, in a worker thread."""
        raise NotImplementedError

    def block_spec(self, inputs: Sequence[Data], stream: Stream, image_side: int) -> Data | None:
        """The shapes of the first batch of Python code; None where only making it tells them.

        Args:
          inputs: shapes of the batches before the node.
          stream: behind the node.
          image_side: see `BatchSource.batch_spec`.
        """
        return None

    def record_producer(
        self,
        fields: Mapping[str, jax.ShapeDtypeStruct | EncodedImages],
        derive: Derivation | None,
    ) -> dict[str, SeededProducer] | None:
        """Fields, and what makes each of their records natively of that record alone.

        None where the node does anything else, and where there are no such producers.

        Args:
          fields: shape and dtype of a record of each field that may be made so, or its encoded
            images.
          derive: from the records' keys [N] to the node's; None where it takes those.
        """
        return None

    def beside_producers(self, fields: Mapping[str, jax.ShapeDtypeStruct]) -> PipelineNode | None:
        """JAX code for what producers leave to do, None where they do it all.

        It takes the arrays of a batch that no producer makes and returns those that it changes.

        Args:
          fields: as of `record_producer`, without encoded images.
        """
        return None


def named(value: Callable[..., Any] | Any) -> str:
    """The name of a function or an object's class, without addresses."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "")


def digest(text: str) -> str:
    """Eight hexadecimal digits of a description; memory addresses do not count."""
    return f"{zlib.crc32(re.sub(r' at 0x[0-9a-f]+', '', text).encode()):08x}"
