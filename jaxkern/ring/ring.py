"""The Python interface of the native ring buffer, for producers and a training loop."""

from __future__ import annotations

import atexit
import contextlib
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.failures import describe_exception, exception_name
from jaxkern.ring import errors
from jaxkern.ring.structure import Structure, one_device

_NEXT, _LAST = -1, 2**62  # kNextIndex and kLastIndex in csrc/ring/ring.h
_MAX_CAPACITY = 2**20
_open: weakref.WeakSet[Ring] = weakref.WeakSet()


@dataclass(frozen=True)
class RingStats:
    """Statistics since the creation of a ring.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32))
      >>> ring.put(np.ones(2, np.float32))
      0
      >>> stats = ring.stats()
      >>> stats.ready, stats.batches
      (1, 0)
    """

    batches: int  #: number of delivered batches
    bytes: int  #: size of the delivered batches
    failures: int  #: number of delivered errors
    zero_copy: int  #: number of arrays that share the slot's memory
    copied: int  #: number of arrays that were copied, in jitted code or to another device
    producer_wait: float  #: seconds that producers waited for a slot, summed over producers
    consumer_wait: float  #: seconds that consumers waited for a batch
    elapsed: float  #: seconds since the ring's first use
    occupancy: tuple[int, ...]  #: [capacity + 1], histogram of ready batches at each `Ring.get`
    ready: int  #: current number of batches that wait for the consumer
    filling: int  #: current number of slots that producers fill
    held: int  #: current number of batches with an array that the consumer references
    #: "producer-bound" if the consumer waits more than twice as long as a producer does on average,
    #: "consumer-bound" in the opposite case, "balanced" otherwise or if both wait for less than 2%
    verdict: Literal["producer-bound", "consumer-bound", "balanced"]


class RingSlot:
    """A slot that a producer fills in place; without ``with``, call exactly one of its methods.

    Attributes:
      index: index of the batch.
      batch: pytree of NumPy arrays to fill. They must not be written after the ``with`` block.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32))
      >>> with ring.slot() as slot:
      ...     slot.batch[:] = 1.0
      >>> ring.get().tolist()
      [1.0, 1.0]
    """

    def __init__(self, ring: Ring, native: Any):
        self._ring, self._native = ring, native
        self.index: int = native.index
        self.batch = ring._structure.treedef.unflatten(ring._structure.views(native.leaves()))

    def __enter__(self) -> RingSlot:
        return self

    def __exit__(self, kind: Any, exception: BaseException | None, traceback: Any) -> None:
        if exception is None:
            self.commit()
        else:
            self.fail(exception)

    def commit(self) -> None:
        """Deliver the batch."""
        self.batch = None
        self._ring._commit(self._native)

    def fail(self, error: BaseException) -> None:
        """Deliver an exception instead of the batch."""
        self.batch = None
        try:
            self._ring._fail(error, self.index, self._native)
        except BaseException:
            self._native.abandon()  # frees the index for `fail`
            raise

    def abandon(self) -> None:
        """Release the slot without delivering a batch; its index can be used again."""
        self.batch = None
        self._native.abandon()


class SlotMemory:
    """Cache of the slot memory of a ring, plus one batch, for the next ring.

    Page faults on new memory take longer than refilling a slot.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> memory = jk.ring.SlotMemory()
      >>> for epoch in range(2):  # the second ring reuses the memory of the first
      ...     ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32), memory=memory)
      ...     ring.close()
    """

    def __init__(self) -> None:
        self._native: Any = None

    def _native_in(self, library: Any) -> Any:
        self._native = self._native or library.SlotMemory()
        return self._native


