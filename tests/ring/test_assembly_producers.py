"""Image chains that native threads run straight into batches.

Would catch: an augmentation that differs from `Compose.apply` on the same parameters, parameters of
another record, a plan or parameters that the native side trusts, an epoch that recompiles.
"""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import image as im
from jaxkern.image import ChainProducer, Compose, Normalize, RandomCrop


def bits(array) -> bytes:
    return np.ascontiguousarray(np.asarray(array)).tobytes()


def test_a_producer_that_refuses_fails_its_batch_only():
    """Parameters that the kernel refuses: the batch's error, and later batches follow."""

    class Broken(ChainProducer):
        def operands(self, records):
            operands = super().operands(records)
            operands[0] = operands[0].copy()
            operands[0][records == 5, 0, 0] = 99  # a crop outside the image
            return operands

    images = np.zeros((12, 8, 8, 3), np.uint8)
    aug = Compose([RandomCrop(4), Normalize(0.5, 0.5)])
    producers = {"x": Broken(aug, images[0])}
    with jk.ring.Assembly({"x": images}, np.arange(12), 2, producers=producers) as batches:
        assert len([next(batches), next(batches)]) == 2
        with raises(jk.ring.ProducerError, "batch 2", "record 5", "'geometry'"):
            next(batches)
        assert len(list(batches)) == 3


# Pipelines test others: pipeline/test_native.py.
CHAINS = {
    "crop": Compose([im.RandomResizedCrop(16), im.RandomHorizontalFlip(), Normalize(0.4, 0.3)]),
    "policy": Compose(
        [im.RandomResizedCrop(16), im.RandAugment(2, 9), im.RandomHorizontalFlip(),
         im.RandomInvert(), Normalize(0.4, 0.3), im.RandomErasing(1.0)],
        layout="NCHW",
    ),
    "colours alone": Compose([im.RandomInvert(), im.RandomPosterize(2)]),
    "nothing between": Compose([RandomCrop(20), im.ColorJitter(), Normalize(0.5, 0.5)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_equals_apply_on_the_same_parameters(name):
    aug = CHAINS[name]
    images = np.random.default_rng(0).integers(0, 256, (30, 24, 32, 3), np.uint8)
    order = np.random.default_rng(1).permutation(30)
    producer = ChainProducer(aug, images[0], seed=7, epoch=2)
    arrays = {"image": images, "label": np.arange(30)}
    options = {"remainder": "pad", "producers": {"image": producer}, "workers": 2}
    with jk.ring.Assembly(arrays, order, 8, **options) as batches:
        for i, batch in enumerate(batches):
            records = order[8 * i : 8 * i + 8]
            params = aug.sample(jk.random.record_keys(7, 2, records), (24, 32))
            expected = jax.jit(aug.apply)(images[records], params)
            assert batch["image"].dtype == expected.dtype
            assert batch["image"].shape[1:] == expected.shape[1:]
            assert bits(batch["image"][: len(records)]) == bits(expected)
            assert not any(bits(batch["image"][len(records) :]))
            assert batch["label"][: len(records)].tolist() == records.tolist()
        assert i == 3


def test_another_epoch_draws_anew_and_compiles_nothing():
    images = np.zeros((4, 16, 16, 3), np.uint8)
    producer = ChainProducer(CHAINS["crop"], images[0])
    first = producer.operands(np.arange(4))
    compiled = producer._sampler.sample._cache_size()
    other = producer.at(0, 1)
    assert bits(other.operands(np.arange(4))[0]) != bits(first[0])
    assert bits(other.at(0, 0).operands(np.arange(4))[0]) == bits(first[0])
    assert other._sampler.sample._cache_size() == compiled


def test_a_chain_that_changes_nothing_copies():
    images = np.random.default_rng(0).integers(0, 256, (6, 4, 4, 1), np.uint8)
    producer = ChainProducer(Compose([im.RandomHorizontalFlip(0.0)]).eval(), images[0])
    with jk.ring.Assembly({"x": images}, np.arange(6), 3, producers={"x": producer}) as batches:
        np.testing.assert_array_equal(np.concatenate([b["x"] for b in batches]), images)


def test_chains_that_cannot_be_run_record_by_record():
    with raises(ValueError, "MixUp"):
        ChainProducer(Compose([im.MixUp(0.2)]), np.zeros((4, 4, 3), np.uint8))
    with raises(ValueError, "channels"):
        ChainProducer(Compose([im.Grayscale(1)]), np.zeros((4, 4, 3), np.uint8))
    producer = ChainProducer(CHAINS["crop"], np.zeros((4, 4, 3), np.uint8))
    arrays = {"x": np.zeros((5, 4, 5, 3), np.uint8)}
    with raises(ValueError, "48"):  # rows of other images
        jk.ring.Assembly(arrays, np.arange(4), 2, producers={"x": producer})


def test_plans_are_checked_natively():
    library = jk.core.registry.module("cpu")
    plan = {"filter": [0], "size": [4, 4], "erasures": [0], "rounding": [0], "layout": 0}
    plan |= {"segments": [1], "steps": [0], "dtype": [3], "channels": 3, "source_dtype": 0}
    plan |= {"codes": [], "interpolation": [], "kernel": [], "warp_fill": []}
    size = {"height": 4, "width": 4}
    assert library.image_chain_producer(library.image_stages(**plan, **size), 4, 4) is not None
    step = {"steps": [1], "codes": [1], "interpolation": [0], "kernel": [1, 1]}
    step |= {"warp_fill": [0.0] * 3}
    alone = {"filter": [], "size": [], "erasures": [], "rounding": [], "segments": [0], **step}
    for changed, problem in (
        ({"filter": [9]}, "'filter' of segment 0"),
        ({"size": [4]}, "1 filters, 1 sizes"),
        ({"size": [0, 4]}, "'height'"),
        ({"erasures": [99]}, "'erasures'"),
        ({"channels": 2}, "'channels'"),
        ({"dtype": [0]}, "'rounding'"),
        ({"dtype": [1], **step}, "'dtype' and 'layout' of stage 0"),
        ({**step, "kernel": [2, 1]}, "'kernel'.* 2"),
        ({**step, "steps": [2]}, "1 codes"),
        ({"segments": [-1]}, "'segments', 'steps'"),
        ({"segments": [1] * 9}, "describe 9, 1 and 1"),
        (alone, "'segments' of stage 0"),
    ):
        with pytest.raises(ValueError, match=problem):
            library.image_stages(**{**plan, **size, **changed})
    with raises(ValueError, "0 x 4"):
        library.image_chain_producer(library.image_stages(**plan, **size), 0, 4)
    first = library.image_stages(**{**plan, **size, **alone, "dtype": [0]})
    with raises(ValueError, "4 x 4", "5 x 4"):
        library.image_chain_producer(first, 5, 4)
    source = {"blobs": [], "in_files": False, "codec": 1, "max_pixels": 9, "scaled": False}
    with raises(ValueError, "chain"):
        library.image_encoded_producer(first, **source)
    with raises(TypeError, "image_encoded_producer"):  # an address is not an array
        library.image_encoded_producer(first, **{**source, "blobs": [(4096, 1)]})
