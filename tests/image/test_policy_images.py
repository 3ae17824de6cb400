"""Policies and containers on images: native, in pure JAX, and transforms applied one by one."""

from __future__ import annotations

import itertools

import jax
import numpy as np
import pytest
from support.errors import raises

import jaxkern as jk
from jaxkern import image as im

native = pytest.mark.parametrize("backend", ["native"], indirect=True)

RNG = np.random.default_rng(4)
U8 = RNG.integers(0, 256, (6, 12, 17, 3), np.uint8)


def applied(transform, image, params):
    """Apply one transform to one image [H, W, C]."""
    return np.asarray(im.Compose([transform]).apply(image[None], (params,)))[0]


INNER = [im.RandomSolarize(100, p=1.0), im.RandomPosterize(2, p=1.0), im.RandomHorizontalFlip(1.0)]
INNER_PARAMS = {"0.apply": True, "1.apply": True, "2.flip": True}


def in_order(image, order):
    for position in order:
        name = "flip" if position == 2 else "apply"
        image = applied(INNER[position], image, {name: np.asarray([True])})
    return image


def test_random_order(run):
    orders = np.asarray(list(itertools.permutations(range(3))), np.int32)
    aug = im.Compose([im.RandomOrder(INNER)])
    out = run(aug, U8, ({"order": orders, **INNER_PARAMS},))
    for image, order, got in zip(U8, orders, out, strict=True):
        np.testing.assert_array_equal(got, in_order(image, order))


def test_random_choice_and_apply(run):
    choice = np.asarray([0, 1, 2, 1, 3, -1], np.int32)  # the last two are invalid
    apply = np.asarray([True, True, True, False, True, True])
    nested = im.RandomApply([im.RandomChoice(INNER)])
    params = {"apply": apply, "0.choice": choice}
    params |= {f"0.{name}": value for name, value in INNER_PARAMS.items()}
    out = run(im.Compose([nested]), U8, (params,))
    for n, got in enumerate(out):
        order = [choice[n]] if apply[n] and 0 <= choice[n] < 3 else []
        np.testing.assert_array_equal(got, in_order(U8[n], order))


def test_containers_reject_changes_of_channels():
    aug = im.Compose([im.RandomApply([im.Grayscale()])])
    with raises(ValueError, "transforms[0]:", "Grayscale", "3 channels"):
        aug.apply(U8, ({"apply": True},))


def slow(policy):
    return pytest.param(policy, marks=pytest.mark.slow)


# Each step of a policy is a separate program in pure JAX, which compiles for seconds.
SMALL = [im.TrivialAugmentWide(), slow(im.AugMix(mixture_width=2, chain_depth=1, all_ops=False))]
LARGE = [
    im.RandAugment(3, 12, interpolation="bilinear", fill=(9, 99, 199)),
    slow(im.AutoAugment("svhn")),
    slow(im.AugMix(alpha=0.7)),
]


def draws(aug, seed, images):
    keys = jax.random.split(jax.random.key(seed), len(images))
    return keys, jax.jit(lambda k: aug.sample(k, images.shape[1:3]))(keys)


@pytest.mark.parametrize("policy", SMALL, ids=lambda p: type(p).__name__)
def test_native_equals_pure_jax(policy):
    aug, images = im.Compose([policy]), np.tile(U8, (8, 1, 1, 1))
    _, params = draws(aug, 8, images)
    actual = {}
    for backend in ("native", "jax"):
        with jk.backend(backend):
            actual[backend] = np.asarray(jax.jit(aug.apply)(images, params))
    np.testing.assert_array_equal(actual["native"], actual["jax"])


@native
@pytest.mark.parametrize("policy", LARGE, ids=lambda p: type(p).__name__)
def test_the_same_in_any_batch(run, policy):
    aug, images = im.Compose([policy]), np.tile(U8, (3, 1, 1, 1))
    keys, params = draws(aug, 8, images)
    out = run(aug, images, params)
    assert (np.asarray(out) != images).any(axis=(1, 2, 3)).sum() > len(images) // 3
    alone = jax.jit(lambda k, x: aug(k, x))(keys[5:6], images[5:6])
    np.testing.assert_array_equal(alone[0], out[5])


