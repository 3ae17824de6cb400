"""How many threads make batches and how many batches are made ahead, measured while they run."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

from jaxkern.core.memory import available_bytes
from jaxkern.core.threads import num_threads
from jaxkern.ring import RingStats

Auto = Literal["auto"]

_WORKERS, _AHEAD = 2, 4  # the defaults, which a choice must beat
_MOST = 32
_SECONDS, _BATCHES = 0.5, 8  # of a measurement, at least; or so many seconds:
_LONG = 5.0
_LOOK = 0.03  # seconds from one look at the ring to the next
_GAIN = 1.1  # in batches a second, for which a change is kept
_WAITS = 0.05  # of the time, from which on a side is said to wait
_SHARE = 8  # of the memory that is free, which all batches ahead may take one part of


@dataclasses.dataclass(frozen=True)
class PipelineStats(RingStats):
    """`RingStats` of the ring between workers and consumer, and what runs there.

    Attributes:
      num_workers: threads that make batches now.
      prefetch_size: slots of the ring now.
      choices: where one of these is "auto": what was tried, measured and kept, in order.
    """

    num_workers: int
    prefetch_size: int
    choices: tuple[str, ...]


@dataclasses.dataclass
class _Sums:
    """Of a measurement: seconds, batches, and what both sides waited."""

    seconds: float = 0.0
    cpu: float = 0.0
    batches: int = 0
    consumer_wait: float = 0.0
    producer_wait: float = 0.0

    def add(self, seconds: float, cpu: float, before: RingStats, now: RingStats) -> None:
        self.seconds += seconds
        self.cpu += cpu
        self.batches += now.batches - before.batches
        self.consumer_wait += now.consumer_wait - before.consumer_wait
        self.producer_wait += now.producer_wait - before.producer_wait


class Tuning:
    """The numbers of threads and of batches ahead of a pipeline, and how they are chosen.

    Both begin as the defaults. Where the consumer waits, one of them is doubled and the batches of
    the next half second are counted: the number of batches ahead where the threads wait as well,
    because batches take unequally long; else the number of threads, while cores are free (threads
    that sleep leave them free). What is not 10% faster is taken back, and nothing more is tried.
    The batches are the same whatever is chosen. Choices last for later epochs.

    Args:
      num_workers, prefetch_size: as for `from_source`.

    Attributes:
      workers, ahead: the numbers now.
      choices: what was tried and kept, in words.
    """

    def __init__(self, num_workers: int | Auto, prefetch_size: int | Auto) -> None:
        self._auto_workers, self._auto_ahead = num_workers == "auto", prefetch_size == "auto"
        self.workers = _WORKERS if num_workers == "auto" else num_workers
        least = max(_AHEAD, self.workers + 2)  # so many threads have something to do
        self.ahead = least if prefetch_size == "auto" else prefetch_size
        self.choices: list[str] = []
        self._settled = not (self._auto_workers or self._auto_ahead)
        self._trial: tuple[int, int, float] | None = None  # workers and ahead before, and the rate
        self._last: tuple[float, float, RingStats] | None = None  # look at this ring
        self._next = 0.0
        self._measured = _Sums()

    @property
    def due(self) -> bool:
        """Whether `observe` should be called; cheap."""
        return not self._settled and time.perf_counter() >= self._next

    def slots(self, nbytes: int) -> int:
        """Batches ahead for a ring of batches of so many bytes, within the free memory."""
        if not self._auto_ahead:
            return self.ahead
        most = max(2, available_bytes() // _SHARE // max(nbytes, 1))
        if self.ahead > most:
            self.choices.append(
                f"{most} batches ahead: {self.ahead} of {nbytes:,} bytes take more than an eighth "
                "of the memory that is free"
            )
            self.ahead = int(most)
        return self.ahead

    def restarted(self) -> None:
        """There is a new ring, whose counts begin anew; short epochs are measured together."""
        self._last = None

    def observe(self, stats: RingStats, resizable: bool) -> bool:
        """Looks at a running ring; whether `workers` or `ahead` changed.

        Args:
          resizable: whether the number of batches ahead can be changed.
        """
        now, cpu = time.perf_counter(), time.process_time()
        last, self._last, self._next = self._last, (now, cpu, stats), now + _LOOK
        if last is None or last[2].batches > stats.batches:
            return False
        sums = self._measured
        sums.add(now - last[0], cpu - last[1], last[2], stats)
        if sums.seconds < _SECONDS or (sums.batches < _BATCHES and sums.seconds < _LONG):
            return False
        self._measured = _Sums()
        rate = sums.batches / sums.seconds
        if self._trial is not None and not self._kept(rate):
            return True
        waits = sums.consumer_wait / sums.seconds
        blocked = sums.producer_wait / sums.seconds / self.workers
        if waits < _WAITS:
            return False
        old = self.workers, self.ahead, rate
        cores = num_threads()
        if self._auto_ahead and resizable and blocked >= _WAITS and self.ahead < _MOST:
            self.ahead = min(2 * self.ahead, _MOST)
        elif not self._auto_workers:
            return False
        elif sums.cpu / sums.seconds > cores - 0.5:
            self._say(f"{self.workers} threads: the consumer waits, and all {cores} cores are busy")
            return False
        else:
            most = _MOST if self._auto_ahead else max(self.ahead, self.workers)
            if self.workers >= most:
                self._say(f"{self.workers} threads: as many as batches ahead, {self.ahead}")
                return False
            self.workers = min(2 * self.workers, most)
            if self._auto_ahead and resizable:
                self.ahead = max(self.ahead, self.workers + 2)
        self._trial = old
        return True

    def _kept(self, rate: float) -> bool:
        """Ends a trial; whether its choice was faster."""
        assert self._trial is not None
        workers, ahead, before = self._trial
        self._trial = None
        tried = f"{self.workers} threads, {self.ahead} batches ahead: {rate:.4g} batches/s"
        against = f"{before:.4g} with {workers} and {ahead}"
        if rate >= _GAIN * before:
            self.choices.append(f"{tried}, kept: {against}")
            return True
        self.choices.append(f"{tried}, taken back: {against}")
        self.workers, self.ahead = workers, ahead
        self._settled = True
        return False

    def _say(self, text: str) -> None:
        if text not in self.choices:
            self.choices.append(text)

    def stats(self, found: RingStats, capacity: int) -> PipelineStats:
        """A ring's, with what runs there."""
        values: dict[str, Any] = dict(vars(found))
        return PipelineStats(
            **values, num_workers=self.workers, prefetch_size=capacity, choices=tuple(self.choices)
        )
