"""A ring's promises between Python threads: order, tail, errors in place, timeouts, closing.

Would catch: a batch out of order or lost after `finish`, an error raised early or without its
traceback, a wait that ignores its timeout or does not say what is missing, a close that leaves a
thread waiting, and invalid input that is accepted.
"""

from __future__ import annotations

import functools
import random
import threading
import time
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.threads import wait_until_blocked

import jaxkern as jk
from jaxkern.core import registry

STRUCT = {"x": jax.ShapeDtypeStruct((3,), np.float32), "i": jax.ShapeDtypeStruct((), np.int32)}


def batch(i: int) -> dict:
    return {"x": np.full(3, i, np.float32), "i": np.int32(i)}


def run(*functions) -> list[threading.Thread]:
    threads = [threading.Thread(target=f, daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    return threads


def join(threads) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("producers", [1, 3])
@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_order_and_tail(producers, capacity):
    ring = jk.ring.Ring(STRUCT, capacity)
    indices = iter(range(40))
    lock = threading.Lock()

    def produce():
        rng = random.Random(capacity)
        while True:
            with lock:
                i = next(indices, None)
            if i is None:
                return
            if rng.random() < 0.2:
                time.sleep(0.001)
            assert ring.put(batch(i), index=i) == i

    ring.finish(40)
    threads = run(*[produce] * producers)
    got = list(ring)
    join(threads)
    assert [int(b["i"]) for b in got] == list(range(40))
    assert [b["x"].tolist() for b in got] == [[i] * 3 for i in range(40)]
    with pytest.raises(StopIteration):
        ring.get()


def test_errors_arrive_in_place_with_their_traceback():
    ring = jk.ring.Ring(STRUCT, capacity=4)

    def where_it_broke():
        raise KeyboardInterrupt("the producer's own")

    ring.put(batch(0))
    with pytest.raises(KeyboardInterrupt) as raised:
        where_it_broke()
    assert ring.fail(raised.value) == 1
    ring.put(batch(2))
    ring.finish()
    assert int(ring.get()["i"]) == 0
    with raises(KeyboardInterrupt, "the producer's own") as caught:
        ring.get()
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "where_it_broke"
    assert int(ring.get()["i"]) == 2
    with pytest.raises(StopIteration):
        ring.get()
    assert ring.stats().failures == 1


def test_stop_iteration_of_a_producer_does_not_end_the_loop():
    ring = jk.ring.Ring(STRUCT)
    ring.fail(StopIteration("mine"))
    with raises(RuntimeError, "batch 0", "StopIteration"):
        ring.get()


def test_slots_are_filled_in_place():
    ring = jk.ring.Ring(STRUCT, capacity=2)
    with ring.slot() as slot:
        slot.batch["x"][:] = 7
        slot.batch["i"][...] = slot.index
    with pytest.raises(ZeroDivisionError), ring.slot():
        _ = 1 / 0
    assert ring.get()["x"].tolist() == [7, 7, 7]
    with pytest.raises(ZeroDivisionError):
        ring.get()
    ring.slot().abandon()
    assert ring.put(batch(2)) == 2  # the abandoned index is free again


def test_timeouts_say_what_is_missing():
    ring = jk.ring.Ring(STRUCT, capacity=3)
    with raises(TimeoutError, "0.01 s", "batch 0, which no producer has put"):
        ring.get(0.01)
    ring.put(batch(1), index=1)
    ring.put(batch(2), index=2)
    with raises(TimeoutError, "batch 0, which no producer has put", "ready: 1, 2"):
        ring.get(0)
    with raises(TimeoutError, "slot for batch 3", "batch 0 is the next", "2 are ready"):
        ring.put(batch(3), timeout=0.01)
    slot = ring.slot(index=0)
    with raises(TimeoutError, "batch 0, which a producer is still filling"):
        ring.get(0)
    slot.fail(OSError("late"))
    with raises(OSError, "late"):
        ring.get()


def test_a_gap_before_the_end_is_named():
    ring = jk.ring.Ring(STRUCT, capacity=3)
    ring.put(batch(0), index=0)
    ring.put(batch(2), index=2)
    ring.finish()
    ring.get()
    with raises(TimeoutError, "batch 1, which no producer has put"):
        ring.get(0.01)


def test_close_wakes_both_sides():
    ring = jk.ring.Ring(STRUCT, capacity=1)
    ring.put(batch(0))
    other = jk.ring.Ring(STRUCT, capacity=1)
    caught = []

    def wait(call):
        with pytest.raises(jk.ring.RingClosed):
            call()
        caught.append(call)

    threads = run(
        lambda: wait(lambda: ring.put(batch(1))),
        lambda: wait(lambda: ring.put(batch(5), index=5)),
        lambda: wait(other.get),
    )
    wait_until_blocked(threads, "put", "take")
    ring.close()
    other.close()
    join(threads)
    assert len(caught) == 3


@pytest.mark.parametrize("state", ["empty", "ready", "filling", "failed", "finished", "ended"])
def test_close_in_every_state(state):
    ring = jk.ring.Ring(STRUCT, capacity=2)
    slot = ring.slot() if state == "filling" else None
    if state in ("ready", "finished", "ended"):
        ring.put(batch(0))
    if state == "failed":
        ring.fail(ValueError("x"))
    if state in ("finished", "ended"):
        ring.finish()
    kept = ring.get() if state == "ended" else None
    with ring:
        assert not ring.closed
    ring.close()
    assert ring.closed
    for call in (ring.get, lambda: ring.put(batch(0)), ring.finish, ring.slot):
        with raises(jk.ring.RingClosed, "closed"):
            call()
    if slot is not None:
        with pytest.raises(jk.ring.RingClosed):
            slot.commit()
    if kept is not None:
        assert kept["x"].tolist() == [0, 0, 0]
    assert ring.stats().ready == ring.stats().filling == 0


def test_a_slot_is_committed_once_whoever_tries():
    # Without the interpreter's lock (free-threaded Python) both would take the same memory away.
    with jk.ring.Ring(STRUCT, capacity=2) as ring:
        for index in range(300):
            slot = ring.slot()
            slot.batch["i"][...] = index
            start, outcomes = threading.Barrier(3), []

            def commit(slot=slot, start=start, outcomes=outcomes):
                start.wait()
                try:
                    outcomes.append(slot.commit() or "committed")
                except ValueError as error:
                    outcomes.append(str(error))

            join(run(commit, commit, commit))
            assert outcomes.count("committed") == 1
            assert sum("the slot is empty" in outcome for outcome in outcomes) == 2
            assert int(ring.get(timeout=10)["i"]) == index


@pytest.mark.parametrize(
    ("make", "error", "facts"),
    [
        (lambda: jk.ring.Ring(STRUCT, capacity=0), ValueError, ["capacity is 0"]),
        (lambda: jk.ring.Ring(STRUCT, capacity=2.5), ValueError, ["capacity is 2.5"]),
        (lambda: jk.ring.Ring(STRUCT, start=-1), ValueError, ["start is -1"]),
        (lambda: jk.ring.Ring(STRUCT, start=2**70), ValueError, ["start", f"{2**70}"]),
        (lambda: jk.ring.Ring({"x": 3}), TypeError, ["leaf 0", "3"]),
        (lambda: jk.ring.Ring(jax.random.key(0)), TypeError, ["key_data"]),
        *[
            (lambda dtype=dtype: jk.ring.Ring(np.zeros(3, dtype)), TypeError, ["leaf 0"])
            for dtype in ("U3", "O", "M8[s]", ">f4")
        ],
        (lambda: jk.ring.Ring(jax.ShapeDtypeStruct((2**52,), np.uint8)), MemoryError,
         ["4 slots of 4,503,599,627,370,496 bytes"]),
    ],
)  # fmt: skip
def test_invalid_rings(make, error, facts):
    with raises(error, *facts):
        make()


@pytest.mark.parametrize(
    ("call", "error", "facts"),
    [
        (lambda ring: ring.put({"x": np.zeros(4, np.float32), "i": 0}), ValueError,
         ["batch['x']", "(4,)", "(3,)"]),
        (lambda ring: ring.put({"x": np.zeros(3, np.float32), "i": np.float32(0)}), ValueError,
         ["batch['i']", "float32", "int32"]),
        (lambda ring: ring.put({"x": np.zeros(3, ">f4"), "i": 0}), ValueError,
         ["batch['x']", ">f4", "float32"]),
        (lambda ring: ring.put([np.zeros(3, np.float32)]), ValueError, ["batch", "structure"]),
        (lambda ring: ring.put(batch(0), index=-2), ValueError, ["index is -2"]),
        (lambda ring: ring.fail(ValueError(), index=2**63), ValueError, ["index", f"{2**63}"]),
        (lambda ring: ring.get(timeout=-1), ValueError, ["timeout is -1"]),
        (lambda ring: ring.fail("text"), TypeError, ["error", "'text'"]),
    ],
)  # fmt: skip
def test_invalid_arguments(call, error, facts):
    with raises(error, *facts):
        call(jk.ring.Ring(STRUCT, capacity=2))


def test_an_index_is_put_once_and_before_the_end():
    ring = jk.ring.Ring(STRUCT, capacity=2)
    ring.put(batch(0))
    with raises(ValueError, "index 0", "twice", "ready"):
        ring.put(batch(0), index=0)
    ring.fail(ValueError(), index=1)
    with raises(ValueError, "index 1", "twice", "failed"):
        ring.put(batch(1), index=1)
    ring.get()
    with raises(ValueError, "index 0", "twice", "delivered"):
        ring.fail(ValueError(), index=0)
    with raises(ValueError, "the end 1", "after batch 1"):
        ring.finish(1)
    ring.finish(3)
    ring.finish()
    with raises(ValueError, "finished at 3", "end at 4"):
        ring.finish(4)
    with raises(jk.ring.RingError, "index 3 is after the end"):
        ring.put(batch(3), index=3)


def test_memory_of_another_build_raises():
    library = registry.module("cpu")
    ring = functools.partial(library.Ring, [("float32", 4, [2], -1)], 2, 0, 0, -1.0)
    name = "jaxkern.ring.Allocator.v"
    with raises(TypeError, name, "jaxkern.ring.ProgramAccess"):
        ring(library.ring_access())
    with raises(TypeError, name, "none", "reinstall jaxkern"):
        ring(next(iter(library.registrations().values())))


def test_wide_dtypes_are_taken_as_jax_takes_them():
    ring = jk.ring.Ring({"x": np.zeros(2, np.float64), "i": np.zeros((), np.int64)})
    assert ring.struct["x"].dtype == jnp.zeros(1, float).dtype
    ring.put({"x": np.array([1.5, 2.5]), "i": 3})
    got = ring.get()
    assert got["x"].tolist() == [1.5, 2.5]
    assert int(got["i"]) == 3


def test_strided_and_device_arrays_are_copied_right():
    ring = jk.ring.Ring(np.zeros((2, 3), np.float32))
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    ring.put(values.T)
    ring.put(jnp.asarray(values.T))
    np.testing.assert_array_equal(ring.get(), values.T)
    np.testing.assert_array_equal(ring.get(), values.T)


def test_statistics_and_state():
    ring = jk.ring.Ring(STRUCT, capacity=2, start=10)
    assert ring.state() == {"last_delivered": None, "next": 10}
    ring.put(batch(10))
    ring.put(batch(11))
    with pytest.raises(TimeoutError):
        ring.put(batch(12), timeout=0.2)
    assert ring.state()["last_delivered"] is None  # ready is not delivered
    assert ring.stats().ready == 2
    kept = ring.get()
    stats = ring.stats()
    assert ring.state() == {"last_delivered": 10, "next": 11}
    assert (stats.batches, stats.bytes, stats.held, stats.ready) == (1, 16, 1, 1)
    assert (stats.zero_copy, stats.copied) == (2, 0)
    assert stats.occupancy == (0, 0, 1)
    assert 0.19 < stats.producer_wait < stats.elapsed
    assert stats.verdict == "consumer-bound"
    del kept
    assert ring.stats().held == 0
    slow = jk.ring.Ring(STRUCT)
    (thread,) = run(lambda: [(time.sleep(0.02), slow.put(batch(i))) for i in range(5)])
    assert [int(slow.get(20)["i"]) for _ in range(5)] == list(range(5))
    join([thread])
    assert slow.stats().verdict == "producer-bound"


def test_backpressure_holds_producers():
    ring = jk.ring.Ring(STRUCT, capacity=3)
    count = 0

    def produce():
        nonlocal count
        for i in range(10):
            ring.put(batch(i))
            count += 1

    threads = run(produce)
    while count < 3:
        time.sleep(0.001)
    wait_until_blocked(threads, "put")
    assert count == 3
    for i in range(10):
        assert int(ring.get()["i"]) == i
        assert count <= i + 4
    join(threads)


def test_the_next_index_is_never_starved_by_later_ones():
    ring = jk.ring.Ring(STRUCT, capacity=2)
    threads = run(*[lambda i=i: ring.put(batch(i), index=i) for i in reversed(range(12))])
    assert [int(ring.get(20)["i"]) for _ in range(12)] == list(range(12))
    join(threads)


def test_the_end_wakes_every_consumer():
    ring = jk.ring.Ring(STRUCT)
    ring.finish(1)
    outcomes = []

    def consume():
        try:
            outcomes.append(ring.get(20) and "batch")
        except StopIteration:
            outcomes.append("end")

    threads = run(*[consume] * 4)
    wait_until_blocked(threads, "take")
    ring.put(batch(0))
    join(threads)
    assert sorted(outcomes) == ["batch", "end", "end", "end"]
