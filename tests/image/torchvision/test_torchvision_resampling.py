"""Bicubic filters and padding modes against torchvision's, on tensors of random sizes."""

from __future__ import annotations

import numpy as np
import pytest
from support.image.torchvision_functions import array, expected, tensor

from jaxkern import image as im

RNG = np.random.default_rng(31)
SIZES = [(5, 7), (24, 31), (37, 53), (90, 40)]
MODES = ["edge", "reflect", "symmetric"]


def photo(size, dtype, channels=3):
    """Return images of half noise and half black and white, whose edges overshoot."""
    image = RNG.integers(0, 256, (*size, channels))
    edges = 255 * (RNG.random((*size, channels)) < 0.5)
    image[:, size[1] // 2 :] = edges[:, size[1] // 2 :]
    image = image.astype(np.uint8)
    return image if dtype == np.uint8 else image.astype(np.float32) / np.float32(255)


def check(v2, run, transform, images, params, exact=False):
    """Compare a transform of images with torchvision's."""
    out = run(im.Compose([transform]), images, (params,))
    theirs = expected(v2, transform, images, params)
    assert out.dtype == theirs.dtype
    if exact:
        np.testing.assert_array_equal(out, theirs)
    elif out.dtype == np.uint8:  # torchvision: fixed point, and rounded between the two passes
        assert np.abs(np.asarray(out).astype(int) - theirs).max() <= 1
    else:
        np.testing.assert_allclose(out, theirs, rtol=0, atol=2e-4)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_bicubic(v2, run, size, antialias, dtype):
    for channels, new in ((3, (24, 24)), (1, (7, 70)), (4, (60, 13))):
        image = photo(size, dtype, channels)
        check(v2, run, im.Resize(new, "bicubic", antialias=antialias), image[None], {})


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("antialias", [True, False])
def test_bicubic_crops(v2, run, antialias, dtype):
    image = photo((37, 53), dtype)
    boxes = [(0, 0, 37, 53), (5, 11, 20, 9), (36, 52, 1, 1), (10, 0, 3, 2), (30, 3, 6, 50)]
    names = ("top", "left", "height", "width")
    params = dict(zip(names, np.asarray(boxes, np.int32).T.copy(), strict=True))
    crop = im.RandomResizedCrop((21, 18), interpolation="bicubic", antialias=antialias)
    check(v2, run, crop, np.stack([image] * len(boxes)), params)


def test_bicubic_levels_are_clamped_before_they_are_normalized(v2, run):
    image = photo((37, 53), np.uint8)
    aug = im.Compose([im.Resize((20, 60), "bicubic"), im.Normalize(0.5, 0.25)])
    bicubic = v2.InterpolationMode.BICUBIC
    theirs = v2.functional.resize(tensor(image), [20, 60], bicubic).float() / 255
    out = np.asarray(run(aug, image[None], ({}, {})))[0]
    np.testing.assert_allclose(out, (array(theirs) - 0.5) / 0.25, rtol=0, atol=1.01 / 255 / 0.25)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
def test_padding(v2, run, size, mode, dtype):
    image = photo(size, dtype)
    for padding in (3, (1, 4), (4, 0, 2, 3), (0, 4, 6, 0)):
        check(v2, run, im.Pad(padding, padding_mode=mode), image[None], {}, exact=True)


@pytest.mark.parametrize("mode", MODES)
def test_crops_of_padded_images(v2, run, mode):
    image = photo((12, 9), np.uint8)
    theirs = v2.RandomCrop((14, 8), (3, 2), pad_if_needed=True, padding_mode=mode)
    ours = im.RandomCrop((14, 8), (3, 2), pad_if_needed=True, padding_mode=mode)
    for _ in range(20):
        draws = theirs.make_params([tensor(image)])
        params = {name: np.int32(draws[name]) for name in ("top", "left")}
        out = run(im.Compose([ours]), image[None], (params,))[0]
        np.testing.assert_array_equal(out, array(theirs.transform(tensor(image), draws)))


@pytest.mark.parametrize(("mode", "largest"), [("reflect", 4), ("symmetric", 5)])
def test_borders_too_wide_to_mirror(v2, mode, largest):
    image = photo((5, 7), np.float32)
    for padding, good in ((largest, True), (largest + 1, False)):
        padded = (0, padding, 0, 0)
        for call, error in (
            (lambda p: v2.functional.pad(tensor(image), p, padding_mode=mode), Exception),
            (lambda p: im.Compose([im.Pad(p, padding_mode=mode)]).apply(image[None]), ValueError),
        ):
            if good:
                call(padded)
            else:
                with pytest.raises(error):
                    call(padded)
    with pytest.raises(ValueError, match="fill"):
        v2.functional.pad(tensor(image), 1, fill=[0.1, 0.2, 0.3], padding_mode=mode)
    with pytest.raises(ValueError, match="fill"):
        im.Pad(1, fill=(0.1, 0.2, 0.3), padding_mode=mode)
