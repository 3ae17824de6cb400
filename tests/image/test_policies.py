"""Policies as distributions and as steps of a program: their draws and operations."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from scipy import stats
from support.errors import raises

from jaxkern import image as im
from jaxkern.image.program.program import Code
from jaxkern.image.transforms.policies import (
    AUG_MIX,
    AUTO_AUGMENT,
    magnitude_table,
    op_steps,
    pairs,
)

COUNT = 10_000
POLICY = im.RandAugment()
SIZE = (240, 331)  # of which 150 / 331 of the width is 150 pixels


@functools.cache
def keys():
    return jax.random.split(jax.random.key(0), COUNT)


def draw(transform, *names, count=COUNT):
    """Draw the parameters of these names, or all; others are not compiled."""

    def sample(keys):
        draws = im.Compose([transform]).sample(keys, SIZE)[0]
        return {name: draws[name] for name in names or draws}

    return {name: np.asarray(value) for name, value in jax.jit(sample)(keys()[:count]).items()}


def names_of(transform, op):
    return np.asarray([*transform.OPS, "-"])[op]


def frequencies(names, strengths, reference):
    """Test (name, magnitude) pairs against {(name, magnitude): probability} by chi-square."""
    keys = [(str(n), round(float(m), 4) + 0.0) for n, m in zip(names, strengths, strict=True)]
    reference = {(n, round(m, 4) + 0.0): p for (n, m), p in reference.items()}
    counts = dict.fromkeys(reference, 0)
    for key in keys:
        assert key in counts, key
        counts[key] += 1
    expected = np.asarray(list(reference.values())) * len(keys)
    assert stats.chisquare(list(counts.values()), expected).pvalue > 1e-3


WARPS = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
SIGNED = (*WARPS, "Brightness", "Color", "Contrast", "Sharpness")
# The ninth of 31 bins: 0.3 of the largest magnitudes; 8 - 9 / 7.5 bits.
STRENGTH = {
    **dict(zip(SIGNED, (0.09, 0.09, 45.0, 45.0 * 240 / 331, 9.0, *[0.27] * 4), strict=True)),
    **{"Posterize": 7.0, "Solarize": 0.7, "AutoContrast": 0.0, "Equalize": 0.0, "Identity": 0.0},
}


def both_signs(strength, chance):
    reference = {}
    for name, value in strength.items():
        signs = (1, -1) if name in SIGNED and value else (1,)
        for sign in signs:
            position = (name, sign * value)
            reference[position] = reference.get(position, 0) + chance / len(signs)
    return reference


def test_rand_augment_draws_ops_and_signs_uniformly():
    transform = im.RandAugment(3, 9)
    draws = draw(transform)
    assert draws["op"].shape == draws["magnitude"].shape == (COUNT, 3)
    reference = both_signs(STRENGTH, 1 / 14)
    for step in range(3):
        frequencies(
            names_of(transform, draws["op"][:, step]), draws["magnitude"][:, step], reference
        )
    table = stats.contingency.crosstab(draws["op"][:, 0], draws["op"][:, 1]).count
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_trivial_augment_draws_magnitudes_uniformly():
    transform = im.TrivialAugmentWide()
    draws = draw(transform)
    names, strength = names_of(transform, draws["op"][:, 0]), draws["magnitude"][:, 0]
    assert stats.chisquare(np.bincount(draws["op"][:, 0], minlength=14)).pvalue > 1e-3
    largest = dict.fromkeys(SIGNED, 0.99) | {"TranslateX": 32, "TranslateY": 32, "Rotate": 135}
    for name in SIGNED:
        position = strength[names == name] / largest[name] * 30
        np.testing.assert_allclose(position, np.round(position), atol=1e-4)
        counts = np.bincount(np.round(position).astype(int) + 30, minlength=61)
        expected = np.ones(61)
        expected[30] = 2  # zero, with either sign
        assert stats.chisquare(counts, expected * counts.sum() / 62).pvalue > 1e-3, name
    bits = strength[names == "Posterize"]
    reference = np.bincount(np.round(8 - np.arange(31) / 5).astype(int), minlength=9)[2:]
    counts = np.bincount(bits.astype(int), minlength=9)
    assert counts[:2].sum() == 0
    assert stats.chisquare(counts[2:], reference * len(bits) / 31).pvalue > 1e-3
    level = np.round(strength[names == "Solarize"] * 30).astype(int)
    assert stats.chisquare(np.bincount(level, minlength=31)).pvalue > 1e-3


@pytest.mark.parametrize("policy", ["imagenet", "cifar10", "svhn"])
def test_auto_augment_draws_its_pairs(policy):
    transform = im.AutoAugment(policy)
    draws = draw(transform)
    table = magnitude_table(AUTO_AUGMENT, 10, SIZE)
    reference = {}
    published = pairs(transform.policy)
    assert len(published.op) == 25
    for op, chance, position in zip(*published, strict=True):
        options = []
        for step in range(2):
            row = {("-", 0.0): 1 - float(chance[step])}
            name = transform.OPS[op[step]]
            value = round(float(table[op[step], position[step]]), 4)
            row |= both_signs({name: value}, float(chance[step]))
            options.append(row)
        for first, p in options[0].items():
            for second, q in options[1].items():
                key = (*first, *second)
                reference[key] = reference.get(key, 0) + p * q / 25
    counts = dict.fromkeys(reference, 0)
    names = names_of(transform, draws["op"])
    for (a, b), (x, y) in zip(names, draws["magnitude"], strict=True):
        counts[str(a), round(float(x), 4) + 0.0, str(b), round(float(y), 4) + 0.0] += 1
    observed, expected = (
        np.asarray(list(counts.values())),
        COUNT * np.asarray(list(reference.values())),
    )
    assert (observed[expected == 0] == 0).all()
    frequent = expected >= 5
    rest = [observed[~frequent].sum()], [expected[~frequent].sum()]
    observed = np.concatenate([observed[frequent], rest[0]])
    expected = np.concatenate([expected[frequent], rest[1]])
    used = expected > 0
    assert stats.chisquare(observed[used], expected[used]).pvalue > 1e-3


def test_aug_mix_draws_chains_and_weights():
    transform = im.AugMix(severity=4, alpha=0.7)
    draws = draw(transform, "op", "magnitude")
    used = draws["op"] >= 0
    assert draws["op"].shape == draws["magnitude"].shape == (COUNT, 3, 3)
    np.testing.assert_array_equal(used, np.sort(used, axis=2)[:, :, ::-1])
    depths = np.bincount(used.sum(axis=2).reshape(-1), minlength=4)
    assert depths[0] == 0
    assert stats.chisquare(depths[1:]).pvalue > 1e-3
    assert (draws["magnitude"][~used] == 0).all()
    assert stats.chisquare(np.bincount(draws["op"][used], minlength=13)).pvalue > 1e-3
    rotated = names_of(transform, draws["op"]) == "Rotate"
    position = np.round(draws["magnitude"][rotated] / 30 * 9).astype(int) + 3
    counts = np.bincount(position, minlength=7)
    assert (
        stats.chisquare(counts, np.asarray([1, 1, 1, 2, 1, 1, 1]) * counts.sum() / 8).pvalue > 1e-3
    )
    draws = draw(transform, "weights", "m", count=2000)
    assert stats.kstest(draws["m"], stats.beta(0.7, 0.7).cdf).pvalue > 1e-3
    np.testing.assert_allclose(draws["weights"].sum(axis=1), 1, atol=1e-5)
    for chain in range(3):
        assert stats.kstest(draws["weights"][:, chain], stats.beta(0.7, 1.4).cdf).pvalue > 1e-3


def test_aug_mix_without_all_ops_and_with_a_depth():
    draws = draw(im.AugMix(all_ops=False, chain_depth=2, mixture_width=1), "op")
    assert draws["op"].shape == (COUNT, 1, 2)
    assert stats.chisquare(np.bincount(draws["op"].reshape(-1), minlength=9)).pvalue > 1e-3


def test_containers_draw_with_their_probabilities():
    inner = [im.RandAugment(1), im.RandomHorizontalFlip(0.25)]
    draws = draw(im.RandomApply(inner, p=0.3), "apply", "1.flip")
    assert abs(draws["apply"].mean() - 0.3) < 0.02
    assert abs(draws["1.flip"].mean() - 0.25) < 0.02
    joint = (draws["apply"] & draws["1.flip"]).mean()
    assert abs(joint - 0.3 * 0.25) < 0.02
    choice = im.RandomChoice([*inner, im.RandomVerticalFlip()], p=[1, 0, 3])
    counts = np.bincount(draw(choice, "choice")["choice"], minlength=3)
    assert counts[1] == 0
    assert stats.chisquare(counts[[0, 2]], [COUNT / 4, COUNT * 3 / 4]).pvalue > 1e-3
    order = draw(im.RandomOrder([*inner, im.RandomVerticalFlip()]), "order")["order"]
    values, counts = np.unique(order @ [9, 3, 1], return_counts=True)
    assert len(values) == 6
    assert stats.chisquare(counts).pvalue > 1e-3


def test_transforms_of_a_container_draw_independently():
    draws = draw(im.RandomOrder([im.RandAugment(1), im.RandAugment(1)]), "0.op", "1.op")
    table = stats.contingency.crosstab(draws["0.op"][:, 0], draws["1.op"][:, 0]).count
    assert stats.chi2_contingency(table).pvalue > 1e-3


def test_magnitudes_of_sizes_that_are_traced():
    """Traced sizes give the same bits as known sizes, including integer pixels."""
    for space in (AUTO_AUGMENT, AUG_MIX):
        sides = jax.numpy.asarray(SIZE)
        traced = jax.jit(lambda h, w, space=space: magnitude_table(space, 10, (h, w)))(*sides)
        assert traced.dtype == np.float32
        np.testing.assert_array_equal(traced, magnitude_table(space, 10, SIZE))
    assert magnitude_table(AUTO_AUGMENT, 31, SIZE)[2, 9] == 45


@functools.cache
def all_ops():
    return (*AUTO_AUGMENT, "Identity")


@functools.cache
def all_steps():
    return jax.jit(lambda op, m: op_steps(all_ops(), op, m, (20, 30)))


def step(name, magnitude):
    op = np.asarray([all_ops().index(name)], np.int32)
    code, values = all_steps()(op, np.asarray([magnitude], np.float32))
    return Code(int(code[0])), np.asarray(values[0])


def source(values, x, y):
    """Return coefficients for an image of 20 x 30, relative to the top left corner."""
    c = values.astype(np.float64)
    x, y = x - 15, y - 10
    return (c[0] * x + c[1] * y + c[2] + 15, c[3] * x + c[4] * y + c[5] + 10)


def test_warps_of_ops():
    """Output points relative to the top left corner, and their input positions."""
    for name, magnitude, point, reference in [
        ("ShearX", 0.5, (4.0, 6.0), (7.0, 6.0)),
        ("ShearX", -0.5, (0.0, 0.0), (0.0, 0.0)),
        ("ShearY", 0.5, (4.0, 6.0), (4.0, 8.0)),
        ("TranslateX", 3.9, (4.0, 6.0), (1.0, 6.0)),
        ("TranslateX", -3.9, (4.0, 6.0), (7.0, 6.0)),
        ("TranslateY", 2.0, (4.0, 6.0), (4.0, 4.0)),
        # A counter-clockwise rotation moves points from the right of the centre to above it.
        ("Rotate", 90.0, (15.0, 4.0), (21.0, 10.0)),
        ("Rotate", -30.0, (15.0, 10.0), (15.0, 10.0)),
    ]:
        code, values = step(name, magnitude)
        assert code is Code.WARP
        np.testing.assert_allclose(source(values, *point), reference, atol=1e-5, err_msg=name)
        assert values[6:].tolist() == [0, 0]


def test_colours_of_ops():
    for name, magnitude, code, values in [
        ("Brightness", 0.25, Code.BRIGHTNESS, (1.25,)),
        ("Color", -0.25, Code.SATURATION, (0.75, 0.25)),
        ("Contrast", 0.5, Code.CONTRAST, (1.5, -0.5)),
        ("Sharpness", -0.5, Code.SHARPNESS, (0.5, 0.5)),
        ("Posterize", 5.0, Code.POSTERIZE, (5.0,)),
        ("Solarize", 0.75, Code.SOLARIZE, (0.75, 0.0)),
        ("AutoContrast", 0.0, Code.AUTOCONTRAST, ()),
        ("Equalize", 0.0, Code.EQUALIZE, ()),
        ("Invert", 0.0, Code.INVERT, ()),
        ("Identity", 0.0, Code.NONE, ()),
    ]:
        actual = step(name, magnitude)
        assert actual[0] is code, name
        np.testing.assert_allclose(actual[1][: len(values)], values, err_msg=name)


def test_ops_out_of_range():
    op = np.asarray([-1, 15, -7, 2**31 - 1, 3], np.int32)
    code, _ = jax.jit(lambda op: op_steps(tuple(AUTO_AUGMENT), op, np.ones(5, np.float32), (4, 4)))(
        op
    )
    assert np.asarray(code).tolist() == [Code.NONE] * 4 + [Code.WARP]
    images = np.zeros((1, 4, 4, 3), np.uint8)
    bad = ({"op": np.asarray([[15]], np.int32), "magnitude": np.zeros((1, 1), np.float32)},)
    with raises(ValueError, "TrivialAugmentWide", "0 to 13", "15"):
        im.Compose([im.TrivialAugmentWide()]).apply(images, bad)
