"""Streams: records of an iterable without a length, shuffled in a buffer."""

from __future__ import annotations

import base64
import copy
import functools
import heapq
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np

from jaxkern.core.failures import note
from jaxkern.pipeline.arrangement import SourceOrder
from jaxkern.pipeline.engine import Engine, ItemSource
from jaxkern.pipeline.graph import (
    RECORDS_PER_CALL,
    UNKNOWN,
    BatchLayout,
    Block,
    Remainder,
    Vertex,
    qualified_name,
)
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import Flow, SequentialNode, with_remainder
from jaxkern.pipeline.sources.source import record_arrays, stack_records

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch

_PARTS = 1 << 20  # of a position in the order, so that delays are rarely equal


class StreamNode(SequentialNode):
    """Reads an iterable of records in one thread; see `from_stream`."""

    name = "stream"
    fills_slots = False

    def __init__(
        self,
        iterable: Any,
        batch_size: int,
        shuffle_buffer: int,
        seed: int,
        remainder: Remainder,
        shard: tuple[int, int] | None,
        resume: Literal["auto", "count"],
    ) -> None:
        if not callable(iterable) and not hasattr(iterable, "__iter__"):
            text = f"{iterable!r:.80}"
            raise TypeError(f"the stream is {text}; expected an iterable, or a function for one")
        self.iterable, self.resume = iterable, resume
        self.batch_size, self.remainder = batch_size, remainder
        self.shuffle_buffer, self.seed = shuffle_buffer, seed
        self._explicit_shard = shard
        reopened = callable(iterable) or not hasattr(iterable, "__next__")
        self.once = not reopened and (resume == "count" or _state_methods(iterable) is None)
        # Copies of the node share these.
        self._lock = threading.Lock()
        self._epochs: list[int] = []  # for which the iterable was opened
        self._initial: list[Any] = []  # the state that the iterable had before it was read

    @functools.cached_property
    def shard(self) -> tuple[int, int]:
        return self._explicit_shard or (jax.process_index(), jax.process_count())

    def describe(self) -> str:
        shuffled = f", shuffle_buffer={self.shuffle_buffer}" if self.shuffle_buffer else ""
        counted = ", resume='count'" if self.resume == "count" else ""
        return f"stream({qualified_name(self.iterable)}{shuffled}{counted})"

    def layout(self, inputs: Any, remainder: Remainder) -> BatchLayout:
        assert self.batch_size is not None
        order = SourceOrder(UNKNOWN, self.seed, shuffle=False)
        shuffle = bool(self.shuffle_buffer)
        return BatchLayout(self.batch_size, remainder, self.seed, shuffle, self.shard, order)

    def flow(self, epoch: Epoch, vertex: Vertex, position: dict[str, Any]) -> Flow:
        layout = epoch.layout(vertex)
        batches = _StreamBatches(self, layout, epoch.number, position)
        return _StreamFlow(Engine(batches, min(epoch.threads, 1), epoch.ahead), layout)

    def open(self, epoch: int) -> Any:
        """Return the iterable, to be read from its beginning."""
        with self._lock:
            if self._epochs and self.once:
                raise RuntimeError(
                    f"the stream {self.iterable!r:.80} can be read only once, and was; pass "
                    "from_stream a function that opens it again, from_stream(lambda: ..., ...)"
                )
            self._epochs.append(epoch)
        opened = self.iterable() if callable(self.iterable) else self.iterable
        if not hasattr(opened, "__iter__"):
            name = qualified_name(self.iterable)
            raise TypeError(f"{name}() returned {opened!r:.80}; expected an iterable of records")
        if hasattr(opened, "set_epoch"):
            opened.set_epoch(epoch)
        return opened

    def initial_state(self, get: Callable[[], Any]) -> Any:
        """Return the state that an iterable, always the same object, had before it was read."""
        with self._lock:
            if not self._initial:
                self._initial.append(get())
            return self._initial[0]


