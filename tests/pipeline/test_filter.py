"""Filter and the nodes around it.

Would catch: lost or repeated rows after a node that drops some, batches that depend on the number
of workers, states that skip rows which were read and not delivered, errors that lose other batches,
and threads that outlive an iteration.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import json

import numpy as np
import pytest
from support.errors import raises
from support.pipeline.batches import (
    NOISE,
    arrays,
    assert_same,
    epoch_of,
    outcomes,
    pipeline_threads,
    wait_for_no_threads,
)

import jaxkern as jk
from jaxkern.pipeline import Cache, Filter, Rebatch

RECORDS = 57


def some(record):
    return record["record"] % 5 not in (1, 2)


def few(batch):
    return batch["label"] == 0


def scaled(batch):
    return {**batch, "label": batch["label"] * 2}


def base(num_workers=0, **options):
    options = {"batch_size": 6, "shuffle": True, "seed": 3, **options}
    return jk.from_source(arrays(RECORDS), num_workers=num_workers, **options)


KINDS = {
    "one": lambda pipe: pipe >> Filter(some) >> scaled,
    "batched": lambda pipe: pipe >> scaled >> Filter(few, batched=True) >> scaled,
    "rebatched": lambda pipe: (
        pipe >> Filter(some) >> scaled >> Rebatch(5) >> Filter(few, batched=True) >> Rebatch(2)
    ),
    "merged": lambda pipe: (
        (found := pipe >> Filter(some)) & found >> (lambda b: {"twice": b["label"] * 2})
    ),
}
REMAINDERS = {"partial": {}, "drop": {"drop_remainder": True}, "pad": {"pad_remainder": True}}


def kept(epoch, kind="one", shard=(0, 1)):
    """The records that come through, in order: NumPy on the unfiltered pipeline's records."""
    pipe = base(shard=shard)
    pipe.epoch = epoch
    order = np.concatenate([batch["record"] for batch in epoch_of(pipe)])
    labels = arrays(RECORDS)["label"][order]
    holds = {
        "one": order % 5 > 2,
        "batched": labels == 0,
        "rebatched": (order % 5 > 2) & (labels == 0),
    }
    holds["one"] |= order % 5 == 0
    holds["rebatched"] |= (order % 5 == 0) & (labels == 0)
    holds["merged"] = holds["one"]
    return order[holds[kind]]


