"""Chosen numbers of threads and batches ahead: would catch batches that depend on the choice,
choices that are kept though they are not faster, threads added where every core is busy or the
consumer is the slow side, and rings that take more memory than there is."""

from __future__ import annotations

import dataclasses
import json
import time

import numpy as np
import pytest
from support.pipeline.batches import assert_same, epoch_of

import jaxkern as jk
from jaxkern.pipeline import Filter, tuning
from jaxkern.pipeline.tuning import Tuning
from jaxkern.ring import RingStats

NOTHING = RingStats(0, 0, 0, 0, 0, 0.0, 0.0, 0.0, (0,), 0, 0, 0, "balanced")


class Machine:
    """A clock, and a ring whose batches come at a rate that depends on the choice."""

    def __init__(self, monkeypatch, cores=8):
        self.now = self.cpu = 0.0
        self.stats = NOTHING
        monkeypatch.setattr(tuning.time, "perf_counter", lambda: self.now)
        monkeypatch.setattr(tuning.time, "process_time", lambda: self.cpu)
        monkeypatch.setattr(tuning, "num_threads", lambda: cores)

    def run(self, chosen, rate, waits=0.5, blocked=0.0, busy=1.0, resizable=True, windows=12):
        """Runs for some seconds; `rate`, `blocked` and `busy` are functions of (workers, ahead)."""
        known = (chosen.workers, chosen.ahead)

        def of(value):
            return value(*known) if callable(value) else value

        for _ in range(round(windows * 10)):
            self.now += 0.1
            self.cpu += 0.1 * of(busy)
            self.stats = dataclasses.replace(
                self.stats,
                batches=self.stats.batches + round(0.1 * of(rate)),
                consumer_wait=self.stats.consumer_wait + 0.1 * waits,
                producer_wait=self.stats.producer_wait + 0.1 * of(blocked) * known[0],
            )
            if chosen.due and chosen.observe(self.stats, resizable):
                if resizable:
                    chosen.restarted()
                known = (chosen.workers, chosen.ahead)
        return chosen


def test_threads_that_help_are_kept_up_to_those_that_do_not(monkeypatch):
    machine = Machine(monkeypatch)
    chosen = machine.run(Tuning("auto", "auto"), lambda n, _: 100 * min(n, 8))
    assert (chosen.workers, chosen.ahead) == (8, 10)
    assert [("kept" in text, "reverted" in text) for text in chosen.choices] == [
        (True, False),
        (True, False),
        (False, True),
    ]
    assert "8 threads" in chosen.choices[1]
    assert not chosen.due  # nothing more is tried


def test_short_epochs_are_measured_together(monkeypatch):
    machine = Machine(monkeypatch)
    chosen = Tuning("auto", "auto")
    for _ in range(20):
        machine.run(chosen, lambda n, _: 200 * n, windows=0.3)
        machine.stats = NOTHING
        chosen.restarted()
    assert chosen.workers > 2


def test_what_is_not_faster_is_taken_back(monkeypatch):
    chosen = Machine(monkeypatch).run(Tuning("auto", "auto"), lambda n, _: 300 - n)
    assert (chosen.workers, chosen.ahead) == (2, 4)
    assert "reverted" in chosen.choices[0]


def test_nothing_is_tried_where_it_cannot_help(monkeypatch):
    chosen = Machine(monkeypatch).run(Tuning("auto", "auto"), 100, waits=0.01, blocked=0.9)
    assert (chosen.workers, chosen.ahead, chosen.choices) == (2, 4, [])
    chosen = Machine(monkeypatch, cores=2).run(Tuning("auto", "auto"), 100, busy=1.9)
    assert (chosen.workers, chosen.ahead) == (2, 4)
    assert chosen.choices == ["2 threads: the consumer waits, and all 2 cores are busy"]


