"""Epochs: would catch records lost or doubled over batches and shards, batches that depend on the
workers, wrong remainders, lengths and specs, and epochs that do not advance."""

from __future__ import annotations

import gc

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.pipeline.batches import (
    arrays,
    column,
    epoch_of,
    pipeline_threads,
    wait_for_no_threads,
)

import jaxkern as jk
from jaxkern import image as im


@settings(deadline=None, max_examples=40)
@given(
    records=st.integers(1, 70),
    batch_size=st.integers(1, 12),
    count=st.integers(1, 5),
    shuffle=st.booleans(),
    remainder=st.sampled_from(["partial", "pad", "drop"]),
)
def test_each_record_once_over_all_shards(records, batch_size, count, shuffle, remainder):
    seen, lengths = [], set()
    pad, drop = remainder == "pad", remainder == "drop"
    full = records // (batch_size * count)  # batches of each shard
    for index in range(count):
        if (drop and not full) or (remainder == "partial" and index >= records):
            continue  # a shard without a batch is refused
        pipe = jk.from_source(
            {"record": np.arange(records)},
            batch_size,
            shuffle=shuffle,
            seed=4,
            num_workers=index % 2,
            drop_remainder=drop,
            pad_remainder=pad,
            shard=(index, count),
        )
        batches = epoch_of(pipe)
        assert len(batches) == len(pipe)
        lengths.add(len(pipe))
        for batch in batches:
            if pad:
                assert batch["record"].shape == batch["mask"].shape == (batch_size,)
            seen += batch["record"][batch["mask"] if pad else ...].tolist()
        sizes = [len(batch["record"]) for batch in batches]
        assert sizes[:-1] == [batch_size] * (len(batches) - 1)
        assert 1 <= sizes[-1] <= batch_size
    assert len(seen) == len(set(seen)) == (full * batch_size * count if drop else records)
    assert set(seen) <= set(range(records))
    if pad or (drop and full):
        assert len(lengths) == 1


def test_in_order_without_shuffle():
    source = arrays(10)
    batches = epoch_of(jk.from_source(source, 4))
    assert [len(batch["record"]) for batch in batches] == [4, 4, 2]
    for field, array in source.items():
        np.testing.assert_array_equal(column(batches, field), array)


def test_fields_of_a_shuffled_record_stay_together():
    source = arrays(50)
    batches = epoch_of(jk.from_source(source, 8, shuffle=True))
    order = column(batches, "record")
    assert order.tolist() != sorted(order.tolist())
    np.testing.assert_array_equal(column(batches, "image"), source["image"][order])
    np.testing.assert_array_equal(column(batches, "label"), source["label"][order])


AUGMENT = im.Compose([im.RandomCrop(4), im.RandomHorizontalFlip(0.5), im.Normalize(0.5, 0.5)])


@pytest.fixture(scope="module")
def reference():
    """Two epochs of an augmented pipeline without workers."""
    pipe = augmented(0, batch_size=6)
    return [epoch_of(pipe), epoch_of(pipe)]


def augmented(num_workers, batch_size):
    base = jk.from_source(arrays(), batch_size, shuffle=True, seed=9, num_workers=num_workers)
    return base >> shifted >> jk.OperatorNode(AUGMENT)


def shifted(batch):
    return {**batch, "label": batch["label"] + 1}


def test_augmentation_does_not_depend_on_the_batch_size(reference):
    batches = epoch_of(augmented(2, 11))
    for field in ("record", "label", "image"):
        np.testing.assert_array_equal(column(batches, field), column(reference[0], field))


def test_epochs_differ(reference):
    first, second = reference
    assert column(first, "record").tolist() != column(second, "record").tolist()
    by_record = [
        column(epoch, "image")[np.argsort(column(epoch, "record"))] for epoch in (first, second)
    ]
    assert (by_record[0] != by_record[1]).any()


def test_compose_gets_the_keys_of_the_records(reference):
    source = arrays()
    records = column(reference[1], "record")
    keys = jk.random.record_keys(9, 1, records)
    expected = jax.jit(lambda k, i: AUGMENT(k, i))(keys, source["image"][records])
    np.testing.assert_allclose(column(reference[1], "image"), expected, atol=1e-6)


