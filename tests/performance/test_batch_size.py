"""Recommendations for real functions and pipelines: would catch bytes that XLA did not report, an
argument that is built wrongly or donated, and a pipeline that is measured without its source.

No test depends on the speed or load of the machine.
"""

from __future__ import annotations

import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern as jk
from jaxkern.image import Compose, RandomCrop
from jaxkern.performance import batch_trials
from jaxkern.pipeline import Cache, Rebatch, pipeline
from jaxkern.pipeline.pipeline import Resized

# Times only the smallest size, or the requested ones; the largest is still found.
recommend = partial(jk.get_batch_size_recommendation, progress=False, seconds=0.01)
ROW = jax.ShapeDtypeStruct((1, 256), jnp.float32)  # 1 KiB a record


def records(count: int) -> dict[str, np.ndarray]:
    images = np.random.default_rng(0).integers(0, 256, (count, 6, 6, 3), np.uint8)
    return {"image": images, "label": np.arange(count)}


def test_largest_size_of_a_known_function():
    # 1 KiB a record in and 1 KiB out: 512 of them are 1 MiB.
    result = recommend(lambda x: x + 1, ROW, memory_limit=1 << 20)
    assert result.max_batch_size == 512
    assert result.memory_limit == 1 << 20
    for m in result.measurements:
        assert (m.argument_bytes, m.output_bytes) == (1024 * m.batch_size, 1024 * m.batch_size)
        assert m.total_bytes == 2048 * m.batch_size + m.temporary_bytes
        assert m.seconds is None or m.total_bytes <= 1 << 20
    smaller = recommend(lambda x: x + 1, ROW, memory_limit=(1 << 20) - 1)
    assert smaller.max_batch_size == 496  # 511 in multiples of 16
    assert 1 <= result.min_batch_size <= result.optimal_batch_size <= 512


def test_temporaries_count():
    def outer(x):  # needs a sorted copy [256, 256] of each record
        return jnp.sort(x[:, :, None] * x[:, None, :], axis=1).sum((1, 2))

    result = recommend(outer, ROW, memory_limit=64 << 20, sizes=(1, 2))
    assert result.max_batch_size < (64 << 20) // (256 * 256 * 4)
    (largest,) = (m for m in result.measurements if m.batch_size == result.max_batch_size)
    assert largest.temporary_bytes > 256 * 256 * 4 * largest.batch_size * 0.9
    assert largest.seconds is None
    assert largest.examples_per_second is None


def test_donated_arguments():
    state, batch = jnp.ones(1000), jnp.ones((4, 256))
    step = jax.jit(lambda s, x: (s * 2, x * 2), donate_argnums=(0, 1))
    result = recommend(step, state, batch, in_axes=(None, 0), memory_limit=1 << 20)
    assert not state.is_deleted()
    assert not batch.is_deleted()
    # Results reuse the arguments: 1 KiB per record and 4000 bytes for the state.
    (largest,) = (m for m in result.measurements if m.batch_size == result.max_batch_size)
    assert largest.argument_bytes == 4000 + 1024 * largest.batch_size
    assert largest.total_bytes < largest.argument_bytes + 4096
    assert result.max_batch_size > 900


def test_calls_are_timed_until_their_results_are_ready():
    def waits(x):
        time.sleep(0.005)
        return x

    @jax.jit
    def fn(x):
        return jax.pure_callback(waits, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    result = recommend(fn, np.ones((3, 4), np.float32), sizes=(1, 8))
    assert [m.batch_size for m in result.measurements if m.seconds] == [1, 8]
    assert all(m.seconds > 0.005 for m in result.measurements if m.seconds)


def test_rows_are_those_of_the_samples():
    seen = []

    def look(keys, x, label, scale):
        seen.append((np.asarray(x), np.asarray(label), float(scale)))
        return np.float32(0)

    @jax.jit
    def fn(batch, scale):
        keys = jax.random.key_data(batch["key"])
        result = jax.ShapeDtypeStruct((), np.float32)
        return jax.pure_callback(look, result, keys, batch["x"], batch["label"], scale)

    batch = {
        "key": jax.random.split(jax.random.key(1), 2),
        "x": np.array([[1, 2], [3, 4], [5, 6]]),  # the batch on the second axis
        "label": jnp.array([7, 8]),
    }
    in_axes = ({"key": 0, "x": 1, "label": 0}, None)
    recommend(fn, batch, 2.5, in_axes=in_axes, sizes=(1, 3))
    assert {x.shape for x, _, _ in seen} == {(3, 1), (3, 3)}
    for x, label, scale in seen:
        np.testing.assert_array_equal(x[0], [1, 2, 1][: x.shape[1]])
        np.testing.assert_array_equal(label, [7, 8, 7][: x.shape[1]])
        assert scale == 2.5


def test_shapes_without_values():
    shapes = (
        {"w": jax.ShapeDtypeStruct((256, 8), jnp.bfloat16), "unused": 1.0},
        jax.ShapeDtypeStruct((64, 256), jnp.bfloat16),
        jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 64)),
        jax.ShapeDtypeStruct((64,), jnp.int32),
    )

    def fn(params, x, keys, label):
        y = x @ params["w"]
        y += jax.vmap(lambda key: jax.random.normal(key, (8,)))(keys)
        return jnp.take_along_axis(y, label[:, None], 1)

    result = recommend(fn, *shapes, in_axes=(None, 0, 0, 0), memory_limit=1 << 24)
    assert result.max_batch_size > 64


