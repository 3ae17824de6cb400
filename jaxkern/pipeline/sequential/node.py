"""Nodes whose batches depend on all before them, and the rows that they read in order."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxkern.pipeline import rows as row
from jaxkern.pipeline.feed import Feed, Item
from jaxkern.pipeline.graph import UNKNOWN, Block, PipelineNode, Remainder, Stream, Vertex
from jaxkern.pipeline.rows import Data


class Rows(NamedTuple):
    """What a node makes of one block, in any worker thread.

    Attributes:
      data: the rows that come out; without fields where there are none.
      records: int64 [M], their ids.
      origins: int64 [M], ascending: the row of the block that each comes from.
      given: the rows of the block.
    """

    data: Data
    records: np.ndarray
    origins: np.ndarray
    given: int


class Given(Protocol):
    """What a flow reads, as `Feed` says."""

    @property
    def place(self) -> Any:
        """Behind the last item."""

    def next(self) -> Item | None:
        """The next item, of `Rows`; None behind the last."""

    def resize(self, threads: int, ahead: int) -> None:
        """As `Feed.resize`."""

    def close(self) -> None:
        """Ends its threads; idempotent."""


class FlowStart(NamedTuple):
    """What a flow begins with.

    Attributes:
      given: items with the `Rows` of each block before the node, as of a `Feed`; None for a source.
      stream: behind the node.
      epoch: its number.
      place: of a flow that goes on, as `Flow.place` was; None at the beginning.
      threads, ahead: for a `Feed` of a source's own.
    """

    given: Given | None
    stream: Stream
    epoch: int
    place: dict[str, Any] | None
    threads: int
    ahead: int


class Deferred(NamedTuple):
    """A batch that is decided and not made yet: the thread that takes it does that.

    Attributes:
      make: the block; of arrays to fill, where the thread has some and they fit, or None.
    """

    make: Callable[[Data | None], Block]


class Flow:
    """The batches of an epoch behind a `SequentialNode`, in order from a place on."""

    @property
    def place(self) -> dict[str, Any]:
        """Behind the last batch or error that `next` gave; small and JSON-able.

        A flow that begins there gives the same batches from there on, bit for bit. Of a node with
        an input, "at" is the place of the feed from which on it is read again: `Feed.place`, or an
        `Item`'s ``before``. "counts", where it is there, are numbers of the epoch so far by name.
        """
        raise NotImplementedError

    def next(self) -> Block | Deferred | None:
        """The next batch; None behind the last. Behind an error it goes on with what follows."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the flow itself has opened."""


class SequentialNode(PipelineNode):
    """A step whose batches depend on all before them: one flow makes them in order.

    What stands before it is made ahead by threads of its own, each block on its own; `rows` is
    called there. The flow puts the batches together. What stands behind it runs as in any pipeline.
    """

    #: batches of this size; None for the size of what is before
    batch_size: int | None = None
    #: of a source: what becomes of the rows that fill no batch
    remainder: Remainder | None = None

    @property
    def once(self) -> bool:
        """Whether a source can be read from its beginning one time only."""
        return False

    #: whether its batches are arrays that nobody writes to afterwards, see `BatchSource.fresh`
    fresh: bool = False
    #: whether rows that do not come out are counted as "dropped"
    drops: bool = False

    def stream(self, inputs: Sequence[Stream]) -> Stream:
        size = self.batch_size or inputs[0].batch_size
        return dataclasses.replace(inputs[0], rows=UNKNOWN, batch_size=size)

    def given(self, opened: Callable[[int, Any], Feed], epoch: int, at: Any) -> Given:
        """What the flow reads: `opened` gives what is before in an epoch, from a place on."""
        return opened(epoch, at)

    def rows(self, block: Block) -> Rows:
        """What comes of a block, on its own; in any thread."""
        count = len(block.records)
        return Rows(block.data, block.records, np.arange(count), count)

    def remarks(self) -> Sequence[str]:
        """On how it reads its records, for `Pipeline.explain`."""
        return ()

    def flow(self, start: FlowStart) -> Flow:
        """The batches from a place on."""
        return DenseFlow(RowReader(start, self.drops), start.stream)


class SequentialRebatch(SequentialNode):
    """`Rebatch` of a stream whose length is unknown."""

    name = "rebatch"

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size

    def describe(self) -> str:
        return f"Rebatch({self.batch_size})"


def follows_sequential(vertex: Vertex) -> bool:
    """Whether a node behind this vertex reads what a sequential node gives."""
    return any(isinstance(before.node, SequentialNode) for before in vertex.ordered())


class DenseFlow(Flow):
    """The rows in full batches, and at the end what the remainder says."""

    def __init__(self, reader: RowReader, stream: Stream) -> None:
        self._reader = reader
        self._size, self._remainder = stream.batch_size, stream.remainder

    @property
    def place(self) -> dict[str, Any]:
        return self._reader.place

    def next(self) -> Block | None:
        count = min(self._reader.ensure(self._size), self._size)
        block = self._reader.first(count)
        self._reader.drop(count)
        return with_remainder(block, self._size, self._remainder)


