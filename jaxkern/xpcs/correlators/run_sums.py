"""Multi-tau sums of a whole run: of frames, where they lie or as they are read, or of events."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.memory import available_bytes
from jaxkern.xpcs.correlators.blocks import (
    COUNT_DTYPES,
    frame_blocks,
    is_whole,
    pixels_together,
    selected_frames,
)
from jaxkern.xpcs.correlators.event_memory import EventMemory, event_blocks
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.native_sums import (
    NativeSums,
    native_module,
    sums_in_place,
    sums_of_events,
)
from jaxkern.xpcs.correlators.numpy_sums import NumpySums
from jaxkern.xpcs.correlators.overview import OverviewSums
from jaxkern.xpcs.correlators.pixels import BinnedPixels
from jaxkern.xpcs.correlators.progress import CorrelationProgress
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource

# Of the free memory, for sums of pixels; the rest is for blocks of frames and for others.
_SHARE = 1 / 3


class DenseSums:
    """Goes over the frames of a source, for some ranges of a selection's sums at once.

    Args:
      ranges: (first, stop) of the sums that are correlated with each other.
      divisor: [N * average] what each frame is divided by, or None.
    """

    def __init__(
        self,
        source: FrameSource,
        selection: FrameSelection,
        ranges: Sequence[tuple[int, int]],
        pixels: BinnedPixels,
        dpl: int,
        divisor: NDArray[np.float64] | None,
    ) -> None:
        self._source, self._selection, self._ranges = source, selection, ranges
        self._pixels, self._dpl, self._divisor = pixels, dpl, divisor
        self._whole = is_whole(source) and divisor is None
        self._bad = selection.bad_places()
        self._missing = selection.average - selection.good_counts()
        self._native = native_module() if len(pixels) else None

    def run(self, seen: OverviewSums | None, bar: CorrelationProgress) -> list[BinSums]:
        """The sums of each range. The overview sees all frames too."""
        native = self._native
        if native is not None and self._lie_in_memory():
            if seen is not None:
                for first, block in frame_blocks(self._source, self._selection):
                    seen.add(first, block)
            return [self._in_place(native, *of, bar) for of in self._ranges]
        tiles = NumpySums.tiles(self._pixels)
        if native is not None:
            tiles = NativeSums.tiles(native, self._pixels)
        groups = self._pixels.split(tiles, self._most_pixels())
        found: list[Any] = [None] * len(self._ranges)
        frames = self._selection.n * self._selection.average
        bar.begin(frames * len(groups), self._source.frame_bytes)
        for number, group in enumerate(groups):
            states = [self._state(group, first, stop) for first, stop in self._ranges]
            for first, block in frame_blocks(self._source, self._selection):
                if seen is not None and number == 0:
                    seen.add(first, block)
                for state, (begin, end) in zip(states, self._ranges, strict=True):
                    self._add(state, block, first, begin, end)
                bar.advance(len(block))
            found = [state.bin_sums(sums) for state, sums in zip(states, found, strict=True)]
        return found

    def _lie_in_memory(self) -> bool:
        """Whether all frames are there as the kernel reads them."""
        array = self._source.array
        if array is None or array.dtype not in COUNT_DTYPES or not array.dtype.isnative:
            return False
        return pixels_together(array)

    def _in_place(
        self, native: ModuleType, first: int, stop: int, bar: CorrelationProgress
    ) -> BinSums:
        average = self._selection.average
        frames = slice(first * average, stop * average)
        bar.begin((stop - first) * average, self._source.frame_bytes)
        return sums_in_place(
            native,
            selected_frames(self._source, self._selection, first, stop),
            self._pixels,
            self._dpl,
            average,
            self._bad[frames],
            None if self._divisor is None else self._divisor[frames],
            bar.reached,
        )

    def _state(self, group: BinnedPixels, first: int, stop: int) -> NativeSums | NumpySums:
        missing, average = self._missing[first:stop], self._selection.average
        if self._native is None:
            return NumpySums(group, self._dpl, average, missing, self._whole)
        return NativeSums(self._native, group, self._dpl, average, missing, self._whole)

    def _most_pixels(self) -> int:
        """How many pixels' sums fit the memory that is free."""
        kind = NumpySums if self._native is None else NativeSums
        of_pixel = sum(
            kind.bytes_of_pixel(
                stop - first, self._dpl, self._whole, bool(self._missing[first:stop].any())
            )
            for first, stop in self._ranges
        )
        return max(int(_SHARE * available_bytes() / of_pixel), 1)

    def _add(
        self,
        state: NativeSums | NumpySums,
        block: NDArray[np.generic],
        at: int,
        first: int,
        stop: int,
    ) -> None:
        """Adds what a block that begins with sum `at` has of the sums first .. stop - 1."""
        average = self._selection.average
        first, stop = max(first, at), min(stop, at + len(block) // average)
        if first >= stop:
            return
        frames = slice(first * average, stop * average)
        divisor = None if self._divisor is None else self._divisor[frames]
        state.add(block[(first - at) * average : (stop - at) * average], self._bad[frames], divisor)


class EventSums:
    """Sums of the events of a source, for some ranges of a selection's sums.

    Args:
      ranges: (first, stop) of the sums that are correlated with each other.
    """

    def __init__(
        self,
        native: ModuleType,
        source: FrameSource,
        selection: FrameSelection,
        ranges: Sequence[tuple[int, int]],
        pixels: BinnedPixels,
        dpl: int,
    ) -> None:
        self._native, self._source, self._selection = native, source, selection
        self._ranges, self._pixels, self._dpl = ranges, pixels, dpl

    def run(self, seen: OverviewSums | None, bar: CorrelationProgress) -> list[BinSums]:
        """The sums of each range. The overview sees all events too."""
        if seen is not None:
            for block in event_blocks(self._source, self._selection):
                seen.add_events(*block)
        events = EventMemory.of(self._source)
        each = events.size * events.event_bytes // max(self._selection.n, 1)
        found = []
        for first, stop in self._ranges:
            bar.begin(stop - first, each)
            found.append(
                sums_of_events(
                    self._native,
                    events,
                    self._selection.part(first, stop),
                    self._pixels,
                    self._dpl,
                    bar.reached,
                )
            )
        return found
