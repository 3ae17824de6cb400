"""Chains against torchvision's v2 functions; run by `make test-torchvision` only."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.image.comparison import assert_close
from support.image.draws import assert_same_distribution, draw
from support.image.torchvision_functions import array, draws, tensor

from jaxkern import image as im

RNG = np.random.default_rng(9)
U8 = RNG.integers(0, 256, (3, 37, 53, 3), np.uint8)
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
BOXES = [(0, 0, 37, 53), (5, 11, 20, 9), (36, 52, 1, 1)]
CROPS = dict(
    zip(("top", "left", "height", "width"), np.asarray(BOXES, np.int32).T.copy(), strict=True)
)
FLIPS = np.asarray([True, False, True])


@pytest.mark.parametrize("mode", ["antialias", "bilinear", "nearest"])
def test_training_chain(v2, run, mode):
    f = v2.functional
    interpolation = "nearest" if mode == "nearest" else "bilinear"
    antialias = mode == "antialias"
    aug = im.Compose(
        [
            im.RandomResizedCrop(24, interpolation=interpolation, antialias=antialias),
            im.RandomHorizontalFlip(),
            im.Normalize(MEAN, STD),
        ]
    )
    out = run(aug, U8, (CROPS, {"flip": FLIPS}, {}))
    kind = "NEAREST_EXACT" if mode == "nearest" else "BILINEAR"
    rows = []
    for image, box, flip in zip(tensor(U8).float() / 255, BOXES, FLIPS, strict=True):
        image = f.resized_crop(
            image, *box, [24, 24], getattr(v2.InterpolationMode, kind), antialias=antialias
        )
        image = f.horizontal_flip(image) if flip else image
        rows.append(f.normalize(image, MEAN, STD))
    assert_close(out, array(torch.stack(rows)))


@pytest.mark.parametrize("size", [24, (20, 31), 60])
def test_u8_evaluation_chain(v2, run, size):
    """torchvision rounds uint8 between steps and computes in fixed point: at most one level."""
    aug = im.Compose([im.Resize(size), im.CenterCrop(28), im.Pad((1, 2, 3, 4), fill=9)])
    out = run(aug, U8, ({}, {}, {}))
    reference = v2.Compose(
        [v2.Resize(size, antialias=True), v2.CenterCrop(28), v2.Pad((1, 2, 3, 4), fill=9)]
    )
    expected = reference(tensor(U8))
    assert out.dtype == np.uint8
    assert np.abs(np.asarray(out).astype(int) - array(expected)).max() <= 1


def test_resize_max_size(v2):
    for size in [(37, 53), (53, 37), (40, 200), (200, 40), (64, 64)]:
        for edge, limit in [(24, None), (30, 40), (32, 33)]:
            image = torch.zeros((1, *size), dtype=torch.uint8)
            expected = v2.Resize(edge, max_size=limit)(image).shape[1:]
            assert im.Resize(edge, max_size=limit).output_size(size) == tuple(expected)


def test_center_crop_of_odd_sizes(v2, run):
    for size in [(36, 52), (37, 60), (10, 11), (50, 13)]:
        out = run(im.Compose([im.CenterCrop(size)]), U8, ({},))
        np.testing.assert_array_equal(out, array(v2.CenterCrop(size)(tensor(U8))))


def test_dtype_conversions(v2, run):
    f = v2.functional
    values = RNG.random((2, 5, 7, 3)).astype(np.float32)
    out = run(im.Compose([im.ToDtype(np.uint8, scale=True)]), values, ({},))
    np.testing.assert_array_equal(out, array(f.to_dtype(tensor(values), torch.uint8, scale=True)))
    back = run(im.Compose([im.ToDtype(np.float32, scale=True)]), U8, ({},))
    assert_close(back, array(f.to_dtype(tensor(U8), torch.float32, scale=True)))


def test_mixing_partner_and_labels(v2, run):
    values, labels = RNG.random((3, 8, 8, 3)).astype(np.float32), torch.tensor([0, 2, 1])
    onehot = np.eye(3, dtype=np.float32)[labels.numpy()]
    mixup = v2.MixUp(alpha=1.0, num_classes=3)
    params = {"lam": 0.3, "labels": labels, "batch_size": 3}
    expected, soft = (mixup.transform(x, params) for x in (tensor(values), labels))
    out, mixed = run(im.Compose([im.MixUp()]), values, ({"lam": 0.3},), onehot)
    assert_close(out, array(expected))
    np.testing.assert_allclose(mixed, soft.numpy(), atol=1e-6)


def test_boxes_have_the_same_distribution(v2):
    """2,000 draws of crops and of erasures."""
    size, names = (60, 90), ("top", "left", "height", "width")
    crops = draws(v2.RandomResizedCrop(8), 2000, size)
    mine = draw(im.RandomResizedCrop(8), size, 2000)
    for name in names:
        assert_same_distribution(mine[name], [params[name] for params in crops])
    erasures = draws(v2.RandomErasing(p=1.0), 2000, size)
    mine = draw(im.RandomErasing(1.0), size, 2000)
    for name, short in zip(names, "ijhw", strict=True):
        assert_same_distribution(mine[name], [params[short] for params in erasures])


def test_options_are_expanded_like_torchvisions(v2):
    """Comparisons of other tests call torchvision's functions with these fields."""
    image, functions = torch.rand(3, 40, 50), v2.functional
    for padding in (3, (1, 4), (4, 0, 2, 3)):
        mine = functions.pad(image, list(im.Pad(padding).padding))
        assert torch.equal(mine, v2.Pad(padding)(image))
    for kernel in (3, (5, 9)):
        mine = functions.gaussian_blur(image, list(im.GaussianBlur(kernel).kernel_size), [1.0, 1.0])
        assert torch.equal(mine, v2.GaussianBlur(kernel, 1.0)(image))
    for fill, center in ((0, None), (0.5, (7.5, 20.0))):
        turn = im.RandomRotation((30, 30), center=center, fill=fill)
        mine = functions.rotate(image, 30, center=turn.center, fill=list(turn.fill))
        assert torch.equal(mine, v2.RandomRotation((30, 30), center=center, fill=fill)(image))
    for options in ({"size": 20}, {"size": (20, 31)}, {"size": None, "max_size": 30}):
        assert list(im.Resize(**options).output_size((40, 50))) == list(
            v2.Resize(**options)(image).shape[1:]
        )