def test_sharded_batches_are_multiples_of_the_devices():
    mesh = jax.make_mesh((4,), ("data",))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    fn = jax.jit(lambda w, x: x * w)
    options = {"in_axes": (None, 0), "memory_limit": 1 << 20}
    result = recommend(fn, np.ones(256, np.float32), ROW, sharding=sharding, **options)
    sizes = [m.batch_size for m in result.measurements]
    assert sizes[0] == 4
    assert all(size % 4 == 0 for size in sizes)
    # 1 MiB on each of four devices, including 1 KiB of weights.
    assert result.max_batch_size == 1984
    assert result.device.startswith("4 x ")
    sample = jax.device_put(np.ones((4, 256), np.float32), sharding)
    placed = recommend(fn, jnp.ones(256), sample, sizes=[8], **options)
    assert placed.max_batch_size == 1984


def test_pipeline_with_its_source():
    pipe = jk.from_source(records(500), batch_size=3, num_workers=1)
    pipe >>= jk.OperatorNode(lambda batch: {"x": batch["image"].astype(jnp.float32)})
    result = recommend(pipe, sizes=(8, 64))
    assert result.max_batch_size == 496  # of 500 records
    (at_64,) = (m for m in result.measurements if m.batch_size == 64)
    assert at_64.output_bytes == 64 * 6 * 6 * 3 * 4
    assert at_64.total_bytes >= 4 * 64 * 6 * 6 * 3 + 2 * at_64.output_bytes
    assert (pipe.epoch, len(pipe)) == (0, 167)  # unchanged


def test_batches_of_a_full_ring_are_not_timed(monkeypatch):
    sizes = []

    def recorded(pipe):
        for batch in epochs(pipe):
            sizes.append(len(batch["label"]))
            yield batch

    epochs = batch_trials._epochs
    monkeypatch.setattr(batch_trials, "_epochs", recorded)
    pipe = jk.from_source(records(40), 3, num_workers=1, prefetch_size=4)
    *_, time_calls = batch_trials.pipeline_trial(pipe).build(8)
    time_calls(1)
    # The ring of 4 and one more before the clock starts, then three; an epoch has five.
    assert sizes == [8] * (5 + 3)


def test_memory_of_a_pipeline():
    pipe = jk.from_source({"x": np.ones((4000, 256), np.float32)}, batch_size=7, prefetch_size=3)
    result = recommend(pipe >> jk.OperatorNode(lambda b: {"x": b["x"] + 1}), memory_limit=1 << 20)
    # Three batches in the ring and two outputs, 1 KiB per record: 204 records, and their keys.
    assert 192 <= result.max_batch_size <= 200


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pipelines_deliver_batches_of_the_other_size(num_workers):
    base = jk.from_source(records(23), 4, shuffle=True, num_workers=num_workers)
    calls = []
    counted = base >> (lambda batch: calls.append(len(batch["label"])) or batch) >> Cache()
    both = counted & counted >> (lambda batch: {"twice": 2 * batch["label"]})
    sizes = [{len(x) for x in batch.values()} for batch in Resized(both).pipeline(5)]
    assert sizes == [{5}] * 4
    assert set(calls) == {5}
    # Reading before a Rebatch is unchanged.
    calls.clear()
    again = Resized(counted >> Rebatch(9)).pipeline(7)
    rebatched = [len(batch["label"]) for batch in again]
    assert rebatched == [7, 7]
    assert set(calls) <= {4}


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_sizes_are_tried_where_the_pipeline_runs(monkeypatch, platform):
    monkeypatch.setattr(pipeline, "platform_of", lambda sharding: platform)
    placement = "host" if platform == "cpu" else "device"
    pipe = jk.from_source(records(60), 4) >> (lambda batch: batch) >> Compose([RandomCrop(3)])
    resized = Resized(pipe)
    for size in (2, 8):
        sized = resized.pipeline(size)
        resized.last_program(sized, size)
        assert len(next(iter(sized))["label"]) == size
        assert sized.explain().placement == placement
    assert pipe.explain().placement == placement


