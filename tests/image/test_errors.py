"""Bad input is an error at trace time that names the argument.

Would catch: a silent broadcast, a crash deep inside, a message that does not say what to do.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxkern import image as im

U8 = np.zeros((2, 6, 8, 3), np.uint8)
CROP = im.CenterCrop(4)
NAN = float("nan")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: im.RandomResizedCrop(0), "size=0 has a size below 1"),
        (lambda: im.RandomResizedCrop((3, 4, 5)), r"size=\(3, 4, 5\); wanted"),
        (lambda: im.RandomResizedCrop(2.5), "size=2.5; wanted a positive integer"),
        (lambda: im.RandomResizedCrop(4, scale=(NAN, 1)), "scale=.*finite"),
        (lambda: im.RandomResizedCrop(4, scale=(-0.1, 1)), "scale=.*above 0"),
        (lambda: im.RandomResizedCrop(4, scale=(0.9, 0.1)), "scale=.*increasing"),
        (lambda: im.RandomResizedCrop(4, ratio=(0, 1)), "ratio=.*above 0"),
        (lambda: im.RandomResizedCrop(4, interpolation="lanczos"), "'lanczos'; wanted one of"),
        (lambda: im.Resize((4, 4), max_size=9), "max_size goes only with an integer size"),
        (lambda: im.Resize(9, max_size=9), "max_size=9 must be above size=9"),
        (lambda: im.CenterCrop(-1), "size=-1 has a size below 1"),
        (lambda: im.Pad(-1), "padding=-1; wanted .* none below 0"),
        (lambda: im.Pad((1, 2, 3)), r"padding=\(1, 2, 3\)"),
        (lambda: im.Pad(1, padding_mode="wrap"), "padding_mode='wrap'; wanted one of"),
        (lambda: im.RandomCrop(4, padding_mode="mean"), "padding_mode='mean'; wanted one of"),
        (
            lambda: im.Pad(1, fill=[1, 2, 3], padding_mode="edge"),
            "padding_mode='edge' does not use fill=",
        ),
        (lambda: im.Pad(1, fill="black"), "fill='black'"),
        (lambda: im.Pad(1, fill=[1, 2]), "fill=.*one number per channel"),
        (lambda: im.RandomHorizontalFlip(1.5), "p=1.5; wanted a probability"),
        (lambda: im.RandomVerticalFlip(NAN), "p=nan; wanted a probability"),
        (lambda: im.Normalize([0.5] * 3, [1, 0, 1]), "std=.*holds a 0"),
        (lambda: im.Normalize([0.5] * 3, [1] * 4), "mean has 3 values and std 4"),
        (lambda: im.Normalize(NAN, 1), "mean=nan is not finite"),
        (lambda: im.RandomErasing(value="noise"), "or .random."),
        (lambda: im.RandomErasing(scale=(0.1, 2)), "at most 1"),
        (lambda: im.RandomErasing(p=-1), "p=-1; wanted a probability"),
        (lambda: im.MixUp(alpha=0), "alpha=0; wanted a finite number above 0"),
        (lambda: im.CutMix(alpha=NAN), "alpha=nan"),
        (lambda: im.Compose([]), "transforms is empty"),
        (lambda: im.Compose([CROP], layout="HWC"), "layout='HWC'; wanted one of 'NHWC', 'NCHW'"),
    ],
)
def test_constructor_values(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: im.ToDtype(np.float64), "dtype=float64; wanted uint8, float16"),
        (lambda: im.ToDtype("image"), "'image' is not a dtype"),
        (lambda: im.Compose([CROP], dtype=np.int32), "dtype=int32; wanted"),
        (lambda: im.Compose([CROP, "flip"]), r"transforms\[1\] is 'flip'"),
        (lambda: im.Compose(CROP), "wanted a list of transforms"),
        (lambda: jax.jit(lambda n: im.CenterCrop(n))(4), "size is traced, but it fixes shapes"),
        (lambda: jax.jit(lambda p: im.RandomHorizontalFlip(p))(0.5), "p is traced"),
    ],
)
def test_constructor_types(make, message):
    with pytest.raises(TypeError, match=message):
        make()


def test_a_transform_that_does_nothing():
    class Unfinished(im.Transform):
        pass

    with pytest.raises(NotImplementedError, match="Unfinished does not say what it does"):
        im.Compose([Unfinished()])(jax.random.key(0), U8)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (U8[0], ValueError, r"images has shape \(6, 8, 3\); wanted .*images\[None\]"),
        (np.zeros((2, 3, 6, 8), np.uint8), ValueError, "looks like NCHW, wanted NHWC"),
        (U8[..., :2], ValueError, "wanted 1, 3 or 4 channels"),
        (U8[:, :0], ValueError, "wanted a height and width from 1"),
        (U8.astype(bool), TypeError, "images has dtype bool"),
        (U8.astype(np.float64), TypeError, "images has dtype float64; wanted uint8"),
        (U8.astype(np.int32), TypeError, "images has dtype int32"),
        ([[1]], TypeError, "images is a list"),
    ],
)
def test_images(images, error, message):
    with pytest.raises(error, match=message):
        im.Compose([CROP]).apply(images, ({},))


GOOD = {"top": [0, 1], "left": [0, 0], "height": [2, 3], "width": [8, 8]}
GOOD = {name: np.asarray(value, np.int32) for name, value in GOOD.items()}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"top": np.zeros(3, np.int32)}, ValueError, r"\['top'\] has shape \(3,\); wanted \(2,\)"),
        ({"top": np.zeros((2, 1), np.int32)}, ValueError, r"\['top'\] has shape \(2, 1\)"),
        ({"top": np.zeros(2, np.float32)}, TypeError, r"\['top'\] has dtype float32; wanted int"),
        ({"angle": np.zeros(2)}, ValueError, r"missing \[\] and unknown \['angle'\]"),
        ({"left": None}, ValueError, r"missing \['left'\]"),
        ({"top": np.asarray([0, 4], np.int32)}, ValueError, "top=4 and height=3 of image 1 leave"),
        ({"width": np.asarray([0, 8], np.int32)}, ValueError, "left=0 and width=0 of image 0"),
        ({"left": np.asarray([-1, 0], np.int32)}, ValueError, "left=-1 and width=8 of image 0"),
    ],
)
def test_params_of_a_crop(change, error, message):
    given = {name: value for name, value in {**GOOD, **change}.items() if value is not None}
    with pytest.raises(error, match=message):
        im.Compose([im.RandomResizedCrop(4)]).apply(U8, (given,))


def test_params_structure():
    aug = im.Compose([CROP, im.RandomHorizontalFlip()])
    with pytest.raises(ValueError, match="params is 1; wanted 2 dicts"):
        aug.apply(U8, ({},))
    with pytest.raises(TypeError, match=r"params\[1\] \(RandomHorizontalFlip\) is a int"):
        aug.apply(U8, ({}, 1))
    with pytest.raises(TypeError, match=r"\['flip'\] has dtype int64; wanted bool"):
        aug.apply(U8, ({}, {"flip": np.zeros(2, np.int64)}))


def test_channels_and_sizes():
    with pytest.raises(ValueError, match=r"mean has shape \(3,\), but the images have 1 channels"):
        im.Compose([im.Normalize([0.5] * 3, 1)]).apply(U8[..., :1], ({},))
    with pytest.raises(ValueError, match=r"fill has shape \(4,\), but the images have 3"):
        im.Compose([im.Pad(1, fill=[1, 2, 3, 4])]).apply(U8, ({},))
    with pytest.raises(ValueError, match="set pad_if_needed=True or resize first"):
        im.Compose([im.RandomCrop(7)]).apply(U8, ({"top": 0, "left": 0},))
    with pytest.raises(ValueError, match="top=3 and size=4 of image 0 leave"):
        im.Compose([im.RandomCrop(4)]).apply(U8, ({"top": 3, "left": 0},))


@pytest.mark.parametrize(("mode", "most"), [("reflect", 5), ("symmetric", 6)])
def test_borders_too_wide_to_mirror(mode, most):
    message = f"'{mode}' with a border of {most + 1} pixels, but the image's height is 6; wanted at"
    im.Compose([im.Pad((0, most), padding_mode=mode)]).apply(U8)
    with pytest.raises(ValueError, match=f"Pad: .*{message}"):
        im.Compose([im.Pad((0, most + 1), padding_mode=mode)]).apply(U8)
    crop = im.RandomCrop(4, padding=(0, 0, 0, most + 1), padding_mode=mode)
    with pytest.raises(ValueError, match=f"RandomCrop: .*{message}"):
        im.Compose([crop]).apply(U8, ({"top": 0, "left": 0},))
    im.Compose([im.Pad((0, 20), padding_mode="edge")]).apply(U8)


def test_keys_and_size():
    aug, key = im.Compose([im.RandomCrop(4)]), jax.random.key(0)
    with pytest.raises(ValueError, match="keys holds one key; wanted one per image"):
        aug.sample(key, (6, 8))
    with pytest.raises(ValueError, match="keys holds 3 keys and the batch 2 images"):
        aug(jax.random.split(key, 3), U8)
    with pytest.raises(TypeError, match="keys is int"):
        aug(0, U8)
    with pytest.raises(TypeError, match=r"keys is float32 \(2,\)"):
        aug(jnp.zeros(2), U8)
    with pytest.raises(ValueError, match="height=0; wanted 1 to"):
        aug.sample(jax.random.split(key, 2), (0, 8))
    with pytest.raises(ValueError, match=r"wanted an integer, or an integer array \[2\]"):
        aug.sample(jax.random.split(key, 2), (np.zeros(3, np.int32), 8))


def test_labels():
    aug = im.Compose([im.MixUp()])
    with pytest.raises(TypeError, match=r"labels is int64 \(2,\).*one_hot"):
        aug.apply(U8, ({"lam": 0.5},), np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="labels has 3 rows and the batch 2 images"):
        aug.apply(U8, ({"lam": 0.5},), np.zeros((3, 5), np.float32))


def test_mixing_ragged_sizes():
    batch = im.Ragged.from_list([U8[0], U8[0, :3]])
    keys = jax.random.split(jax.random.key(0), 2)
    with pytest.raises(ValueError, match="mixes images of different sizes"):
        im.Compose([im.MixUp()]).sample(keys, batch)


def test_hostile_boxes_are_clamped_in_pure_jax():
    """Traced boxes cannot be checked at trace time: pure JAX clamps them into the image."""
    import jaxkern as jk

    images = jnp.asarray(np.random.default_rng(0).random((2, 6, 8, 3)), jnp.float32)
    boxes = {
        "top": jnp.asarray([-100, 2**30], jnp.int32),
        "left": jnp.asarray([2**31 - 1, -(2**31)], jnp.int32),
        "height": jnp.asarray([2**31 - 1, -5], jnp.int32),
        "width": jnp.asarray([0, 2**31 - 1], jnp.int32),
    }
    for antialias in (False, True):
        aug = im.Compose([im.RandomResizedCrop(4, antialias=antialias)])
        with jk.backend("jax"):
            out = np.asarray(jax.jit(aug.apply)(images, (boxes,)))
        assert np.isfinite(out).all()
        assert out.min() >= 0
        assert out.max() <= 1 + 1e-6
