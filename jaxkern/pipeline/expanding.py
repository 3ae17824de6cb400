"""Filter, FlatMap and Window: nodes that drop records, or change their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from jaxkern.core.arguments import check_integer
from jaxkern.core.failures import note
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.nodes import Block, qualified_name
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import Rows, SequentialNode
from jaxkern.pipeline.sources.source import check_choice, record_arrays, stack_records

#: maximum number of outputs per record; output n of record r has the id r * PARTS + n
PARTS = 1 << 16


class Filter(SequentialNode):
    """Keeps the records for which a predicate is True, in full batches.

    A record keeps its id, so that random draws after the filter are the same as without it. The
    number of batches is unknown before the end of an epoch, so ``len(pipeline)`` raises. Worker
    threads call the predicate, which must depend only on its record.

    Args:
      predicate: ``predicate(record) -> bool``, where a record is a dict of NumPy arrays.
      batched: True if it is called with a batch instead of a record, and returns bool [N].
      name: name of the node in messages, states and explanations.
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


class FlatMap(SequentialNode):
    """Replaces each record by any number of records, in full batches.

    Output n of record r has the id ``65536 * r + n``, which determines its random draws. The number
    of batches is unknown before the end of an epoch, so ``len(pipeline)`` raises. Worker threads
    call the function, which must depend only on its record.

    Args:
      fn: ``fn(record) -> iterable of records``, dicts of NumPy arrays: 0 to 65,536 per record. All
        have the same fields, shapes and dtypes.
      name: name of the node in messages, states and explanations.
    Raises: TypeError for a function that cannot be called.

    >>> import jaxkern as jk
    >>> from jaxkern.pipeline import FlatMap
    >>> halves = FlatMap(lambda record: [{"x": record["x"][:2]}, {"x": record["x"][2:]}])
    >>> pipe = jk.from_source({"x": [[1, 2, 3, 4], [5, 6, 7, 8]]}, batch_size=3) >> halves
    >>> [batch["x"].tolist() for batch in pipe]
    [[[1, 2], [3, 4], [5, 6]], [[7, 8]]]
    """

    row_by_row = True

    def __init__(
        self, fn: Callable[[Data], Iterable[Mapping[str, Any]]], *, name: str | None = None
    ) -> None:
        if not callable(fn):
            raise TypeError(f"fn is {fn!r:.80}; expected a function of a record")
        self.fn = fn
        self.name = name or f"FlatMap({qualified_name(fn)})"

    def describe(self) -> str:
        return f"FlatMap({qualified_name(self.fn)})"

    def rows(self, block: Block) -> Rows:
        outputs: list[Data] = []
        counts = []
        numbers = block.records.tolist()
        rows = row.records_of(block.data, range(len(numbers)))
        for fields, record in zip(rows, numbers, strict=True):
            try:
                new = self._outputs(fields, record)
            except BaseException as error:
                note(error, "for record {}", record)
                raise
            counts.append(len(new))
            outputs += new
        origins = np.repeat(np.arange(len(counts)), counts)
        records = part_ids(block.records, counts)
        data = stack_records(outputs, records.tolist(), self.describe()) if outputs else {}
        return Rows(data, records, origins, len(counts))

    def _outputs(self, fields: Data, record: int) -> list[Data]:
        outputs = self.fn(fields)
        if isinstance(outputs, Mapping) or not isinstance(outputs, Iterable):
            name = qualified_name(self.fn)
            raise TypeError(f"{name} returned {outputs!r:.80}; expected a list of dicts of arrays")
        records = []
        for output in outputs:
            records.append(record_arrays(output, record, self.describe()))
            if len(records) > PARTS:
                raise ValueError(f"{qualified_name(self.fn)} returned more than {PARTS:,} records")
        return records


def part_ids(records: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """Return ids int64 [sum(counts)]: record * PARTS + n for 0 <= n < count, for each record."""
    if records.size and records.max() >= 2**63 // PARTS:
        raise ValueError(
            f"record {records.max()} is too large for ids of its parts: expected less than 2**47, "
            "or less than 2**31 for records that are divided twice"
        )
    if counts and max(counts) > PARTS:
        raise ValueError(f"a record has {max(counts):,} parts; expected at most {PARTS:,}")
    starts = np.cumsum([0, *counts])[:-1]
    within = np.arange(sum(counts)) - np.repeat(starts, counts)
    return np.repeat(records.astype(np.int64) * PARTS, counts) + within


class Window(SequentialNode):
    """Windows over consecutive records, or over the sequence in each record.

    Over records: window w contains the records w * stride to w * stride + size - 1 of this shard,
    in the order of the epoch. Each field has an additional axis of length `size` after the batch
    axis. The id of a window is that of its first record. Records at the end that do not fill a
    window are dropped.

    Over sequences, ``axis="sequence"``: each record is replaced by zero or more windows along the
    first axis of `fields`; its other fields are repeated. The windows have the ids of the outputs
    of a `FlatMap`.

    The number of batches is unknown before the end of an epoch, so ``len(pipeline)`` raises.

    Args:
      size: length of a window.
      stride: distance between the starts of consecutive windows; None for `size`, without overlap.
      fields: fields to divide into windows; None for all. Over records the others are dropped.
      axis: "records" or "sequence".
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

    name = "window"

    def __init__(
        self,
        size: int,
        stride: int | None = None,
        fields: Sequence[str] | None = None,
        *,
        axis: Literal["records", "sequence"] = "records",
    ) -> None:
        self.size = check_integer("size", size, 1)
        self.stride = self.size if stride is None else check_integer("stride", stride, 1)
        if isinstance(fields, str):
            raise ValueError(f"fields is {fields!r}; expected names: fields=({fields!r},)")
        self.fields = None if fields is None else tuple(fields)
        check_choice("axis", axis, "records", "sequence")
        self.axis = axis
        self.window = (self.size, self.stride) if axis == "records" else None

    def describe(self) -> str:
        fields = "" if self.fields is None else f", {self.fields}"
        return f"Window({self.size}, {self.stride}{fields}, {self.axis})"

    def rows(self, block: Block) -> Rows:
        names = tuple(block.data) if self.fields is None else self.fields
        if missing := [name for name in names if name not in block.data]:
            raise ValueError(f"fields has {missing}; the batch has {sorted(block.data)}")
        if self.axis == "sequence":
            return self._windows_of_sequences(block, names)
        data = {name: block.data[name] for name in names}
        if ragged := [name for name, value in data.items() if row.has_ragged(value)]:
            raise ValueError(f"fields {ragged} hold images of different sizes; resize them before")
        return super().rows(block._replace(data=data))

    def _windows_of_sequences(self, block: Block, names: Sequence[str]) -> Rows:
        count = len(block.records)
        lengths = {name: np.shape(block.data[name])[1:2] for name in names}
        if () in lengths.values() or len(set(lengths.values())) != 1:
            raise ValueError(
                f"the sequences {sorted(names)} of the records have lengths {lengths}; expected "
                "one length: name the fields that are sequences"
            )
        ((length,),) = set(lengths.values())
        starts = np.arange(0, length - self.size + 1, self.stride)
        origins = np.repeat(np.arange(count), len(starts))
        records = part_ids(block.records, [len(starts)] * count)
        if not len(origins):
            return Rows({}, records, origins, count)
        others = {name: value for name, value in block.data.items() if name not in names}
        data = row.joined([(others, origins)]) if others else {}
        rows = starts[:, None] + np.arange(self.size)
        for name in names:
            windows = np.asarray(block.data[name])[:, rows]
            data[name] = windows.reshape(-1, *windows.shape[2:])
        return Rows(data, records, origins, count)
