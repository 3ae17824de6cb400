"""Which record is at which row of an epoch: the order of one source, and of several together.

An order is a pure function: of (shard, epoch, rows) it gives the numbers of records. Those of one
source are its own; where several sources, or several epochs of one, make up an epoch, record r of
source s in its turn t is t * (records of all) + (records of the sources before s) + r, so that no
two have the same number, and what is drawn for them differs.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from jaxkern.pipeline.order import Permutation
from jaxkern.pipeline.schedule import Schedule

Shard = tuple[int, int]
Rows = np.ndarray[Any, np.dtype[np.int64]]
_EndOfMixture = Literal["first", "last"]


class Part(NamedTuple):
    """Rows of an arrangement that one input has, of one of its epochs.

    Attributes:
      source: the input's number.
      shard, epoch: of the input.
      rows: of that shard, int64 [n], ascending.
      places: of them among the rows that were asked for.
      first: what the input's numbers of records are raised by.
    """

    source: int
    shard: Shard
    epoch: int
    rows: Rows
    places: Rows
    first: int


class Order:
    """The records of an epoch, row by row."""

    @property
    def total(self) -> int:
        """The records that there are."""
        raise NotImplementedError

    @property
    def numbers(self) -> int:
        """What the numbers of records are below."""
        raise NotImplementedError

    def rows_in(self, shard: Shard) -> int:
        """Rows of a shard; no more than those of the shards before it, and maybe none."""
        raise NotImplementedError

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        """The records of rows, which the shard has."""
        raise NotImplementedError

    def row_of(self, count: int, epoch: int, record: int) -> tuple[int, int] | None:
        """(shard, row) of a record among so many shards; None where the epoch leaves it out."""
        raise NotImplementedError

    def with_seed(self, seed: int) -> Order:
        """The same with another seed."""
        raise NotImplementedError

    def describe(self) -> str:
        """What must be equal for two orders to be equal; in a state."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class SourceOrder(Order):
    """The records of one source, shuffled by a permutation that is evaluated where it is needed."""

    count: int
    seed: int
    shuffle: bool

    @property
    def total(self) -> int:
        return self.count

    @property
    def numbers(self) -> int:
        return self.count

    def rows_in(self, shard: Shard) -> int:
        return len(range(shard[0], self.count, shard[1]))

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        index, count = shard
        positions = np.minimum(rows * count + index, self.count - 1)
        if not self.shuffle:
            return positions
        return _permutation(self.count, self.seed, epoch)(positions)

    def row_of(self, count: int, epoch: int, record: int) -> tuple[int, int] | None:
        position = record
        if self.shuffle:
            permutation = _permutation(self.count, self.seed, epoch)
            position = int(permutation.position_of(np.array([record]))[0])
        return position % count, position // count

    def with_seed(self, seed: int) -> Order:
        return dataclasses.replace(self, seed=seed)

    def describe(self) -> str:
        return f"{self.count} shuffled by {self.seed}" if self.shuffle else f"{self.count} in order"


_permutation = functools.lru_cache(maxsize=64)(Permutation)


