"""Guarantees of pipelines, tested for every source and node of `promise_cases.py`.

Would catch: records that are lost or doubled, batches that depend on the workers, states that
repeat or skip batches, errors in the wrong batch, and leaks of threads, files or memory.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import time
from collections import Counter

import numpy as np
import pytest
from support import run_python
from support.pipeline.batches import assert_same, epoch_of, outcomes
from support.pipeline.promise_cases import BAD, CASES

OPTIONS = {"batch_size": 4, "shuffle": True, "seed": 3, "prefetch_size": 2}


@pytest.fixture(scope="module", autouse=True)
def cheap_collections():
    """Exclude the objects of other tests from garbage collection, which runs often here."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", params=CASES)
def case(request):
    """The name of a row, for the tests to look it up."""
    return request.param


@pytest.fixture(scope="module")
def make(case, tmp_path_factory):
    """The factory of a row, with the suite's options."""
    build = CASES[case].build(tmp_path_factory.mktemp("case"))
    return lambda **options: build(**{**OPTIONS, **options})


@pytest.fixture(scope="module")
def expected(make):
    """Two epochs without workers."""
    pipe = make(num_workers=0)
    check_length(pipe, list(pipe))
    pipe.epoch = 0
    return [epoch_of(pipe), epoch_of(pipe)]


def check_length(pipe, batches):
    """The length is that of an epoch, if the pipeline has one."""
    if has_length(pipe):
        assert len(pipe) == len(batches)


def has_length(pipe):
    try:
        len(pipe)
    except TypeError:
        return False
    return True


def ids_of(batches):
    """Return the ids of all rows except padding."""
    rows = [np.asarray(b["id"])[np.asarray(b["mask"]) if "mask" in b else ...] for b in batches]
    return np.concatenate(rows).tolist() if rows else []


@pytest.mark.parametrize("shards", [1, 3])
def test_exact_epochs_and_no_lost_tail(case, make, shards):
    expected = Counter(CASES[case].ids)
    for remainder in ("partial", "pad_remainder", "drop_remainder"):
        options = {} if remainder == "partial" else {remainder: True}
        parts = []
        for index in range(shards):
            pipe = make(num_workers=1, shard=(index, shards), **options)
            batches = epoch_of(pipe)
            check_length(pipe, batches)
            sizes = [len(batch["id"]) for batch in batches]
            assert set(sizes[:-1] if remainder == "partial" else sizes) <= {4}
            parts.append(ids_of(batches))
        found = Counter(i for part in parts for i in part)
        if remainder != "drop_remainder":
            spare = CASES[case].spares * shards if shards > 1 else 0
            assert found <= expected
            assert expected.total() - found.total() <= spare
        else:
            assert found <= expected
            # A filter, for instance, keeps different numbers of records of the shards.
            assert len({len(part) for part in parts}) == 1 or not has_length(pipe)
            spare = CASES[case].spares * shards if shards > 1 else 0
            assert expected.total() - found.total() < 4 * shards + spare


def test_the_second_iteration_is_the_next_epoch(make, expected):
    first, second = expected
    assert ids_of(first) != ids_of(second)
    pipe = make(num_workers=2)
    pipe.epoch = 1
    assert_same(epoch_of(pipe), second)
    assert pipe.epoch == 2


@pytest.mark.parametrize(("num_workers", "prefetch_size"), [(1, 1), (3, 4)])
def test_bits_do_not_depend_on_the_workers(make, expected, num_workers, prefetch_size):
    pipe = make(num_workers=num_workers, prefetch_size=prefetch_size)
    for epoch in expected:
        assert_same(epoch_of(pipe), epoch)


@pytest.mark.parametrize(("num_workers", "epoch"), [(0, 0), (2, 1)])
def test_resume_after_every_batch(make, expected, num_workers, epoch):
    """The pipeline that resumes is a new one, with another number of workers."""
    first, pipe = make(num_workers=num_workers), make(num_workers=2 - num_workers)
    first.epoch = epoch
    running = iter(first)
    for stop in range(len(expected[epoch]) + 1):
        state = json.loads(json.dumps(running.get_state()))
        assert len(json.dumps(state)) < 1000 + len(json.dumps(state["pipeline"]))
        pipe.epoch = 5
        resumed = iter(pipe)
        resumed.set_state(state)
        assert resumed.get_state() == state
        assert_same(epoch_of(resumed), expected[epoch][stop:])
        assert pipe.epoch == epoch + 1
        if stop < len(expected[epoch]):
            next(running)


def resume_on(make, states, shards):
    """Resume on `shards` shards; return the ids of up to two batches of each, and the states."""
    ids, resumed_states = [], []
    for index in range(shards):
        iterator = iter(make(num_workers=index % 2, shard=(index, shards), batch_size=3))
        iterator.set_state(json.loads(json.dumps(states)))
        start = iterator.get_state()
        assert start["rows"] == 0 or start["finished"]
        ids += ids_of([batch for _, batch in zip(range(2), iterator, strict=False)])
        resumed_states.append(iterator.get_state())
        again = iter(make(num_workers=0, shard=(index, shards), batch_size=3))
        again.set_state(resumed_states[-1])
        assert_same(epoch_of(again), epoch_of(iterator))
        iterator.close()
    return ids, resumed_states


