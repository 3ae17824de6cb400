"""Rows of pipelines in another order: `mix`, `concat`, `zip`, Rebatch, Repeat and Take."""

from __future__ import annotations

import builtins
import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import (
    Concatenation,
    Mixture,
    Order,
    Pairing,
    Part,
    Repetition,
    ReshardedOrder,
    TakeOrder,
)
from jaxkern.pipeline.nodes import BatchLayout, Block, PipelineNode, Remainder, SourceNode, Vertex
from jaxkern.pipeline.order import Schedule, integer_weights
from jaxkern.pipeline.pipeline import Pipeline
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import SequentialRows
from jaxkern.pipeline.sources.as_source import as_source
from jaxkern.pipeline.sources.combined import FieldChecker, JoinedSource, ZippedSource, merge_fields
from jaxkern.pipeline.sources.source import BatchSource, check_choice

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Blocks, Epoch


def mix(
    pipelines: Mapping[Pipeline, float] | Sequence[tuple[Pipeline, float]],
    *,
    seed: int = 0,
    stop: Literal["first", "last"] = "first",
    batch_size: int | None = None,
) -> Pipeline:
    """Return a pipeline that mixes the records of several pipelines in exact proportions.

    The position of a record determines its pipeline. In any range of consecutive records of a
    shard, the counts of two pipelines are within 1 of their proportions, of three or four within 2,
    of up to eight within 3. Each pipeline keeps its own order and seed. No two records have
    the same random draws after the mixture.

    Args:
      pipelines: {pipeline: weight}, or (pipeline, weight) pairs. Their records must have the same
        fields, shapes and dtypes. Weights are positive, and are divided by their sum.
      seed: seed of the phase of the mixing pattern, and of random draws after the mixture.
      stop: "first": an epoch ends before a pipeline would have to repeat a record; "last": it ends
        when every record has occurred, and shorter pipelines continue with their next epochs.
      batch_size: records per batch; by default that of the pipelines, which must be equal.
    Raises: TypeError or ValueError that names the argument, or the difference between pipelines.

    >>> import jaxkern as jk
    >>> a = jk.from_source({"x": [1] * 70}, batch_size=10)
    >>> b = jk.from_source({"x": [2] * 30}, batch_size=10)
    >>> mixture = jk.mix({a: 0.7, b: 0.3})
    >>> [batch["x"].tolist().count(1) for batch in mixture]
    [7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    """
    pairs: Any = pipelines.items() if isinstance(pipelines, Mapping) else pipelines
    pairs = list(pairs) if isinstance(pairs, Iterable) else [None]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise TypeError(
            f"pipelines is {pipelines!r:.80}; expected {{pipeline: weight, ...}} or pairs of them"
        )
    check_choice("stop", stop, "first", "last")
    weights = integer_weights([weight for _, weight in pairs])
    return _combine(
        "mix",
        [pipe for pipe, _ in pairs],
        lambda orders, seed: Mixture(orders, Schedule(weights, seed), stop),
        batch_size,
        check_integer("seed", seed, -(2**63)),
    )


def concat(*inputs: Any, batch_size: int | None = None) -> Any:
    """Concatenate pipelines or sources.

    For pipelines: an epoch is an epoch of the first pipeline, followed by one of the second, and so
    on. Each is shuffled separately, and a batch can contain records of two. For sources: the result
    is a source, which can be shuffled as a whole: ``from_source(concat(a, b), 64, shuffle=True)``.

    Args:
      inputs: pipelines, or what `from_source` takes; as arguments or in a list.
      batch_size: for pipelines: records per batch; by default that of the inputs.
    Raises: TypeError or ValueError that names the difference between inputs.

    >>> import jaxkern as jk
    >>> a, b = {"x": [1, 2, 3]}, {"x": [4, 5]}
    >>> pipe = jk.concat(jk.from_source(a, 2), jk.from_source(b, 2))
    >>> [batch["x"].tolist() for batch in pipe]
    [[1, 2], [3, 4], [5]]
    >>> len(jk.concat([a, b]))
    5
    """
    items = _as_list("concat", inputs)
    if isinstance(items[0], Pipeline):
        return _combine("concat", items, lambda orders, seed: Concatenation(orders), batch_size)
    sources = _sources("concat", items, batch_size)
    return JoinedSource(sources, [len(source) for source in sources])


