"""Noise and elastic warps against torchvision's v2 with our random numbers."""

from __future__ import annotations

from unittest import mock

import jax
import numpy as np
import pytest
import torch
from support.image.comparison import assert_alike
from support.image.counter_noise import normals, uniforms
from support.image.draws import assert_same_distribution, draw, sample
from support.image.pictures import pictures
from support.image.torchvision_functions import array, draws, tensor

from jaxkern import image as im

RNG = np.random.default_rng(6)
SEEDS = np.int32([[5, -9], [2**31 - 1, 0], [-(2**31), 123456]])


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("arguments", [(), (0.2, 0.4), (-0.1, 0.7, False), (0.5, 0.0)])
def test_gaussian_noise(v2, run, dtype, channels, arguments):
    images = pictures(RNG, (3, 31, 44, channels), dtype)
    out = run(im.Compose([im.GaussianNoise(*arguments)]), images, ({"seed": SEEDS},))
    for k, image in enumerate(images):
        n = tensor(normals(SEEDS[k], image.shape).astype(np.float32))
        with mock.patch("torch.randn_like", lambda *_, n=n, **__: n):
            expected = v2.GaussianNoise(*arguments)(tensor(image))
        assert_alike(out[k], array(expected))


@pytest.mark.parametrize("size", [(64, 64), (45, 93), (80, 50)])
@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize(
    ("dtype", "alpha", "sigma", "fill"),
    [
        (np.uint8, 50.0, 5.0, 0),
        (np.uint8, [200.0, 90.0], [2.0, 3.3], 90),
        (np.float32, [-30.0, 900.0], [4.0, 2.5], None),
        (np.float32, 7.0, 0.0, (0.1, 0.5, 2.0)),
    ],
)
def test_elastic(v2, run, size, interpolation, dtype, alpha, sigma, fill):
    images = pictures(RNG, (3, *size, 3), dtype)
    mine = im.ElasticTransform(alpha, sigma, interpolation, fill)
    out = run(im.Compose([mine]), images, ({"seed": SEEDS},))
    theirs = v2.ElasticTransform(alpha, sigma, v2.InterpolationMode(interpolation), fill)
    for k, image in enumerate(images):
        # torchvision draws from 0 to 1, for x first.
        draws = [torch.from_numpy(u[None, None] / 2 + 0.5) for u in uniforms(SEEDS[k], *size)]
        with mock.patch("torch.rand", side_effect=[each.float() for each in draws]):
            params = theirs.make_params([tensor(image)])
        half = np.float32([size[1] / 2, size[0] / 2])
        moved = params["displacement"][0].numpy() * half
        actual = np.asarray(mine.displacement(SEEDS[k : k + 1], size))[0]
        np.testing.assert_allclose(actual, moved, atol=1e-3)
        # The same field for both: torchvision blurs it in float32.
        params["displacement"] = torch.from_numpy((actual / half)[None])
        expected = array(theirs.transform(tensor(image), params))
        assert_alike(out[k], expected, interpolation)


def test_erasing_with_noise(v2, run):
    size = (40, 60)
    images = pictures(RNG, (3, *size, 3), np.float32)
    aug = im.Compose([im.RandomErasing(1.0, value="random")])
    params = sample(aug, jax.random.split(jax.random.key(1), 3), size)
    out = run(aug, images, params)
    for k, image in enumerate(images):
        draws = {name: np.asarray(value[k]) for name, value in params[0].items()}
        i, j, h, w = (int(draws[name]) for name in ("top", "left", "height", "width"))
        n = normals(draws["seed"], image.shape).astype(np.float32)
        v = tensor(n[i : i + h, j : j + w])
        assert_alike(out[k], array(v2.functional.erase(tensor(image), i, j, h, w, v)))


def test_noise_has_the_same_distribution(v2):
    """Kolmogorov-Smirnov on the noise of 30,000 values; seeds are fixed."""
    torch.manual_seed(0)
    keys = jax.random.split(jax.random.key(0), 100)
    gray = np.full((100, 10, 10, 3), 0.5, np.float32)
    mine = np.asarray(im.Compose([im.GaussianNoise(0.0, 0.1)])(keys, gray))
    theirs = v2.GaussianNoise(0.0, 0.1)(torch.full((100, 3, 10, 10), 0.5)).numpy()
    assert_same_distribution(mine.reshape(-1), theirs.reshape(-1))
    mine = np.asarray(im.Compose([im.RandomErasing(1.0, value="random")])(keys, gray))
    erasing = v2.RandomErasing(1.0, value="random")
    theirs = np.stack([erasing(torch.full((3, 10, 10), 0.5)).numpy() for _ in range(100)])
    painted = [each[each != 0.5] for each in (mine, theirs)]
    assert_same_distribution(*painted)
    shares = [(each != 0.5).reshape(100, -1).mean(1) for each in (mine, theirs)]
    assert_same_distribution(*shares)


def test_displacements_have_the_same_distribution(v2):
    """Displacements of one pixel, which the blur of others determines, and of its neighbours."""
    size, count = (9, 12), 2000
    transform = im.ElasticTransform((50, 20), 0.9)
    mine = np.asarray(transform.displacement(draw(transform, size, count)["seed"], size))
    params = draws(v2.ElasticTransform([50.0, 20.0], 0.9), count, size)
    theirs = np.stack([each["displacement"][0].numpy() for each in params])
    theirs *= np.float32([size[1] / 2, size[0] / 2])
    for axis in range(2):
        assert_same_distribution(mine[:, 4, 5, axis], theirs[:, 4, 5, axis])
        apart = [each[:, 0, 0, axis] - each[:, 0, 1, axis] for each in (mine, theirs)]
        assert_same_distribution(*apart)
