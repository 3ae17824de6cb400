"""What targets are refused, and what becomes of those that are strange but not wrong.

Would catch: a shape, dtype or word that passes and moves nothing or crashes later; boxes without
area, outside or of NaN that count as valid; parameters of detection's transforms that a caller
made up and that leave the image.
"""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest

from jaxkern import image as im

IMAGES = np.zeros((2, 8, 10, 3), np.uint8)
BOXES = np.float32([[[1, 1, 5, 5]]] * 2)
FLIP = im.Compose([im.RandomHorizontalFlip(1.0)])
KEY = jax.random.key(0)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"mask": np.zeros((2, 8, 9), np.uint8)}, ValueError, "mask has shape (2, 8, 9) and the"),
        ({"mask": np.zeros((2, 8), np.uint8)}, ValueError, "wanted (2, 8, 10)"),
        ({"mask": np.zeros((2, 8, 10), complex)}, TypeError, "mask has dtype complex128"),
        ({"mask": np.full((2, 8, 10), 2**40)}, ValueError, "int32"),
        ({"mask": [[1]]}, TypeError, "mask is a list"),
        ({"boxes": BOXES[..., :3]}, ValueError, "boxes has shape (2, 1, 3)"),
        ({"boxes": BOXES[0]}, ValueError, "wanted floats or integers [2, K, 4]"),
        ({"boxes": BOXES.astype(bool)}, TypeError, "boxes has dtype bool"),
        ({"boxes": "none"}, TypeError, "boxes is a str"),
        ({"boxes": BOXES, "boxes_valid": np.ones((2, 2), bool)}, ValueError, "wanted (2, 1)"),
        ({"boxes": BOXES, "boxes_valid": np.ones((2, 1))}, TypeError, "boxes_valid is float64"),
        ({"keypoints": BOXES}, ValueError, "keypoints has shape (2, 1, 4)"),
        ({"keypoints": [1]}, TypeError, "keypoints is a list"),
    ],
)
def test_targets_are_checked(fields, error, message):
    with pytest.raises(error, match=re.escape(message)):
        FLIP.apply({"image": IMAGES, **fields}, ({"flip": True},))


def test_dicts_are_checked():
    with pytest.raises(ValueError, match='wanted one named "image"'):
        FLIP(KEY, {"images": IMAGES})
    with pytest.raises(ValueError, match="a field 'bboxes', which does not move"):
        FLIP.apply({"image": IMAGES, "bboxes": BOXES}, ({"flip": True},))
    named = {"image": IMAGES, "boxes": BOXES, "bboxes": BOXES}
    assert FLIP.apply(named, ({"flip": True},))["bboxes"] is BOXES
    with pytest.raises(ValueError, match="labels go with images"):
        FLIP.apply({"image": IMAGES}, ({"flip": True},), np.eye(2, dtype=np.float32))
    mixes = im.Compose([im.MixUp()])
    with pytest.raises(ValueError, match=re.escape("MixUp(alpha=1.0, per_sample=False) mixes")):
        mixes(KEY, {"image": IMAGES, "boxes": BOXES})
    fields = {"image": IMAGES, "label": np.eye(2, dtype=np.float32)}
    out = mixes.apply(fields, ({"lam": np.float32([0.25, 0.25])},))
    assert out["label"].tolist() == [[0.25, 0.75], [0.75, 0.25]]


