"""Derivatives against differences of the oracle, and NaN and infinities in float images."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.image.draws import sample
from support.image.oracle import MATRICES, SIGNED, reference

import jaxkern as jk
from jaxkern import image as im

RNG = np.random.default_rng(5)
F32 = RNG.random((2, 7, 9, 3)).astype(np.float32)
MEAN, STD = np.asarray([0.3, 0.5, 0.6], np.float32), np.asarray([0.2, 0.4, 0.5], np.float32)
FILL, VALUE = np.asarray([0.1, 0.2, 0.3], np.float32), np.asarray([1.0, -1.0, 2.0], np.float32)


def chain(mean, std, fill, value, antialias):
    return im.Compose(
        [
            im.RandomResizedCrop((6, 5), antialias=antialias),
            im.Pad(1, fill=fill),
            im.RandomHorizontalFlip(),
            im.Normalize(mean, std),
            im.RandomErasing(value=value),
            im.MixUp(per_sample=True),
        ]
    )


CROP = {"top": [1, 0], "left": [2, 0], "height": [5, 7], "width": [4, 9]}
ERASE = {"top": [2, 0], "left": [1, 3], "height": [3, 2], "width": [2, 2]}
PARAMS = (
    {name: np.asarray(v, np.int32) for name, v in CROP.items()},
    {},
    {"flip": np.asarray([True, False])},
    {},
    {name: np.asarray(v, np.int32) for name, v in ERASE.items()} | {"erase": np.ones(2, bool)},
    {"lam": np.asarray([0.3, 0.8], np.float32)},
)


@pytest.mark.parametrize("antialias", [False, True])
def test_gradients_equal_differences(backend, antialias):
    weight = RNG.standard_normal((2, 8, 7, 3)).astype(np.float32)

    def loss(images, *constants):
        return jnp.sum(weight * chain(*constants, antialias).apply(images, PARAMS))

    arguments = (F32, MEAN, STD, FILL, VALUE)
    with jk.backend(backend):
        gradients = jax.jit(jax.grad(loss, argnums=range(5)))(*arguments)

    def oracle(images, *constants):
        aug = chain(MEAN, STD, FILL, VALUE, antialias)
        for transform, names in ((1, ("fill",)), (3, ("mean", "std")), (4, ("value",))):
            for name in names:
                at = ("mean", "std", "fill", "value").index(name)
                object.__setattr__(aug.transforms[transform], name, constants[at])
        return np.sum(weight * reference(aug, images, PARAMS, np.float32))

    for position, (name, got) in enumerate(
        zip(("images", "mean", "std", "fill", "value"), gradients, strict=True)
    ):
        direction = RNG.standard_normal(arguments[position].shape)
        moved = [
            [a if k != position else a + s * 1e-4 * direction for k, a in enumerate(arguments)]
            for s in (1, -1)
        ]
        expected = (oracle(*moved[0]) - oracle(*moved[1])) / 2e-4
        np.testing.assert_allclose(
            np.sum(np.asarray(got) * direction), expected, rtol=2e-3, atol=2e-3, err_msg=name
        )


def test_half_gradients_accumulate_in_float32(backend):
    """One source pixel feeds 4096 outputs: in bfloat16 the sum would stop at 256."""
    aug = im.Compose([im.Resize((64, 64), antialias=False)], dtype=np.float32)
    images = jnp.ones((1, 1, 1, 1), jnp.bfloat16)
    with jk.backend(backend):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(aug.apply(x, ({},)))))(images)
    assert gradient.dtype == jnp.bfloat16
    assert float(gradient[0, 0, 0, 0]) == 4096


def test_gradients_of_bicubic_and_mirrored_images_equal_differences(backend):
    """A chain that is linear in the images: one difference is exact."""
    pad = im.Pad((2, 0, 3, 1), padding_mode="reflect")
    resizes = [im.Resize((5, 6), "bicubic"), im.Resize((7, 4), "bicubic", antialias=False)]
    aug = im.Compose([resizes[0], pad, im.Normalize(0, 2), resizes[1]])
    params = ({}, {}, {}, {})
    weight = RNG.standard_normal((2, 7, 4, 3)).astype(np.float32)
    with jk.backend(backend):
        gradient = jax.jit(jax.grad(lambda x: jnp.sum(weight * aug.apply(x, params))))(F32)
    direction = RNG.standard_normal(F32.shape)
    expected = np.sum(weight * reference(aug, direction, params, np.float32))
    np.testing.assert_allclose(np.sum(np.asarray(gradient) * direction), expected, rtol=1e-4)


def test_forward_equals_reverse(backend):
    aug = im.Compose([im.RandomVerticalFlip(), im.Resize((4, 11)), im.Normalize(MEAN, STD)])
    params = ({"flip": np.asarray([True, False])}, {}, {})

    def f(x):
        return aug.apply(x, params)

    tangent = RNG.standard_normal(F32.shape).astype(np.float32)
    with jk.backend(backend):
        out, forward = jax.jit(lambda x, t: jax.jvp(f, (x,), (t,)))(F32, tangent)
        cotangent = RNG.standard_normal(out.shape).astype(np.float32)
        (back,) = jax.jit(lambda x, c: jax.vjp(f, x)[1](c))(F32, cotangent)
    np.testing.assert_allclose(
        np.vdot(cotangent, forward), np.vdot(np.asarray(back), tangent), rtol=1e-4
    )


SHAPE = (12, 15)


def images_with_nan_and_inf(count, seed=0):
    """Return images with NaN, infinities of both signs, and adjacent infinities of one sign."""
    rng = np.random.default_rng(seed)
    images = rng.random((count, *SHAPE, 3))
    for image in images:
        for value in (np.nan, np.inf, -np.inf):
            image[rng.integers(SHAPE[0]), rng.integers(SHAPE[1]), rng.integers(3)] = value
        image[3:5, 6:8, 0] = np.inf
    images[0] = rng.random((*SHAPE, 3))
    images[0, 4, 5] = np.nan
    return images


def weighted_sum(weights, image):
    """Compute weights [n, h] @ image [h, w, C] over the terms of nonzero weight."""
    terms = np.where((weights != 0)[:, :, None, None], image[None], 0)
    return (weights[:, :, None, None] * terms).sum(1)


def resize(image, size, kind):
    matrix = {**MATRICES, **SIGNED}[kind]
    down, across = (matrix(n, m) for n, m in zip(image.shape, size, strict=False))
    down, across = (np.where(np.abs(w) < 1e-9, 0, w) for w in (down, across))
    lines = weighted_sum(down, image)
    return np.moveaxis(weighted_sum(across, np.moveaxis(lines, 1, 0)), 0, 1)


def assert_same_values(got, expected, tolerance):
    got = np.asarray(got).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    infinite = np.isinf(expected)
    np.testing.assert_array_equal(np.isinf(got), infinite)
    np.testing.assert_array_equal(np.sign(got[infinite]), np.sign(expected[infinite]))
    known = np.isfinite(expected)
    np.testing.assert_allclose(got[known], expected[known], atol=tolerance)


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("size", [(4, 5), (22, 7), (7, 31)])
def test_resizing(run, kind, size):
    images = images_with_nan_and_inf(3).astype(np.float32)
    options = {"antialias": kind == "antialias"}
    aug = im.Compose([im.Resize(size, "nearest" if kind == "nearest" else "bilinear", **options)])
    with np.errstate(invalid="ignore"):
        expected = np.stack([resize(image.astype(np.float64), size, kind) for image in images])
    assert_same_values(run(aug, images, ({},)), expected, 1e-5)


@pytest.mark.parametrize("kind", SIGNED)
@pytest.mark.parametrize("size", [(4, 5), (12, 31)])
def test_bicubic(run, kind, size):
    """A negative weight changes the sign of an infinity, and a weight of 0 ignores it.

    One channel has NaN only, since sums of both infinities depend on the order of the passes.
    """
    images = images_with_nan_and_inf(3).astype(np.float32)
    images[1:, 0, :, 1] = np.nan
    aug = im.Compose([im.Resize(size, "bicubic", antialias=kind == "bicubic antialias")])
    with np.errstate(invalid="ignore"):
        expected = np.stack([resize(image.astype(np.float64), size, kind) for image in images])
    assert_same_values(run(aug, images, ({},)), expected, 1e-5)


CHAINS = {
    "crop": [im.RandomResizedCrop(6), im.RandomHorizontalFlip(), im.Normalize(0.5, 0.2)],
    "bilinear": [im.RandomVerticalFlip(), im.RandomResizedCrop(16, antialias=False)],
    "nearest": [im.RandomResizedCrop(6, interpolation="nearest"), im.RandomErasing(1.0)],
    "twice": [im.Resize((7, 9)), im.Pad(2), im.Resize((16, 6)), im.CenterCrop((18, 5))],
    "padded": [im.RandomCrop(13, padding=3, fill=0.5), im.RandomErasing(1.0, value=0.25)],
    "levels": [im.Resize((6, 6)), im.ToDtype(np.uint8, scale=True), im.Pad(1), im.Resize((9, 9))],
    "bytes": [im.Resize((6, 6), antialias=False), im.ToDtype(np.uint8, scale=True)],
    "mixup": [im.MixUp(1.0, per_sample=True), im.CutMix(1.0)],
}
OUTPUTS = {"bytes": np.uint8}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, np.float32) for name in CHAINS), ("crop", jnp.bfloat16), ("bilinear", np.float16)],
)
def test_kernel_and_twin_agree(name, dtype):
    images = jnp.asarray(images_with_nan_and_inf(4, 1), dtype)
    aug = im.Compose(CHAINS[name], OUTPUTS.get(name, dtype), "NCHW" if name == "crop" else "NHWC")
    if name == "mixup":  # its sampling takes long to compile
        lam, box = np.array([0.5, 0, 1, 0.25], "f4"), {"top": 2, "left": 3, "height": 5, "width": 6}
        params: Any = ({"lam": lam}, {"lam": np.float32(0.5), **box})
    else:
        params = sample(aug, jk.random.record_keys(0, 0, np.arange(4)), SHAPE)
    results = []
    for backend in ("jax", "native"):
        with jk.backend(backend):
            results.append(np.asarray(jax.jit(aug.apply)(images, params)).astype(np.float64))
    if name != "bytes":
        assert np.isnan(results[0]).any() == (name != "levels")
    level = 1 if name in ("bytes", "levels") else 0.03 if dtype is not np.float32 else 1e-4
    assert_same_values(results[1], results[0], level)


@pytest.mark.parametrize("lam", [0.0, 1.0, 0.25])
def test_mixing_ignores_images_of_weight_0(run, lam):
    images = np.array([np.nan, 1.0, np.inf, -np.inf], np.float32).reshape(4, 1, 1, 1)
    out = run(im.Compose([im.MixUp(1.0)]), images, ({"lam": np.float32(lam)},)).reshape(-1)
    own, partner = images.reshape(-1), np.roll(images.reshape(-1), 1)
    with np.errstate(invalid="ignore"):
        expected = own if lam == 1 else partner if lam == 0 else lam * own + (1 - lam) * partner
    np.testing.assert_array_equal(out, expected)


def test_values_that_a_traced_std_makes_infinite_do_not_spread(backend):
    """With a traced std of 0, the border and the erased box keep their constants."""
    images = np.full((1, 4, 4, 1), 9, np.uint8)
    box = {"top": 1, "left": 1, "height": 1, "width": 2, "erase": True}

    @jax.jit
    def normalized(std):
        aug = im.Compose(
            [im.Normalize(-1.0, std), im.RandomErasing(value=2.0), im.Pad(1, fill=3.0)]
        )
        return aug.apply(images, ({}, box, {}))

    with jk.backend(backend):
        out = np.asarray(normalized(jnp.zeros(1)))[0, :, :, 0]
    expected = np.full((6, 6), 3.0)
    expected[1:5, 1:5] = np.nan
    expected[2, 2:4] = 2.0
    np.testing.assert_array_equal(out, expected)


def test_gradients_of_finite_images_do_not_change():
    images = jnp.asarray(np.random.default_rng(0).random((2, 6, 7, 1)), jnp.float32)
    aug = im.Compose([im.Resize((4, 3)), im.MixUp(1.0)])

    def total(images, lam):
        weights = jnp.arange(24.0).reshape(2, 4, 3, 1)
        return (weights * aug.apply(images, ({}, {"lam": lam}))).sum()

    by_image, by_lam = jax.jit(jax.grad(total, (0, 1)))(images, jnp.ones(2))
    down, across = MATRICES["antialias"](6, 4), MATRICES["antialias"](7, 3)
    weights = np.arange(24.0).reshape(2, 4, 3)
    expected = np.einsum("nij,ih,jw->nhw", weights, down, across)
    np.testing.assert_allclose(by_image[..., 0], expected, rtol=1e-5)
    small = np.einsum("ih,jw,nhw->nij", down, across, np.asarray(images[..., 0], np.float64))
    by_oracle = (weights * (small - np.roll(small, 1, 0))).sum((1, 2))
    np.testing.assert_allclose(by_lam, by_oracle, rtol=1e-4)
