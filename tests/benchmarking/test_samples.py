"""Statistics of timings against NumPy and SciPy; would catch a wrong percentile or degree of
freedom, intervals that do not cover, and a verdict that noise alone can produce."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats

from jaxkern import benchmarking
from jaxkern.benchmarking.samples import Ratio, Samples, _draws, ratio_of_medians


def test_figures_are_numpys():
    seconds = np.random.default_rng(3).gamma(4.0, 0.01, 37)
    samples = Samples(tuple(seconds))
    assert samples.median == np.median(seconds)
    assert samples.mean == pytest.approx(np.mean(seconds), rel=1e-14)
    assert samples.std == pytest.approx(scipy.stats.tstd(seconds), rel=1e-12)
    assert (samples.min, samples.max) == (np.min(seconds), np.max(seconds))
    assert samples.p90 == pytest.approx(scipy.stats.mstats.mquantiles(seconds, 0.9, 1, 1)[0])
    assert np.isnan(Samples((1.0,)).std)


@pytest.mark.parametrize("seconds", [(), (1.0, -1.0), (1.0, np.nan), (np.inf,)])
def test_bad_samples_are_refused(seconds):
    with pytest.raises(ValueError, match="wanted one or more finite"):
        Samples(seconds)


@pytest.mark.parametrize("paired", [False, True])
def test_interval_is_scipys(paired):
    random = np.random.default_rng(5)
    rounds = random.lognormal(0.0, 0.3, 60)
    before, after = (
        rounds * random.lognormal(0, 0.05, 60),
        rounds * random.lognormal(-0.2, 0.05, 60),
    )

    def statistic(a, b, axis=-1):
        return np.median(a, axis=axis) / np.median(b, axis=axis)

    expected = scipy.stats.bootstrap(
        (after, before), statistic, paired=paired, vectorized=True, method="percentile",
        n_resamples=20_000, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    found = ratio_of_medians(after, before, paired=paired, resamples=20_000, block=1)
    assert found.value == np.median(after) / np.median(before)
    assert found.low == pytest.approx(expected.low, rel=0.02)
    assert found.high == pytest.approx(expected.high, rel=0.02)


@pytest.mark.parametrize("count", [40, 100])
def test_interval_covers_as_often_as_it_says(count):
    random = np.random.default_rng(11)
    covered = 0
    for _ in range(200):
        ratio = ratio_of_medians(
            random.normal(1.5, 0.1, count), random.normal(1.0, 0.1, count), resamples=300
        )
        covered += ratio.low <= 1.5 <= ratio.high
    # 95% of 200 are 190; 176 would come once in 100,000 times.
    assert covered > 176


def test_a_machine_that_is_slow_for_a_while_shows_no_difference():
    random = np.random.default_rng(4)

    def slow_at_times():
        # Phases of 30 samples in which everything takes up to half as long again.
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


def test_pairing_cancels_what_slows_a_round():
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
def test_outcome_needs_the_whole_interval(low, high, least, outcome):
    assert Ratio(1.0, low, high, 0.95, 30).outcome(least) == outcome


def test_few_samples_show_nothing():
    assert ratio_of_medians([1.0] * 4, [9.0] * 4).outcome() == "no difference shown"
    assert ratio_of_medians([1.0] * 5, [9.0] * 5).outcome() == "faster"


def test_inverse_is_the_speedup():
    ratio = Ratio(0.5, 0.4, 0.8, 0.95, 30).inverse
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 1.25, 2.5)


def test_bad_ratios_are_refused():
    with pytest.raises(ValueError, match="wanted as many"):
        ratio_of_medians([1.0, 2.0], [1.0], paired=True)
    with pytest.raises(ValueError, match=r"before is .* wanted seconds above 0"):
        ratio_of_medians([1.0], [0.0])


@pytest.mark.parametrize("count", [5, 15])
def test_every_sample_is_drawn_as_often(count):
    """Blocks that end with the samples draw the first and the last less often than the others."""
    drawn = _draws(np.random.default_rng(2), 4000, count, None)
    share = np.bincount(drawn.ravel(), minlength=count) / drawn.size
    np.testing.assert_allclose(share, 1 / count, rtol=0.1)


def test_few_samples_have_no_interval():
    few, enough = ratio_of_medians([1.0] * 4, [2.0] * 4), ratio_of_medians([1.0] * 5, [2.0] * 5)
    assert (str(few), str(enough)) == ("0.5", "0.5 (0.5 to 0.5)")
    assert np.isnan([few.low, few.high, few.inverse.low]).all()
    assert (few.outcome(), enough.outcome()) == ("no difference shown", "faster")
    found = benchmarking.compare({"a": abs, "b": abs}, 1, rounds=2)
    assert "nan" not in str(found)
    text = benchmarking.report(found["a"], found["b"])
    assert "2 samples, too few for an interval" in text
    assert "bootstrap" not in text
