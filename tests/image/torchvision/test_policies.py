"""Ops of policies against torchvision's, on random images with the draws of `sample`."""

from __future__ import annotations

import numpy as np
import pytest
from support.image.torchvision_functions import array, tensor

from jaxkern import image as im
from jaxkern.image.transforms.policies import TRIVIAL_AUGMENT_WIDE, magnitude_table, signed_ops

RNG = np.random.default_rng(12)
WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")


def photographs(count, height, width, dtype):
    """Return blurred noise with constant parts, for histograms and edges."""
    small = RNG.random((count, 1 + height // 5, 1 + width // 5, 3))
    images = small.repeat(5, axis=1).repeat(5, axis=2)[:, :height, :width]
    images = np.clip(images + 0.1 * RNG.standard_normal(images.shape), 0, 1)
    return (images * 255).astype(np.uint8) if dtype == "u8" else images.astype(np.float32)


def agree(out, expected, warped, nearest):
    """Compare: nearest warps by any value on 1 pixel of 1,000, others by one level."""
    if out.dtype == np.uint8:
        away = np.abs(out.astype(int) - expected.astype(int)).max(axis=-1)
        assert (away > 0).mean() <= 1e-3
        assert (warped and nearest) or away.max() <= 1
    else:
        away = np.abs(out - expected).max(axis=-1)
        assert (away > 2e-4).mean() <= (1e-3 if warped else 0)


@pytest.mark.parametrize("dtype", ["u8", "f32"])
@pytest.mark.parametrize("size", [(37, 53), (96, 96), (1, 7)])
@pytest.mark.parametrize(
    "options",
    [{}, {"interpolation": "bilinear"}, {"interpolation": "bilinear", "fill": (9, 99, 199)}],
    ids=["nearest", "bilinear", "fill"],
)
def test_ops(v2, run, size, dtype, options):
    count = 84
    images = photographs(count, *size, dtype)
    if "fill" in options and dtype == "f32":
        options = {**options, "fill": (0.25, 0.5, 0.75)}
    mine, theirs = im.TrivialAugmentWide(**options), v2.TrivialAugmentWide(**options)
    aug = im.Compose([mine])
    op = np.arange(count, dtype=np.int32) % len(mine.OPS)
    table = magnitude_table(TRIVIAL_AUGMENT_WIDE, 31, size)
    magnitude = table[op, RNG.integers(0, 31, count)]
    sign = np.where(signed_ops(TRIVIAL_AUGMENT_WIDE)[op] & (RNG.random(count) < 0.5), -1, 1)
    magnitude = (magnitude * sign).astype(np.float32)
    # Sheared and rotated round numbers give positions between two pixels, and half levels.
    magnitude += np.float32(0.0123) * (op <= 5)
    out = run(aug, images, ({"op": op[:, None], "magnitude": magnitude[:, None]},))
    for position in range(count):
        name = mine.OPS[op[position]]
        expected = theirs._apply_image_or_video_transform(
            tensor(images[position]),
            name,
            float(magnitude[position]),
            interpolation=theirs.interpolation,
            fill=theirs._fill,
        )
        agree(np.asarray(out[position]), array(expected), name in WARPS, not options)