def with_remainder(block: Block | None, size: int, remainder: Remainder) -> Block | None:
    """A block of at most so many rows as the batch that the remainder makes of it."""
    if block is None or (remainder == "drop" and len(block.records) < size):
        return None
    if remainder != "pad":
        return block
    if "mask" in block.data:
        raise ValueError("the batch has a field 'mask', which pad_remainder=True adds: rename it")
    count = len(block.records)
    mask = np.arange(size) < count
    if count < size:
        again = np.minimum(np.arange(size), count - 1)
        block = Block(row.joined([(block.data, again)]), block.records[again])
    return Block({**block.data, "mask": mask}, block.records)


class _Piece:
    """The rows of one block, from `at` on; without any for an error in its place."""

    def __init__(self, item: Item, at: int, skipped: int) -> None:
        self.item, self.at = item, at
        self.skipped = skipped  # rows that did not come out, and were counted before

    @property
    def rows(self) -> Rows:
        rows: Rows = self.item.value
        return rows

    @property
    def left(self) -> int:
        return 0 if self.item.error is not None else len(self.rows.records) - self.at


class RowReader:
    """The rows before a node, in order; some are looked at before they are let go.

    Its place is that of the first row that was not let go. An error in a block's place is raised
    once, and the block's rows do not come.
    """

    def __init__(self, start: FlowStart, drops: bool = False) -> None:
        assert start.given is not None
        place = start.place or {}
        self._given = start.given
        self._drops = drops
        self._pieces: deque[_Piece] = deque()
        self._count = 0
        self._ended = False
        self._spec: dict[str, tuple[Any, ...]] | None = None
        self._begin: tuple[int, int] | None = (int(place.get("row", 0)), int(place.get("part", 0)))
        self._raised = int(place.get("errors", 0))  # were raised before, and come again
        self._passing = int(place.get("pass", 0))  # rows to let go that have not come yet
        self._dropped = int(place.get("counts", {}).get("dropped", 0))

    @property
    def place(self) -> dict[str, Any]:
        """Of the first row that was not let go; see `Flow.place`."""
        dropped = self._dropped
        first, part = self._begin or (0, 0)  # where nothing was read, it is where it begins
        found: dict[str, Any] = {"at": self._given.place}
        if self._pieces:
            head = self._pieces[0]
            first = int(head.rows.origins[head.at])
            part = head.at - int(np.searchsorted(head.rows.origins, first))
            found["at"] = head.item.before
            dropped += first - head.at - head.skipped
        errors = self._raised + sum(piece.item.error is not None for piece in self._pieces)
        told = {"row": first, "part": part, "errors": errors}
        found |= {name: value for name, value in told.items() if value}
        if self._passing:
            found["pass"] = self._passing
        if self._drops:
            found["counts"] = {"dropped": dropped}
        return found

    def ensure(self, count: int) -> int:
        """Reads until so many rows are there, or all; how many there are."""
        while self._count < count and not self._ended:
            item = self._given.next()
            if item is None:
                self._ended = True
                break
            item = self._checked(item)
            begin, self._begin = self._begin, None
            at = skipped = 0
            if item.error is None and begin not in (None, (0, 0)):
                assert begin is not None
                at = int(np.searchsorted(item.value.origins, begin[0])) + begin[1]
                at = min(at, len(item.value.records))
                skipped = begin[0] - (at - begin[1])
            piece = _Piece(item, at, skipped)
            self._pieces.append(piece)
            self._count += piece.left
            if self._passing:
                passing, self._passing = self._passing, 0
                self.drop(passing)
            self._release()
            if item.error is not None:
                if self._raised:
                    self._raised -= 1
                else:
                    raise item.error
        return self._count

    def first(self, count: int) -> Block | None:
        """The first rows, which stay; None for none."""
        parts: list[tuple[Data, slice]] = []
        records = []
        for piece in self._pieces:
            taken = min(piece.left, count)
            if taken:
                parts.append((piece.rows.data, slice(piece.at, piece.at + taken)))
                records.append(piece.rows.records[piece.at : piece.at + taken])
                count -= taken
        return Block(row.joined(parts), np.concatenate(records)) if parts else None

    def drop(self, count: int) -> None:
        """Lets the first rows go, also such as have not come yet."""
        for piece in self._pieces:
            taken = min(piece.left, count)
            piece.at += taken
            count -= taken
            self._count -= taken
        self._passing += count
        self._release()

    def _release(self) -> None:
        while self._pieces and not self._pieces[0].left:
            piece = self._pieces.popleft()
            if piece.item.error is None:
                self._dropped += piece.rows.given - len(piece.rows.records) - piece.skipped

    def _checked(self, item: Item) -> Item:
        """The item, or an error where its rows do not look like those before."""
        if item.error is not None or not len(item.value.records):
            return item
        spec = {
            jax.tree_util.keystr(path): (value.dtype, value.shape[1:])
            for path, value in jax.tree_util.tree_flatten_with_path(
                {k: v for k, v in item.value.data.items() if not row.is_ragged(v)}
            )[0]
        }
        if self._spec is None:
            self._spec = spec
        if spec == self._spec:
            return item
        changed = [
            f"{name} is {_told(spec.get(name))} and was {_told(self._spec.get(name))}"
            for name in sorted({*spec, *self._spec})
            if spec.get(name) != self._spec.get(name)
        ]
        error = ValueError(
            f"the fields of records changed: {'; '.join(changed)}; wanted the same fields, shapes "
            "and dtypes in all records"
        )
        return item._replace(value=None, error=error)


def _told(spec: tuple[Any, ...] | None) -> str:
    return "absent" if spec is None else f"{spec[0]}{list(spec[1])}"
