"""Copies of Ragged images between pipelines and JAX.

Would catch: a buffer at an address that JAX copies on every call, a pipeline that copies a buffer
that nothing else references or that copies in the consumer's thread, a batch in memory that its
source or another batch still writes to, and copied bytes that are not counted.
"""

from __future__ import annotations

import threading

import jax
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern.core.arrays import aligned_array
from jaxkern.image import Ragged
from jaxkern.pipeline import ArraySource, BatchSource, Filter, Rebatch, Window, plan
from jaxkern.pipeline.engine import Engine, ItemSource


def pixels(records):
    """Images of different sizes that hold their record's number."""
    return [np.full((3 + r % 5, 40, 3), r, np.uint8) for r in records.tolist()]


class Images(BatchSource):
    fresh = True

    def __init__(self):
        self.made = {}

    def __len__(self):
        return 24

    def gather(self, records, out=None):
        ragged = Ragged.from_list(pixels(records), max_height=8, max_width=40, buffer_size=9000)
        self.made[int(records[0])] = ragged
        return {"image": ragged, "record": records.astype(np.int32)}


class Shared(Images):
    """Writes to what it gave before."""

    def gather(self, records, out=None):
        for ragged in list(self.made.values()):
            ragged.buffer[:] = 99
        return super().gather(records)


def test_jax_takes_the_buffer_of_ragged_images_as_it_is():
    for rows in (1, 7, 200, 2000):
        ragged = Ragged.from_list([np.ones((rows, 50, 3), np.uint8)], buffer_size=rows * 150 + 33)
        assert not ragged.buffer[-33:].any()
        placed = jax.device_put(ragged.buffer)
        assert placed.unsafe_buffer_pointer() == ragged.buffer.ctypes.data


@pytest.mark.parametrize("workers", [0, 2])
def test_fresh_batches_are_not_copied(workers):
    source = Images()
    for number, batch in enumerate(jk.from_source(source, 4, num_workers=workers)):
        made = source.made[4 * number].buffer
        assert batch["image"].buffer.unsafe_buffer_pointer() == made.ctypes.data


def test_others_are_copied_once_and_by_the_workers(monkeypatch):
    copied = []
    copy = plan.aligned_copy

    def counted(array):
        copied.append((array.size == 9000, threading.current_thread().name))
        return copy(array)

    monkeypatch.setattr(plan, "aligned_copy", counted)
    batches = list(jk.from_source(Shared(), 4, num_workers=1))
    for number, batch in enumerate(batches):
        flat = np.concatenate([p.ravel() for p in pixels(np.arange(4 * number, 4 * number + 4))])
        np.testing.assert_array_equal(np.asarray(batch["image"].buffer)[: flat.size], flat)
    buffers = [name for whole, name in copied if whole]
    # The first one tells the workers what to expect.
    assert buffers[0] == threading.current_thread().name
    assert len(buffers) == 6
    assert all(name.startswith("jaxkern-pipeline-") for name in buffers[1:])


class ReusedBuffer(BatchSource):
    """Batches of a thread share one array, as `fresh` allows."""

    fresh = False

    def __init__(self):
        self.threads = threading.local()

    def __len__(self):
        return 24

    def gather(self, records, out=None):
        if not hasattr(self.threads, "buffer"):
            self.threads.buffer = np.empty(2, np.int64)
        buffer = self.threads.buffer[: len(records)]
        buffer[...] = records
        return {"x": buffer}


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize(
    "node",
    [Rebatch(3), Filter(lambda record: True), Window(2)],
    ids=["rebatch", "filter", "window"],
)
def test_rows_are_cut_from_copies_of_a_reused_buffer(node, workers):
    batches = list(jk.from_source(ReusedBuffer(), 2, num_workers=workers) >> node)
    rows = np.concatenate([np.ravel(batch["x"]) for batch in batches])
    assert rows.tolist() == list(range(24))


def test_a_gather_of_its_own_is_not_fresh_unless_it_says_so():
    class Slicing:
        def gather(self, records, out=None):
            return {name: a[records[0] : records[-1] + 1] for name, a in self.arrays.items()}

    class Slices(ArraySource):
        gather = Slicing.gather

    class Mixed(Slicing, ArraySource):
        pass

    class Again(Mixed):
        pass

    class Same(ArraySource):
        pass

    class Declared(Slicing, ArraySource):
        fresh = True

    class Inherited(Same, Slicing):  # the gather of ArraySource
        pass

    for fresh in (ArraySource, Same, Declared, Inherited):
        assert fresh.fresh
    for shared in (BatchSource, Slices, Mixed, Again):
        assert not shared.fresh
    array = aligned_array((4, 1000), np.int32)
    array[:] = 1
    batch = next(iter(jk.from_source(Mixed({"x": array}), 2, num_workers=0)))
    array[:] = 99
    assert (np.asarray(batch["x"]) == 1).all()


def test_a_batch_of_a_closed_engine_is_not_another_ones():
    """Another thread may close the engine while a batch is read from the ring."""

    class Numbers(ItemSource):
        position = 0

        def claim(self):
            self.position += 1
            return self.position

    engine = Engine(Numbers(), threads=1, ahead=2)
    assert engine.next().value == 1
    take = engine._ring.take

    def closed_meanwhile(timeout):
        taken = take(timeout)
        engine.close()
        return taken

    engine._ring.take = closed_meanwhile
    with raises(jk.ring.RingClosed, "closed while a batch was taken"):
        engine.next()


def test_the_bytes_of_ragged_batches_are_counted():
    iterator = iter(jk.from_source(Images(), 10, num_workers=2))
    found = list(iterator)[1:]  # the first one did not go through the ring
    records = sum(8 * len(batch["record"]) for batch in found)
    expected = sum(leaf.nbytes for leaf in jax.tree.leaves(found)) + records
    assert [len(batch["record"]) for batch in found] == [10, 4]
    assert iterator.stats().bytes == expected
    assert iterator.stats().batches == 2


@pytest.mark.parametrize("node", [None, lambda batch: {"x": batch["x"] + 1}])
def test_epochs_have_the_same_slots(node):
    """New slots would cost page faults in every epoch. A referenced slot is not reused."""
    pipe = jk.from_source({"x": np.arange(8000.0, dtype=np.float32).reshape(80, 100)}, 10)
    pipe = pipe >> node if node else pipe
    kept = next(iter(pipe))["x"]
    expected = np.array(kept)
    pipe.epoch = 0
    slots = set()
    for _ in range(6):
        slots |= {batch["x"].unsafe_buffer_pointer() for batch in pipe}
    # Four, one that the loop still has when the next epoch begins, the kept one's, and the first
    # batch, which a thread without a slot makes.
    assert len(slots) <= 7
    assert kept.unsafe_buffer_pointer() not in slots
    np.testing.assert_array_equal(kept, expected)
