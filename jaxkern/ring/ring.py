"""The ring as a Python object: producers put, a training loop gets."""

from __future__ import annotations

import atexit
import contextlib
import functools
import secrets
import threading
import time
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core import registry
from jaxkern.core.failures import describe_exception, exception_name
from jaxkern.ring import errors
from jaxkern.ring.delivery import Delivery, one_device
from jaxkern.ring.statistics import RingStats
from jaxkern.ring.structure import Structure

_NEXT, _LAST = -1, 2**62  # kNextIndex and kLastIndex of csrc/ring/ring.h
_open: weakref.WeakSet[Ring] = weakref.WeakSet()


class RingSlot:
    """A slot that a producer fills in place; see `Ring.slot`.

    Without a ``with`` block, `commit`, `fail` or `abandon` ends it.

    Attributes:
      index: of the batch.
      batch: the pytree of NumPy arrays to fill. They must not be written after the ``with`` block.
    """

    def __init__(self, ring: Ring, native: Any):
        self._ring, self._native = ring, native
        self.index: int = native.index
        self.batch = ring._structure.treedef.unflatten(ring._structure.views(native.leaves()))

    def __enter__(self) -> RingSlot:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exception: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exception is None:
            self.commit()
        else:
            self.fail(exception)

    def commit(self) -> None:
        """Delivers the batch."""
        self.batch = None
        self._ring._commit(self._native)

    def fail(self, error: BaseException) -> None:
        """Delivers an exception in the batch's place."""
        self.batch = None
        try:
            self._ring._fail(error, self.index, self._native)
        except BaseException:
            self._native.abandon()  # where it could not be told: somebody may fail the index
            raise

    def abandon(self) -> None:
        """Gives the slot back unfilled: its index may be put by somebody else."""
        self.batch = None
        self._native.abandon()


class SlotMemory:
    """Memory of slots that rings, one after the other, take over: see `Ring`.

    The system makes fresh memory page by page when it is first written, which takes longer than
    filling a slot again. Here it stays from one ring to the next, until this object is gone: a
    ring's slots and one.
    """

    def __init__(self) -> None:
        self._native: Any = None

    def _in(self, library: Any) -> Any:
        """As the native library has it; made at the first use."""
        if self._native is None:
            self._native = library.SlotMemory()
        return self._native


