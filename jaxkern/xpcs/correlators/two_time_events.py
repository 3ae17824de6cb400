"""Two-time correlations of events, without conversion to frames."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.core.threads import num_threads
from jaxkern.xpcs.correlators.native import CorrelationProgress
from jaxkern.xpcs.correlators.selection import EventMemory, FrameSelection
from jaxkern.xpcs.correlators.two_time_reduction import Smoothing, TwoTimeReduction, Weights
from jaxkern.xpcs.detectors.frames import FrameSource
from jaxkern.xpcs.detectors.qmap import QMap

_WORD_BYTES = 8  # largest size of a sorted event
_BLOCK_BYTES = 2**25  # size of a block of rows of C
_MAX_ROWS = 512


class _Bin:
    """A dynamic bin: its index in the result, its pixels by group, and the sizes of the groups."""

    def __init__(self, qmap: QMap, index: int, number: int, smoothing: Smoothing) -> None:
        self.index = index
        dynamic, static = (x.ravel()[qmap.pixels] for x in (qmap.dynamic, qmap.static))
        inside = dynamic == number
        self.pixels = qmap.pixels[inside]  # ordered by static bin
        counts = np.array([len(self.pixels)])
        if smoothing == "static":
            counts = np.unique(static[inside], return_counts=True)[1]
        self.counts: NDArray[np.int64] = counts.astype(np.int64)


class EventRows:
    """Loops over bins and blocks of rows of their matrices, and passes them to the reduction."""

    def __init__(
        self,
        native: ModuleType,
        source: FrameSource,
        selection: FrameSelection,
        qmap: QMap,
        smoothing: Smoothing,
        bins: NDArray[np.int64],
        reduction: TwoTimeReduction,
        bar: CorrelationProgress,
    ) -> None:
        self._native, self._smoothing = native, smoothing
        self._events, self._selection = EventMemory.from_source(source), selection
        self._reduction, self._bar, self._n = reduction, bar, selection.n
        candidates = (_Bin(qmap, index, int(x), smoothing) for index, x in enumerate(bins))
        self._bins = [each for each in candidates if len(each.pixels)]
        bar.begin(self._n * len(self._bins), 0)

    def correlate(self) -> None:
        """Correlate all bins, in groups whose sorted events fit into memory."""
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
                weights = Weights.from_sums(totals[groups], each.counts, self._smoothing)
                self._reduction.begin(each.index, weights.lit)
                self._rows(worker, pairs, first, each, weights)
                first = groups.stop

    def _rows(
        self, worker: ThreadPoolExecutor, pairs: Any, first: int, each: _Bin, weights: Weights
    ) -> None:
        """Compute C of a bin; a block is reduced while the next one is computed."""
        step = int(np.clip(_BLOCK_BYTES // (8 * self._n), 1, _MAX_ROWS))
        factors = np.ascontiguousarray(weights.factors)

        def compute(row: int) -> NDArray[np.float64]:
            block = np.empty((min(step, self._n - row), self._n - row))
            pairs.rows(
                first, factors, weights.totals, float(weights.pixels), row, block, num_threads()
            )
            return block

        ahead = worker.submit(compute, 0)
        for row in range(0, self._n, step):
            block = ahead.result()
            if row + step < self._n:
                ahead = worker.submit(compute, row + step)
            self._reduction.add(each.index, row, row, block)
            self._bar.advance(len(block))