def zip(*inputs: Any, strict: bool = False, batch_size: int | None = None) -> Any:
    """Combine pipelines or sources record by record, with the fields of all.

    For pipelines: record i of an epoch combines record i of each input. Shuffled pipelines with the
    same seed and number of records pair the same records in every epoch. Random draws after `zip`
    use the record ids of the first input. For sources: the result is a source whose record i
    combines records i of the inputs.

    Args:
      inputs: pipelines or sources with different fields; or one dict name -> input, which nests
        their fields under the names: ``batch["name"]["field"]``.
      strict: True to raise for different lengths; otherwise the shortest determines the length.
      batch_size: for pipelines: records per batch; by default that of the inputs.
    Raises: TypeError or ValueError that names the difference between inputs.

    >>> import jaxkern as jk
    >>> a, b = jk.from_source({"x": [1, 2, 3]}, 2), jk.from_source({"y": [4, 5]}, 2)
    >>> [{k: v.tolist() for k, v in sorted(batch.items())} for batch in jk.zip(a, b)]
    [{'x': [1, 2], 'y': [4, 5]}]
    >>> next(iter(jk.zip({"left": a, "right": a})))["right"]["x"].tolist()
    [1, 2]
    """
    names: list[str] | None = None
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        names = list(inputs[0])
        inputs = tuple(inputs[0].values())
    items = _as_list("zip", inputs)
    pipelines = isinstance(items[0], Pipeline)
    sources = [] if pipelines else _sources("zip", items, batch_size)
    if strict:
        pipes = _pipelines("zip", items) if pipelines else []
        lengths = [pipe._records for pipe in pipes] + [len(source) for source in sources]
        if len(set(lengths)) > 1:
            raise ValueError(f"the inputs of zip have {lengths} records; expected equal numbers")
    if not pipelines:
        return ZippedSource(sources, names)
    return _combine("zip", items, lambda orders, seed: Pairing(orders), batch_size, names=names)


def _as_list(name: str, inputs: Sequence[Any]) -> list[Any]:
    items = list(inputs[0]) if len(inputs) == 1 and isinstance(inputs[0], list | tuple) else inputs
    if not items:
        raise ValueError(f"{name} expected at least one pipeline or source, got none")
    return list(items)


def _sources(name: str, items: Sequence[Any], batch_size: int | None) -> list[BatchSource]:
    if any(isinstance(each, Pipeline) for each in items):
        raise TypeError(f"{name} expected only pipelines or only sources, got both")
    if batch_size is not None:
        raise ValueError(f"{name} of sources takes no batch_size: it returns a source")
    return [as_source(each) for each in items]


def _pipelines(name: str, items: Sequence[Any]) -> list[Pipeline]:
    for number, pipe in enumerate(_as_list(name, [items])):
        if not isinstance(pipe, Pipeline):
            raise TypeError(f"input {number} of {name} is {pipe!r:.80}; expected a Pipeline")
    return list(items)


def _combine(
    name: str,
    items: Sequence[Any],
    arrange: Arrange,
    batch_size: int | None,
    seed: int | None = None,
    names: Sequence[str] | None = None,
) -> Pipeline:
    pipelines = _pipelines(name, items)
    vertices = [pipe._output for pipe in pipelines]
    for vertex in vertices:
        if vertex.sequential:
            raise ValueError(
                f"{name} needs the number of rows of {vertex.node.name!r}, which is known at the "
                f"end of an epoch only; put such nodes after {name}, and let one stream return the "
                "records of several"
            )
    size = None if batch_size is None else check_integer("batch_size", batch_size, 1)
    options = []
    for vertex, pipe in builtins.zip(vertices, pipelines, strict=True):
        source = _source_of(vertex)
        own: dict[str, Any] = {"remainder": source.remainder, "shard": source.explicit_shard}
        own["batch_size"] = size or _batch_size_at(vertex)
        options.append(own | vars(pipe._options))
    for number, values in enumerate(options):
        for key, expected in options[0].items():
            if values[key] != expected:
                more = f", or {name}(..., batch_size=)" if key == "batch_size" else ""
                raise ValueError(
                    f"{key} is {expected!r} in input 0 of {name} and {values[key]!r} in input "
                    f"{number}; expected the same{more}"
                )
    seed = _source_of(vertices[0]).seed if seed is None else seed
    size = options[0]["batch_size"]
    return Pipeline(_combined(name, vertices, arrange, size, seed, names), pipelines[0]._options)


#: (orders of the inputs, seed) -> order of the combination
Arrange = Callable[[tuple[Order, ...], int], Order]
#: (batch of an input, its rows, their positions)
_Piece = tuple[Data, slice | np.ndarray, np.ndarray]


