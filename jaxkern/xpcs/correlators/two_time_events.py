"""Two-time correlations of events, which never become frames."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.event_memory import EventMemory
from jaxkern.xpcs.correlators.progress import CorrelationProgress
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.correlators.two_time_reduction import Smoothing, TwoTimeReduction, Weights
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

_WORD_BYTES = 8  # of a sorted event, at most
_BLOCK_BYTES = 2**25  # of rows of C
_MOST_ROWS = 512


class _Bin:
    """A dynamic bin: its place in the result, and the pixels of its groups, one after the other."""

    def __init__(self, qmap: QMap, place: int, number: int, smoothing: Smoothing) -> None:
        self.place = place
        dynamic, static = (x.ravel()[qmap.pixels] for x in (qmap.dynamic, qmap.static))
        of_bin = dynamic == number
        self.pixels = qmap.pixels[of_bin]  # ordered by static bin
        counts = np.array([len(self.pixels)])
        if smoothing == "static":
            counts = np.unique(static[of_bin], return_counts=True)[1]
        self.counts: NDArray[np.int64] = counts.astype(np.int64)


class EventRows:
    """Goes over bins and blocks of rows of their matrices, and gives them to the reduction."""

    def __init__(
        self,
        native: ModuleType,
        source: FrameSource,
        selection: FrameSelection,
        qmap: QMap,
        smoothing: Smoothing,
        wanted: NDArray[np.int64],
        reduction: TwoTimeReduction,
        bar: CorrelationProgress,
    ) -> None:
        self._native, self._smoothing = native, smoothing
        self._events, self._selection = EventMemory.of(source), selection
        self._reduction, self._bar, self._n = reduction, bar, selection.n
        found = (_Bin(qmap, place, int(x), smoothing) for place, x in enumerate(wanted))
        self._bins = [each for each in found if len(each.pixels)]
        bar.begin(self._n * len(self._bins), 0)

    def correlate(self) -> None:
        """All bins; where memory is short their events are sorted some bins at a time."""
        needed = _WORD_BYTES * self._events.size
        parts = min(-(-2 * needed // max(available_bytes(), 1)), len(self._bins))
        size = -(-len(self._bins) // max(parts, 1))
        for k in range(0, len(self._bins), max(size, 1)):
            self._correlate(self._bins[k : k + size])

    def _correlate(self, bins: list[_Bin]) -> None:
        pairs = self._native.EventPairs(
            *self._events.arguments(),
            *self._events.frames(self._selection),
            np.concatenate([each.pixels for each in bins]),
            np.cumsum(np.concatenate([each.counts for each in bins])),
            num_threads(),
        )
        totals, first = pairs.totals(), 0
        with ThreadPoolExecutor(1, "jaxkern-two-time") as worker:
            for each in bins:
                groups = slice(first, first + len(each.counts))
                weights = Weights.of(totals[groups], each.counts, self._smoothing)
                self._reduction.begin(each.place, weights.lit)
                self._rows(worker, pairs, first, each, weights)
                first = groups.stop

    def _rows(
        self, worker: ThreadPoolExecutor, pairs: Any, first: int, each: _Bin, weights: Weights
    ) -> None:
        """C of a bin; the reduction takes a block while the next one is made."""
        step = int(np.clip(_BLOCK_BYTES // (8 * self._n), 1, _MOST_ROWS))
        factors = np.ascontiguousarray(weights.factors)

        def made(row: int) -> NDArray[np.float64]:
            block = np.empty((min(step, self._n - row), self._n - row))
            pairs.rows(
                first, factors, weights.totals, float(weights.pixels), row, block, num_threads()
            )
            return block

        ahead = worker.submit(made, 0)
        for row in range(0, self._n, step):
            block = ahead.result()
            if row + step < self._n:
                ahead = worker.submit(made, row + step)
            self._reduction.add(each.place, row, row, block)
            self._bar.advance(len(block))
