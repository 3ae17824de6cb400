"""`PipelineBenchmark`: would catch warm-up that is counted and a seed that is ignored."""

from __future__ import annotations

import time

import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern.benchmarking import PipelineBenchmark


class Batches:
    """Batches of 8 that take 5 ms each; the first two of an epoch take 50 ms."""

    def __init__(self, count):
        self.count, self.delivered = count, 0

    def __iter__(self):
        for i in range(self.count):
            time.sleep(0.05 if i < 2 else 0.005)
            self.delivered += 1
            yield {"x": np.zeros((8, 3)), "scale": 1.0}


def test_warm_up_is_not_measured():
    stream = Batches(20)
    result = PipelineBenchmark(stream, num_batches=10, warmup_batches=2).run()
    assert stream.delivered == 12
    assert (result.batches, result.examples, result.epochs) == (10, 80, 1)
    assert result.min >= 0.005
    # The first, slow batches are not included.
    assert result.p50 < 0.04
    assert result.duration_seconds == pytest.approx(sum(result.seconds), rel=1e-9)
    assert result.examples_per_second == 80 / result.duration_seconds
    assert result.batches_per_second == 10 / result.duration_seconds
    for q in (50, 95, 99):
        assert result[f"p{q}"] == np.percentile(result.seconds, q)
    for name in ("examples_per_second", "batches_per_second", "duration_seconds", "p90"):
        assert result[name] == getattr(result, name)
    assert result.dimensions["batch"] == {"['x']": "float64[8, 3]"}


def test_stream_restarts_at_its_end():
    stream = Batches(4)
    result = PipelineBenchmark(stream, num_batches=7, warmup_batches=3).run()
    assert (stream.delivered, result.epochs) == (10, 3)


def test_seed_determines_the_order():
    seen = []
    source = {"x": np.arange(64)}
    pipe = jk.from_source(source, batch_size=8, shuffle=True, seed=1)

    def examples(batch):
        seen.append(batch["x"].tolist())
        return 8

    def order(seed):
        seen.clear()
        PipelineBenchmark(pipe, 8, 0, examples=examples).run(pipeline_seed=seed)
        return seen[:]

    orders = [order(42), order(7), order(42)]
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    expected = jk.from_source(source, batch_size=8, shuffle=True, seed=42)
    assert orders[0] == [batch["x"].tolist() for batch in expected]
    # The pipeline keeps its seed and its epoch.
    assert pipe.epoch == 0


def test_with_seed_keeps_the_graph():
    base = jk.from_source({"x": np.arange(32)}, batch_size=32, shuffle=True, seed=3)
    pipe = base & base >> (lambda batch: {"y": 2 * batch["x"]})
    (batch,) = list(pipe.with_seed(5))
    np.testing.assert_array_equal(batch["y"], 2 * batch["x"])
    (direct,) = list(jk.from_source({"x": np.arange(32)}, batch_size=32, shuffle=True, seed=5))
    np.testing.assert_array_equal(batch["x"], direct["x"])
    with raises(ValueError, "seed"):
        pipe.with_seed("a")


def test_function_of_the_seed():
    seeds = []

    def make(seed):
        seeds.append(seed)
        return iter([np.array([1, 1, 0, 0])] * 5)

    result = PipelineBenchmark(make, num_batches=4, warmup_batches=1).run(pipeline_seed=9)
    assert (seeds, result.examples) == ([9], 16)
    counted = PipelineBenchmark(make, num_batches=3, warmup_batches=0, examples=np.sum).run()
    assert (seeds, counted.examples) == ([9, 0], 6)


ONE = [np.zeros(1)]


@pytest.mark.parametrize(
    ("stream", "options", "error", "facts"),
    [
        (3, {}, TypeError, ["data_stream", "3"]),
        ([], {"num_batches": 0}, ValueError, ["num_batches", "0"]),
        ([], {"num_batches": 1.5}, ValueError, ["num_batches", "1.5"]),
        ([], {"warmup_batches": -1}, ValueError, ["warmup_batches", "-1"]),
        (ONE, {"pipeline_seed": 1}, ValueError, ["pipeline_seed", "list"]),
        ([], {}, ValueError, ["0 batches"]),
        (iter(ONE * 3), {"num_batches": 3, "warmup_batches": 1}, ValueError, ["3 batches"]),
        (lambda seed: 3, {}, TypeError, ["3"]),
        ([{"a": np.zeros(2), "b": np.zeros(3)}], {}, ValueError, ["examples="]),
    ],
)
def test_invalid_arguments(stream, options, error, facts):
    seed = options.pop("pipeline_seed", None)
    with raises(error, *facts):
        PipelineBenchmark(stream, **{"warmup_batches": 0, **options}).run(seed)