def test_uneven_batches_are_made_further_ahead(monkeypatch):
    blocked = lambda _, ahead: 0.3 if ahead < 16 else 0.0  # noqa: E731
    machine = Machine(monkeypatch)
    chosen = machine.run(Tuning(2, "auto"), lambda _, ahead: 20 * ahead, blocked=blocked)
    assert (chosen.workers, chosen.ahead) == (2, 16)
    assert all("kept" in text for text in chosen.choices)


def test_a_given_number_stays(monkeypatch):
    rate = lambda n, ahead: 100 * n * ahead  # noqa: E731
    chosen = Machine(monkeypatch).run(Tuning("auto", 6), rate, blocked=0.5)
    assert (chosen.workers, chosen.ahead) == (6, 6)
    chosen = Machine(monkeypatch).run(Tuning(3, 5), rate, blocked=0.5)
    assert (chosen.workers, chosen.ahead, chosen.choices) == (3, 5, [])


def test_rings_stay_within_the_memory(monkeypatch):
    monkeypatch.setattr(tuning, "available_bytes", lambda: 800)
    chosen = Tuning(2, "auto")
    assert chosen.slots(10) == 4
    assert chosen.slots(30) == 3
    assert "3 batches ahead: 4 of 30 bytes" in chosen.choices[0]
    assert Tuning(2, "auto").slots(1000) == 2
    assert Tuning(2, 9).slots(1000) == 9  # as was asked for


class Slow:
    """Records with a latency, as from a network: more threads than cores help."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __len__(self):
        return 600

    def __getitem__(self, record):
        time.sleep(self.seconds)
        return {"id": np.int32(record)}


KINDS = {
    "by index": lambda pipe: pipe,
    "in order": lambda pipe: pipe >> Filter(lambda record: record["id"] % 5 > 0),
}


@pytest.mark.parametrize("kind", KINDS)
def test_waiting_sources_get_threads_and_the_batches_stay(kind, monkeypatch):
    monkeypatch.setattr(tuning, "_SECONDS", 0.05)
    monkeypatch.setattr(tuning, "_LOOK", 0.01)
    monkeypatch.setattr(tuning, "_GAIN", 0.0)  # other work may slow any half second
    options = {"batch_size": 2, "shuffle": True, "seed": 1}
    expected = epoch_of(KINDS[kind](jk.from_source(Slow(0), num_workers=0, **options)))
    source = jk.from_source(Slow(0.0015), num_workers="auto", prefetch_size="auto", **options)
    pipe = KINDS[kind](source)
    batches = iter(pipe)
    found = [next(batches) for _ in range(len(expected) - 1)]
    stats, state = batches.stats(), json.loads(json.dumps(batches.get_state()))
    found += list(batches)
    assert_same(epoch_of(found), expected)
    assert stats.num_workers > 2
    assert any("kept" in text for text in stats.choices)
    resumed = iter(KINDS[kind](jk.from_source(Slow(0), num_workers=1, **options)))
    resumed.set_state(state)
    assert_same(epoch_of(resumed), expected[-1:])
    if kind == "by index":
        assert stats.prefetch_size >= stats.num_workers
    later = iter(pipe)
    next(later), next(later)
    assert later.stats().num_workers > 2  # the next epoch uses the choice, too


def test_native_threads_are_chosen_too(monkeypatch):
    monkeypatch.setattr(tuning, "_SECONDS", 0.0)
    monkeypatch.setattr(tuning, "_LOOK", 0.0)
    arrays = {"x": np.arange(40_000, dtype=np.float32).reshape(400, 100)}
    auto = jk.from_source(arrays, 2, shuffle=True, num_workers="auto", prefetch_size="auto")
    plain = jk.from_source(arrays, 2, shuffle=True)
    for _ in range(2):
        assert_same(epoch_of(auto), epoch_of(plain))
    assert {where for _, _, where in auto.explain().nodes} == {"native threads"}


def test_errors_name_what_is_wanted():
    for name in ("num_workers", "prefetch_size"):
        with pytest.raises(ValueError, match=f'{name} is .*or "auto"'):
            jk.from_source({"x": [1]}, 1, **{name: "most"})
