"""The order of an epoch, and the schedule of mixtures.

Would catch: records that come twice or never, orders that are not random, that repeat between
epochs or seeds, or that change with the release; proportions that drift, positions that depend on
the first one, and an inverse that returns another position.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from support.errors import raises

from jaxkern.core import registry
from jaxkern.pipeline.order import Permutation, Schedule, integer_weights

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
def test_every_position_is_equally_likely(count):
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


@pytest.mark.parametrize("count", [4097, 2**33 - 1, 2**62])
def test_native_code_and_numpy_agree(monkeypatch, count):
    """Would catch a wrong quotient, a lane that is lost, and an order that depends on the CPU."""
    positions = np.random.default_rng(count).integers(0, count, 1003)
    order = Permutation(count, 7, 3)
    native = order(positions), order.position_of(positions)
    columns = positions[1:].reshape(2, -1).T
    np.testing.assert_array_equal(order(columns).T.ravel(), native[0][1:])
    monkeypatch.setattr(registry, "module", lambda name: None)
    np.testing.assert_array_equal(native, [order(positions), order.position_of(positions)])


def test_limits():
    with raises(ValueError, "count", "0"):
        Permutation(0, 0, 0)
    with raises(IndexError, "10 to 10"):
        Permutation(10, 0, 0)([10])


WEIGHTS = st.lists(
    st.one_of(st.integers(1, 50), st.floats(0.001, 1000.0), st.fractions(Fraction(1, 99), 9)),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(weights=WEIGHTS, seed=st.integers(-(2**63), 2**63), start=st.sampled_from([0, 17, 2**50]))
def test_every_window_has_its_proportions(weights, seed, start):
    schedule = Schedule(integer_weights(weights), seed)
    places = np.arange(start, start + 1000)
    which, index = schedule.at(places)
    shares = np.array(schedule.weights) / sum(schedule.weights)
    limit = max(1, int(np.ceil(np.log2(len(weights)))))
    for source, share in enumerate(shares):
        excess = np.concatenate([[0.0], np.cumsum((which == source) - share)])
        # Of any window: the excess at its end without that at its beginning.
        assert excess.max() - excess.min() < limit + 1e-6
        found = which == source
        assert (np.diff(index[found]) == 1).all()
        np.testing.assert_array_equal(schedule.position(source, index[found]), places[found])
        np.testing.assert_array_equal(schedule.before(source, places[found]), index[found])
    if start == 0:
        firsts = [index[which == source][:1].tolist() for source in range(len(weights))]
        assert all(first in ([0], []) for first in firsts)


def test_places_do_not_depend_on_where_one_looks():
    schedule = Schedule((5, 3, 2, 2, 9), 4)
    which, index = schedule.at(np.arange(500))
    some = np.random.default_rng(0).permutation(500)[:100]
    np.testing.assert_array_equal(schedule.at(some)[0], which[some])
    np.testing.assert_array_equal(schedule.at(some)[1], index[some])


def test_the_seed_changes_the_schedule():
    words = {tuple(Schedule((70, 30), seed).at(np.arange(100))[0]) for seed in range(20)}
    assert len(words) > 5


@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        ([0.7, 0.3], (7, 3)),
        ([1 / 3, 1 / 3, 1 / 3], (1, 1, 1)),
        ([1281167, 50000], (1281167, 50000)),
        ([Fraction(1, 6), np.float32(0.5), 1], (1, 3, 6)),
    ],
)
def test_weights_are_exact(weights, whole):
    assert integer_weights(weights) == whole


def test_weights_of_many_digits_are_close():
    found = np.array(integer_weights([1e-9, np.pi, np.e]), float)
    np.testing.assert_allclose(found[1] / found[2], np.pi / np.e, rtol=1e-8)
    assert found.min() >= 1


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), "x", None])
def test_a_weight_must_be_above_zero(weight):
    with raises(ValueError, "weight 1", "positive"):
        integer_weights([1, weight])
