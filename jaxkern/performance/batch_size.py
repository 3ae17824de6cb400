"""``get_batch_size_recommendation``: the batch size to use, found by compiling and timing some."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxkern.core.arguments import real_number, whole_number
from jaxkern.core.failures import described, note
from jaxkern.core.progress import ProgressBar
from jaxkern.core.quantities import scaled
from jaxkern.performance.batch_trials import BatchMeasurement as BatchMeasurement
from jaxkern.performance.batch_trials import FunctionTrial, PipelineTrial, augmentation
from jaxkern.pipeline import Pipeline

# min_batch_size is the smallest with this share of the best throughput.
_WORTHWHILE_SHARE = 0.8
# Differences of throughput below the first are noise however often they were measured; a noise
# beyond the second would let any size pass.
_LEAST_NOISE, _MOST_NOISE = 0.02, 0.1
# A turn times calls for about this many seconds, and there are no more rounds of turns than this.
_TURN_SECONDS, _MOST_CALLS, _MOST_ROUNDS = 0.03, 50, 25
# Growing ends after two doublings without this gain, though not before this size, below which a
# kernel may not use all its threads; it leaves time for this many rounds.
_GAIN, _LEAST_TRIED, _ROUNDS_KEPT = 1.05, 32, 5
# Sizes compiled to find the largest that fits: at most, and however little time is left.
_MOST_COMPILED, _LEAST_COMPILED = 16, 3
# The bytes of small sizes do not say much about those of sizes beyond so many times theirs.
_REACH = 64
_MOST_RECORDS = 2**31 - 1  # rows are counted in 32 bits by many programs


@dataclass(frozen=True)
class BatchSizeRecommendation:
    """What `jaxkern.get_batch_size_recommendation` found; ``str`` shows it as a table.

    Attributes:
      optimal_batch_size: the smallest size whose throughput is within noise of the best measured.
      min_batch_size: the smallest size with at least 80% of the best throughput.
      max_batch_size: the largest size known to fit the limit: compiled, and its bytes read.
      reasons: sentences with the figures behind them.
      measurements: `BatchMeasurement` of each size, in order.
      memory_limit: bytes of one device.
      device: what it ran on.
    """

    optimal_batch_size: int
    min_batch_size: int
    max_batch_size: int
    reasons: tuple[str, ...]
    measurements: tuple[BatchMeasurement, ...]
    memory_limit: int
    device: str

    def __str__(self) -> str:
        lines = [
            f"batch size {self.optimal_batch_size} (from {self.min_batch_size} to "
            f"{self.max_batch_size}) on {self.device}",
            f"{'size':>10} {'ms a batch':>18} {'examples':>12} {'memory':>10} {'compiled in':>12}",
        ]
        for m in self.measurements:
            took, rate = "not run" if m.total_bytes <= self.memory_limit else "too large", ""
            if m.seconds is not None and m.spread is not None:
                took = f"{1e3 * m.seconds:.4g} +- {1e3 * m.spread:.2g}"
                rate = scaled(m.examples_per_second, "/s")
            lines.append(
                f"{m.batch_size:>10} {took:>18} {rate:>12} {scaled(m.total_bytes, 'B'):>10} "
                f"{m.compile_seconds:>10.2f} s"
            )
        return "\n".join([*lines, *self.reasons])

    def plot(self, path: str | Path, *, dpi: int = 120) -> Path:
        """Throughput and memory over the batch size, as a PNG; needs matplotlib."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        FigureCanvasAgg(figure)
        rates = figure.subplots()
        ran = [(m.batch_size, m.seconds) for m in self.measurements if m.seconds is not None]
        rates.plot([n for n, _ in ran], [n / took for n, took in ran], "o-", color="C0")
        rates.axvline(self.optimal_batch_size, color="C0", lw=0.8, ls=":")
        rates.set_xscale("log", base=2)
        rates.set_ylim(bottom=0)
        rates.set_xlabel("batch size (dotted: recommended)")
        rates.set_ylabel("examples per second", color="C0")
        used = rates.twinx()
        used.plot(
            [m.batch_size for m in self.measurements],
            [m.total_bytes / 2**20 for m in self.measurements],
            "s--",
            color="C1",
        )
        used.axhline(self.memory_limit / 2**20, color="C1", lw=0.8, ls=":")
        used.set_yscale("log")
        used.set_ylabel("memory of one device (MiB; dotted: limit)", color="C1")
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=dpi)
        return path


