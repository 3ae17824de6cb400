"""Worker threads that make the batches of an epoch ahead of the consumer, through a ring."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from typing import Any

import jax
import numpy as np

from jaxkern.core.contexts import ThreadContexts
from jaxkern.pipeline.combining import Combined
from jaxkern.pipeline.epoch import Epoch
from jaxkern.pipeline.nodes import SourceNode
from jaxkern.pipeline.program import BatchUnit, Joint
from jaxkern.pipeline.rows import is_ragged
from jaxkern.pipeline.sequential.node import SequentialNode
from jaxkern.ring import Ring, RingClosed, RingStats, SlotMemory


class Workers:
    """Threads that put units into a ring by index; the ring delivers them in order.

    A unit of the usual shapes is copied into its slot (a lone source writes there at once). One of
    other shapes, as a smaller last batch or Ragged images, keeps its own memory and only its place
    goes through the ring, so that there are never more of them than slots.

    Args:
      epoch: what to make; `epoch.plan.first` must be known.
      batches: which.
      threads: their number.
      capacity: of the ring.
      device, memory: as for `Ring`.
    """

    def __init__(
        self,
        epoch: Epoch,
        batches: range,
        threads: int,
        capacity: int,
        device: Any,
        memory: SlotMemory,
    ) -> None:
        first = epoch.plan.first
        assert first is not None
        self._usual = first
        self._in_slots = not holds_ragged(first.joint)
        leaves = first.joint.leaves if self._in_slots else []
        struct = {"leaves": leaves, "records": first.records}
        _keep_freed(first.nbytes)
        self.ring = Ring(struct, capacity, start=batches.start, device=device, memory=memory)
        # With the bytes that the ring does not know of.
        self._aside: dict[int, tuple[BatchUnit, int]] = {}
        self._bad: dict[int, int] = {}  # of the units in slots
        self._beside = 0  # bytes of the batches that were delivered beside the ring's slots
        self._epoch = epoch
        self._contexts = ThreadContexts()
        self._indices = iter(batches)
        self._lock = threading.Lock()
        self._to_start = self._threads = min(threads, len(batches))
        self._started = self._surplus = 0
        self._known = epoch.plan.cut is None
        if self._known:
            self.ring.finish(batches.stop)

    def outcome(self, timeout: float | None = None) -> tuple[int, BaseException | None, Any]:
        """The next unit, or the error in its place; see `Ring.take`."""
        while self._to_start:  # not before somebody has this object, who can close it
            self._started += 1
            name = f"jaxkern-pipeline-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
            self._to_start -= 1
        index, error, arrays = self.ring.take(timeout)
        unit = None if error is not None else self._unit(index, arrays)
        if index in self._aside:
            self._beside += self._aside[index][1]
            del self._aside[index]
        if index in self._bad:
            del self._bad[index]
        return index, error, unit

    def _unit(self, index: int, arrays: Any) -> BatchUnit:
        aside = self._aside.get(index)
        if aside is not None:
            return aside[0]
        if self.ring.closed:  # `close` may have dropped it, and the slot holds something else
            raise RingClosed("the pipeline's iteration was closed while a batch was taken")
        joint = self._usual.joint._replace(leaves=arrays["leaves"])
        return BatchUnit(joint, arrays["records"], bad=self._bad.get(index, 0))

    def resize(self, threads: int) -> None:
        """Goes on with so many threads, also before the nodes that read in order; here with no more
        than slots."""
        here = min(threads, self.ring.capacity)
        with self._lock:
            more, self._threads = here - self._threads, here
            self._to_start += max(more, 0)
            self._surplus += max(-more, 0)
        self._epoch.resize(threads)

    def stats(self) -> RingStats:
        """Of the ring, with the bytes of what stood beside it."""
        found = self.ring.stats()
        return dataclasses.replace(found, bytes=found.bytes + self._beside)

    def close(self) -> None:
        """Ends the threads; idempotent."""
        self.ring.close()
        self._epoch.close()
        self._aside.clear()

    def _work(self) -> None:
        with self._contexts.enter():
            self._put_units()

    def _put_units(self) -> None:
        while True:
            with self._lock:
                if self._surplus:
                    self._surplus -= 1
                    return
                index = self._claimed()
            if index is None:
                return
            try:
                with self.ring.slot(index) as slot:
                    self._fill(slot.batch, index)
            except BaseException as error:
                if self.ring.closed:
                    return
                # It is delivered in the batch's place; without a slot it still has to be. What its
                # text raises then must not end the thread, which has more batches to make.
                with contextlib.suppress(BaseException):
                    self.ring.fail(error, index)

    def _claimed(self) -> int | None:
        """The next batch to make, pulled where that is to be done in order; None at the end."""
        index = next(self._indices, None)
        if index is None or self._known:
            return index
        try:
            if self._epoch.pull(index):
                return index
            self.ring.finish(index)
        except BaseException as error:
            if not self.ring.closed:
                self._epoch.batches = index + 1
                self.ring.fail(error, index)
                self.ring.finish(index + 1)
        self._indices = iter(range(0))
        return None

    def _fill(self, slot: Any, index: int) -> None:
        usual, plan = self._usual, self._epoch.plan
        out = None
        (vertex, *others) = plan.frontier
        rows = plan.streams[vertex].rows_of(index)
        whole = len(rows) == len(usual.records)
        if (
            self._in_slots
            and whole
            and not others
            and isinstance(vertex.node, SourceNode | SequentialNode | Combined)
        ):
            (out,) = usual.joint._replace(leaves=slot["leaves"]).batches()
        unit = self._epoch.unit(index, out)
        if not (self._in_slots and whole and _alike(unit.joint, usual.joint)):
            # What a source wrote to the slot would be overwritten by a later batch. The copy that
            # JAX needs is made here, not by the thread that waits for it.
            unit = unit.made_private()
            self._aside[index] = unit, unit.nbytes - self.ring._structure.bytes
            return
        for place, leaf in zip(slot["leaves"], unit.joint.leaves, strict=True):
            if leaf is not place:
                np.copyto(place, leaf)
        slot["records"][...] = unit.records
        if unit.bad:
            self._bad[index] = unit.bad


def _keep_freed(batch: int) -> None:
    """Has glibc keep some freed batches of so many bytes for the next ones.

    Otherwise it hands memory beyond a few hundred KiB, or beyond twice the largest array freed so
    far, back to the system, and every batch would fault its pages in again: for a batch of images
    that costs more than copying it. Freeing a larger array, never touched, raises that mark, for
    good and at most to 32 MiB; other allocators take no notice.
    """
    np.empty(min(8 * batch, (32 << 20) - (64 << 10)), np.uint8)


def holds_ragged(joint: Joint) -> bool:
    """Whether the batches hold Ragged images, whose buffers have no fixed length."""
    return any(is_ragged(x) for x in jax.tree.leaves(joint.batches(), is_leaf=is_ragged))


def _alike(one: Joint, other: Joint) -> bool:
    """Whether two units have the same arrays, by shape and dtype, in the same places."""
    return (one.places, one.tree) == (other.places, other.tree) and all(
        a.shape == b.shape and a.dtype == b.dtype
        for a, b in zip(one.leaves, other.leaves, strict=True)
    )
