"""Streams: would catch records that a shuffle buffer loses or doubles, resumes that read the wrong
records again, errors of the iterable that end the epoch early or come twice, iterators that are
read in a second epoch without a word, and generators that stay open."""

from __future__ import annotations

import gc
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import jax
import numpy as np
import pytest
from support.errors import raises
from support.pipeline.batches import NOISE, assert_resumes, assert_same, epoch_of, outcomes

import jaxkern as jk
from jaxkern.pipeline import Filter, Rebatch
from jaxkern.ring import RingClosed

RECORDS = 43


def record(number):
    return {"id": np.int32(number), "x": np.full(3, number / 7, np.float32)}


def numbers():
    yield from (record(n) for n in range(RECORDS))


class Grains:
    """A stream as Grain makes them: the iterator has the state."""

    reads = 0

    def __iter__(self):
        return GrainIterator()


class GrainIterator:
    def __init__(self):
        self.position = 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.position >= RECORDS:
            raise StopIteration
        Grains.reads += 1
        self.position += 1
        return record(self.position - 1)

    def get_state(self):
        return json.dumps({"position": self.position}).encode()

    def set_state(self, state):
        self.position = json.loads(state)["position"]


class Faces:
    """A stream as Hugging Face makes them: the iterable has the state of its last iteration."""

    def __init__(self):
        self.start, self.state, self.epochs = 0, {"n": 0}, []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.start = state["n"]

    def __iter__(self):
        for number in range(self.start, RECORDS):
            self.state = {"n": number + 1}
            yield record(number)


STREAMS = {"function": lambda: numbers, "grain": Grains, "face": Faces}


def make(kind="function", num_workers=0, **options):
    options = {"batch_size": 4, "seed": 5, **options}
    return jk.from_stream(STREAMS[kind](), num_workers=num_workers, **options)


def ids(batches):
    return [i for batch in batches for i in np.asarray(batch["id"]).tolist()]


def test_in_order_without_a_buffer():
    pipe = make(num_workers=2)
    for _ in range(2):
        batches = epoch_of(pipe)
        assert ids(batches) == list(range(RECORDS))
        np.testing.assert_array_equal(
            batches[2]["x"], [[n / np.float32(7)] * 3 for n in range(8, 12)]
        )
    with raises(TypeError, "length", "'stream'"):
        len(pipe)
    assert pipe.element_spec["x"] == jax.ShapeDtypeStruct((4, 3), np.float32)
    assert "stream" in str(pipe.explain())


@pytest.mark.parametrize("buffer", [1, 5, 200])
def test_the_buffer_shuffles_by_bounded_delays(buffer):
    pipe = make(shuffle_buffer=buffer, num_workers=2)
    orders = [ids(pipe) for _ in range(3)]
    delays = [
        np.random.Philox(key=np.array([5, e], np.uint64)).random_raw(RECORDS) for e in range(3)
    ]
    for order, bits in zip(orders, delays, strict=True):
        keys = np.arange(RECORDS) + (bits % np.uint64(2 * buffer << 20)) / 2**20
        assert order == np.argsort(keys, kind="stable").tolist()
    assert orders[0] != orders[1] != orders[2]
    assert ids(make(shuffle_buffer=buffer, seed=6)) != orders[0]


def test_the_number_of_records_that_wait():
    read = []

    def endless():
        for number in count():
            read.append(number)
            yield record(number)

    batches = iter(jk.from_stream(endless, 10, shuffle_buffer=100, num_workers=0))
    most = 0
    for taken in range(1, 100):
        next(batches)
        most = max(most, len(read) - 10 * taken)
    assert 80 < most < 140
    batches.close()


@pytest.mark.parametrize("buffer", [0, 6])
@pytest.mark.parametrize("kind", STREAMS)
def test_resumes_after_every_batch(kind, buffer):
    options = {"shuffle_buffer": buffer, "shard": (1, 2)} if kind == "face" else {}
    options = {"shuffle_buffer": buffer, **options}
    epochs = [epoch_of(pipe := make(kind, **options)), epoch_of(pipe)]
    assert_resumes(lambda workers: make(kind, workers, **options), epochs[1], epoch=1)


def test_own_states_avoid_reading_from_the_beginning():
    pipe = make("grain", shuffle_buffer=2)
    batches = iter(pipe)
    for _ in range(8):
        next(batches)
    state = batches.get_state()
    Grains.reads = 0
    resumed = iter(make("grain", shuffle_buffer=2))
    resumed.set_state(state)
    left = ids(resumed)
    assert len(left) == RECORDS - 32
    assert Grains.reads <= len(left) + 2 * 2 + 4 + 4
    counted = iter(make("grain", shuffle_buffer=2, resume="count"))
    with pytest.raises(ValueError, match="another pipeline"):
        counted.set_state(state)