def get_batch_size_recommendation(
    fn_or_pipeline: Callable[..., Any] | Pipeline | None = None,
    *args: Any,
    in_axes: Any = 0,
    sizes: Sequence[int] | None = None,
    memory_limit: int | None = None,
    seconds: float = 20.0,
    sharding: jax.sharding.Sharding | None = None,
    progress: bool = True,
) -> BatchSizeRecommendation:
    """Measures which batch size to use, on the devices at hand.

    Sizes double from 1 (with a sharding: from its number of devices) while that brings throughput
    and there are memory and time. Each is compiled, XLA's ``memory_analysis()`` read, and all are
    timed in interleaved rounds. The largest size that fits comes from the line through the bytes
    of known sizes, and is then compiled itself, so that no figure is extrapolated.

    A function's call is timed from its dispatch until its result is there, and takes the bytes of
    its arguments, outputs (where they do not overwrite donated arguments) and temporaries.
    A pipeline is built again with other batch sizes (of its last `Rebatch`, where it has one) and
    timed as it delivers, source and workers included. It takes the bytes of its ring, of two
    outputs and of the temporaries of its last program; what sources, Python functions and programs
    on the host take besides is not seen.

    Args:
      fn_or_pipeline: a function of batches, jitted or not; a `Pipeline`; or None for the fused
        augmentation: RandomResizedCrop(224), flip and Normalize of u8 images 256x256x3.
      args: samples of the function's arguments, as for calling it: pytrees of arrays, whose rows
        are repeated or cut to the size that is tried, or of ``jax.ShapeDtypeStruct``, in whose
        place come floats from 0 to 1, and zeros of other dtypes. Donated ones are copied before.
      in_axes: where their batch axes are, as in ``jax.vmap``; None for what has none.
      sizes: to time, instead of doubling.
      memory_limit: bytes that one device may hold. None: 90% of what is free on it, by its own
        figures or, on the CPU, within the limits of this process (see
        ``JAXKERN_MEMORY_LIMIT``), plus what unbatched arguments hold already.
      seconds: for all of it. No size is begun that would not be done in time, except those of
        `sizes`; a compilation that has begun is waited for, and three of them are done in any case
        to find the largest size that fits.
      sharding: of a function's batches; None: the samples' own. A pipeline has its own.
      progress: whether to show a bar on stderr.

    Returns:
      sizes, reasons and measurements; ``print`` shows them.

    Raises:
      TypeError, ValueError: naming the argument.
      Exception: what the function itself raises for the smallest size. Larger sizes that fail are
        taken as too large, and `reasons` tells why.

    >>> import jax, jax.numpy as jnp
    >>> import jaxkern as jk
    >>> step = jax.jit(lambda w, x: jnp.tanh(x @ w).sum())
    >>> w = jnp.ones((64, 64))
    >>> batch = jax.ShapeDtypeStruct((1, 64), jnp.float32)
    >>> found = jk.get_batch_size_recommendation(
    ...     step, w, batch, in_axes=(None, 0), memory_limit=1 << 20, seconds=2.0)
    >>> found.min_batch_size <= found.optimal_batch_size <= found.max_batch_size
    True
    """
    if real_number("seconds", seconds, 0) == 0:
        raise ValueError(f"seconds is {seconds!r}; wanted a number above 0")
    if memory_limit is not None and not isinstance(memory_limit, (int, float)):
        raise TypeError(
            f"memory_limit is {memory_limit!r}; wanted a number of bytes, as 2**30, or None"
        )
    if memory_limit is not None and not 0 < memory_limit < math.inf:
        raise ValueError(f"memory_limit is {memory_limit!r}; wanted bytes, above 0, or None")
    trial = _trial(fn_or_pipeline, args, in_axes, sharding)
    limit = int(trial.default_limit() if memory_limit is None else memory_limit)
    with ProgressBar(progress, "batch size", "round") as bar:
        return Search(trial, limit, seconds, _checked(sizes, trial), bar).run()


