"""Nodes whose batches depend on all earlier ones; Take, Repeat and Rebatch after such nodes.

A sequential node has a *flow*, which reads the output of the node block by block and decides which
rows form a batch. A second engine computes the output ahead of time: it calls the node's `rows` in
worker threads. The thread that uses a batch copies its rows.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from jaxkern.pipeline import rows as row
from jaxkern.pipeline.arrangement import Shard
from jaxkern.pipeline.engine import Engine, Item
from jaxkern.pipeline.nodes import BatchLayout, Block, PipelineNode, Remainder, Vertex
from jaxkern.pipeline.rows import Data

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch


class Rows(NamedTuple):
    """The output of a node for one block, made in any worker thread."""

    data: Data  # empty if there are no rows
    records: np.ndarray  # int64 [M], the ids of the rows
    origins: np.ndarray  # int64 [M], ascending: the row of the block that each row is derived from
    block_rows: int  # number of rows of the block


#: computes a batch whose rows are decided; called in the thread that uses the batch, with arrays to
#: fill or None
DeferredBlock = Callable[[Data | None], Block]


class ReadItem(NamedTuple):
    """An item of the input, and the number of its first row since the flow began."""

    first: int
    item: Item

    @property
    def records(self) -> np.ndarray:
        """The records of its rows; empty for an error."""
        if self.item.error is not None:
            return np.empty(0, np.int64)
        return self.item.value.records

    @property
    def end(self) -> int:
        return self.first + len(self.records)


class Flow:
    """The batches of a sequential node in order, from a position on.

    A flow stores the items of the input that it has read, from the oldest one that it still needs.
    It resumes by reading from this item on. The error of an item is raised once.
    """

    def __init__(self, node: Any, epoch: Epoch, vertex: Vertex, position: dict[str, Any]) -> None:
        """Begin at the position, which is empty at the beginning of the epoch."""
        self._node, self._layout = node, epoch.layouts[vertex]
        self._upstream: Upstream = node.open_upstream(
            epoch, vertex, position["at"] if position else None
        )
        self._size, self._remainder = self._layout.batch_size, self._layout.remainder
        self._items: deque[ReadItem] = deque()
        self._count = 0  # number of rows that were read
        #: number of errors that were raised before the position was saved and will occur again
        self._old_errors = int(position.get("errors", 0))

    @property
    def position(self) -> dict[str, Any]:
        """The position after the last batch or error of `next`; small and JSON-able.

        A flow that begins at this position returns bit-identical batches. "at" is the position from
        which the input is read again. "counts" are counters of the epoch so far, by name.
        """
        raise NotImplementedError

    def next(self) -> DeferredBlock | None:
        """Return the next batch; None after the last one. It can be called again after an error."""
        raise NotImplementedError

    def resize(self, threads: int) -> None:
        """Change the number of threads of the input."""
        self._upstream.resize(threads)

    def close(self) -> None:
        """End the threads of the input; idempotent, in any thread."""
        self._upstream.close()

    def _read(self) -> bool:
        """Read one more item; return False after the last one."""
        item = self._upstream.next()
        if item is None:
            return False
        item = self._checked(item)
        self._items.append(ReadItem(self._count, item))
        self._count = self._items[-1].end
        if item.error is not None:
            self._raise(item.error)
        return True

    def _checked(self, item: Item) -> Item:
        """Return the item, or an item with an error."""
        return item

    def _raise(self, error: BaseException) -> None:
        if not self._old_errors:
            raise error
        self._old_errors -= 1

    def _drop_items(self, needed: Callable[[ReadItem], bool]) -> list[ReadItem]:
        """Remove and return the oldest items up to the first one that is needed."""
        dropped = []
        while self._items and not needed(self._items[0]):
            dropped.append(self._items.popleft())
        return dropped

    def _input_position(self) -> dict[str, Any]:
        """Return the position from which the items are read again."""
        errors = self._old_errors + sum(read.item.error is not None for read in self._items)
        at = self._items[0].item.before if self._items else self._upstream.position
        return {"at": at, "errors": errors} if errors else {"at": at}

    def _is_dropped(self, count: int) -> bool:
        """True if `count` rows are not a batch."""
        return not count or (count < self._size and self._remainder == "drop")

    def _with_mask(self, block: Block, count: int) -> Block:
        """Return the block; if batches are padded, fill it up and add a "mask" of `count` rows."""
        if self._remainder != "pad":
            return block
        if len(block.records) < self._size:  # repeats the last row
            rows = np.minimum(np.arange(self._size), count - 1)
            block = Block(row.joined([(block.data, rows)]), block.records[rows])
        return Block(row.with_mask(block.data, np.arange(self._size) < count), block.records)


class RowFlow(Flow):
    """The rows of the input, or windows over them, in full batches; then the remainder.

    The rows of a block with an error are lost. A position contains "row", the number of the next
    row counted from the first one of "at", and "origin": the row of the block that the next row is
    derived from, or None if that row also has earlier outputs.
    """

    def __init__(self, node: Any, epoch: Epoch, vertex: Vertex, position: dict[str, Any]) -> None:
        super().__init__(node, epoch, vertex, position)
        self._window = node.window
        most = node.most_rows(self._layout.shard)
        self._remaining: int | None = position.get("remaining", most)
        self._fields: row.Fields | None = None  # of the first rows
        self._next = int(position.get("row", 0))
        #: origin of the next row, before that row is read
        self._origin: int | None = position["origin"] if position else 0
        # A filter drops all rows before the origin that are not among the rows before the next.
        counted = int(position.get("counts", {}).get("dropped", 0))
        self._dropped = counted - (self._origin or 0) + self._next  # in the blocks before "at"

    @property
    def position(self) -> dict[str, Any]:
        position = self._input_position()
        row, origin = self._next - self._count, self._origin
        if self._items:
            row = self._next - self._items[0].first
            origins = self._items[0].item.value.origins
            origin = int(origins[row])
            if row and origins[row - 1] == origin:
                origin = None
        position |= {"row": row, "origin": origin}
        if self._node.drops:
            position["counts"] = {"dropped": self._dropped + (origin or 0) - row}
        if self._remaining is not None:
            position["remaining"] = self._remaining
        return position

    def next(self) -> DeferredBlock | None:
        limit = self._size if self._remaining is None else min(self._size, self._remaining)
        length, stride = self._window or (1, 1)
        try:
            while limit and self._count < self._next + (limit - 1) * stride + length:
                if not self._read():
                    break
            available = self._count - self._next
            count = max(0, min(limit, (available - length) // stride + 1))
            pieces = self._pieces(self._next, (count - 1) * stride + length) if count else []
            self._next += count * stride
            if self._remaining is not None:
                self._remaining -= count
        finally:
            for read in self._drop_items(lambda read: read.end > self._next):
                if read.item.error is None:
                    self._dropped += read.item.value.block_rows - len(read.records)
        return None if self._is_dropped(count) else functools.partial(self._make, pieces, count)

    def _pieces(self, start: int, count: int) -> list[tuple[Rows, slice]]:
        """Return the outputs that contain the rows from `start` on, with the slice of each."""
        pieces = []
        for read in self._items:
            first = max(start - read.first, 0)
            last = min(start + count - read.first, len(read.records))
            if first < last:
                pieces.append((read.item.value, slice(first, last)))
        return pieces

    def _make(self, pieces: list[tuple[Rows, slice]], count: int, out: Data | None) -> Block:
        records = np.concatenate([rows.records[selected] for rows, selected in pieces])
        parts = [(rows.data, selected) for rows, selected in pieces]
        block = Block(row.joined(parts, out=None if self._window else out), records)
        if self._window is not None:
            length, stride = self._window
            starts = np.arange(count) * stride
            rows = starts[:, None] + np.arange(length)
            block = Block(jax.tree.map(lambda x: x[rows], block.data), records[starts])
        return self._with_mask(block, count)

    def _checked(self, item: Item) -> Item:
        """Return the item, or an item with an error if its fields differ from earlier ones."""
        self._origin = 0
        if item.error is not None and self._window is None:
            self._next = min(self._next, self._count)  # the rows to skip were in the failed block
        if item.error is not None or not len(item.value.records):
            return item
        arrays = {k: v for k, v in item.value.data.items() if not row.is_ragged(v)}
        fields = row.fields_of(arrays)
        self._fields = self._fields or fields
        changes = row.differences(fields, self._fields) if fields != self._fields else []
        if not changes:
            return item
        changed = [f"{name} is {new} and was {old}" for name, new, old in changes]
        error = ValueError(
            f"the fields of records changed: {'; '.join(changed)}; expected the same fields, "
            "shapes and dtypes in all records"
        )
        return item._replace(value=None, error=error)


class SequentialNode(PipelineNode):
    """A step whose batches depend on all earlier ones."""

    sequential = True
    fills_slots = True
    window: tuple[int, int] | None = None  # (size, stride) of windows over the rows
    drops: bool = False  # rows without output are counted as "dropped"
    row_by_row: bool = False  # a position is a row, so it can be resharded
    flow: type[Flow] = RowFlow

    def layout(self, inputs: Sequence[BatchLayout], remainder: Remainder) -> BatchLayout:
        size = self.batch_size or inputs[0].batch_size
        return dataclasses.replace(inputs[0], batch_size=size, remainder=remainder)

    def rows(self, block: Block) -> Any:
        """Return the output for a block: `Rows` for a `RowFlow`; called in any thread."""
        count = len(block.records)
        return Rows(block.data, block.records, np.arange(count), count)

    def open_upstream(self, epoch: Epoch, vertex: Vertex, position: Any) -> Upstream:
        """Return the input of the flow, from a position on, or from the beginning."""
        return epoch.open_upstream(vertex, position)

    def most_rows(self, shard: Shard) -> int | None:
        """Return the maximum number of rows of a `RowFlow`; None without a limit."""
        return None


class SequentialRows(SequentialNode):
    """`Rebatch`, `Take` or `Repeat` of a stream whose length is unknown.

    `Take` does not read the rest of the stream. Repetition t in epoch e of `Repeat` is epoch ``e *
    times + t`` of the input. Its record r has the id ``r * times + t``, so that random draws
    differ.
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

    def most_rows(self, shard: Shard) -> int | None:
        return None if self._records is None else len(range(shard[0], self._records, shard[1]))


class _RepeatedUpstream:
    """The consecutive epochs of a repeated input."""

    def __init__(self, epoch: Epoch, vertex: Vertex, times: int, position: dict[str, Any]) -> None:
        self._epoch, self._vertex, self._times = epoch, vertex, times
        self._turn = int(position["turn"])
        self._closed = False
        self._current = self._open(position["at"])

    def _open(self, position: Any) -> Engine:
        run = self._epoch
        number = run.number * self._times + self._turn
        epoch = type(run)(run.plan, number, run.threads, run.ahead)
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
