"""The engine: threads compute work items ahead of time, and a ring delivers them in order."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
from typing import Any, NamedTuple

import jax

from jaxkern.core.backend import ThreadContexts
from jaxkern.core.failures import is_interrupt
from jaxkern.ring import Ring, RingClosed, RingSlot, RingStats, SlotMemory


class ItemSource:
    """The work of an engine: `claim` decides the next item, in order; `make` computes it."""

    @property
    def position(self) -> Any:
        """The position where the next claim begins; JSON-able."""
        raise NotImplementedError

    def claim(self) -> Any:
        """Return the argument of `make` for the next item; None at the end.

        Only one thread calls it at a time.
        """
        raise NotImplementedError

    def make(self, claim: Any, slot: Any) -> Any:
        """Return the item of a claim; called in any thread.

        If its arrays are in the ring's slot, its `filled` is True, and the arrays that the ring
        delivers replace its fields.
        """
        return claim

    def resize(self, threads: int) -> None:
        """Change the number of threads upstream."""

    def stop(self) -> None:
        """Wake the threads that wait in `claim`; called in any thread."""

    def release(self) -> None:
        """Release resources; called in the last thread that called `claim`."""


class Item(NamedTuple):
    """A value or an error, and the positions of the source before and after it."""

    value: Any
    error: BaseException | None
    before: Any
    after: Any


class Engine:
    """Makes the items of a source, at most `ahead` before they are consumed.

    With `threads=0` each item is made when it is requested. `struct` has the shapes of the slots
    that `make` fills; None if items are Python objects. `position` is the position of the source
    after the last consumed item.
    """

    def __init__(
        self,
        source: ItemSource,
        threads: int,
        ahead: int,
        *,
        struct: Any = None,
        start: int = 0,
        device: Any = None,
        memory: SlotMemory | None = None,
    ) -> None:
        self.position = source.position
        #: maximum number of items made ahead
        self.capacity = max(ahead, 1)
        self._source = source
        # A ring without arrays orders the items. It has more slots than `capacity`, so that
        # `capacity` can grow.
        self._room = threading.Semaphore(self.capacity) if struct is None else None
        self._ring: Ring | None = None
        self._slot_bytes = 0
        self._overflow_bytes = 0  # size of items that did not fit into the ring's slots
        if threads:
            slots = self.capacity if struct is not None else 2 * self.capacity + 64
            for leaf in jax.tree.leaves(struct):
                self._slot_bytes += leaf.size * leaf.dtype.itemsize
            struct = () if struct is None else struct
            self._ring = Ring(struct, slots, start=start, device=device, memory=memory)
        self._items: dict[int, Item] = {}
        self._next = start
        self._claiming = threading.Lock()
        self._lock = threading.RLock()  # guards the next five; a finalizer may close in any thread
        self._threads = threads  # number of threads that should run; 0 after the last item
        self._running: dict[int, threading.Thread] = {}  # by thread number, from 0
        self._ended = False  # no more items are claimed
        self._released = False  # the source was released
        self._making_here = False  # a thread is in `_make_here`
        self._process = os.getpid()
        self._contexts = ThreadContexts()

    def next(self, timeout: float | None = None) -> Item | None:
        """Return the next item; None after the last one.

        Raises: RingClosed if the engine is closed; RingTimeout after `timeout` seconds.
        """
        if self._ring is None:
            return self._make_here()
        if len(self._running) < self._threads:
            self.start()
        try:
            index, error, arrays = self._ring.take(timeout)
        except StopIteration:
            self.position = self._source.position
            return None
        item = self._items.pop(index, None)
        if item is None:
            raise RingClosed("the iteration was closed while a batch was taken")
        if self._room is not None:
            self._room.release()
        if error is not None:
            item = item._replace(error=error)
        elif getattr(item.value, "filled", False):
            item = item._replace(value=item.value._replace(**arrays, filled=False))
        self.position = item.after
        return item

    def resize(self, threads: int) -> None:
        """Change the number of threads here and upstream; ignored if items are made on request."""
        self._source.resize(threads)
        if self._ring is None:
            return
        ahead = max(self.capacity, threads + 2)
        if self._room is not None:
            for _ in range(ahead - self.capacity):
                self._room.release()
            self.capacity = ahead
        with self._lock:
            if not self._ended:
                self._threads = min(threads, self.capacity)

    def stats(self) -> RingStats | None:
        """Return the statistics of the ring; None if items are made on request.

        They include the items that did not fit into slots.
        """
        if self._ring is None:
            return None
        stats = self._ring.stats()
        return dataclasses.replace(stats, bytes=stats.bytes + self._overflow_bytes)

    def close(self) -> None:
        """End the threads and wake the consumer; idempotent."""
        if os.getpid() != self._process:
            return  # in a child, locks may be held by threads that do not exist here
        self._end()
        self._source.stop()
        if self._ring is not None:
            self._ring.close()
        if self._room is not None:
            self._room.release()
        self._items.clear()
        self._release_when_idle()

    def start(self) -> None:
        """Start the threads before the first call of `next`."""
        with self._lock:
            for number in {*range(self._threads)} - self._running.keys():
                name = f"jaxkern-pipeline-{number + 1}"
                thread = threading.Thread(target=self._work, args=[number], name=name, daemon=True)
                thread.start()
                self._running[number] = thread

    def join(self, timeout: float | None) -> None:
        """Wait for the threads."""
        for thread in list(self._running.values()):
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _end(self) -> None:
        """Claim no more items."""
        with self._lock:
            self._threads, self._ended = 0, True

    def _release_when_idle(self) -> None:
        """Release the source after the end, once, when no thread uses it."""
        with self._lock:
            if not self._ended or self._released or self._running or self._making_here:
                return
            self._released = True
        self._source.release()

    def _make_here(self) -> Item | None:
        """Make the next item in this thread; another thread may close the engine meanwhile."""
        closed = RingClosed("the iteration was closed while a batch was made")
        with self._lock:
            if self._ended:
                raise closed
            self._making_here = True
        before, value, error = self._source.position, None, None
        try:
            claim = self._source.claim()
            if claim is not None:
                value = self._source.make(claim, None)
        except BaseException as failure:
            if is_interrupt(failure):
                raise
            error = failure
        finally:
            with self._lock:
                self._making_here = False
            self._release_when_idle()
        self.position = self._source.position
        if self._ended:
            raise closed
        return (
            None if error is None and value is None else Item(value, error, before, self.position)
        )

    def _work(self, number: int) -> None:
        try:
            with self._contexts.enter(), contextlib.suppress(RingClosed):
                while self._make_one(number):
                    pass
        finally:
            with self._lock:
                self._running.pop(number, None)  # an interrupt may have prevented its insertion
            self._release_when_idle()

    def _make_one(self, number: int) -> bool:
        """Make the next item; return False if the thread should end."""
        ring = self._ring
        assert ring is not None
        with self._claiming:
            if number >= self._threads:
                return False
            if self._room is not None:
                self._room.acquire()
                if number >= self._threads:  # `close` has made room
                    return False
            index, before = self._next, self._source.position
            claim: Any = None
            error: BaseException | None = None
            try:
                claim = self._source.claim()
            except BaseException as failure:
                error = failure
            after = self._source.position
            ending = claim is None and error is None
            self._next += not ending
            if ending or not (error is None or isinstance(error, Exception)):
                self._end()
                ring.finish(self._next)
            if ending:
                return False
        slot: RingSlot | None = None
        value: Any = None
        try:
            if error is None:  # without the lock: several threads can wait for slots
                slot = ring.slot(index)
        except MemoryError as failure:  # delivered instead of the item
            error = failure
        if slot is not None:
            try:
                value = self._source.make(claim, slot.batch)
            except BaseException as failure:
                error = failure
        self._items[index] = Item(value, None, before, after)
        if error is None:
            assert slot is not None
            if self._slot_bytes and not getattr(value, "filled", False):
                with self._lock:
                    self._overflow_bytes += value.nbytes - self._slot_bytes
            slot.commit()
            return True
        # An exception raised by str(error) must not end the thread.
        with contextlib.suppress(BaseException):
            if slot is None:
                ring.fail(error, index)
            else:
                slot.fail(error)
        return True
