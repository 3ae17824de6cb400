"""Automatic choice of the number of workers and of prefetched batches, by measurement."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

import numpy as np

from jaxkern.core.memory import available_bytes
from jaxkern.core.threads import num_threads
from jaxkern.ring import RingStats

Auto = Literal["auto"]

_WORKERS, _AHEAD = 2, 4  # the defaults
_MOST = 32
_SECONDS, _BATCHES = 0.5, 8  # minimum seconds and batches of a measurement; at most _LONG seconds
_LONG = 5.0
_LOOK = 0.03  # seconds between reads of the statistics
_GAIN = 1.1  # minimum ratio of throughputs to keep a change
_WAITS = 0.05  # fraction of the time above which a side counts as waiting
_SHARE = 8  # prefetched batches use at most 1 / _SHARE of the free memory


@dataclasses.dataclass(frozen=True)
class PipelineStats(RingStats):
    """`RingStats` of the ring between workers and consumer, and the current settings.

    Attributes:
      num_workers: number of worker threads.
      prefetch_size: number of slots of the ring.
      choices: if one of these is "auto": the settings that were tried, with their measurements.

    Example:
      >>> import jaxkern as jk
      >>> iterator = iter(jk.from_source({"x": [1, 2, 3, 4]}, batch_size=2, num_workers=1))
      >>> _ = list(iterator)
      >>> stats = iterator.stats()
      >>> stats.num_workers, stats.batches
      (1, 2)
    """

    num_workers: int
    prefetch_size: int
    choices: tuple[str, ...]


class Tuning:
    """The number of threads of a pipeline, and the maximum number of prefetched batches.

    If the consumer waits, one of the two is doubled, and the throughput is measured for half a
    second. It is the number of batches if the threads wait as well, because some batches take
    longer than others. Otherwise it is the number of threads, while cores are idle. A change that
    is not at least 10% faster is reverted, and ends the search. Later epochs use the same settings.
    """

    def __init__(self, num_workers: int | Auto, prefetch_size: int | Auto) -> None:
        self._auto_workers, self._auto_ahead = num_workers == "auto", prefetch_size == "auto"
        self.workers = _WORKERS if num_workers == "auto" else num_workers
        least = max(_AHEAD, self.workers + 2)  # so that no thread waits for a slot
        self.ahead = least if prefetch_size == "auto" else prefetch_size
        self.choices: list[str] = []
        self._settled = not (self._auto_workers or self._auto_ahead)
        self._trial: tuple[int, int, float] | None = None  # (workers, ahead, rate) before
        self._last: np.ndarray | None = None  # the last statistics of this ring
        self._next = 0.0
        self._measured = np.zeros(5)  # sums: seconds, CPU, batches, waits of consumer and producer

    @property
    def due(self) -> bool:
        """True if `observe` should be called; fast."""
        return not self._settled and time.perf_counter() >= self._next

    def slots(self, nbytes: int) -> int:
        """Return the number of slots for batches of `nbytes` bytes, limited by the free memory."""
        if not self._auto_ahead:
            return self.ahead
        most = max(2, available_bytes() // _SHARE // max(nbytes, 1))
        if self.ahead > most:
            self.choices.append(
                f"{most} batches ahead: {self.ahead} of {nbytes:,} bytes are more than an eighth "
                "of the free memory"
            )
            self.ahead = int(most)
        return self.ahead

    def restarted(self) -> None:
        """Expect the statistics of a new ring; measurements continue over short epochs."""
        self._last = None

    def observe(self, stats: RingStats, resizable: bool) -> bool:
        """Read the statistics of a ring; return True if `workers` or `ahead` changed.

        `ahead` changes only if `resizable`.
        """
        waited = stats.batches, stats.consumer_wait, stats.producer_wait
        now = np.array([time.perf_counter(), time.process_time(), *waited])
        last, self._last, self._next = self._last, now, now[0] + _LOOK
        if last is None or last[2] > stats.batches:
            return False
        self._measured += now - last
        seconds, cpu, batches, waits, blocked = self._measured.tolist()
        if seconds < _SECONDS or (batches < _BATCHES and seconds < _LONG):
            return False
        self._measured = np.zeros(5)
        rate = batches / seconds
        if self._trial is not None and not self._end_trial(rate):
            return True
        waits, blocked = waits / seconds, blocked / seconds / self.workers
        if waits < _WAITS:
            return False
        old = self.workers, self.ahead, rate
        cores = num_threads()
        if self._auto_ahead and resizable and blocked >= _WAITS and self.ahead < _MOST:
            self.ahead = min(2 * self.ahead, _MOST)
        elif not self._auto_workers:
            return False
        elif cpu / seconds > cores - 0.5:
            self._note("the consumer waits, and all {} cores are busy", cores)
            return False
        else:
            most = _MOST if self._auto_ahead else max(self.ahead, self.workers)
            if self.workers >= most:
                self._note("as many as batches ahead, {}", self.ahead)
                return False
            self.workers = min(2 * self.workers, most)
            if self._auto_ahead and resizable:
                self.ahead = max(self.ahead, self.workers + 2)
        self._trial = old
        return True

    def _end_trial(self, rate: float) -> bool:
        """End a trial; return True if its choice was faster."""
        assert self._trial is not None
        workers, ahead, before = self._trial
        self._trial = None
        tried = f"{self.workers} threads, {self.ahead} batches ahead: {rate:.4g} batches/s"
        against = f"{before:.4g} with {workers} and {ahead}"
        if rate >= _GAIN * before:
            self.choices.append(f"{tried}, kept: {against}")
            return True
        self.choices.append(f"{tried}, reverted: {against}")
        self.workers, self.ahead = workers, ahead
        self._settled = True
        return False

    def _note(self, text: str, number: int) -> None:
        text = f"{self.workers} threads: {text.format(number)}"
        if text not in self.choices:
            self.choices.append(text)

    def stats(self, ring: RingStats, capacity: int) -> PipelineStats:
        """Return the statistics of a ring with the current settings."""
        values: dict[str, Any] = dict(vars(ring))
        return PipelineStats(
            **values, num_workers=self.workers, prefetch_size=capacity, choices=tuple(self.choices)
        )
