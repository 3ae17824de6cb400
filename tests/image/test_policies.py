"""Policies and containers: their draws, their operations, and images native and in pure JAX."""

from __future__ import annotations

import functools
import itertools

import jax
import numpy as np
import pytest
from scipy import stats
from support.errors import raises
from support.image import draws
from support.image.comparison import slow

import jaxkern as jk
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


def draw(transform, *names, count=COUNT):
    return draws.draw(transform, SIZE, count, *names)


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


def strengths(position):
    """Return the magnitude of each op in a bin of 31."""
    share = position / 30
    largest = (0.3, 0.3, 150.0, 150.0 * 240 / 331, 30.0, *[0.9] * 4)
    return {
        **{name: value * share for name, value in zip(SIGNED, largest, strict=True)},
        **{"Posterize": round(8 - 4 * share), "Solarize": 1 - share},
        **dict.fromkeys(("AutoContrast", "Equalize", "Identity"), 0.0),
    }


def both_signs(strength, chance):
    reference = {}
    for name, value in strength.items():
        signs = (1, -1) if name in SIGNED and value else (1,)
        for sign in signs:
            position = (name, sign * value)
            reference[position] = reference.get(position, 0) + chance / len(signs)
    return reference


@pytest.mark.parametrize(("count", "position"), [(3, 9), (1, 30)])
def test_rand_augment_draws_ops_and_signs_uniformly(count, position):
    transform = im.RandAugment(count, position)
    params = draw(transform)
    assert params["op"].shape == params["magnitude"].shape == (COUNT, count)
    reference = both_signs(strengths(position), 1 / 14)
    for op, magnitude in zip(params["op"].T, params["magnitude"].T, strict=True):
        frequencies(names_of(transform, op), magnitude, reference)
    if count > 1:
        table = stats.contingency.crosstab(params["op"][:, 0], params["op"][:, 1]).count
        assert stats.chi2_contingency(table).pvalue > 1e-3


def test_trivial_augment_draws_magnitudes_uniformly():
    transform = im.TrivialAugmentWide()
    params = draw(transform)
    names, strength = names_of(transform, params["op"][:, 0]), params["magnitude"][:, 0]
    assert stats.chisquare(np.bincount(params["op"][:, 0], minlength=14)).pvalue > 1e-3
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
    params = draw(transform)
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
    names = names_of(transform, params["op"])
    for (a, b), (x, y) in zip(names, params["magnitude"], strict=True):
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
    params = draw(transform, "op", "magnitude")
    used = params["op"] >= 0
    assert params["op"].shape == params["magnitude"].shape == (COUNT, 3, 3)
    np.testing.assert_array_equal(used, np.sort(used, axis=2)[:, :, ::-1])
    depths = np.bincount(used.sum(axis=2).reshape(-1), minlength=4)
    assert depths[0] == 0
    assert stats.chisquare(depths[1:]).pvalue > 1e-3
    assert (params["magnitude"][~used] == 0).all()
    assert stats.chisquare(np.bincount(params["op"][used], minlength=13)).pvalue > 1e-3
    rotated = names_of(transform, params["op"]) == "Rotate"
    position = np.round(params["magnitude"][rotated] / 30 * 9).astype(int) + 3
    counts = np.bincount(position, minlength=7)
    assert (
        stats.chisquare(counts, np.asarray([1, 1, 1, 2, 1, 1, 1]) * counts.sum() / 8).pvalue > 1e-3
    )
    params = draw(transform, "weights", "m", count=2000)
    assert stats.kstest(params["m"], stats.beta(0.7, 0.7).cdf).pvalue > 1e-3
    np.testing.assert_allclose(params["weights"].sum(axis=1), 1, atol=1e-5)
    for chain in range(3):
        assert stats.kstest(params["weights"][:, chain], stats.beta(0.7, 1.4).cdf).pvalue > 1e-3


def test_aug_mix_without_all_ops_and_with_a_depth():
    params = draw(im.AugMix(all_ops=False, chain_depth=2, mixture_width=1), "op")
    assert params["op"].shape == (COUNT, 1, 2)
    assert stats.chisquare(np.bincount(params["op"].reshape(-1), minlength=9)).pvalue > 1e-3


