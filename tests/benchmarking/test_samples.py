"""Statistics of times against NumPy and SciPy: would catch a wrong percentile or degree of freedom,
intervals with wrong coverage, and a difference that is only noise."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from support.errors import raises

from jaxkern import benchmarking
from jaxkern.benchmarking.measurement import Ratio, Samples, draw_blocks, ratio_of_medians


def test_figures():
    seconds = np.random.default_rng(3).gamma(4.0, 0.01, 37)
    samples = Samples(tuple(seconds))
    assert samples.median == np.median(seconds)
    assert samples.mean == pytest.approx(np.mean(seconds), rel=1e-14)
    assert samples.std == pytest.approx(scipy.stats.tstd(seconds), rel=1e-12)
    assert (samples.min, samples.max) == (np.min(seconds), np.max(seconds))
    assert samples.p90 == pytest.approx(scipy.stats.mstats.mquantiles(seconds, 0.9, 1, 1)[0])
    assert np.isnan(Samples((1.0,)).std)


@pytest.mark.parametrize("seconds", [(), (1.0, -1.0), (1.0, np.nan), (np.inf,)])
def test_invalid_samples(seconds):
    with raises(ValueError, "seconds"):
        Samples(seconds)


@pytest.mark.parametrize("paired", [False, True])
def test_interval_equals_that_of_scipy(paired):
    random = np.random.default_rng(5)
    rounds = random.lognormal(0.0, 0.3, 60)
    before, after = (rounds * random.lognormal(mean, 0.05, 60) for mean in (0, -0.2))

    def statistic(a, b, axis=-1):
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    expected = scipy.stats.bootstrap(
        (after, before), statistic, paired=paired, vectorized=True, method="percentile",
        n_resamples=20_000, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    result = ratio_of_medians(after, before, paired=paired, resamples=20_000, block=1)
    assert result.value == np.median(after) / np.median(before)
    assert result.low == pytest.approx(expected.low, rel=0.02)
    assert result.high == pytest.approx(expected.high, rel=0.02)


@pytest.mark.parametrize("count", [40, 100])
def test_coverage_of_the_interval(count):
    random = np.random.default_rng(11)
    covered = 0
    for _ in range(200):
        after, before = (random.normal(mean, 0.1, count) for mean in (1.5, 1.0))
        ratio = ratio_of_medians(after, before, resamples=300)
        covered += ratio.low <= 1.5 <= ratio.high
    # 95% of 200 are 190; 176 or fewer have a probability of 1e-5.
    assert covered > 176


def test_slow_phases_of_a_machine_show_no_difference():
    random = np.random.default_rng(4)

    def slow_at_times():
        # Phases of 30 samples that are up to 50% slower.
        return np.repeat(1 + 0.5 * random.random(10), 30) * random.normal(1, 0.01, 300)

    pairs = [(slow_at_times(), slow_at_times()) for _ in range(60)]
    wrong = {
        block: sum(
            ratio_of_medians(a, b, block=block, resamples=300).outcome() != "no difference shown"
            for a, b in pairs
        )
        for block in (1, None)
    }
    assert wrong[None] < wrong[1] / 2


def test_pairing_cancels_slow_rounds():
    random = np.random.default_rng(7)
    rounds = random.lognormal(0, 0.8, 40)
    before, after = rounds, rounds * 0.9 * random.normal(1, 0.005, 40)
    assert ratio_of_medians(after, before, paired=True).outcome() == "faster"
    assert ratio_of_medians(after, before).outcome() == "no difference shown"


@pytest.mark.parametrize(
    ("low", "high", "least", "outcome"),
    [
        (0.80, 0.90, 0.05, "faster"),
        (0.80, 0.96, 0.05, "no difference shown"),
        (0.99, 1.01, 0.0, "no difference shown"),
        (1.04, 1.20, 0.05, "no difference shown"),
        (1.06, 1.20, 0.05, "slower"),
    ],
)
def test_outcome_requires_the_entire_interval(low, high, least, outcome):
    assert Ratio(1.0, low, high, 0.95, 30).outcome(least) == outcome


def test_inverse_is_the_speedup():
    ratio = Ratio(0.5, 0.4, 0.8, 0.95, 30).inverse
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 1.25, 2.5)


def test_invalid_ratios():
    with raises(ValueError, "2 and 1"):
        ratio_of_medians([1.0, 2.0], [1.0], paired=True)
    with raises(ValueError, "before"):
        ratio_of_medians([1.0], [0.0])


@pytest.mark.parametrize("count", [5, 15])
def test_all_samples_are_equally_likely(count):
    """Blocks that are not circular draw the first and the last sample less often."""
    indices = draw_blocks(np.random.default_rng(2), 4000, count, None)
    share = np.bincount(indices.ravel(), minlength=count) / indices.size
    np.testing.assert_allclose(share, 1 / count, rtol=0.1)


def test_few_samples_have_no_interval():
    few, enough = ratio_of_medians([1.0] * 4, [2.0] * 4), ratio_of_medians([1.0] * 5, [2.0] * 5)
    assert (str(few), str(enough)) == ("0.5", "0.5 (0.5 to 0.5)")
    assert np.isnan([few.low, few.high, few.inverse.low]).all()
    assert (few.outcome(), enough.outcome()) == ("no difference shown", "faster")
    result = benchmarking.compare({"a": abs, "b": abs}, 1, rounds=2)
    assert "nan" not in str(result)
    text = benchmarking.report(result["a"], result["b"])
    assert "2 samples are too few" in text
    assert "bootstrap" not in text
