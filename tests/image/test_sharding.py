"""Would catch: a chain that gathers a sharded batch, or mixes wrongly across shards."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from support.image.draws import sample

import jaxkern as jk
from jaxkern import image as im

IMAGES = np.random.default_rng(0).integers(0, 256, (8, 20, 24, 3), np.uint8)
KEYS = jk.random.record_keys(0, 0, np.arange(8))
CROPS = im.Compose(
    [im.RandomResizedCrop(16), im.RandomHorizontalFlip(), im.Normalize(0.5, 0.25)],
    dtype=jnp.float32,
)


def sharded(kind, *values):
    mesh = jax.make_mesh((4,), ("batch",), axis_types=(kind,))
    put = lambda x: jax.device_put(x, NamedSharding(mesh, PartitionSpec("batch")))  # noqa: E731
    return mesh, jax.tree.map(put, values)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_a_sharded_batch_is_not_gathered(kind):
    params = sample(CROPS, KEYS, (20, 24))
    expected = CROPS.apply(IMAGES, params)
    mesh, (images, params) = sharded(kind, IMAGES, params)
    with jax.set_mesh(mesh):
        apply = jax.jit(CROPS.apply)
        text = apply.lower(images, params).compile().as_text()
        out = apply(images, params)
    for collective in ("all-gather", "all-to-all", "collective-permute", "all-reduce"):
        assert collective not in text
    assert "jaxkern.image_chain" in text
    assert out.sharding.shard_shape(out.shape)[0] == 2
    np.testing.assert_array_equal(out, expected)


def test_several_draws_of_a_sharded_batch_do_not_gather_it():
    several = sample(CROPS, jk.random.record_keys(0, 0, np.arange(24)), (20, 24))
    several = jax.tree.map(lambda x: jnp.reshape(x, (3, 8, *x.shape[1:])), several)
    draws = jax.vmap(CROPS.apply, in_axes=(None, 0))
    expected = draws(IMAGES, several)
    _, (images,) = sharded(AxisType.Auto, IMAGES)
    text = jax.jit(draws).lower(images, several).compile().as_text()
    assert "jaxkern.image_chain" in text
    assert "all-gather" not in text
    np.testing.assert_array_equal(jax.jit(draws)(images, several), expected)


LABELS = np.eye(8, dtype=np.float32)
RESIZED = im.Compose([im.Resize(12), im.CenterCrop(14), im.MixUp(0.4, per_sample=True)], "f4")
CROPPED = im.Compose(
    [im.RandomCrop(16, padding=2), im.RandomErasing(1.0), im.Pad(1), im.CutMix(1.0)], "f4"
)


class Gamma(im.Transform):
    parameters: ClassVar = {"gamma": "float"}

    def sample(self, key, size):
        return {"gamma": jax.random.uniform(key, minval=0.5, maxval=2.0)}

    def transform(self, image, params):
        return image.at[:2].set(image[:2] ** params["gamma"])


FLIPPED = im.Compose(
    [
        im.RandomResizedCrop(16),
        im.RandomHorizontalFlip(),
        im.RandomVerticalFlip(),
        im.ColorJitter(0.4, 0.4),
        Gamma(),
        im.ToDtype(np.float32, scale=True),
        im.Normalize(0.5, 0.2),
        im.MixUp(0.4),
    ]
)
OF_RAGGED = im.Compose([im.RandomResizedCrop(16), im.CutMix(1.0, per_sample=True)])
RAGGED = im.Ragged.from_list([x[: 20 - i % 3] for i, x in enumerate(IMAGES)])


def every_transform(keys, images, labels, ragged):
    return (
        RESIZED(keys, images, labels),
        CROPPED(keys, IMAGES, labels),  # images replicated on every device
        FLIPPED(keys, images, labels),
        OF_RAGGED(keys, ragged, labels),
    )


@pytest.fixture(scope="module")
def unsharded():
    return jax.jit(every_transform)(KEYS, IMAGES, LABELS, RAGGED)


def assert_same(got, expected):
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, atol=1e-5), got, expected)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_every_transform_on_a_mesh(kind, unsharded):
    mesh, (images, keys, labels) = sharded(kind, IMAGES, KEYS, LABELS)
    ragged = jax.device_put(RAGGED, NamedSharding(mesh, PartitionSpec()))
    with jax.set_mesh(mesh):
        got = jax.jit(every_transform)(keys, images, labels, ragged)
        assert_same(got, unsharded)
        if kind is AxisType.Explicit:
            assert all(jax.typeof(x).sharding.spec[0] == "batch" for x in jax.tree.leaves(got))
            assert_same(RESIZED(keys, images, labels), unsharded[0])  # outside of jit


def test_a_ragged_batch_of_the_host_on_an_explicit_mesh():
    aug = im.Compose([im.Resize(12), im.RandomCrop(8)])
    expected = jax.jit(aug)(KEYS, RAGGED)
    mesh, (keys,) = sharded(AxisType.Explicit, KEYS)
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.jit(aug)(keys, RAGGED), expected)


@pytest.mark.slow
def test_clips_and_their_targets_on_an_explicit_mesh():
    """Frames share the draw of their clip, and corners of boxes are points along one axis."""
    aug = jax.jit(im.Compose([im.RandomHorizontalFlip(), im.RandomCrop(16)]))
    clips = np.stack([IMAGES, IMAGES[:, ::-1]], axis=1)
    boxes = np.float32([[[3, 4, 12, 15], [0, 2, 24, 20]]] * 2)
    fields = {"image": clips, "mask": clips.astype(np.int32), "boxes": np.stack([boxes] * 8)}
    fields["keypoints"] = fields["boxes"][..., :2]
    expected = aug(KEYS, fields)
    mesh, (keys, fields) = sharded(AxisType.Explicit, KEYS, fields)
    with jax.set_mesh(mesh):
        got = aug(keys, fields)
        assert_same(got, expected)
        assert all(jax.typeof(x).sharding.spec[0] == "batch" for x in jax.tree.leaves(got))
