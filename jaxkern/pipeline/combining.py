"""Pipelines put together: `mix`, `concat` and `zip`, and `Repeat` and `Take` of one."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import (
    Arrangement,
    Order,
    Pairing,
    Part,
    Repetition,
    ReshardedOrder,
    TakeOrder,
)
from jaxkern.pipeline.graph import (
    BatchLayout,
    Block,
    PipelineNode,
    Remainder,
    Vertex,
    is_sequential,
)
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import SequentialRepeat, SequentialTake
from jaxkern.pipeline.sources.combined import FieldChecker, JoinedSource, ZippedSource, merge_fields
from jaxkern.pipeline.sources.source import BatchSource

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch

#: maps the orders of inputs and a seed to the order of all
Arrange = Callable[[tuple[Order, ...], int], Arrangement]
#: (batch of an input, its rows, their positions)
_Piece = tuple[Data, slice | np.ndarray, np.ndarray]


class Settings(NamedTuple):
    """The options in which all inputs must agree."""

    batch_size: int
    remainder: Remainder
    shard: tuple[int, int] | None

    @classmethod
    def of(cls, vertex: Vertex) -> Settings:
        """Return the options of a vertex."""
        ordered = vertex.ordered()
        sizes = [v.node.batch_size for v in ordered if hasattr(v.node, "batch_size")]
        first = next(v.node for v in ordered if isinstance(v.node, SourceNode))
        return cls(sizes[-1], first.remainder, first.explicit_shard)


class Combined(PipelineNode):
    """Rows of the batches of its inputs, in a new order.

    Args:
      name: of the node.
      arrange: makes the order.
      settings: of the inputs.
      seed: of the order, and of random draws after the node.
      names: of a field for each input of a `Pairing` that holds its fields.
    """

    has_order = True
    fills_slots = True

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
        self._description = name

    def describe(self) -> str:
        return self._description

    def layout(
        self, inputs: Sequence[BatchLayout], remainder: Remainder | None = None
    ) -> BatchLayout:
        order = self._arrange(tuple(layout.order for layout in inputs), self.seed)
        self._description = order.describe()
        shuffle = any(layout.shuffle for layout in inputs)
        options = self.batch_size, remainder or self.remainder, self.seed, shuffle
        return BatchLayout.over(order, *options, inputs[0].shard)

    def block(self, epoch: Epoch, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        layout = epoch.layout(vertex)
        requested = layout.rows_of(batch)
        shard, rows = layout.read_rows(requested)
        order: Any = layout.order
        pieces: list[list[_Piece]] = [[] for _ in vertex.inputs]
        # Threads begin with different inputs, because consecutive batches need the same blocks.
        count = len(vertex.inputs)
        parts = order.parts(shard, epoch.number, rows)
        for part in sorted(parts, key=lambda part: (part.source - batch) % count):
            pieces[part.source] += _read(epoch, vertex.inputs[part.source], part)
        padded = layout.remainder == "pad"
        if out is not None and padded:
            out = {name: array for name, array in out.items() if name != "mask"}
        data: Data
        if isinstance(order.order if isinstance(order, ReshardedOrder) else order, Pairing):
            batches = [row.scattered(parts, len(rows)) for parts in pieces]
            data = merge_fields(batches, self._names)
        else:
            self._fields.check(
                *((source, part[0]) for source, parts in enumerate(pieces) for part in parts)
            )
            data = row.scattered([part for parts in pieces for part in parts], len(rows), out)
        if padded:
            data = {**data, "mask": layout.mask_of(requested)}
        return Block(data, epoch.records(layout, requested))


def _read(epoch: Epoch, upstream: Vertex, part: Part) -> list[_Piece]:
    inner = epoch.at(upstream, part.shard, part.epoch)
    layout = inner.layout(upstream)
    size, (first, last) = layout.batch_size, part.rows[[0, -1]].tolist()
    pieces: list[_Piece] = []
    for number in range(first // size, last // size + 1):
        begin, end = np.searchsorted(part.rows, [number * size, (number + 1) * size]).tolist()
        if begin == end:
            continue
        rows = part.rows[begin:end] - number * size
        distinct = 1 + int(np.count_nonzero(np.diff(rows)))  # padding repeats the last row
        with inner.memoize_blocks():
            data = row.on_host(inner.shared_block(upstream, number, distinct).data)
        if layout.remainder == "pad":
            data = {name: value for name, value in data.items() if name != "mask"}
        start, stop = int(rows[0]), int(rows[-1]) + 1
        contiguous = stop - start == len(rows) == distinct
        selected = slice(start, stop) if contiguous else rows
        pieces.append((data, selected, part.positions[begin:end]))
    return pieces


def check_random_access(name: str, vertices: Sequence[Vertex]) -> None:
    """Raise if the rows of an input cannot be read in any order."""
    for vertex in vertices:
        if is_sequential(vertex):
            raise ValueError(
                f"{name} reads the rows of its inputs in any order, and the number of rows of "
                f"{vertex.node.name!r} is known at the end of an epoch only; put such nodes after "
                f"{name}, and let one stream return the records of several"
            )


def combined(
    name: str,
    vertices: Sequence[Vertex],
    arrange: Arrange,
    settings: Settings,
    seed: int,
    names: Sequence[str] | None = None,
) -> Vertex:
    """Return the vertex that arranges others: a source if all of them are sources."""
    sources = [vertex.node for vertex in vertices if isinstance(vertex.node, SourceNode)]
    general = Vertex(Combined(name, arrange, settings, seed, names), tuple(vertices))
    if len(sources) < len(vertices):
        return general
    order: Order = arrange(tuple(source.order for source in sources), seed)
    source: BatchSource
    if isinstance(order, Pairing):
        if any(each.order != sources[0].order for each in sources):
            return general
        order = sources[0].order
        source = ZippedSource([each.source for each in sources], names)
    else:
        bounds = [each.order.record_id_bound for each in sources]
        source = JoinedSource([each.source for each in sources], bounds, name)
    return Vertex(
        dataclasses.replace(
            sources[0],
            source=source,
            arranged=order,
            seed=seed,
            batch_size=settings.batch_size,
            shuffle=any(each.shuffle for each in sources),
        )
    )


class Repeat(PipelineNode):
    """Makes several epochs of the pipeline before it one: each has its own order and draws.

    >>> import jaxkern as jk
    >>> pipe = jk.from_source({"x": [0, 1, 2]}, batch_size=2) >> jk.pipeline.Repeat(2)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1], [2, 0], [1, 2]]
    """

    name = "repeat"

    def __init__(self, times: int) -> None:
        self.times = check_integer("times", times, 1)

    def after(self, vertex: Vertex) -> Vertex:
        """Return the vertex that repeats another."""
        if is_sequential(vertex):
            return Vertex(SequentialRepeat(self.times), (vertex,))
        return _after_one(self.name, vertex, lambda orders, seed: Repetition(orders, self.times))


class Take(PipelineNode):
    """Keeps the first records of each epoch's order, over all shards together.

    If the source is shuffled these differ in every epoch; `Subset` selects records permanently.

    >>> import jaxkern as jk
    >>> pipe = jk.from_source({"x": list(range(100))}, batch_size=2) >> jk.pipeline.Take(3)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1], [2]]
    """

    name = "take"

    def __init__(self, records: int) -> None:
        self.records = check_integer("records", records, 1)

    def after(self, vertex: Vertex) -> Vertex:
        """Return the vertex that takes the first records of another."""
        if is_sequential(vertex):
            return Vertex(SequentialTake(self.records), (vertex,))
        return _after_one(self.name, vertex, lambda orders, seed: TakeOrder(orders, self.records))


def _after_one(name: str, vertex: Vertex, arrange: Arrange) -> Vertex:
    seed = next((v.node.seed for v in vertex.ordered() if isinstance(v.node, SourceNode)), 0)
    return combined(name, [vertex], arrange, Settings.of(vertex), seed)
