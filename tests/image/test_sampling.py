"""Parameters as distributions."""

from __future__ import annotations

import functools

import jax
import numpy as np
from scipy import stats
from support.image import draws

from jaxkern import image as im

draw = functools.partial(draws.draw, count=20_000)


def test_random_resized_crop_area_and_ratio():
    """In a large image nothing is rejected for scale up to 0.5 and mild ratios."""
    size, scale, ratio = (4000, 5000), (0.1, 0.5), (0.8, 1.25)
    p = draw(im.RandomResizedCrop(8, scale=scale, ratio=ratio), size)
    share = p["height"] * p["width"] / (4000.0 * 5000.0)
    assert stats.kstest(share, stats.uniform(0.1, 0.4).cdf).pvalue > 1e-3
    log_ratio = np.log(p["width"] / p["height"])
    low, high = np.log(ratio)
    assert stats.kstest(log_ratio, stats.uniform(low, high - low).cdf).pvalue > 1e-3
    assert abs(np.corrcoef(share, log_ratio)[0, 1]) < 0.03
    for start, length, complete in (("top", "height", 4000), ("left", "width", 5000)):
        position = (p[start] + 0.5) / (complete - p[length] + 1)
        assert stats.kstest(position, stats.uniform(0, 1).cdf).pvalue > 1e-3


def test_random_resized_crop_stays_inside_and_reaches_all_positions():
    p = draw(im.RandomResizedCrop(8, scale=(0.2, 1.0)), (7, 9))
    assert p["top"].min() == 0
    assert p["left"].min() == 0
    assert (p["top"] + p["height"]).max() == 7
    assert (p["left"] + p["width"]).max() == 9
    assert p["height"].min() >= 1
    assert p["width"].min() >= 1


def test_random_resized_crop_fallback():
    """No box of the full area with ratio up to 4/3 fits a strip: the central crop is used."""
    cases = {(10, 100): (0, 43, 10, 13), (100, 10): (43, 0, 13, 10), (1, 1): (0, 0, 1, 1)}
    sizes = np.repeat(np.asarray(list(cases), np.int32), 30, axis=0)
    aug = im.Compose([im.RandomResizedCrop(8, scale=(1.0, 1.0))])
    keys = jax.random.split(jax.random.key(0), 90)
    p = jax.jit(aug.sample)(keys, (sizes[:, 0], sizes[:, 1]))[0]
    boxes = np.stack([p[name] for name in ("top", "left", "height", "width")], axis=1)
    np.testing.assert_array_equal(boxes, np.repeat(list(cases.values()), 30, axis=0))


def test_flips():
    flips = draw(im.RandomHorizontalFlip(0.3), (4, 4))["flip"]
    assert abs(flips.mean() - 0.3) < 0.015
    assert not draw(im.RandomVerticalFlip(0.0), (4, 4))["flip"].any()
    assert draw(im.RandomVerticalFlip(1.0), (4, 4))["flip"].all()


def test_random_crop_positions_are_uniform():
    p = draw(im.RandomCrop(8, padding=(1, 2)), (9, 8))
    for values, room in ((p["top"], 9 + 4 - 8 + 1), (p["left"], 8 + 2 - 8 + 1)):
        counts = np.bincount(values, minlength=room)
        assert len(counts) == room
        assert stats.chisquare(counts).pvalue > 1e-3
    grown = draw(im.RandomCrop(12, pad_if_needed=True), (9, 30))
    assert set(np.unique(grown["top"])) == {0, 1, 2, 3}
    assert grown["left"].max() == 18


def test_random_erasing():
    erasing = im.RandomErasing(p=0.4, scale=(0.02, 0.33), ratio=(0.3, 3.3))
    p = draw(erasing, (60, 80))
    assert abs(p["erase"].mean() - 0.4) < 0.015
    assert (p["height"] < 60).all()
    assert (p["width"] < 80).all()
    assert (p["top"] >= 0).all()
    assert (p["top"] + p["height"] <= 60).all()
    assert (p["left"] + p["width"] <= 80).all()
    assert p["top"].max() + p["height"][p["top"].argmax()] <= 60
    large = draw(im.RandomErasing(1.0, scale=(0.1, 0.2), ratio=(0.5, 2)), (3000, 3000))
    share = large["height"] * large["width"] / 9e6
    assert stats.kstest(share, stats.uniform(0.1, 0.1).cdf).pvalue > 1e-3
    log_ratio = np.log(large["height"] / large["width"])
    cdf = stats.uniform(-np.log(2), 2 * np.log(2)).cdf
    assert stats.kstest(log_ratio, cdf).pvalue > 1e-3


def test_random_erasing_never_covers_a_complete_side():
    """In an image of one pixel only an empty box is smaller than the image."""
    p = draw(im.RandomErasing(1.0), (1, 1))
    assert not (p["erase"] & (p["height"] > 0)).any()


def test_mixup_is_beta():
    alpha = 0.4
    lam = draw(im.MixUp(alpha, per_sample=True), (4, 4))["lam"]
    assert stats.kstest(lam, stats.beta(alpha, alpha).cdf).pvalue > 1e-3


def test_cutmix_boxes():
    p = draw(im.CutMix(1.0, per_sample=True), (40, 60))
    assert (p["top"] >= 0).all()
    assert (p["left"] >= 0).all()
    assert (p["top"] + p["height"] <= 40).all()
    assert (p["left"] + p["width"] <= 60).all()
    np.testing.assert_allclose(p["lam"], 1 - p["height"] * p["width"] / 2400, atol=1e-6)
    # The sides of an unclipped box are sqrt(1 - lam) of the image's, with lam uniform.
    free = (p["top"] > 0) & (p["left"] > 0)
    free &= (p["top"] + p["height"] < 40) & (p["left"] + p["width"] < 60)
    assert abs(np.mean(p["height"][free] / 40 - p["width"][free] / 60)) < 0.01
    assert abs(np.mean(p["lam"]) - 0.5) > 0.05  # clipping makes boxes smaller
