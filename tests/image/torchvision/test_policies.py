"""Tables of policies, and their ops on random images, against torchvision's."""

from __future__ import annotations

import numpy as np
import pytest
from support.image.torchvision_functions import array, tensor

from jaxkern import image as im
from jaxkern.image.transforms.policies import (
    AUG_MIX,
    AUTO_AUGMENT,
    RAND_AUGMENT,
    TRIVIAL_AUGMENT_WIDE,
    AutoAugmentPolicy,
    magnitude_table,
    pairs,
    signed_ops,
)

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


@pytest.mark.parametrize("policy", list(AutoAugmentPolicy))
def test_published_pairs(v2, policy):
    reference = v2.AutoAugment(getattr(v2.AutoAugmentPolicy, policy.name))._policies
    names, published = list(AUTO_AUGMENT), pairs(policy)
    own = [
        tuple(
            (names[op], round(float(chance), 4), int(position))
            for op, chance, position in zip(*row, strict=True)
        )
        for row in zip(*published, strict=True)
    ]
    assert own == [tuple((n, p, b or 0) for n, p, b in pair) for pair in reference]


@pytest.mark.parametrize("size", [(60, 90), (224, 331), (1, 7)])
def test_published_magnitudes(v2, size):
    for space, bins, reference in (
        (RAND_AUGMENT, 31, v2.RandAugment._AUGMENTATION_SPACE),
        (RAND_AUGMENT, 5, v2.RandAugment._AUGMENTATION_SPACE),
        (TRIVIAL_AUGMENT_WIDE, 31, v2.TrivialAugmentWide._AUGMENTATION_SPACE),
        (AUTO_AUGMENT, 10, v2.AutoAugment._AUGMENTATION_SPACE),
        (AUG_MIX, 10, v2.AugMix._AUGMENTATION_SPACE),
    ):
        assert list(space) == list(reference)
        assert signed_ops(space).tolist() == [signed for _, signed in reference.values()]
        table = magnitude_table(space, bins, size)
        for row, (values, _) in zip(table, reference.values(), strict=True):
            expected = values(bins, *size)
            expected = np.zeros(bins) if expected is None else expected.numpy()
            # The last bit of torch.linspace depends on the machine.
            np.testing.assert_allclose(row, expected.astype(np.float32), rtol=2e-7, atol=2e-7)