def test_a_stream_that_was_read_before_resumes_in_its_second_epoch():
    pipe = make("face")
    first = epoch_of(pipe)
    running = iter(pipe)
    states = [running.get_state()]
    for _ in first:
        next(running)
        states.append(running.get_state())
    for number, state in enumerate(states):
        running.set_state(json.loads(json.dumps(state)))
        assert_same(epoch_of(running), first[number:])


def test_set_epoch_is_called():
    faces = Faces()
    pipe = jk.from_stream(faces, 4)
    list(pipe)
    list(pipe)
    assert faces.epochs == [0, 1]


@pytest.mark.parametrize("remainder", ["drop_remainder", "pad_remainder"])
def test_remainders(remainder):
    batches = epoch_of(make(num_workers=2, **{remainder: True}))
    assert {len(batch["id"]) for batch in batches} == {4}
    if remainder == "drop_remainder":
        assert ids(batches) == list(range(40))
    else:
        assert ids(batches) == [*range(43), 42]
        assert np.concatenate([batch["mask"] for batch in batches]).tolist() == [True] * 43 + [
            False
        ]


def test_bits_do_not_depend_on_workers():
    def build(workers):
        pipe = make(num_workers=workers, shuffle_buffer=7) >> Filter(lambda r: r["id"] % 3 > 0)
        return pipe >> (lambda b: {**b, "x": b["x"] + 1}) >> Rebatch(3) >> jk.OperatorNode(NOISE)

    expected = epoch_of(build(0))
    assert sorted(ids(expected)) == [n for n in range(RECORDS) if n % 3]
    assert_same(epoch_of(build(3)), expected)


def ids_or_text(batches):
    return [str(o) if isinstance(o, Exception) else ids([o]) for o in outcomes(batches)]


class Flaky:
    """A stream that raises three times and then continues."""

    def __iter__(self):
        return self.Iterator()

    class Iterator:
        def __init__(self):
            self.position, self.failed = 0, set()

        def __next__(self):
            if self.position in (9, 10, 30) and self.position not in self.failed:
                self.failed.add(self.position)
                raise OSError(f"at {self.position}")
            if self.position == 20:
                self.position += 1
                return "no record"
            if self.position >= RECORDS:
                raise StopIteration
            self.position += 1
            return record(self.position - 1)

        def __iter__(self):
            return self


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_are_raised_once_in_order(workers):
    rows = [n for n in range(RECORDS) if n != 20]
    expected = [rows[k : k + 4] for k in range(0, len(rows), 4)]
    expected[2:2] = ["at 9", "at 10"]
    found = ids_or_text(iter(jk.from_stream(Flaky(), 4, num_workers=workers)))
    text = next(o for o in found if isinstance(o, str) and "a dict of arrays" in o)
    assert "record 20" in text
    expected.insert(7, text)
    expected.insert(10, "at 30")
    assert found == expected
    running, fresh = iter(jk.from_stream(Flaky(), 4)), jk.from_stream(Flaky(), 4)
    for number in range(len(expected) + 1):
        resumed = iter(fresh)
        resumed.set_state(json.loads(json.dumps(running.get_state())))
        again = 0  # a state is that after the last delivered batch
        while number > again and isinstance(expected[number - 1 - again], str):
            again += 1
        assert ids_or_text(resumed) == expected[number - again :]
        if number < len(expected):
            try:
                next(running)
            except Exception as error:
                assert str(error) == expected[number]  # noqa: PT017


class FailsOnce:
    """A stream without a state that fails before record 5."""

    def __init__(self):
        self.position, self.failed = 0, False

    def __iter__(self):
        return self

    def __next__(self):
        if self.position == 5 and not self.failed:
            self.failed = True
            raise OSError("at 5")
        if self.position == RECORDS:
            raise StopIteration
        self.position += 1
        return record(self.position - 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_a_shuffled_stream_follows_the_batches_before_it(workers):
    """The first batch has no record after 4, and is complete when record 4 has been read."""
    expected = ids_or_text(iter(jk.from_stream(numbers, 4, shuffle_buffer=3, seed=1)))
    assert max(expected[0]) == 4
    expected.insert(1, "at 5")

    def first_epoch():
        return iter(jk.from_stream(FailsOnce, 4, shuffle_buffer=3, seed=1, num_workers=workers))

    assert ids_or_text(first_epoch()) == expected
    running = first_epoch()
    for number in range(4):
        resumed = first_epoch()
        resumed.set_state(json.loads(json.dumps(running.get_state())))
        # A state is that after the last batch.
        assert ids_or_text(resumed) == expected[number - (number == 2) :]
        try:
            next(running)
        except OSError:
            assert number == 1


def test_a_generator_ends_after_its_error():
    def broken():
        yield from (record(n) for n in range(10))
        raise ArithmeticError("broke")

    for workers in (0, 2):
        for buffer in (0, 3):
            batches = iter(jk.from_stream(broken, 4, shuffle_buffer=buffer, num_workers=workers))
            found = ids_or_text(batches)
            assert found.count("broke") == 1
            assert sorted(i for o in found if o != "broke" for i in o) == list(range(10))


class SlowGrainIterator(GrainIterator):
    def __next__(self):
        time.sleep(0.01)  # so that an iteration ends while a record is read
        return super().__next__()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_new_iteration_waits_for_the_reader_of_the_old_one(workers):
    """Both read the same object."""
    pipe = jk.from_stream(SlowGrainIterator(), 4, num_workers=workers)
    for _ in pipe:
        break
    assert ids(pipe) == list(range(RECORDS))
    batches = iter(pipe)
    assert ids([next(batches), next(batches)]) == list(range(8))
    batches.set_state(batches.get_state())
    assert ids(batches) == list(range(8, RECORDS))


def test_an_iterator_is_read_in_one_epoch():
    pipe = jk.from_stream(numbers(), 4)
    with raises(RuntimeError, "once"):
        _ = pipe.element_spec
    assert ids(pipe) == list(range(RECORDS))
    for again in (pipe, pipe.with_seed(3)):
        with raises(RuntimeError, "once", "lambda"):
            list(again)
    again = jk.from_stream(GrainIterator(), 4)  # unless it can be set back
    assert ids(again) == ids(again) == list(range(RECORDS))


def test_records_of_other_shapes_are_an_error_in_place():
    def ragged():
        for n in range(12):
            yield {"id": n, "x": np.zeros(3 if n < 6 else 4)}

    found = ids_or_text(iter(jk.from_stream(ragged, 3)))
    assert found == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]  # two batches, two shapes
    found = ids_or_text(iter(jk.from_stream(ragged, 4)))
    assert found[0] == [0, 1, 2, 3]
    assert "record 6" in found[1]
    assert "of shape (4,) and record 4 of shape (3,)" in found[1]


