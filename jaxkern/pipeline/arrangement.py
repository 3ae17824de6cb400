"""The order of an epoch: the record of each row, of one source or of several.

An order is a pure function from (shard, epoch, rows) to record ids. The ids of a source are its own
record numbers. If several sources, or several epochs of a source, form one epoch, record r of
source s in its t-th epoch has the id ``t * stride + (ids of the sources before s) + r``, where
`stride` is the number of ids of all sources. No two records share an id, so their random draws
differ.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxkern.pipeline.order import Permutation, Schedule

Shard = tuple[int, int]
Rows = np.ndarray[Any, np.dtype[np.int64]]


class Part(NamedTuple):
    """Rows of an order that are read from one epoch of one input."""

    source: int  # index of the input
    shard: Shard  # shard of the input; epoch and rows also refer to the input
    epoch: int
    rows: Rows  # int64 [n], ascending
    positions: Rows  # int64 [n], indices into the requested rows
    record_id_offset: int  # added to the record ids of the input


@dataclasses.dataclass(frozen=True)
class Order:
    """The records of an epoch, row by row: rows of inputs, possibly of several epochs of each."""

    inputs: tuple[Order, ...]

    def locate(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        """Return (input, number of rows of this input before the row) for each row of a shard."""
        return np.zeros(len(rows), np.int64), rows

    def row_at(self, shard: Shard, source: int, number: int) -> int:
        """Return the row that is row `number` of an input; the inverse of `locate`.

        The rows of an input are counted over all of its epochs.
        """
        return number

    def rows_in(self, shard: Shard) -> int:
        """Return the number of rows of a shard; it may be 0, and never increases with the index."""
        return self.inputs[0].rows_in(shard)

    def input_epochs_per_epoch(self, source: int, count: int) -> int:
        """Return the maximum number of epochs of an input in one epoch, with `count` shards."""
        return self.epoch_bound

    @property
    def epoch_bound(self) -> int:
        """Upper bound of `input_epochs_per_epoch` for all inputs and shard counts."""
        return 1

    @property
    def counted_inputs(self) -> tuple[Order, ...]:
        """The inputs whose records have ids."""
        return self.inputs

    @property
    def total(self) -> int:
        """The number of records."""
        return sum(order.total for order in self.counted_inputs)

    @functools.cached_property
    def _stride(self) -> int:
        return sum(order.record_id_bound for order in self.counted_inputs)

    @functools.cached_property
    def record_id_bound(self) -> int:
        """Exclusive upper bound of the record ids."""
        return self._stride * self.epoch_bound

    def parts(self, shard: Shard, epoch: int, rows: Rows) -> Iterator[Part]:
        """Yield the rows of the inputs that make up the requested rows."""
        which, numbers = self.locate(shard, rows)
        offset = 0
        for source, order in enumerate(self.inputs):
            positions = np.flatnonzero(which == source)
            if positions.size:
                epochs, inner = np.divmod(numbers[positions], order.rows_in(shard))
                first = epoch * self.input_epochs_per_epoch(source, shard[1])
                for turn in range(int(epochs.min()), int(epochs.max()) + 1):
                    now = epochs == turn
                    ids = turn * self._stride + offset
                    yield Part(source, shard, first + turn, inner[now], positions[now], ids)
            offset += order.record_id_bound

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        """Return the record ids of rows of a shard."""
        records = np.empty(len(rows), np.int64)
        for part in self.parts(shard, epoch, rows):
            if part.source < len(self.counted_inputs):
                ids = self.inputs[part.source].records(part.shard, part.epoch, part.rows)
                records[part.positions] = part.record_id_offset + ids
        return records

    def row_of(self, count: int, epoch: int, record: int) -> tuple[int, int] | None:
        """Return the (shard, row) of a record among `count` shards; None if the epoch omits it."""
        turn, record = divmod(record, self._stride)
        ends = np.cumsum([order.record_id_bound for order in self.counted_inputs])
        source = int(np.searchsorted(ends, record, side="right"))
        order = self.inputs[source]
        record -= int(ends[source]) - order.record_id_bound
        epochs = self.input_epochs_per_epoch(source, count)
        inner = order.row_of(count, epoch * epochs + turn, record) if turn < epochs else None
        if inner is None:
            return None
        shard = inner[0], count
        row = self.row_at(shard, source, turn * order.rows_in(shard) + inner[1])
        return (inner[0], row) if row < self.rows_in(shard) else None

    def with_seed(self, seed: int) -> Order:
        """Return the same order with another seed."""
        return dataclasses.replace(self, inputs=tuple(o.with_seed(seed) for o in self.inputs))

    def describe(self) -> str:
        """Return a text that is equal for equal orders; for states."""
        return ", ".join(order.describe() for order in self.inputs)


@dataclasses.dataclass(frozen=True)
class SourceOrder(Order):
    """The records of one source, possibly shuffled."""

    inputs: tuple[Order, ...] = dataclasses.field(default=(), init=False)
    count: int
    seed: int
    shuffle: bool

    @property
    def total(self) -> int:
        return self.count

    @functools.cached_property
    def record_id_bound(self) -> int:
        return self.count

    def rows_in(self, shard: Shard) -> int:
        return len(range(shard[0], self.count, shard[1]))

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        positions = np.minimum(rows * shard[1] + shard[0], self.count - 1)
        if not self.shuffle:
            return positions
        return _permutation(self.count, self.seed, epoch)(positions)

    def row_of(self, count: int, epoch: int, record: int) -> tuple[int, int] | None:
        if self.shuffle:
            permutation = _permutation(self.count, self.seed, epoch)
            record = int(permutation.position_of(np.array([record]))[0])
        return record % count, record // count

    def with_seed(self, seed: int) -> Order:
        return dataclasses.replace(self, seed=seed)

    def describe(self) -> str:
        return f"{self.count} shuffled by {self.seed}" if self.shuffle else f"{self.count} in order"


_permutation = functools.lru_cache(maxsize=64)(Permutation)


@dataclasses.dataclass(frozen=True)
class Mixture(Order):
    """Inputs mixed by weight.

    An epoch ends before an input would have to repeat a record. With `stop` "last" it ends when
    every record has occurred, and shorter inputs repeat.
    """

    schedule: Schedule
    stop: Literal["first", "last"]

    def input_epochs_per_epoch(self, source: int, count: int) -> int:
        return 1 if self.stop == "first" else _mixture_epochs(self, source, count)

    @functools.cached_property
    def epoch_bound(self) -> int:
        if self.stop == "first":
            return 1
        # A shard may have half the average number of rows of an input, and twice that of another.
        return 4 + 4 * max(self.input_epochs_per_epoch(s, 1) for s in range(len(self.inputs)))

    def rows_in(self, shard: Shard) -> int:
        lengths = [order.rows_in(shard) for order in self.inputs]
        if self.stop == "first":
            return min(self.row_at(shard, s, n) for s, n in enumerate(lengths))
        if not all(lengths):
            return 0
        return 1 + max(self.row_at(shard, s, n - 1) for s, n in enumerate(lengths))

    def locate(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        return self.schedule.at(rows)

    def row_at(self, shard: Shard, source: int, number: int) -> int:
        return int(self.schedule.position(source, np.array([number]))[0])

    def with_seed(self, seed: int) -> Order:
        inputs = tuple(order.with_seed(seed) for order in self.inputs)
        schedule = dataclasses.replace(self.schedule, seed=seed)
        return dataclasses.replace(self, inputs=inputs, schedule=schedule)

    def describe(self) -> str:
        weights = ":".join(map(str, self.schedule.weights))
        seed = self.schedule.seed
        return f"mix({super().describe()}; {weights}, seed {seed}, stop {self.stop})"


@functools.lru_cache(maxsize=256)  # called for every batch
def _mixture_epochs(mixture: Mixture, source: int, count: int) -> int:
    rows = np.array([mixture.rows_in((0, count))])
    most = mixture.schedule.before(source, rows).item()
    return -(-most // max(mixture.inputs[source].rows_in((count - 1, count)), 1))


@dataclasses.dataclass(frozen=True)
class Concatenation(Order):
    """Inputs in sequence."""

    def _starts(self, shard: Shard) -> Rows:
        return np.cumsum([0, *(order.rows_in(shard) for order in self.inputs)], dtype=np.int64)

    def rows_in(self, shard: Shard) -> int:
        return int(self._starts(shard)[-1])

    def locate(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        starts = self._starts(shard)
        which = np.searchsorted(starts, rows, side="right") - 1
        return which, rows - starts[which]

    def row_at(self, shard: Shard, source: int, number: int) -> int:
        return int(self._starts(shard)[source]) + number

    def describe(self) -> str:
        return f"concat({super().describe()})"


@dataclasses.dataclass(frozen=True)
class Repetition(Order):
    """Several epochs of one input as one epoch."""

    times: int

    @property
    def epoch_bound(self) -> int:
        return self.times

    def rows_in(self, shard: Shard) -> int:
        return self.times * self.inputs[0].rows_in(shard)

    def describe(self) -> str:
        return f"{super().describe()}, {self.times} times"


@dataclasses.dataclass(frozen=True)
class TakeOrder(Order):
    """The first records of one input's epoch, over all shards together."""

    most: int

    def rows_in(self, shard: Shard) -> int:
        return min(self.inputs[0].rows_in(shard), len(range(shard[0], self.most, shard[1])))

    def describe(self) -> str:
        return f"the first {self.most} of {super().describe()}"