class Combined(PipelineNode):
    """Rows of the batches of its inputs, in a new order.

    `seed` is the seed of the order and of random draws after the node; None for the seed of the
    input. With `names` the fields of each input of a `Pairing` are nested under its name.
    """

    has_order = True
    fills_slots = True
    fresh = True

    def __init__(
        self,
        name: str,
        arrange: Arrange,
        batch_size: int,
        seed: int | None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.name, self.seed, self.batch_size = name, seed, batch_size
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
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((rows, *x.shape[1:]), x.dtype), inputs[0]
        )

    def block(self, blocks: Blocks, vertex: Vertex, batch: int, out: Data | None = None) -> Block:
        epoch = blocks.epoch
        layout = epoch.layouts[vertex]
        requested = layout.rows_of(batch)
        order = layout.order
        pieces: list[list[_Piece]] = [[] for _ in vertex.inputs]
        # Threads start with different inputs, because consecutive batches need the same blocks.
        count = len(vertex.inputs)
        parts = epoch.parts(layout, requested)
        for part in sorted(parts, key=lambda part: (part.source - batch) % count):
            upstream = vertex.inputs[part.source]
            pieces[part.source] += _read(epoch, upstream, part, self.keeps_remainder)
        data: Data
        if isinstance(order.inputs[0] if isinstance(order, ReshardedOrder) else order, Pairing):
            batches = [_placed(parts) for parts in pieces]
            data = merge_fields(batches, self._names)
        else:
            every = [part for parts in pieces for part in parts]
            sources = [source for source, parts in enumerate(pieces) for _ in parts]
            if out is not None and layout.remainder == "pad" and not self.keeps_remainder:
                out = row.without_mask(out)
            data = _placed(every, out, functools.partial(self._fields.check, sources))
        if layout.remainder == "pad":
            mask = layout.mask_of(requested)
            if not self.keeps_remainder:
                data = {**data, "mask": mask}
            elif (own := data.get("mask")) is not None:  # a function may have changed or removed it
                data = {**data, "mask": own * mask.reshape(-1, *[1] * (own.ndim - 1))}
        return Block(data, epoch.records(layout, requested))


def _placed(pieces: Sequence[_Piece], out: Data | None = None, check: Any = None) -> Data:
    parts = [(data, rows) for data, rows, _ in pieces]
    return row.joined(parts, [positions for *_, positions in pieces], out, check)


def _read(epoch: Epoch, upstream: Vertex, part: Part, with_mask: bool) -> list[_Piece]:
    inner = epoch.at(upstream, part.shard, part.epoch)
    layout = inner.layouts[upstream]
    size, first, last = layout.batch_size, int(part.rows[0]), int(part.rows[-1])
    pieces: list[_Piece] = []
    for number in range(first // size, last // size + 1):
        start, stop = max(first, number * size), min(last + 1, (number + 1) * size)
        data = row.on_host(inner.shared_block(upstream, number, stop - start).data)
        if layout.remainder == "pad" and not with_mask:
            data = row.without_mask(data)
        # The rows of a part are consecutive, except that padding repeats the last one.
        end = None if stop > last else stop - first
        positions = part.positions[start - first : end]
        selected: slice | np.ndarray = slice(start - number * size, stop - number * size)
        if len(positions) > stop - start:
            selected = part.rows[start - first :] - number * size
        pieces.append((data, selected, positions))
    return pieces


def _source_of(vertex: Vertex) -> SourceNode:
    """Return the first source upstream of a vertex without streams."""
    return next(v.node for v in vertex.ordered() if isinstance(v.node, SourceNode))


def _batch_size_at(vertex: Vertex) -> int:
    """Return the batch size at a vertex."""
    return [v.node.batch_size for v in vertex.ordered() if v.node.batch_size is not None][-1]


def _combined(
    name: str,
    vertices: Sequence[Vertex],
    arrange: Arrange,
    batch_size: int,
    seed: int,
    names: Sequence[str] | None = None,
) -> Vertex:
    """Return the vertex that arranges others: a source if all of them are sources."""
    sources = [vertex.node for vertex in vertices if isinstance(vertex.node, SourceNode)]
    general = Vertex(Combined(name, arrange, batch_size, seed, names), tuple(vertices))
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
            batch_size=batch_size,
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
        if self.batch_size is None:
            size, seed = _batch_size_at(vertex), _source_of(vertex).seed
            return _combined(self.name, [vertex], self._arrange, size, seed)
        node = Combined(self.name, self._arrange, self.batch_size, seed=None)
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