class Ring:
    """A bounded ring buffer of batches between threads, with any number of producers.

    Batches are delivered strictly in the order of their index. A producer that is ``capacity``
    batches ahead waits. On the CPU, arrays returned by `get` share the slot's memory, which is
    refilled only after they are deleted. Memory: ``capacity`` slots, plus the batches that the
    consumer holds beyond half of the capacity.

    Args:
      struct: pytree of ``jax.ShapeDtypeStruct`` (or of arrays) that every batch matches.
      capacity: number of slots.
      start: index of the first batch.
      device: device or sharding of the delivered batches; None for JAX's default device.
      pop_timeout: maximum time in seconds that `pop` and `push` wait in jitted code, where they
        cannot be interrupted; None for no limit.
      memory: cache of slot memory, shared with earlier and later rings; None for no cache.

    Raises:
      ValueError: ``capacity`` or ``start`` is not an integer or out of range.
      TypeError: a leaf of ``struct`` is neither numbers nor bools.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring({"x": jax.ShapeDtypeStruct((2,), np.float32)}, capacity=2)
      >>> ring.put({"x": np.ones(2, np.float32)})
      0
      >>> with ring.slot() as slot:
      ...     slot.batch["x"][:] = slot.index
      >>> ring.finish()
      >>> [batch["x"].tolist() for batch in ring]
      [[1.0, 1.0], [1.0, 1.0]]
    """

    def __init__(
        self,
        struct: Any,
        capacity: int = 4,
        *,
        start: int = 0,
        device: jax.Device | jax.sharding.Sharding | None = None,
        pop_timeout: float | None = 300.0,
        memory: SlotMemory | None = None,
    ):
        library = registry.module("cpu")
        if library is None:
            missing = registry.missing("jaxkern.ring", "cpu")
            raise errors.RingError(f"rings need jaxkern's native CPU library: {missing}")
        self._structure = Structure(struct, device)
        self._key = secrets.randbits(64) | 1  # 0 means no key
        self._capacity = check_integer("capacity", capacity, 1, _MAX_CAPACITY)
        self._start = check_integer("start", start, 0, _LAST)
        try:
            self._native = library.Ring(
                self._structure.native(),
                self._capacity,
                self._start,
                self._key,
                _seconds(pop_timeout, "pop_timeout"),
                _allocator(device),
                None if memory is None else memory._native_in(library),
            )
        except MemoryError:
            size = self._structure.bytes
            raise MemoryError(f"no memory for {capacity} slots of {size:,} bytes") from None
        self._errors: dict[int, BaseException] = {}  # by index of the failed batch
        self._errors_lock = threading.RLock()  # reentrant: a signal handler may fail a batch
        _open.add(self)

    @property
    def struct(self) -> Any:
        """Return the pytree of ``jax.ShapeDtypeStruct`` that every batch matches."""
        return self._structure.tree()

    @property
    def capacity(self) -> int:
        """Return the number of slots."""
        return self._capacity

    @property
    def closed(self) -> bool:
        """True if the ring is closed."""
        return bool(self._native.closed)

    def put(self, batch: Any, index: int | None = None, timeout: float | None = None) -> int:
        """Copy a batch into a slot, and return its index; wait while the ring is full.

        Args:
          batch: pytree of arrays that matches the ring's structure.
          index: index in the stream; None for the one after the highest index so far.
          timeout: seconds to wait for a slot; None for no limit.

        Raises:
          ValueError: a shape, a dtype or the tree differs, or the index was already put.
          TimeoutError: no slot became free in time.
          RingClosed: the ring is closed, or was closed during the wait.
          RingError: the index is after the end, or the process was forked.
        """
        buffers = self._structure.buffers(batch)
        where = _index(index), buffers, _seconds(timeout), _interruptible()
        *status, slot = self._native.put(*where)
        self._check(status, timeout)
        try:
            return self._commit(slot)
        except BaseException:
            slot.abandon()  # explicitly, because the traceback references it
            raise

    def slot(self, index: int | None = None, timeout: float | None = None) -> RingSlot:
        """Acquire a slot to fill in place, without the copy of `put`; wait while the ring is full.

        The end of the ``with`` block delivers the batch. An exception in the block is delivered
        instead of the batch, and also propagates in the producer.
        """
        *status, native = self._native.acquire(_index(index), _seconds(timeout), _interruptible())
        self._check(status, timeout)
        try:
            return RingSlot(self, native)
        except BaseException:
            native.abandon()  # explicitly, because the traceback references it
            raise

    def fail(self, error: BaseException, index: int | None = None) -> int:
        """Deliver an exception, with its traceback, instead of a batch; see `put` for the index.

        `get` raises it after all earlier batches.
        """
        return self._fail(error, _index(index), None)

    def finish(self, count: int | None = None) -> None:
        """End the stream; `get` delivers all batches that were put, then raises StopIteration.

        Args:
          count: the index after the last batch, before which producers may still put others; None
            for the one after the highest so far. ValueError if it contradicts batches or an earlier
            end.
        """
        self._check(self._native.finish(_index(count, 1)))

    def get(self, timeout: float | None = None) -> Any:
        """Wait for the next batch and return it as a pytree of ``jax.Array``.

        Args:
          timeout: seconds to wait; None for no limit. Ctrl-C interrupts; no batch is lost.

        Raises:
          StopIteration: the stream has ended.
          TimeoutError: the batch was not put in time; the message describes what is missing.
          BaseException: the exception of the batch's producer; ProducerError of a native one.
          RingClosed: the ring is closed, or was closed during the wait.
        """
        return batch_or_raise(self.take(timeout))

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.get()

    def close(self, timeout: float | None = 5.0) -> None:
        """Close the ring: wake all waiting threads and drop undelivered batches. Idempotent.

        Delivered arrays remain valid. `timeout` is the maximum time in seconds until the waiting
        threads have returned.
        """
        self._native.close(_seconds(timeout))
        self._errors.clear()

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def token(self) -> jax.Array:
        """Return uint32 [2], the token for the first `pop` or `push` of a jitted program."""
        words = (self._key & 0xFFFFFFFF, self._key >> 32)
        return jnp.asarray(np.array(words, np.uint32))

    def stats(self) -> RingStats:
        """Return the statistics of the ring."""
        return RingStats(**self._native.statistics())

    def state(self) -> dict[str, int | None]:
        """Return the position in the stream: ``last_delivered`` (None at first) and ``next``."""
        following = int(self._native.delivered)
        last = following - 1 if following > self._start else None
        return {"last_delivered": last, "next": following}

    def __repr__(self) -> str:
        return f"Ring({self.struct}, capacity={self._capacity}{', closed' * self.closed})"

    def take(self, timeout: float | None = None) -> tuple[int, BaseException | None, Any]:
        """Return (index, None, batch), or (index, error, None) of a producer; see `get`."""
        outcome, message, index, record, slots = self._native.take(
            _seconds(timeout),
            _interruptible(),
            self._structure.zero_copy,
            len(self._structure.leaves) - self._structure.copied,
        )
        if outcome == errors.OK:
            return index, None, self._structure.deliver(slots)
        if outcome == errors.FAILED:
            return index, self._error(index, record, message), None
        if outcome == errors.FINISHED:
            raise StopIteration
        raise errors.problem(outcome, message, timeout)

    def _check(self, status: Any, timeout: float | None = None) -> int:
        outcome, message, index = status
        if outcome != errors.OK:
            raise errors.problem(outcome, message, timeout)
        return int(index)

    def _commit(self, slot: Any) -> int:
        return self._check(slot.commit())

    def _fail(self, error: BaseException, index: int, slot: Any) -> int:
        if not isinstance(error, BaseException):
            raise TypeError(f"error is {error!r}; expected an exception")
        raised: BaseException | None = None
        try:
            message = describe_exception(error)
        except BaseException as interrupt:  # raised after the failure is reported
            message, raised = exception_name(error), interrupt
        with self._errors_lock:  # the consumer pops the error under the same lock
            if slot is None:
                status = self._native.fail(index, message)
            else:
                status = self._native.fail_slot(slot, message)
            if status[0] == errors.OK:
                self._errors[status[2]] = error
        if raised is not None:
            raise raised
        return self._check(status)

    def _error(self, index: int, record: int, message: str) -> BaseException:
        with self._errors_lock:
            error = self._errors.pop(index, None)
        if error is None:
            return errors.ProducerError(index, None if record < 0 else record, message)
        if not isinstance(error, StopIteration):
            return error
        replacement = RuntimeError(f"the producer of batch {index} raised StopIteration")
        replacement.__cause__ = error  # StopIteration would silently end the consumer's loop
        return replacement


