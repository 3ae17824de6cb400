"""``get_batch_size_recommendation``: a batch size, chosen by compiling and timing several."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.failures import describe_exception, note
from jaxkern.core.progress import ProgressBar
from jaxkern.core.quantities import format_quantity
from jaxkern.performance.batch_trials import (
    MAX_RECORDS,
    BatchMeasurement,
    TimeCalls,
    Trial,
    augmentation,
    function_trial,
    pipeline_trial,
)

if TYPE_CHECKING:
    from jaxkern.pipeline import Pipeline

_WORTHWHILE_SHARE = 0.8  # fraction of the best throughput that min_batch_size reaches
_MIN_NOISE, _MAX_NOISE = 0.02, 0.1  # relative; with more noise, any size would pass
_MIN_ROUNDS, _MAX_ROUNDS = 3, 25  # fewer rounds do not estimate the noise
_TURN_SECONDS, _MAX_CALLS = 0.03, 50  # approximate time of one size in one round
# Growth ends after two doublings with a gain below _GAIN, but not below _MIN_TRIED, where a kernel
# may not use all its threads. It leaves time for _RESERVED_ROUNDS rounds.
_GAIN, _MIN_TRIED, _RESERVED_ROUNDS = 1.05, 32, 5
# The number of sizes that are compiled even if the time is up, to find the largest that fits, and
# the factor up to which bytes are extrapolated.
_MIN_COMPILED, _MAX_FACTOR = 3, 64


@dataclass(frozen=True)
class BatchSizeRecommendation:
    """The result of `get_batch_size_recommendation`; ``str`` shows it as a table.

    Attributes:
      optimal_batch_size: smallest size whose throughput is within noise of the best measured.
      min_batch_size: smallest size with at least 80% of the best throughput.
      max_batch_size: largest size known to fit the limit: it was compiled and its bytes read.
      reasons: sentences that explain the sizes with figures.
      measurements: a `BatchMeasurement` for each size, in increasing order.
      memory_limit: memory limit of one device in bytes.
      device: the device, as text.
    """

    optimal_batch_size: int
    min_batch_size: int
    max_batch_size: int
    reasons: tuple[str, ...]
    measurements: tuple[BatchMeasurement, ...]
    memory_limit: int
    device: str

    def __str__(self) -> str:
        bounds = f"(from {self.min_batch_size} to {self.max_batch_size})"
        lines = [
            f"batch size {self.optimal_batch_size} {bounds} on {self.device}",
            f"{'size':>10} {'ms per batch':>18} {'examples':>12} {'memory':>10} {'compile':>12}",
        ]
        for m in self.measurements:
            total, compiled = format_quantity(m.total_bytes, "B"), f"{m.compile_seconds:.2f} s"
            took, rate = "not run" if m.total_bytes <= self.memory_limit else "too large", ""
            if m.seconds is not None and m.spread is not None:
                took = f"{1e3 * m.seconds:.4g} +- {1e3 * m.spread:.2g}"
                rate = format_quantity(m.examples_per_second, "/s")
            lines.append(f"{m.batch_size:>10} {took:>18} {rate:>12} {total:>10} {compiled:>12}")
        return "\n".join([*lines, *self.reasons])

    def plot(self, path: str | Path, *, dpi: int = 120) -> Path:
        """Draw throughput and memory over the batch size as a PNG; needs matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        rates: Any = figure.subplots()
        ran = [m for m in self.measurements if m.seconds]
        rates.plot([m.batch_size for m in ran], [m.examples_per_second for m in ran], "o-C0")
        rates.axvline(self.optimal_batch_size, color="C0", lw=0.8, ls=":")
        rates.set(xlabel="batch size (dotted: recommended)", ylabel="examples per second")
        rates.set_xscale("log", base=2)
        rates.set_ylim(bottom=0)
        used = rates.twinx()
        sizes = [m.batch_size for m in self.measurements]
        used.plot(sizes, [m.total_bytes for m in self.measurements], "s--C1")
        used.axhline(self.memory_limit, color="C1", lw=0.8, ls=":")
        used.set(yscale="log", ylabel="memory of one device (bytes; dotted: limit)")
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
    """Measure which batch size to use on the available devices.

    Sizes double from 1 (with a sharding, from its number of devices) while the throughput grows.
    Each is compiled to read its memory, and all are timed in interleaved rounds. The largest size
    that fits is found by bisection and is itself compiled, so no figure is extrapolated.

    The memory of a function includes arguments, outputs (unless stored in donated arguments) and
    temporaries. A pipeline is rebuilt with other sizes (of its last `Rebatch`, if it has one). Its
    memory includes the batches in its ring, two outputs and the temporaries of its last
    program, but not that of sources, Python functions and host programs.

    Args:
      fn_or_pipeline: function of batches, jitted or not; a `Pipeline`; or None for the fused
        augmentation RandomResizedCrop(224), flip and Normalize of uint8 images 256x256x3.
      *args: samples of the function's arguments: pytrees of arrays, whose rows are repeated or cut
        to the batch size, or of ``jax.ShapeDtypeStruct``. Donated arguments are copied.
      in_axes: batch axes, as in ``jax.vmap``; None for unbatched arguments.
      sizes: sizes to time, instead of doubling.
      memory_limit: bytes that one device may hold. None: 90% of its free memory, as the device
        reports it or, on the CPU, within the limits of this process (see ``JAXKERN_MEMORY_LIMIT``),
        plus the memory of unbatched arguments.
      seconds: time budget. No size is started that would exceed it, except those of ``sizes``; a
        running compilation is finished, and three to find the largest size are always done.
      sharding: sharding of a function's batches; None for the samples'. A pipeline has its own.
      progress: show a progress bar on stderr.

    Raises:
      TypeError, ValueError: for an invalid argument.
      Exception: that of the function for the smallest size. Larger sizes that fail are too large.

    >>> import jax, jax.numpy as jnp
    >>> import jaxkern as jk
    >>> step = jax.jit(lambda w, x: jnp.tanh(x @ w).sum())
    >>> w = jnp.ones((64, 64))
    >>> batch = jax.ShapeDtypeStruct((1, 64), jnp.float32)
    >>> result = jk.get_batch_size_recommendation(
    ...     step, w, batch, in_axes=(None, 0), memory_limit=1 << 20, seconds=2.0)
    >>> result.min_batch_size <= result.optimal_batch_size <= result.max_batch_size
    True
    """
    from jaxkern.pipeline import Pipeline

    check_number("seconds", seconds, 1e-6)
    if memory_limit is not None:
        check_number("memory_limit", memory_limit, 1, 2**63)
    if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
        raise TypeError(f"sharding: expected a jax.sharding.Sharding or None, got {sharding!r}")
    if isinstance(fn_or_pipeline, Pipeline):
        if args or sharding is not None:
            raise TypeError("expected a pipeline without samples or sharding, which it has itself")
        trial = pipeline_trial(fn_or_pipeline)
    elif fn_or_pipeline is None and not args:
        trial = function_trial(*augmentation(), 0, sharding)
    elif callable(fn_or_pipeline):
        trial = function_trial(fn_or_pipeline, args, in_axes, sharding)
    else:
        expected = "expected a function" if args else "expected a function, a Pipeline or None"
        raise TypeError(f"{expected} before the samples, got {fn_or_pipeline!r:.80}")
    listed = [] if sizes is None else _check_sizes(sizes, trial)
    limit = int(trial.default_limit() if memory_limit is None else memory_limit)
    with ProgressBar(progress, "batch size", "round") as bar:
        return Search(trial, limit, seconds, listed, bar).run()


