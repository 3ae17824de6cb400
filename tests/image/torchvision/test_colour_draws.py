"""Draws of colour transforms against torchvision's: 10,000 of each."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from support.image.draws import assert_same_distribution, draw
from support.image.torchvision_functions import draws as theirs

from jaxkern import image as im

COUNT, SIZE = 10_000, (8, 9)
FACTORS = ("brightness", "contrast", "saturation", "hue")


def mine(transform):
    return draw(transform, SIZE, COUNT)


def same_frequencies(first, second):
    """Test two samples of rows of small integers by chi-square."""
    both = [np.asarray(rows).reshape(COUNT, -1).astype(int) for rows in (first, second)]
    codes = [rows @ 5 ** np.arange(rows.shape[1]) for rows in both]
    outcomes = np.unique(np.concatenate(codes))
    table = [[(code == each).sum() for each in outcomes] for code in codes]
    assert stats.chi2_contingency(table).pvalue > 1e-3


@pytest.mark.parametrize(
    "options",
    [
        {"brightness": 0.4, "contrast": 1.7, "saturation": (0.2, 3), "hue": 0.1},
        {"brightness": (1.5, 2), "contrast": 0.8, "saturation": 0.8, "hue": (-0.5, 0.2)},
    ],
)
def test_jitters(v2, options):
    draws = mine(im.ColorJitter(**options))
    reference = theirs(v2.ColorJitter(**options), COUNT, SIZE)
    for name in FACTORS:
        assert_same_distribution(draws[name], [params[f"{name}_factor"] for params in reference])
    same_frequencies(draws["order"], [params["fn_idx"].tolist() for params in reference])
    # A factor and the order, and two factors, are independent.
    assert abs(np.corrcoef(draws["brightness"], draws["contrast"])[0, 1]) < 0.05
    assert abs(np.corrcoef(draws["hue"], draws["order"][:, 0])[0, 1]) < 0.05


def test_photometric_distortions(v2):
    for p in (0.5, 0.8):
        draws = mine(im.RandomPhotometricDistort(p=p))
        reference = theirs(v2.RandomPhotometricDistort(p=p), COUNT, SIZE)
        for position, name in enumerate(FACTORS):
            used = [params[f"{name}_factor"] for params in reference]
            known = [factor for factor in used if factor is not None]
            assert_same_distribution(draws[name], known)
            same_frequencies(draws["apply"][:, position], [factor is not None for factor in used])
        order = [params["channel_permutation"] for params in reference]
        same_frequencies(draws["apply"][:, 4], [each is not None for each in order])
        permuted = np.where(draws["apply"][:, 4:], draws["permutation"], -1) + 1
        none = [-1, -1, -1]
        same_frequencies(
            permuted, 1 + np.asarray([none if each is None else each.tolist() for each in order])
        )
        same_frequencies(
            draws["contrast_before"], [params["contrast_before"] for params in reference]
        )
        same_frequencies(draws["apply"], np.random.default_rng(1).random((COUNT, 5)) < p)


def test_channel_permutations(v2):
    reference = theirs(v2.RandomChannelPermutation(), COUNT, SIZE)
    draws = mine(im.RandomChannelPermutation())
    same_frequencies(draws["permutation"], [params["permutation"].tolist() for params in reference])


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandomGrayscale", ()),
        ("RandomInvert", ()),
        ("RandomEqualize", ()),
        ("RandomAutocontrast", ()),
        ("RandomPosterize", (3,)),
        ("RandomSolarize", (0.5,)),
        ("RandomAdjustSharpness", (2.0,)),
        ("RandomPerspective", (0.5,)),
    ],
)
def test_probabilities(v2, name, arguments):
    """torchvision applies if torch.rand(1) < p: counts are binomial; defaults are the same."""
    for options in ({}, {"p": 0.23}):
        transform = getattr(im, name)(*arguments, **options)
        p = getattr(v2, name)(*arguments, **options).p
        assert transform.p == p
        if name == "RandomPerspective":
            still = np.asarray([[0, 0], [8, 0], [8, 7], [0, 7]])
            applied = (mine(transform)["endpoints"] != still).any(axis=(1, 2)).sum()
            p *= 1 - (1 / 3) ** 8  # corners may stay by chance, on sides of 8 and 9 pixels
        else:
            applied = mine(transform)["apply"].sum()
        assert stats.binomtest(int(applied), COUNT, p).pvalue > 1e-3
