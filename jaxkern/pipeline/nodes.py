"""Nodes that run in Python: the source, host functions, rebatching, caching and merging."""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.failures import describe_exception, note
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import Continuation, Order, SourceOrder
from jaxkern.pipeline.graph import Batches, Block, PipelineNode, Remainder, Stream, Vertex, named
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import SequentialNode, SequentialRebatch, follows_sequential
from jaxkern.pipeline.sources.source import BatchSource


@dataclasses.dataclass(eq=False)
class SourceNode(PipelineNode):
    """Reads the records of a batch, in the order of the epoch."""

    source: BatchSource
    batch_size: int
    shuffle: bool
    seed: int
    remainder: Remainder
    given_shard: tuple[int, int] | None
    arranged: Order | None = None

    name = "source"

    @functools.cached_property
    def shard(self) -> tuple[int, int]:
        """(index, count); JAX's processes where none was given."""
        return self.given_shard or (jax.process_index(), jax.process_count())

    @property
    def order(self) -> Order:
        """Which record of the source is at which row."""
        return self.arranged or SourceOrder(len(self.source), self.seed, self.shuffle)

    def with_seed(self, seed: int) -> SourceNode:
        """The same with another seed."""
        arranged = None if self.arranged is None else self.arranged.with_seed(seed)
        return dataclasses.replace(self, seed=seed, arranged=arranged)

    def describe(self) -> str:
        return self._arrangement_of(self.source.describe())

    def summary(self) -> str:
        return self._arrangement_of(repr(self.source))

    def _arrangement_of(self, text: str) -> str:
        return text if self.arranged is None else f"{self.arranged.describe()} of {text}"

    def stream(self, inputs: Sequence[Stream]) -> Stream:
        return self.stream_with(inputs, self.remainder)

    def stream_with(self, inputs: Sequence[Stream], remainder: Remainder) -> Stream:
        """The stream where the rows that fill no batch become something else."""
        return Stream.over(
            self.order, self.batch_size, remainder, self.seed, self.shuffle, self.shard
        )

    def block_spec(self, inputs: Sequence[Data], stream: Stream, image_side: int) -> Data | None:
        spec = self.source.batch_spec(stream.first_rows, image_side)
        if spec is None or stream.remainder != "pad":
            return spec
        if "mask" in spec:  # `read` refuses it
            return None
        return {**spec, "mask": jax.ShapeDtypeStruct((stream.first_rows,), np.bool_)}

    def block(self, epoch: Batches, vertex: Vertex, batch: int) -> Block:
        return self.read(epoch, vertex, batch, None)

    def read(self, epoch: Batches, vertex: Vertex, batch: int, out: Data | None) -> Block:
        """One batch, written to `out` where the source can."""
        stream = epoch.stream_of(vertex)
        wanted = stream.rows_of(batch)
        records = epoch.records(stream, wanted)
        fields = None if out is None else {k: v for k, v in out.items() if k != "mask"}
        data = self.source.gather(records, fields)
        row.check_rows(data, len(records), f"{self.source!r}.gather")
        if stream.remainder == "pad":
            if "mask" in data:
                raise ValueError(
                    "the source has a field 'mask', which pad_remainder=True adds: rename it"
                )
            mask = stream.mask_of(wanted)
            if out is not None:
                out["mask"][...] = mask
            data = {**data, "mask": mask}
        return Block(data, records)


def check_batches(stream: Stream) -> None:
    """Raises where an epoch has no batch."""
    if stream.rows == 0:
        index, count = stream.shard
        raise ValueError(
            f"shard {index} of {count} of {stream.records} records has no batch of "
            f"{stream.batch_size} (remainder: {stream.remainder}); use a smaller batch_size, fewer "
            "shards, or pad_remainder=True"
        )


class HostNode(PipelineNode):
    """A Python function of a batch of NumPy arrays, run by the worker threads."""

    def __init__(self, fn: Callable[[Data], Data], name: str | None = None) -> None:
        if not callable(fn):
            raise TypeError(f"{fn!r} is no node: wanted a function of a batch, or a node")
        self.fn = fn
        self.name = name or named(fn)

    def describe(self) -> str:
        return f"function {named(self.fn)}"

    def block(self, epoch: Batches, vertex: Vertex, batch: int) -> Block:
        given = epoch.block(vertex.inputs[0], batch)
        try:
            result = self.fn(row.on_host(given.data))
        except ValueError as error:
            if "read-only" in describe_exception(error):
                note(
                    error,
                    "the batch belongs to several branches, or to JAX: make a new array in place "
                    "of writing to one",
                )
            raise
        row.check_rows(result, len(given.records), f"node {epoch.name_of(vertex)!r}")
        leaves = jax.tree.map(lambda x: row.canonical(np.asarray(x)), result)
        return Block(leaves, given.records)


