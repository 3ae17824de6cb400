"""``get_batch_size_recommendation``: the batch size to use, found by compiling and timing some."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxkern.core.arguments import check_integer, check_number
from jaxkern.core.failures import describe_exception, note
from jaxkern.core.progress import ProgressBar
from jaxkern.core.quantities import format_quantity
from jaxkern.performance.batch_trials import (
    MOST_RECORDS,
    Trial,
    augmentation,
    function_trial,
    pipeline_trial,
)
from jaxkern.performance.batch_trials import BatchMeasurement as BatchMeasurement
from jaxkern.pipeline import Pipeline

_WORTHWHILE_SHARE = 0.8  # of the best throughput, which min_batch_size must have
_LEAST_NOISE, _MOST_NOISE = 0.02, 0.1  # a larger one would let any size pass
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 25  # fewer do not tell the noise
_TURN_SECONDS, _MOST_CALLS = 0.03, 50  # of one turn, about
# Growing ends after two doublings without this gain, though not before this size, below which a
# kernel may not use all its threads; it leaves time for this many rounds.
_GAIN, _LEAST_TRIED, _ROUNDS_KEPT = 1.05, 32, 5
# However little time is left, so many sizes are compiled to find the largest that fits; bytes say
# little of sizes beyond so many times theirs.
_LEAST_COMPILED, _REACH = 3, 64


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
                rate = format_quantity(m.examples_per_second, "/s")
            lines.append(
                f"{m.batch_size:>10} {took:>18} {rate:>12} "
                f"{format_quantity(m.total_bytes, 'B'):>10} "
                f"{m.compile_seconds:>10.2f} s"
            )
        return "\n".join([*lines, *self.reasons])

    def plot(self, path: str | Path, *, dpi: int = 120) -> Path:
        """Throughput and memory over the batch size, as a PNG; needs matplotlib."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        rates = figure.subplots()
        ran = {m.batch_size: m.batch_size / m.seconds for m in self.measurements if m.seconds}
        rates.plot(list(ran), list(ran.values()), "o-C0")
        rates.axvline(self.optimal_batch_size, color="C0", lw=0.8, ls=":")
        rates.set(xlabel="batch size (dotted: recommended)", ylabel="examples per second")
        rates.set_xscale("log", base=2)
        rates.set_ylim(bottom=0)
        used = rates.twinx()
        mebibytes = {m.batch_size: m.total_bytes / 2**20 for m in self.measurements}
        used.plot(list(mebibytes), list(mebibytes.values()), "s--C1")
        used.axhline(self.memory_limit / 2**20, color="C1", lw=0.8, ls=":")
        used.set(yscale="log", ylabel="memory of one device (MiB; dotted: limit)")
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
    timed in interleaved rounds. The largest size that fits is found by bisection, and compiled
    itself, so that no figure is extrapolated.

    A function's call is timed from its dispatch until its result is there, and takes the bytes of
    its arguments, outputs (where they do not overwrite donated arguments) and temporaries.
    A pipeline is built again with other batch sizes (of its last `Rebatch`, where it has one) and
    timed as it delivers, source and workers included. It takes the bytes of its ring, of two
    outputs and of the temporaries of its last program; what sources, Python functions and programs
    on the host take besides is not seen.

    Args:
      fn_or_pipeline: a function of batches, jitted or not; a `Pipeline`; or None for the fused
        augmentation: RandomResizedCrop(224), flip and Normalize of u8 images 256x256x3.
      args: samples of the function's arguments: pytrees of arrays, whose rows are repeated or cut
        to the size that is tried, or of ``jax.ShapeDtypeStruct``, in whose place come floats from
        0 to 1, and zeros of other dtypes. Donated ones are copied before.
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
    if check_number("seconds", seconds, 0) == 0:
        raise ValueError(f"seconds is {seconds!r}; wanted a number above 0")
    if memory_limit is not None and not isinstance(memory_limit, int | float):
        raise TypeError(f"memory_limit is {memory_limit!r}; wanted bytes, as 2**30, or None")
    if memory_limit is not None and not 0 < memory_limit < math.inf:
        raise ValueError(f"memory_limit is {memory_limit!r}; wanted bytes, above 0, or None")
    if sharding is not None and not isinstance(sharding, jax.sharding.Sharding):
        raise TypeError(f"sharding is {sharding!r}; wanted a jax.sharding.Sharding or None")
    if isinstance(fn_or_pipeline, Pipeline):
        if args or sharding is not None:
            raise TypeError(
                "a pipeline came with samples or a sharding; wanted it alone: its source gives the "
                "records, and from_source(sharding=...) spreads them"
            )
        trial = pipeline_trial(fn_or_pipeline)
    elif fn_or_pipeline is None:
        if args:
            raise TypeError("samples came without a function; wanted fn, *samples")
        trial = function_trial(*augmentation(), 0, sharding)
    elif callable(fn_or_pipeline):
        trial = function_trial(fn_or_pipeline, args, in_axes, sharding)
    else:
        raise TypeError(f"{fn_or_pipeline!r:.80} is no function; wanted one, a Pipeline, or None")
    listed = [] if sizes is None else _checked(sizes, trial)
    limit = int(trial.default_limit() if memory_limit is None else memory_limit)
    with ProgressBar(progress, "batch size", "round") as bar:
        return Search(trial, limit, seconds, listed, bar).run()