def _check_sizes(sizes: Sequence[int], trial: Trial) -> list[int]:
    listed = sorted({check_integer("sizes", size, 1) for size in sizes})
    if not listed or any(size % trial.multiple for size in listed):
        raise ValueError(f"sizes: expected multiples of {trial.multiple} devices, got {listed}")
    if listed[0] > trial.max_size:
        raise ValueError(f"sizes: expected at most {trial.max_size} records, got {listed[0]}")
    return listed


class Search:
    """Search for a batch size: grows it, finds the largest that fits, and times sizes in rounds."""

    def __init__(
        self,
        trial: Trial,
        limit: int,
        seconds: float,
        sizes: Sequence[int],
        bar: ProgressBar,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._trial, self._limit, self._seconds, self._sizes = trial, limit, seconds, sizes
        self._bar, self._clock, self._deadline = bar, clock, clock() + seconds
        self._compiled: dict[int, BatchMeasurement] = {}
        self._time_calls: dict[int, TimeCalls] = {}
        # Seconds per batch of each size that ran: after its compilation, then in each round.
        self._turns: dict[int, list[float]] = {}
        self._costs: dict[int, float] = {}  # duration of each size's last turn, in seconds
        limited = trial.max_size < MAX_RECORDS
        bound = f"the source has only {trial.max_size} records"
        # The smallest size known to fail, and why.
        self._too_large = trial.max_size + 1, bound if limited else "many programs count in 32 bits"

    def run(self) -> BatchSizeRecommendation:
        ended = self._grow()
        largest, why = self._find_largest()
        rounds = self._run_rounds()
        measured = {size: self._summarize(size) for size in sorted(self._compiled)}
        rates = {size: size / m.seconds for size, m in measured.items() if m.seconds}
        best = max(rates, key=lambda size: rates[size])
        noises = {size: self._noise(size, best) for size in rates}
        optimal = min(s for s in rates if rates[s] >= (1 - noises[s]) * rates[best])
        least = min(s for s in rates if rates[s] >= _WORTHWHILE_SHARE * rates[best])
        shown = {size: format_quantity(rate, "examples/s") for size, rate in rates.items()}
        if optimal == max(rates) and len(rates) > 1:
            ended += "; throughput was still growing, so a larger size may be better"
        not_run = "" if largest in rates else ", compiled but not run"
        few = ", too few for certainty: allow more seconds" if rounds < _MIN_ROUNDS else ""
        limit, share = format_quantity(self._limit, "B"), f"{_WORTHWHILE_SHARE:.0%}"
        reasons = (
            f"{optimal} is the smallest size whose throughput, {shown[optimal]}, is within the "
            f"noise ({noises[optimal]:.0%}) of the best, {shown[best]} at {best}.",
            f"{least} is the smallest size with at least {share} of the best: {shown[least]}.",
            f"{largest} is the largest known to fit in {limit}: it needs {measured[largest]}"
            f"{not_run}; {why}.",
            f"Sizes above {max(rates)} were not timed: {ended}.",
            f"Times are medians over {rounds} interleaved rounds{few}.",
        )
        device, many = self._trial.device, self._trial.multiple
        name = f"{many} x " * (many > 1) + f"{device.device_kind} ({device.platform})"
        measurements = tuple(measured.values())
        sizes = optimal, least, largest
        return BatchSizeRecommendation(*sizes, reasons, measurements, self._limit, name)

    def _grow(self) -> str:
        """Compile and run increasing sizes while throughput grows; return why it ended."""
        last = 0
        for size in self._sizes or (self._trial.multiple << k for k in itertools.count()):
            if last and not self._sizes:
                rates = [size / turns[0] for size, turns in self._turns.items()]
                enough = len(rates) > 2 and last >= _MIN_TRIED * self._trial.multiple
                if enough and max(rates[-2:]) < _GAIN * max(rates[:-2]):
                    return f"two doublings up to {last} brought no gain"
                turns = self._costs[last] + _RESERVED_ROUNDS * sum(self._costs.values())
                needed = self._compiled[last].compile_seconds + 2 * turns
                if self._clock() + needed > self._deadline:
                    return f"{size} would have exceeded seconds={self._seconds:g}"
            if (last and size > self._trial.max_size) or not self._fits(size, run=True):
                return self._too_large[1]
            last = size
        return f"{last} is the largest requested size"

    def _find_largest(self) -> tuple[int, str]:
        """Return the largest size known to fit, and why larger ones were not tried or failed."""
        low, multiple = max(self._turns), self._trial.multiple
        high, why = self._too_large
        if high in self._compiled and self._compiled[high].total_bytes <= self._limit:
            return low, f"{why} when it ran, so {low} is the largest known to work"
        for count in itertools.count():
            high, why = self._too_large
            # Bisect; without an upper bound assume that bytes are proportional to the size.
            guess = (low + high) // 2
            if high > self._trial.max_size:
                factor = self._limit / max(self._compiled[low].total_bytes, 1)
                guess = min(int(low * min(factor, _MAX_FACTOR)), high - 1)
            size = round_down(max(guess, low + max(low // 16, multiple)), multiple)
            if size >= high:
                break
            remaining = self._deadline - self._clock()
            reserved = _RESERVED_ROUNDS * sum(self._costs.values())
            if count >= _MIN_COMPILED and remaining < reserved:
                return low, "no time remained to compile larger sizes"
            low = size if self._fits(size) else low
        return low, why

    def _fits(self, size: int, *, run: bool = False) -> bool:
        """Compile a size, and run it if requested; raise if the smallest size fails."""
        last = max(self._turns, default=0)
        self._bar.update(text=f"batch size {size}: compiling")
        problem = f"{size} needs more than the limit"
        try:
            started = self._clock()
            report, total, self._time_calls[size] = self._trial.build(size)
            self._compiled[size] = BatchMeasurement(
                batch_size=size,
                argument_bytes=report.argument_bytes,
                output_bytes=report.output_bytes,
                temporary_bytes=report.temporary_bytes,
                total_bytes=total,
                compile_seconds=self._clock() - started,
            )
            fits = total <= self._limit
            if not fits and not last:
                raise ValueError(
                    f"memory_limit: expected at least {total} bytes for the smallest batch, of "
                    f"{size} ({self._compiled[size]}), got {self._limit}"
                )
            if fits and run:
                expected = self._turns[last][0] * size / last if last else _TURN_SECONDS
                self._turns[size] = [self._run_turn(size, expected)]
        except Exception as error:
            if not last:
                note(error, "batch size {}, the smallest, failed", size)
                raise
            text = describe_exception(error)
            full = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text
            kind = "ran out of memory" if full else f"raised {type(error).__name__}"
            line = text.partition(": ")[2].strip().split("\n")[0][:160]
            fits, problem = False, f"{size} {kind} ({line})"
        if not fits:
            self._too_large = size, problem
        return fits

    def _run_turn(self, size: int, expected: float) -> float:
        """Return seconds per batch, over the number of calls that should fill a turn."""
        calls = min(max(round(_TURN_SECONDS / max(expected, 1e-9)), 1), _MAX_CALLS)
        started = self._clock()
        seconds = self._time_calls[size](calls)
        self._costs[size] = self._clock() - started
        return seconds

    def _run_rounds(self) -> int:
        """Time all sizes in interleaved rounds, so that drift affects them alike."""
        sizes = sorted(self._turns)
        for number in range(_MAX_ROUNDS):
            if self._clock() + sum(self._costs.values()) > self._deadline:
                return number
            self._bar.update(number, _MAX_ROUNDS, f"timing {len(sizes)} batch sizes: round")
            for size in sizes if number % 2 == 0 else reversed(sizes):
                self._turns[size].append(self._run_turn(size, self._turns[size][0]))
        return _MAX_ROUNDS

    def _summarize(self, size: int) -> BatchMeasurement:
        if size not in self._turns:
            return self._compiled[size]
        turns = self._turns[size][1:] or self._turns[size]
        low, middle, high = map(float, np.percentile(turns, (25, 50, 75)))
        return dataclasses.replace(
            self._compiled[size], seconds=middle, spread=(high - low) / 2, turns=len(turns)
        )

    def _noise(self, size: int, best: int) -> float:
        """Return half the interquartile range of the ratio of two sizes' times in a round."""
        pairs = zip(self._turns[size][1:], self._turns[best][1:], strict=True)
        ratios = [theirs / own * size / best for own, theirs in pairs]
        if len(ratios) < _MIN_ROUNDS:
            return _MAX_NOISE
        low, high = np.percentile(ratios, (25, 75))
        return min(max(float(high - low) / 2, _MIN_NOISE), _MAX_NOISE)


def round_down(size: int, multiple: int) -> int:
    """Round down to a multiple with few significant digits, by less than a sixteenth."""
    unit = multiple << max((size // multiple).bit_length() - 5, 0)
    return size // unit * unit