def test_invalid_arguments_and_states():
    with raises(TypeError, "iterable"):
        jk.from_stream(3, 4)
    with raises(TypeError, "iterable"):
        next(iter(jk.from_stream(lambda: 3, 4)))
    with raises(ValueError, "in order"):
        make().explain(3)
    with raises(ValueError, "resume"):
        make(resume="state")
    with raises(ValueError, "shard"):
        make(shard=(2, 2))
    with raises(ValueError, "shuffle_buffer"):
        make(shuffle_buffer=-1)
    state = iter(pipe := make()).get_state()
    running = iter(pipe)
    next(running)
    state = running.get_state()
    state["position"] = {"at": {"position": 100}, "last": [99 << 20, 99]}
    running.set_state(state)
    with raises(ValueError, "43 records"):
        next(running)
    with pytest.raises(ValueError, match="another pipeline"):
        iter(make(shuffle_buffer=3)).set_state(state)


def test_generators_are_closed_in_their_thread():
    closed = []

    def watched():
        me = threading.get_ident()
        try:
            for number in count():
                yield record(number)
        finally:
            closed.append(me == threading.get_ident())

    def wait(times):
        deadline = time.monotonic() + 60
        while len(closed) < times and time.monotonic() < deadline:
            time.sleep(0.01)
        assert closed == [True] * times

    pipe = jk.from_stream(watched, 4, num_workers=2)
    batches = iter(pipe)
    next(batches)
    batches.close()
    wait(1)
    batches = iter(pipe)
    next(batches)
    del batches
    gc.collect()
    wait(2)
    batches = iter(jk.from_stream(watched, 4, num_workers=0))
    next(batches)
    batches.close()
    wait(3)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_thread_closes_an_iterator_while_another_reads_the_stream(num_workers):
    reading, go_on, closed = threading.Event(), threading.Event(), threading.Event()

    def blocked():
        try:
            yield from map(record, range(4))
            reading.set()
            assert go_on.wait(60)
            yield from map(record, range(4, 100))
        finally:
            closed.set()

    batches = iter(jk.from_stream(blocked, 4, num_workers=num_workers))
    next(batches)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(next, batches)
        assert reading.wait(60)
        batches.close()  # neither waits nor closes the generator that the other thread executes
        assert not closed.is_set()
        go_on.set()
        with pytest.raises(RingClosed):
            other.result(60)
        assert closed.wait(60)


def test_a_new_iterator_resumes_an_interrupted_one():
    interrupts = [True]

    def interrupted():
        for number in range(10):
            if number == 6 and interrupts.pop():
                interrupts.append(False)
                raise KeyboardInterrupt
            yield record(number)

    pipe = jk.from_stream(interrupted, 4, num_workers=0)
    batches = iter(pipe)
    found = [next(batches)]
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    resumed = iter(pipe)
    resumed.set_state(batches.get_state())
    assert ids(found + list(resumed)) == list(range(10))


def test_an_error_names_the_record_that_is_wrong():
    records = [{"x": np.zeros(2)}, {"x": np.zeros(2)}, {"x": "text"}, {"x": np.zeros(2)}]
    for shard in [(0, 1), (0, 2)]:
        with raises(TypeError, "record 2") as caught:
            list(jk.from_stream(records, 1, shard=shard, num_workers=0))
        assert "while reading record 2 of the stream" in caught.value.__notes__
