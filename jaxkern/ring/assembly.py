"""Batches of rows of arrays, assembled by native threads without the GIL."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import check_mapped
from jaxkern.core.backend import ThreadContexts
from jaxkern.ring import errors
from jaxkern.ring.ring import Ring, RingStats, SlotMemory, batch_or_raise
from jaxkern.ring.rows import RowParts, byte_rows, common_length, is_numeric

Remainder = Literal["drop", "pad", "partial"]

# Minimum number of records per draw of parameters, and by which draws are ahead of the threads.
_CHUNK = 1024


class RecordProducer(Protocol):
    """Native code that converts rows of a field to records, such as ``image.ChainProducer``."""

    capsule: Any  # see core/producer.h; None if rows are copied unchanged
    struct: jax.ShapeDtypeStruct  # shape and dtype of one output record

    def operands(self, records: np.ndarray) -> Sequence[np.ndarray]:
        """Return the parameters of records int64 [N], as arrays [N or 1, ...]."""


class Assembly:
    """Iterator over batches of array rows in a given order, filled natively in a ring's slots.

    Native threads copy rows, or run a producer on them, directly into the memory of the batch's
    arrays, without the GIL. A Python thread submits record numbers and parameters in advance,
    unless ``order`` is an array and no parameters are drawn.

    Args:
      arrays: field -> array [N, ...] with contiguous rows, or `RowParts`. They are not copied, and
        must not be modified during the iteration.
      order: record numbers int [M], or an iterable of such arrays, which may be infinite.
      batch_size: number of records per batch.
      capacity: number of slots of the ring.
      workers: number of native threads.
      remainder: treatment of records that do not fill the last batch: "drop"; "pad" with zeros and
        add a field "mask" bool [batch_size] to every batch; or "partial", a shorter last batch.
      producers: field -> producer of its records; other fields are copied. 64-bit numbers become
        32-bit if JAX has no 64-bit types enabled.
      valid: name of an additional field bool [batch_size] that is False for records that a producer
        could not make. None: such a record raises an error for its batch.
      rows_of: function from record numbers [M] to rows of the arrays, if they differ. Parameters
        are drawn by record number.
      start, device, pop_timeout, memory: as in `Ring`.

    Raises:
      IndexError: a record number is out of range. If ``order`` is an iterable, `get` raises it
        instead of returning the batch.
      OSError: a mapped file was truncated; raised as above.
      TypeError, ValueError: arrays have different lengths, rows that are not contiguous, or dtypes
        that are not numbers in native byte order; or the batch index exceeds 2**62.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> rows = np.arange(12, dtype=np.float32).reshape(6, 2)
      >>> with jk.ring.Assembly({"x": rows}, [5, 0, 3, 1], batch_size=2) as batches:
      ...     [batch["x"].tolist() for batch in batches]
      [[[10.0, 11.0], [0.0, 1.0]], [[6.0, 7.0], [2.0, 3.0]]]
    """

    def __init__(
        self,
        arrays: Mapping[str, Any],
        order: Any,
        batch_size: int,
        *,
        capacity: int = 4,
        workers: int = 2,
        remainder: Remainder = "drop",
        producers: Mapping[str, RecordProducer] | None = None,
        valid: str | None = None,
        start: int = 0,
        rows_of: Callable[[np.ndarray], np.ndarray] | None = None,
        device: jax.Device | jax.sharding.Sharding | None = None,
        pop_timeout: float | None = 300.0,
        memory: SlotMemory | None = None,
    ):
        fields = _fields(arrays, dict(producers or {}))
        batch_size = check_integer("batch_size", batch_size, 1)
        workers = check_integer("workers", workers, 1)
        if remainder not in ("drop", "pad", "partial"):
            raise ValueError(f"remainder is {remainder!r}; expected 'drop', 'pad' or 'partial'")
        struct = {name: field.struct(batch_size) for name, field in fields.items()}
        mask = "mask" if remainder == "pad" else None
        for argument, flag in (("valid", valid), ("remainder='pad'", mask)):
            if flag in struct:
                raise ValueError(f"{argument} adds the field {flag!r}, which exists; rename it")
            if flag is not None:
                struct[flag] = jax.ShapeDtypeStruct((batch_size,), np.dtype(bool))
        # The flags must be the last leaves of the native assembly; a list preserves their order.
        self._names, leaves = list(struct), list(struct.values())
        options: dict[str, Any] = {"device": device, "pop_timeout": pop_timeout, "memory": memory}
        self.ring = Ring(leaves, capacity, start=start, **options)
        library = registry.module("cpu")
        assert library is not None  # checked by Ring
        self._native = native = library.Assembly(
            self.ring._key,
            [field.native() for field in fields.values()],
            batch_size,
            remainder == "pad",
            start,
            workers,
            [field.producer for field in fields.values()],
            valid is not None,
        )
        self._short: dict[int, int] = {}  # index of a short batch -> its number of records
        self._closing = weakref.finalize(self, native.close)
        self._length: int | None = None
        self._thread: threading.Thread | None = None
        short, rows_of = self._short, rows_of or (lambda records: records)
        feed = _RecordFeed(native, self.ring, fields, batch_size, remainder, start, short, rows_of)
        if _is_chunked(order):
            self._run(feed, feed.located(order))
            return
        (chunk,) = tuple(feed.located([order]))
        records, rows = chunk
        rest = 0 if remainder == "drop" else batch_size - 1
        self._length = (len(records) + rest) // batch_size
        if any(field.producer is not None for field in fields.values()):
            size = batch_size * max(1, _CHUNK // batch_size)
            parts = (slice(start, start + size) for start in range(0, len(records), size))
            self._run(feed, ((records[part], rows[part]) for part in parts))
        else:
            feed.submit([(records, rows)])

    def _run(self, feed: _RecordFeed, chunks: Iterable[_Chunk]) -> None:
        name = "jaxkern-assembly"
        self._thread = threading.Thread(target=feed.run, args=(chunks,), name=name, daemon=True)
        self._thread.start()

    @property
    def struct(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Return the shapes and dtypes of the fields of a full batch."""
        return self._tree(self.ring.struct)

    def __len__(self) -> int:
        """Return the number of batches if ``order`` is an array."""
        if self._length is None:
            raise TypeError("order is an iterable, so the number of batches is unknown")
        return self._length

    def get(self, timeout: float | None = None) -> dict[str, jax.Array]:
        """Wait for the next batch and return it; see `Ring.get`."""
        return batch_or_raise(self.take(timeout))

    def take(self, timeout: float | None = None) -> tuple[int, BaseException | None, Any]:
        """Return the next batch or error; see `Ring.take`."""
        index, error, leaves = self.ring.take(timeout)
        if error is None and index in self._short:
            leaves = [leaf[: self._short[index]] for leaf in leaves]
        return index, error, None if leaves is None else self._tree(leaves)

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return self.get()

    def pop(self, token: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        """Return the next batch, padded with zeros, and the next token; see `ring.pop`."""
        from jaxkern.ring.ops import pop

        leaves, token = pop(self.ring, token)
        return self._tree(leaves), token

    def token(self) -> jax.Array:
        """Return uint32 [2], the token for the first `pop` of a jitted program."""
        return self.ring.token()

    def stats(self) -> RingStats:
        """Return the ring's statistics."""
        return self.ring.stats()

    def close(self, timeout: float | None = 5.0) -> None:
        """Stop the threads at their next row, and close the ring; see `Ring.close`."""
        self._closing()
        self.ring.close(timeout)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def __enter__(self) -> Assembly:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Assembly({self.struct}{', closed' * self.ring.closed})"

    def _tree(self, leaves: Sequence[Any]) -> dict[str, Any]:
        return dict(zip(self._names, leaves, strict=True))


#: record numbers int64 [M], and their rows
_Chunk = tuple[np.ndarray, np.ndarray]


class _Field:
    """The rows and the producer of one field."""

    def __init__(self, name: str, value: Any, producer: RecordProducer | None):
        parts = value.arrays if isinstance(value, RowParts) else (value,)
        self.parts = RowParts([_array(name, part) for part in parts])
        array = self.parts.arrays[0]
        for part in self.parts.arrays:
            if (part.shape[1:], part.dtype) != (array.shape[1:], array.dtype):
                kinds = [f"{each.dtype}{list(each.shape[1:])}" for each in (array, part)]
                raise ValueError(f"field {name!r} has parts with rows {kinds[0]} and {kinds[1]}")
        self.producer = producer if producer is not None and producer.capsule is not None else None
        self._cast, dtype = _cast(array.dtype)
        self._record = jax.ShapeDtypeStruct(array.shape[1:], dtype)
        if producer is not None:
            if not all(part.flags.aligned for part in self.parts.arrays):
                raise ValueError(f"field {name!r} is not aligned to its item size; copy it")
            self._cast, self._record = Cast.NONE, producer.struct

    def struct(self, batch: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *self._record.shape), self._record.dtype)

    def native(self) -> tuple[list[np.ndarray], int, Any]:
        capsule = None if self.producer is None else self.producer.capsule
        return [byte_rows(part) for part in self.parts.arrays], int(self._cast), capsule


