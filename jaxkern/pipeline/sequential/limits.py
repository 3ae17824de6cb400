"""Take and Repeat behind nodes that read in order: the first records, and several epochs as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxkern.pipeline.feed import Feed, Item
from jaxkern.pipeline.graph import Block, Stream
from jaxkern.pipeline.sequential.node import (
    Flow,
    FlowStart,
    Given,
    RowReader,
    Rows,
    SequentialNode,
    with_remainder,
)


class SequentialTake(SequentialNode):
    """The first records of an epoch, over all shards together; what is behind is not read."""

    name = "take"

    def __init__(self, count: int) -> None:
        self.count = count

    def describe(self) -> str:
        return f"Take({self.count})"

    def flow(self, start: FlowStart) -> Flow:
        index, shards = start.stream.shard
        return _TakeFlow(RowReader(start), start, len(range(index, self.count, shards)))


class _TakeFlow(Flow):
    def __init__(self, reader: RowReader, start: FlowStart, count: int) -> None:
        self._reader = reader
        self._stream: Stream = start.stream
        self._left = int((start.place or {}).get("left", count))

    @property
    def place(self) -> dict[str, Any]:
        return {**self._reader.place, "left": self._left}

    def next(self) -> Block | None:
        size = min(self._stream.batch_size, self._left)
        count = min(self._reader.ensure(size), size)
        block = self._reader.first(count)
        self._reader.drop(count)
        self._left -= count
        return with_remainder(block, self._stream.batch_size, self._stream.remainder)


class SequentialRepeat(SequentialNode):
    """Several epochs of what is before as one: turn t of epoch e is its epoch ``e * times + t``.

    Record r is record ``r * times + t`` behind it, so that each turn has its own draws.
    """

    name = "repeat"

    def __init__(self, times: int) -> None:
        self.times = times

    def describe(self) -> str:
        return f"Repeat({self.times})"

    def given(self, opened: Callable[[int, Any], Feed], epoch: int, at: Any) -> Given:
        return _Turns(opened, epoch * self.times, self.times, at or {"turn": 0, "at": None})


class _Turns:
    """The epochs of a `SequentialRepeat`, one behind the other."""

    def __init__(
        self, opened: Callable[[int, Any], Feed], first: int, times: int, at: dict[str, Any]
    ) -> None:
        self._opened, self._first, self._times = opened, first, times
        self._turn = int(at["turn"])
        self._feed = opened(first + self._turn, at["at"])

    @property
    def place(self) -> dict[str, Any]:
        return self._told(self._feed.place)

    def next(self) -> Item | None:
        while (item := self._feed.next()) is None:
            if self._turn + 1 == self._times:
                return None
            self._feed.close()
            self._turn += 1
            self._feed = self._opened(self._first + self._turn, None)
        if item.error is None:
            rows: Rows = item.value
            if rows.records.size and rows.records.max() >= 2**63 // self._times:
                raise ValueError(
                    f"record {rows.records.max()} times {self._times} is no number of 63 bits"
                )
            records = rows.records.astype(np.int64) * self._times + self._turn
            item = item._replace(value=rows._replace(records=records))
        return item._replace(before=self._told(item.before), behind=self._told(item.behind))

    def resize(self, threads: int, ahead: int) -> None:
        self._feed.resize(threads, ahead)

    def close(self) -> None:
        self._feed.close()

    def _told(self, place: Any) -> dict[str, Any]:
        return {"turn": self._turn, "at": place}