@pytest.mark.parametrize("remainder", REMAINDERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_record_that_holds_once_in_dense_batches(kind, remainder):
    pipe = KINDS[kind](base(**REMAINDERS[remainder]))
    size = 2 if kind == "rebatched" else 6
    for epoch in range(3):
        expected = kept(epoch, kind)
        batches = epoch_of(pipe)
        sizes = [len(batch["record"]) for batch in batches]
        found = np.concatenate([batch["record"] for batch in batches])
        if remainder == "partial":
            assert sizes == [min(size, len(expected) - k) for k in range(0, len(expected), size)]
        else:
            assert set(sizes) == {size}
        if remainder == "drop":
            expected = expected[: len(expected) // size * size]
        if remainder == "pad":
            mask = np.concatenate([batch["mask"] for batch in batches])
            assert mask.sum() == len(expected) > len(mask) - size
            assert (found[~mask] == expected[-1]).all()
            found = found[mask]
        np.testing.assert_array_equal(found, expected)


def test_a_resumed_iteration_can_be_resumed():
    """Each state is from an iteration that resumed at the previous state and read one batch."""

    def build():
        return base() >> Filter(some) >> Rebatch(8) >> Rebatch(3)

    expected, state = epoch_of(build()), None
    for batch in expected:
        iterator = iter(build())
        if state is not None:
            iterator.set_state(json.loads(state))
        assert_same([next(iterator)], [batch])
        state = json.dumps(iterator.get_state())


def test_draws_belong_to_records():
    unfiltered = epoch_of(base(batch_size=10) >> jk.OperatorNode(NOISE))
    noise = {
        int(record): value
        for batch in unfiltered
        for record, value in zip(batch["record"], batch["noise"], strict=True)
    }
    count = 0
    for batch in epoch_of(base(2) >> Filter(some) >> jk.OperatorNode(NOISE)):
        for record, value in zip(batch["record"], batch["noise"], strict=True):
            np.testing.assert_array_equal(value, noise[int(record)])
            count += 1
    assert count == len(kept(0))


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_are_raised_once_in_place_and_the_next_call_continues(workers):
    def fails(record):
        if record["record"] in (13, 31):
            raise ValueError(f"record {record['record']}")
        return some(record)

    def records_or_text(outcome):
        if isinstance(outcome, dict):
            return np.asarray(outcome["record"]).tolist()
        notes = " ".join(outcome.__notes__)
        is_located = "for record" in notes and "in node 'Filter" in notes
        return str(outcome) if is_located else notes

    def make(workers):
        return base(workers, shuffle=False) >> Filter(fails) >> scaled

    # The predicate fails for records 13 and 31, which drops their blocks of 6: 12-17 and 30-35.
    rows = [n for n in range(RECORDS) if n % 5 not in (1, 2) and n // 6 not in (2, 5)]
    early = sum(n < 12 for n in rows) // 6, sum(n < 30 for n in rows) // 6
    expected = [rows[k : k + 6] for k in range(0, len(rows), 6)]
    expected.insert(early[0], "record 13")
    expected.insert(early[1] + 1, "record 31")
    assert list(map(records_or_text, outcomes(make(workers)))) == expected
    for number in range(len(expected) + 1):
        begun = iter(make(workers))
        for _ in range(number):
            with contextlib.suppress(ValueError):
                next(begun)
        resumed = iter(make(2 - workers))
        resumed.set_state(json.loads(json.dumps(begun.get_state())))
        # A state is that after the last delivered batch, so an error at this position is repeated.
        again = number > 0 and isinstance(expected[number - 1], str)
        assert list(map(records_or_text, outcomes(resumed))) == expected[number - again :]


def test_an_error_after_a_filter_loses_only_its_batch():
    def fails(batch):
        if 24 in batch["record"]:
            raise OSError("24")
        return batch

    expected = kept(0)
    first = int(np.flatnonzero(expected == 24)[0]) // 6 * 6
    for workers in (0, 2):
        found = outcomes(base(workers) >> Filter(some) >> fails)
        records = [np.asarray(batch["record"]) for batch in found if isinstance(batch, dict)]
        assert len(records) == len(found) - 1
        np.testing.assert_array_equal(
            np.concatenate(records), np.delete(expected, np.s_[first : first + 6])
        )


def test_dropped_records_are_counted_also_after_a_resume():
    for workers in (0, 2):
        pipe = KINDS["rebatched"](base(workers))
        batches = iter(pipe)
        assert batches.filtered == 0
        for _ in range(2):
            next(batches)
        resumed = iter(KINDS["rebatched"](base(workers)))
        resumed.set_state(batches.get_state())
        assert resumed.counts == batches.counts
        for found in (batches, resumed):
            epoch_of(found)
            assert found.counts == {
                "Filter(some)": {"dropped": RECORDS - len(kept(0))},
                "Filter(few)": {"dropped": len(kept(0)) - len(kept(0, "rebatched"))},
            }
            assert found.filtered == RECORDS - len(kept(0, "rebatched"))


def test_a_filter_that_drops_everything():
    for options in REMAINDERS.values():
        pipe = base(2, **options) >> Filter(lambda record: False)
        assert epoch_of(pipe) == epoch_of(pipe) == []
        with raises(ValueError, "no batch"):
            _ = pipe.element_spec


def test_lengths_are_unknown_and_lists_work():
    pipe = base() >> Filter(some) >> scaled
    with raises(TypeError, "length", "'Filter(some)'"):
        len(pipe)
    assert pipe
    assert len(list(pipe)) == -(-len(kept(0)) // 6)
    spec = pipe.element_spec
    assert spec["image"].shape == (6, 6, 6, 3)


def test_explanations_reach_up_to_the_filter():
    pipe = base(2) >> scaled >> Filter(some) >> scaled
    places = [where for _, _, where in pipe.explain().nodes]
    assert places == ["worker threads"] * 2 + ["worker threads, in order", "worker threads"]
    found = pipe.explain(11, epoch=1)
    assert [stage.name for stage in found.stages] == ["source", "scaled"]
    assert found.stages[-1].fields["record"] == 11
    assert pipe.explain(56).stages  # in the last batch, which a filter passes through unchanged
    with raises(ValueError, "0 to 56"):
        pipe.explain(57)


def test_invalid_arguments_and_states():
    pipe = base()
    with raises(TypeError, "function"):
        Filter(3)
    with raises(ValueError, "cache"):
        len(pipe >> Filter(some) >> Cache())
    with raises(ValueError, "branches"):
        len((pipe >> Filter(some)) & pipe)
    with raises(TypeError, "bool[6]"):
        next(iter(pipe >> Filter(lambda batch: batch["label"], batched=True)))
    with raises(TypeError, "bool"):
        next(iter(pipe >> Filter(lambda record: record["image"])))
    with raises(ValueError, "dict"):
        iter(pipe >> Filter(some)).set_state(
            {**iter(pipe >> Filter(some)).get_state(), "position": 3, "batch": 1}
        )
    for workers in (0, 2):
        broken = iter(base(workers) >> Filter(some) >> Filter(some))
        next(broken)
        with raises(ValueError, "get_state"):
            broken.set_state({**broken.get_state(), "position": {"at": 7}})
    masked = base(pad_remainder=True) >> (lambda b: {"mask": b["label"]}) >> Filter(few_masks)
    with raises(ValueError, "mask"):
        next(iter(masked))


def few_masks(record):
    return record["mask"] >= 0


def test_threads_end_with_the_iteration():
    others = pipeline_threads()  # of iterations that wait to be collected
    endless = jk.from_stream(lambda: ({"record": n} for n in itertools.count()), 6, num_workers=2)
    endless = endless >> Filter(some) >> Rebatch(2)  # its threads are never done
    batches = iter(endless)
    next(batches)
    assert pipeline_threads() - others
    batches.close()
    wait_for_no_threads(others)
    batches = iter(endless)
    next(batches)
    assert pipeline_threads() - others
    del batches
    gc.collect()
    wait_for_no_threads(others)
    list(KINDS["rebatched"](base(2)))
    wait_for_no_threads(others)
