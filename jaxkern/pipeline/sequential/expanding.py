"""FlatMap and Window: nodes that make several records of one, or one of several."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.failures import note
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.graph import Block, Stream, named
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import (
    DenseFlow,
    Flow,
    FlowStart,
    RowReader,
    Rows,
    SequentialNode,
    with_remainder,
)
from jaxkern.pipeline.sources.source import record_arrays, stack_records

#: records that one may become: output n of record r is record r * PARTS + n
PARTS = 1 << 16


class FlatMap(SequentialNode):
    """Makes any number of records of each one, in its place; batches are full again behind it.

    Output n of record r is record ``65536 * r + n``: what is drawn for it belongs to that number.
    How many come out is known at the end of an epoch: ``len(pipeline)`` raises. The function is
    called in worker threads, and must depend on nothing but its record.

    Args:
      fn: ``fn(record) -> iterable of records``, dicts of NumPy arrays; at most 65,536, perhaps
        none. All have the same fields, shapes and dtypes.
      name: in messages, states and explanations.
    Raises: TypeError for a function that cannot be called.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import FlatMap
    >>> halves = FlatMap(lambda record: [{"x": record["x"][:2]}, {"x": record["x"][2:]}])
    >>> pipe = jk.from_source({"x": [[1, 2, 3, 4], [5, 6, 7, 8]]}, batch_size=3) >> halves
    >>> [batch["x"].tolist() for batch in pipe]
    [[[1, 2], [3, 4], [5, 6]], [[7, 8]]]
    """

    def __init__(
        self, fn: Callable[[Data], Iterable[Mapping[str, Any]]], *, name: str | None = None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn is {fn!r:.80}; wanted a function of a record")
        self.fn = fn
        self.name = name or f"FlatMap({named(fn)})"

    def describe(self) -> str:
        return f"FlatMap({named(self.fn)})"

    def rows(self, block: Block) -> Rows:
        made: list[Data] = []
        counts = []
        for place, record in enumerate(block.records.tolist()):
            try:
                found = self._outputs(row.row_of(block.data, place), record)
            except BaseException as error:
                note(error, "for record {}", record)
                raise
            counts.append(len(found))
            made += found
        origins = np.repeat(np.arange(len(counts)), counts)
        records = part_ids(block.records, counts)
        data = stack_records(made, records.tolist(), self.describe()) if made else {}
        return Rows(data, records, origins, len(counts))

    def _outputs(self, given: Data, record: int) -> list[Data]:
        outputs = self.fn(given)
        if isinstance(outputs, Mapping) or not isinstance(outputs, Iterable):
            raise TypeError(
                f"{named(self.fn)} returned {outputs!r:.80}; wanted a list of records, dicts of "
                "arrays"
            )
        found = []
        for output in outputs:
            found.append(record_arrays(output, record, self.describe()))
            if len(found) > PARTS:
                raise ValueError(f"{named(self.fn)} returned more than {PARTS:,} records")
        return found


def part_ids(records: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """int64 [sum of counts]: record * PARTS + n for n below the count of each record."""
    if records.size and records.max() >= 2**63 // PARTS:
        raise ValueError(
            f"record {records.max()} has no room for numbers of its parts: records below 2**47 can "
            "be divided, those that came of a division twice only if they were below 2**31"
        )
    starts = np.cumsum([0, *counts])[:-1]
    within = np.arange(sum(counts)) - np.repeat(starts, counts)
    ids: np.ndarray = np.repeat(records.astype(np.int64) * PARTS, counts) + within
    return ids


class Window(SequentialNode):
    """Windows over consecutive records, or over the sequence in each record.

    Over records: window w holds records w * stride to w * stride + size - 1 in the order of the
    epoch, of this shard; each field gets an axis of so many behind the batch's. It has the number
    of its first record. Records that fill no whole window at the end are in none.

    Over sequences, ``axis="sequence"``: each record becomes the windows along the first axis of
    `fields`, perhaps none; its other fields are repeated. They are numbered as by `FlatMap`.

    How many windows an epoch has is known at its end: ``len(pipeline)`` raises.

    Args:
      size: of a window.
      stride: from one window's begin to the next one's; None for `size`: no overlap.
      fields: that windows have; None for all. Over records the others are dropped.
      axis: what windows go along.
    Raises: ValueError that names the argument.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import Window
    >>> pipe = jk.from_source({"x": [0, 1, 2, 3, 4, 5]}, batch_size=2) >> Window(3, stride=1)
    >>> [batch["x"].tolist() for batch in pipe]
    [[[0, 1, 2], [1, 2, 3]], [[2, 3, 4], [3, 4, 5]]]
    >>> pipe = jk.from_source({"x": [[0, 1, 2, 3, 4]], "y": [7]}, batch_size=2)
    >>> for batch in pipe >> Window(2, fields=("x",), axis="sequence"):
    ...     print(batch["x"].tolist(), batch["y"].tolist())
    [[0, 1], [2, 3]] [7, 7]
    """

    def __init__(
        self,
        size: int,
        stride: int | None = None,
        fields: Sequence[str] | None = None,
        *,
        axis: str = "records",
    ) -> None:
        self.size = check_integer("size", size, 1)
        self.stride = self.size if stride is None else check_integer("stride", stride, 1)
        if isinstance(fields, str):
            raise ValueError(f"fields is {fields!r}; wanted names: fields=({fields!r},)")
        self.fields = None if fields is None else tuple(fields)
        if axis not in ("records", "sequence"):
            raise ValueError(f"axis is {axis!r}; wanted 'records' or 'sequence'")
        self.axis = axis
        self.name = "window"

    def describe(self) -> str:
        fields = "" if self.fields is None else f", {self.fields}"
        return f"Window({self.size}, {self.stride}{fields}, {self.axis})"

    def rows(self, block: Block) -> Rows:
        wanted = tuple(block.data) if self.fields is None else self.fields
        if missing := [name for name in wanted if name not in block.data]:
            raise ValueError(f"fields has {missing}; the batch has {sorted(block.data)}")
        if self.axis == "records":
            kept = {name: block.data[name] for name in wanted}
            ragged = [name for name, value in kept.items() if row.is_ragged(value)]
            if ragged:
                raise ValueError(f"images of different sizes, {ragged}, fill no window: resize")
            return super().rows(block._replace(data=kept))
        return self._of_sequences(block, wanted)

    def _of_sequences(self, block: Block, wanted: Sequence[str]) -> Rows:
        count = len(block.records)
        lengths = {name: np.shape(block.data[name])[1:2] for name in wanted}
        if () in lengths.values() or len(set(lengths.values())) != 1:
            raise ValueError(
                f"the records' sequences {sorted(wanted)} have lengths {lengths}; wanted one "
                "length: name the fields that are sequences"
            )
        ((length,),) = set(lengths.values())
        starts = np.arange(0, length - self.size + 1, self.stride)
        origins = np.repeat(np.arange(count), len(starts))
        records = part_ids(block.records, [len(starts)] * count)
        if not len(origins):
            return Rows({}, records, origins, count)
        data = row.joined([(block.data, origins)])
        places = starts[:, None] + np.arange(self.size)
        for name in wanted:
            windows = np.asarray(block.data[name])[:, places]
            data[name] = windows.reshape(-1, *windows.shape[2:])
        return Rows(data, records, origins, count)

    def flow(self, start: FlowStart) -> Flow:
        if self.axis == "sequence":
            return DenseFlow(RowReader(start), start.stream)
        return _WindowFlow(RowReader(start), start.stream, self.size, self.stride)


class _WindowFlow(Flow):
    """Windows over rows."""

    def __init__(self, reader: RowReader, stream: Stream, size: int, stride: int) -> None:
        self._reader = reader
        self._batch, self._remainder = stream.batch_size, stream.remainder
        self._size, self._stride = size, stride

    @property
    def place(self) -> dict[str, Any]:
        return self._reader.place

    def next(self) -> Block | None:
        there = self._reader.ensure((self._batch - 1) * self._stride + self._size)
        windows = min(self._batch, max(0, (there - self._size) // self._stride + 1))
        given = self._reader.first(there) if windows else None
        self._reader.drop(windows * self._stride)
        if given is None:
            return None
        starts = np.arange(windows) * self._stride
        rows = (starts[:, None] + np.arange(self._size)).reshape(-1)
        joined = row.joined([(given.data, rows)])
        shape = (windows, self._size)
        data = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), joined)
        block = Block(data, given.records[starts])
        return with_remainder(block, self._batch, self._remainder)
