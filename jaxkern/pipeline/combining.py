"""Pipelines and sources put together: mixed, one behind the other, side by side, repeated, cut."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import (
    Arrangement,
    Beginning,
    Continuation,
    Order,
    Pairing,
    Part,
    Repetition,
)
from jaxkern.pipeline.graph import Batches, Block, PipelineNode, Remainder, Stream, Vertex
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.limits import SequentialRepeat, SequentialTake
from jaxkern.pipeline.sequential.node import follows_sequential
from jaxkern.pipeline.sources.combined import FieldChecker, JoinedSource, ZippedSource, merge_fields
from jaxkern.pipeline.sources.source import BatchSource

#: from the inputs' orders and a seed to that of them all
Arrange = Callable[[tuple[Order, ...], int], Arrangement]


class Settings(NamedTuple):
    """What inputs must agree in."""

    batch_size: int
    remainder: Remainder
    shard: tuple[int, int] | None

    @classmethod
    def of(cls, vertex: Vertex) -> Settings:
        """Those behind a vertex."""
        ordered = vertex.ordered()
        sizes = [v.node.batch_size for v in ordered if hasattr(v.node, "batch_size")]
        (first, *_) = (v.node for v in ordered if isinstance(v.node, SourceNode))
        return cls(sizes[-1], first.remainder, first.given_shard)


class Combined(PipelineNode):
    """Rows of the batches of its inputs, in an order of its own.

    Args:
      name: of the node.
      arrange: what the order is.
      settings: of the inputs.
      seed: of the order, and of what is drawn behind.
      names: of a field for each input of a `Pairing` that holds its fields.
    """

    def __init__(
        self,
        name: str,
        arrange: Arrange,
        settings: Settings,
        seed: int,
        names: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.seed = seed
        self.batch_size, self.remainder = settings.batch_size, settings.remainder
        self._arrange, self._names = arrange, names
        self._fields = FieldChecker(name)
        self._described = name

    def describe(self) -> str:
        return self._described

    def stream(self, inputs: Sequence[Stream]) -> Stream:
        return self.stream_with(inputs, self.remainder)

    def stream_with(self, inputs: Sequence[Stream], remainder: Remainder) -> Stream:
        """The stream where the rows that fill no batch become something else."""
        order = self._arrange(tuple(stream.order for stream in inputs), self.seed)
        self._described = order.describe()
        first = inputs[0]
        shuffle = any(stream.shuffle for stream in inputs)
        return Stream.over(order, self.batch_size, remainder, self.seed, shuffle, first.shard)

    def block(self, epoch: Batches, vertex: Vertex, batch: int) -> Block:
        return self.read(epoch, vertex, batch, None)

    def read(self, epoch: Batches, vertex: Vertex, batch: int, out: Data | None) -> Block:
        """One batch, written to `out` where it fits."""
        stream = epoch.stream_of(vertex)
        wanted = stream.rows_of(batch)
        shard, rows = stream.read_rows(wanted)
        order: Any = stream.order
        pieces: list[list[tuple[Data, slice | np.ndarray, np.ndarray]]] = [
            [] for _ in vertex.inputs
        ]
        # Threads begin with different inputs: all of the next batches need the same ones.
        count = len(vertex.inputs)
        parts = order.parts(shard, epoch.number, rows)
        for part in sorted(parts, key=lambda part: (part.source - batch) % count):
            pieces[part.source] += _read(epoch, vertex.inputs[part.source], part)
        padded = stream.remainder == "pad"
        fields = (
            None if out is None else {k: v for k, v in out.items() if k != "mask" or not padded}
        )
        data: Data
        if isinstance(order.order if isinstance(order, Continuation) else order, Pairing):
            batches = [row.scattered(parts, len(rows)) for parts in pieces]
            data = merge_fields(batches, self._names)
        else:
            self._fields.check(
                *((source, part[0]) for source, parts in enumerate(pieces) for part in parts)
            )
            data = row.scattered([part for parts in pieces for part in parts], len(rows), fields)
        if padded:
            data["mask"] = stream.mask_of(wanted)
        return Block(data, epoch.records(stream, wanted))


def _read(
    epoch: Batches, before: Vertex, part: Part
) -> list[tuple[Data, slice | np.ndarray, np.ndarray]]:
    """(batch of the input, its rows, their places) of a part."""
    inner = epoch.at(before, part.shard, part.epoch)
    stream = inner.stream_of(before)
    size, (first, last) = stream.batch_size, part.rows[[0, -1]].tolist()
    found: list[tuple[Data, slice | np.ndarray, np.ndarray]] = []
    for number in range(first // size, last // size + 1):
        begin, end = np.searchsorted(part.rows, [number * size, (number + 1) * size]).tolist()
        if begin == end:
            continue
        rows = part.rows[begin:end] - number * size
        distinct = 1 + int(np.count_nonzero(np.diff(rows)))  # padding repeats the last
        with inner.together():
            data = row.on_host(inner.shared_block(before, number, distinct).data)
        if stream.remainder == "pad":
            data = {name: value for name, value in data.items() if name != "mask"}
        start, stop = int(rows[0]), int(rows[-1]) + 1
        together = stop - start == len(rows) == distinct
        found.append((data, slice(start, stop) if together else rows, part.places[begin:end]))
    return found


def check_random_access(name: str, vertices: Sequence[Vertex]) -> None:
    """Raises where rows of an input cannot be read at any place."""
    for vertex in vertices:
        if follows_sequential(vertex):
            raise ValueError(
                f"{name} reads rows of its inputs at any place, and how many rows come out of "
                f"{vertex.node.name!r} is known at the end of an epoch only; put such nodes behind "
                f"{name}, and let one stream give the records of several"
            )


def combined(
    name: str,
    vertices: Sequence[Vertex],
    arrange: Arrange,
    settings: Settings,
    seed: int,
    names: Sequence[str] | None = None,
) -> Vertex:
    """The vertex that arranges others: where these are sources, a source as well."""
    nodes = [vertex.node for vertex in vertices]
    sources = [node for node in nodes if isinstance(node, SourceNode)]
    node: PipelineNode = Combined(name, arrange, settings, seed, names)
    if len(sources) < len(nodes):
        return Vertex(node, tuple(vertices))
    order = arrange(tuple(source.order for source in sources), seed)
    source: BatchSource
    if isinstance(order, Pairing):
        if any(each.order != sources[0].order for each in sources):
            return Vertex(node, tuple(vertices))
        order, source = sources[0].order, ZippedSource([s.source for s in sources], names)  # type: ignore[assignment]
    else:
        numbers = [each.order.numbers for each in sources]
        source = JoinedSource([each.source for each in sources], numbers, name)
    made = copy.copy(sources[0])
    made.__dict__.pop("shard", None)
    made.source, made.arranged, made.seed = source, order, seed
    made.batch_size = settings.batch_size
    made.shuffle = any(each.shuffle for each in sources)
    return Vertex(made)


class Repeat(PipelineNode):
    """So many epochs of what stands before as one: each has its own order and draws.

    >>> import jaxkern as jk
    >>> pipe = jk.from_source({"x": [0, 1, 2]}, batch_size=2) >> jk.pipeline.Repeat(2)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1], [2, 0], [1, 2]]
    """

    name = "repeat"

    def __init__(self, times: int) -> None:
        self.times = check_integer("times", times, 1)

    def describe(self) -> str:
        return f"Repeat({self.times})"

    def arranged_behind(self, vertex: Vertex) -> Vertex:
        """The vertex that does this behind another."""
        if follows_sequential(vertex):
            return Vertex(SequentialRepeat(self.times), (vertex,))
        return _of_one(self, vertex, lambda orders, seed: Repetition(orders, self.times))


class Take(PipelineNode):
    """The first records of each epoch's order, over all shards together.

    With a shuffle they are others in every epoch; `Subset` keeps some for good.

    >>> import jaxkern as jk
    >>> pipe = jk.from_source({"x": list(range(100))}, batch_size=2) >> jk.pipeline.Take(3)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1], [2]]
    """

    name = "take"

    def __init__(self, records: int) -> None:
        self.records = check_integer("records", records, 1)

    def describe(self) -> str:
        return f"Take({self.records})"

    def arranged_behind(self, vertex: Vertex) -> Vertex:
        """The vertex that does this behind another."""
        if follows_sequential(vertex):
            return Vertex(SequentialTake(self.records), (vertex,))
        return _of_one(self, vertex, lambda orders, seed: Beginning(orders, self.records))


def _of_one(node: PipelineNode, vertex: Vertex, arrange: Arrange) -> Vertex:
    seed = next((v.node.seed for v in vertex.ordered() if isinstance(v.node, SourceNode)), 0)
    return combined(node.name, [vertex], arrange, Settings.of(vertex), seed)