def _trial(
    subject: Any, args: tuple[Any, ...], in_axes: Any, sharding: jax.sharding.Sharding | None
) -> FunctionTrial | PipelineTrial:
    if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
        raise TypeError(f"sharding is {sharding!r}; wanted a jax.sharding.Sharding or None")
    if isinstance(subject, Pipeline):
        if args or sharding is not None:
            raise TypeError(
                "a pipeline came with samples or a sharding; wanted it alone: its source gives the "
                "records, and from_source(sharding=...) spreads them"
            )
        return PipelineTrial(subject)
    if subject is None:
        if args:
            raise TypeError("samples came without a function; wanted fn, *samples")
        subject, args, in_axes = *augmentation(), 0
    if not callable(subject):
        raise TypeError(f"{subject!r:.80} is no function; wanted one, a Pipeline, or None")
    return FunctionTrial(subject, args, in_axes, sharding)


def _checked(sizes: Sequence[int] | None, trial: FunctionTrial | PipelineTrial) -> list[int]:
    """The sizes that were asked for, rising; empty for none in particular."""
    if sizes is None:
        return []
    listed = sorted({whole_number("sizes: one of them", size, 1) for size in sizes})
    if any(size % trial.multiple for size in listed):
        raise ValueError(f"sizes is {listed}; wanted multiples of the {trial.multiple} devices")
    if not listed:
        raise ValueError("sizes is empty; wanted at least one batch size, or None")
    if trial.most is not None and listed[0] > trial.most:
        raise ValueError(f"sizes begins with {listed[0]}, and there are only {trial.most} records")
    return listed


