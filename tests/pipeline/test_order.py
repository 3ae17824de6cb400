"""The order of an epoch: would catch records that come twice or never, and orders that are not
random, that repeat between epochs or seeds, or that change with the release."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.errors import raises

from jaxkern.pipeline.order import Permutation

SMALL = [0, 9, 1, 6, 7, 4, 2, 8, 3, 5]
LARGE = [251972754, 405700110734, 978627856706]
SEEDS = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None, max_examples=60)
@given(count=st.one_of(st.integers(1, 60), st.integers(4000, 20_000)), seed=SEEDS)
def test_bijection(count, seed):
    order = Permutation(count, seed, epoch=2)
    records = order(np.arange(count))
    np.testing.assert_array_equal(np.sort(records), np.arange(count))
    np.testing.assert_array_equal(order.position_of(records), np.arange(count))


@settings(deadline=None, max_examples=60)
@given(count=st.integers(5000, 2**62), seed=SEEDS, data=st.data())
def test_inverse_in_large_ranges(count, seed, data):
    positions = data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20, unique=True))
    order = Permutation(count, seed, epoch=0)
    records = order(np.array(positions))
    assert records.min() >= 0
    assert records.max() < count
    assert len(set(records.tolist())) == len(positions)
    assert order.position_of(records).tolist() == positions


@pytest.mark.parametrize("count", [3, 4])
def test_every_small_permutation_is_as_likely(count):
    seen = [tuple(Permutation(count, seed, 0)(np.arange(count))) for seed in range(6000)]
    frequencies = np.unique(seen, axis=0, return_counts=True)[1]
    assert len(frequencies) == math.factorial(count)
    assert stats.chisquare(frequencies).pvalue > 1e-4


@pytest.mark.parametrize("count", [100, 4096, 4097, 5000, 70_001])
def test_a_record_comes_anywhere(count):
    """Chi-square of (position, record) over epochs, in a grid of 10 x 10 cells."""
    positions = np.linspace(0, count - 1, 50).astype(int)
    grid = np.zeros((10, 10))
    for epoch in range(400):
        records = Permutation(count, 5, epoch)(positions)
        np.add.at(grid, (positions * 10 // count, records * 10 // count), 1)
    sides = [np.bincount(np.arange(count) * 10 // count, minlength=10)] * 2
    rows = np.bincount(positions * 10 // count, minlength=10) * 400
    expected = np.outer(rows, sides[1] / count)
    assert stats.chi2.sf(((grid - expected) ** 2 / expected).sum(), 90) > 1e-4


@pytest.mark.parametrize("count", [4096, 5000, 100_003])
def test_neighbours_are_independent(count):
    records = Permutation(count, 1, 0)(np.arange(count)) / count
    for lag in (1, 2, 7, 64, math.isqrt(count), math.isqrt(count) + 1):
        assert abs(np.corrcoef(records[lag:], records[:-lag])[0, 1]) < 4.5 / math.sqrt(count)
    steps = np.diff(np.round(records * count).astype(int)) % count
    cells = np.bincount(steps * 20 // count, minlength=20)
    assert stats.chisquare(cells).pvalue > 1e-4


@pytest.mark.parametrize("count", [4096, 100_003])
def test_epochs_and_seeds_are_independent(count):
    first = Permutation(count, 1, 0)(np.arange(count))
    for seed, epoch in ((1, 1), (2, 0), (-1, 0), (1, 2**31)):
        other = Permutation(count, seed, epoch)(np.arange(count))
        # The number of records at the same place is Poisson with mean 1.
        assert (first == other).sum() < 10
        assert abs(np.corrcoef(first, other)[0, 1]) < 4.5 / math.sqrt(count)


def test_cycle_type_is_that_of_a_random_permutation():
    """Fixed points over many epochs: a network of too few rounds has too few or too many."""
    fixed = [
        (Permutation(4099, 3, e)(np.arange(4099)) == np.arange(4099)).sum() for e in range(300)
    ]
    assert abs(np.mean(fixed) - 1) < 4.5 / math.sqrt(300)


def test_orders_stay_the_same_over_releases():
    """States name an order by (seed, epoch): a change of the order must change the version."""
    assert Permutation(10, 0, 0)(np.arange(10)).tolist() == SMALL
    assert Permutation(10**12, 0, 0)(np.arange(3)).tolist() == LARGE


def test_limits():
    with raises(ValueError, "count", "0"):
        Permutation(0, 0, 0)
    with raises(IndexError, "10 to 10"):
        Permutation(10, 0, 0)([10])
