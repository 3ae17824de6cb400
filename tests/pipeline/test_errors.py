"""Bad input and failures: would catch hangs, errors that come for the wrong batch, and messages
that do not say which record, node or argument is meant."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import pytest
from support.errors import raises
from support.pipeline.batches import arrays, pipeline_threads, wait_for_no_threads

import jaxkern as jk
from jaxkern.pipeline import Probabilistic, Rebatch


class Fragile:
    """Records 0..29; the given ones fail."""

    def __init__(self, bad, error=OSError):
        self.bad, self.error = bad, error

    def __len__(self):
        return 30

    def __getitem__(self, i):
        if i in self.bad:
            raise self.error(f"cannot read {i}")
        return {"x": np.int32(i)}


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("bad", [{0}, {13}, {29}, {4, 5, 11}])
@pytest.mark.parametrize("error", [OSError, SystemExit, StopIteration])
def test_a_record_that_fails_does_so_in_its_place(num_workers, bad, error):
    iterator = iter(jk.from_source(Fragile(bad, error), 5, num_workers=num_workers))
    failing = {record // 5 for record in bad}
    for index in range(6):
        if index not in failing:
            assert np.asarray(next(iterator)["x"]).tolist() == list(range(5 * index, 5 * index + 5))
            assert iterator.get_state()["batch"] == index + 1
            continue
        first = min(record for record in bad if record // 5 == index)
        # StopIteration would end the loop without a word.
        expected = RuntimeError if error is StopIteration else error
        with pytest.raises(expected) as caught:
            next(iterator)
        shown = caught.value.__cause__ if error is StopIteration else caught.value
        assert str(shown) == f"cannot read {first}"
        notes = "\n".join(shown.__notes__)
        assert f"while reading record {first} of Fragile(30 records)" in notes
        assert f"in batch {index} of epoch 0" in notes
    with pytest.raises(StopIteration):
        next(iterator)


class Slow(Fragile):
    """Records from some number on come when `go` is set."""

    def __init__(self, ready):
        super().__init__({})
        self.ready = ready
        self.waiting, self.go = threading.Event(), threading.Event()

    def __getitem__(self, i):
        if i >= self.ready:
            self.waiting.set()
            assert self.go.wait(30)
        return super().__getitem__(i)


@pytest.mark.parametrize("how", ["close", "forget", "state"])
@pytest.mark.parametrize("taken", [1, 3])
def test_leaving_while_workers_read(how, taken):
    """Nothing waits for a source that does not answer."""
    source, others = Slow(5 * taken), pipeline_threads()
    iterator = iter(jk.from_source(source, 5, num_workers=2, prefetch_size=2))
    for _ in range(taken):
        next(iterator)
    if taken > 1:  # the first batch is made without workers
        assert source.waiting.wait(20)
    state = iterator.get_state()
    assert state["batch"] == taken
    start = time.monotonic()
    if how == "close":
        iterator.close()
        iterator.close()
    elif how == "forget":
        del iterator
        gc.collect()
    else:
        iterator.set_state(state)
    assert time.monotonic() - start < 10
    source.go.set()
    if how == "state":
        assert sum(len(batch["x"]) for batch in iterator) == 30 - 5 * taken
    wait_for_no_threads(others)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_failing_function_is_named(num_workers):
    def broken(batch):
        if 7 in batch["record"]:
            raise KeyError("why")
        return batch

    iterator = iter(jk.from_source(arrays(), 5, num_workers=num_workers) >> broken)
    next(iterator)
    with pytest.raises(KeyError) as caught:
        next(iterator)
    assert any("broken" in note for note in caught.value.__notes__)
    assert next(iterator)["record"][0] == 10


def test_a_failing_jax_node_is_named():
    pipe = jk.from_source(arrays(), 5) >> jk.OperatorNode(lambda b: {"x": b["nothing"]}, name="q")
    with pytest.raises(KeyError) as caught:
        next(iter(pipe))
    assert "in node 'q' of the pipeline" in caught.value.__notes__


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            lambda b: {"x": b["label"][:3]},
            r"node .* returned batch\['x'\] = int32\[3\] with 3 rows",
        ),
        (lambda b: {"x": b["label"].sum()}, "the 5 rows of the batch"),
        (lambda b: {}, "returned an empty dict"),
        (lambda b: b["label"], "a dict of fields"),
        (lambda b: None, "NoneType"),
    ],
)
def test_wrong_results_of_nodes(device, result, message):
    node = jk.OperatorNode(result) if device else result
    with pytest.raises((TypeError, ValueError), match=message):
        next(iter(jk.from_source(arrays(), 5) >> node))


def test_an_operator_without_apply():
    with raises(NotImplementedError, "apply"):
        next(iter(jk.from_source(arrays(), 5) >> jk.ElementOperator()))
    wrong = jk.ElementOperator(fn=lambda element, key: element.data)
    with raises(TypeError, "element.update_data"):
        next(iter(jk.from_source(arrays(), 5) >> wrong))
    with raises(ValueError, "stochastic=True"):
        jk.ElementOperatorConfig(stream_name="a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0; expected an integer from 1 to 2.*63 - 1"),
        ({"batch_size": 2.5}, "batch_size is 2.5"),
        ({"num_workers": -1}, "num_workers is -1"),
        ({"prefetch_size": 0}, "prefetch_size is 0; .*num_workers=0 is a pipeline without"),
        ({"seed": 0.5}, r"seed is 0.5; expected an integer from -2\*\*63 to 2\*\*63 - 1"),
        ({"seed": 2**63}, r"seed is 9223372036854775808; .* to 2\*\*63 - 1"),
        ({"shard": (2, 2)}, r"shard is \(2, 2\).*\(index, count\)"),
        ({"shard": (0, 1, 2)}, r"shard is \(0, 1, 2\).*\(index, count\)"),
        ({"shard": 1}, r"shard is 1.*\(index, count\)"),
        ({"shard": (-1, 2)}, r"shard\[0\] is -1"),
        ({"drop_remainder": True, "pad_remainder": True}, "one of them"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        jk.from_source(arrays(), **{"batch_size": 5, **options})


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({}, "at least one field"),
        ({"x": np.zeros((0, 3))}, "is empty.*at least one record"),
        ([], "is empty"),
        ({"x": np.zeros(3), "y": np.zeros(4)}, "different numbers of records: {'x': 3, 'y': 4}"),
        ({"x": 3.0}, "'x' is a scalar"),
        ({"x": np.array(["a"])}, "'x' has dtype <U1"),
        (5, "source is 5"),
        ("folder", "ImageFolder"),
    ],
)
def test_wrong_sources(source, message):
    with pytest.raises((TypeError, ValueError), match=message):
        jk.from_source(source, 2)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([1, 2], "record 0 of list.* is 1.*a dict of arrays"),
        ([{"x": "a"}], "'x' of record 0 has dtype <U1"),
        ([{"x": 1}, {"y": 1}], r"record 1 has the fields \['y'\].* record 0 \['x'\]"),
        ([{"x": [1]}, {"x": [1, 2]}], r"record 1 .* has 'x' of shape \(2,\) and record 0 .*\(1,\)"),
    ],
)
def test_wrong_records(records, message):
    with pytest.raises((TypeError, ValueError), match=message):
        next(iter(jk.from_source(records, 2)))


def test_too_few_records_for_a_batch():
    with raises(ValueError, "shard 0 of 1", "3 records", "batch of 5"):
        len(jk.from_source(arrays(3), 5, drop_remainder=True))
    with raises(ValueError, "rebatch", "batch of 9"):
        len(jk.from_source(arrays(6), 5, drop_remainder=True) >> Rebatch(9))


def test_a_field_of_the_masks_name():
    pipe = jk.from_source({"mask": np.zeros(3)}, 2, pad_remainder=True)
    with raises(ValueError, "'mask'"):
        next(iter(pipe))


def test_what_is_no_node():
    pipe = jk.from_source(arrays(), 5)
    for wrong in (3, jk.ElementOperator, None):
        with raises(TypeError, "node"):
            pipe >> wrong
    with raises(TypeError, "&"):
        pipe >> pipe
    with raises(TypeError, "class"):
        jk.OperatorNode(jk.ElementOperator)
    with raises(ValueError, "probability", "2"):
        Probabilistic(lambda b: b, 2)
    with raises(ValueError, "batch_size", "0"):
        Rebatch(0)
    with raises(ValueError, "epoch", "-1"):
        pipe.epoch = -1
