"""Items of any iterator, fetched ahead onto a device or over a mesh.

Would catch: no overlap of fetching and consuming, an error that comes early or late, an item too
many taken ahead, a thread that survives its iterator.
"""

from __future__ import annotations

import threading
import time
import traceback

import jax
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk


def test_items_and_placement():
    items = [{"x": np.full((4, 2), i, np.float32), "n": i} for i in range(7)]
    device = jax.devices()[1]
    got = list(jk.DevicePlacement(device).prefetch_to_device(iter(items), buffer_size=3))
    assert [int(g["n"]) for g in got] == list(range(7))
    assert all(g["x"].devices() == {device} for g in got)
    mesh = jax.make_mesh((4,), ("data",))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    for i, x in enumerate(jk.prefetch_to_device((b["x"] for b in items), sharding=sharding)):
        assert x.sharding == sharding
        np.testing.assert_array_equal(x, items[i]["x"])
    assert jk.DevicePlacement(sharding).put(items[0]["x"]).sharding == sharding


def test_shapes_may_change_and_lists_are_taken():
    got = list(jk.prefetch_to_device([np.zeros(n) for n in range(5)]))
    assert [g.shape for g in got] == [(n,) for n in range(5)]
    assert list(jk.prefetch_to_device([])) == []


def test_fetching_and_consuming_overlap():
    """Each item is made while the one before it is used: no use of one ends before that."""
    count = 12
    made = [threading.Event() for _ in range(count)]

    def source():
        for i in range(count):
            made[i].set()
            yield np.int32(i)

    got = []
    for item in jk.prefetch_to_device(source()):
        got.append(int(item))
        if len(got) < count:
            assert made[len(got)].wait(60)
    assert got == list(range(count))


def test_errors_arrive_in_place():
    def source():
        yield np.int32(0)
        yield np.int32(1)
        raise LookupError("the third")

    fetched = jk.prefetch_to_device(source(), buffer_size=8)
    assert [int(next(fetched)), int(next(fetched))] == [0, 1]
    with raises(LookupError, "the third") as caught:
        next(fetched)
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-1] == "source"
    with pytest.raises(StopIteration):
        next(fetched)


def test_an_item_that_cannot_be_placed_fails_alone():
    fetched = jk.prefetch_to_device(iter([np.int32(0), object(), np.int32(2)]))
    assert int(next(fetched)) == 0
    with pytest.raises(TypeError):
        next(fetched)
    assert [int(x) for x in fetched] == [2]


def test_never_more_than_the_buffer_ahead():
    taken = 0

    def source():
        nonlocal taken
        for i in range(10):
            taken += 1
            yield np.int32(i)

    fetched = jk.prefetch_to_device(source(), buffer_size=2)
    for i in range(10):
        time.sleep(0.02)
        assert taken <= i + 2
        assert int(next(fetched)) == i


def test_closing_ends_the_thread_and_the_generator():
    ended = threading.Event()

    def source():
        try:
            while True:
                yield np.zeros(2)
        finally:
            ended.set()

    before = threading.active_count()
    with jk.prefetch_to_device(source()) as fetched:
        next(fetched)
    assert ended.wait(5)
    assert threading.active_count() <= before
    with pytest.raises(jk.ring.RingClosed):
        next(fetched)
    fetched.close()


def test_timeouts_and_bad_input():
    gate = threading.Event()

    def source():
        gate.wait(20)
        yield np.zeros(2)

    fetched = jk.prefetch_to_device(source())
    with raises(TimeoutError, "0.01 s", "batch 0"):
        fetched.get(0.01)
    gate.set()
    assert fetched.get(20).shape == (2,)
    with raises(ValueError, "buffer_size", "0"):
        jk.prefetch_to_device(iter([]), 0)
    with raises(TypeError, "iterable"):
        jk.prefetch_to_device(3)


@pytest.mark.parametrize("offset", [0, 16])
def test_an_iterator_may_reuse_its_buffer(offset):
    space = np.zeros(4096 + 128, np.uint8)
    start = -space.ctypes.data % 64 + offset  # JAX takes aligned memory without a copy
    buffer = space[start : start + 4096].view(np.float32)

    def source():
        for i in range(8):
            buffer[:] = i
            yield {"x": buffer}

    fetched = jk.prefetch_to_device(source(), buffer_size=3)
    for i, item in enumerate(fetched):
        time.sleep(0.005)
        assert (np.asarray(item["x"]) == i).all()


def resumable():
    source = {"x": np.arange(20, dtype=np.int32)}
    return jk.from_source(source, 4, shuffle=True, seed=3)


def test_the_state_is_behind_what_was_delivered():
    whole = [np.asarray(batch["x"]).tolist() for batch in resumable()]
    first = jk.prefetch_to_device(resumable(), buffer_size=3)
    assert first.get_state()["batch"] == 0
    got = [np.asarray(next(first)["x"]).tolist() for _ in range(2)]
    time.sleep(0.2)  # it is three batches ahead by now
    state = first.get_state()
    assert got == whole[:2]
    assert state["batch"] == 2
    second = jk.prefetch_to_device(resumable(), buffer_size=3)
    next(second)
    second.set_state(state)
    assert [np.asarray(batch["x"]).tolist() for batch in second] == whole[2:]
    assert second.get_state()["finished"]
    first.set_state(state)
    assert [np.asarray(batch["x"]).tolist() for batch in first] == whole[2:]


def test_a_state_behind_an_error_and_of_a_generator():
    def broken(batch):
        if 7 in batch["x"]:
            raise LookupError("seven")
        return batch

    pipe = jk.from_source({"x": np.arange(12)}, 4) >> broken
    fetched = jk.prefetch_to_device(pipe)
    next(fetched)
    with pytest.raises(TimeoutError):
        jk.prefetch_to_device(iter(lambda: time.sleep(1), 0)).get(0.0)
    with pytest.raises(LookupError):
        next(fetched)
    fetched.set_state(fetched.get_state())
    with pytest.raises(LookupError):  # the failed batch was not delivered, so it is retried
        next(fetched)
    assert [np.asarray(batch["x"]).tolist() for batch in fetched] == [[8, 9, 10, 11]]
    with raises(TypeError, "generator", "get_state", "set_state"):
        jk.prefetch_to_device(x for x in [np.zeros(2)]).get_state()