@dataclasses.dataclass
class _RecordFeed:
    """Submits records and their parameters to the native threads.

    Holds no reference to the `Assembly`, so an unused one is collected, which stops the feed.
    """

    native: Any
    ring: Ring
    fields: dict[str, _Field]
    batch: int
    remainder: Remainder
    next_index: int  # index of the next batch
    short: dict[int, int]
    rows_of: Callable[[np.ndarray], np.ndarray]
    contexts: ThreadContexts = dataclasses.field(default_factory=ThreadContexts)  # draws need them

    def located(self, order: Iterable[Any]) -> Iterator[_Chunk]:
        """Yield the records and rows of each chunk; raise IndexError for one out of range.

        The records before it are yielded first.
        """
        count = len(next(iter(self.fields.values())).parts)
        before = 0
        for chunk in order:
            records = _records(chunk)
            rows = np.ascontiguousarray(self.rows_of(records), np.int64)
            if rows.size and not (rows.min() >= 0 and rows.max() < count):
                first = int(np.flatnonzero((rows < 0) | (rows >= count))[0])
                yield records[:first], rows[:first]
                raise IndexError(
                    f"record {rows[first]} at position {before + first} of order is out of range; "
                    f"the arrays have records 0 to {count - 1}"
                )
            yield records, rows
            before += len(records)

    def run(self, chunks: Iterable[_Chunk]) -> None:
        """Submit chunks of records, slightly ahead of the threads."""
        try:
            with self.contexts.enter():
                self.submit(chunks, wait=True)
        except BaseException as error:
            if not self.native.closed:
                self._fail(error)

    def submit(self, chunks: Iterable[_Chunk], wait: bool = False) -> None:
        """Submit chunks of records; if `wait`, wait for the threads."""
        rest: _Chunk = (np.empty(0, np.int64), np.empty(0, np.int64))
        for records, rows in chunks:
            if len(rest[0]):
                records, rows = np.append(rest[0], records), np.append(rest[1], rows)
            full = len(records) - len(records) % self.batch
            rest = records[full:], rows[full:]
            self._submit(records[:full], rows[:full])
            if wait:
                ahead = max(1, _CHUNK // self.batch, self.ring.capacity)
                self.native.wait_for_room(ahead, -1.0)
            if self.native.closed:
                return
        if len(rest[0]) and self.remainder != "drop":
            if self.remainder == "partial":
                self.short[self.next_index] = len(rest[0])
            self._submit(*rest)
        self.native.finish()

    def _submit(self, records: np.ndarray, rows: np.ndarray) -> None:
        if not len(records):
            return
        for name, field in self.fields.items():
            for part in field.parts.select(rows)[0]:
                check_mapped(f"field {name!r}", part)
        producers = [field.producer for field in self.fields.values()]
        operands = [[] if p is None else list(p.operands(records)) for p in producers]
        self.next_index = self.native.submit(rows, operands)

    def _fail(self, error: BaseException) -> None:
        # The ring may be closed. If str(error) raises an exception, the error is already delivered.
        with contextlib.suppress(BaseException):
            self.ring.fail(error, self.next_index)
        with contextlib.suppress(errors.RingError, ValueError):
            self.ring.finish(self.next_index + 1)
        self.native.finish()


def _fields(arrays: Mapping[str, Any], producers: dict[str, RecordProducer]) -> dict[str, _Field]:
    if not isinstance(arrays, Mapping) or not arrays:
        raise TypeError(f"arrays is {arrays!r:.80}; expected a dict with at least one field")
    if unknown := [name for name in producers if name not in arrays]:
        raise ValueError(f"producers has unknown fields {unknown}; the fields are {list(arrays)}")
    fields = {
        name: _Field(name, value, producers.pop(name, None)) for name, value in arrays.items()
    }
    common_length({name: len(field.parts) for name, field in fields.items()})
    return fields


def _array(name: str, value: Any) -> np.ndarray:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim == 0:
        raise ValueError(f"field {name!r} is a scalar; expected an array [N, ...]")
    if not is_numeric(array.dtype):
        raise TypeError(f"field {name!r} has dtype {array.dtype}; expected numbers or bools")
    if not array.dtype.isnative:
        raise TypeError(f"field {name!r} has dtype {array.dtype.str}, not in native byte order")
    if array.size and not array[:1].flags.c_contiguous:
        raise ValueError(f"the rows of {name!r} are not contiguous, with strides {array.strides}")
    return array


class Cast(enum.IntEnum):
    """Conversion of the items of a row; the values equal those in csrc/ring/gather.h."""

    NONE = 0
    INT64_TO_INT32 = 1
    FLOAT64_TO_FLOAT32 = 2


def _cast(dtype: np.dtype) -> tuple[Cast, np.dtype]:
    canonical = jax.dtypes.canonicalize_dtype(dtype)
    if canonical == dtype:
        return Cast.NONE, canonical
    return Cast.INT64_TO_INT32 if dtype.kind in "iu" else Cast.FLOAT64_TO_FLOAT32, canonical


def _is_chunked(order: Any) -> bool:
    """True for an iterable of arrays, False for one array or a sequence of numbers."""
    if isinstance(order, Sequence):
        return len(order) > 0 and np.ndim(order[0]) > 0
    return not hasattr(order, "shape")


def _records(order: Any) -> np.ndarray:
    records = np.asarray(order)
    if records.size == 0 and records.ndim == 1:
        return np.empty(0, np.int64)
    if records.ndim != 1 or records.dtype.kind not in "iu":
        raise TypeError(f"order is {records.dtype}{list(records.shape)}; expected integers [M]")
    return records.astype(np.int64, copy=False)
