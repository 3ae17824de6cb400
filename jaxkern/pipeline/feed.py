"""Values in order, made ahead by threads: what a node reads that goes through records in turn."""

from __future__ import annotations

import os
import threading
from typing import Any, NamedTuple, Protocol

from jaxkern.core.contexts import ThreadContexts
from jaxkern.core.failures import is_interrupt
from jaxkern.ring import RingClosed


class Supply(Protocol):
    """What a feed reads."""

    @property
    def place(self) -> Any:
        """Where the next claim begins; JSON-able."""

    def claim(self) -> Any:
        """What decides the next value; in order, by one thread at a time. None at the end."""

    def make(self, claim: Any) -> Any:
        """The value of a claim; by several threads at once."""

    def close(self) -> None:
        """Lets go what it reads, in a thread that claimed where there were any."""


class Item(NamedTuple):
    """A value, or the error in its place.

    Attributes:
      value, error: one of them is None.
      before, behind: the supply's places around it.
    """

    value: Any
    error: BaseException | None
    before: Any
    behind: Any


class Feed:
    """The values of a supply in order, so many of them ahead of who reads them.

    Args:
      supply: where they come from.
      threads: that make them; 0 makes each when it is asked for.
      ahead: how many may be made and not read.

    Attributes:
      place: of the supply behind the last value that was read.
    """

    def __init__(self, supply: Supply, threads: int, ahead: int) -> None:
        self.place = supply.place
        self._supply = supply
        self._threads, self._ahead = threads, max(ahead, 1)
        self._claiming = threading.Lock()
        self._changed = threading.Condition()
        self._ready: dict[int, Item] = {}
        self._claimed = self._read = 0
        self._end: int | None = None
        self._closed = False
        self._started = False
        self._running = self._surplus = 0
        self._process = os.getpid()
        self._contexts = ThreadContexts()

    def next(self) -> Item | None:
        """The next one; None behind the last. Waits for it; Ctrl-C takes nothing.

        Raises: RingClosed when the feed is, or becomes, closed.
        """
        if not self._threads:
            return self._inline()
        if not self._started:
            self._started = True
            self._start(self._threads)
        with self._changed:
            while self._read not in self._ready and self._read != self._end:
                self._check_open()
                self._changed.wait()
            self._check_open()
            if self._read == self._end:
                return None
            item = self._ready.pop(self._read)
            self._read += 1
            self.place = item.behind
            self._changed.notify_all()
        return item

    def resize(self, threads: int, ahead: int) -> None:
        """Goes on with so many threads, at least one; not where each value is made when asked."""
        if not self._threads:
            return
        with self._changed:
            more, self._threads = threads - self._threads, threads
            self._ahead = max(ahead, 1)
            running = self._started and self._end is None and not self._closed
            self._surplus += max(-more, 0) if running else 0
            self._changed.notify_all()
        if running and more > 0:
            self._start(more)

    def close(self) -> None:
        """Ends the threads and wakes who waits; idempotent."""
        if os.getpid() != self._process:
            return  # who held the locks is not there to release them
        with self._changed:
            self._closed = True
            self._ready.clear()
            self._changed.notify_all()
        if not self._started:
            self._supply.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RingClosed("the pipeline's iteration was closed while a batch was made")

    def _inline(self) -> Item | None:
        self._check_open()
        claimed = self._claim()
        if claimed is None:
            return None
        item = self._make(*claimed)
        if item.error is not None and is_interrupt(item.error):
            raise item.error
        self.place = item.behind
        return item

    def _claim(self) -> tuple[Any, BaseException | None, Any, Any] | None:
        before, claim, failed = self._supply.place, None, None
        try:
            claim = self._supply.claim()
        except BaseException as error:
            failed = error
        if claim is None and failed is None:
            return None
        return claim, failed, before, self._supply.place

    def _make(self, claim: Any, failed: BaseException | None, before: Any, behind: Any) -> Item:
        if failed is not None:
            return Item(None, failed, before, behind)
        try:
            return Item(self._supply.make(claim), None, before, behind)
        except BaseException as error:
            return Item(None, error, before, behind)

    def _start(self, threads: int) -> None:
        for number in range(threads):
            with self._changed:
                self._running += 1
            name = f"jaxkern-feed-{number}"
            threading.Thread(target=self._work, name=name, daemon=True).start()

    def _work(self) -> None:
        with self._contexts.enter():
            while (claimed := self._claim_ahead()) is not None:
                index, parts = claimed
                item = self._make(*parts)
                with self._changed:
                    if self._closed:
                        break
                    self._ready[index] = item
                    self._changed.notify_all()
        with self._changed:
            self._running -= 1
            last = not self._running and (self._closed or self._end is not None)
        if last:
            self._supply.close()

    def _claim_ahead(self) -> tuple[int, Any] | None:
        with self._claiming:
            with self._changed:
                while self._claimed - self._read >= self._ahead and not self._closed:
                    self._changed.wait()
                if self._closed or self._end is not None:
                    return None
                if self._surplus:
                    self._surplus -= 1
                    return None
            parts = self._claim()
            with self._changed:
                if parts is None:
                    self._end = self._claimed
                    self._changed.notify_all()
                    return None
                self._claimed += 1
                return self._claimed - 1, parts
