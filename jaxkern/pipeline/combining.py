"""Rows of pipelines in another order or batch size: mixtures, Rebatch, Repeat and Take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import Order, Pairing, Part, Repetition, ReshardedOrder, TakeOrder
from jaxkern.pipeline.graph import BatchLayout, Block, PipelineNode, Remainder, Vertex
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import SequentialRows
from jaxkern.pipeline.sources.combined import FieldChecker, JoinedSource, ZippedSource, merge_fields
from jaxkern.pipeline.sources.source import BatchSource

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Blocks, Epoch

#: (orders of the inputs, seed) -> order of the combination
Arrange = Callable[[tuple[Order, ...], int], Order]
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
        nodes = [each.node for each in vertex.ordered()]
        size = [node.batch_size for node in nodes if node.batch_size is not None][-1]
        first = next(node for node in nodes if isinstance(node, SourceNode))
        return cls(size, first.remainder, first.explicit_shard)


class Combined(PipelineNode):
    """Rows of the batches of its inputs, in a new order.

    `seed` is the seed of the order and of random draws after the node; None for the seed of the
    input. With `names` the fields of each input of a `Pairing` are nested under its name.
    """

    has_order = True
    fills_slots = True

    def __init__(
        self,
        name: str,
        arrange: Arrange,
        settings: Settings,
        seed: int | None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.name, self.seed = name, seed
        self.batch_size, self.remainder = settings.batch_size, settings.remainder
        self._arrange, self._names = arrange, names
        self._fields = FieldChecker(name)

    def layout(self, inputs: Sequence[BatchLayout], remainder: Remainder) -> BatchLayout:
        first = inputs[0]
        seed = first.seed if self.seed is None else self.seed
        order = self._arrange(tuple(layout.order for layout in inputs), seed)
        assert self.batch_size is not None
        if not self.keeps_remainder:
            self.description = order.describe()
        elif first.remainder == "drop":  # full input batches only, equally many in all shards
            order = TakeOrder(order.inputs, first.rows * first.shard[1])
        shuffle = any(layout.shuffle for layout in inputs)
        return BatchLayout(self.batch_size, remainder, seed, shuffle, first.shard, order)

    def block_spec(self, inputs: Sequence[Data], layout: BatchLayout, side: int) -> Data | None:
        if len(inputs) > 1 or row.has_ragged(inputs):
            return None  # the length of a Ragged buffer depends on the images
        rows = layout.first_rows
        spec: Data = jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), inputs[0]
        )
        return spec

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        epoch = blocks.epoch
        layout = epoch.layout(vertex)
        requested = layout.rows_of(batch)
        shard, rows = layout.read_rows(requested)
        order = layout.order
        pieces: list[list[_Piece]] = [[] for _ in vertex.inputs]
        # Threads start with different inputs, because consecutive batches need the same blocks.
        count = len(vertex.inputs)
        parts = order.parts(shard, epoch.number, rows)
        for part in sorted(parts, key=lambda part: (part.source - batch) % count):
            upstream = vertex.inputs[part.source]
            pieces[part.source] += _read(epoch, upstream, part, self.keeps_remainder)
        data: Data
        if isinstance(order.inputs[0] if isinstance(order, ReshardedOrder) else order, Pairing):
            batches = [row.scattered(parts, len(rows)) for parts in pieces]
            data = merge_fields(batches, self._names)
        else:
            self._fields.check(
                *((source, part[0]) for source, parts in enumerate(pieces) for part in parts)
            )
            every = [part for parts in pieces for part in parts]
            if out is not None and layout.remainder == "pad" and not self.keeps_remainder:
                out = {name: array for name, array in out.items() if name != "mask"}
            data = row.scattered(every, len(rows), out)
        if layout.remainder == "pad":
            mask = layout.mask_of(requested)
            if not self.keeps_remainder:
                data = {**data, "mask": mask}
            elif (own := data.get("mask")) is not None:  # a function may have changed or removed it
                data = {**data, "mask": own * mask.reshape(-1, *[1] * (own.ndim - 1))}
        return Block(data, epoch.records(layout, requested))


def _read(epoch: Epoch, upstream: Vertex, part: Part, with_mask: bool) -> list[_Piece]:
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
        data = row.on_host(inner.shared_block(upstream, number, distinct).data)
        if layout.remainder == "pad" and not with_mask:
            data = {name: value for name, value in data.items() if name != "mask"}
        start, stop = int(rows[0]), int(rows[-1]) + 1
        contiguous = stop - start == len(rows) == distinct
        selected = slice(start, stop) if contiguous else rows
        pieces.append((data, selected, part.positions[begin:end]))
    return pieces


def source_seed(vertex: Vertex) -> int:
    """Return the seed of the first source upstream of a vertex without streams."""
    return next(v.node.seed for v in vertex.ordered() if isinstance(v.node, SourceNode))


def check_random_access(name: str, vertices: Sequence[Vertex]) -> None:
    """Raise if the rows of an input cannot be read in arbitrary order."""
    for vertex in vertices:
        if vertex.sequential:
            raise ValueError(
                f"{name} needs the number of rows of {vertex.node.name!r}, which is known at the "
                f"end of an epoch only; put such nodes after {name}, and let one stream return the "
                "records of several"
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


class _Rearranged(PipelineNode):
    """A node whose implementation depends on the vertex that it follows.

    `arrange` returns the order of the rows.
    """

    def __init__(self, name: str, description: str, arrange: Arrange) -> None:
        self.name, self.description, self._arrange = name, description, arrange

    def after(self, vertex: Vertex) -> Vertex:
        if vertex.sequential:
            return Vertex(SequentialRows(self), (vertex,))
        settings, seed = Settings.of(vertex), source_seed(vertex)
        if self.batch_size is None:
            return combined(self.name, [vertex], self._arrange, settings, seed)
        settings = settings._replace(batch_size=self.batch_size)
        node = Combined(self.name, self._arrange, settings, seed=None)
        node.keeps_remainder, node.description = True, self.description
        return Vertex(node, (vertex,))


class Rebatch(_Rearranged):
    """Changes the batch size; rows keep their order.

    Rows that do not fill a batch are dropped, padded or form a smaller batch, as in `from_source`.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Rebatch
    >>> pipe = jk.from_source({"x": [0, 1, 2, 3, 4]}, batch_size=2) >> Rebatch(3)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1, 2], [3, 4]]
    """

    def __init__(self, batch_size: int) -> None:
        self.batch_size = size = check_integer("batch_size", batch_size, 1)
        super().__init__("rebatch", f"Rebatch({size})", lambda orders, seed: Order(orders))


class Repeat(_Rearranged):
    """Combines several epochs into one; each has its own order and random draws.

    >>> import jaxkern as jk
    >>> pipe = jk.from_source({"x": [0, 1, 2]}, batch_size=2) >> jk.pipeline.Repeat(2)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1], [2, 0], [1, 2]]
    """

    def __init__(self, times: int) -> None:
        self.times = times = check_integer("times", times, 1)
        super().__init__(
            "repeat", f"Repeat({times})", lambda orders, seed: Repetition(orders, times)
        )


class Take(_Rearranged):
    """Keeps the first records of each epoch's order, over all shards together.

    If the source is shuffled, they differ in every epoch; use `Subset` to select fixed records.

    >>> import jaxkern as jk
    >>> pipe = jk.from_source({"x": list(range(100))}, batch_size=2) >> jk.pipeline.Take(3)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1], [2]]
    """

    def __init__(self, records: int) -> None:
        self.records = most = check_integer("records", records, 1)
        super().__init__("take", f"Take({most})", lambda orders, seed: TakeOrder(orders, most))
