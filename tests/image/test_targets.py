"""Targets that move with images: dicts through a `Compose`, against the pixels themselves."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.errors import raises
from support.image.comparison import boxes_as, slow
from support.image.draws import sample

from jaxkern import image as im
from jaxkern.image.transforms.moves import box_move, moved_points

COUNT, HEIGHT, WIDTH = 4, 36, 48
KEYS = jax.random.split(jax.random.key(3), COUNT)
TURN = im.RandomRotation(40, "bilinear")
CHAINS = {
    "RandomResizedCrop": [im.RandomResizedCrop((24, 40), scale=(0.3, 1.0))],
    "Resize": [im.Resize(54)],
    "CenterCrop": [im.CenterCrop((30, 61))],
    "Pad": [im.Pad((3, 5, 2, 1))],
    "RandomCrop": [im.RandomCrop(32, padding=(4, 6))],
    "flips": [im.RandomHorizontalFlip(), im.RandomVerticalFlip()],
    "RandomRotation": [im.RandomRotation(60, "bilinear", center=(20, 11.5))],
    "RandomAffine": [im.RandomAffine(40, (0.1, 0.2), (0.8, 1.3), (-9, 9, -8, 8), "bilinear")],
    "RandomPerspective": [im.RandomPerspective(0.4, 0.8)],
    "policy": [im.RandAugment(3, 12, interpolation="bilinear")],
    "RandomApply": [im.RandomApply([im.RandomHorizontalFlip(1.0), TURN], p=0.6)],
    "RandomChoice": [im.RandomChoice([im.RandomVerticalFlip(1.0), TURN])],
    "RandomOrder": [im.RandomOrder([im.RandomHorizontalFlip(), TURN])],
    "expand": [im.RandomRotation((35, 35), "bilinear", expand=True)],
    "ElasticTransform": [im.ElasticTransform(20.0, 4.0)],
    "RandomZoomOut": [im.RandomZoomOut(side_range=(1.0, 1.8), p=0.7)],
    "ScaleJitter": [im.ScaleJitter((40, 30), (0.7, 1.5))],
    "RandomShortestSize": [im.RandomShortestSize([25, 41], 60)],
    "ssd": [
        im.RandomZoomOut(side_range=(1.0, 1.8), p=0.7),
        im.RandomIoUCrop(),
        im.RandomHorizontalFlip(),
        im.Resize((40, 40)),
    ],
    "jittered": [im.ScaleJitter((40, 30), (0.6, 1.6)), im.RandomCrop(36, pad_if_needed=True)],
    "all": [
        im.RandomResizedCrop(40, scale=(0.4, 1.0)),
        im.RandomHorizontalFlip(),
        im.RandomRotation(30, "bilinear"),
        im.Pad(2),
    ],
}


def _quick(names, *quick):
    """Return parameters, some of them marked slow."""
    return [name if name in quick else slow(name) for name in names]


def coordinates(count=COUNT):
    """Return f32 images whose first two channels are the coordinates of their pixel centres."""
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    return np.broadcast_to(np.stack([x, y, 0 * x + 1], -1), (count, HEIGHT, WIDTH, 3))


def numbered(dtype=np.int32):
    """Return masks that number the pixels from 1."""
    mask = np.arange(1, HEIGHT * WIDTH + 1).reshape(HEIGHT, WIDTH)
    return np.broadcast_to(mask, (COUNT, HEIGHT, WIDTH)).astype(dtype)


def points():
    """Return integer and fractional points in the central part of the images."""
    rng = np.random.default_rng(5)
    draws = rng.uniform((8, 8), (WIDTH - 9, HEIGHT - 9), (COUNT, 24, 2))
    draws[:, ::2] = np.round(draws[:, ::2])
    return draws.astype(np.float32)


def bilinear(image, x, y):
    column, row = int(np.floor(x)), int(np.floor(y))
    a, b = x - column, y - row
    part = image[row : row + 2, column : column + 2]
    return (1 - b) * ((1 - a) * part[0, 0] + a * part[0, 1]) + b * (
        (1 - a) * part[1, 0] + a * part[1, 1]
    )


@pytest.mark.parametrize("name", _quick(CHAINS, "all", "ssd"))
def test_keypoints_and_masks_follow_their_pixels(name):
    """The output shows, at a moved keypoint, the coordinates that the keypoint had."""
    aug = im.Compose(CHAINS[name], keypoints="centers")
    inputs = points()
    corners = np.concatenate([inputs[:, :12] - 3, inputs[:, 12:] + 3], axis=-1)
    boxes = np.sort(corners.reshape(COUNT, 12, 2, 2), axis=2).reshape(COUNT, 12, 4)
    fields = {"image": coordinates(), "mask": numbered(), "boxes": boxes, "keypoints": inputs}
    if name == "policy":  # colours change the coordinates in the pixels
        params = sample(aug, KEYS, (HEIGHT, WIDTH))
        names = np.asarray(im.RandAugment.OPS)
        params[0]["op"] = jnp.where(
            jnp.isin(params[0]["op"], np.flatnonzero(np.char.find(names, "e") >= 0)),
            params[0]["op"] % 6,
            -1,
        )
        out = jax.jit(aug.apply)(fields, params)
    else:
        out = jax.jit(aug)(KEYS, fields)
    image, mask = np.asarray(out["image"]), np.asarray(out["mask"])
    height, width = image.shape[1:3]
    assert mask.dtype == np.int32
    assert mask.shape == (COUNT, height, width)
    seen = 0
    for n, k in np.argwhere(np.asarray(out["keypoints_visible"])):
        x, y = np.asarray(out["keypoints"])[n, k]
        if not (3 <= x < width - 4 and 3 <= y < height - 4):
            continue
        patch = image[n, max(int(y) - 2, 0) : int(y) + 4, max(int(x) - 2, 0) : int(x) + 4]
        if patch[..., 2].min() < 0.999:  # next to the border of the warped image
            continue
        seen += 1
        # An elastic warp moves a point by the displacement of the pixel that contains it.
        off = 0.3 if name == "ElasticTransform" else 0.1
        np.testing.assert_allclose(bilinear(image[n], x, y)[:2], inputs[n, k], atol=off)
        label = mask[n, int(np.round(y)), int(np.round(x))] - 1
        np.testing.assert_allclose((label % WIDTH, label // WIDTH), inputs[n, k], atol=1.51)
    assert seen > 20


@pytest.mark.parametrize("form", _quick(["xyxy", "xywh", "cxcywh"], "xywh"))
@pytest.mark.parametrize("name", _quick(["all", "ssd", "RandomPerspective"], "all"))
def test_boxes_bound_their_pixels(name, form):
    """A mask that fills each box is inside the moved box, and touches its sides if it has any."""
    aug = im.Compose(CHAINS[name], boxes=form)
    boxes = np.float32([[10, 9, 30, 21], [5, 14, 17, 30], [0, 0, 0, 0], [20, 20, 20, 25]])
    boxes = np.broadcast_to(boxes, (COUNT, 4, 4))
    masks = np.zeros((COUNT, HEIGHT, WIDTH, 2), np.uint8)
    for k in range(2):
        left, top, right, bottom = boxes[0, k].astype(int)
        masks[:, top:bottom, left:right, k] = 1
    fields = {"image": coordinates(), "mask": masks, "boxes": boxes_as(form, boxes)}
    out = jax.jit(aug)(KEYS, fields)
    moved, valid = np.asarray(out["boxes"]), np.asarray(out["boxes_valid"])
    assert not valid[:, 2:].any()
    assert valid[:, :2].any()
    first, sides = moved[..., :2], moved[..., 2:]
    first = first - 0.5 * sides if form == "cxcywh" else first
    moved = moved if form == "xyxy" else np.concatenate([first, first + sides], axis=-1)
    for n, k in np.argwhere(valid[:, :2]):
        rows, columns = np.nonzero(np.asarray(out["mask"])[n, ..., k])
        shown = np.float32([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1])
        np.testing.assert_allclose(moved[n, k], shown, atol=1.5)


@pytest.mark.parametrize(
    "dtype", _quick(["bool", "i1", "u1", "i2", "u2", "i4", "u4", "f2", "f4", "i8"], "i4", "i8")
)
def test_masks_keep_every_bit(dtype):
    labels = np.random.default_rng(1).integers(0, 2 if dtype == "bool" else 2**31 - 1, (2, 8, 10))
    mask = (labels % 1000 if dtype == "f2" else labels).astype(dtype)
    aug = im.Compose([im.CenterCrop((10, 6)), im.RandomHorizontalFlip(1.0)], mask_fill=1)
    fields = {"image": np.zeros((2, 8, 10, 1), np.uint8), "mask": mask}
    out = np.asarray(aug.apply(fields, ({}, {"flip": True}))["mask"])
    expected = np.full((2, 10, 6), 1, dtype)
    expected[:, 1:9] = mask[:, :, 2:8][:, :, ::-1]
    assert out.dtype == ("i4" if dtype == "i8" else dtype)
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("mode", ["edge", "symmetric"])
def test_masks_are_mirrored_as_their_images(mode):
    mask = np.random.default_rng(2).integers(-(2**31), 2**31 - 1, (2, 8, 10), np.int32)
    aug = im.Compose([im.Resize((8, 10), "bicubic"), im.Pad((3, 4), padding_mode=mode)])
    fields = {"image": np.zeros((2, 8, 10, 1), np.uint8), "mask": mask}
    out = aug.apply(fields, ({}, {}))["mask"]
    np.testing.assert_array_equal(out, np.pad(mask, ((0, 0), (4, 4), (3, 3)), mode))
    fields["boxes"] = np.zeros((2, 1, 4), np.float32)
    with raises(ValueError, "Pad(", "boxes"):
        aug.apply(fields, ({}, {}))


def test_planes_of_masks_move_together():
    """M masks per image, along an axis or as channels."""
    aug = im.Compose([im.RandomResizedCrop(20), im.RandomRotation(30)])
    params = sample(aug, KEYS, (HEIGHT, WIDTH))
    images, mask = coordinates(), numbered()
    alone = np.asarray(aug.apply({"image": images, "mask": mask}, params)["mask"])
    both = np.stack([mask, mask + 5000], axis=-1)
    moved = np.asarray(aug.apply({"image": images, "mask": both}, params)["mask"])
    np.testing.assert_array_equal(moved[..., 0], alone)
    np.testing.assert_array_equal(moved[..., 1], np.where(alone > 0, alone + 5000, 0))
    levels = np.stack([mask % 251] * 3, axis=-1).astype(np.uint8)
    moved = np.asarray(aug.apply({"image": images, "mask": levels}, params)["mask"])
    np.testing.assert_array_equal(moved, np.stack([np.where(alone > 0, alone % 251, 0)] * 3, -1))


def test_keypoints_in_torchvision_convention():
    """Flips count pixels from the other end; a rotation treats integers as edges."""
    points = np.float32([[[0, 0], [3, 2], [np.nan, 1], [-1, 4], [9, 7]]])
    image = np.zeros((1, 8, 10, 1), np.uint8)
    flip = im.Compose([im.RandomHorizontalFlip(), im.RandomVerticalFlip()])
    out = flip.apply({"image": image, "keypoints": points}, ({"flip": True}, {"flip": False}))
    expected = [[9, 0], [6, 2], [np.nan, 1], [10, 4], [0, 7]]
    np.testing.assert_array_equal(out["keypoints"][0], expected)
    assert out["keypoints_visible"].tolist() == [[True, True, False, False, True]]
    angle = im.Compose([im.RandomRotation(0)])
    out = angle.apply({"image": image, "keypoints": points}, ({"angle": np.float32(180)},))
    np.testing.assert_allclose(out["keypoints"][0, 1], [7, 6], atol=1e-5)
    hidden = {"image": image, "keypoints": points, "keypoints_visible": np.int32([[1, 0, 2, 1, 1]])}
    shown = flip.apply(hidden, ({"flip": False}, {"flip": False}))["keypoints_visible"]
    assert shown.tolist() == [[True, False, False, False, True]]


def test_cropped_parts_do_not_reappear():
    """A cropped keypoint remains invisible even if a later border would show its position."""
    fields = {
        "image": np.zeros((1, 8, 10, 1), np.uint8),
        "keypoints": np.float32([[[1, 4], [5, 4]]]),
        "boxes": np.float32([[[0, 3, 2, 5], [2, 3, 8, 5], [4, 4, 4.5, 6], [np.nan, 0, 3, 3]]]),
        "boxes_valid": np.ones((1, 4), bool),
        "name": ["kept"],
    }
    out = im.Compose([im.CenterCrop((8, 4)), im.Pad(3)]).apply(fields)
    assert out["keypoints"].tolist() == [[[1, 7], [5, 7]]]
    assert out["keypoints_visible"].tolist() == [[False, True]]
    assert out["boxes_valid"].tolist() == [[False, True, False, False]]
    np.testing.assert_array_equal(out["boxes"][0, 1:], [[3, 6, 7, 8], [4, 7, 4.5, 9], [0, 0, 0, 0]])
    assert out["name"] == ["kept"]
    small = im.Compose([im.CenterCrop((8, 4)), im.SanitizeBoundingBoxes(min_size=2.5), im.Pad(3)])
    assert not small.apply(fields)["boxes_valid"].any()


def test_a_box_of_the_complete_image_fills_it_after_a_resize():
    """Exact to the last bit: otherwise the box would leave the image and be dropped."""
    corners = np.float32([[[0, 0], [41, 27]]])
    moved = moved_points(corners, box_move((0, 0, 27, 41), (55, 27)))
    assert moved.tolist() == [[[0, 0], [27, 55]]]


def test_a_canvas_cuts_images_and_their_targets():
    """The part of an image on a smaller canvas is an image of that size for later transforms."""
    sizes = {"height": np.int32([54, 18, 30, 72]), "width": np.int32([72, 24, 60, 96])}
    fields = {
        "image": coordinates(),
        "mask": numbered(),
        "boxes": np.float32([[[2, 3, 30, 20], [40, 3, 47, 10]]] * COUNT),
        "keypoints": np.float32([[[4, 6], [40, 10]]] * COUNT),
    }
    flip = {"flip": np.ones(COUNT, bool)}
    resize = im.ScaleJitter((48, 48))
    complete = jax.jit(im.Compose([resize]).apply)(fields, (sizes,))
    resize = im.ScaleJitter((48, 48), canvas=(36, 40))
    aug = im.Compose([resize, im.RandomHorizontalFlip()])
    out = jax.jit(aug.apply)(fields, (sizes, flip))
    assert out["image"].shape == (COUNT, 36, 40, 3)
    assert out["image_size"].tolist() == [[36, 40], [18, 24], [30, 40], [36, 40]]
    for n, (height, width) in enumerate(np.asarray(out["image_size"])):
        for name in ("image", "mask"):
            inputs, created = np.asarray(complete[name])[n], np.asarray(out[name])[n]
            np.testing.assert_array_equal(
                created[:height, :width], inputs[:height, :width][:, ::-1]
            )
            assert not created[height:].any()
            assert not created[:, width:].any()
        left, top, right, bottom = np.minimum(complete["boxes"][n], [width, height] * 2).T
        expected = np.stack([width - right, top, width - left, bottom], -1)
        np.testing.assert_allclose(out["boxes"][n], expected, rtol=1e-6)
        assert out["boxes_valid"][n].tolist() == (right - left > 0).tolist()
        x, y = np.asarray(complete["keypoints"])[n].T
        np.testing.assert_array_equal(out["keypoints_visible"][n], (x < width) & (y < height))


def test_frames_of_a_clip_share_a_draw():
    rng = np.random.default_rng(2)
    clips = rng.integers(0, 256, (COUNT, 3, HEIGHT, WIDTH, 3)).astype(np.uint8)
    masks = clips[..., 0]
    boxes = rng.uniform(4, 30, (COUNT, 3, 2, 4)).astype(np.float32)
    aug = im.Compose([*CHAINS["all"], im.Normalize(0.5, 0.5)])
    params = sample(aug, KEYS, (HEIGHT, WIDTH))
    apply = jax.jit(aug.apply)
    out = apply({"image": clips, "mask": masks, "boxes": boxes}, params)
    assert out["image"].shape == (COUNT, 3, 44, 44, 3)
    for frame in range(3):
        alone = {"image": clips[:, frame], "mask": masks[:, frame], "boxes": boxes[:, frame]}
        for name, value in apply(alone, params).items():
            np.testing.assert_array_equal(out[name][:, frame], value)


@pytest.mark.parametrize(
    ("noise", "name"),
    [
        (im.GaussianNoise(), "seed"),
        slow(im.RandomApply([im.GaussianNoise()]), "0.seed"),
    ],
    ids=["alone", "contained"],
)
def test_frames_of_a_clip_have_different_noise(noise, name):
    """Frames have different noise, as in torchvision: equal noise would look like a pattern."""
    params = {name: np.int32([[7, -1], [2**31 - 1, 2**31 - 1]])}
    inputs = params | ({"apply": np.ones(2, bool)} if name != "seed" else {})
    out = np.asarray(im.Compose([noise]).apply(np.zeros((2, 3, 6, 6, 1), np.float32), (inputs,)))
    assert len(np.unique(out.reshape(6, 36), axis=0)) == 6
    aug, image = im.Compose([im.GaussianNoise()]), np.zeros((2, 6, 6, 1), np.float32)
    np.testing.assert_array_equal(out[:, 0], aug.apply(image, ({"seed": params[name]},)))
    last = np.int32([[7, 1], [2**31 - 1, -(2**31) + 1]])
    np.testing.assert_array_equal(out[:, 2], aug.apply(image, ({"seed": last},)))


@pytest.mark.parametrize(("clips", "frames"), [(2, 0), (0, 3)])
def test_empty_clips_and_batches(clips, frames):
    aug = im.Compose([im.RandomHorizontalFlip(), im.CenterCrop(4)])
    out = aug(jax.random.key(0), np.zeros((clips, frames, 6, 6, 1), np.uint8))
    assert out.shape == (clips, frames, 4, 4, 1)


@pytest.mark.slow
def test_clips_mix_with_clips():
    rng = np.random.default_rng(2)
    clips = rng.uniform(size=(COUNT, 2, 6, 6, 1)).astype(np.float32)
    labels = np.eye(COUNT, dtype=np.float32)
    aug = im.Compose([im.MixUp(per_sample=True)])
    params = sample(aug, KEYS, (6, 6))
    mixed, soft = aug.apply(clips, params, labels)
    for frame in range(2):
        alone, expected = aug.apply(clips[:, frame], params, labels)
        np.testing.assert_array_equal(mixed[:, frame], alone)
        np.testing.assert_array_equal(soft, expected)


@pytest.mark.slow
def test_a_record_has_the_same_targets_in_any_batch_under_jit_and_vmap():
    aug = im.Compose([*CHAINS["ssd"], im.RandomRotation(20)])
    inputs = points()[:, :8]
    boxes = np.concatenate([inputs, inputs + 7], axis=-1)
    fields = {"image": coordinates(), "mask": numbered(), "boxes": boxes, "keypoints": inputs}
    together = jax.jit(aug)(KEYS, fields)
    mapped = jax.vmap(
        lambda key, one: jax.tree.map(
            lambda leaf: leaf[0], aug(key[None], jax.tree.map(lambda leaf: leaf[None], one))
        )
    )(KEYS, jax.tree.map(jnp.asarray, fields))
    alone = aug(KEYS[2:3], {name: value[2:3] for name, value in fields.items()})
    assert together.keys() == mapped.keys() == alone.keys()
    for name, value in together.items():
        np.testing.assert_allclose(value, mapped[name], atol=1e-4)
        np.testing.assert_allclose(value[2:3], alone[name], atol=1e-4)


@pytest.mark.slow
def test_ragged_images_zoom_out():
    """SSD's sampling of images of different sizes, on a canvas for the largest of them."""
    sizes, zoomed = [(6, 7), (9, 5)], [(11, 20), (9, 5)]
    pictures = [np.full((*size, 1), 50 + k, np.uint8) for k, size in enumerate(sizes)]
    aug = im.Compose([im.RandomZoomOut(7, (1, 3)), im.RandomIoUCrop()])
    zoom = {"top": [4, 0], "left": [2, 0], "height": [11, 9], "width": [20, 5]}
    crop = {"top": [2, 1], "left": [1, 2], "height": [8, 4], "width": [12, 3]}
    zoom, crop = ({name: np.int32(v) for name, v in inputs.items()} for inputs in (zoom, crop))
    fields = {"image": im.Ragged.from_list(pictures), "boxes": np.float32([[[0, 0, 5, 5]]] * 2)}
    out = aug.apply(fields, (zoom, crop | {"crop": np.ones(2, bool)}))
    assert out["image"].shape == (2, 27, 21, 1)
    assert out["image_size"].tolist() == [[8, 12], [4, 3]]
    for n, (size, complete) in enumerate(zip(sizes, zoomed, strict=True)):
        canvas, (top, left) = np.full(complete, 7), (zoom["top"][n], zoom["left"][n])
        canvas[top : top + size[0], left : left + size[1]] = 50 + n
        top, left, height, width = (crop[name][n] for name in zoom)
        expected = canvas[top : top + height, left : left + width]
        np.testing.assert_array_equal(out["image"][n, :height, :width, 0], expected)
    assert out["boxes"].tolist() == [[[1, 2, 6, 7]], [[0, 0, 3, 4]]]
    fitted = im.Compose([im.ScaleJitter((8, 8), canvas=(8, 6))]).eval().apply(fields)
    assert fitted["image_size"].tolist() == [[6, 6], [8, 4]]


@pytest.mark.slow
def test_targets_of_images_of_different_sizes():
    """A ragged batch gives the results of each image alone."""
    rng = np.random.default_rng(4)
    sizes = [(20, 31), (33, 18)]
    pictures = [rng.integers(0, 256, (*size, 3)).astype(np.uint8) for size in sizes]
    masks = [rng.integers(0, 256, (*size, 1)).astype(np.uint8) for size in sizes]
    boxes = np.float32([[[2, 3, 12, 14]], [[5, 6, 15, 30]]])
    zoom = im.RandomZoomOut(side_range=(1, 2), p=0.7)
    aug = im.Compose([zoom, im.RandomIoUCrop(), im.Resize((16, 16)), im.RandomHorizontalFlip()])
    fields = {
        "image": im.Ragged.from_list(pictures),
        "mask": im.Ragged.from_list(masks),
        "boxes": boxes,
    }
    out = aug(KEYS[:2], fields)
    for n in range(2):
        one = {
            "image": pictures[n][None],
            "mask": masks[n][None, ..., 0],
            "boxes": boxes[n : n + 1],
        }
        for name, value in aug(KEYS[n : n + 1], one).items():
            np.testing.assert_allclose(out[name][n], value[0], atol=1e-4)
