"""Which batch sizes to try, in what order, and what the figures say; runs nothing itself."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from jaxkern.core.failures import described, note
from jaxkern.core.memory import GIB
from jaxkern.core.progress import ProgressBar

# min_batch_size is the smallest with this share of the best throughput.
WORTHWHILE_SHARE = 0.8
# Differences of throughput below the first are noise however often they were measured; a noise
# beyond the second would let any size pass.
LEAST_NOISE, MOST_NOISE = 0.02, 0.1

# A turn times calls for about this many seconds, and there are no more rounds of turns than this.
_TURN_SECONDS, _MOST_CALLS, _MOST_ROUNDS = 0.03, 50, 25
# Growing ends after two doublings without this gain, though not before this size, below which a
# kernel may not use all its threads.
_GAIN, _LEAST_TRIED = 1.05, 32
# Growing leaves time for this many rounds.
_ROUNDS_KEPT = 5
# Sizes compiled to find the largest that fits: at most, and however little time is left.
_MOST_COMPILED, _LEAST_COMPILED = 16, 3
# The bytes of small sizes do not say much about those of sizes beyond so many times theirs.
_REACH = 64
_MOST_RECORDS = 2**31 - 1  # rows are counted in 32 bits by many programs


class Footprint(NamedTuple):
    """Bytes of one device at a batch size; `total` is what is compared with the limit."""

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    total_bytes: int
    compile_seconds: float


class Trial(Protocol):
    """Something that can be compiled and timed at any batch size."""

    @property
    def multiple(self) -> int:
        """Sizes are multiples of it: the devices that share a batch."""

    @property
    def most(self) -> int | None:
        """The largest size that there are records for; None: any."""

    def compile(self, size: int) -> Footprint:
        """Compiles for a size without running it."""

    def turn(self, size: int, calls: int) -> float:
        """Seconds per batch over some calls, behind one that is not timed."""


@dataclass(frozen=True)
class BatchMeasurement:
    """What was measured at one batch size.

    Attributes:
      batch_size: records, over all devices that share the batch.
      seconds: per batch, the median over interleaved turns; None where it was compiled and not run.
      spread: half the distance between the quartiles of the turns, in seconds.
      turns: how many.
      argument_bytes, output_bytes, temporary_bytes: on one device, as XLA reports them.
      total_bytes: what is compared with the memory limit; see `get_batch_size_recommendation`.
      compile_seconds: tracing and compiling, once.
    """

    batch_size: int
    seconds: float | None
    spread: float | None
    turns: int
    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    total_bytes: int
    compile_seconds: float

    @property
    def examples_per_second(self) -> float | None:
        """Throughput; None where it was not run."""
        return None if self.seconds is None else self.batch_size / self.seconds


class Findings(NamedTuple):
    """What a search ends with."""

    optimal: int
    least: int
    largest: int
    reasons: tuple[str, ...]
    measurements: tuple[BatchMeasurement, ...]


def out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory did not suffice."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in described(error)


def rounded_down(size: int, multiple: int) -> int:
    """At most `size`, a multiple, and a round number: less than a sixteenth is given away."""
    unit = multiple
    while 32 * unit <= size:
        unit *= 2
    return size // unit * unit


def shown_bytes(count: float) -> str:
    """Bytes for a reader."""
    for unit, name in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            return f"{count / unit:{'.3g' if count < 1000 * unit else '.0f'}} {name}"
    return f"{count:.0f} bytes"


def shown_rate(rate: float) -> str:
    """Examples per second to three digits, without an exponent."""
    places = 2 - math.floor(math.log10(rate))
    return f"{round(rate, places):,.{max(places, 0)}f}/s"


@dataclass
class Search:
    """One search: `run` grows the size, finds the largest that fits, and times those that ran.

    Attributes:
      trial: what is measured.
      limit: bytes on one device.
      seconds: for all of it, about.
      sizes: to time; None doubles from the smallest on.
      bar: shows what is going on.
      clock: seconds.
    """

    trial: Trial
    limit: int
    seconds: float
    sizes: Sequence[int] | None
    bar: ProgressBar
    clock: Callable[[], float] = time.perf_counter
    _footprints: dict[int, Footprint] = field(default_factory=dict)
    _first: dict[int, float] = field(default_factory=dict)  # seconds a batch, in the first turn
    _costs: dict[int, float] = field(default_factory=dict)  # seconds that the last turn took
    _rounds: list[dict[int, float]] = field(default_factory=list)
    _failed: tuple[int, str] | None = None  # the smallest size known not to work, and why
    _failed_running: bool = False  # it compiled, and failed when it ran
    _ended: str = ""  # why no larger size was timed

    def run(self) -> Findings:
        """All of it; raises what the smallest size raises."""
        self._start = self.clock()
        self._deadline = self._start + self.seconds
        self._grow()
        largest, why = self._largest()
        self._time()
        return self._findings(largest, why)

    def _grow(self) -> None:
        """Compiles and runs sizes from the smallest on, while that is worth its time."""
        listed = iter(self.sizes or ())
        size = next(listed, self.trial.multiple)
        while True:
            self.bar.update(text=f"batch size {size}: compiling")
            if not self._tried(size):
                return
            following = next(listed, None) if self.sizes else 2 * size
            if following is None:
                self._ended = f"{size} is the largest size that was asked for"
                return
            if self.sizes is None and self._flat():
                self._ended = f"two doublings up to {size} had brought no gain"
                return
            if self.trial.most is not None and following > self.trial.most:
                self._ended = f"there are only {self.trial.most} records for a batch"
                return
            growth = following / size
            rounds = growth * _ROUNDS_KEPT * sum(self._costs.values())
            needed = self._footprints[size].compile_seconds + growth * self._costs[size] + rounds
            if self.sizes is None and self.clock() + needed > self._deadline:
                self._ended = f"{following} would not have been done in seconds={self.seconds:g}"
                return
            size = following

    def _tried(self, size: int) -> bool:
        """Whether a size fits and ran; the smallest must."""
        smallest = not self._first
        try:
            footprint = self._compiled(size)
            if footprint.total_bytes > self.limit:
                if smallest:
                    raise ValueError(self._too_small(size, footprint))
                self._ended = f"{size} needs more than the limit"
                return False
            started = self.clock()
            last = max(self._first, default=size)
            expected = self._first.get(last, _TURN_SECONDS) * size / last
            self._first[size] = self.trial.turn(size, _calls(expected))
            self._costs[size] = self.clock() - started
        except Exception as error:
            if smallest:
                note(
                    error,
                    "while measuring batch size {}, the smallest; sizes=(...) starts with another "
                    "one",
                    size,
                )
                raise
            self._failed_running = size in self._footprints
            self._ended = self._fail(size, error)
            return False
        return True

    def _flat(self) -> bool:
        if len(self._first) < 3 or max(self._first) < _LEAST_TRIED * self.trial.multiple:
            return False
        rates = [size / seconds for size, seconds in self._first.items()]
        return max(rates[-2:]) < _GAIN * max(rates[:-2])

    def _too_small(self, size: int, footprint: Footprint) -> str:
        return (
            f"memory_limit is {self.limit} bytes ({shown_bytes(self.limit)}), and the smallest "
            f"batch, of {size}, takes {footprint.total_bytes}: {_parts(footprint)}; wanted at "
            "least that much: give a larger memory_limit, free memory on the device, or make the "
            "computation smaller"
        )

    def _compiled(self, size: int) -> Footprint:
        if size not in self._footprints:
            self._footprints[size] = self.trial.compile(size)
        return self._footprints[size]

    def _fail(self, size: int, error: Exception) -> str:
        """Remembers that a size does not work, and says why."""
        text = described(error).partition(": ")[2].strip().split("\n")[0][:160]
        kind = "ran out of memory" if out_of_memory(error) else f"raised {type(error).__name__}"
        why = f"{size} {kind} ({text})"
        if self._failed is None or size < self._failed[0]:
            self._failed = (size, why)
        return why

    def _largest(self) -> tuple[int, str]:
        """The largest size that was seen to fit, and what stands against a larger one."""
        ran = max(self._first)
        if self._failed_running and self._failed is not None:
            return ran, f"{self._failed[1]}, so that {ran} is the largest that is known to work"
        most = min(_MOST_RECORDS, self.trial.most or _MOST_RECORDS)
        multiple = self.trial.multiple
        beyond = [s for s, f in self._footprints.items() if f.total_bytes > self.limit]
        low, high = ran, min(beyond + ([self._failed[0]] if self._failed else []), default=None)
        why = "the larger sizes that were compiled did not settle it"
        for count in range(_MOST_COMPILED):
            guess = min(self._guess(low, high), _REACH * low, most, (high or most + 1) - 1)
            guess = rounded_down(guess, multiple)
            if guess <= low:
                return low, self._bound(low, high, most)
            if count >= _LEAST_COMPILED and self.clock() > self._deadline:
                why = "no time was left to compile larger ones"
                break
            self.bar.update(text=f"batch size {guess}: compiling")
            try:
                fits = self._compiled(guess).total_bytes <= self.limit
            except Exception as error:
                self._fail(guess, error)
                fits = False
            if fits:
                low = guess
            else:
                high = guess
        return low, why

    def _guess(self, low: int, high: int | None) -> int:
        """Where the line through the two nearest known sizes meets the limit."""
        used = self._footprints[low].total_bytes
        if high is not None and high not in self._footprints:  # it failed to compile
            return math.isqrt(low * high) if high > 4 * low else (low + high) // 2
        below = [size for size in self._footprints if size < low]
        other = high if high is not None else max(below, default=None)
        if other is None:
            slope = used / low
        else:
            slope = (self._footprints[other].total_bytes - used) / (other - low)
        return _MOST_RECORDS if slope <= 0 else low + int((self.limit - used) / slope)

    def _bound(self, low: int, high: int | None, most: int) -> str:
        """What stands against more than `low`."""
        if self._failed is not None and self._failed[0] == high:
            return self._failed[1]
        if rounded_down(most, self.trial.multiple) <= low:
            if self.trial.most is not None:
                return f"there are only {self.trial.most} records for a batch"
            return "rows are counted in 32 bits"
        return "the next one is beyond the limit"

    def _time(self) -> None:
        """Turns of all sizes that ran, interleaved, so that all see the machine alike."""
        sizes = sorted(self._first)
        for number in range(_MOST_ROUNDS):
            if self.clock() + sum(self._costs.values()) > self._deadline:
                return
            self.bar.update(number, _MOST_ROUNDS, f"timing {len(sizes)} batch sizes: round")
            found = {}
            for size in sizes if number % 2 == 0 else reversed(sizes):
                started = self.clock()
                found[size] = self.trial.turn(size, _calls(self._first[size]))
                self._costs[size] = self.clock() - started
            self._rounds.append(found)

    def _measurements(self) -> dict[int, BatchMeasurement]:
        found = {}
        for size, footprint in sorted(self._footprints.items()):
            seconds = spread = None
            if size in self._first:
                turns = [turns[size] for turns in self._rounds] or [self._first[size]]
                seconds = statistics.median(turns)
                spread = _half_iqr(turns)
            found[size] = BatchMeasurement(
                size, seconds, spread, len(self._rounds) or 1 if seconds else 0, *footprint
            )
        return found

    def _findings(self, largest: int, why: str) -> Findings:
        measured = self._measurements()
        rates = {size: m.examples_per_second or 0.0 for size, m in measured.items() if m.seconds}
        best = max(rates, key=lambda size: rates[size])
        noises = {size: self._noise(size, best) for size in rates}
        optimal = min(s for s in rates if rates[s] >= (1 - noises[s]) * rates[best])
        least = min(s for s in rates if rates[s] >= WORTHWHILE_SHARE * rates[best])
        reasons = [self._optimal_reason(optimal, best, rates, noises[optimal])]
        if least == optimal:
            reasons.append(f"No smaller size reaches {WORTHWHILE_SHARE:.0%} of it.")
        else:
            reasons.append(
                f"{least} is the smallest size with at least {WORTHWHILE_SHARE:.0%} of that: "
                f"{shown_rate(rates[least])}."
            )
        footprint = self._footprints[largest]
        how = "" if largest in rates else ", compiled and not run"
        reasons.append(
            f"{largest} is the largest known to fit in {shown_bytes(self.limit)}: it takes "
            f"{shown_bytes(footprint.total_bytes)}{how} ({_parts(footprint)}); {why}."
        )
        growing = best == max(rates) and optimal == best and len(rates) > 1
        reasons.append(
            f"Larger sizes than {max(rates)} were not timed: {self._ended}"
            + ("; throughput was still growing, and one of them may be better." if growing else ".")
        )
        count = len(self._rounds)
        if count < 3:
            reasons.append(
                f"There was time for {count} interleaved rounds only: the figures are uncertain; "
                "give more seconds."
            )
        else:
            reasons.append(f"Times are medians over {count} interleaved rounds.")
        return Findings(optimal, least, largest, tuple(reasons), tuple(measured.values()))

    def _optimal_reason(
        self, optimal: int, best: int, rates: dict[int, float], noise: float
    ) -> str:
        if optimal == best:
            return f"{best} has the best throughput that was measured: {shown_rate(rates[best])}."
        return (
            f"{optimal} is the smallest size whose throughput, {shown_rate(rates[optimal])}, is "
            f"within the noise ({noise:.0%}) of the best, {shown_rate(rates[best])} at {best}."
        )

    def _noise(self, size: int, best: int) -> float:
        """Relative difference from the best that means nothing: two standard errors.

        The ratio of two turns of one round does not see what slows the whole round.
        """
        ratios = [turns[best] / turns[size] * size / best for turns in self._rounds]
        if len(ratios) < 3:
            return MOST_NOISE if size != best else LEAST_NOISE
        # A normal distribution's deviation is its half distance of quartiles / 0.674; the median's
        # standard error is 1.253 times the mean's.
        error = 1.253 * _half_iqr(ratios) / 0.674 / math.sqrt(len(ratios))
        return min(max(2 * error, LEAST_NOISE), MOST_NOISE)


def _calls(seconds: float) -> int:
    """How many calls of so many seconds a turn has."""
    return min(max(round(_TURN_SECONDS / max(seconds, 1e-9)), 1), _MOST_CALLS)


def _half_iqr(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2


def _parts(footprint: Footprint) -> str:
    return (
        f"arguments {shown_bytes(footprint.argument_bytes)}, outputs "
        f"{shown_bytes(footprint.output_bytes)}, temporaries "
        f"{shown_bytes(footprint.temporary_bytes)}"
    )