def batch_or_raise(delivery: tuple[int, BaseException | None, Any]) -> Any:
    """Return the batch of a delivery, or raise its error."""
    _, error, batch = delivery
    if error is not None:
        try:
            raise error
        finally:
            del error, delivery  # the error's traceback references this frame
    return batch


def _allocator(device: Any) -> Any:
    """Return an allocator of page-locked memory in the context of a GPU of the batches, or None."""
    library = registry.module("cuda")
    if library is None:
        return None
    one = one_device(device)
    devices = [one] if one is not None else list(device.addressable_devices)
    if not devices or any(each.platform != "gpu" for each in devices):
        return None
    return library.pinned_allocator(min(each.local_hardware_id for each in devices))


def _index(index: int | None, extra: int = 0) -> int:
    return _NEXT if index is None else check_integer("index", index, 0, _LAST + extra, ", or None")


def _seconds(value: float | None, name: str = "timeout") -> float:
    if value is None:
        return -1.0
    if not value >= 0:
        raise ValueError(f"{name} is {value}; expected a time of at least 0 seconds, or None")
    return float(value)


def _interruptible() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _connect_cuda() -> None:
    cpu, cuda = registry.module("cpu"), registry.module("cuda")
    if cpu is not None and cuda is not None:
        cuda.set_ring_access(cpu.ring_access())


def _close_open() -> None:
    rings = [ring for ring in list(_open) if not ring.closed]
    for ring in rings:
        ring.close(timeout=1.0)
    cpu = registry.module("cpu")
    if cpu is not None:
        cpu.join_waiters(1.0)
    # At exit Python terminates daemon threads when they next acquire the GIL. If that happens in
    # native code, such as the return from a JAX program, it aborts the process. So wait for the
    # threads: those of pipelines, which end after their current batch, and others that may have
    # used a ring.
    now = time.monotonic()
    for thread in threading.enumerate():
        seconds = 5.0 if thread.name.startswith("jaxkern-") else 0.5 if rings else 0.0
        if thread.daemon and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # the start of the thread was interrupted
                thread.join(max(0.0, now + seconds - time.monotonic()))


_connect_cuda()
# Runs before Python joins non-daemon threads, which may wait in a ring; atexit runs after that.
getattr(threading, "_register_atexit", atexit.register)(_close_open)
