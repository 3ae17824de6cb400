"""The ring against a model in plain Python, one call at a time, in any order hypothesis finds.

Would catch: a state that the promises do not allow, brought about by some sequence of puts,
failures, abandoned slots, gets, finishes and closes.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.errors import raises

import jaxkern as jk


class RingModel(RuleBasedStateMachine):
    """Model of the ring without threads: every call either succeeds at once or is refused."""

    @initialize(capacity=st.integers(1, 4), start=st.integers(0, 3))
    def make(self, capacity, start):
        self.ring = jk.ring.Ring(np.zeros(2, np.int32), capacity, start=start)
        self.capacity, self.next, self.start = capacity, start, start
        self.entries: dict[int, object] = {}  # index -> value, exception, or an open slot
        self.named = start
        self.end: int | None = None
        self.closed = False
        self.kept: list[tuple[int, object]] = []

    def limit(self) -> int:
        return self.next + self.capacity - min(len(self.kept), self.capacity // 2)

    def refusal(self, index: int) -> type[Exception] | None:
        if self.closed:
            return jk.ring.RingClosed
        if self.end is not None and index >= self.end:
            return jk.ring.RingError
        if index < self.next or index in self.entries:
            return ValueError
        return None

    def attempt(self, index, call, window: bool):
        """Calls, and returns its result where the model says that it succeeds."""
        where = self.named if index is None else index
        refusal = self.refusal(where)
        if refusal is None and window and where >= self.limit():
            refusal = TimeoutError
        if refusal is not None:
            with pytest.raises(refusal):
                call()
            return None
        result = call()
        self.named = max(self.named, where + 1)
        return where, result

    indices = st.none() | st.integers(0, 12)

    @rule(index=indices)
    def put(self, index):
        value = 100 + (self.named if index is None else index)
        done = self.attempt(
            index, lambda: self.ring.put(np.full(2, value, np.int32), index, timeout=0), True
        )
        if done:
            assert done[0] == done[1]
            self.entries[done[0]] = value

    @rule(index=indices)
    def fail(self, index):
        error = LookupError("mine")
        done = self.attempt(index, lambda: self.ring.fail(error, index), False)
        if done:
            self.entries[done[0]] = error

    @rule(index=indices)
    def open_slot(self, index):
        done = self.attempt(index, lambda: self.ring.slot(index, timeout=0), True)
        if done:
            assert done[1].index == done[0]
            self.entries[done[0]] = done[1]

    def slots(self):
        return [e for e in self.entries.values() if isinstance(e, jk.ring.RingSlot)]

    @rule(which=st.integers(0, 5), how=st.sampled_from(["commit", "fail", "abandon"]))
    def end_slot(self, which, how):
        slots = self.slots()
        if not slots:
            return
        slot = slots[which % len(slots)]
        if self.closed and how != "abandon":
            with pytest.raises(jk.ring.RingClosed):
                getattr(slot, how)(*[LookupError("late")] * (how == "fail"))
            del self.entries[slot.index]
            return
        if how == "commit":
            slot.batch[:] = 500 + slot.index
            slot.commit()
            self.entries[slot.index] = 500 + slot.index
        elif how == "fail":
            error = LookupError("slot")
            slot.fail(error)
            self.entries[slot.index] = error
        else:
            slot.abandon()
            del self.entries[slot.index]
            self.named = max([self.next, *(i + 1 for i in self.entries)])

    @rule(keep=st.booleans())
    def get(self, keep):
        entry = self.entries.get(self.next)
        if self.closed:
            with pytest.raises(jk.ring.RingClosed):
                self.ring.get(0)
        elif self.end is not None and self.next >= self.end:
            with pytest.raises(StopIteration):
                self.ring.get(0)
        elif entry is None or isinstance(entry, jk.ring.RingSlot):
            with raises(TimeoutError, f"batch {self.next}"):
                self.ring.get(0)
        elif isinstance(entry, Exception):
            with pytest.raises(LookupError) as caught:
                self.ring.get(0)
            assert caught.value is entry
            del self.entries[self.next]
            self.next += 1
        else:
            array = self.ring.get(0)
            assert array.tolist() == [entry] * 2
            del self.entries[self.next]
            self.next += 1
            if keep:
                self.kept.append((entry, array))

    @rule()
    def drop(self):
        if self.kept:
            self.kept.pop(0)

    @rule(count=st.none() | st.integers(0, 14))
    def finish(self, count):
        last = max([self.named, *(i + 1 for i in self.entries)])
        end = (self.end if self.end is not None else last) if count is None else count
        if self.closed:
            expected = jk.ring.RingClosed
        elif (self.end is not None and end != self.end) or end < last:
            expected = ValueError
        else:
            self.ring.finish(count)
            self.end = end
            return
        with pytest.raises(expected):
            self.ring.finish(count)

    @rule(really=st.integers(0, 7))
    def close(self, really):
        if really == 0:
            self.ring.close()
            self.closed = True
            self.entries = {i: e for i, e in self.entries.items() if e in self.slots()}

    @invariant()
    def agrees(self):
        if not hasattr(self, "ring"):
            return
        assert self.ring.closed == self.closed
        assert self.ring.state()["next"] == self.next
        assert self.ring.stats().held == len(self.kept)
        for value, array in self.kept:
            assert array.tolist() == [value] * 2

    def teardown(self):
        if hasattr(self, "ring"):
            self.ring.close()


RingModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestRing = RingModel.TestCase