def test_length_and_spec_come_before_the_batches():
    pipe = augmented(2, 6)
    spec = pipe.element_spec
    assert len(pipe) == 4
    assert (spec["image"].shape, spec["image"].dtype) == ((6, 4, 4, 3), np.float32)
    assert spec["label"].shape == (6,)
    assert pipe.epoch == 0
    first = next(iter(pipe))
    assert {k: (v.shape, v.dtype) for k, v in first.items()} == {
        k: (v.shape, v.dtype) for k, v in spec.items()
    }


def test_batches_are_arrays_of_jax():
    for num_workers in (0, 2):
        for batch in jk.from_source(arrays(), 6, num_workers=num_workers):
            assert all(isinstance(value, jax.Array) for value in batch.values())


def test_kept_batches_stay_as_they_were():
    source = arrays(200)
    kept = list(jk.from_source(source, 3, num_workers=3, prefetch_size=2))
    np.testing.assert_array_equal(column(epoch_of(kept), "image"), source["image"])


def test_a_broken_off_iteration_ends_its_threads():
    before = pipeline_threads()
    # Python functions need threads of Python.
    iterator = iter(jk.from_source(arrays(500), 2, num_workers=3) >> (lambda batch: batch))
    list(zip(range(2), iterator, strict=False))  # the first batch is made where it is requested
    assert len(pipeline_threads() - before) == 3
    del iterator
    gc.collect()
    wait_for_no_threads(before)


def test_many_short_epochs():
    pipe = jk.from_source({"record": np.arange(3)}, 2, shuffle=True, num_workers=2)
    for _ in range(200):
        assert sorted(column(epoch_of(pipe), "record").tolist()) == [0, 1, 2]
    assert pipe.epoch == 200


def test_stats_tell_of_the_ring():
    iterator = iter(jk.from_source(arrays(), 6))
    assert iterator.stats() is None
    list(iterator)
    assert iterator.stats().batches == 4


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("nodes", [False, True])
def test_a_jitted_step_is_compiled_once(workers, nodes):
    """Weights that no device is named for stay so, whichever batch comes."""
    pipe = jk.from_source(arrays(64), 8, shuffle=True, num_workers=workers, drop_remainder=True)
    if nodes:
        pipe = pipe >> jk.OperatorNode(im.Compose([im.RandomCrop(4)]))
    step = jax.jit(lambda weight, batch: weight + batch["image"].sum(dtype=np.int32))
    weight = jax.numpy.zeros((), np.int32)
    for _ in range(2):
        for batch in pipe:
            assert not any(x.committed for x in batch.values())
            weight = step(weight, batch)
    assert step._cache_size() == 1


def test_batches_go_where_the_weights_are():
    """A batch without a sharding meets weights of another device, or of all of them."""
    pipe = jk.from_source(arrays(24), 8, num_workers=2)
    mesh = jax.make_mesh((2,), ("x",))
    everywhere = jax.NamedSharding(mesh, jax.P())
    for place in (jax.devices()[1], everywhere):
        weight = jax.device_put(np.float32(0), place)
        for batch in pipe:
            weight = jax.jit(lambda w, b: w + b["image"].sum())(weight, batch)
        assert weight.devices() == jax.device_put(0, place).devices()
        assert float(weight) == arrays(24)["image"].sum(dtype=np.float64)


def test_the_last_program_is_compiled_once_for_each_shape(caplog):
    for num_workers in (0, 2):
        pipe = jk.from_source({"x": np.arange(10)}, 4, num_workers=num_workers)
        pipe >>= jk.OperatorNode(lambda batch: {"x": batch["x"] + 1})
        with caplog.at_level("WARNING"), jax.log_compiles():
            assert len(list(pipe)) == 3
        compiled = [m for m in caplog.messages if m.startswith("Compiling jit(_trace)")]
        assert len(compiled) == 2  # batches of 4, and the last one of 2
        caplog.clear()
