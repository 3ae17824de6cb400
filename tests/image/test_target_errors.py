"""Checks of targets, and unusual targets that are valid."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from support.errors import raises

from jaxkern import image as im

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
        mixed.apply({"image": IMAGES, **target}, ({**ops, **weights},))


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


FLIPS = [im.RandomHorizontalFlip()]


def test_crops_by_boxes_need_boxes():
    aug = im.Compose([im.RandomIoUCrop(), im.Resize((4, 4))])
    with raises(ValueError, "RandomIoUCrop:", "boxes"):
        aug(KEY, IMAGES)


def test_extreme_parameters_stay_within_the_image():
    far = np.int32([-(2**31), 2**31 - 1])
    crop = {"crop": np.ones(2, bool), "top": far, "left": -far, "height": far, "width": far}
    fields = {"image": IMAGES, "mask": IMAGES[..., 0], "boxes": BOXES, "keypoints": BOXES[..., :2]}
    out = im.Compose([im.RandomIoUCrop()]).apply(fields, (crop,))
    assert out["image"].shape == (2, 8, 10, 3)
    sizes = np.asarray(out["image_size"])
    assert (sizes >= 1).all()
    assert (sizes <= [8, 10]).all()
    zoom = {"top": far, "left": far, "height": -far, "width": far}
    out = im.Compose([im.RandomZoomOut(), im.Resize((4, 4))]).apply(fields, (zoom, {}))
    assert np.isfinite(np.asarray(out["image"])).all()
    size = {"height": far, "width": -far}
    out = im.Compose([im.ScaleJitter((8, 8))]).apply(fields, (size,))
    assert out["image"].shape == (2, 16, 16, 3)


def test_unusual_boxes_are_invalid_and_finite():
    unusual = [[5, 5, 5, 7], [6, 2, 3, 4], [-9, -9, -1, -1], [np.nan, 0, 3, 3], [0, 0, np.inf, 3]]
    cut = [0, 1, 1.5, 7]  # the crop leaves a line, which the rotation must not turn into a box
    boxes = np.float32([[*unusual, [2, 2, 30, 6], cut]] * 2)
    aug = im.Compose([im.RandomHorizontalFlip(), im.CenterCrop((8, 6)), im.RandomRotation(30)])
    angle = {"angle": np.float32([0, 20])}
    out = aug.apply({"image": IMAGES, "boxes": boxes}, ({"flip": False}, {}, angle))
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