def test_other_shards_resume(case, make):
    """Three shards at different batches, then two, then four."""
    if not CASES[case].divides:
        return
    found, states = [], []
    for index in range(3):
        iterator = iter(make(num_workers=1, shard=(index, 3), batch_size=3))
        found += ids_of([batch for _, batch in zip(range(index), iterator, strict=False)])
        states.append(iterator.get_state())
    for shards in (2, 4):
        more, states = resume_on(make, states, shards)
        found += more
    last = iter(make(num_workers=0, batch_size=3))
    last.set_state(states)
    found += ids_of(list(last))
    found, expected = Counter(found), Counter(CASES[case].ids)
    assert found <= expected
    assert expected.total() - found.total() <= 3 * CASES[case].spares


def refuse(batch):
    if BAD in batch["id"]:
        raise ArithmeticError("a bad record")
    return batch


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("who", ["a node", "the source"])
def test_errors_arrive_in_place(case, make, expected, tmp_path, num_workers, who):
    if who == "a node":
        pipe = make(num_workers=num_workers) >> refuse
    elif CASES[case].breaks is not None:
        pipe = CASES[case].breaks(tmp_path)(**OPTIONS, num_workers=num_workers)
    else:
        return  # what the row reads cannot fail
    found = outcomes(pipe)
    assert len(found) == len(expected[0])
    for one, good in zip(found, expected[0], strict=True):
        if BAD in good["id"]:
            assert isinstance(one, Exception), "the bad record's batch came"
        else:
            assert_same(epoch_of([one]), [good])


def tasks():
    """The threads of this process, native ones too."""
    return len(os.listdir("/proc/self/task"))


def settled(count, limit):
    """The count once it is at most `limit`, or after half a minute."""
    end = time.monotonic() + 30
    while count() > limit and time.monotonic() < end:
        gc.collect()
        time.sleep(0.01)
    return count()


def test_closing_frees_the_threads(make):
    list(make(num_workers=3))
    before = tasks()
    iterators = [iter(make(num_workers=3)) for _ in range(2)]
    for iterator in iterators:
        next(iterator)
    iterators[0].close()
    del iterators, iterator  # and a dropped one closes by itself
    assert settled(tasks, before) <= before


def files():
    return len(os.listdir("/proc/self/fd"))


def test_many_epochs_leak_nothing(make):
    pipe = make(num_workers=2)
    list(pipe)
    list(pipe)
    gc.collect()
    before = tasks(), files()
    for _ in range(4):
        list(pipe)
    assert settled(tasks, before[0]) <= before[0]
    assert settled(files, before[1]) <= before[1]


# One of each way in which batches are made; the others share it, and run a quarter of the epochs.
LONG = {"arrays", "image files decoded natively", "filter", "stream", "mixture", "tokens packed"}


@pytest.mark.slow
def test_a_thousand_epochs_take_no_memory(case, make):
    pipe = make(num_workers=2)
    peaks = []
    for _ in range(4):
        for _ in range(250 if case in LONG else 60):
            list(pipe)
        gc.collect()
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    assert peaks[-1] - peaks[0] < 16 * 1024, peaks  # KiB; the first quarter fills what is kept


def test_the_long_rows_are_there():
    assert set(CASES) >= LONG


FORK = """
import os, pathlib, sys, tempfile
from support.pipeline.promise_cases import CASES

running = []
folder = tempfile.TemporaryDirectory()
for number, (name, row) in enumerate(CASES.items()):
    place = pathlib.Path(folder.name, str(number))
    place.mkdir()
    pipe = row.build(place)(batch_size=4, shuffle=True, seed=3, num_workers=2)
    iterator = iter(pipe)
    running.append((name, pipe, iterator, [next(iterator)["id"].tolist() for _ in range(2)]))
child = os.fork()
if child == 0:
    for name, pipe, iterator, first in running:
        try:
            next(iterator)
            print(name, "reads on")
        except RuntimeError as error:
            if "that the parent began" not in str(error):
                print(name, repr(error))
        pipe.epoch = 0
        try:
            next(iter(pipe))
            print(name, "can be read")
        except RuntimeError as error:
            if "'spawn' or 'forkserver'" not in str(error):
                print(name, repr(error))
    sys.stdout.flush()
    os._exit(0)
print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
for name, pipe, iterator, first in running:
    pipe.epoch = 0
    if len(list(iterator)) != len(list(pipe)) - 2:
        print(name, "the parent lost batches")
"""


@pytest.mark.slow  # all cases; one of them in make test: test_interrupts.py
def test_a_forked_child_reads_nothing():
    done = run_python(FORK, timeout=120)
    assert done.stdout == "child 0\n", done