class Ring:
    """A bounded ring of batches between threads: any number of producers, delivery by index.

    Each slot holds one batch of fixed shapes and dtypes. Batches leave strictly by index, whatever
    the order in which producers finish; a producer that is ``capacity`` batches ahead waits. On the
    CPU an array that `get` returns is the slot's own memory, which is filled anew only after the
    array is gone. The memory is ``capacity`` slots plus what a consumer keeps beyond half of them.

    Args:
      struct: the pytree of ``jax.ShapeDtypeStruct`` (or of arrays) that every batch matches.
      capacity: the number of slots.
      start: the index of the first batch.
      device: where `get` puts batches: a device or a sharding; None for JAX's default device. The
        arrays are committed to it.
      pop_timeout: seconds that `pop` and `push` in jitted code wait at most, since nothing can
        interrupt them; None for ever.
      memory: where the slots are taken from and given back; None for memory of the ring's own.

    Raises:
      ValueError: for a capacity below 1.
      TypeError: when a leaf of ``struct`` has no shape and dtype, or is neither numbers nor bools.
      MemoryError: when there is no memory for the slots.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> ring = jk.ring.Ring({"x": jax.ShapeDtypeStruct((2,), np.float32)}, capacity=2)
      >>> ring.put({"x": np.ones(2, np.float32)})
      0
      >>> ring.finish()
      >>> [float(batch["x"].sum()) for batch in ring]
      [2.0]
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
            raise errors.RingError(
                "the ring is native code, and jaxkern's CPU library is not loaded: "
                f"{registry.missing('jaxkern.ring', 'cpu')}"
            )
        self._structure = Structure(struct)
        self._key = secrets.randbits(64) | 1  # 0 is no key
        self._capacity = _whole("capacity", capacity)
        self._start = _whole("start", start)
        try:
            self._native = library.Ring(
                self._structure.native(),
                self._capacity,
                self._start,
                self._key,
                -1.0 if pop_timeout is None else _seconds("pop_timeout", pop_timeout),
                _allocator(device),
                None if memory is None else memory._in(library),
            )
        except MemoryError:
            raise MemoryError(
                f"no memory for {capacity} slots of {self._structure.bytes:,} bytes; give the ring "
                "a smaller capacity or smaller batches"
            ) from None
        self._device = device
        self._errors: dict[int, BaseException] = {}  # by the index of the failed batch
        self._errors_lock = threading.RLock()  # a signal handler may fail a batch, too
        _open.add(self)

    @property
    def struct(self) -> Any:
        """The pytree of ``jax.ShapeDtypeStruct`` that every batch matches."""
        return self._structure.tree()

    @property
    def capacity(self) -> int:
        """The number of slots."""
        return self._capacity

    @property
    def closed(self) -> bool:
        """Whether the ring is closed."""
        return bool(self._native.closed)

    def put(self, batch: Any, index: int | None = None, timeout: float | None = None) -> int:
        """Copies a batch into a slot; waits while the ring is full.

        Args:
          batch: a pytree of arrays like the ring's structure.
          index: its place in the stream; None for the one after the highest so far.
          timeout: seconds to wait for a slot; None for ever.

        Returns:
          The batch's index.

        Raises:
          ValueError: when a shape, a dtype or the tree differs, or the index was put before.
          TimeoutError: when no slot came free in time.
          RingClosed: when the ring is, or becomes, closed.
          RingError: when the index is behind the end, or the process was forked.
        """
        buffers = self._structure.buffers(batch)
        *status, slot = self._native.put(_index(index), buffers, _wait(timeout), _interruptible())
        self._check(status, timeout)
        try:
            return self._commit(slot)
        except BaseException:
            slot.abandon()  # now, since the traceback keeps it
            raise

    def slot(self, index: int | None = None, timeout: float | None = None) -> RingSlot:
        """A slot to fill in place, without the copy of `put`; waits while the ring is full.

        The ``with`` block's end delivers the batch; an exception in it becomes the batch's error,
        and goes on in the producer too.

        Example:
          >>> import jax, numpy as np, jaxkern as jk
          >>> ring = jk.ring.Ring(jax.ShapeDtypeStruct((2,), np.float32))
          >>> with ring.slot() as slot:
          ...     slot.batch[:] = slot.index
          >>> ring.get()
          Array([0., 0.], dtype=float32)
        """
        *status, native = self._native.acquire(_index(index), _wait(timeout), _interruptible())
        self._check(status, timeout)
        try:
            return RingSlot(self, native)
        except BaseException:
            native.abandon()  # now, since the traceback keeps it
            raise

    def fail(self, error: BaseException, index: int | None = None) -> int:
        """Delivers an exception in the place of a batch: `get` raises it after all earlier ones.

        Args:
          error: any exception; it keeps its traceback.
          index: its place in the stream; None for the one after the highest so far.

        Returns:
          The index.
        """
        return self._fail(error, _index(index), None)

    def finish(self, count: int | None = None) -> None:
        """Ends the stream. Everything that was put is still delivered, then `get` stops.

        Args:
          count: the index after the last batch, so that producers may still put earlier ones; None
            for the one after the highest so far.

        Raises:
          ValueError: when a batch at or behind the end was put, or another end was set.
        """
        self._check(self._native.finish(_NEXT if count is None else _index(count, 1)), None)

    def get(self, timeout: float | None = None) -> Any:
        """The next batch, as a pytree of ``jax.Array``; waits until it is there.

        An interrupt while it waits takes nothing from the ring.

        Args:
          timeout: seconds to wait; None for ever (Ctrl-C interrupts).

        Raises:
          StopIteration: when the stream has ended.
          TimeoutError: when the batch did not come in time; it names what is missing.
          BaseException: what the batch's producer failed with, with its traceback.
          ProducerError: when a native producer failed.
          RingClosed: when the ring is, or becomes, closed.
        """
        _, error, batch = self.take(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame
        return batch

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.get()

    def close(self, timeout: float | None = 5.0) -> None:
        """Ends the ring at once: wakes both sides and drops what was not delivered. Idempotent.

        Arrays that were delivered stay valid.

        Args:
          timeout: seconds to wait for the threads that were waiting in the ring to leave it.
        """
        self._native.close(_wait(timeout))
        self._errors.clear()

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def token(self) -> jax.Array:
        """uint32 [2]: the ring's name for the first `pop` or `push` of a jitted program."""
        words = (self._key & 0xFFFFFFFF, self._key >> 32)
        return jnp.asarray(np.array(words, np.uint32))

    def stats(self) -> RingStats:
        """What has happened so far, see `RingStats`."""
        return RingStats(**self._native.statistics())

    def state(self) -> dict[str, int | None]:
        """Where the stream is: ``last_delivered`` (None before the first batch) and ``next``.

        Batches that are ready in the ring and were not taken do not count.
        """
        following = int(self._native.delivered)
        return {
            "last_delivered": following - 1 if following > self._start else None,
            "next": following,
        }

    def __repr__(self) -> str:
        return f"Ring({self.struct}, capacity={self._capacity}{', closed' * self.closed})"

    def take(self, timeout: float | None = None) -> tuple[int, BaseException | None, Any]:
        """Like `get`, but return an error that was put in a batch's place instead of raising it.

        Returns:
          (index, None, batch), or (index, error, None).

        Raises: as `get`, except for the errors of producers.
        """
        delivery = self._delivery
        outcome, message, index, record, leaves = self._native.take(
            _wait(timeout), _interruptible(), delivery.zero_copy
        )
        if outcome == errors.OK:
            batch, counts = delivery.batch(leaves)
            self._native.count_hand_over(*counts)
            return index, None, batch
        if outcome == errors.FAILED:
            return index, self._error(index, record, message), None
        if outcome == errors.FINISHED:
            raise StopIteration
        raise errors.problem(outcome, message, timeout)

    @functools.cached_property
    def _delivery(self) -> Delivery:  # not before JAX's devices are asked for
        return Delivery(self._structure, self._device)

    def _check(self, status: Any, timeout: float | None) -> int:
        outcome, message, index = status
        if outcome != errors.OK:
            raise errors.problem(outcome, message, timeout)
        return int(index)

    def _commit(self, slot: Any) -> int:
        return self._check(slot.commit(), None)

    def _fail(self, error: BaseException, index: int, slot: Any) -> int:
        if not isinstance(error, BaseException):
            raise TypeError(f"error is {error!r}; wanted an exception")
        raised: BaseException | None = None
        try:
            message = describe_exception(error)
        except BaseException as interrupt:  # raised once the failure is reported
            message, raised = exception_name(error), interrupt
        with self._errors_lock:  # the consumer looks the error up under the same lock
            if slot is None:
                status = self._native.fail(index, message)
            else:
                status = self._native.fail_slot(slot, message)
            if status[0] == errors.OK:
                self._errors[status[2]] = error
        if raised is not None:
            raise raised
        return self._check(status, None)

    def _error(self, index: int, record: int, message: str) -> BaseException:
        with self._errors_lock:
            error = self._errors.pop(index, None)
        if error is None:
            return errors.ProducerError(index, None if record < 0 else record, message)
        if isinstance(error, StopIteration):  # it would silently end the consumer's loop
            ended = RuntimeError(f"the producer of batch {index} raised StopIteration")
            ended.__cause__ = error
            return ended
        return error


