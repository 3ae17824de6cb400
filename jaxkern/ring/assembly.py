"""Batches of rows of arrays, put together by native threads that do not need the interpreter."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.contexts import ThreadContexts
from jaxkern.core.mapped import check_mapped
from jaxkern.ring import errors
from jaxkern.ring.ring import Ring, SlotMemory
from jaxkern.ring.rows import byte_rows
from jaxkern.ring.statistics import RingStats

Remainder = Literal["drop", "pad", "partial"]

# Parameters are drawn for at least so many records at once, one such chunk ahead of the threads.
_CHUNK = 1024


class RecordProducer(Protocol):
    """Native code that makes each record of a field from a row, such as ``image.ChainProducer``.

    Attributes:
      capsule: named as core/producer.h says; None where rows are copied as they are.
      struct: shape and dtype of one record's output.
    """

    capsule: Any
    struct: jax.ShapeDtypeStruct

    def operands(self, records: np.ndarray) -> Sequence[np.ndarray]:
        """The parameters of these records int64 [N]: arrays [N or 1, ...]."""
        ...


class RowParts(NamedTuple):
    """Arrays of one field, alike but for their lengths, whose rows come one behind the other."""

    arrays: tuple[Any, ...]


class Assembly:
    """Batches of rows of arrays in a given order, filled natively into a ring's slots.

    The threads copy rows, or run a producer on them, straight into the memory that becomes the
    batch's arrays, and never wait for the interpreter: where ``order`` is an array and nothing is
    drawn at random, Python has no part in it; else a Python thread hands them parameters and
    record numbers for many batches ahead.

    Args:
      arrays: field -> array [N, ...]: NumPy arrays, memory maps, or a CPU's ``jax.Array``; each row
        lies without gaps in memory. They are not copied and must not be written meanwhile. Or
        field -> `RowParts`.
      order: record numbers int [M], or an iterable of such arrays, which may be endless.
      batch_size: records a batch.
      capacity: the ring's slots.
      workers: native threads.
      remainder: what becomes of records that do not fill the last batch: "drop"; "pad" with zeros,
        and a field "mask" bool [batch_size] in every batch; or "partial", a shorter last batch.
      producers: field -> what makes its records; the other fields are copied. 64-bit numbers
        become 32-bit ones where JAX has no 64-bit types enabled.
      valid: the name of a field bool [batch_size] that says which records the producers could make;
        what stands for the others is the producer's choice. None: such a record is its batch's
        error.
      start: the index of the first batch.
      rows_of: from the numbers in ``order`` [M] to rows of the arrays, where they differ; what is
        drawn for a record goes by its number.
      device, pop_timeout, memory: as in `Ring`.

    Raises:
      IndexError: for a record that the arrays do not have. In an iterable, it is raised by `get`
        in the place of the batch.
      OSError: where a mapped file has been cut short; likewise.
      TypeError, ValueError: for arrays of different lengths, without a leading axis, with gaps in
        a row, or of dtypes that are not numbers of this machine's byte order; and for batches
        beyond index 2**62.

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
            raise ValueError(f"remainder is {remainder!r}; wanted 'drop', 'pad' or 'partial'")
        struct = {name: field.struct(batch_size) for name, field in fields.items()}
        if valid is not None:
            if valid in fields:
                raise ValueError(f"valid names the field {valid!r}, which is given; rename it")
            struct[valid] = jax.ShapeDtypeStruct((batch_size,), np.dtype(bool))
        if remainder == "pad":
            if "mask" in struct:
                raise ValueError("a field is named 'mask', which remainder='pad' adds; rename it")
            struct["mask"] = jax.ShapeDtypeStruct((batch_size,), np.dtype(bool))
        # The flags are the native assembly's last leaves: a list keeps this order in the ring.
        self._names = list(struct)
        self.ring = Ring(
            list(struct.values()),
            capacity,
            start=start,
            device=device,
            pop_timeout=pop_timeout,
            memory=memory,
        )
        library = registry.module("cpu")
        assert library is not None  # or there would be no ring
        rows = next(iter(fields.values())).rows
        native = library.Assembly(
            self.ring._key,
            [field.native() for field in fields.values()],
            batch_size,
            remainder == "pad",
            start,
            workers,
            [field.producer for field in fields.values()],
            valid is not None,
        )
        self._native = native
        self._short: dict[int, int] = {}  # index of a shorter batch -> its records
        self._closing = weakref.finalize(self, native.close)
        self._length: int | None = None
        self._thread: threading.Thread | None = None
        feed = _RecordFeed(
            native, self.ring, fields, batch_size, remainder, start, rows, self._short, rows_of
        )
        if _in_parts(order):
            self._run(feed, order)
            return
        records = _records(order)
        place, record = _first_outside(feed.rows_at(records), rows)
        if place >= 0:
            raise IndexError(_outside(record, place, rows))
        self._length = len(records) // batch_size
        if remainder != "drop" and len(records) % batch_size:
            self._length += 1
        if feed.draws:
            size = batch_size * max(1, _CHUNK // batch_size)
            chunks = (records[i : i + size] for i in range(0, len(records), size))
            self._run(feed, chunks)
        else:
            feed.everything(records)

    def _run(self, feed: _RecordFeed, chunks: Iterable[Any]) -> None:
        thread = threading.Thread(
            target=feed.run, args=(chunks,), name="jaxkern-assembly", daemon=True
        )
        self._thread = thread
        thread.start()

    @property
    def struct(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes and dtypes of a whole batch's fields."""
        return self._tree(self.ring.struct)

    def __len__(self) -> int:
        """The number of batches, where ``order`` is an array."""
        if self._length is None:
            raise TypeError("order is an iterable, whose length is not known ahead")
        return self._length

    def get(self, timeout: float | None = None) -> dict[str, jax.Array]:
        """The next batch; waits until it is there. Raises as `Ring.get` does."""
        _, error, batch = self.take(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return batch  # type: ignore[no-any-return]

    def take(self, timeout: float | None = None) -> tuple[int, BaseException | None, Any]:
        """Like `get`, but return an error in a batch's place; see `Ring.take`."""
        index, error, leaves = self.ring.take(timeout)
        if error is not None:
            return index, error, None
        count = self._short.get(index)
        if count is not None:
            leaves = [leaf[:count] for leaf in leaves]
        return index, None, self._tree(leaves)

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return self.get()

    def pop(self, token: jax.Array) -> tuple[dict[str, jax.Array], jax.Array]:
        """The next whole batch inside jitted code, and the next token; see `jaxkern.ring.pop`.

        A shorter last batch comes with rows of zeros behind it.
        """
        from jaxkern.ring.ops import pop

        leaves, token = pop(self.ring, token)
        return self._tree(leaves), token

    def token(self) -> jax.Array:
        """uint32 [2], for the first `pop` of a jitted program."""
        return self.ring.token()

    def stats(self) -> RingStats:
        """The ring's statistics."""
        return self.ring.stats()

    def close(self, timeout: float | None = 5.0) -> None:
        """Stops the threads, at the next row, and closes the ring. Idempotent.

        Args:
          timeout: seconds to wait for who waits in `get`, and for the iterable of ``order``.
        """
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


class _Field:
    """One field: where its rows lie, and what becomes of them."""

    def __init__(self, name: str, value: Any, producer: RecordProducer | None):
        given = value.arrays if isinstance(value, RowParts) else (value,)
        self.arrays = [_array(name, part) for part in given]
        array = self.arrays[0]
        for part in self.arrays:
            if (part.shape[1:], part.dtype) != (array.shape[1:], array.dtype):
                raise ValueError(
                    f"the parts of field {name!r} have rows {array.dtype}{list(array.shape[1:])} "
                    f"and {part.dtype}{list(part.shape[1:])}; wanted the same"
                )
        self.rows = sum(part.shape[0] for part in self.arrays)
        self.producer = producer if producer is not None and producer.capsule is not None else None
        self._cast, dtype = _cast(array.dtype)
        self._record = jax.ShapeDtypeStruct(array.shape[1:], dtype)
        if producer is not None:
            if not all(part.flags.aligned for part in self.arrays):
                raise ValueError(
                    f"field {name!r} does not lie at a multiple of its items' size, where its "
                    "producer reads it; copy it: np.array(array)"
                )
            self._cast, self._record = Cast.NONE, producer.struct

    def struct(self, batch: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((batch, *self._record.shape), self._record.dtype)

    def native(self) -> tuple[list[np.ndarray], int, Any]:
        capsule = None if self.producer is None else self.producer.capsule
        return [byte_rows(part) for part in self.arrays], int(self._cast), capsule


@dataclasses.dataclass
class _RecordFeed:
    """Hands records and their parameters to the native threads; holds no reference to `Assembly`,
    so that one that is dropped is collected, which ends this."""

    native: Any
    ring: Ring
    fields: dict[str, _Field]
    batch: int
    remainder: Remainder
    following: int  # the index of the next batch
    rows: int
    short: dict[int, int]
    rows_of: Callable[[np.ndarray], np.ndarray] | None = None
    contexts: ThreadContexts = dataclasses.field(default_factory=ThreadContexts)  # draws need them

    @property
    def draws(self) -> bool:
        """Whether a producer wants parameters."""
        return any(field.producer is not None for field in self.fields.values())

    def rows_at(self, records: np.ndarray) -> np.ndarray:
        """Of the arrays, for the numbers of records."""
        return records if self.rows_of is None else self.rows_of(records)

    def everything(self, records: np.ndarray) -> None:
        """All records at once; nothing is left for Python to do."""
        whole = len(records) - len(records) % self.batch
        self._submit(records[:whole])
        self._end(records[whole:])

    def run(self, chunks: Iterable[Any]) -> None:
        """Chunk by chunk, a little ahead of the threads."""
        try:
            with self.contexts.enter():
                self._chunks(chunks)
        except BaseException as error:
            if not self.native.closed:
                self._give_up(error)

    def _chunks(self, chunks: Iterable[Any]) -> None:
        left = np.empty(0, np.int64)
        passed = 0
        for chunk in chunks:
            records = _records(chunk)
            place, record = _first_outside(self.rows_at(records), self.rows)
            if place >= 0:
                whole = (len(left) + place) // self.batch * self.batch
                self._submit(np.concatenate([left, records])[:whole])
                raise IndexError(_outside(record, passed + place, self.rows))
            passed += len(records)
            records = np.concatenate([left, records]) if len(left) else records
            whole = len(records) - len(records) % self.batch
            left = records[whole:]
            self._submit(records[:whole])
            ahead = max(1, _CHUNK // self.batch, self.ring.capacity)
            self.native.wait_for_room(ahead, -1.0)
            if self.native.closed:
                return
        self._end(left)

    def _end(self, left: np.ndarray) -> None:
        if len(left) and self.remainder != "drop":
            if self.remainder == "partial":
                self.short[self.following] = len(left)
            self._submit(left)
        self.native.finish()

    def _submit(self, records: np.ndarray) -> None:
        if not len(records):
            return
        for name, field in self.fields.items():
            for part in field.arrays:
                check_mapped(f"field {name!r}", part)
        producers = [field.producer for field in self.fields.values()]
        operands = [[] if made is None else list(made.operands(records)) for made in producers]
        rows = np.ascontiguousarray(self.rows_at(records), np.int64)
        self.following = self.native.submit(rows, operands)

    def _give_up(self, error: BaseException) -> None:
        # Closed meanwhile: nobody is left to be told. What the error's own text raises comes when
        # it has been told.
        with contextlib.suppress(BaseException):
            self.ring.fail(error, self.following)
        with contextlib.suppress(errors.RingError, ValueError):
            self.ring.finish(self.following + 1)
        self.native.finish()


def _fields(arrays: Mapping[str, Any], producers: dict[str, RecordProducer]) -> dict[str, _Field]:
    if not isinstance(arrays, Mapping) or not arrays:
        raise TypeError(f"arrays is {arrays!r:.80}; wanted a dict with at least one field -> array")
    unknown = [name for name in producers if name not in arrays]
    if unknown:
        raise ValueError(f"producers names {unknown}; the fields are {list(arrays)}")
    fields = {
        name: _Field(name, value, producers.pop(name, None)) for name, value in arrays.items()
    }
    lengths = {name: field.rows for name, field in fields.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the fields have different numbers of records: {lengths}")
    return fields


def _array(name: str, value: Any) -> np.ndarray:
    array = value if isinstance(value, np.ndarray) else np.asarray(value)
    if array.ndim == 0:
        raise ValueError(f"field {name!r} is one number; wanted an array [N, ...]")
    if array.dtype.kind in "OSUMm" or (array.dtype.kind == "V" and array.dtype.isbuiltin != 2):
        raise TypeError(f"field {name!r} has dtype {array.dtype}; wanted numbers or bools")
    if not array.dtype.isnative:
        raise TypeError(
            f"field {name!r} has dtype {array.dtype.str}, of the other byte order; convert it: "
            "array.astype(array.dtype.newbyteorder('='))"
        )
    if array.size and not array[:1].flags.c_contiguous:
        raise ValueError(
            f"field {name!r} has gaps within a row (strides {array.strides}); use "
            "np.ascontiguousarray(array)"
        )
    return array


class Cast(enum.IntEnum):
    """What happens to the items of a row on the way, numbered as in csrc/ring/gather.h."""

    NONE = 0
    INT64_TO_INT32 = 1
    FLOAT64_TO_FLOAT32 = 2


def _cast(dtype: np.dtype) -> tuple[Cast, np.dtype]:
    """The cast of a field's rows, and the dtype in the batch."""
    canonical = jax.dtypes.canonicalize_dtype(dtype)
    if canonical == dtype:
        return Cast.NONE, canonical
    return Cast.INT64_TO_INT32 if dtype.kind in "iu" else Cast.FLOAT64_TO_FLOAT32, canonical


def _in_parts(order: Any) -> bool:
    """Whether it is an iterable of arrays rather than one array, or a sequence of numbers."""
    if isinstance(order, Sequence):
        return len(order) > 0 and np.ndim(order[0]) > 0
    return not hasattr(order, "shape")


def _records(order: Any) -> np.ndarray:
    records = np.asarray(order)
    if records.size == 0 and records.ndim == 1:
        return np.empty(0, np.int64)
    if records.ndim != 1 or records.dtype.kind not in "iu":
        raise TypeError(
            f"order is {records.dtype}{list(records.shape)}; wanted integers [M], or an iterable "
            "of such arrays"
        )
    return records.astype(np.int64, copy=False)


def _first_outside(records: np.ndarray, rows: int) -> tuple[int, int]:
    """(place, record) of the first record that does not exist, or (-1, 0)."""
    if not len(records) or (records.min() >= 0 and records.max() < rows):
        return -1, 0
    place = int(np.flatnonzero((records < 0) | (records >= rows))[0])
    return place, int(records[place])


def _outside(record: int, place: int, rows: int) -> str:
    return (
        f"record {record} at place {place} of order is not in the arrays, which have records 0 to "
        f"{rows - 1}"
    )
