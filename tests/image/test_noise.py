"""Noise and elastic warps against NumPy with the same random numbers, on both backends."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from scipy.ndimage import correlate1d, map_coordinates
from scipy.stats import kstest
from support.image.comparison import slow
from support.image.counter_noise import normals, threefry, uniforms
from support.image.draws import sample
from support.image.pictures import pictures

import jaxkern as jk
from jaxkern import image as im

SIZE = (19, 26)
SEEDS = np.int32([[0, 0], [-1, 2**31 - 1], [77777, -123456789]])


def test_known_answers_of_threefry():
    """Known answers of the Random123 library, file kat_vectors."""
    for key, counter, expected in [
        ((0, 0), 0, (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), 2**64 - 1, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), 0x243F6A8885A308D3, (0xC4923A9C, 0x483DF7A0)),
    ]:
        assert [int(word[0]) for word in threefry(key, [counter])] == list(expected)


@pytest.mark.parametrize(
    "channels",
    [4, slow(1), slow(3)],
)
def test_noise_of_levels(run, channels):
    images = pictures(8, (3, *SIZE, channels))
    n = np.stack([normals(seed, images.shape[1:]) for seed in SEEDS])
    total = images + np.trunc(np.float32(25.5) + n * np.float32(102)).astype(int)
    total[..., 3:] = images[..., 3:]
    aug = im.Compose([im.GaussianNoise(0.1, 0.4), im.RandomApply([im.GaussianNoise(1, 0, False)])])
    seeds = ({"seed": SEEDS}, {"apply": np.bool_([0, 1, 0]), "0.seed": SEEDS})
    expected = np.clip(total, 0, 255)
    expected[1, ..., :3] = (expected[1, ..., :3] + 255) % 256  # wraps without clipping
    np.testing.assert_array_equal(run(aug, images, seeds), expected)


def test_noise_of_floats(run):
    images = pictures(8, (3, *SIZE, 3), np.float32)
    images[:, 4, 5] = np.nan
    n = np.stack([normals(seed, images.shape[1:]) for seed in SEEDS])
    aug = im.Compose([im.RandomChoice([im.GaussianNoise(0, 0.3), im.GaussianNoise(2, 3, False)])])
    params = {"choice": np.int32([0, 1, 0]), "0.seed": SEEDS, "1.seed": SEEDS}
    expected = np.clip(images + 0.3 * n, 0, 1)
    expected[1] = (images + 2 + 3 * n)[1]
    np.testing.assert_allclose(run(aug, images, (params,)), expected, atol=2e-6, rtol=0)


BOXES = {
    "top": np.int32([3, 0, -4]),
    "left": np.int32([5, 24, 2**30]),
    "height": np.int32([7, 500, 9]),
    "width": np.int32([9, 2**31 - 1, 5]),
}


def test_erased_boxes_are_noise(run):
    images = pictures(8, (3, *SIZE, 3), np.float32) - 0.5
    aug = im.Compose([im.RandomErasing(value="random"), im.Normalize(0.25, 0.5)])
    params = BOXES | {"erase": np.ones(3, bool), "seed": SEEDS}
    out = run(aug, images, (params, {}))
    expected = images.copy()
    expected[0, 3:10, 5:14] = normals(SEEDS[0], images.shape[1:])[3:10, 5:14]
    expected[1, :, 24:] = normals(SEEDS[1], images.shape[1:])[:, 24:]
    np.testing.assert_allclose(out, (expected - 0.25) / 0.5, atol=1e-6, rtol=0)
    remaining = run(aug, images, (params | {"erase": np.zeros(3, bool)}, {}))
    np.testing.assert_allclose(remaining, (images - 0.25) / 0.5, atol=1e-6, rtol=0)


def test_erased_boxes_of_a_container_are_those_of_a_chain(run):
    """A program and a chain paint constants alike; levels truncate noise."""
    images = pictures(8, (3, *SIZE, 3))
    erasing = im.RandomErasing(value=(9, 200, 77))
    params = BOXES | {"erase": np.bool_([1, 1, 0])}
    inner = {f"0.{name}": value for name, value in params.items()} | {"apply": np.ones(3, bool)}
    expected = run(im.Compose([erasing]), images, (params,))
    np.testing.assert_array_equal(
        run(im.Compose([im.RandomApply([erasing])]), images, (inner,)), expected
    )
    out = run(im.Compose([im.RandomErasing(value="random")]), images, (params | {"seed": SEEDS},))
    noise = np.trunc(np.clip(normals(SEEDS[0], images.shape[1:]), 0, 255))
    np.testing.assert_array_equal(np.asarray(out)[0, 3:10, 5:14], noise[3:10, 5:14])


def field(seed, alpha, sigma, size=SIZE):
    """Return displacements f64 [2, H, W] in pixels along x and y, as in torchvision."""
    actual = uniforms(seed, *size)
    for k in range(2):
        reach = int(8 * sigma[k] + 1) // 2
        t = np.arange(-reach, reach + 1)
        for axis in range(2):
            weight = np.exp(-(t**2) / (2 * sigma[1 - axis] ** 2)) if sigma[k] else 1.0 * (t == 0)
            actual[k] = correlate1d(actual[k], weight / weight.sum(), axis, mode="mirror")
    return actual * np.reshape(alpha, (2, 1, 1)) / 2


@pytest.mark.parametrize(
    ("dtype", "interpolation", "alpha", "sigma", "fill"),
    [
        (np.uint8, "bilinear", (25.0, -60.0), (1.0, 1.5), 40),
        (np.float32, "nearest", (9.0, 9.0), (0.0, 0.0), None),
        slow(np.uint8, "nearest", 25, 1, 9),
        slow(np.float32, "bilinear", (80, -9), (1.5, 1), None),
    ],
)
def test_elastic_warps(run, dtype, interpolation, alpha, sigma, fill):
    images = pictures(8, (3, *SIZE, 3), dtype)
    transform = im.ElasticTransform(alpha, sigma, interpolation, fill)
    out = np.asarray(run(im.Compose([transform]), images, ({"seed": SEEDS},)), float)
    actual = np.asarray(transform.displacement(SEEDS, SIZE)).transpose(0, 3, 1, 2)
    for k, seed in enumerate(SEEDS):
        moved = field(seed, transform.alpha, transform.sigma)
        np.testing.assert_allclose(actual[k], moved, atol=1e-5)
        position = np.mgrid[: SIZE[0], : SIZE[1]] + moved[::-1]
        order = 1 if interpolation == "bilinear" else 0
        seen = [
            map_coordinates(
                np.pad(plane, 1), position + 1, order=order, mode="grid-constant", prefilter=False
            )
            for plane in [*images[k].astype(float).transpose(2, 0, 1), np.ones(SIZE)]
        ]
        value, mask = np.stack(seen[:3], axis=-1), seen[3][..., None]
        if fill is not None and interpolation == "bilinear":
            value = mask * (value - fill) + fill
        elif fill is not None:
            value = np.where(mask > 0.5, value, fill)
        # Positions are float32: a value near a tie may round to the other level.
        assert np.abs(out[k] - value).max() <= (0.5 + 1e-3 if dtype == np.uint8 else 1e-4)


def test_records_are_the_same_in_any_batch():
    images = pictures(9, (5, 40, 70, 3))
    augment = im.Compose(
        [im.GaussianNoise(), im.ElasticTransform(80, 2), im.RandomErasing(1.0, value="random")]
    )
    keys = jax.random.split(jax.random.key(5), 5)
    with jk.backend("native"):
        params = sample(augment, keys, (40, 70))
        apply = jax.jit(augment.apply)
        out = np.asarray(apply(images, params))
        rotated = apply(images[::-1], jax.tree.map(lambda x: np.asarray(x)[::-1], params))
        np.testing.assert_array_equal(rotated[::-1], out)
        assert len({tuple(seed) for seed in np.asarray(params[0]["seed"]).tolist()}) == 5
        for position, word in ((0, 1 << 20), (1, 1)):
            other = np.asarray(params[0]["seed"]).copy()
            other[:, position] ^= word
            repeated = apply(images, ({"seed": other}, *params[1:]))
            assert (np.asarray(repeated) != out).any(axis=-1).mean() > 0.5


def test_noise_is_normal():
    """Includes the tails: 3 million numbers, of which one in a million is beyond 4.9."""
    keys = jax.random.split(jax.random.key(2), 4)
    images = np.zeros((4, 500, 500, 3), np.float32)
    out = np.asarray(im.Compose([im.GaussianNoise(0.0, 1.0, clip=False)])(keys, images))
    assert kstest(out[:, ::7, ::7].reshape(-1), "norm").pvalue > 1e-3
    flat = out.reshape(4, -1).astype(float)
    assert np.abs(flat.mean(1)).max() < 5e-3
    assert np.abs(flat.std(1) - 1).max() < 5e-3
    assert np.abs(np.corrcoef([*flat, *np.roll(flat, 1, 1)]) - np.eye(8)).max() < 6e-3
    assert 4.7 < np.abs(flat).max() < 6.8
    assert abs((np.abs(flat) > 3).mean() - 0.0027) < 2e-4