def _allocator(device: Any) -> Any:
    """Page-locked memory where batches go to a GPU, else None.

    It is allocated in the context of one of these GPUs: a context on any other would take memory.
    """
    library = registry.module("cuda")
    if library is None:
        return None
    one = one_device(device)
    devices = [one] if one is not None else list(device.addressable_devices)
    if not devices or any(each.platform != "gpu" for each in devices):
        return None
    return library.pinned_allocator(min(each.local_hardware_id for each in devices))


def _index(index: int | None, behind: int = 0) -> int:
    if index is None:
        return _NEXT
    if not 0 <= index <= _LAST + behind:
        raise ValueError(f"index is {index}; wanted 0 to 2**62, or None")
    return int(index)


def _whole(name: str, value: int) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; wanted an integer")
    return min(max(int(value), -1), _LAST + 1)  # the native ring says what its limits are


def _seconds(name: str, value: float) -> float:
    if not value >= 0:
        raise ValueError(f"{name} is {value}; wanted seconds, 0 or more, or None")
    return float(value)


def _wait(timeout: float | None) -> float:
    return -1.0 if timeout is None else _seconds("timeout", timeout)


def _interruptible() -> bool:
    return threading.get_ident() == threading.main_thread().ident


def _join_cuda() -> None:
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
    if not rings:
        return
    # Python ends daemon threads where they next need its lock; in native code, such as the return
    # of a program that waited for a batch, that ends the process. They have a moment to leave it.
    deadline = time.monotonic() + 0.5
    for thread in threading.enumerate():
        if thread.daemon and thread is not threading.current_thread():
            with contextlib.suppress(RuntimeError):  # its start was interrupted
                thread.join(max(0.0, deadline - time.monotonic()))


_join_cuda()
# Before Python waits for threads that are not daemons, which may wait in a ring; an ordinary exit
# hook would come after.
getattr(threading, "_register_atexit", atexit.register)(_close_open)
