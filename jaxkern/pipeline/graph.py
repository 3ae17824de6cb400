"""What a pipeline is made of: nodes, how they are joined, and the stream of batches at each."""

from __future__ import annotations

import dataclasses
import re
import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from jaxkern.pipeline.rows import Data

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch

Remainder = Literal["partial", "drop", "pad"]


class Block(NamedTuple):
    """One batch on its way: its fields, and the records int64 [N] that its rows come from."""

    data: Data
    records: np.ndarray


@dataclasses.dataclass(frozen=True)
class Stream:
    """The batches of an epoch at some node; the rows of batch k are those from k * batch_size.

    Attributes:
      records: in the source, over all shards.
      rows: of this shard in an epoch, with padding and without what is dropped.
      batch_size: rows of a batch; the last has fewer where remainder is "partial".
      remainder: what becomes of the rows that fill no batch.
      seed, shuffle, shard: of the source; they decide which record a row is.
    """

    records: int
    rows: int
    batch_size: int
    remainder: Remainder
    seed: int
    shuffle: bool
    shard: tuple[int, int]

    @property
    def batches(self) -> int:
        """Batches of an epoch."""
        return -(-self.rows // self.batch_size)

    @property
    def real_rows(self) -> int:
        """Rows of this shard without padding, before anything is dropped."""
        return len(range(self.shard[0], self.records, self.shard[1]))

    def mask_of(self, rows: range) -> np.ndarray:
        """bool [N]: which of these rows are no padding."""
        return np.arange(rows.start, rows.stop) < self.real_rows

    def rows_of(self, batch: int) -> range:
        """The rows of one batch."""
        start = batch * self.batch_size
        return range(start, min(start + self.batch_size, self.rows))


class PipelineNode:
    """A step of a pipeline. The batches of an epoch are a pure function of their index.

    Attributes:
      name: in messages, states and explanations.
      compiled_for: where its JAX code runs, which compiles into one program with its neighbours
        there: on JAX's "device", as batches are delivered, or on the "host" in worker threads,
        "auto" being either; None for Python code.
    """

    name: str = ""
    compiled_for: Literal["auto", "device", "host"] | None = None

    def describe(self) -> str:
        """What must be equal for two pipelines to give the same batches; in a state."""
        raise NotImplementedError

    def stream(self, inputs: Sequence[Stream]) -> Stream:
        """The stream behind the node."""
        return inputs[0]

    def check_place(self, before: Sequence[Vertex]) -> None:
        """Raises where the node cannot stand behind these vertices; they are all before it."""

    def block(self, epoch: Epoch, vertex: Vertex, batch: int) -> Block:
        """One batch, in a worker thread."""
        raise NotImplementedError


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


def whole(name: str, value: Any, least: int, more: str = "") -> int:
    """An integer from `least` to 2**63 - 1; raises ValueError for what is none."""
    if (
        isinstance(value, bool)
        or not hasattr(value, "__index__")
        or not least <= int(value) < 2**63
    ):
        lowest = "-2**63" if least == -(2**63) else least
        raise ValueError(f"{name} is {value!r}; wanted an integer from {lowest} to 2**63 - 1{more}")
    return int(value)


def named(value: Callable[..., Any] | Any) -> str:
    """The name of a function or an object's class, without addresses."""
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return str(name).replace("<locals>.", "")


def digest(text: str) -> str:
    """Eight hexadecimal digits of a description; memory addresses do not count."""
    return f"{zlib.crc32(re.sub(r' at 0x[0-9a-f]+', '', text).encode()):08x}"
