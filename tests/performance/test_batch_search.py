"""The search for a batch size, on trials with exact figures and a simulated clock.

Would catch a recommendation that the figures do not support, an exceeded limit, and an endless
search.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import pytest

from jaxkern.core.progress import ProgressBar
from jaxkern.performance.batch_size import BatchSizeRecommendation, Search, round_down
from jaxkern.performance.programs import MemoryReport


@dataclass
class ExactTrial:
    """A trial whose times and bytes are formulas, and whose clock advances by them."""

    seconds: Callable[[int], float] = lambda n: 1e-3 + 1e-5 * n
    memory: Callable[[int], int] = lambda n: 100 + 16 * n
    compile_seconds: float = 0.01
    multiple: int = 1
    max_size: int = 2**31 - 1
    fails_to_compile: int | None = None
    fails_to_run: int | None = None
    now: float = 0.0
    device: Any = field(default_factory=lambda: jax.devices()[0])
    compiled: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    def build(self, size: int) -> tuple[MemoryReport, int, Callable[[int], float]]:
        self.now += self.compile_seconds
        self.compiled.append(size)
        if self.fails_to_compile is not None and size >= self.fails_to_compile:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        report = MemoryReport(0, 0, 0, 0, 0)
        return report, self.memory(size), functools.partial(self.turn, size)

    def turn(self, size: int, calls: int) -> float:
        if self.fails_to_run is not None and size >= self.fails_to_run:
            raise ValueError("a table of the function is too small")
        self.now += (calls + 1) * self.seconds(size)
        self.turns.append(size)
        return self.seconds(size)


def search(
    trial: ExactTrial, limit: int = 10**9, seconds: float = 60.0, sizes: Sequence[int] = ()
) -> BatchSizeRecommendation:
    bar = ProgressBar(False, "", "")
    return Search(trial, limit, seconds, sizes, bar, clock=lambda: trial.now).run()


def test_recommendation_for_known_times():
    # Throughput is 1e5 n / (100 + n): it stops gaining 5% at 4096 and 8192, where it is 0.988; the
    # smallest size within 2% of that is 4096 with 0.976, and within 20% 512 with 0.837.
    result = search(ExactTrial())
    assert [m.batch_size for m in result.measurements if m.seconds] == [2**k for k in range(14)]
    assert (result.optimal_batch_size, result.min_batch_size) == (4096, 512)
    (at_512,) = (m for m in result.measurements if m.batch_size == 512)
    assert at_512.examples_per_second == pytest.approx(512 / 6.12e-3)
    assert at_512.spread == pytest.approx(0)
    for fact in ("4096", "97.6 kexamples/s", "2%", "98.8 kexamples/s at 8192"):
        assert fact in result.reasons[0]


def test_rounds_are_interleaved():
    trial = ExactTrial()
    search(trial, sizes=[1, 2, 4])
    rounds = [trial.turns[i : i + 3] for i in range(3, len(trial.turns), 3)]
    assert len(rounds) > 5
    assert all(r == order for r, order in zip(rounds, itertools.cycle([[1, 2, 4], [4, 2, 1]])))


@pytest.mark.parametrize(
    ("limit", "largest"),
    [(100 + 16 * 1000 + 15, 992), (100 + 16 * 31, 31), (100 + 16, 1), (100 + 16 * 10**6, 983040)],
)
def test_largest_size_of_linear_memory(limit, largest):
    # 1000 is rounded down to a multiple of 32, a million to a multiple of 32768.
    trial = ExactTrial()
    result = search(trial, limit)
    assert result.max_batch_size == largest
    assert largest in trial.compiled
    assert result.optimal_batch_size <= largest
    assert all(100 + 16 * size <= limit for size in trial.turns)


@pytest.mark.parametrize(
    "memory",
    [
        lambda n: n * n,
        lambda n: 10**5 + 300 * n,
        lambda n: 100 * n + (5 * 10**5 if n > 600 else 0),
        lambda n: 100 * n if n < 2048 else 700 * n,
    ],
)
def test_largest_size_of_other_memory_was_compiled_and_is_near_the_limit(memory):
    trial = ExactTrial(memory=memory)
    result = search(trial, 10**6)
    assert memory(result.max_batch_size) <= 10**6
    assert result.max_batch_size in trial.compiled
    too_large = next(n for n in itertools.count(result.max_batch_size) if memory(n) > 10**6)
    assert result.max_batch_size > too_large * 0.9
    assert len(trial.compiled) < 30


def test_sizes_that_fail():
    result = search(ExactTrial(fails_to_compile=300))
    assert 300 * 15 / 16 - 8 < result.max_batch_size < 300
    assert "RESOURCE_EXHAUSTED" in result.reasons[2]
    result = search(ExactTrial(fails_to_run=64))
    assert result.max_batch_size == result.optimal_batch_size == 32
    assert "64 raised ValueError (a table of the function is too small)" in result.reasons[2]


def test_smallest_size_must_work():
    with pytest.raises(ValueError, match="a table") as caught:
        search(ExactTrial(fails_to_run=1))
    assert any("batch size 1" in note for note in caught.value.__notes__)
    with pytest.raises(ValueError, match=r"at least 116 bytes.*batch, of 1 .*got 100"):
        search(ExactTrial(), limit=100)


def test_sizes_are_multiples_of_the_devices():
    trial = ExactTrial(multiple=6)
    result = search(trial, limit=100 + 16 * 1000)
    assert all(size % 6 == 0 for size in trial.compiled)
    assert result.max_batch_size == 960  # a multiple of 6 * 32
    assert result.measurements[0].batch_size == 6


def test_sizes_do_not_exceed_the_records():
    trial = ExactTrial(max_size=300)
    result = search(trial)
    assert max(trial.compiled) <= 300
    assert result.max_batch_size == 288
    assert "only 300 records" in result.reasons[2]
    assert "only 300 records" in result.reasons[3]


def test_time_budget():
    for compiling, seconds in ((1.0, lambda n: 1e-3 * n), (0.01, lambda n: 0.2), (0.1, None)):
        trial = ExactTrial(compile_seconds=compiling)
        trial.seconds = seconds or trial.seconds
        result = search(trial, seconds=20.0)
        assert trial.now <= 20.0 + 3 * compiling, compiling
        assert len(result.measurements) > 1


def test_growing_throughput_is_reported():
    result = search(ExactTrial(seconds=lambda n: 0.5 + 1e-6 * n), seconds=20.0)
    assert result.optimal_batch_size == max(m.batch_size for m in result.measurements if m.seconds)
    assert "still growing" in result.reasons[3]


def test_search_ends_if_memory_does_not_grow():
    result = search(ExactTrial(memory=lambda n: 5000), limit=6000)
    assert result.max_batch_size == round_down(2**31 - 1, 1)