def _state_methods(owner: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return a stream's methods to get and set its state, by Grain's names or by those of Hugging
    Face and PyTorch."""
    for get, put in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        if hasattr(owner, get) and hasattr(owner, put):
            return getattr(owner, get), getattr(owner, put)
    return None


class _Reader:
    """The records of a stream from a position on; each error is raised once."""

    def __init__(self, node: StreamNode, step: int, epoch: int, position: dict[str, Any]) -> None:
        self._node, self._step, self._epoch = node, step, epoch
        self._who = node.describe()
        self._state = position.get("state")
        self._skip = int(position.get("position", 0))
        self.position = 0 if self._state is None else self._skip  # of the next record
        self._old_errors = int(position.get("errors", 0))  # were raised before, and occur again
        self._errors = 0
        self._iterator: Iterator[Any] | None = None
        self._methods: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
        self._reading = self.position
        #: (position, state, errors before) where reading can begin
        self._marks: deque[tuple[int, Any, int]] = deque()

    def read(self) -> tuple[int, Data] | None:
        """Return (position, record) of the next record of this shard; None at the end."""
        while True:
            try:
                return self._next()
            except Exception as error:
                self._errors += 1
                if self._old_errors:
                    self._old_errors -= 1
                    continue
                note(error, "while reading record {} of the stream", self._reading)
                raise

    def resume_from(self, needed: int) -> dict[str, Any]:
        """Return where reading begins to get the records from position `needed` on."""
        if self._methods is None:
            return {"position": needed, "errors": self._errors}
        while len(self._marks) > 1 and self._marks[1][0] <= needed:
            self._marks.popleft()
        position, state, errors = self._marks[0]
        return {"position": position, "errors": self._errors - errors, "state": state}

    def close(self) -> None:
        """Close a generator, so that it releases its resources."""
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
                self._iterator = iter(())  # if the stream cannot be opened
                self._iterator = self._open()
            if self._methods is not None and self.position >= self._marks[-1][0] + self._step:
                self._marks.append((self.position, _to_json(self._methods[0]()), self._errors))
            try:
                record = next(self._iterator)
            except StopIteration:
                if self.position < self._skip:
                    raise ValueError(
                        f"{self._who} has {self.position} records; the state is at {self._skip}"
                    ) from None
                return None
            position = self.position
            self.position += 1
            if position % count == index:
                return position, record_arrays(record, position, self._who)

    def _open(self) -> Iterator[Any]:
        node = self._node
        opened = node.open(self._epoch)
        by_state = node.resume != "count"
        methods = _state_methods(opened) if by_state else None
        start = self._state
        if methods is not None:
            get, put = methods
            same = opened is node.iterable  # it may have been read, and its state is of then
            if same and start is None:
                start = node.initial_state(lambda: _to_json(get()))
            if same or start is not None:
                put(_from_json(start))
            else:
                start = _to_json(get())
        iterator: Iterator[Any] = iter(opened)
        if methods is None and by_state:
            methods = _state_methods(iterator)
            if methods is not None and start is not None:
                methods[1](_from_json(start))
            elif methods is not None:
                start = _to_json(methods[0]())
        if self._state is not None and methods is None:
            raise ValueError(f"the state holds one of {self._who}, which here has no set_state")
        self._marks.append((self.position, start, self._errors))
        self._methods = methods
        return iterator


class _StreamBatches(ItemSource):
    """Batches of a stream's records in the order of the shuffle, for an engine.

    Record q of the shard is delivered at q + delay. The delay is a real number below
    2 * shuffle_buffer, a function of (seed, epoch, position): about `shuffle_buffer` records wait
    at a time. Keys are these sums in units of 1 / `_PARTS`. A waiting record is not older than the
    longest delay, and all delivered records have smaller keys than the waiting ones: a position
    does not have to list them.
    """

    def __init__(
        self, node: StreamNode, layout: BatchLayout, epoch: int, position: dict[str, Any]
    ) -> None:
        self._size, self._remainder = layout.batch_size, layout.remainder
        self._reader = _Reader(node, self._size, epoch, position)
        self._index, self._count = node.shard
        self._who = node.describe()
        self._longest = max(2 * node.shuffle_buffer, 1)
        self._key = np.array([node.seed % 2**64, epoch], np.uint64)
        self._block, self._delays = -1, np.zeros(0, np.int64)
        self._waiting: list[tuple[int, int, Data]] = []
        self._ready: list[tuple[int, int, Data]] = []  # of the next batch
        self._last = tuple(position.get("last", (-1, -1)))  # key and position in the last batch
        self._needed = int(position.get("position", 0))  # later batches need records from here
        self._ended = False
        self._at = position or None

    @property
    def position(self) -> Any:
        return self._at

    def claim(self) -> Block | None:
        """Return the next batch, since the iterable is read by one thread."""
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
            self._at = {**self._reader.resume_from(self._needed), "last": list(self._last)}

    def release(self) -> None:
        self._reader.close()

    def _read(self) -> None:
        """Read one record, and move the waiting records that are due to the batch."""
        item = self._reader.read()
        self._ended = item is None
        if item is not None:
            position, record = item
            key = position // self._count * _PARTS + self._delay(position)
            if (key, position) > self._last:
                heapq.heappush(self._waiting, (key, position, record))
        following = -(-(self._reader.position - self._index) // self._count)
        while self._waiting and (self._ended or self._waiting[0][0] <= following * _PARTS):
            self._ready.append(heapq.heappop(self._waiting))

    def _delay(self, position: int) -> int:
        if self._longest == 1:
            return 0
        block, index = divmod(position, RECORDS_PER_CALL)
        if block != self._block:
            # NumPy guarantees that the raw bits of a counter-based generator never change.
            generator = np.random.Philox(key=self._key, counter=[0, 0, 0, block])
            bits = generator.random_raw(RECORDS_PER_CALL)
            self._delays = (bits % np.uint64(self._longest * _PARTS)).astype(np.int64)
            self._block = block
        return int(self._delays[index])


class _StreamFlow(Flow):
    """The batches that an engine reads from a stream, in one thread."""

    @property
    def position(self) -> dict[str, Any]:
        position: dict[str, Any] = self._upstream.position
        return position

    def next(self) -> Block | None:
        item = self._upstream.next()
        if item is not None and item.error is not None:
            raise item.error
        block: Block | None = None if item is None else item.value
        return block

    def resize(self, threads: int) -> None:
        pass


def _to_json(state: Any) -> Any:
    """Return a copy of a stream's own state that JSON can represent."""
    if isinstance(state, bytes):
        return {"base64": base64.b64encode(state).decode()}
    try:
        return json.loads(json.dumps(state))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"the stream's own state is {state!r:.80}, which JSON cannot represent ({error}); use "
            'resume="count", which reads the stream from its beginning'
        ) from None


def _from_json(state: Any) -> Any:
    """Return the state that `_to_json` was given."""
    if isinstance(state, dict) and state.keys() == {"base64"}:
        return base64.b64decode(state["base64"])
    return copy.deepcopy(state)