@pytest.mark.parametrize("target", [{"boxes": BOXES}, {"mask": IMAGES[..., 0]}])
def test_means_of_warped_copies_have_no_targets(target):
    ops = {"op": np.zeros((2, 3, 1), np.int32), "magnitude": np.zeros((2, 3, 1), np.float32)}
    shares = {"weights": np.ones((2, 3), np.float32), "m": np.float32(0.5)}
    mixed = im.Compose([im.AugMix(chain_depth=1)])
    with pytest.raises(ValueError, match="AugMix takes the mean of differently warped copies"):
        mixed.apply({"image": IMAGES, **target}, ({**ops, **shares},))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"boxes": "yxyx"}, "boxes='yxyx'; wanted one of 'xyxy', 'xywh', 'cxcywh'"),
        ({"keypoints": "xy"}, "keypoints='xy'; wanted one of 'torchvision', 'centers'"),
        ({"mask_fill": "no"}, "mask_fill='no'; wanted one number"),
        ({"mask_fill": None}, "mask_fill=None; wanted one number"),
        ({"mask_fill": [1]}, "mask_fill=[1]; wanted one number"),
    ],
)
def test_formats_are_words(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        im.Compose([im.RandomHorizontalFlip()], **options)


@pytest.mark.parametrize("fill", [300, -1, 1.5, np.nan, np.inf])
def test_a_fill_that_labels_do_not_hold(fill):
    pad = im.Compose([im.Pad(1)], mask_fill=fill)
    with pytest.raises(ValueError, match=f"mask_fill={fill}, which masks of uint8 do not hold"):
        pad.apply({"image": IMAGES, "mask": IMAGES[..., 0]})


@pytest.mark.parametrize(
    ("warp", "drawn"),
    [
        (im.RandomPerspective(), {"endpoints": np.zeros((2, 4, 2), np.int32)}),
        (im.ElasticTransform(sigma=0.2), {"seed": np.zeros((2, 2), np.int32)}),
    ],
)
def test_warps_of_images_of_different_sizes(warp, drawn):
    """Said of the images, not met as arrays that do not fit."""
    aug = im.Compose([im.ScaleJitter((8, 8)), warp])
    sizes = {"height": np.int32([4, 5]), "width": np.int32([4, 5])}
    with pytest.raises(ValueError, match="got images that still differ in size; put"):
        aug.apply({"image": IMAGES, "boxes": BOXES}, (sizes, drawn))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: im.RandomIoUCrop(min_scale=0), "(min_scale, max_scale)=(0, 1.0)"),
        (lambda: im.RandomIoUCrop(max_scale=1.5), "max_scale=1.5; wanted a share"),
        (lambda: im.RandomIoUCrop(sampler_options=[]), "sampler_options=[]"),
        (lambda: im.RandomIoUCrop(sampler_options=[0.5, np.nan]), "sampler_options=(0.5, nan)"),
        (lambda: im.RandomIoUCrop(trials=0), "trials=0"),
        (lambda: im.RandomZoomOut(side_range=(0.5, 2)), "side_range=(0.5, 2)"),
        (lambda: im.RandomZoomOut(p=2), "p=2"),
        (lambda: im.ScaleJitter(0), "target_size=0"),
        (lambda: im.ScaleJitter(8, (2, 1)), "scale_range=(2, 1)"),
        (lambda: im.RandomShortestSize([]), "min_size=[]"),
        (lambda: im.RandomShortestSize([3, 0]), "min_size=0"),
        (lambda: im.RandomShortestSize(None), "min_size=None; wanted a size"),
        (lambda: im.RandomShortestSize(1.5), "min_size=1.5; wanted a size"),
        (lambda: im.RandomShortestSize(3, canvas=0), "canvas=0"),
        (lambda: im.SanitizeBoundingBoxes(0.5), "min_size=0.5; wanted a finite number from 1"),
    ],
)
def test_detection_is_checked(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: im.SanitizeBoundingBoxes(None), "min_size=None; wanted a number from 1"),
        (lambda: im.SanitizeBoundingBoxes(min_area="4"), "min_area='4'; wanted a number"),
        (lambda: im.RandomIoUCrop(sampler_options=["x"]), "sampler_options='x'; wanted a number"),
    ],
)
def test_what_are_no_numbers(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        make()


def test_crops_by_boxes_want_boxes():
    aug = im.Compose([im.RandomIoUCrop(), im.Resize((4, 4))])
    with pytest.raises(ValueError, match="RandomIoUCrop draws by the boxes of an image"):
        aug(KEY, IMAGES)


def test_hostile_parameters_stay_within_the_image():
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


def test_strange_boxes_are_invalid_and_finite():
    strange = [[5, 5, 5, 7], [6, 2, 3, 4], [-9, -9, -1, -1], [np.nan, 0, 3, 3], [0, 0, np.inf, 3]]
    cut = [0, 1, 1.5, 7]  # by the crop to a line, which the turn must not make a box of again
    boxes = np.float32([[*strange, [2, 2, 30, 6], cut]] * 2)
    aug = im.Compose([im.RandomHorizontalFlip(), im.CenterCrop((8, 6)), im.RandomRotation(30)])
    angle = {"angle": np.float32([0, 20])}
    out = aug.apply({"image": IMAGES, "boxes": boxes}, ({"flip": False}, {}, angle))
    assert out["boxes_valid"].tolist() == [[*[False] * 5, True, False]] * 2
    assert np.isfinite(np.asarray(out["boxes"])).all()
    np.testing.assert_allclose(out["boxes"][0, 5], [0, 2, 6, 6], atol=1e-5)


def test_borders_that_repeat_pixels():
    """A mask's border repeats its labels; boxes have no place in it."""
    aug = im.Compose([im.Pad(2, padding_mode="reflect")], mask_fill=7)
    mask = np.arange(160, dtype=np.int32).reshape(2, 8, 10) * 1000
    out = aug.apply({"image": IMAGES, "mask": mask})
    np.testing.assert_array_equal(out["mask"], np.pad(mask, ((0, 0), (2, 2), (2, 2)), "reflect"))
    with pytest.raises(ValueError, match="repeats pixels in its border"):
        aug.apply({"image": IMAGES, "boxes": BOXES})
    aug = im.Compose([im.ScaleJitter((8, 8)), im.Pad(2, padding_mode="edge")])
    with pytest.raises(ValueError, match="a border repeats the pixels of images that still differ"):
        aug.apply(IMAGES, ({"height": np.int32([4, 5]), "width": np.int32([4, 5])}, {}))
