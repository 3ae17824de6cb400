"""Many rings and many epochs: no batch is lost and nothing leaks.

Would catch: a batch that is lost once in thousands of short streams, and memory or threads that a
ring leaks.
"""

from __future__ import annotations

import queue
import threading

import numpy as np
import pytest
from support.processes import growth

import jaxkern as jk


@pytest.mark.slow
def test_ten_thousand_short_epochs():
    struct = np.zeros(1, np.int64)
    todo: queue.SimpleQueue = queue.SimpleQueue()

    def produce():
        while (job := todo.get()) is not None:
            ring, count = job
            for i in range(count):
                ring.put(np.array([i]))
            ring.finish()

    threads = [threading.Thread(target=produce, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for epoch in range(10_000):
        ring = jk.ring.Ring(struct, capacity=1 + epoch % 3)
        todo.put((ring, epoch % 4))
        got = []
        while True:
            try:
                got.append(int(np.asarray(ring.get(20))[0]))
            except StopIteration:
                break
        assert got == list(range(epoch % 4)), epoch
    for _ in threads:
        todo.put(None)
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_a_thousand_rings_leave_nothing():
    megabyte = np.ones(1 << 18, np.float32)

    def use(count):
        for i in range(count):
            ring = jk.ring.Ring(megabyte, capacity=4)
            ring.put(megabyte)
            ring.put(megabyte)
            array = ring.get()
            if i % 3 == 0:
                ring.fail(ValueError("not taken"))
            if i % 2 == 0:
                ring.close()
            del ring
            assert float(array[0]) == 1

    threads, alive = threading.active_count(), len(jk.ring.ring._open)
    assert growth(use) < 16 << 20
    assert threading.active_count() <= threads
    assert len(jk.ring.ring._open) <= alive


def test_prefetchers_leave_no_threads():
    before = threading.active_count()
    for _ in range(50):
        with jk.prefetch_to_device((np.zeros(4) for _ in range(10)), 3) as fetched:
            next(fetched)
    assert threading.active_count() <= before
