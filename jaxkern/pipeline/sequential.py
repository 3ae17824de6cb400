"""Nodes whose batches depend on all earlier ones: Filter, and Take, Repeat and Rebatch after it.

A sequential node has a *flow*, which reads the rows before it in order and forms one batch after
the other. What comes before it is made ahead by another engine: each block there is passed to
the node's `rows` in a worker thread, and the flow only joins the results.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxkern.core.failures import note
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.engine import Engine, Item
from jaxkern.pipeline.graph import (
    BatchLayout,
    Block,
    PipelineNode,
    Remainder,
    Vertex,
    qualified_name,
)
from jaxkern.pipeline.rows import Data

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch


class Rows(NamedTuple):
    """The output of a node for one block, made in any worker thread."""

    data: Data  # without fields if it has no rows
    records: np.ndarray  # int64 [M], the ids of the rows
    origins: np.ndarray  # int64 [M], ascending: the row of the block that each comes from
    block_rows: int  # number of rows of the block


#: A batch that is decided but not computed: the thread that uses it calls it, with arrays to fill
#: or None.
DeferredBlock = Callable[[Data | None], Block]


class Flow:
    """The batches of a sequential node in order, from a position on."""

    def __init__(self, upstream: Upstream, layout: BatchLayout) -> None:
        self._upstream = upstream
        self._size, self._remainder = layout.batch_size, layout.remainder

    @property
    def position(self) -> dict[str, Any]:
        """The position after the last batch or error of `next`; small and JSON-able.

        A flow that begins there gives the same further batches, bit for bit. "at" is the position
        of the input that has to be read again. "counts" are numbers of the epoch so far by name.
        """
        raise NotImplementedError

    def next(self) -> Block | DeferredBlock | None:
        """Return the next batch; None after the last one. It continues after an error."""
        raise NotImplementedError

    def resize(self, threads: int) -> None:
        """Change the number of threads of the input."""
        self._upstream.resize(threads)

    def close(self) -> None:
        """End the threads of the input; idempotent, in any thread."""
        self._upstream.close()


class SequentialNode(PipelineNode):
    """A step whose batches depend on all earlier ones."""

    sequential = True
    fills_slots = True
    drops: bool = False  # rows without output are counted as "dropped"
    row_by_row: bool = False  # a position is that of a row of the input, for any shards

    def layout(self, inputs: Sequence[BatchLayout], remainder: Remainder) -> BatchLayout:
        size = self.batch_size or inputs[0].batch_size
        return dataclasses.replace(inputs[0], batch_size=size, remainder=remainder)

    def open_upstream(self, epoch: Epoch, vertex: Vertex, position: Any) -> Upstream:
        """Return what the flow reads, from a position on."""
        return epoch.open_upstream(vertex, position)

    def rows(self, block: Block) -> Any:
        """Return what a block becomes, `Rows` for a `RowFlow`; in any thread."""
        count = len(block.records)
        return Rows(block.data, block.records, np.arange(count), count)

    def flow(self, epoch: Epoch, vertex: Vertex, position: dict[str, Any]) -> Flow:
        """Return the batches from a position on; it is empty at the beginning."""
        return self._row_flow(epoch, vertex, position)

    def _row_flow(
        self, epoch: Epoch, vertex: Vertex, position: dict[str, Any], **options: Any
    ) -> Flow:
        upstream = self.open_upstream(epoch, vertex, position["at"] if position else None)
        return RowFlow(upstream, epoch.layout(vertex), position, self.drops, **options)


def with_remainder(block: Block | None, size: int, remainder: Remainder) -> Block | None:
    """Return the batch for a block of at most `size` rows: dropped, padded or unchanged."""
    if block is None or (remainder == "drop" and len(block.records) < size):
        return None
    if remainder != "pad":
        return block
    if "mask" in block.data:
        raise ValueError("the batch has a field 'mask', which pad_remainder=True adds; rename it")
    count = len(block.records)
    mask = np.arange(size) < count
    if count < size:
        rows = np.minimum(np.arange(size), count - 1)
        block = Block(row.joined([(block.data, rows)]), block.records[rows])
    return Block({**block.data, "mask": mask}, block.records)


class _Piece:
    """The rows of one block from `at` on, or an error in its place. `skipped` rows without output
    were counted before."""

    def __init__(self, item: Item, at: int = 0, skipped: int = 0) -> None:
        self.item, self.at, self.skipped = item, at, skipped

    @property
    def rows(self) -> Rows:
        rows: Rows = self.item.value
        return rows

    @property
    def remaining(self) -> int:
        return 0 if self.item.error is not None else len(self.rows.records) - self.at


class RowFlow(Flow):
    """The rows of the input, or windows over them, in full batches; then the remainder.

    A position is that of the first row that was not dropped. An error in a block's place is raised
    once, and the rows of the block are lost. `most` is the number of rows at most, `window` is
    (size, stride).
    """

    def __init__(
        self,
        upstream: Upstream,
        layout: BatchLayout,
        position: dict[str, Any],
        drops: bool,
        most: int | None = None,
        window: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(upstream, layout)
        self._drops, self._window = drops, window
        self._remaining: int | None = position.get("remaining", most)
        self._pieces: deque[_Piece] = deque()
        self._count = 0
        self._ended = False
        self._spec: dict[str, tuple[Any, ...]] | None = None
        first = int(position.get("row", 0)), int(position.get("part", 0))
        self._begin: tuple[int, int] | None = first
        self._raised = int(position.get("errors", 0))  # raised before, and raised again upstream
        self._passing = int(position.get("pass", 0))  # rows to drop that were not read yet
        self._dropped = int(position.get("counts", {}).get("dropped", 0))

    @property
    def position(self) -> dict[str, Any]:
        dropped = self._dropped
        first, part = self._begin or (0, 0)  # if nothing was read, where it begins
        position: dict[str, Any] = {"at": self._upstream.position}
        if self._pieces:
            head = self._pieces[0]
            first = int(head.rows.origins[head.at])
            part = head.at - int(np.searchsorted(head.rows.origins, first))
            position["at"] = head.item.before
            dropped += first - head.at - head.skipped
        errors = self._raised + sum(piece.item.error is not None for piece in self._pieces)
        numbers = {"row": first, "part": part, "errors": errors, "pass": self._passing}
        position |= {name: value for name, value in numbers.items() if value}
        if self._drops:
            position["counts"] = {"dropped": dropped}
        if self._remaining is not None:
            position["remaining"] = self._remaining
        return position

    def next(self) -> Block | None:
        limit = self._size if self._remaining is None else min(self._size, self._remaining)
        length, stride = self._window or (1, 1)
        available = self._ensure((limit - 1) * stride + length) if limit else 0
        count = min(limit, max(0, (available - length) // stride + 1))
        block = self._first(count if self._window is None else available) if count else None
        self._drop(count * stride)
        if self._remaining is not None:
            self._remaining -= count
        if self._window is not None and block is not None:
            starts = np.arange(count) * stride
            rows = (starts[:, None] + np.arange(length)).reshape(-1)
            data = jax.tree.map(
                lambda x: x.reshape(count, length, *x.shape[1:]), row.joined([(block.data, rows)])
            )
            block = Block(data, block.records[starts])
        return with_remainder(block, self._size, self._remainder)

    def _ensure(self, count: int) -> int:
        """Read until `count` rows are available, or all; return the number of rows."""
        while self._count < count and not self._ended:
            item = self._upstream.next()
            if item is None:
                self._ended = True
                break
            item = self._check(item)
            begin, self._begin = self._begin, None
            piece = _Piece(item)
            if item.error is None and begin not in (None, (0, 0)):
                assert begin is not None
                at = int(np.searchsorted(item.value.origins, begin[0])) + begin[1]
                at = min(at, len(item.value.records))
                piece = _Piece(item, at, begin[0] - (at - begin[1]))
            self._pieces.append(piece)
            self._count += piece.remaining
            passing, self._passing = self._passing, 0
            self._drop(passing)
            if item.error is not None:
                if not self._raised:
                    raise item.error
                self._raised -= 1
        return self._count

    def _first(self, count: int) -> Block:
        """Return the first rows without dropping them."""
        parts: list[tuple[Data, slice]] = []
        records = []
        for piece in self._pieces:
            number = min(piece.remaining, count)
            if number:
                rows = slice(piece.at, piece.at + number)
                parts.append((piece.rows.data, rows))
                records.append(piece.rows.records[rows])
                count -= number
        return Block(row.joined(parts), np.concatenate(records))

    def _drop(self, count: int) -> None:
        """Drop the first rows, also rows that were not read yet."""
        for piece in self._pieces:
            number = min(piece.remaining, count)
            piece.at += number
            count -= number
            self._count -= number
        self._passing += count
        while self._pieces and not self._pieces[0].remaining:
            piece = self._pieces.popleft()
            if piece.item.error is None:
                self._dropped += piece.rows.block_rows - len(piece.rows.records) - piece.skipped

    def _check(self, item: Item) -> Item:
        """Return the item, or an error if its fields differ from those before."""
        if item.error is not None or not len(item.value.records):
            return item
        arrays = {k: v for k, v in item.value.data.items() if not row.is_ragged(v)}
        spec = {
            jax.tree_util.keystr(path): (value.dtype, value.shape[1:])
            for path, value in jax.tree_util.tree_flatten_with_path(arrays)[0]
        }
        self._spec = self._spec or spec
        if spec == self._spec:
            return item
        changed = [
            f"{name} is {_describe(spec.get(name))} and was {_describe(self._spec.get(name))}"
            for name in sorted({*spec, *self._spec})
            if spec.get(name) != self._spec.get(name)
        ]
        error = ValueError(
            f"the fields of records changed: {'; '.join(changed)}; expected the same fields, "
            "shapes and dtypes in all records"
        )
        return item._replace(value=None, error=error)


def _describe(spec: tuple[Any, ...] | None) -> str:
    return "absent" if spec is None else f"{spec[0]}{list(spec[1])}"


class Filter(SequentialNode):
    """Keeps the records for which a predicate is True, in full batches.

    A record keeps its id, so that random draws after the filter are the same as without it. The
    number of batches is unknown before the end of an epoch: ``len(pipeline)`` raises. Worker
    threads call the predicate, which must depend on its record only.

    Args:
      predicate: ``predicate(record) -> bool``, where a record is a dict of NumPy arrays.
      batched: True if it takes a batch instead of a record, and returns bool [N].
      name: in messages, states and explanations.
    Raises: TypeError for a predicate that cannot be called.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Filter
    >>> pipe = jk.from_source({"x": [5, 1, 6, 2, 7, 8]}, batch_size=2)
    >>> [batch["x"].tolist() for batch in pipe >> Filter(lambda record: record["x"] > 4)]
    [[5, 6], [7, 8]]
    >>> odd = Filter(lambda batch: batch["x"] % 2 == 1, batched=True)
    >>> [batch["x"].tolist() for batch in pipe >> odd]
    [[5, 1], [7]]
    """

    drops = True
    row_by_row = True

    def __init__(
        self, predicate: Callable[[Data], Any], *, batched: bool = False, name: str | None = None
    ) -> None:
        if not callable(predicate):
            raise TypeError(f"predicate is {predicate!r:.80}; expected a function of a record")
        self.predicate, self.batched = predicate, bool(batched)
        self.name = name or f"Filter({qualified_name(predicate)})"

    def describe(self) -> str:
        return f"Filter({qualified_name(self.predicate)}{', batched' if self.batched else ''})"

    def rows(self, block: Block) -> Rows:
        count = len(block.records)
        if self.batched:
            keep = np.asarray(self.predicate(block.data))
            if keep.shape != (count,) or keep.dtype != bool:
                what = row.described(keep)
                raise TypeError(f"the predicate returned {what}; expected bool[{count}]")
        else:
            pairs = zip(row.records_of(block.data, range(count)), block.records, strict=True)
            keep = np.array([self._holds(data, record) for data, record in pairs], bool)
        origins = np.flatnonzero(keep)
        if len(origins) == count:
            return Rows(block.data, block.records, origins, count)
        data = row.joined([(block.data, origins)]) if len(origins) else {}
        return Rows(data, block.records[origins], origins, count)

    def _holds(self, data: Data, record: np.integer[Any]) -> bool:
        try:
            result = np.asarray(self.predicate(data))
            if result.shape != () or result.dtype != bool:
                raise TypeError(
                    f"the predicate returned {row.described(result)} for one record; expected a "
                    "bool, or use Filter(predicate, batched=True)"
                )
        except BaseException as error:
            note(error, "for record {}", int(record))
            raise
        return bool(result)


class SequentialRows(SequentialNode):
    """`Rebatch`, `Take` or `Repeat` of a stream whose length is unknown.

    `Take` does not read the rest of the stream. The t-th part of epoch e of `Repeat` is epoch
    ``e * times + t`` of the input; record r gets the id ``r * times + t``, for its own draws.
    """

    def __init__(self, node: Any) -> None:
        self._text: str = node.describe()
        self.name, self.batch_size = node.name, node.batch_size
        self.row_by_row = node.name == "rebatch"
        self._times: int | None = getattr(node, "times", None)
        self._records: int | None = getattr(node, "records", None)

    def describe(self) -> str:
        return self._text

    def open_upstream(self, epoch: Epoch, vertex: Vertex, position: Any) -> Upstream:
        if self._times is None:
            return super().open_upstream(epoch, vertex, position)
        return _RepeatedUpstream(epoch, vertex, self._times, position or {"turn": 0, "at": None})

    def flow(self, epoch: Epoch, vertex: Vertex, position: dict[str, Any]) -> Flow:
        index, shards = epoch.layout(vertex).shard
        most = None if self._records is None else len(range(index, self._records, shards))
        return self._row_flow(epoch, vertex, position, most=most)


class _RepeatedUpstream:
    """The epochs of a repeated input one after the other."""

    def __init__(self, epoch: Epoch, vertex: Vertex, times: int, position: dict[str, Any]) -> None:
        self._epoch, self._vertex, self._times = epoch, vertex, times
        self._turn = int(position["turn"])
        self._closed = False
        self._current = self._open(position["at"])

    def _open(self, position: Any) -> Engine:
        epoch = self._epoch.for_epoch(self._epoch.number * self._times + self._turn)
        return epoch.open_upstream(self._vertex, position)

    @property
    def position(self) -> dict[str, Any]:
        return {"turn": self._turn, "at": self._current.position}

    def next(self) -> Item | None:
        while (item := self._current.next()) is None:
            if self._turn + 1 == self._times:
                return None
            self._current.close()
            self._turn += 1
            self._current = self._open(None)
            if self._closed:
                self._current.close()
        if item.error is None:
            rows: Rows = item.value
            if rows.records.size and rows.records.max() >= 2**63 // self._times:
                raise ValueError(
                    f"record {rows.records.max()} times {self._times} does not fit into 63 bits"
                )
            records = rows.records.astype(np.int64) * self._times + self._turn
            item = item._replace(value=rows._replace(records=records))
        before, after = ({"turn": self._turn, "at": at} for at in (item.before, item.after))
        return item._replace(before=before, after=after)

    def resize(self, threads: int) -> None:
        self._current.resize(threads)

    def close(self) -> None:
        self._closed = True
        self._current.close()


#: the input of a flow
Upstream = Engine | _RepeatedUpstream