@dataclasses.dataclass(frozen=True)
class Arrangement(Order):
    """Rows of several inputs, each of which may take several turns: its next epochs."""

    inputs: tuple[Order, ...]

    def turns(self, source: int, count: int) -> int:
        """How many epochs of an input one epoch takes at most, with so many shards."""
        return 1

    def taken(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        """(input, how many of its rows come before) of rows of a shard."""
        raise NotImplementedError

    def place(self, shard: Shard, source: int, number: int) -> int:
        """The row of an input's row, counted over its turns; the inverse of `taken`."""
        raise NotImplementedError

    @property
    def total(self) -> int:
        return sum(order.total for order in self.inputs)

    @functools.cached_property
    def numbers(self) -> int:
        return self._stride * self.most_turns

    @property
    def most_turns(self) -> int:
        """At least the turns of any input, however many shards there are."""
        return 1

    @functools.cached_property
    def _stride(self) -> int:
        return sum(order.numbers for order in self.inputs)

    def parts(self, shard: Shard, epoch: int, rows: Rows) -> Iterator[Part]:
        """The inputs' rows that these rows are."""
        which, numbers = self.taken(shard, rows)
        first, stride = 0, self._stride
        for source, order in enumerate(self.inputs):
            places = np.flatnonzero(which == source)
            if places.size:
                turns, found = np.divmod(numbers[places], order.rows_in(shard))
                for turn in range(int(turns.min()), int(turns.max()) + 1):
                    now = turns == turn
                    yield Part(
                        source,
                        shard,
                        epoch * self.turns(source, shard[1]) + turn,
                        found[now],
                        places[now],
                        turn * stride + first,
                    )
            first += order.numbers

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        found = np.empty(len(rows), np.int64)
        for part in self.parts(shard, epoch, rows):
            order = self.inputs[part.source]
            found[part.places] = part.first + order.records(part.shard, part.epoch, part.rows)
        return found

    def row_of(self, count: int, epoch: int, record: int) -> tuple[int, int] | None:
        turn, record = divmod(record, self._stride)
        ends = np.cumsum([order.numbers for order in self.inputs])
        source = int(np.searchsorted(ends, record, side="right"))
        order = self.inputs[source]
        record -= int(ends[source]) - order.numbers
        turns = self.turns(source, count)
        found = order.row_of(count, epoch * turns + turn, record) if turn < turns else None
        if found is None:
            return None
        index, row = found
        shard = index, count
        row = self.place(shard, source, turn * order.rows_in(shard) + row)
        return (index, row) if row < self.rows_in(shard) else None

    def with_seed(self, seed: int) -> Order:
        return dataclasses.replace(self, inputs=tuple(o.with_seed(seed) for o in self.inputs))

    def _of_inputs(self) -> str:
        return ", ".join(order.describe() for order in self.inputs)


@dataclasses.dataclass(frozen=True)
class Mixture(Arrangement):
    """Inputs by weight.

    Attributes:
      stop: "first": it ends where an input would have to give a record twice; "last": when every
        record has come, and the shorter inputs repeat meanwhile.
    """

    schedule: Schedule
    stop: _EndOfMixture

    def turns(self, source: int, count: int) -> int:
        return 1 if self.stop == "first" else self._most_turns_of(source, count)

    @functools.cached_property
    def _most_turns_of(self) -> Callable[[int, int], int]:
        return functools.cache(self._turns)  # every batch asks

    def _turns(self, source: int, count: int) -> int:
        most = self.schedule.before(source, np.array([self.rows_in((0, count))])).item()
        return -(-most // max(self.inputs[source].rows_in((count - 1, count)), 1))

    @functools.cached_property
    def most_turns(self) -> int:
        # A shard may have half as many rows of an input as the average, and twice another's.
        return (
            1
            if self.stop == "first"
            else 4 + 4 * max(self.turns(source, 1) for source in range(len(self.inputs)))
        )

    def rows_in(self, shard: Shard) -> int:
        lengths = [order.rows_in(shard) for order in self.inputs]
        if self.stop == "first":
            return min(int(self.schedule.place(s, np.array([n]))[0]) for s, n in enumerate(lengths))
        if not all(lengths):
            return 0
        return 1 + max(
            int(self.schedule.place(s, np.array([n - 1]))[0]) for s, n in enumerate(lengths)
        )

    def taken(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        return self.schedule.at(rows)

    def place(self, shard: Shard, source: int, number: int) -> int:
        return int(self.schedule.place(source, np.array([number]))[0])

    def with_seed(self, seed: int) -> Order:
        inputs = tuple(order.with_seed(seed) for order in self.inputs)
        schedule = dataclasses.replace(self.schedule, seed=seed)
        return dataclasses.replace(self, inputs=inputs, schedule=schedule)

    def describe(self) -> str:
        weights = ":".join(map(str, self.schedule.weights))
        return f"mix({self._of_inputs()}; {weights}, seed {self.schedule.seed}, stop {self.stop})"


@dataclasses.dataclass(frozen=True)
class Concatenation(Arrangement):
    """Inputs one behind the other."""

    def _starts(self, shard: Shard) -> Rows:
        return np.cumsum([0, *(order.rows_in(shard) for order in self.inputs)], dtype=np.int64)

    def rows_in(self, shard: Shard) -> int:
        return sum(order.rows_in(shard) for order in self.inputs)

    def taken(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        starts = self._starts(shard)
        which = np.searchsorted(starts, rows, side="right") - 1
        return which, rows - starts[which]

    def place(self, shard: Shard, source: int, number: int) -> int:
        return int(self._starts(shard)[source]) + number

    def describe(self) -> str:
        return f"concat({self._of_inputs()})"


@dataclasses.dataclass(frozen=True)
class Repetition(Arrangement):
    """So many epochs of one input as one."""

    times: int

    @property
    def most_turns(self) -> int:
        return self.times

    def turns(self, source: int, count: int) -> int:
        return self.times

    def rows_in(self, shard: Shard) -> int:
        return self.times * self.inputs[0].rows_in(shard)

    def taken(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        return np.zeros(len(rows), np.int64), rows

    def place(self, shard: Shard, source: int, number: int) -> int:
        return number

    def describe(self) -> str:
        return f"{self._of_inputs()}, {self.times} times"


@dataclasses.dataclass(frozen=True)
class Beginning(Arrangement):
    """The first records of one input's epoch, over all shards together."""

    most: int

    def rows_in(self, shard: Shard) -> int:
        return min(self.inputs[0].rows_in(shard), len(range(shard[0], self.most, shard[1])))

    def taken(self, shard: Shard, rows: Rows) -> tuple[Rows, Rows]:
        return np.zeros(len(rows), np.int64), rows

    def place(self, shard: Shard, source: int, number: int) -> int:
        return number

    def describe(self) -> str:
        return f"the first {self.most} of {self._of_inputs()}"


@dataclasses.dataclass(frozen=True)
class Pairing(Arrangement):
    """Inputs row beside row, as long as all of them have one; numbered as those of the first."""

    @property
    def total(self) -> int:
        return self.inputs[0].total

    @property
    def numbers(self) -> int:
        return self.inputs[0].numbers

    def rows_in(self, shard: Shard) -> int:
        return min(order.rows_in(shard) for order in self.inputs)

    def parts(self, shard: Shard, epoch: int, rows: Rows) -> Iterator[Part]:
        for source in range(len(self.inputs)):
            yield Part(source, shard, epoch, rows, np.arange(len(rows)), 0)

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        return self.inputs[0].records(shard, epoch, rows)

    def row_of(self, count: int, epoch: int, record: int) -> tuple[int, int] | None:
        found = self.inputs[0].row_of(count, epoch, record)
        return found if found and found[1] < self.rows_in((found[0], count)) else None

    def describe(self) -> str:
        return f"zip({self._of_inputs()})"


class Span(NamedTuple):
    """Rows of a shard that are still to come."""

    shard: int
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Continuation(Order):
    """What other shards left of an epoch, divided anew.

    Attributes:
      order: of the whole epoch.
      count: of the shards that began it.
      spans: of them, what is left, one behind the other.
    """

    order: Order
    count: int
    spans: tuple[Span, ...]

    @functools.cached_property
    def _starts(self) -> Rows:
        return np.cumsum([0, *(span.stop - span.start for span in self.spans)], dtype=np.int64)

    def first_row(self, shard: Shard) -> int:
        """Where a shard's rows begin among all that are left: they follow each other there, so
        that they come from few of the old shards."""
        index, count = shard
        each, more = divmod(int(self._starts[-1]), count)
        return index * each + min(index, more)

    @property
    def total(self) -> int:
        return self.order.total

    @property
    def numbers(self) -> int:
        return self.order.numbers

    def rows_in(self, shard: Shard) -> int:
        return self.first_row((shard[0] + 1, shard[1])) - self.first_row(shard)

    def left(self, shard: Shard, delivered: int) -> Iterator[Span]:
        """Of a shard, behind so many of its rows."""
        begin, end = self.first_row(shard) + delivered, self.first_row((shard[0] + 1, shard[1]))
        for first, span in zip(self._starts.tolist(), self.spans, strict=False):
            start, stop = max(begin - first, 0), min(end - first, span.stop - span.start)
            if start < stop:
                yield Span(span.shard, span.start + start, span.start + stop)

    def _old(self, shard: Shard, rows: Rows) -> Iterator[tuple[Shard, Rows, Rows]]:
        """(old shard, its rows, their places)."""
        left = np.minimum(rows + self.first_row(shard), self._starts[-1] - 1)
        which = np.searchsorted(self._starts, left, side="right") - 1
        for number in np.unique(which).tolist():
            places = np.flatnonzero(which == number)
            span = self.spans[number]
            found = left[places] - self._starts[number] + span.start
            yield (span.shard, self.count), found, places

    def parts(self, shard: Shard, epoch: int, rows: Rows) -> Iterator[Part]:
        """The inputs' rows that these rows are, where the order is an arrangement."""
        assert isinstance(self.order, Arrangement)
        for old, found, places in self._old(shard, rows):
            for part in self.order.parts(old, epoch, found):
                yield part._replace(places=places[part.places])

    def records(self, shard: Shard, epoch: int, rows: Rows) -> Rows:
        records = np.empty(len(rows), np.int64)
        for old, found, places in self._old(shard, rows):
            records[places] = self.order.records(old, epoch, found)
        return records

    def row_of(self, count: int, epoch: int, record: int) -> tuple[int, int] | None:
        raise NotImplementedError  # records are looked up in whole epochs

    def with_seed(self, seed: int) -> Order:
        raise NotImplementedError  # it belongs to one iteration

    def describe(self) -> str:
        return self.order.describe()
