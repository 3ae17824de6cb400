"""Explanations: would catch a replay of another record, or of values that an iteration would not
yield."""

from __future__ import annotations

import numpy as np
import pytest
from support.errors import raises
from support.pipeline.batches import arrays, epoch_of

import jaxkern as jk
from jaxkern import image as im
from jaxkern.pipeline import Cache, Rebatch


@pytest.fixture(scope="module")
def pipe():
    base = jk.from_source(arrays(), 5, True, 4, drop_remainder=True)
    base = base >> Cache() >> brighter >> Rebatch(3)
    flip = im.Compose([im.RandomHorizontalFlip(0.5)])
    return base >> jk.OperatorNode(lambda b: {**b, "label": -b["label"]}, name="negate") >> flip


def brighter(batch):
    return {**batch, "image": batch["image"] // 2 + 100}


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_last_stage_is_what_an_iteration_yields(pipe, epoch):
    pipe.epoch = epoch
    kept = 0
    for index, batch in enumerate(epoch_of(pipe)):
        for row, record in enumerate(batch["record"].tolist()):
            kept += 1
            if row:
                continue
            found = pipe.explain(record, epoch)
            last = found.stages[-1]
            assert (last.batch, last.row) == (index, row)
            for field, values in batch.items():
                np.testing.assert_array_equal(last.fields[field], values[row])
    assert kept == 18


def test_each_stage_is_shown(pipe):
    record = int(next(iter(pipe))["record"][0])
    found = pipe.explain(record, pipe.epoch - 1)
    names = [stage.name for stage in found.stages]
    assert names == ["source", "cache", "brighter", "rebatch", "negate", "Compose"]
    assert [stage.where for stage in found.stages] == ["host"] * 4 + ["device"] * 2
    source = arrays()
    for name in ("source", "cache"):
        fields = found.stages[names.index(name)].fields
        np.testing.assert_array_equal(fields["image"], source["image"][record])
        assert fields["record"] == record
    np.testing.assert_array_equal(
        found.stages[3].fields["image"], source["image"][record] // 2 + 100
    )
    assert found.stages[4].fields["label"] == -source["label"][record]
    text = str(found)
    assert text.startswith(f"record {record} in epoch ")
    assert f"record: int32[] = {record}" in text
    assert "image: uint8[6, 6, 3] min " in text


def test_records_that_are_not_there(pipe):
    with raises(ValueError, "record 23 of 23", "0 to 22"):
        pipe.explain(23)
    pipe.epoch = 0
    missing = set(range(23)) - {int(r) for batch in pipe for r in batch["record"]}
    assert len(missing) == 5
    with raises(ValueError, "epoch 0"):
        pipe.explain(missing.pop())
    second = jk.from_source(arrays(), 5, shard=(1, 2))
    with raises(ValueError, "shard 0", "epoch 0", "shard 1 of 2"):
        second.explain(2)


def in_place(batch):
    batch["label"] *= 2
    return batch


def test_branches_and_work_in_place_are_replayed():
    start = jk.from_source(arrays(), 5) >> in_place
    pipe = start & start >> (lambda batch: {**batch, "more": batch["label"] + 1})
    found = pipe.explain(7)
    assert len(found.stages) == 4
    labels = [int(stage.fields["label"]) for stage in found.stages]
    label = arrays()["label"][7]
    assert labels == [label, 2 * label, 2 * label, 2 * label]
    assert found.stages[-1].fields["more"] == 2 * label + 1
