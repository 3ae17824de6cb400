"""Would catch: a crop outside its image without an error, and eval chains that need parameters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxkern as jk
from jaxkern import image as im

IMAGES = np.random.default_rng(0).integers(1, 256, (2, 16, 20, 3), np.uint8)


@pytest.mark.parametrize("top", [100, -1, 13])
def test_a_crop_outside_the_image_is_an_error_of_the_call(top):
    aug = im.Compose([im.RandomCrop(4)])
    params = ({"top": jnp.array([top, 0]), "left": jnp.array([0, 0])},)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)):
        jax.block_until_ready(jax.jit(aug.apply)(IMAGES, params))


def test_a_ragged_image_smaller_than_the_crop_is_an_error():
    ragged = im.Ragged.from_list([IMAGES[0], IMAGES[1][:4, :4]])
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)):
        jax.block_until_ready(im.Compose([im.RandomCrop(8)])(jax.random.key(0), ragged))


def test_a_crop_beyond_a_resized_image_is_zero():
    aug = im.Compose([im.Resize((12, 12)), im.RandomCrop(8)])
    params = ({}, {"top": jnp.array([8, 0]), "left": jnp.array([0, 0])})
    out = np.asarray(aug.apply(IMAGES, params))
    assert (out[0, 4:] == 0).all()
    assert out[0, :4].any()


def test_eval_chains_need_no_parameters():
    aug = im.Compose([im.RandomResizedCrop(8), im.Normalize(0.5, 0.5)]).eval()
    out = aug.apply(IMAGES)
    np.testing.assert_array_equal(out, aug(jax.random.key(0), IMAGES))


def test_keys_are_of_one_kind_whatever_the_default():
    with jax.default_prng_impl("rbg"):
        keys = jk.random.record_keys(0, 0, np.arange(8))
        some = jk.random.record_keys(0, 0, np.arange(4, 8))
        aug = im.Compose([im.RandomCrop(8)])
        complete, part = aug.sample(keys, (64, 64)), aug.sample(some, (64, 64))
    np.testing.assert_array_equal(complete[0]["top"][4:], part[0]["top"])
