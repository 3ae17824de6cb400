"""Draws of policies and containers against torchvision's: 10,000 of each."""

from __future__ import annotations

import collections

import jax
import numpy as np
import pytest
import torch
from scipy import stats

from jaxkern import image as im
from jaxkern.image.transforms.policies import AutoAugmentPolicy

COUNT = 10_000
SIZE = (60, 90)


@pytest.fixture(scope="module")
def theirs(v2):
    """Return draws of one of torchvision's policies: a list of [(op, magnitude), ...] an image."""

    def draw(transform, count=COUNT):
        torch.manual_seed(7)
        image = torch.zeros((3, *SIZE), dtype=torch.uint8)
        selected = []

        def record(image, name, magnitude, **_):
            selected.append((name, magnitude))
            return image

        transform._apply_image_or_video_transform = record
        draws = []
        for _ in range(count):
            selected.clear()
            transform(image)
            draws.append(list(selected))
        return draws

    return draw


def mine(transform, count=COUNT):
    keys = jax.random.split(jax.random.key(2), count)
    draws = jax.jit(lambda k: im.Compose([transform]).sample(k, SIZE))(keys)[0]
    return {name: np.asarray(value) for name, value in draws.items()}


def listed(transform, draws):
    """Return our draws in the same form as `theirs`."""
    rows = zip(draws["op"], draws["magnitude"], strict=True)
    return [
        [(transform.OPS[o], float(m)) for o, m in zip(op, magnitude, strict=True) if o >= 0]
        for op, magnitude in rows
    ]


def same_frequencies(first, second):
    """Test two samples of outcomes by chi-square; rare outcomes are counted as one."""
    counts = [collections.Counter(first), collections.Counter(second)]
    rows = collections.defaultdict(lambda: [0, 0])
    for outcome in set(first) | set(second):
        both = [count[outcome] for count in counts]
        row = rows[outcome if sum(both) >= 20 else "rare"]
        row[0] += both[0]
        row[1] += both[1]
    rare = rows.pop("rare", [0, 0])
    table = [*rows.values()] + ([rare] if sum(rare) >= 20 else [])
    assert sum(rare) < 0.05 * (len(first) + len(second))
    assert stats.chi2_contingency(np.asarray(table).T).pvalue > 1e-3


def steps(draws, position):
    return [
        (name, round(magnitude, 3) + 0.0)
        for image in draws
        for name, magnitude in image[position : position + 1]
    ]


def test_rand_augment(v2, theirs):
    for count, magnitude in ((2, 9), (1, 30)):
        draws = theirs(v2.RandAugment(count, magnitude))
        transform = im.RandAugment(count, magnitude)
        own = listed(transform, mine(transform))
        for position in range(count):
            same_frequencies(steps(draws, position), steps(own, position))


def test_trivial_augment_wide(v2, theirs):
    draws, transform = theirs(v2.TrivialAugmentWide()), im.TrivialAugmentWide()
    own = listed(transform, mine(transform))
    same_frequencies([row[0][0] for row in draws], [row[0][0] for row in own])
    same_frequencies([m > 0 for ((_, m),) in draws], [m > 0 for ((_, m),) in own])
    for name in transform.OPS:
        values = [[m for ((n, m),) in rows if n == name] for rows in (draws, own)]
        assert stats.ks_2samp(*values).pvalue > 1e-3, name
        assert {round(m, 3) + 0.0 for m in values[1]} == {round(m, 3) + 0.0 for m in values[0]}


@pytest.mark.parametrize("policy", list(AutoAugmentPolicy))
def test_auto_augment(v2, theirs, policy):
    reference = v2.AutoAugment(getattr(v2.AutoAugmentPolicy, policy.name))
    draws, transform = theirs(reference), im.AutoAugment(policy)
    own = listed(transform, mine(transform))
    same_frequencies([len(row) for row in draws], [len(row) for row in own])
    same_frequencies(
        [tuple(n for n, _ in row) for row in draws], [tuple(n for n, _ in row) for row in own]
    )
    same_frequencies(steps(draws, 0), steps(own, 0))
    same_frequencies(steps(draws, 1), steps(own, 1))


def test_aug_mix(v2, theirs):
    for options in ({}, {"severity": 7, "all_ops": False, "alpha": 0.4, "chain_depth": 2}):
        reference, transform = v2.AugMix(**options), im.AugMix(**options)
        weights, sample = [], reference._sample_dirichlet

        def remaining(params, weights=weights, sample=sample):
            draws = sample(params)
            weights.append(draws[0].numpy())
            return draws

        reference._sample_dirichlet = remaining
        draws, own = theirs(reference), mine(transform)
        op, magnitude = (own[name].reshape(COUNT, -1) for name in ("op", "magnitude"))
        flat = listed(transform, {"op": op, "magnitude": magnitude})
        same_frequencies([len(row) for row in draws], [len(row) for row in flat])
        same_frequencies(steps(draws, 0), steps(flat, 0))
        same_frequencies([row[-1][0] for row in draws], [row[-1][0] for row in flat])
        shares = np.asarray(weights[0::2])[:, 0]
        assert stats.ks_2samp(shares, own["m"]).pvalue > 1e-3
        for chain in range(3):
            column = np.asarray(weights[1::2])[:, chain]
            assert stats.ks_2samp(column, own["weights"][:, chain]).pvalue > 1e-3


def test_containers(v2):
    torch.manual_seed(3)
    image = torch.zeros((3, 4, 4))
    selected = []

    def named(name):
        return v2.Lambda(lambda image: (selected.append(name), image)[1])

    def draws(transform):
        rows = []
        for _ in range(COUNT):
            selected.clear()
            transform(image)
            rows.append(tuple(selected))
        return rows

    inner = [im.RandomHorizontalFlip(1.0), im.RandomVerticalFlip(1.0), im.RandAugment(1)]
    outer = [named(0), named(1), named(2)]
    apply = mine(im.RandomApply(inner, p=0.2))["apply"]
    same_frequencies(draws(v2.RandomApply(outer, p=0.2)), [(0, 1, 2) if a else () for a in apply])
    choice = mine(im.RandomChoice(inner, p=[1, 2, 5]))["choice"]
    same_frequencies(draws(v2.RandomChoice(outer, p=[1, 2, 5])), [(int(c),) for c in choice])
    order = mine(im.RandomOrder(inner))["order"]
    same_frequencies(draws(v2.RandomOrder(outer)), [tuple(map(int, row)) for row in order])
