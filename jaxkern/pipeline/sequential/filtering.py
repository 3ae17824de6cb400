"""Filter: the records of which a predicate holds, in dense batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxkern.core.failures import note
from jaxkern.pipeline import rows as row
from jaxkern.pipeline.graph import Block, named
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import Rows, SequentialNode


class Filter(SequentialNode):
    """Keeps the records of which a predicate holds; batches are full again behind it.

    A record keeps its number, so that what is drawn for it behind the filter is the same as
    without. How many come through is known at the end of an epoch: ``len(pipeline)`` raises.
    The predicate is called in worker threads, and must depend on nothing but its record.

    Args:
      predicate: ``predicate(record) -> bool``, where a record is a dict of NumPy arrays.
      batched: whether it takes a batch in place of a record, and returns bool [N].
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

    def __init__(
        self, predicate: Callable[[Data], Any], *, batched: bool = False, name: str | None = None
    ) -> None:
        if not callable(predicate):
            raise TypeError(f"predicate is {predicate!r:.80}; wanted a function of a record")
        self.predicate, self.batched = predicate, bool(batched)
        self.name = name or f"Filter({named(predicate)})"

    def describe(self) -> str:
        return f"Filter({named(self.predicate)}{', batched' if self.batched else ''})"

    def rows(self, block: Block) -> Rows:
        count = len(block.records)
        if self.batched:
            keep = np.asarray(self.predicate(block.data))
            if keep.shape != (count,) or keep.dtype != bool:
                raise TypeError(
                    f"the predicate returned {row.described(keep)} for a batch of {count} records; "
                    f"wanted bool[{count}]"
                )
        else:
            keep = np.array([self._holds(block, place) for place in range(count)], bool)
        kept = np.flatnonzero(keep)
        if len(kept) == count:
            return super().rows(block)
        data = row.joined([(block.data, kept)]) if len(kept) else {}
        return Rows(data, block.records[kept], kept, count)

    def _holds(self, block: Block, place: int) -> bool:
        try:
            found = np.asarray(self.predicate(row.row_of(block.data, place)))
            if found.shape != () or found.dtype != bool:
                raise TypeError(
                    f"the predicate returned {row.described(found)} for one record; wanted a bool "
                    "(a predicate of batches: Filter(predicate, batched=True))"
                )
        except BaseException as error:
            note(error, "for record {}", int(block.records[place]))
            raise
        return bool(found)
