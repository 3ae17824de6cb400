"""States: would catch states that count what was only made ahead, and states that are accepted by
another pipeline. `test_promises.py` resumes every kind of pipeline after every batch."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.errors import raises
from support.pipeline.batches import NOISE, arrays, assert_same, epoch_of

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import Rebatch


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


KINDS = {"plain": plain, "rebatched": rebatched}


def make(kind, num_workers=0, **options):
    options = {"batch_size": 5, "shuffle": True, "seed": 2, **options}
    return KINDS[kind](jk.from_source(arrays(), num_workers=num_workers, **options))


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
    expected = epoch_of(make("plain"))
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


def test_a_rejected_position_leaves_the_iterator_unchanged():
    source = {"x": np.arange(12)}
    running = iter(jk.from_source(source, 2) >> jk.pipeline.Filter(lambda record: True))
    assert next(running)["x"].tolist() == [0, 1]
    state = running.get_state()
    with raises(ValueError, "position", "Filter"):
        running.set_state({**state, "position": {"at": "x"}})
    assert running.get_state() == state
    assert next(running)["x"].tolist() == [2, 3]