def test_sharded_pipeline():
    sharding = jax.NamedSharding(jax.make_mesh((4,), ("data",)), jax.P("data"))
    options = {"drop_remainder": True, "prefetch_size": 2, "sharding": sharding}
    pipe = jk.from_source(records(90), 8, **options)
    pipe >>= jk.OperatorNode(lambda batch: {"x": batch["image"] // 2})
    result = recommend(pipe, sizes=(4, 8))
    assert result.max_batch_size == 88
    (at_8,) = (m for m in result.measurements if m.batch_size == 8)
    # Each device holds 2 of the 8 records of the ring's two batches and of the copy.
    units = at_8.total_bytes - at_8.temporary_bytes - 2 * at_8.output_bytes
    assert 3 * 2 * 6 * 6 * 3 <= units <= 3 * 2 * (6 * 6 * 3 + 8)
    with pytest.raises(ValueError, match=r"multiples of 4 devices"):
        recommend(pipe, sizes=(4, 6))


def test_augmentation_is_the_default():
    result = recommend(sizes=(1, 2), memory_limit=10 << 20)
    for m in result.measurements:
        assert m.argument_bytes == m.batch_size * (256 * 256 * 3 + 8)
        assert m.output_bytes == m.batch_size * 224 * 224 * 3 * 4
    assert result.max_batch_size in (12, 13)  # 0.8 MB each


def test_default_limit_follows_the_process(monkeypatch):
    monkeypatch.setenv("JAXKERN_MEMORY_LIMIT", "4")
    result = recommend(jk.from_source(records(40), 4, num_workers=0), sizes=(1, 2))
    assert result.max_batch_size == 40
    assert 0 < result.memory_limit < 0.9 * 4 * 2**30


def test_text_and_plot(tmp_path):
    result = recommend(lambda x: x * 2, ROW, memory_limit=1 << 16, sizes=(1, 2))
    lines = str(result).splitlines()
    assert lines[0].startswith(f"batch size {result.optimal_batch_size} (from ")
    assert lines[2].split()[0] == "1"
    assert all(reason in lines for reason in result.reasons)
    assert result.plot(tmp_path / "sizes.png").read_bytes().startswith(b"\x89PNG")


MATRIX = np.ones((3, 2), np.float32)
PIPE = jk.from_source({"x": [1.0, 2.0]}, 1)
STATIC = jax.jit(lambda n, x: n * x, static_argnums=0)


@pytest.mark.parametrize(
    ("args", "options", "error", "fact"),
    [
        ((3,), {}, TypeError, "got 3"),
        ((None, MATRIX), {}, TypeError, "samples"),
        ((PIPE, MATRIX), {}, TypeError, "without samples"),
        ((jnp.sin,), {}, ValueError, "no argument has a batch axis"),
        ((jnp.sin, 3.0), {}, ValueError, r"argument 0 .*\(\)"),
        ((jnp.sin, {"a": np.float32(1)}), {}, ValueError, r"argument 0\['a'\]"),
        ((jnp.sin, MATRIX), {"in_axes": 2}, ValueError, r"\(3, 2\).*axis 2"),
        ((jnp.sin, MATRIX[:0]), {}, ValueError, "0 rows"),
        ((jnp.dot, MATRIX, MATRIX.T), {}, ValueError, r"0 has 3 rows and argument 1 has 2 rows"),
        ((jnp.sin, MATRIX), {"in_axes": (0, 0)}, ValueError, r"in_axes.*\(0, 0\)"),
        ((jnp.sin, MATRIX), {"in_axes": 0.5}, TypeError, "0.5"),
        ((jnp.sin, MATRIX), {"sizes": ()}, ValueError, "sizes"),
        ((jnp.sin, MATRIX), {"sizes": (0, 1)}, ValueError, "sizes is 0"),
        ((PIPE,), {"sizes": (3,)}, ValueError, "2 records"),
        ((jnp.sin, MATRIX), {"seconds": 0}, ValueError, "seconds"),
        ((jnp.sin, MATRIX), {"memory_limit": "1GB"}, ValueError, "memory_limit"),
        ((jnp.sin, MATRIX), {"memory_limit": -1}, ValueError, "memory_limit"),
        ((jnp.sin, MATRIX), {"memory_limit": 15}, ValueError, "at least 16 bytes.*of 1 "),
        ((jnp.sin, MATRIX), {"sharding": "data"}, TypeError, "sharding"),
        ((STATIC, 2, MATRIX), {"in_axes": (None, 0)}, ValueError, "static arguments"),
    ],
)
def test_invalid_arguments(args, options, error, fact):
    with pytest.raises(error, match=fact):
        recommend(*args, **options)
