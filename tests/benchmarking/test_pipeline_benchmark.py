"""`PipelineBenchmark`: would catch warm-up that is counted, examples that are not, a seed that is
ignored, and utilization that was not measured."""

from __future__ import annotations

import time

import jax
import numpy as np
import pytest

import jaxkern as jk
from jaxkern.benchmarking import PipelineBenchmark
from jaxkern.benchmarking.stream import mean_utilization


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
    assert result.duration_seconds == pytest.approx(sum(result.samples.seconds), rel=1e-9)
    assert result.examples_per_second == 80 / result.duration_seconds
    assert result.batches_per_second == 10 / result.duration_seconds
    for q in (50, 95, 99):
        assert result[f"p{q}"] == np.percentile(result.samples.seconds, q)
    for name in ("examples_per_second", "batches_per_second", "duration_seconds", "p90"):
        assert result[name] == getattr(result, name)
    assert result.dimensions["batch"] == {"['scale']": "float[]", "['x']": "float64[8, 3]"}


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
    with pytest.raises(ValueError, match="seed"):
        pipe.with_seed("a")


def test_function_of_the_seed():
    seeds = []

    def make(seed):
        seeds.append(seed)
        return iter([np.zeros(4)] * 5)

    result = PipelineBenchmark(make, num_batches=4, warmup_batches=1).run(pipeline_seed=9)
    assert (seeds, result.examples) == ([9], 16)


def test_function_that_counts_examples():
    batches = [{"x": np.zeros((4, 2)), "mask": np.array([1, 1, 0, 0])}] * 3
    bench = PipelineBenchmark(
        batches, num_batches=3, warmup_batches=0, examples=lambda batch: int(batch["mask"].sum())
    )
    assert bench.run().examples == 6


def test_utilization_that_is_not_reported():
    result = PipelineBenchmark([np.zeros(1)], num_batches=1, warmup_batches=0).run()
    if jax.default_backend() == "cpu":
        assert result.device_utilization is None
        assert result["utilization_note"] == "not reported for cpu devices"
        assert "not reported for cpu devices" in str(result)


def test_mean_utilization():
    lines = ["0, 20\n", "1, 90\n", "0, 40\n", "1, [N/A]\n"]
    assert mean_utilization(lines) == {"gpu 0": 30, "gpu 1": 90}
    assert mean_utilization(["0, [N/A]\n", "nonsense\n"]) is None
    assert mean_utilization([]) is None


def test_invalid_arguments():
    with pytest.raises(TypeError, match="data_stream"):
        PipelineBenchmark(3)
    for name, wrong in (("num_batches", 0), ("num_batches", 1.5), ("warmup_batches", -1)):
        with pytest.raises(ValueError, match=f"{name} is {wrong}"):
            PipelineBenchmark([], **{name: wrong})
    with pytest.raises(ValueError, match="list"):
        PipelineBenchmark([np.zeros(1)], num_batches=1).run(pipeline_seed=1)
    with pytest.raises(ValueError, match="after 0 batches"):
        PipelineBenchmark([], num_batches=1).run()
    with pytest.raises(ValueError, match="after 3 batches"):
        PipelineBenchmark(iter([np.zeros(1)] * 3), num_batches=3, warmup_batches=1).run()
    with pytest.raises(TypeError, match="got 3"):
        PipelineBenchmark(lambda seed: 3, num_batches=1).run()
    with pytest.raises(ValueError, match="examples="):
        PipelineBenchmark([{"a": np.zeros(2), "b": np.zeros(3)}], 1, 0).run()
