"""States: would catch batches that repeat or are left out after a resume, states that count what
was only made ahead, and states that are taken by another pipeline."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import raises
from support.pipeline.batches import NOISE, arrays, assert_same, epoch_of

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import Cache, Probabilistic, Rebatch


class Noise(jk.ElementOperator):
    def __init__(self, level):
        super().__init__(jk.ElementOperatorConfig(stochastic=True))
        self.level = level


def scaled(batch):
    return {**batch, "label": batch["label"] * 2}


def plain(base):
    return base >> jk.OperatorNode(NOISE)


def rebatched(base):
    return base >> jk.OperatorNode(NOISE) >> scaled >> Rebatch(7)


def cached(base):
    return base >> scaled >> Cache() >> Rebatch(4) >> jk.OperatorNode(NOISE)


def branched(base):
    negated = jk.OperatorNode(lambda batch: {"negated": 255 - batch["image"]})
    return (base & base >> negated) >> Probabilistic(lambda b: {**b, "label": -b["label"]}, 0.5)


KINDS = {"plain": plain, "rebatched": rebatched, "cached": cached, "branched": branched}


def make(kind, num_workers=0, **options):
    options = {"batch_size": 5, "shuffle": True, "seed": 2, **options}
    return KINDS[kind](jk.from_source(arrays(), num_workers=num_workers, **options))


PADDED = ("rebatched", "branched")
PIPES = {
    (kind, workers, pad): make(kind, workers, pad_remainder=pad)
    for kind in KINDS
    for workers in (0, 2)
    for pad in (False, True)
    if pad == (kind in PADDED)
}
UNINTERRUPTED: dict = {}


def uninterrupted(kind, pad, epoch):
    """Return the batches of an uninterrupted epoch of a pipeline without workers."""
    if (kind, pad, epoch) not in UNINTERRUPTED:
        pipe = PIPES.get((kind, 0, pad)) or make(kind, pad_remainder=pad)
        pipe.epoch = epoch
        UNINTERRUPTED[kind, pad, epoch] = epoch_of(pipe)
    return UNINTERRUPTED[kind, pad, epoch]


@settings(deadline=None, max_examples=50)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    epoch=st.integers(0, 2),
    workers=st.tuples(*[st.sampled_from([0, 2])] * 2),
    data=st.data(),
)
def test_the_next_batch_comes_next(kind, epoch, workers, data):
    pad = kind in PADDED
    expected = uninterrupted(kind, pad, epoch)
    before, after = (PIPES[kind, number, pad] for number in workers)
    stop = data.draw(st.integers(0, len(expected)))
    before.epoch = epoch
    first = iter(before)
    assert_same(epoch_of([next(first) for _ in range(stop)]), expected[:stop])
    state = json.loads(json.dumps(first.get_state()))
    assert len(json.dumps(state)) < 1000
    after.epoch = 0
    second = iter(after)
    second.set_state(state)
    assert second.get_state() == state
    assert_same(epoch_of(second), expected[stop:])
    assert after.epoch == epoch + 1


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_fresh_pipeline_resumes(kind):
    """The new pipeline has neither the cache nor the compiled program of the first one."""
    expected = uninterrupted(kind, False, 1)
    first = make(kind, 2)
    list(first)
    running = iter(first)
    next(running), next(running)
    resumed = iter(make(kind, 1))
    resumed.set_state(running.get_state())
    assert_same(epoch_of(resumed), expected[2:])


def test_what_is_made_ahead_does_not_count():
    iterator = iter(jk.from_source(arrays(60), 5, num_workers=3, prefetch_size=8))
    next(iterator)
    while iterator.get_state()["batch"] == 0 or (iterator.stats() and not iterator.stats().ready):
        next(iterator)
    assert iterator.get_state()["batch"] < 12
    taken = iterator.get_state()["batch"]
    assert np.asarray(next(iterator)["record"])[0] == 5 * taken


def test_setting_a_state_again():
    iterator = iter(make("plain", 2))
    start = iterator.get_state()
    expected = uninterrupted("plain", False, 0)
    for _ in range(3):
        assert_same(epoch_of([next(iterator), next(iterator)]), expected[:2])
        iterator.set_state(start)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 6}, "batch_size is 5 there and 6 here"),
        ({"seed": 3}, "seed is 2 there and 3 here"),
        ({"shuffle": False}, "shuffle is True there and False here"),
        ({"drop_remainder": True}, "remainder is 'partial' there and 'drop' here"),
        ({"shard": (0, 2)}, r"shard is \[0, 1\] there and \[0, 2\] here.*set_state\("),
    ],
)
def test_a_state_of_other_options_is_refused(options, message):
    iterator = iter(make("plain"))
    next(iterator)
    with pytest.raises(ValueError, match=message):
        iter(make("plain", **options)).set_state(iterator.get_state())


def test_a_state_of_other_nodes_is_refused():
    state = iter(make("plain")).get_state()
    with pytest.raises(ValueError, match=r"node 2 is .*function scaled.*|node 2 exists only here"):
        iter(make("rebatched")).set_state(state)
    crops = [
        jk.from_source(arrays(), 5) >> jk.OperatorNode(im.Compose([im.RandomCrop(size)]))
        for size in (4, 5)
    ]
    with raises(ValueError, "node 1", "'Compose#"):
        iter(crops[0]).set_state(iter(crops[1]).get_state())
    pipe = plain(jk.from_source(arrays(24), 5, True, 2))
    noises = [jk.from_source(arrays(), 5) >> jk.OperatorNode(Noise(level)) for level in (0.1, 0.2)]
    with raises(ValueError, "node 1", "'Noise"):
        iter(noises[0]).set_state(iter(noises[1]).get_state())
    with raises(ValueError, "records", "23", "24"):
        iter(pipe).set_state(state)


@pytest.mark.parametrize("state", [None, {}, {"epoch": 1}, [1]])
def test_what_is_no_state_is_refused(state):
    with raises(ValueError, "get_state"):
        iter(make("plain")).set_state(state)


@pytest.mark.parametrize(
    "damage",
    [
        {"epoch": -1, "finished": True},
        {"epoch": None},
        {"batch": "x"},
        {"batch": 1.5},
        {"batch": 10**9},
        {"pipeline": "x"},
        {"pipeline": {}},
        {"pipeline": {"nodes": None}},
    ],
)
def test_a_damaged_state_is_refused(damage):
    iterator = iter(make("plain"))
    with pytest.raises(ValueError, match="the state is "):
        iterator.set_state({**iterator.get_state(), **damage})


def test_a_state_is_json_whatever_the_integers_were():
    pipe = jk.from_source(
        arrays(), np.int64(5), seed=np.uint8(2), shard=(np.int64(0), np.int32(2))
    ) >> Rebatch(np.int64(3))
    iterator = iter(pipe)
    next(iterator)
    assert json.loads(json.dumps(iterator.get_state()))["batch"] == 1


def test_another_version_is_refused():
    iterator = iter(make("plain"))
    with raises(ValueError, "99"):
        iterator.set_state({**iterator.get_state(), "version": 99})


def test_another_number_of_shards_resumes_between_epochs():
    two = iter(make("plain", shard=(0, 2)))
    list(two)
    state = two.get_state()
    seen = []
    for index in range(3):
        pipe = make("plain", shard=(index, 3))
        iterator = iter(pipe)
        iterator.set_state(state)
        assert list(iterator) == []
        assert pipe.epoch == 1
        seen += [int(r) for batch in pipe for r in batch["record"]]
    assert sorted(seen) == list(range(23))
