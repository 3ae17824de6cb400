"""Multi-tau sums of events, which never become frames."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from jaxkern.xpcs.correlators.event_memory import EventMemory, event_blocks
from jaxkern.xpcs.correlators.g2 import BinSums
from jaxkern.xpcs.correlators.native_sums import sums_of_events
from jaxkern.xpcs.correlators.overview import OverviewSums
from jaxkern.xpcs.correlators.pixels import BinnedPixels
from jaxkern.xpcs.correlators.progress import CorrelationProgress
from jaxkern.xpcs.correlators.selection import FrameSelection
from jaxkern.xpcs.detectors.frames import FrameSource


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