def test_containers_draw_with_their_probabilities():
    inner = [im.RandAugment(1), im.RandomHorizontalFlip(0.25)]
    params = draw(im.RandomApply(inner, p=0.3), "apply", "1.flip")
    assert abs(params["apply"].mean() - 0.3) < 0.02
    assert abs(params["1.flip"].mean() - 0.25) < 0.02
    joint = (params["apply"] & params["1.flip"]).mean()
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
    params = draw(im.RandomOrder([im.RandAugment(1), im.RandAugment(1)]), "0.op", "1.op")
    table = stats.contingency.crosstab(params["0.op"][:, 0], params["1.op"][:, 0]).count
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


native = pytest.mark.parametrize("backend", ["native"], indirect=True)

RNG = np.random.default_rng(4)
U8 = RNG.integers(0, 256, (6, 12, 17, 3), np.uint8)


def applied(transform, image, params):
    """Apply one transform to one image [H, W, C]."""
    return np.asarray(im.Compose([transform]).apply(image[None], (params,)))[0]


INNER = [im.RandomSolarize(100, p=1.0), im.RandomPosterize(2, p=1.0), im.RandomHorizontalFlip(1.0)]
INNER_PARAMS = {"0.apply": True, "1.apply": True, "2.flip": True}


def in_order(image, order):
    for position in order:
        name = "flip" if position == 2 else "apply"
        image = applied(INNER[position], image, {name: np.asarray([True])})
    return image


def test_random_order(run):
    orders = np.asarray(list(itertools.permutations(range(3))), np.int32)
    aug = im.Compose([im.RandomOrder(INNER)])
    out = run(aug, U8, ({"order": orders, **INNER_PARAMS},))
    for image, order, got in zip(U8, orders, out, strict=True):
        np.testing.assert_array_equal(got, in_order(image, order))


def test_random_choice_and_apply(run):
    choice = np.asarray([0, 1, 2, 1, 3, -1], np.int32)  # the last two are invalid
    apply = np.asarray([True, True, True, False, True, True])
    nested = im.RandomApply([im.RandomChoice(INNER)])
    params = {"apply": apply, "0.choice": choice}
    params |= {f"0.{name}": value for name, value in INNER_PARAMS.items()}
    out = run(im.Compose([nested]), U8, (params,))
    for n, got in enumerate(out):
        order = [choice[n]] if apply[n] and 0 <= choice[n] < 3 else []
        np.testing.assert_array_equal(got, in_order(U8[n], order))


def test_containers_reject_changes_of_channels():
    aug = im.Compose([im.RandomApply([im.Grayscale()])])
    with raises(ValueError, "transforms[0]:", "Grayscale", "3 channels"):
        aug.apply(U8, ({"apply": True},))


def keys_of(images):
    return jax.random.split(jax.random.key(8), len(images))


# Each step of a policy is a separate program in pure JAX, which compiles for seconds.
SMALL = [im.TrivialAugmentWide(), slow(im.AugMix(mixture_width=2, chain_depth=1, all_ops=False))]
LARGE = [
    im.RandAugment(3, 12, interpolation="bilinear", fill=(9, 99, 199)),
    slow(im.AutoAugment("svhn")),
    slow(im.AugMix(alpha=0.7)),
]


@pytest.mark.parametrize("policy", SMALL, ids=lambda p: type(p).__name__)
def test_native_equals_pure_jax(policy):
    aug, images = im.Compose([policy]), np.tile(U8, (8, 1, 1, 1))
    params = draws.sample(aug, keys_of(images), images.shape[1:3])
    actual = {}
    for backend in ("native", "jax"):
        with jk.backend(backend):
            actual[backend] = np.asarray(jax.jit(aug.apply)(images, params))
    np.testing.assert_array_equal(actual["native"], actual["jax"])


