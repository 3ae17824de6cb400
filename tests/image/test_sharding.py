"""Would catch: a chain that gathers a sharded batch, or mixes wrongly across shards."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jaxkern as jk
from jaxkern import image as im

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 20, 24, 3), np.uint8)
KEYS = jk.random.record_keys(0, 0, np.arange(8))
CROPS = im.Compose(
    [im.RandomResizedCrop(16), im.RandomHorizontalFlip(), im.Normalize(0.5, 0.25)],
    dtype=jnp.float32,
)
MIXED = im.Compose([im.RandomCrop(16), im.MixUp(0.4), im.CutMix(1.0)], dtype=jnp.float32)


def sharded(kind, *values):
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(kind,))
    put = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch")))  # noqa: E731
    return mesh, jax.tree.map(put, values)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_batch_stays_where_it_is(kind):
    params = CROPS.sample(KEYS, (20, 24))
    wanted = CROPS.apply(IMAGES, params)
    mesh, (images, params) = sharded(kind, IMAGES, params)
    with jax.set_mesh(mesh):
        apply = jax.jit(CROPS.apply)
        text = apply.lower(images, params).compile().as_text()
        out = apply(images, params)
    for collective in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
        assert collective not in text
    assert "jaxkern.image_chain" in text
    assert out.sharding.shard_shape(out.shape)[0] == 2
    np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_mixing_rolls_over_shards(kind):
    labels = jnp.eye(8, dtype=jnp.float32)
    params = MIXED.sample(KEYS, (20, 24))
    wanted = MIXED.apply(IMAGES, params, labels=labels)
    mesh, (images, params, labels) = sharded(kind, IMAGES, params, labels)
    with jax.set_mesh(mesh):
        got = jax.jit(lambda x, p, y: MIXED.apply(x, p, labels=y))(images, params, labels)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, atol=1e-6)


def test_a_ragged_buffer_is_shared_by_all_shards():
    ragged = im.Ragged.from_list(list(IMAGES[:4]) + [x[:18, :20] for x in IMAGES[4:]])
    params = CROPS.sample(KEYS, ragged)
    wanted = CROPS.apply(ragged, params)
    mesh, (params,) = sharded(AxisType.Auto, params)
    with jax.set_mesh(mesh):
        out = jax.jit(CROPS.apply)(ragged, params)
    np.testing.assert_array_equal(out, wanted)
