"""The engine: threads make work items ahead, and a ring delivers them in order."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable
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
        """Return what `make` needs for the next item; None at the end. One thread at a time."""
        raise NotImplementedError

    def make(self, claim: Any, slot: Any) -> Any:
        """Return the item of a claim, in any thread. If its arrays are in the ring's slot, its
        `filled` is True, and its fields are replaced by those that the ring delivers."""
        return claim

    def resize(self, threads: int) -> None:
        """Change the number of threads upstream."""

    def stop(self) -> None:
        """Wake the threads that wait in `claim`; called in any thread."""

    def release(self) -> None:
        """Release resources; called in the last thread that claimed."""


class Item(NamedTuple):
    """A value, or the error in its place; and the positions of the source around it."""

    value: Any
    error: BaseException | None
    before: Any
    after: Any


class Engine:
    """Makes the items of a source, at most `ahead` before they are consumed.

    With no `threads` each item is made when it is requested. `struct` has the shapes of a slot that
    `make` can fill; None if items are Python objects. `position` is that of the source after the
    last item that was consumed.
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
        #: number of items that may be ahead
        self.capacity = max(ahead, 1)
        self._source, self._threads = source, threads
        # A ring without arrays orders the items. It has more slots than items may be ahead, so that
        # the number ahead can grow.
        self._room = threading.Semaphore(self.capacity) if struct is None else None
        self._slots = struct is not None
        self._ring: Ring | None = None
        if threads:
            slots = self.capacity if self._slots else 2 * self.capacity + 64
            struct = () if struct is None else struct
            leaves = jax.tree.leaves(struct)
            self._slot_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
            self._ring = Ring(struct, slots, start=start, device=device, memory=memory)
        self._items: dict[int, Item] = {}
        self._overflow_bytes = 0  # of items that did not fit into the ring's slots
        self._next = start
        self._claiming = threading.Lock()
        self._lock = threading.Lock()  # guards the four numbers below
        self._to_start, self._running, self._surplus, self._started = threads, 0, 0, 0
        self._ended = self._closed = False
        self._thread: Callable[[], threading.Thread | None] = lambda: None
        self._process = os.getpid()
        self._contexts = ThreadContexts()

    def next(self, timeout: float | None = None) -> Item | None:
        """Return the next item; None after the last one.

        Raises: RingClosed if the engine is closed; RingTimeout after `timeout` seconds.
        """
        if self._ring is None:
            return self._make_here()
        if self._to_start:
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
        """Change the number of threads, here and upstream; not if items are made on request."""
        self._source.resize(threads)
        if self._ring is None:
            return
        ahead = max(self.capacity, threads + 2)
        if self._room is not None:
            for _ in range(ahead - self.capacity):
                self._room.release()
            self.capacity = ahead
        threads = min(threads, self.capacity)
        with self._lock:
            more, self._threads = threads - self._threads, threads
            self._to_start += max(more, 0)
            self._surplus += max(-more, 0)

    def stats(self) -> RingStats | None:
        """Return the statistics of the ring, including the items that did not fit into slots; None
        if items are made on request."""
        if self._ring is None:
            return None
        stats = self._ring.stats()
        return dataclasses.replace(stats, bytes=stats.bytes + self._overflow_bytes)

    def close(self) -> None:
        """End the threads and wake the consumer; idempotent."""
        if os.getpid() != self._process:
            return  # in a child, locks may be held by threads that do not exist here
        self._closed = True
        self._source.stop()
        if self._ring is not None:
            self._ring.close()
        if self._room is not None:
            self._room.release()
        self._items.clear()
        with self._lock:
            self._to_start = 0
            idle = not self._running
        if idle:
            self._source.release()

    def _make_here(self) -> Item | None:
        if self._closed:
            raise RingClosed("the iteration was closed while a batch was made")
        before, value, error = self._source.position, None, None
        try:
            claim = self._source.claim()
            if claim is not None:
                value = self._source.make(claim, None)
        except BaseException as failure:
            if is_interrupt(failure):
                raise
            error = failure
        self.position = self._source.position
        if error is None and value is None:
            return None
        return Item(value, error, before, self.position)

    def start(self) -> None:
        """Start the threads now and not with the first `next`."""
        while self._to_start:
            with self._lock:
                if not self._to_start or self._ended or self._closed:
                    return
                self._to_start -= 1
                self._running += 1
                self._started += 1
            name = f"jaxkern-pipeline-{self._started}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._thread = weakref.ref(thread)
            thread.start()

    def join(self, timeout: float | None) -> None:
        """Wait for the last thread that was started."""
        thread = self._thread()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _work(self) -> None:
        with self._contexts.enter(), contextlib.suppress(RingClosed):
            while self._make_one():
                pass
        with self._lock:
            self._running -= 1
            last = not self._running and (self._closed or self._ended)
        if last:
            self._source.release()

    def _make_one(self) -> bool:
        """Make the next item; return False if the thread should end."""
        ring = self._ring
        assert ring is not None
        with self._claiming:
            with self._lock:
                if self._ended or self._closed:
                    return False
                if self._surplus:
                    self._surplus -= 1
                    return False
            if self._room is not None:
                self._room.acquire()
            index = self._next
            error: BaseException | None = None
            before, claim = self._source.position, None
            try:
                claim = self._source.claim()
            except BaseException as failure:
                error = failure
            ending = claim is None and error is None
            self._next += not ending
            after = self._source.position
            if ending or not (error is None or isinstance(error, Exception)):
                self._ended = True
                ring.finish(self._next)
            if ending:
                return False
        slot: RingSlot | None = None
        value: Any = None
        try:
            if error is None:  # not in the lock: several threads can wait for slots
                slot = ring.slot(index)
        except MemoryError as failure:  # raised in the item's place
            error = failure
        if slot is not None:
            try:
                value = self._source.make(claim, slot.batch)
            except BaseException as failure:
                error = failure
        self._items[index] = Item(value, None, before, after)
        if error is None:
            assert slot is not None
            if self._slots and not getattr(value, "filled", False):
                self._overflow_bytes += value.nbytes - self._slot_bytes
            slot.commit()
            return not self._closed
        # An exception of the error's own text must not end the thread.
        with contextlib.suppress(BaseException):
            if slot is None:
                ring.fail(error, index)
            else:
                slot.fail(error)
        return not self._closed