@native
@pytest.mark.parametrize("policy", LARGE, ids=lambda p: type(p).__name__)
def test_the_same_in_any_batch(run, policy):
    aug, images = im.Compose([policy]), np.tile(U8, (3, 1, 1, 1))
    keys = keys_of(images)
    params = draws.sample(aug, keys, images.shape[1:3])
    out = run(aug, images, params)
    assert (np.asarray(out) != images).any(axis=(1, 2, 3)).sum() > len(images) // 3
    alone = jax.jit(lambda k, x: aug(k, x))(keys[5:6], images[5:6])
    np.testing.assert_array_equal(alone[0], out[5])


def test_no_draw_compiles():
    aug = im.Compose([im.RandomOrder([im.RandAugment(1), im.RandomInvert()])])
    run = jax.jit(lambda keys: aug(keys, U8))
    for seed in range(3):
        run(jax.random.split(jax.random.key(seed), len(U8)))
    assert run._cache_size() == 1


@native
def test_aug_mix_is_a_mean_of_chains(run):
    """Compare with chains that run one by one, summed in float32 as in torchvision."""
    policy = im.AugMix()
    names = policy.OPS
    chains = [[("Equalize",)], [("Posterize", 2.0), ("Rotate", 20.0)], [("AutoContrast",)] * 3]
    op = np.full((2, 3, 3), -1, np.int32)
    magnitude = np.zeros((2, 3, 3), np.float32)
    for w, chain in enumerate(chains):
        for d, (name, *strength) in enumerate(chain):
            op[:, w, d], magnitude[:, w, d] = names.index(name), strength[0] if strength else 0
    weights = np.asarray([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3]], np.float32)
    m = np.asarray([0.25, 0.7], np.float32)
    params = {"op": op, "magnitude": magnitude, "weights": weights, "m": m}
    out = run(im.Compose([policy]), U8[:2], (params,))
    aug = im.Compose([im.TrivialAugmentWide(interpolation="bilinear")])
    single = jax.jit(aug.apply)
    for n in range(2):
        total = m[n] * U8[n].astype(np.float32)
        for w, chain in enumerate(chains):
            image = U8[n : n + 1]
            for name, *strength in chain:
                inputs = np.asarray([[strength[0] if strength else 0.0]], np.float32)
                position = np.asarray([[im.TrivialAugmentWide.OPS.index(name)]], np.int32)
                image = np.asarray(single(image, ({"op": position, "magnitude": inputs},)))
            share = weights[n, w] * (np.float32(1) - m[n])
            total = total + share * image[0].astype(np.float32)
        np.testing.assert_array_equal(out[n], total.astype(np.uint8))


@native
def test_aug_mix_with_weights_that_are_not_finite(run):
    policy, weights, m = im.AugMix(), RNG.random((6, 3)), RNG.random(6)
    m[1], weights[2, 0] = np.nan, np.inf
    op = RNG.integers(0, 13, (6, 3, 3)).astype(np.int32)
    params = ({"op": op, "magnitude": np.ones((6, 3, 3)), "weights": weights, "m": m},)
    out = run(im.Compose([policy]), U8, params)
    np.testing.assert_array_equal(out[1:3], U8[1:3])
    assert (np.asarray(out[3:]) != U8[3:]).any()


@native
def test_policies_of_other_images(run):
    """One channel, four channels with alpha, and images of one pixel."""
    invert = {"op": np.asarray([[-1, 13]] * 6, np.int32), "magnitude": np.zeros((6, 2), np.float32)}
    rgba = np.concatenate([U8, U8[..., :1]], axis=-1)
    out = run(im.Compose([im.AutoAugment()]), rgba, (invert,))
    np.testing.assert_array_equal(out, np.concatenate([255 - U8, U8[..., :1]], axis=-1))
    aug = im.Compose([im.RandAugment(1, 20)])
    for shape in ((84, 1, 1, 3), (84, 5, 4, 1), (84, 1, 9, 4)):
        op = np.arange(84, dtype=np.int32)[:, None] % 14
        magnitude = (100 * RNG.standard_normal((84, 1))).astype(np.float32)
        magnitude[:14] = np.nan
        images = RNG.integers(0, 256, shape, np.uint8)
        out = run(aug, images, ({"op": op, "magnitude": magnitude},))
        np.testing.assert_array_equal(out[:12], images[:12])  # NaN magnitudes
        assert (np.asarray(out) != images).any()