def _checked(sizes: Sequence[int], trial: Trial) -> list[int]:
    """The sizes that were asked for, rising."""
    listed = sorted({check_integer("sizes: one of them", size, 1) for size in sizes})
    if any(size % trial.multiple for size in listed):
        raise ValueError(f"sizes is {listed}; wanted multiples of the {trial.multiple} devices")
    if not listed:
        raise ValueError("sizes is empty; wanted at least one batch size, or None")
    if listed[0] > trial.most:
        raise ValueError(f"sizes begins with {listed[0]}, and there are only {trial.most} records")
    return listed


class Search:
    """Grows the size, finds the largest that fits, and times those that ran, in turns."""

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
        self._turn_of: dict[int, Callable[[int], float]] = {}
        # Seconds a batch of each size that ran: the turn behind its compilation, then the rounds.
        self._turns: dict[int, list[float]] = {}
        self._costs: dict[int, float] = {}  # seconds that the last turn took
        few = trial.most < MOST_RECORDS
        bound = f"there are only {trial.most} records" if few else "rows are counted in 32 bits"
        self._beyond = trial.most + 1, bound  # the smallest size that is known not to do, and why

    def run(self) -> BatchSizeRecommendation:
        """All of it; raises what the smallest size raises."""
        ended = self._grow()
        largest, why = self._largest()
        rounds = self._time()
        found = {size: self._measured(size) for size in sorted(self._compiled)}
        rates = {size: size / m.seconds for size, m in found.items() if m.seconds}
        best = max(rates, key=lambda size: rates[size])
        noises = {size: self._noise(size, best) for size in rates}
        optimal = min(s for s in rates if rates[s] >= (1 - noises[s]) * rates[best])
        least = min(s for s in rates if rates[s] >= _WORTHWHILE_SHARE * rates[best])
        shown = {size: format_quantity(rate, "examples/s") for size, rate in rates.items()}
        if optimal == max(rates) and len(rates) > 1:
            ended += "; throughput was still growing, and one of them may be better"
        how = "" if largest in rates else ", compiled and not run"
        few = ", too few to be certain of: give more seconds" if rounds < _LEAST_ROUNDS else ""
        chosen = f"{best} has the best throughput that was measured: {shown[best]}."
        if optimal != best:
            chosen = (
                f"{optimal} is the smallest size whose throughput, {shown[optimal]}, is within the "
                f"noise ({noises[optimal]:.0%}) of the best, {shown[best]} at {best}."
            )
        reasons = (
            chosen,
            f"{least} is the smallest size with at least {_WORTHWHILE_SHARE:.0%} of the best: "
            f"{shown[least]}.",
            f"{largest} is the largest known to fit in {format_quantity(self._limit, 'B')}: it "
            "takes "
            f"{found[largest]}{how}; {why}.",
            f"Larger sizes than {max(rates)} were not timed: {ended}.",
            f"Times are medians over {rounds} interleaved rounds{few}.",
        )
        device, many = self._trial.device, self._trial.multiple
        where = f"{many} x " * (many > 1) + f"{device.device_kind} ({device.platform})"
        measured = tuple(found.values())
        return BatchSizeRecommendation(
            optimal, least, largest, reasons, measured, self._limit, where
        )

    def _grow(self) -> str:
        """Compiles and runs sizes from the smallest on, while that pays; returns why it ended."""
        last = 0
        for size in self._sizes or (self._trial.multiple << k for k in itertools.count()):
            if last and not self._sizes:
                rates = [size / turns[0] for size, turns in self._turns.items()]
                enough = len(rates) > 2 and last >= _LEAST_TRIED * self._trial.multiple
                if enough and max(rates[-2:]) < _GAIN * max(rates[:-2]):
                    return f"two doublings up to {last} had brought no gain"
                turns = self._costs[last] + _ROUNDS_KEPT * sum(self._costs.values())
                needed = self._compiled[last].compile_seconds + 2 * turns
                if self._clock() + needed > self._deadline:
                    return f"{size} would not have been done in seconds={self._seconds:g}"
            if (last and size > self._trial.most) or not self._fits(size, run=True):
                return self._beyond[1]
            last = size
        return f"{last} is the largest size that was asked for"

    def _largest(self) -> tuple[int, str]:
        """The largest size that was seen to fit, and what stands against a larger one."""
        low, multiple = max(self._turns), self._trial.multiple
        high, why = self._beyond
        if high in self._compiled and self._compiled[high].total_bytes <= self._limit:
            return low, f"{why} when it ran, so that {low} is the largest that is known to work"
        for count in itertools.count():
            high, why = self._beyond
            # The middle; while nothing too large is known, where bytes in proportion would end.
            guess = (low + high) // 2
            if high > self._trial.most:
                share = self._limit / max(self._compiled[low].total_bytes, 1)
                guess = min(int(low * min(share, _REACH)), high - 1)
            size = rounded_down(max(guess, low + max(low // 16, multiple)), multiple)
            if size >= high:
                break
            left = self._deadline - self._clock() - _ROUNDS_KEPT * sum(self._costs.values())
            if count >= _LEAST_COMPILED and left < 0:
                return low, "no time was left to compile larger ones"
            low = size if self._fits(size) else low
        return low, why

    def _fits(self, size: int, *, run: bool = False) -> bool:
        """Compiles a size and, where told to, runs it; the smallest, which must do, raises."""
        last = max(self._turns, default=0)
        self._bar.update(text=f"batch size {size}: compiling")
        problem = f"{size} needs more than the limit"
        try:
            found, self._turn_of[size] = self._trial.build(size)
            self._compiled[size] = found
            fits = found.total_bytes <= self._limit
            if not fits and not last:
                raise ValueError(
                    f"memory_limit is {self._limit} bytes ({format_quantity(self._limit, 'B')}), "
                    "and the "
                    f"smallest batch, of {size}, takes {found.total_bytes}: {found}; wanted at "
                    "least that much: give a larger memory_limit, free memory on the device, or "
                    "make the computation smaller"
                )
            if fits and run:
                expected = self._turns[last][0] * size / last if last else _TURN_SECONDS
                self._turns[size] = [self._turn(size, expected)]
        except Exception as error:
            text = describe_exception(error)
            if not last:
                told = "while measuring batch size {}, the smallest; sizes=(...) starts elsewhere"
                note(error, told, size)
                raise
            full = isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in text
            kind = "ran out of memory" if full else f"raised {type(error).__name__}"
            line = text.partition(": ")[2].strip().split("\n")[0][:160]
            fits, problem = False, f"{size} {kind} ({line})"
        if not fits:
            self._beyond = size, problem
        return fits

    def _turn(self, size: int, expected: float) -> float:
        """Seconds a batch, over as many calls as fill a turn if each takes what is expected."""
        calls = min(max(round(_TURN_SECONDS / max(expected, 1e-9)), 1), _MOST_CALLS)
        started = self._clock()
        taken = self._turn_of[size](calls)
        self._costs[size] = self._clock() - started
        return taken

    def _time(self) -> int:
        """Rounds of turns of all sizes that ran, interleaved, so that all see the machine alike."""
        sizes = sorted(self._turns)
        for number in range(_MOST_ROUNDS):
            if self._clock() + sum(self._costs.values()) > self._deadline:
                return number
            self._bar.update(number, _MOST_ROUNDS, f"timing {len(sizes)} batch sizes: round")
            for size in sizes if number % 2 == 0 else reversed(sizes):
                self._turns[size].append(self._turn(size, self._turns[size][0]))
        return _MOST_ROUNDS

    def _measured(self, size: int) -> BatchMeasurement:
        if size not in self._turns:
            return self._compiled[size]
        turns = self._turns[size][1:] or self._turns[size]
        low, middle, high = map(float, np.percentile(turns, (25, 50, 75)))
        return dataclasses.replace(
            self._compiled[size], seconds=middle, spread=(high - low) / 2, turns=len(turns)
        )

    def _noise(self, size: int, best: int) -> float:
        """Half the quartiles' distance of the ratio of a round's two turns.

        It does not see what slows the whole round.
        """
        pairs = zip(self._turns[size][1:], self._turns[best][1:], strict=True)
        ratios = [theirs / own * size / best for own, theirs in pairs]
        if len(ratios) < _LEAST_ROUNDS:
            return _MOST_NOISE
        low, high = np.percentile(ratios, (25, 75))
        return min(max(float(high - low) / 2, _LEAST_NOISE), _MOST_NOISE)


def rounded_down(size: int, multiple: int) -> int:
    """At most `size`, a multiple, and a round number: less than a sixteenth is given away."""
    unit = multiple << max((size // multiple).bit_length() - 5, 0)
    return size // unit * unit
