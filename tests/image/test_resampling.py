"""Resampling at the edges of images and number ranges, against Pillow and float64."""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from support.image.comparison import assert_close

from jaxkern import image as im

RNG = np.random.default_rng(7)
DTYPES = [np.uint8, np.float32, np.float16, jnp.bfloat16]
PHOTO = RNG.integers(0, 256, (1, 61, 83, 3), np.uint8)
BOXES = {
    "whole": (0, 0, 61, 83),
    "pixel": (17, 29, 1, 1),
    "last_pixel": (60, 82, 1, 1),
    "row": (60, 0, 1, 83),
    "column": (0, 82, 61, 1),
    "corner": (41, 50, 20, 33),
    "inner": (13, 8, 30, 47),
}


def crop_params(boxes):
    columns = np.asarray(boxes, np.int32).reshape(-1, 4).T
    return (dict(zip(("top", "left", "height", "width"), columns, strict=True)),)


def pillow_resize(part, size):
    """Antialiased bilinear resize in float32, channel by channel."""
    planes = [Image.fromarray(plane.astype(np.float32)) for plane in np.moveaxis(part, -1, 0)]
    resized = [np.asarray(p.resize(size[::-1], Image.Resampling.BILINEAR)) for p in planes]
    return np.stack(resized, axis=-1)


@pytest.mark.parametrize("size", [(24, 24), (7, 101)])
def test_antialias_equals_pillow(run, size):
    names, boxes = zip(*BOXES.items(), strict=True)
    images = np.repeat(PHOTO, len(boxes), axis=0)
    aug = im.Compose([im.RandomResizedCrop(size)], dtype=np.float32, scale=False)
    out = np.asarray(run(aug, images, crop_params(boxes)))
    for name, (top, left, height, width), got in zip(names, boxes, out, strict=True):
        expected = pillow_resize(PHOTO[0, top : top + height, left : left + width], size)
        np.testing.assert_allclose(got, expected, atol=2e-4 * 255, err_msg=name)


def test_u8_antialias_within_one_level_of_pillow(run):
    """Pillow rounds to uint8 after each of its two passes, so that single levels differ."""
    aug = im.Compose([im.RandomResizedCrop((24, 37))])
    out = np.asarray(run(aug, PHOTO, crop_params([BOXES["inner"]])))[0]
    top, left, height, width = BOXES["inner"]
    part = Image.fromarray(PHOTO[0, top : top + height, left : left + width])
    expected = np.asarray(part.resize((37, 24), Image.Resampling.BILINEAR))
    assert np.abs(out.astype(int) - expected).max() <= 1


@pytest.mark.parametrize(
    ("backend", "width", "interpolation"),
    [
        *itertools.product(["native"], [1, 31, 64], ["bilinear", "nearest"]),
        ("jax", 1, "nearest"),
        ("jax", 31, "bilinear"),
    ],
    indirect=["backend"],
)
def test_all_boxes_equal_oracle(check, interpolation, width):
    boxes = list(BOXES.values())
    images = np.repeat(PHOTO, len(boxes), axis=0)
    crop = im.RandomResizedCrop((29, width), interpolation=interpolation, antialias=False)
    flips = np.arange(len(boxes)) % 2 == 0
    aug = im.Compose([crop, im.RandomHorizontalFlip(), im.Normalize(0.5, 0.25)])
    check(aug, images, (*crop_params(boxes), {"flip": flips}, {}))


@pytest.mark.parametrize(
    ("backend", "dtype", "channels"),
    [
        *itertools.product(["native"], DTYPES, [1, 3, 4]),
        *zip(["jax"] * 4, DTYPES, [1, 3, 4, 3], strict=True),
    ],
    indirect=["backend"],
)
def test_dtypes_and_channels(check, channels, dtype):
    images = (RNG.random((2, 9, 11, channels)) * (255 if dtype == np.uint8 else 1)).astype(dtype)
    flip = np.asarray([True, False])
    aug = im.Compose([im.RandomVerticalFlip(), im.Resize((6, 5), antialias=False)], layout="NCHW")
    out, _ = check(aug, images, ({"flip": flip}, {}), odd_levels=0.1)
    assert out.dtype == dtype


def test_long_axis_keeps_precision(check):
    images = RNG.random((1, 2, 20001, 1)).astype(np.float32)
    check(im.Compose([im.Resize((2, 100))]), images, ({},))


@pytest.mark.parametrize("interpolation", ["bilinear", "nearest"])
def test_positions_beyond_32_bits(run, interpolation):
    """2 * 70001 * 40000 does not fit in 32 bits."""
    line = RNG.random(70001)
    images = line.astype(np.float32).reshape(1, 1, -1, 1)
    resize = im.Resize((1, 40000), interpolation, antialias=False)
    out = np.asarray(run(im.Compose([resize, im.CenterCrop((1, 38001))]), images, ({}, {})))
    index = 1000 + np.arange(38001)  # the odd pixel: round(1999 / 2) is 1000
    position = (2 * index + 1) * 70001 / 80000
    if interpolation == "nearest":
        expected = line[position.astype(int)]
    else:
        complete = np.floor(position - 0.5).astype(int)
        fraction = position - 0.5 - complete
        expected = (
            line[complete] * (1 - fraction) + line[np.minimum(complete + 1, 70000)] * fraction
        )
    np.testing.assert_allclose(out.reshape(-1), expected, atol=2e-4)


def test_same_size_resize_is_exact(run):
    aug = im.Compose([im.Resize((61, 83))])
    np.testing.assert_array_equal(run(aug, PHOTO, ({},)), PHOTO)


def test_lookups_are_exact(run):
    """Crops, flips, pads and nearest resizes copy uint8 values without changes."""
    aug = im.Compose(
        [
            im.CenterCrop(40),
            im.RandomHorizontalFlip(),
            im.Pad((1, 2, 3, 4), fill=7),
            im.ToDtype(np.float32, scale=True),
            im.ToDtype(np.uint8, scale=True),
        ]
    )
    out = run(aug, PHOTO, ({}, {"flip": True}, {}, {}, {}))
    top, left = round((61 - 40) / 2), round((83 - 40) / 2)
    middle = PHOTO[:, top : top + 40, left : left + 40][:, :, ::-1]
    expected = np.pad(middle, ((0, 0), (2, 4), (1, 3), (0, 0)), constant_values=7)
    np.testing.assert_array_equal(out, expected)


def test_empty_batch_and_single(run):
    aug = im.Compose([im.RandomResizedCrop(5), im.Normalize(0.5, 0.5)])
    empty = np.zeros((0, 8, 8, 3), np.uint8)
    out = run(aug, empty, (*crop_params(np.zeros((0, 4))), {}))
    assert out.shape == (0, 5, 5, 3)
    one = run(aug, PHOTO[:, :8, :8], (*crop_params([[0, 0, 8, 8]]), {}))
    assert_close(one, np.asarray(one, np.float64))
    assert one.shape == (1, 5, 5, 3)