class Search:
    """Grows the size, finds the largest that fits, and times those that ran, in turns.

    Args:
      trial: what is measured, at any size.
      limit: bytes on one device.
      seconds: for all of it, about.
      sizes: to time, rising; empty to double from the smallest on.
      bar: shows what is going on.
    """

    def __init__(
        self,
        trial: FunctionTrial | PipelineTrial,
        limit: int,
        seconds: float,
        sizes: Sequence[int],
        bar: ProgressBar,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._trial, self._limit, self._seconds, self._sizes = trial, limit, seconds, sizes
        self._bar, self._clock, self._deadline = bar, clock, clock() + seconds
        self._compiled: dict[int, BatchMeasurement] = {}
        self._failed: dict[int, str] = {}  # sizes that do not compile or run, and why
        self._first: dict[int, float] = {}  # seconds a batch, in the first turn
        self._costs: dict[int, float] = {}  # seconds that the last turn took
        self._rounds: list[dict[int, float]] = []  # seconds a batch, of each size that ran

    def run(self) -> BatchSizeRecommendation:
        """All of it; raises what the smallest size raises."""
        ended = self._grow()
        largest, why = self._largest()
        self._time()
        measured = {size: self._measurement(size) for size in sorted(self._compiled)}
        rates = {size: m.examples_per_second or 0.0 for size, m in measured.items() if m.seconds}
        best = max(rates, key=lambda size: rates[size])
        noises = {size: self._noise(size, best) for size in rates}
        optimal = min(s for s in rates if rates[s] >= (1 - noises[s]) * rates[best])
        least = min(s for s in rates if rates[s] >= _WORTHWHILE_SHARE * rates[best])
        shown = {size: scaled(rate, "examples/s") for size, rate in rates.items()}
        reasons = []
        if optimal == best:
            reasons.append(f"{best} has the best throughput that was measured: {shown[best]}.")
        else:
            reasons.append(
                f"{optimal} is the smallest size whose throughput, {shown[optimal]}, is within the "
                f"noise ({noises[optimal]:.0%}) of the best, {shown[best]} at {best}."
            )
        if least == optimal:
            reasons.append(f"No smaller size reaches {_WORTHWHILE_SHARE:.0%} of it.")
        else:
            reasons.append(
                f"{least} is the smallest size with at least {_WORTHWHILE_SHARE:.0%} of that: "
                f"{shown[least]}."
            )
        how = "" if largest in rates else ", compiled and not run"
        reasons.append(
            f"{largest} is the largest known to fit in {scaled(self._limit, 'B')}: it takes "
            f"{self._compiled[largest]}{how}; {why}."
        )
        growing = best == max(rates) and optimal == best and len(rates) > 1
        reasons.append(
            f"Larger sizes than {max(rates)} were not timed: {ended}"
            + ("; throughput was still growing, and one of them may be better." if growing else ".")
        )
        count = len(self._rounds)
        few = ", too few to be certain of: give more seconds" if count < 3 else ""
        reasons.append(f"Times are medians over {count} interleaved rounds{few}.")
        device, many = self._trial.device, self._trial.multiple
        where = f"{device.device_kind} ({device.platform})"
        return BatchSizeRecommendation(
            optimal,
            least,
            largest,
            tuple(reasons),
            tuple(measured.values()),
            self._limit,
            where if many == 1 else f"{many} x {where}",
        )

    def _grow(self) -> str:
        """Compiles and runs sizes from the smallest on, while that pays; returns why it ended."""
        last = 0
        for size in self._sizes or (self._trial.multiple << k for k in itertools.count()):
            if last:
                if self._trial.most is not None and size > self._trial.most:
                    return f"there are only {self._trial.most} records for a batch"
                if not self._sizes and self._flat():
                    return f"two doublings up to {last} had brought no gain"
                turns = self._costs[last] + _ROUNDS_KEPT * sum(self._costs.values())
                needed = self._compiled[last].compile_seconds + size / last * turns
                if not self._sizes and self._clock() + needed > self._deadline:
                    return f"{size} would not have been done in seconds={self._seconds:g}"
            problem = self._run_first(size, last)
            if problem is not None:
                return problem
            last = size
        return f"{last} is the largest size that was asked for"

    def _run_first(self, size: int, last: int) -> str | None:
        """One turn of a size; what is wrong with it, unless it is the smallest, which must run."""
        self._bar.update(text=f"batch size {size}: compiling")
        try:
            found = self._compiled[size] = self._trial.compile(size)
            if found.total_bytes > self._limit:
                if last:
                    return f"{size} needs more than the limit"
                raise ValueError(
                    f"memory_limit is {self._limit} bytes ({scaled(self._limit, 'B')}), and the "
                    f"smallest batch, of {size}, takes {found.total_bytes}: {found}; "
                    "wanted at least that much: give a larger memory_limit, free memory on the "
                    "device, or make the computation smaller"
                )
            started = self._clock()
            expected = self._first[last] * size / last if last else _TURN_SECONDS
            self._first[size] = self._trial.turn(size, _calls(expected))
            self._costs[size] = self._clock() - started
        except Exception as error:
            if not last:
                note(
                    error,
                    "while measuring batch size {}, the smallest; sizes=(...) starts with another "
                    "one",
                    size,
                )
                raise
            return self._fail(size, error)
        return None

    def _fail(self, size: int, error: Exception) -> str:
        text = described(error).partition(": ")[2].strip().split("\n")[0][:160]
        memory = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in described(error)
        kind = "ran out of memory" if memory else f"raised {type(error).__name__}"
        self._failed[size] = f"{size} {kind} ({text})"
        return self._failed[size]

    def _flat(self) -> bool:
        if len(self._first) < 3 or max(self._first) < _LEAST_TRIED * self._trial.multiple:
            return False
        rates = [size / seconds for size, seconds in self._first.items()]
        return max(rates[-2:]) < _GAIN * max(rates[:-2])

    def _largest(self) -> tuple[int, str]:
        """The largest size that was seen to fit, and what stands against a larger one."""
        low = max(self._first)
        for size in self._failed.keys() & self._compiled:  # it compiled, and failed when it ran
            return low, f"{self._failed[size]}, so that {low} is the largest that is known to work"
        most = min(_MOST_RECORDS, self._trial.most or _MOST_RECORDS)
        for count in range(_MOST_COMPILED):
            beyond = [s for s, f in self._compiled.items() if f.total_bytes > self._limit]
            high = min([*beyond, *self._failed, most + 1])
            guess = rounded_down(min(self._guess(low, high), high - 1), self._trial.multiple)
            if guess <= low:
                if high in self._failed:
                    return low, self._failed[high]
                if rounded_down(most, self._trial.multiple) > low:
                    return low, "the next one is beyond the limit"
                if self._trial.most is not None:
                    return low, f"there are only {most} records for a batch"
                return low, "rows are counted in 32 bits"
            if count >= _LEAST_COMPILED and self._clock() > self._deadline:
                return low, "no time was left to compile larger ones"
            self._bar.update(text=f"batch size {guess}: compiling")
            try:
                self._compiled[guess] = self._trial.compile(guess)
                if self._compiled[guess].total_bytes <= self._limit:
                    low = guess
            except Exception as error:
                self._fail(guess, error)
        return low, "the larger sizes that were compiled did not settle it"

    def _guess(self, low: int, high: int) -> int:
        """Where the line through the two nearest known sizes meets the limit."""
        if high in self._failed:
            return (low + high) // 2
        known = {0: 0} | {size: found.total_bytes for size, found in self._compiled.items()}
        other = high if high in known else max(size for size in known if size < low)
        slope = (known[other] - known[low]) / (other - low)
        wanted = low + int((self._limit - known[low]) / slope) if slope > 0 else _MOST_RECORDS
        return min(wanted, _REACH * low)

    def _time(self) -> None:
        """Turns of all sizes that ran, interleaved, so that all see the machine alike."""
        sizes = sorted(self._first)
        for number in range(_MOST_ROUNDS):
            if self._clock() + sum(self._costs.values()) > self._deadline:
                return
            self._bar.update(number, _MOST_ROUNDS, f"timing {len(sizes)} batch sizes: round")
            found = {}
            for size in sizes if number % 2 == 0 else reversed(sizes):
                started = self._clock()
                found[size] = self._trial.turn(size, _calls(self._first[size]))
                self._costs[size] = self._clock() - started
            self._rounds.append(found)

    def _measurement(self, size: int) -> BatchMeasurement:
        if size not in self._first:
            return self._compiled[size]
        turns = [turns[size] for turns in self._rounds] or [self._first[size]]
        return dataclasses.replace(
            self._compiled[size],
            seconds=statistics.median(turns),
            spread=_half_iqr(turns),
            turns=len(turns),
        )

    def _noise(self, size: int, best: int) -> float:
        """Relative difference from the best that means nothing.

        The ratio of two turns of one round does not see what slows the whole round.
        """
        ratios = [turns[best] / turns[size] * size / best for turns in self._rounds]
        if len(ratios) < 3:
            return _MOST_NOISE
        return min(max(_half_iqr(ratios), _LEAST_NOISE), _MOST_NOISE)


def rounded_down(size: int, multiple: int) -> int:
    """At most `size`, a multiple, and a round number: less than a sixteenth is given away."""
    unit = multiple
    while 32 * unit <= size:
        unit *= 2
    return size // unit * unit


def _calls(seconds: float) -> int:
    """How many calls of so many seconds a turn has."""
    return min(max(round(_TURN_SECONDS / max(seconds, 1e-9)), 1), _MOST_CALLS)


def _half_iqr(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2