@dataclasses.dataclass(frozen=True)
class Pairing(Order):
    """Inputs zipped up to the length of the shortest, with the record ids of the first input."""

    @property
    def counted_inputs(self) -> tuple[Order, ...]:
        return self.inputs[:1]

    def rows_in(self, shard: Shard) -> int:
        return min(order.rows_in(shard) for order in self.inputs)

    def parts(self, shard: Shard, epoch: int, rows: Rows) -> Iterator[Part]:
        for source in range(len(self.inputs)):
            yield Part(source, shard, epoch, rows, np.arange(len(rows)), 0)

    def describe(self) -> str:
        return f"zip({super().describe()})"


class Span(NamedTuple):
    """Rows of a shard that were not delivered."""

    shard: int
    start: int
    stop: int


class PendingShards(NamedTuple):
    """The rest of an interrupted epoch: the rows that each of its shards has not delivered."""

    shards: int
    spans: tuple[Span, ...]


@dataclasses.dataclass(frozen=True)
class ReshardedOrder(Order):
    """The rest of an interrupted epoch of one input, divided among the current shards."""

    pending: PendingShards

    @functools.cached_property
    def _starts(self) -> Rows:
        lengths = [span.stop - span.start for span in self.pending.spans]
        return np.cumsum([0, *lengths], dtype=np.int64)

    def _first_row(self, shard: Shard) -> int:
        # The rows of a shard are contiguous, so that it reads from few of the old shards.
        index, count = shard
        each, more = divmod(int(self._starts[-1]), count)
        return index * each + min(index, more)

    def rows_in(self, shard: Shard) -> int:
        return self._first_row((shard[0] + 1, shard[1])) - self._first_row(shard)

    def remaining_spans(self, shard: Shard, delivered: int) -> Iterator[Span]:
        """Yield the spans of a shard after its first `delivered` rows."""
        begin = self._first_row(shard) + delivered
        end = self._first_row((shard[0] + 1, shard[1]))
        for first, span in zip(self._starts.tolist(), self.pending.spans, strict=False):
            start, stop = max(begin - first, 0), min(end - first, span.stop - span.start)
            if start < stop:
                yield Span(span.shard, span.start + start, span.start + stop)

    def _old_rows(self, shard: Shard, rows: Rows) -> Iterator[tuple[Shard, Rows, Rows]]:
        """Yield (old shard, rows of it, positions of these rows among the requested rows)."""
        pending = np.minimum(rows + self._first_row(shard), self._starts[-1] - 1)
        which = np.searchsorted(self._starts, pending, side="right") - 1
        for number in np.unique(which).tolist():
            positions = np.flatnonzero(which == number)
            span = self.pending.spans[number]
            old = pending[positions] - self._starts[number] + span.start
            yield (span.shard, self.pending.shards), old, positions

    def parts(self, shard: Shard, epoch: int, rows: Rows) -> Iterator[Part]:
        for old_shard, old, positions in self._old_rows(shard, rows):
            for part in self.inputs[0].parts(old_shard, epoch, old):
                yield part._replace(positions=positions[part.positions])

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        records = np.empty(len(rows), np.int64)
        for old_shard, old, positions in self._old_rows(shard, rows):
            records[positions] = self.inputs[0].records(old_shard, epoch, old)
        return records
