"""The schedule of mixtures: would catch proportions that drift, places that depend on where one
begins to look, and an inverse that names another place."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.errors import raises

from jaxkern.pipeline.order import Schedule, integer_weights

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
