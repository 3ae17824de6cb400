"""Warps and blurs against torchvision's v2 with equal parameters."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp
from support.image.comparison import assert_alike
from support.image.torchvision_functions import array, tensor

from jaxkern import image as im

RNG = np.random.default_rng(4)
SIZES = [(37, 53), (64, 64), (30, 101)]


def pictures(size, channels, dtype):
    levels = RNG.integers(0, 256, (4, *size, channels), np.uint8)
    return levels if dtype == np.uint8 else (levels / 255).astype(dtype)


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


@pytest.mark.parametrize(("size", "interpolation", "channels", "dtype", "fill", "center"), CASES)
def test_affine(v2, run, size, interpolation, channels, dtype, fill, center):
    images = pictures(size, channels, dtype)
    mine = im.RandomAffine(
        120, (0.2, 0.3), (0.6, 1.7), (-20, 20, -15, 15), interpolation, fill, center
    )
    params = mine.sample(jax.random.key(0), size).keys()
    draws = im.Compose([mine]).sample(jax.random.split(jax.random.key(1), 4), size)
    out = run(im.Compose([mine]), images, draws)
    rows = []
    for k, image in enumerate(tensor(images)):
        p = {name: float(draws[0][name][k]) for name in params}
        rows.append(
            v2.functional.affine(
                image,
                p["angle"],
                [p["translate_x"], p["translate_y"]],
                p["scale"],
                [p["shear_x"], p["shear_y"]],
                v2.InterpolationMode(interpolation),
                fill,
                center,
            )
        )
    assert_alike(out, array(torch.stack(rows)), interpolation)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_points_of_large_noise(v2, run, interpolation):
    """A position that is off by 1e-5 pixels changes the level of one pixel of 1,000."""
    size, count = (224, 300), 6
    images = RNG.integers(0, 256, (count, *size, 3), np.uint8)
    mode = v2.InterpolationMode(interpolation)
    affine = im.Compose([im.RandomAffine(180, (0.2, 0.2), (0.5, 2), 20, interpolation)])
    tilted = im.Compose([im.RandomPerspective(0.6, 1.0, interpolation)])
    keys = jax.random.split(jax.random.key(3), count)
    (a,), (p,) = (aug.sample(keys, size) for aug in (affine, tilted))
    a = {name: np.asarray(value).tolist() for name, value in a.items()}
    start = [[0, 0], [299, 0], [299, 223], [0, 223]]
    rows = []
    for k, image in enumerate(tensor(images)):
        shift, shear = [a[f"translate_{c}"][k] for c in "xy"], [a[f"shear_{c}"][k] for c in "xy"]
        rotated = v2.functional.affine(image, a["angle"][k], shift, a["scale"][k], shear, mode, 0)
        end = np.asarray(p["endpoints"][k]).tolist()
        rows.append(torch.stack([rotated, v2.functional.perspective(image, start, end, mode, 0)]))
    expected = array(torch.cat(rows)).reshape(count, 2, *size, 3)
    of_affine = {name: np.float32(value) for name, value in a.items()}
    out = np.stack([run(affine, images, (of_affine,)), run(tilted, images, (p,))], axis=1)
    away = np.abs(out.astype(int) - expected).max(axis=-1)
    assert away.max() <= (interpolation == "bilinear")
    assert (away > 0).mean() <= 1e-4


@pytest.mark.parametrize(("size", "interpolation", "channels", "dtype", "fill", "center"), CASES)
def test_rotation(v2, run, size, interpolation, channels, dtype, fill, center):
    images = pictures(size, channels, dtype)
    angle = np.float32([33.3, -171.0, 0.0, 180.0])
    mine = im.RandomRotation(9, interpolation, center=center, fill=fill)
    out = run(im.Compose([mine]), images, ({"angle": angle},))
    rows = [
        v2.functional.rotate(
            image, float(angle[k]), v2.InterpolationMode(interpolation), False, center, fill
        )
        for k, image in enumerate(tensor(images))
    ]
    assert_alike(out, array(torch.stack(rows)), interpolation)


@pytest.mark.parametrize(("size", "interpolation", "channels", "dtype", "fill", "center"), CASES)
@pytest.mark.parametrize("angle", [33.3, -100.0, 90.0, 180.0, 270.0])
def test_expanded_rotation(v2, run, size, interpolation, channels, dtype, fill, center, angle):
    images = pictures(size, channels, dtype)
    mine = im.RandomRotation((angle, angle), interpolation, True, center, fill)
    out = run(im.Compose([mine]), images, ({"angle": angle},))
    rows = [
        v2.functional.rotate(image, angle, v2.InterpolationMode(interpolation), True, center, fill)
        for image in tensor(images)
    ]
    assert_alike(out, array(torch.stack(rows)), interpolation)


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
    images = pictures((24, 24), 3, np.uint8)
    angle = np.float32([90, 180, 270, -90])
    out = run(im.Compose([im.RandomRotation(9, interpolation)]), images, ({"angle": angle},))
    rows = [v2.functional.rotate(image, float(angle[k])) for k, image in enumerate(tensor(images))]
    np.testing.assert_array_equal(out, array(torch.stack(rows)))


@pytest.mark.parametrize(("size", "interpolation", "channels", "dtype", "fill", "center"), CASES)
def test_perspective(v2, run, size, interpolation, channels, dtype, fill, center):
    del center
    images = pictures(size, channels, dtype)
    mine = im.Compose([im.RandomPerspective(0.6, 1.0, interpolation, fill)])
    draws = mine.sample(jax.random.split(jax.random.key(2), 4), size)
    out = run(mine, images, draws)
    height, width = size
    start = [[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]]
    rows = [
        v2.functional.perspective(
            image, start, end.tolist(), v2.InterpolationMode(interpolation), fill
        )
        for image, end in zip(tensor(images), np.asarray(draws[0]["endpoints"]), strict=True)
    ]
    assert_alike(out, array(torch.stack(rows)), interpolation)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("kernel", [3, (5, 9), (23, 23)])
def test_blur(v2, run, dtype, kernel):
    images = pictures((37, 53), 3, dtype)
    sigma = np.float32([0.1, 0.5, 2.0, 5.0])
    out = run(im.Compose([im.GaussianBlur(kernel)]), images, ({"sigma": sigma},))
    kernel = list(kernel) if isinstance(kernel, tuple) else [kernel, kernel]
    rows = [
        v2.functional.gaussian_blur(image, kernel, [float(sigma[k])] * 2)
        for k, image in enumerate(tensor(images))
    ]
    assert_alike(out, array(torch.stack(rows)))


def test_draws_have_the_same_distribution(v2):
    """Kolmogorov-Smirnov on 10,000 draws of each parameter; seeds are fixed."""
    torch.manual_seed(0)
    keys = jax.random.split(jax.random.key(0), 10000)
    image = torch.zeros((3, 60, 91))

    def draws(mine, theirs):
        params = im.Compose([mine]).sample(keys, (60, 91))[0]
        return params, [theirs.make_params([image]) for _ in range(10000)]

    def alike(first, second):
        assert ks_2samp(np.asarray(first), np.asarray(second)).pvalue > 1e-3

    arguments = ((-20, 50), (0.1, 0.3), (0.5, 2), (-9, 3, 4, 8))
    mine, theirs = draws(im.RandomAffine(*arguments), v2.RandomAffine(*arguments))
    for name in ("angle", "scale"):
        alike(mine[name], [d[name] for d in theirs])
    for k, axis in enumerate("xy"):
        for name in ("translate", "shear"):
            alike(mine[f"{name}_{axis}"], [d[name][k] for d in theirs])
    mine, theirs = draws(im.RandomRotation(30), v2.RandomRotation(30))
    alike(mine["angle"], [d["angle"] for d in theirs])
    mine, theirs = draws(im.GaussianBlur(5), v2.GaussianBlur(5))
    alike(mine["sigma"], [d["sigma"][0] for d in theirs])


def test_corners_have_the_same_distribution(v2, monkeypatch):
    """torchvision returns coefficients only, so end points are intercepted."""
    import torchvision.transforms.v2._geometry as geometry

    selected = []
    monkeypatch.setattr(
        geometry, "_get_perspective_coeffs", lambda start, end: selected.append(end)
    )
    torch.manual_seed(0)
    theirs = v2.RandomPerspective(0.4)
    for _ in range(10000):
        theirs.make_params([torch.zeros((3, 60, 91))])
    keys = jax.random.split(jax.random.key(3), 10000)
    mine = im.Compose([im.RandomPerspective(0.4, 1.0)]).sample(keys, (60, 91))[0]["endpoints"]
    for corner in range(4):
        for axis in range(2):
            actual = ks_2samp(
                np.asarray(mine)[:, corner, axis], np.asarray(selected)[:, corner, axis]
            )
            assert actual.pvalue > 1e-3
