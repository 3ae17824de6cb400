"""Warps and blurs against torchvision's v2 with equal parameters."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from support.image.comparison import assert_alike
from support.image.draws import assert_same_distribution, draw, sample
from support.image.pictures import pictures
from support.image.torchvision_functions import array, draws, expected, tensor

from jaxkern import image as im

RNG = np.random.default_rng(4)
SIZES = [(37, 53), (64, 64), (30, 101)]
CASES = [
    (size, interpolation, *rest)
    for size in SIZES
    for interpolation in ("nearest", "bilinear")
    for rest in [
        (3, np.uint8, 0, None),
        (1, np.uint8, 90, (7.5, 20.0)),
        (3, np.float32, None, None),
    ]
]


def affine(interpolation, fill=0, center=None):
    return im.RandomAffine(
        120, (0.2, 0.3), (0.6, 1.7), (-20, 20, -15, 15), interpolation, fill, center
    )


@pytest.mark.parametrize(("size", "interpolation", "channels", "dtype", "fill", "center"), CASES)
@pytest.mark.parametrize(
    "name", ["affine", "perspective", "rotation", 33.3, -100.0, 90.0, 180.0, 270.0]
)
def test_warps(v2, run, size, interpolation, channels, dtype, fill, center, name):
    """Numbers are angles of rotations that expand the image."""
    params = {"angle": np.float32([33.3, -171.0, 0.0, 180.0])}
    if name == "affine":
        transform = affine(interpolation, fill, center)
    elif name == "perspective":
        transform = im.RandomPerspective(0.6, 1.0, interpolation, fill)
    elif name == "rotation":
        transform = im.RandomRotation(9, interpolation, center=center, fill=fill)
    else:
        transform = im.RandomRotation((name, name), interpolation, True, center, fill)
        params = {"angle": np.full(4, name)}
    aug, images = im.Compose([transform]), pictures(RNG, (4, *size, channels), dtype)
    if name in ("affine", "perspective"):
        (params,) = sample(aug, jax.random.split(jax.random.key(1), 4), size)
    out = run(aug, images, (params,))
    assert_alike(out, expected(v2, transform, images, params), interpolation)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_points_of_large_noise(v2, run, interpolation):
    """A position that is off by 1e-5 pixels changes the level of one pixel of 1,000."""
    size, count = (224, 300), 6
    images = pictures(RNG, (count, *size, 3))
    tilted = im.RandomPerspective(0.6, 1.0, interpolation)
    turned = im.RandomAffine(180, (0.2, 0.2), (0.5, 2), 20, interpolation)
    for transform in (turned, tilted):
        aug = im.Compose([transform])
        params = sample(aug, jax.random.split(jax.random.key(3), count), size)
        out = np.asarray(run(aug, images, params))
        away = np.abs(out.astype(int) - expected(v2, transform, images, params[0])).max(axis=-1)
        assert away.max() <= (interpolation == "bilinear")
        assert (away > 0).mean() <= 1e-4


def test_sizes_of_expanded_rotations(v2):
    random = np.random.default_rng(9)
    for _ in range(400):
        angle = float(random.choice([random.uniform(-400, 400), 15 * random.integers(-24, 24)]))
        size = tuple(random.integers(1, 90, 2).tolist())
        center = None if random.random() < 0.5 else random.uniform(-5, 60, 2).tolist()
        mine = im.RandomRotation((angle, angle), expand=True, center=center)
        expected = v2.functional.rotate(torch.zeros((1, *size)), angle, expand=True, center=center)
        assert mine.output_size(size) == tuple(expected.shape[1:]), (angle, size, center)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_quarter_turns_of_squares(v2, run, interpolation):
    images = pictures(RNG, (4, 24, 24, 3))
    angle = np.float32([90, 180, 270, -90])
    out = run(im.Compose([im.RandomRotation(9, interpolation)]), images, ({"angle": angle},))
    rows = [v2.functional.rotate(image, float(angle[k])) for k, image in enumerate(tensor(images))]
    np.testing.assert_array_equal(out, array(torch.stack(rows)))


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("kernel", [3, (5, 9), (23, 23)])
def test_blur(v2, run, dtype, kernel):
    images, blur = pictures(RNG, (4, 37, 53, 3), dtype), im.GaussianBlur(kernel)
    params = {"sigma": np.float32([0.1, 0.5, 2.0, 5.0])}
    out = run(im.Compose([blur]), images, (params,))
    assert_alike(out, expected(v2, blur, images, params))


def test_draws_have_the_same_distribution(v2):
    """10,000 draws of each parameter; seeds are fixed."""

    def both(name, *arguments):
        mine, theirs = (getattr(module, name)(*arguments) for module in (im, v2))
        return draw(mine, (60, 91), 10_000), draws(theirs, 10_000, (60, 91))

    mine, theirs = both("RandomAffine", (-20, 50), (0.1, 0.3), (0.5, 2), (-9, 3, 4, 8))
    for name in ("angle", "scale"):
        assert_same_distribution(mine[name], [d[name] for d in theirs])
    for k, axis in enumerate("xy"):
        for name in ("translate", "shear"):
            assert_same_distribution(mine[f"{name}_{axis}"], [d[name][k] for d in theirs])
    mine, theirs = both("RandomRotation", 30)
    assert_same_distribution(mine["angle"], [d["angle"] for d in theirs])
    mine, theirs = both("GaussianBlur", 5)
    assert_same_distribution(mine["sigma"], [d["sigma"][0] for d in theirs])


def test_corners_have_the_same_distribution(v2, monkeypatch):
    """torchvision returns coefficients only, so end points are intercepted."""
    import torchvision.transforms.v2._geometry as geometry

    selected = []
    monkeypatch.setattr(
        geometry, "_get_perspective_coeffs", lambda start, end: selected.append(end)
    )
    draws(v2.RandomPerspective(0.4), 10_000, (60, 91))
    mine = draw(im.RandomPerspective(0.4, 1.0), (60, 91), 10_000)["endpoints"]
    for corner in range(4):
        for axis in range(2):
            theirs = np.asarray(selected)[:, corner, axis]
            assert_same_distribution(mine[:, corner, axis], theirs)
