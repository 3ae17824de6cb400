"""Invalid arguments and targets are errors at trace time with the argument's name and value."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.image.draws import sample

import jaxkern as jk
from jaxkern import image as im

U8 = np.zeros((2, 6, 8, 3), np.uint8)
CROP = im.CenterCrop(4)
POLICY = im.RandAugment()
FLIPS = [im.RandomHorizontalFlip()]
NAN = float("nan")
JITTER, BLUR = im.ColorJitter(0.4), im.Compose([im.GaussianBlur((5, 23))])
RAGGED = im.Ragged.from_list([U8[0], U8[1, :5]])


@pytest.mark.parametrize(
    ("make", "error", "facts"),
    [
        (lambda: im.RandomResizedCrop(0), ValueError, ("size:", "got 0")),
        (lambda: im.RandomResizedCrop((3, 4, 5)), ValueError, ("size:", "(3, 4, 5)")),
        (lambda: im.RandomResizedCrop(2.5), ValueError, ("size:", "2.5")),
        (lambda: im.RandomResizedCrop(4, scale=(NAN, 1)), ValueError, ("scale:", "nan")),
        (lambda: im.RandomResizedCrop(4, scale=(-1, 1)), ValueError, ("scale:", "above 0", "-1")),
        (lambda: im.RandomResizedCrop(4, scale=(0.9, 0.1)), ValueError, ("scale:", "(0.9, 0.1)")),
        (lambda: im.RandomResizedCrop(4, ratio=(0, 1)), ValueError, ("ratio:", "above 0")),
        (lambda: im.Resize(4, interpolation="lanczos"), ValueError, ("'bicubic'", "'lanczos'")),
        (lambda: im.Resize((4, 4), max_size=9), ValueError, ("max_size:", "got 9")),
        (lambda: im.Resize(9, max_size=9), ValueError, ("max_size:", "size=9")),
        (lambda: im.CenterCrop(-1), ValueError, ("size:", "-1")),
        (lambda: im.Pad(-1), ValueError, ("padding:", "from 0", "-1")),
        (lambda: im.Pad((1, 2, 3)), ValueError, ("padding:", "(1, 2, 3)")),
        (lambda: im.Pad(1, padding_mode="wrap"), ValueError, ("'symmetric'", "'wrap'")),
        (lambda: im.RandomCrop(4, padding_mode="mean"), ValueError, ("padding_mode:", "'mean'")),
        (lambda: im.Pad(1, [1, 2, 3], "edge"), ValueError, ("_mode:", "fill=[1, 2, 3]", "'edge'")),
        (lambda: im.Pad(1, fill="black"), ValueError, ("fill:", "'black'")),
        (lambda: im.Pad(1, fill=[1, 2]), ValueError, ("fill:", "[1, 2]")),
        (lambda: im.RandomHorizontalFlip(1.5), ValueError, ("p:", "1.5")),
        (lambda: im.RandomVerticalFlip(NAN), ValueError, ("p:", "nan")),
        (lambda: im.Normalize([0.5] * 3, [1, 0, 1]), ValueError, ("std:", "[1, 0, 1]")),
        (lambda: im.Normalize([0.5] * 3, [1] * 4), ValueError, ("mean and std:", "3 and 4")),
        (lambda: im.Normalize(NAN, 1), ValueError, ("mean:", "nan")),
        (lambda: im.RandomErasing(value="noise"), ValueError, ("value:", "'random'", "'noise'")),
        (lambda: im.RandomErasing(scale=(0.1, 2)), ValueError, ("scale:", "(0.1, 2)")),
        (lambda: im.RandomErasing(p=-1), ValueError, ("p:", "-1")),
        (lambda: im.MixUp(alpha=0), ValueError, ("alpha:", "got 0")),
        (lambda: im.CutMix(alpha=NAN), ValueError, ("alpha:", "nan")),
        (lambda: im.Compose([]), ValueError, ("transforms:",)),
        (lambda: im.Compose([CROP], layout="HWC"), ValueError, ("layout:", "'NCHW'", "'HWC'")),
        (lambda: im.ToDtype(np.float64), TypeError, ("dtype:", "uint8, float16", "float64")),
        (lambda: im.ToDtype("image"), TypeError, ("dtype:", "'image'")),
        (lambda: im.Compose([CROP], dtype=np.int32), TypeError, ("dtype:", "int32")),
        (lambda: im.Compose([CROP, "flip"]), TypeError, ("transforms[1]:", "'flip'")),
        (lambda: im.Compose(CROP), TypeError, ("transforms:", "CenterCrop")),
        (lambda: jax.jit(lambda n: im.CenterCrop(n))(4), TypeError, ("size:", "sets shapes")),
        (lambda: jax.jit(lambda p: im.RandomInvert(p))(0.5), TypeError, ("p:", "Python number")),
        (lambda: im.GaussianNoise(sigma=-1), ValueError, ("sigma:", "from 0", "-1")),
        (lambda: im.GaussianNoise(mean=NAN), ValueError, ("mean:", "nan")),
        (lambda: im.GaussianNoise("x"), TypeError, ("mean:", "'x'")),
        (lambda: im.ElasticTransform(sigma=(0, 1)), ValueError, ("sigma:", "(0, 1)")),
        (lambda: im.ElasticTransform(sigma=-1), ValueError, ("sigma:", "-1")),
        (lambda: im.ElasticTransform(sigma=200), ValueError, ("sigma:", "1601")),
        (lambda: im.ElasticTransform((1, 2, 3)), ValueError, ("alpha:", "(1, 2, 3)")),
        (lambda: im.ElasticTransform("x"), TypeError, ("alpha:", "'x'")),
        (lambda: im.ElasticTransform(interpolation="bicubic"), ValueError, ("interpolation:",)),
        (lambda: im.ElasticTransform(fill="red"), ValueError, ("fill:", "'red'")),
        (
            lambda: im.Compose([im.ElasticTransform()])(jax.random.key(0), U8),
            ValueError,
            ("ElasticTransform", "20 pixels"),
        ),
        (
            lambda: im.Compose([im.GaussianNoise()]).apply(U8, ({"seed": np.zeros(2)},)),
            TypeError,
            ("['seed']:", "int", "float64"),
        ),
        (lambda: im.RandAugment(num_ops=-1), ValueError, ("num_ops is -1", "from 0")),
        (lambda: im.RandAugment(num_ops=1.5), ValueError, ("num_ops is 1.5",)),
        (lambda: im.RandAugment(magnitude=31), ValueError, ("magnitude is 31", "0 to 30")),
        (lambda: im.RandAugment(num_magnitude_bins=1), ValueError, ("num_magnitude_bins is 1",)),
        (lambda: im.RandAugment(interpolation="cubic"), ValueError, ("interpolation:", "'cubic'")),
        (lambda: im.RandAugment(fill=NAN), ValueError, ("fill:", "nan")),
        (lambda: im.TrivialAugmentWide(0), ValueError, ("num_magnitude_bins is 0",)),
        (lambda: im.AutoAugment("mnist"), ValueError, ("policy:", "'imagenet'", "'mnist'")),
        (lambda: im.AugMix(severity=11), ValueError, ("severity is 11", "1 to 10")),
        (lambda: im.AugMix(mixture_width=0), ValueError, ("mixture_width is 0",)),
        (lambda: im.AugMix(alpha=0), ValueError, ("alpha:", "above 0")),
        (lambda: im.AugMix(alpha="1"), TypeError, ("alpha:", "'1'")),
        (lambda: im.RandomApply([]), ValueError, ("transforms:",)),
        (lambda: im.RandomApply([im.RandomCrop(4)]), ValueError, ("transforms[0]:", "RandomCrop")),
        (lambda: im.RandomOrder([im.Normalize(0, 1)]), ValueError, ("RandomOrder", "Normalize")),
        (lambda: im.RandomApply([POLICY], p=1.5), ValueError, ("p:", "1.5")),
        (lambda: im.RandomApply([POLICY], p=None), TypeError, ("p:", "from 0 to 1", "None")),
        (lambda: im.RandomChoice([POLICY], p=[1, 2]), ValueError, ("p:", "1 finite", "[1, 2]")),
        (lambda: im.RandomChoice([POLICY], p=[-1]), ValueError, ("p:", "[-1]")),
        (lambda: im.RandomChoice([POLICY], p=[0]), ValueError, ("p:", "[0]")),
        (lambda: im.RandomChoice([POLICY], p="x"), TypeError, ("p:", "'x'")),
        (lambda: im.RandomChoice([POLICY], p=[None]), TypeError, ("p:", "None")),
        (lambda: im.RandomChoice([POLICY, 3]), TypeError, ("transforms[1]:", "got 3")),
        (lambda: im.RandomOrder(POLICY), TypeError, ("transforms:", "RandAugment")),
        (lambda: im.RandomAdjustSharpness(None), TypeError, ("sharpness_factor:", "None")),
        (lambda: im.ColorJitter(hue=("a", 0.1)), TypeError, ("hue:", "-0.5 to 0.5", "'a'")),
        (lambda: im.RandomRotation((None, 3)), TypeError, ("degrees:", "None")),
        (lambda: im.GaussianBlur(3, (None, 1)), TypeError, ("sigma:", "above 0", "None")),
        (lambda: jax.jit(lambda f: im.RandAugment(fill=f).num_ops)(1.0), TypeError, ("fill:",)),
        (lambda: im.RandomRotation(-3), ValueError, ("degrees:", "-3")),
        (lambda: im.RandomRotation((5, 3)), ValueError, ("degrees:", "(5, 3)")),
        (lambda: im.RandomRotation("x"), TypeError, ("degrees:", "'x'")),
        (lambda: im.RandomRotation((1, 2, 3)), ValueError, ("degrees:", "(1, 2, 3)")),
        (lambda: im.RandomRotation(3, "bicubic"), ValueError, ("interpolation:", "'bicubic'")),
        (lambda: im.RandomRotation(3, expand=True), ValueError, ("degrees:", "(-3.0, 3.0)")),
        (lambda: im.RandomRotation(3, center=4), TypeError, ("center:", "got 4")),
        (lambda: im.RandomAffine(3, translate=(0.1, 1.2)), ValueError, ("translate:", "1.2")),
        (lambda: im.RandomAffine(3, scale=(0, 1)), ValueError, ("scale:", "(0, 1)")),
        (lambda: im.RandomAffine(3, shear=(1, 2, 3)), ValueError, ("shear:", "(1, 2, 3)")),
        (lambda: im.RandomAffine(NAN), ValueError, ("degrees:", "nan")),
        (lambda: im.RandomPerspective(1.5), ValueError, ("distortion_scale:", "1.5")),
        (lambda: im.RandomPerspective(p=-1), ValueError, ("p:", "-1")),
        (lambda: im.RandomPerspective(fill="red"), ValueError, ("fill:", "'red'")),
        (lambda: jax.jit(lambda f: im.RandomAffine(3, fill=f))(1.0), TypeError, ("fill:",)),
        (lambda: im.GaussianBlur(4), ValueError, ("kernel_size:", "odd", "got 4")),
        (lambda: im.GaussianBlur((3, -1)), ValueError, ("kernel_size:", "(3, -1)")),
        (lambda: im.GaussianBlur(3, (2, 1)), ValueError, ("sigma:", "(2, 1)")),
        (lambda: im.GaussianBlur(3, 0), ValueError, ("sigma:", "above 0")),
        (lambda: im.GaussianBlur(3, "x"), TypeError, ("sigma:", "'x'")),
        (lambda: im.Compose(FLIPS, boxes="yxyx"), ValueError, ("boxes", "'yxyx'")),
        (lambda: im.Compose(FLIPS, keypoints="xy"), ValueError, ("keypoints", "'xy'")),
        (lambda: im.Compose(FLIPS, mask_fill="no"), ValueError, ("mask_fill", "'no'")),
        (lambda: im.Compose(FLIPS, mask_fill=None), ValueError, ("mask_fill", "None")),
        (lambda: im.Compose(FLIPS, mask_fill=[1]), ValueError, ("mask_fill", "[1]")),
        (lambda: im.RandomIoUCrop(min_scale=0), ValueError, ("(min_scale, max_scale)", "(0, 1.0)")),
        (lambda: im.RandomIoUCrop(max_scale=1.5), ValueError, ("max_scale", "1.5")),
        (lambda: im.RandomIoUCrop(sampler_options=[]), ValueError, ("sampler_options", "[]")),
        (lambda: im.RandomIoUCrop(sampler_options=[NAN]), ValueError, ("sampler_options", "nan")),
        (lambda: im.RandomIoUCrop(trials=0), ValueError, ("trials", "0")),
        (lambda: im.RandomZoomOut(side_range=(0.5, 2)), ValueError, ("side_range", "(0.5, 2)")),
        (lambda: im.RandomZoomOut(p=2), ValueError, ("p", "2")),
        (lambda: im.ScaleJitter(0), ValueError, ("target_size", "0")),
        (lambda: im.ScaleJitter(8, (2, 1)), ValueError, ("scale_range", "(2, 1)")),
        (lambda: im.RandomShortestSize([]), ValueError, ("min_size", "[]")),
        (lambda: im.RandomShortestSize([3, 0]), ValueError, ("min_size", "0")),
        (lambda: im.RandomShortestSize(None), ValueError, ("min_size", "None")),
        (lambda: im.RandomShortestSize(1.5), ValueError, ("min_size", "1.5")),
        (lambda: im.RandomShortestSize(3, canvas=0), ValueError, ("canvas", "0")),
        (lambda: im.SanitizeBoundingBoxes(0.5), ValueError, ("min_size", "0.5")),
        (lambda: im.SanitizeBoundingBoxes(None), TypeError, ("min_size", "None")),
        (lambda: im.SanitizeBoundingBoxes(min_area="4"), TypeError, ("min_area", "'4'")),
        (lambda: im.RandomIoUCrop(sampler_options=["x"]), TypeError, ("sampler_options", "'x'")),
        (lambda: im.ColorJitter(brightness=-0.1), ValueError, ("brightness",)),
        (lambda: im.ColorJitter(contrast=(1.5, 0.5)), ValueError, ("contrast",)),
        (lambda: im.ColorJitter(saturation="0.4"), TypeError, ("saturation",)),
        (lambda: im.ColorJitter(brightness=float("nan")), ValueError, ("brightness",)),
        (lambda: im.ColorJitter(hue=0.6), ValueError, ("hue",)),
        (lambda: im.ColorJitter(hue=(-0.6, 0.0)), ValueError, ("hue",)),
        (lambda: im.Grayscale(2), ValueError, ("num_output_channels",)),
        (lambda: im.RandomGrayscale(1.5), ValueError, ("p:",)),
        (lambda: im.RandomPosterize(9), ValueError, ("bits is 9", "from 0 to 8")),
        (lambda: im.RandomPosterize(2.0), ValueError, ("bits is 2.0",)),
        (lambda: im.RandomSolarize(256), ValueError, ("threshold:", "up to 255")),
        (lambda: im.RandomAdjustSharpness(-1), ValueError, ("sharpness_factor",)),
        (lambda: im.RandomPhotometricDistort(hue=0.2), TypeError, ("hue",)),
        (lambda: im.Compose([im.RandomInvert()] * 65)(KEY, U8), ValueError, ("at most",)),
        (lambda: im.Compose([JITTER]).apply(U8, ({"order": 1},)), ValueError, ("missing",)),
        (lambda: im.Compose([JITTER])(KEY, RAGGED), ValueError, ("one size",)),
        (lambda: BLUR.apply(U8, ({"sigma": 1.0},)), ValueError, ("GaussianBlur", "(5, 23)", "6")),
    ],
)
def test_constructors(make, error, facts):
    with raises(error, *facts):
        make()


@pytest.mark.parametrize(
    ("images", "error", "facts"),
    [
        (U8[0], ValueError, ("images:", "[N, H, W, C]", "(6, 8, 3)", "images[None]")),
        (np.zeros((2, 3, 6, 8), np.uint8), ValueError, ("NHWC", "NCHW", "(2, 3, 6, 8)")),
        (U8[..., :2], ValueError, ("1, 3 or 4 channels", "(2, 6, 8, 2)")),
        (U8[:, :0], ValueError, ("height and width from 1", "(2, 0, 8, 3)")),
        (U8.astype(bool), TypeError, ("images:", "bool")),
        (U8.astype(np.float64), TypeError, ("images:", "uint8", "float64")),
        (U8.astype(np.int32), TypeError, ("images:", "int32")),
        ([[1]], TypeError, ("images:", "list")),
    ],
)
def test_images(images, error, facts):
    with raises(error, *facts):
        im.Compose([CROP]).apply(images, ({},))


BOX = {"top": [0, 1], "left": [0, 0], "height": [2, 3], "width": [8, 8]}
BOX = {name: np.asarray(value, np.int32) for name, value in BOX.items()}


@pytest.mark.parametrize(
    ("change", "error", "facts"),
    [
        ({"top": np.zeros(3, np.int32)}, ValueError, ("['top']:", "(2,)", "(3,)")),
        ({"top": np.zeros((2, 1), np.int32)}, ValueError, ("['top']:", "(2, 1)")),
        ({"top": np.zeros(2, np.float32)}, TypeError, ("['top']:", "int", "float32")),
        ({"angle": np.zeros(2)}, ValueError, ("missing []", "unknown ['angle']")),
        ({"left": None}, ValueError, ("missing ['left']",)),
        ({"top": np.asarray([0, 4], np.int32)}, ValueError, ("image 1", "top=4", "height=3")),
        ({"width": np.asarray([0, 8], np.int32)}, ValueError, ("image 0", "left=0", "width=0")),
        ({"left": np.asarray([-1, 0], np.int32)}, ValueError, ("image 0", "left=-1", "width=8")),
    ],
)
def test_parameters_of_a_crop(change, error, facts):
    box = {name: value for name, value in {**BOX, **change}.items() if value is not None}
    with raises(error, *facts):
        im.Compose([im.RandomResizedCrop(4)]).apply(U8, (box,))


def test_structure_of_parameters():
    aug = im.Compose([CROP, im.RandomHorizontalFlip()])
    with raises(ValueError, "params:", "2 dicts", "got 1"):
        aug.apply(U8, ({},))
    with raises(TypeError, "params[1] (RandomHorizontalFlip)", "int"):
        aug.apply(U8, ({}, 1))
    with raises(TypeError, "['flip']:", "bool", "int64"):
        aug.apply(U8, ({}, {"flip": np.zeros(2, np.int64)}))


def test_channels_and_sizes():
    with raises(ValueError, "mean:", "or 1,", "(3,)"):
        im.Compose([im.Normalize([0.5] * 3, 1)]).apply(U8[..., :1], ({},))
    with raises(ValueError, "fill:", "or 3,", "(4,)"):
        im.Compose([im.Pad(1, fill=[1, 2, 3, 4])]).apply(U8, ({},))
    with raises(ValueError, "RandomCrop:", "(7, 7)", "(6, 8)", "pad_if_needed=True"):
        im.Compose([im.RandomCrop(7)]).apply(U8, ({"top": 0, "left": 0},))
    with raises(ValueError, "top=3", "size=4", "image 0"):
        im.Compose([im.RandomCrop(4)]).apply(U8, ({"top": 3, "left": 0},))


@pytest.mark.parametrize(("mode", "limit"), [("reflect", 5), ("symmetric", 6)])
def test_borders_too_wide_to_mirror(mode, limit):
    facts = (f"at most {limit} pixels", f"'{mode}'", "height of 6", f"got {limit + 1}")
    im.Compose([im.Pad((0, limit), padding_mode=mode)]).apply(U8)
    with raises(ValueError, "Pad:", *facts):
        im.Compose([im.Pad((0, limit + 1), padding_mode=mode)]).apply(U8)
    crop = im.RandomCrop(4, padding=(0, 0, 0, limit + 1), padding_mode=mode)
    with raises(ValueError, "RandomCrop:", *facts):
        im.Compose([crop]).apply(U8, ({"top": 0, "left": 0},))
    im.Compose([im.Pad((0, 20), padding_mode="edge")]).apply(U8)


def test_keys_and_size():
    aug, key = im.Compose([im.RandomCrop(4)]), jax.random.key(0)
    two = jax.random.split(key, 2)
    for error, facts, call in (
        (ValueError, ("keys:", "one key per image"), lambda: aug.sample(key, (6, 8))),
        (ValueError, ("keys:", "2", "3"), lambda: aug(jax.random.split(key, 3), U8)),
        (TypeError, ("keys:", "int"), lambda: aug(0, U8)),
        (TypeError, ("keys:", "float32 (2,)"), lambda: aug(jnp.zeros(2), U8)),
        (ValueError, ("height is 0",), lambda: aug.sample(two, (0, 8))),
        (ValueError, ("height", "[2]"), lambda: aug.sample(two, (np.zeros(3, np.int32), 8))),
    ):
        with raises(error, *facts):
            call()


def test_labels():
    aug = im.Compose([im.MixUp()])
    with raises(TypeError, "labels:", "one_hot", "int64 (2,)"):
        aug.apply(U8, ({"lam": 0.5},), np.zeros(2, np.int64))
    with raises(ValueError, "labels:", "2 rows", "3"):
        aug.apply(U8, ({"lam": 0.5},), np.zeros((3, 5), np.float32))


def test_mixing_ragged_sizes():
    batch = im.Ragged.from_list([U8[0], U8[0, :3]])
    keys = jax.random.split(jax.random.key(0), 2)
    with raises(ValueError, "MixUp", "one size"):
        im.Compose([im.MixUp()]).sample(keys, batch)


def test_traced_boxes_are_clamped_in_pure_jax():
    """Traced boxes cannot be checked at trace time: pure JAX clamps them into the image."""
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


PHOTOS = np.random.default_rng(0).integers(1, 256, (2, 16, 20, 3), np.uint8)


@pytest.mark.parametrize("top", [100, -1, 13])
def test_a_crop_outside_the_image_is_an_error_of_the_call(top):
    aug = im.Compose([im.RandomCrop(4)])
    params = ({"top": jnp.array([top, 0]), "left": jnp.array([0, 0])},)
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)):
        jax.block_until_ready(jax.jit(aug.apply)(PHOTOS, params))


def test_a_ragged_image_smaller_than_the_crop_is_an_error():
    ragged = im.Ragged.from_list([PHOTOS[0], PHOTOS[1][:4, :4]])
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError)):
        jax.block_until_ready(im.Compose([im.RandomCrop(8)])(jax.random.key(0), ragged))


def test_a_crop_beyond_a_resized_image_is_zero():
    aug = im.Compose([im.Resize((12, 12)), im.RandomCrop(8)])
    params = ({}, {"top": jnp.array([8, 0]), "left": jnp.array([0, 0])})
    out = np.asarray(aug.apply(PHOTOS, params))
    assert (out[0, 4:] == 0).all()
    assert out[0, :4].any()


def test_keys_do_not_depend_on_the_default_implementation():
    with jax.default_prng_impl("rbg"):
        keys = jk.random.record_keys(0, 0, np.arange(8))
        some = jk.random.record_keys(0, 0, np.arange(4, 12))
        aug = im.Compose([im.RandomCrop(8)])
        complete, part = (sample(aug, each, (64, 64))[0]["top"] for each in (keys, some))
    np.testing.assert_array_equal(complete[4:], part[:4])


IMAGES = np.zeros((2, 8, 10, 3), np.uint8)
BOXES = np.float32([[[1, 1, 5, 5]]] * 2)
FLIP = im.Compose([im.RandomHorizontalFlip(1.0)])
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("fields", "error", "facts"),
    [
        ({"mask": np.zeros((2, 8, 9), np.uint8)}, ValueError, ("mask:", "(2, 8, 10)", "(2, 8, 9)")),
        ({"mask": np.zeros((2, 8), np.uint8)}, ValueError, ("mask:", "(2, 8, 10)")),
        ({"mask": np.zeros((2, 8, 10), complex)}, TypeError, ("mask:", "complex128")),
        ({"mask": np.full((2, 8, 10), 2**40)}, ValueError, ("mask", "int32")),
        ({"mask": [[1]]}, TypeError, ("mask:", "list")),
        ({"boxes": BOXES[..., :3]}, ValueError, ("boxes:", "(2, 1, 3)")),
        ({"boxes": BOXES[0]}, ValueError, ("boxes:", "[2, K, 4]")),
        ({"boxes": BOXES.astype(bool)}, TypeError, ("boxes:", "bool")),
        ({"boxes": "none"}, TypeError, ("boxes:", "str")),
        ({"boxes": BOXES, "boxes_valid": np.ones((2, 2), bool)}, ValueError, ("(2, 1)", "(2, 2)")),
        ({"boxes": BOXES, "boxes_valid": np.ones((2, 1))}, TypeError, ("boxes_valid:", "float64")),
        ({"keypoints": BOXES}, ValueError, ("keypoints:", "(2, 1, 4)")),
        ({"keypoints": [1]}, TypeError, ("keypoints:", "list")),
    ],
)
def test_targets_are_checked(fields, error, facts):
    with raises(error, *facts):
        FLIP.apply({"image": IMAGES, **fields}, ({"flip": True},))


def test_dicts_are_checked():
    with raises(ValueError, '"image"', "['images']"):
        FLIP(KEY, {"images": IMAGES})
    with raises(ValueError, "'bboxes'", "'boxes'"):
        FLIP.apply({"image": IMAGES, "bboxes": BOXES}, ({"flip": True},))
    named = {"image": IMAGES, "boxes": BOXES, "bboxes": BOXES}
    assert FLIP.apply(named, ({"flip": True},))["bboxes"] is BOXES
    with raises(ValueError, "labels:", '"label"'):
        FLIP.apply({"image": IMAGES}, ({"flip": True},), np.eye(2, dtype=np.float32))
    mixes = im.Compose([im.MixUp()])
    with raises(ValueError, "MixUp(alpha=1.0, per_sample=False)", "['boxes']"):
        mixes(KEY, {"image": IMAGES, "boxes": BOXES})
    fields = {"image": IMAGES, "label": np.eye(2, dtype=np.float32)}
    out = mixes.apply(fields, ({"lam": np.float32([0.25, 0.25])},))
    assert out["label"].tolist() == [[0.25, 0.75], [0.75, 0.25]]


@pytest.mark.parametrize("target", [{"boxes": BOXES}, {"mask": IMAGES[..., 0]}])
def test_means_of_warped_copies_have_no_targets(target):
    ops = {"op": np.zeros((2, 3, 1), np.int32), "magnitude": np.zeros((2, 3, 1), np.float32)}
    weights = {"weights": np.ones((2, 3), np.float32), "m": np.float32(0.5)}
    mixed = im.Compose([im.AugMix(chain_depth=1)])
    with raises(ValueError, "AugMix", "masks, boxes and keypoints"):
        jax.eval_shape(mixed.apply, {"image": IMAGES, **target}, ({**ops, **weights},))


@pytest.mark.parametrize("fill", [300, -1, 1.5, np.nan, np.inf])
def test_fills_outside_the_range_of_labels(fill):
    pad = im.Compose([im.Pad(1)], mask_fill=fill)
    with raises(ValueError, "mask_fill:", "uint8", str(fill)):
        pad.apply({"image": IMAGES, "mask": IMAGES[..., 0]})


@pytest.mark.parametrize(
    ("warp", "params"),
    [
        (im.RandomPerspective(), {"endpoints": np.zeros((2, 4, 2), np.int32)}),
        (im.ElasticTransform(sigma=0.2), {"seed": np.zeros((2, 2), np.int32)}),
    ],
)
def test_warps_of_images_of_different_sizes(warp, params):
    """The message is about the images, not about shapes of arrays."""
    aug = im.Compose([im.ScaleJitter((8, 8)), warp])
    sizes = {"height": np.int32([4, 5]), "width": np.int32([4, 5])}
    with raises(ValueError, type(warp).__name__, "RandomResizedCrop"):
        aug.apply({"image": IMAGES, "boxes": BOXES}, (sizes, params))


def test_crops_by_boxes_need_boxes():
    aug = im.Compose([im.RandomIoUCrop(), im.Resize((4, 4))])
    with raises(ValueError, "RandomIoUCrop:", "boxes"):
        aug(KEY, IMAGES)


def test_extreme_parameters_stay_within_the_image():

    def apply(transforms, *params):
        # One program for all operations, in which parameters are constants.
        return jax.jit(lambda fields: im.Compose(transforms).apply(fields, params))(fields)

    far = np.int32([-(2**31), 2**31 - 1])
    crop = {"crop": np.ones(2, bool), "top": far, "left": -far, "height": far, "width": far}
    fields = {"image": IMAGES, "mask": IMAGES[..., 0], "boxes": BOXES, "keypoints": BOXES[..., :2]}
    out = apply([im.RandomIoUCrop()], crop)
    assert out["image"].shape == (2, 8, 10, 3)
    sizes = np.asarray(out["image_size"])
    assert (sizes >= 1).all()
    assert (sizes <= [8, 10]).all()
    zoom = {"top": far, "left": far, "height": -far, "width": far}
    out = apply([im.RandomZoomOut(), im.Resize((4, 4))], zoom, {})
    assert np.isfinite(np.asarray(out["image"])).all()
    size = {"height": far, "width": -far}
    out = apply([im.ScaleJitter((8, 8))], size)
    assert out["image"].shape == (2, 16, 16, 3)


def test_unusual_boxes_are_invalid_and_finite():
    unusual = [[5, 5, 5, 7], [6, 2, 3, 4], [-9, -9, -1, -1], [np.nan, 0, 3, 3], [0, 0, np.inf, 3]]
    cut = [0, 1, 1.5, 7]  # the crop leaves a line, which the rotation must not turn into a box
    boxes = np.float32([[*unusual, [2, 2, 30, 6], cut]] * 2)
    aug = im.Compose([im.RandomHorizontalFlip(), im.CenterCrop((8, 6)), im.RandomRotation(30)])
    angle = {"angle": np.float32([0, 20])}
    params = ({"flip": np.zeros(2, bool)}, {}, angle)
    out = jax.jit(aug.apply)({"image": IMAGES, "boxes": boxes}, params)
    assert out["boxes_valid"].tolist() == [[*[False] * 5, True, False]] * 2
    assert np.isfinite(np.asarray(out["boxes"])).all()
    np.testing.assert_allclose(out["boxes"][0, 5], [0, 2, 6, 6], atol=1e-5)


def test_borders_that_repeat_pixels():
    """A mask's border repeats its labels; boxes cannot be repeated."""
    aug = im.Compose([im.Pad(2, padding_mode="reflect")], mask_fill=7)
    mask = np.arange(160, dtype=np.int32).reshape(2, 8, 10) * 1000
    out = aug.apply({"image": IMAGES, "mask": mask})
    np.testing.assert_array_equal(out["mask"], np.pad(mask, ((0, 0), (2, 2), (2, 2)), "reflect"))
    with raises(ValueError, "Pad(", "'reflect'", "boxes"):
        aug.apply({"image": IMAGES, "boxes": BOXES})
    aug = im.Compose([im.ScaleJitter((8, 8)), im.Pad(2, padding_mode="edge")])
    with raises(ValueError, "padding_mode:", "sizes differ"):
        aug.apply(IMAGES, ({"height": np.int32([4, 5]), "width": np.int32([4, 5])}, {}))
