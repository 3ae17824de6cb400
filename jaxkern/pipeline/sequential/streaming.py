"""Streams: records that come one after the other, without a length, shuffled in a buffer."""

from __future__ import annotations

import base64
import copy
import dataclasses
import functools
import heapq
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import numpy as np

from jaxkern.core.failures import note
from jaxkern.pipeline.arrangement import SourceOrder
from jaxkern.pipeline.feed import Feed
from jaxkern.pipeline.graph import UNKNOWN, Block, Remainder, Stream, named
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential.node import Flow, FlowStart, SequentialNode, with_remainder
from jaxkern.pipeline.sources.source import record_arrays, stack_records

Resume = Literal["auto", "count"]
_DELAYS = 1024  # drawn together
_PARTS = 1 << 20  # of a place in the order, so that delays are hardly ever equal


class StreamNode(SequentialNode):
    """Reads an iterable of records in a thread of its own; see `from_stream`."""

    name = "stream"

    def __init__(
        self,
        iterable: Any,
        batch_size: int,
        shuffle_buffer: int,
        seed: int,
        remainder: Remainder,
        shard: tuple[int, int] | None,
        resume: Resume,
    ) -> None:
        if not callable(iterable) and not hasattr(iterable, "__iter__"):
            raise TypeError(
                f"the stream is {iterable!r:.80}; wanted an iterable of dicts of arrays, or a "
                "function without arguments that returns one"
            )
        self.iterable = iterable
        self.batch_size = batch_size
        self.shuffle_buffer = shuffle_buffer
        self.seed = seed
        self.remainder = remainder
        self.resume = resume
        self._given_shard = shard
        self._begun = _Begun()

    @functools.cached_property
    def shard(self) -> tuple[int, int]:
        """(index, count); JAX's processes where none was given."""
        return self._given_shard or (jax.process_index(), jax.process_count())

    @property
    def once(self) -> bool:
        """Whether the iterable can be read from its beginning one time only."""
        return (
            not callable(self.iterable)
            and hasattr(self.iterable, "__next__")
            and (self.resume == "count" or _state_methods(self.iterable) is None)
        )

    def describe(self) -> str:
        shuffled = f", shuffle_buffer={self.shuffle_buffer}" if self.shuffle_buffer else ""
        counted = ", resume='count'" if self.resume == "count" else ""
        return f"stream({named(self.iterable)}{shuffled}{counted})"

    def stream(self, inputs: Any) -> Stream:
        assert self.batch_size is not None
        assert self.remainder is not None
        order = SourceOrder(UNKNOWN, self.seed, shuffle=False)
        stream = Stream.over(
            order,
            self.batch_size,
            self.remainder,
            self.seed,
            bool(self.shuffle_buffer),
            self.shard,
        )
        return dataclasses.replace(stream, rows=UNKNOWN)

    def flow(self, start: FlowStart) -> Flow:
        return _StreamFlow(Feed(_Batches(self, start), min(start.threads, 1), start.ahead))

    def begin(self, epoch: int) -> Any:
        """The iterable, for another reading of it from its beginning."""
        with self._begun.lock:
            if self._begun.times and self.once:
                raise RuntimeError(
                    f"the stream {self.iterable!r:.80} can be read only once, and was: give "
                    "from_stream a function that opens it anew, from_stream(lambda: ..., ...), or "
                    "an iterable that is no iterator"
                )
            self._begun.times += 1
        opened = self.iterable() if callable(self.iterable) else self.iterable
        if not hasattr(opened, "__iter__"):
            raise TypeError(
                f"{named(self.iterable)}() returned {opened!r:.80}; wanted an iterable of records"
            )
        if hasattr(opened, "set_epoch"):
            opened.set_epoch(epoch)
        return opened

    def initial(self, get: Callable[[], Any]) -> Any:
        """The state of an iterable that is always the same one before it was read."""
        with self._begun.lock:
            if not self._begun.known:
                self._begun.state, self._begun.known = get(), True
            return self._begun.state


class _Begun:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.times = 0
        self.known = False
        self.state: Any = None


