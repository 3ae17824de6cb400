"""Streams: records of an iterable without a length, shuffled in a buffer."""

from __future__ import annotations

import base64
import contextlib
import copy
import functools
import heapq
import json
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import jax
import numpy as np

from jaxkern.core.failures import note
from jaxkern.pipeline.arrangement import SourceOrder
from jaxkern.pipeline.engine import Engine, ItemSource
from jaxkern.pipeline.nodes import (
    RECORDS_PER_CALL,
    UNKNOWN,
    BatchLayout,
    Block,
    Remainder,
    Vertex,
    qualified_name,
)
from jaxkern.pipeline.rows import Data
from jaxkern.pipeline.sequential import DeferredBlock, Flow, SequentialNode, Upstream
from jaxkern.pipeline.sources.source import record_arrays, stack_records

if TYPE_CHECKING:
    from jaxkern.pipeline.epoch import Epoch

_PARTS = 1 << 20  # fractions of a position, so that shuffle keys are rarely equal


class _ShuffleFlow(Flow):
    """Batches of a stream's records in the order of the shuffle.

    Records are sorted by q + delay, where q is the number of a record in the shard. The delay is a
    real number below 2 * shuffle_buffer, a function of (seed, epoch, position), so that about
    `shuffle_buffer` records wait at a time. Keys are these sums in units of 1 / `_PARTS`. All
    delivered records have smaller keys than the others, so that a position does not have to list
    them.
    """

    def __init__(self, node: Any, epoch: Epoch, vertex: Vertex, position: dict[str, Any]) -> None:
        super().__init__(node, epoch, vertex, position)
        self._who, self._shards = node.describe(), node.shard[1]
        self._longest = 2 * node.shuffle_buffer
        self._philox_key = np.array([node.seed % 2**64, epoch.number], np.uint64)
        self._block, self._delays = -1, np.zeros(0, np.int64)
        self._waiting: list[tuple[int, int, Data]] = []  # a heap of (key, position, record)
        self._ready: list[tuple[int, int, Data]] = []  # records of the next batch
        self._last: tuple[int, ...] = tuple(position.get("last", (-1, -1)))  # of the last record
        self._least_key = 0  # lower bound of the keys of unread records
        self._ended = False

    @property
    def position(self) -> dict[str, Any]:
        return {**self._input_position(), "last": list(self._last)}

    def next(self) -> DeferredBlock | None:
        while len(self._ready) < self._size and (self._waiting or not self._ended):
            if self._waiting and (self._ended or self._waiting[0][0] <= self._least_key):
                self._ready.append(heapq.heappop(self._waiting))
            elif not self._read():
                self._ended = True
        batch, self._ready = self._ready, []
        if batch:
            self._last = batch[-1][:2]
        oldest = (self._last[0] // _PARTS - self._longest + 1) * self._shards
        self._drop_items(lambda read: bool(read.records.size and read.records[-1] >= oldest))
        return None if self._is_dropped(len(batch)) else functools.partial(self._make, batch)

    def resize(self, threads: int) -> None:
        pass  # the stream is read by one thread

    def _read(self) -> bool:
        if not super()._read():
            return False
        read = self._items[-1]
        if not read.records.size:  # an error that was raised before
            return True
        for position, record in zip(read.records.tolist(), read.item.value.fields, strict=True):
            key = position // self._shards * _PARTS + self._delay(position)
            if (key, position) > self._last:
                heapq.heappush(self._waiting, (key, position, record))
        self._least_key = (position // self._shards + 1) * _PARTS
        read.item.value.fields.clear()  # only the position of the item is still needed
        return True

    def _make(self, batch: list[tuple[int, int, Data]], out: Data | None) -> Block:
        records = np.array([position for _, position, _ in batch])
        data = stack_records([fields for _, _, fields in batch], records.tolist(), self._who)
        return self._with_mask(Block(data, records), len(batch))

    def _delay(self, position: int) -> int:
        if not self._longest:
            return 0
        block, index = divmod(position, RECORDS_PER_CALL)
        if block != self._block:
            # NumPy guarantees that the raw bits of a counter-based generator do not change between
            # versions.
            generator = np.random.Philox(key=self._philox_key, counter=[0, 0, 0, block])
            bits = generator.random_raw(RECORDS_PER_CALL)
            self._delays = (bits % np.uint64(self._longest * _PARTS)).astype(np.int64)
            self._block = block
        return int(self._delays[index])


class StreamNode(SequentialNode):
    """Reads an iterable of records in one thread; see `from_stream`."""

    name = "stream"
    flow = _ShuffleFlow
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
        self.reading = threading.Lock()  # held while a record of a reused iterable is read
        self._epochs: list[int] = []  # epochs for which the iterable was opened
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

    def open_upstream(self, epoch: Epoch, vertex: Vertex, position: Any) -> Upstream:
        records = _StreamRecords(self, epoch.number, position or {})
        return Engine(records, min(epoch.threads, 1), epoch.ahead)

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
        """Return the state that an iterable, reused in all epochs, had before it was read."""
        with self._lock:
            if not self._initial:
                self._initial.append(_to_json(get()))
            return self._initial[0]


def _state_methods(owner: Any) -> tuple[Callable[[], Any], Callable[[Any], Any]] | None:
    """Return the methods that get and set a stream's state; None if it has none.

    Their names are those of Grain, or of Hugging Face and PyTorch.
    """
    for get, put in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        if hasattr(owner, get) and hasattr(owner, put):
            return getattr(owner, get), getattr(owner, put)
    return None


class _Records(NamedTuple):
    """Records that were read together."""

    records: np.ndarray  # int64 [M], positions in the stream
    fields: list[Data]


class _StreamRecords(ItemSource):
    """The records of this shard, one batch at a time; each error is raised once.

    A position contains the position in the stream and, if the stream has one, its own state there.
    Without a state the stream is read from its beginning. "begin" is the position of the state, if
    an error follows the records that were read after it. "errors" is the number of errors raised
    after the state or the beginning.
    """

    def __init__(self, node: StreamNode, epoch: int, position: dict[str, Any]) -> None:
        self._node, self._epoch = node, epoch
        self._who = node.describe()
        self._state = position.get("state")
        self._skip = int(position.get("position", 0))  # earlier records are not needed
        # Position of the next record.
        self._next = 0 if self._state is None else int(position.get("begin", self._skip))
        self._old_errors = int(position.get("errors", 0))  # raised earlier, and will occur again
        self._errors = 0
        self._iterator: Iterator[Any] | None = None
        self._methods: tuple[Callable[[], Any], Callable[[Any], Any]] | None = None
        # A later iteration sets the state of the same object, after this one has read a record.
        is_reused = not callable(node.iterable)
        self._reading: Any = node.reading if is_reused else contextlib.nullcontext()
        self._stopped = False
        self._records: list[tuple[int, Data]] = []  # records of the next item
        self._failure: Exception | None = None  # raised after the records before it
        self._at = position or {"position": 0}

    @property
    def position(self) -> dict[str, Any]:
        return self._at

    def claim(self) -> _Records | None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._count_error()
            raise failure
        while len(self._records) < (self._node.batch_size or 1):
            reading = self._next
            try:
                if not self._read():
                    break
            except Exception as error:
                if self._old_errors:
                    self._errors += 1
                    self._old_errors -= 1
                    continue
                note(error, "while reading record {} of the stream", reading)
                if not self._records:
                    self._count_error()
                    raise
                self._failure = error
                begin = self._at.get("begin", self._at["position"])
                self._at = {**self._at, "position": reading, "begin": begin}
                return self._take()
        if self._methods is None:
            self._at = {"position": self._next, "errors": self._errors}
        else:
            self._at = {"position": self._next, "state": _to_json(self._methods[0]())}
            self._errors = 0
        return self._take()

    def _count_error(self) -> None:
        self._errors += 1
        self._at = {**self._at, "errors": self._errors}

    def _take(self) -> _Records | None:
        records, self._records = self._records, []
        if not records:
            return None
        return _Records(np.array([n for n, _ in records]), [fields for _, fields in records])

    def stop(self) -> None:
        """Read no more records; idempotent, in any thread."""
        self._stopped = True

    def release(self) -> None:
        """Close a generator, so that it releases its resources."""
        iterator, self._iterator = self._iterator, iter(())
        if iterator is not None and iterator is not self._node.iterable:
            closing = getattr(iterator, "close", None)
            if callable(closing):
                closing()

    def _read(self) -> bool:
        """Read one record of the stream; return False at its end."""
        try:
            with self._reading:
                if self._stopped:
                    return False
                if self._iterator is None:
                    self._iterator = iter(())  # stays empty if the stream cannot be opened
                    self._iterator = self._open()
                record = next(self._iterator)
        except StopIteration:
            if self._next < self._skip:
                raise ValueError(
                    f"{self._who} has {self._next} records; the state is at record {self._skip}"
                ) from None
            return False
        position = self._next
        self._next += 1
        index, count = self._node.shard
        if position % count == index:
            fields = record_arrays(record, position, self._who)  # raises for skipped records, too
            if position >= self._skip:
                self._records.append((position, fields))
        return True

    def _open(self) -> Iterator[Any]:
        node, state = self._node, self._state
        opened = node.open(self._epoch)
        by_state, same = node.resume != "count", opened is node.iterable
        methods = _state_methods(opened) if by_state else None
        if methods is not None:
            if same:  # it may have been read before
                initial = node.initial_state(methods[0])
                state = initial if state is None else state
            if same or state is not None:
                methods[1](_from_json(state))
        iterator: Iterator[Any] = iter(opened)
        if methods is None and by_state:
            methods = _state_methods(iterator)
            if methods is not None and state is not None:
                methods[1](_from_json(state))
        if methods is not None:
            _to_json(methods[0]())  # raises an error early if JSON cannot represent it
        elif state is not None:
            raise ValueError(f"the state contains one of {self._who}, which has no set_state here")
        self._methods = methods
        return iterator


def _to_json(state: Any) -> Any:
    """Return a JSON-able copy of the state of a stream."""
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
    """Return the state from the result of `_to_json`."""
    if isinstance(state, dict) and state.keys() == {"base64"}:
        return base64.b64decode(state["base64"])
    return copy.deepcopy(state)