def test_no_draw_compiles():
    aug = im.Compose([im.RandomOrder([im.RandAugment(1), im.RandomInvert()])])
    run = jax.jit(lambda keys: aug(keys, U8))
    for seed in range(3):
        run(jax.random.split(jax.random.key(seed), len(U8)))
    assert run._cache_size() == 1


@native
def test_aug_mix_is_a_mean_of_chains(run):
    """Compare with chains that run one by one, summed in float32 as in torchvision."""
    policy = im.AugMix()
    names = policy.OPS
    chains = [[("Equalize",)], [("Posterize", 2.0), ("Rotate", 20.0)], [("AutoContrast",)] * 3]
    op = np.full((2, 3, 3), -1, np.int32)
    magnitude = np.zeros((2, 3, 3), np.float32)
    for w, chain in enumerate(chains):
        for d, (name, *strength) in enumerate(chain):
            op[:, w, d], magnitude[:, w, d] = names.index(name), strength[0] if strength else 0
    weights = np.asarray([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], np.float32)
    m = np.asarray([0.25, 0.7], np.float32)
    params = {"op": op, "magnitude": magnitude, "weights": weights, "m": m}
    out = run(im.Compose([policy]), U8[:2], (params,))
    aug = im.Compose([im.TrivialAugmentWide(interpolation="bilinear")])
    single = jax.jit(aug.apply)
    for n in range(2):
        total = m[n] * U8[n].astype(np.float32)
        for w, chain in enumerate(chains):
            image = U8[n : n + 1]
            for name, *strength in chain:
                inputs = np.asarray([[strength[0] if strength else 0.0]], np.float32)
                position = np.asarray([[im.TrivialAugmentWide.OPS.index(name)]], np.int32)
                image = np.asarray(single(image, ({"op": position, "magnitude": inputs},)))
            share = weights[n, w] * (np.float32(1) - m[n])
            total = total + share * image[0].astype(np.float32)
        np.testing.assert_array_equal(out[n], total.astype(np.uint8))


@native
def test_aug_mix_with_weights_that_are_not_finite(run):
    policy, weights, m = im.AugMix(), RNG.random((6, 3)), RNG.random(6)
    m[1], weights[2, 0] = np.nan, np.inf
    op = RNG.integers(0, 13, (6, 3, 3)).astype(np.int32)
    params = ({"op": op, "magnitude": np.ones((6, 3, 3)), "weights": weights, "m": m},)
    out = run(im.Compose([policy]), U8, params)
    np.testing.assert_array_equal(out[1:3], U8[1:3])
    assert (np.asarray(out[3:]) != U8[3:]).any()


@native
def test_policies_of_other_images(run):
    """One channel, four channels with alpha, and images of one pixel."""
    invert = {"op": np.asarray([[-1, 13]] * 6, np.int32), "magnitude": np.zeros((6, 2), np.float32)}
    rgba = np.concatenate([U8, U8[..., :1]], axis=-1)
    out = run(im.Compose([im.AutoAugment()]), rgba, (invert,))
    np.testing.assert_array_equal(out, np.concatenate([255 - U8, U8[..., :1]], axis=-1))
    aug = im.Compose([im.RandAugment(1, 20)])
    for shape in ((84, 1, 1, 3), (84, 5, 4, 1), (84, 1, 9, 4)):
        op = np.arange(84, dtype=np.int32)[:, None] % 14
        magnitude = (100 * RNG.standard_normal((84, 1))).astype(np.float32)
        magnitude[:14] = np.nan
        images = RNG.integers(0, 256, shape, np.uint8)
        out = run(aug, images, ({"op": op, "magnitude": magnitude},))
        np.testing.assert_array_equal(out[:12], images[:12])  # NaN magnitudes
        assert (np.asarray(out) != images).any()
