"""uint16 images: levels of 16 bits in float32 arithmetic, against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from support.errors import raises

from jaxkern import image as im

IMAGES = np.random.default_rng(0).integers(0, 65536, (3, 9, 12, 1), np.uint16)
IMAGES[0, 0, :2, 0] = [0, 65535]


def test_crops_keep_levels_and_values_are_rounded():
    aug = im.Compose([im.RandomCrop((7, 8)), im.RandomHorizontalFlip()])
    params = ({"top": 1, "left": 2}, {"flip": np.bool_([1, 0, 1])})
    out = aug.apply(IMAGES, params)
    assert out.dtype == np.uint16
    expected = IMAGES[:, 1:8, 2:10].copy()
    expected[::2] = expected[::2, :, ::-1]
    np.testing.assert_array_equal(out, expected)
    half = im.Compose([im.Resize((3, 4), antialias=False)]).apply(IMAGES)
    np.testing.assert_array_equal(half, IMAGES[:, 1::3, 1::3])  # the centre of three
    assert im.Compose([im.RandomInvert(1.0)])(jax.random.key(0), IMAGES).dtype == np.uint16
    dark = im.Compose([im.RandomInvert()]).apply(IMAGES, ({"apply": True},))
    np.testing.assert_array_equal(dark, 65535 - IMAGES)


def test_floats_are_fractions_of_65535():
    values = IMAGES / 65535.0
    out = im.Compose([im.Normalize(0.4, 0.3)]).apply(IMAGES)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, (values - 0.4) / 0.3, atol=1e-6)
    out = im.Compose([im.ToDtype(jnp.float32, scale=True)]).apply(IMAGES)
    np.testing.assert_allclose(out, values, atol=1e-7)
    out = im.Compose([im.Normalize(1000, 2)], scale=False).apply(IMAGES)
    np.testing.assert_allclose(out, (IMAGES - 1000.0) / 2, rtol=1e-6)
    twice = np.float32([-1, 0.5 / 65535, 1.5 / 65535, 2, np.nan]).reshape(1, 1, 5, 1)
    out = im.Compose([im.CenterCrop((1, 5))], dtype=np.uint16).apply(twice)
    assert out.dtype == np.uint16
    assert np.asarray(out)[0, 0, :, 0].tolist() == [0, 0, 2, 65535, 0]


def test_invalid_chains():
    with raises(ValueError, "ToDtype", "scale=True"):
        im.Compose([im.ToDtype(jnp.float32)]).apply(IMAGES)
    for transform, name in (
        (im.Pad(1, fill=30000), "fill=30000 / 65535"),
        (im.RandomErasing(value=[9, 0, 0]), "value up to 1"),
        (im.RandomApply([im.RandomSolarize(128)]), "threshold up to 1"),
    ):
        with raises(ValueError, name):
            im.Compose([transform]).apply(IMAGES)
    for transform in (im.RandomOrder([im.ColorJitter(0.4)]), im.RandAugment(), im.GaussianNoise()):
        with raises(ValueError, "0 to 1", "scale=True"):
            im.Compose([transform], scale=False).apply(IMAGES)
    struct = jax.ShapeDtypeStruct((9, 12, 1), np.uint8)
    with raises(ValueError, "uint16"):
        im.ChainProducer(im.Compose([im.CenterCrop(4)], dtype="uint16"), struct)
    with raises(TypeError, "uint16"):
        im.ChainProducer(im.Compose([im.CenterCrop(4)]), jax.ShapeDtypeStruct((9, 9, 1), np.uint16))