def _state_methods(owner: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """How to ask for a stream's state and to set it, by Grain's names or by those of Hugging Face
    and PyTorch."""
    for get, put in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        if hasattr(owner, get) and hasattr(owner, put):
            return getattr(owner, get), getattr(owner, put)
    return None


class _Reader:
    """The records of a stream from a place on, with their positions; errors come once.

    Attributes:
      position: of the next record.
    """

    def __init__(self, node: StreamNode, start: FlowStart) -> None:
        self._node, self._epoch = node, start.epoch
        self._step = start.stream.batch_size
        self._who = node.describe()
        place = start.place or {}
        self._given = place.get("state")
        self._skip = int(place.get("position", 0))
        self.position = 0 if self._given is None else self._skip
        self._swallow = int(place.get("errors", 0))  # were raised before, and come again
        self._errors = 0
        self._iterator: Iterator[Any] | None = None
        self._own: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
        self._reading = self.position
        #: (position, state, errors before) from which on can be read
        self._marks: deque[tuple[int, Any, int]] = deque()

    def read(self) -> tuple[int, Data] | None:
        """(position, record) of the next record of this shard; None at the end."""
        while True:
            try:
                return self._next()
            except Exception as error:
                self._errors += 1
                if self._swallow:
                    self._swallow -= 1
                    continue
                note(error, "while reading record {} of the stream", self._reading)
                raise

    def place(self, needed: int) -> dict[str, Any]:
        """From which on the records from position `needed` can be read."""
        if self._own is None:
            found = {"position": needed, "errors": self._errors}
        else:
            while len(self._marks) > 1 and self._marks[1][0] <= needed:
                self._marks.popleft()
            position, state, errors = self._marks[0]
            found = {"position": position, "errors": self._errors - errors, "state": state}
        return found

    def close(self) -> None:
        """Ends a generator, so that it lets go what it has open."""
        iterator, self._iterator = self._iterator, iter(())
        if iterator is not None and iterator is not self._node.iterable:
            closing = getattr(iterator, "close", None)
            if callable(closing):
                closing()

    def _next(self) -> tuple[int, Data] | None:
        index, count = self._node.shard
        while True:
            self._reading = self.position
            if self._iterator is None:
                self._iterator = iter(())  # of a stream that cannot be opened
                self._iterator = self._opened()
            if self._own is not None and self.position >= self._marks[-1][0] + self._step:
                self._marks.append((self.position, _jsonable(self._own[0]()), self._errors))
            try:
                record = next(self._iterator)
            except StopIteration:
                if self.position < self._skip:
                    raise ValueError(
                        f"{self._who} ended after {self.position} records, and the state is behind "
                        f"{self._skip}: the stream is not the one of the state"
                    ) from None
                return None
            position = self.position
            self.position += 1
            if position % count == index:
                return position, record_arrays(record, position, self._who)

    def _opened(self) -> Iterator[Any]:
        node = self._node
        opened = node.begin(self._epoch)
        by_state = node.resume != "count"
        own = _state_methods(opened) if by_state else None
        start = self._given
        if own is not None:
            get, put = own
            same = opened is node.iterable  # it may have been read before, and its state is of then
            if same and start is None:
                start = node.initial(lambda: _jsonable(get()))
            if same or start is not None:
                put(_native(start))
            else:
                start = _jsonable(get())
        iterator: Iterator[Any] = iter(opened)
        if own is None and by_state:
            own = _state_methods(iterator)
            if own is not None and start is not None:
                own[1](_native(start))
            elif own is not None:
                start = _jsonable(own[0]())
        if self._given is not None and own is None:
            raise ValueError(
                f"the state holds a state of {self._who} itself, and the stream here has neither "
                "get_state and set_state nor state_dict and load_state_dict"
            )
        self._marks.append((self.position, start, self._errors))
        self._own = own
        return iterator


class _Batches:
    """Batches of a stream's records in the order of the shuffle; the supply of a `Feed`.

    Record q of the shard comes at q + delay, where the delay is a real number below
    2 * shuffle_buffer, a function of (seed, epoch, position) alone: about `shuffle_buffer` records
    wait at a time. Keys are such places in parts of `_PARTS`. A record that waits is no older than
    the longest delay, and all that came have smaller keys than those that wait: a place need not
    name them one by one.
    """

    def __init__(self, node: StreamNode, start: FlowStart) -> None:
        place = start.place or {}
        self._reader = _Reader(node, start)
        self._size, self._remainder = start.stream.batch_size, start.stream.remainder
        self._index, self._count = node.shard
        self._who = node.describe()
        self._longest = max(2 * node.shuffle_buffer, 1)
        self._key = np.array([node.seed % 2**64, start.epoch], np.uint64)
        self._block, self._delays = -1, np.zeros(0, np.int64)
        self._waiting: list[tuple[int, int, Data]] = []
        self._ready: list[tuple[int, int, Data]] = []  # of the next batch
        self._last = tuple(place.get("last", (-1, -1)))  # of the last batch
        self._needed = int(place.get("position", 0))  # all records behind that batch are from here
        self._ended = False
        self._place = start.place

    @property
    def place(self) -> dict[str, Any] | None:
        return self._place

    def claim(self) -> Block | None:
        """The next batch, read and put together here: the iterable belongs to one thread."""
        try:
            while len(self._ready) < self._size and not self._ended:
                self._read()
            batch, self._ready = self._ready[: self._size], self._ready[self._size :]
            if not batch:
                return None
            self._last = batch[-1][:2]
            oldest = min((p for _, p, _ in self._ready), default=self._reader.position)
            if self._longest > 1:
                oldest = min(oldest, self._reader.position - (self._longest + 1) * self._count)
            self._needed = max(oldest, 0)
            records = np.array([position for _, position, _ in batch])
            data = stack_records([fields for _, _, fields in batch], records.tolist(), self._who)
            return with_remainder(Block(data, records), self._size, self._remainder)
        finally:
            self._place = {**self._reader.place(self._needed), "last": list(self._last)}

    def make(self, claim: Block) -> Block:
        return claim

    def close(self) -> None:
        self._reader.close()

    def _read(self) -> None:
        """Reads one record, and moves those whose turn it is to the batch."""
        found = self._reader.read()
        self._ended = found is None
        if found is not None:
            position, record = found
            key = position // self._count * _PARTS + self._delay(position)
            if (key, position) > self._last:
                heapq.heappush(self._waiting, (key, position, record))
        following = -(-(self._reader.position - self._index) // self._count)
        while self._waiting and (self._ended or self._waiting[0][0] <= following * _PARTS):
            self._ready.append(heapq.heappop(self._waiting))

    def _delay(self, position: int) -> int:
        if self._longest == 1:
            return 0
        block, place = divmod(position, _DELAYS)
        if block != self._block:
            # The raw bits of a counter-based generator, which NumPy keeps the same for ever.
            bits = np.random.Philox(key=self._key, counter=[0, 0, 0, block]).random_raw(_DELAYS)
            self._delays = (bits % np.uint64(self._longest * _PARTS)).astype(np.int64)
            self._block = block
        return int(self._delays[place])


class _StreamFlow(Flow):
    """What a feed gives."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed

    @property
    def place(self) -> dict[str, Any]:
        place: dict[str, Any] = self._feed.place
        return place

    def next(self) -> Block | None:
        item = self._feed.next()
        if item is None:
            return None
        if item.error is not None:
            raise item.error
        block: Block = item.value
        return block

    def close(self) -> None:
        self._feed.close()


def _jsonable(state: Any) -> Any:
    """A copy of a stream's own state that JSON can hold."""
    if isinstance(state, bytes):
        return {"base64": base64.b64encode(state).decode()}
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the stream's own state is {state!r:.80}, which JSON does not hold ({error}); "
            'resume="count" reads up to the place again instead'
        ) from None


def _native(state: Any) -> Any:
    """The state that `_jsonable` was given."""
    if isinstance(state, dict) and state.keys() == {"base64"}:
        return base64.b64decode(state["base64"])
    return copy.deepcopy(state)