class Rebatch(PipelineNode):
    """Cuts the stream into batches of another size; rows keep their order.

    What fills no batch is dropped, padded or a smaller batch, as `from_source` was told.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Rebatch
    >>> pipe = jk.from_source({"x": [0, 1, 2, 3, 4]}, batch_size=2) >> Rebatch(3)
    >>> [batch["x"].tolist() for batch in pipe]
    [[0, 1, 2], [3, 4]]
    """

    name = "rebatch"

    def __init__(self, batch_size: int) -> None:
        self.batch_size = check_integer("batch_size", batch_size, 1)

    def describe(self) -> str:
        return f"Rebatch({self.batch_size})"

    def stream(self, inputs: Sequence[Stream]) -> Stream:
        (given,) = inputs
        rows = given.rows
        if given.remainder == "drop":
            rows = rows // self.batch_size * self.batch_size
        elif given.remainder == "pad":
            # Of the fullest shard, without the padding so far: no batch is nothing but padding.
            rows = given.order.rows_in((0, given.shard[1]))
            rows = -(-rows // self.batch_size) * self.batch_size
        if rows == 0 and given.rows and not isinstance(given.order, Continuation):
            raise ValueError(
                f"Rebatch({self.batch_size}) of {given.rows} rows with drop_remainder=True leaves "
                "no batch; use a smaller batch_size"
            )
        return dataclasses.replace(given, rows=rows, batch_size=self.batch_size)

    def behind(self, vertex: Vertex) -> PipelineNode:
        return SequentialRebatch(self.batch_size) if follows_sequential(vertex) else self

    def block_spec(self, inputs: Sequence[Data], stream: Stream, image_side: int) -> Data | None:
        return row.resized_spec(inputs[0], stream.first_rows)

    def block(self, epoch: Batches, vertex: Vertex, batch: int) -> Block:
        (before,) = vertex.inputs
        size = epoch.stream_of(before).batch_size
        rows = epoch.stream_of(vertex).rows_of(batch)
        end = min(rows.stop, epoch.stream_of(before).rows)
        parts: list[tuple[Data, np.ndarray | slice]] = []
        records: list[np.ndarray] = []
        for source in range(rows.start // size, max(-(-end // size), 1)):
            kept = slice(max(rows.start - source * size, 0), min(end - source * size, size))
            block = epoch.shared_block(before, source, max(kept.stop - kept.start, 0))
            parts.append((block.data, kept))
            records.append(block.records[kept])
        missing = rows.stop - max(end, rows.start)
        if missing:
            # Padding of padding: repeats the last row of the stream.
            last = epoch.shared_block(before, epoch.stream_of(before).batches - 1, 0)
            again = np.full(missing, len(last.records) - 1)
            masked = {"mask": np.zeros(len(last.records), bool)} if "mask" in last.data else {}
            parts.append(({**last.data, **masked}, again))
            records.append(last.records[again])
        return Block(row.joined(parts), np.concatenate(records))


class Cache(PipelineNode):
    """Keeps every record's fields in memory, so that later epochs do not compute them again.

    What stands before it must not depend on the epoch, on chance or on other records. The cache
    belongs to its place: pipelines that continue the same one share it. A state does not hold it:
    a resumed pipeline fills it anew.

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

    def check_place(self, before: Sequence[Vertex]) -> None:
        """No chance before a cache: it would be drawn once for all epochs."""
        for vertex in before:
            if isinstance(vertex.node, SequentialNode):
                raise ValueError(
                    f"Cache() stands behind {vertex.node.name!r}, whose records come in no batch "
                    "that is known before; put the cache before it"
                )
            if vertex.node.stochastic:
                raise ValueError(
                    f"Cache() stands behind {vertex.node.name!r}, which is random: every epoch "
                    "would repeat the first one's draws; put the cache before it"
                )

    def describe(self) -> str:
        return "Cache()"

    def block_spec(self, inputs: Sequence[Data], stream: Stream, image_side: int) -> Data | None:
        return inputs[0]

    def block(self, epoch: Batches, vertex: Vertex, batch: int) -> Block:
        (before,) = vertex.inputs
        stream = epoch.stream_of(before)
        store = vertex.storage.setdefault("records", _Records(stream.order.numbers))
        rows = stream.rows_of(batch)
        records = epoch.records(stream, rows)
        data = store.find(records)
        if data is not None:
            masked = {"mask": stream.mask_of(rows)} if store.masked else {}
            return Block({**data, **masked}, records)
        data = row.on_host(epoch.block(before, batch).data)
        kept = data
        if stream.remainder == "pad" and "mask" in data:
            # Padding is a matter of the place, not of the record.
            kept = {name: value for name, value in data.items() if name != "mask"}
            mask = data["mask"]
            if mask.dtype != bool or not np.array_equal(mask, stream.mask_of(rows)):
                raise ValueError(
                    "the field 'mask' was changed before Cache(), which keeps what belongs to a "
                    "record and not to its place in an epoch; change it behind the cache"
                )
        store.keep(records, kept, masked=kept is not data)
        return Block(data, records)


class _Records:
    """The fields of records, by record; memory is taken as records come."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._found = np.zeros(count, bool)
        self._fields: dict[str, Any] | None = None
        self._lock = threading.Lock()
        #: whether the batches have the mask of a padded epoch
        self.masked = False

    def find(self, records: np.ndarray) -> Data | None:
        if self._fields is None or not self._found[records].all():
            return None
        fields: Data = {}
        for name, store in self._fields.items():
            if isinstance(store, _Images):
                fields[name] = row.ragged_of(
                    [store.images[r] for r in records.tolist()], *store.limits
                )
            else:
                fields[name] = jax.tree.map(lambda values: values.take(records, axis=0), store)
        return fields

    def keep(self, records: np.ndarray, data: Data, masked: bool) -> None:
        with self._lock:
            if self._fields is None:
                self.masked = masked
                self._fields = {name: self._empty(value) for name, value in data.items()}
        for name, value in data.items():
            store = self._fields[name]
            if isinstance(store, _Images):
                pictures = row.images_of(value, range(len(value)))
                store.images.update(
                    (r, picture.copy())
                    for r, picture in zip(records.tolist(), pictures, strict=True)
                )
            else:
                jax.tree.map(lambda kept, new: kept.__setitem__(records, new), store, value)
        self._found[records] = True

    def _empty(self, value: Any) -> Any:
        if row.is_ragged(value):
            return _Images((value.max_height, value.max_width))
        # Untouched pages of an empty array take no memory.
        return jax.tree.map(lambda x: np.empty((self._count, *x.shape[1:]), x.dtype), value)


class _Images:
    def __init__(self, limits: tuple[int, int]) -> None:
        self.limits = limits
        self.images: dict[int, np.ndarray] = {}


class Merge(PipelineNode):
    """The fields of several branches in one batch; what ``&`` between pipelines makes."""

    name = "merge"

    def describe(self) -> str:
        return "merge"

    def stream(self, inputs: Sequence[Stream]) -> Stream:
        first = inputs[0]
        for place, other in enumerate(inputs[1:], 1):
            if other.cut is not first.cut:
                raise ValueError(
                    "the branches of a merge have different rows: a node that drops, adds or "
                    "joins records stands in one of them only, or in each another one; put it "
                    "before the branches: base = source >> Filter(...); base & base >> ..."
                )
            for name, value in vars(first).items():
                if getattr(other, name) != value:
                    raise ValueError(
                        f"branch 0 of a merge has {name} = {value!r} and branch {place} "
                        f"{getattr(other, name)!r}; wanted the same records in the same batches"
                    )
        return first

    def block_spec(self, inputs: Sequence[Data], stream: Stream, image_side: int) -> Data | None:
        return merged(inputs)

    def block(self, epoch: Batches, vertex: Vertex, batch: int) -> Block:
        blocks = [epoch.block(before, batch) for before in vertex.inputs]
        return Block(merged([block.data for block in blocks]), blocks[0].records)


def merged(branches: Sequence[Data]) -> Data:
    """One dict of all fields; a field of several branches must be the very same in them."""
    fields: Data = {}
    for place, branch in enumerate(branches):
        for name, value in branch.items():
            if name in fields and name != "mask" and not _same(fields[name], value):
                raise ValueError(
                    f"field {name!r} comes changed from several branches of a merge (again from "
                    f"branch {place}); rename it or drop it in all branches but one"
                )
            fields.setdefault(name, value)
    return fields


def _same(one: Any, other: Any) -> bool:
    """Whether two fields, arrays or trees of them, are the same objects."""
    tree: Any = jax.tree.structure(one)
    if tree != jax.tree.structure(other):
        return False
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return all(a is b for a, b in leaves)
