"""Live correlation of a running measurement, until no more frames arrive."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from jaxkern.xpcs.correlators.multitau import LiveMultiTau
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.detectors.frames import DetectorFileError
from jaxkern.xpcs.detectors.opening import GrowingFrames

_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Watched:
    """State of a live correlation: g2 of all frames so far or of a part, and their number."""

    result: MultiTauResult
    frames: int
    rate: float  # frames per second since the previous state
    last: bool
    interrupted: bool = False  # by Ctrl-C, which ended the measurement
    part: int = 0  # number of the part, from 0
    closed: bool = False  # the part is complete


def watch(
    frames: GrowingFrames,
    start: Callable[[int, int], LiveMultiTau],
    most_frames: int,
    shown: Callable[[Watched], None],
    *,
    idle: float,
    every: float,
    begin: int = 0,
    rotate: int | None = None,
) -> Watched | None:
    """Correlate new frames until none arrive for `idle` s, `most_frames` arrived, or Ctrl-C.

    `shown` is called with the state after new frames, `every` seconds after its last call or later,
    and at the end; but not for fewer than 2 frames. ``start(begin, end)`` returns the correlation
    of the frames from `begin`. With `rotate`, each `rotate` frames are a part with its own
    correlation, and `shown` is also called when a part is complete.

    Returns:
      The last state; None for fewer than 2 frames.
    """
    last_arrival = last_call = time.monotonic()
    count = count_at_call = part = 0
    size = most_frames - begin if rotate is None else rotate
    end = min(begin + size, most_frames)
    live, watched = start(begin, end), None
    final_error: DetectorFileError | None = None

    def close_parts() -> None:
        nonlocal live, watched, part, end
        while end <= count and end < most_frames:
            watched = Watched(live.finish(frames), end, 0.0, last=False, part=part, closed=True)
            shown(watched)
            begin, end, part = end, min(end + size, most_frames), part + 1
            live = start(begin, end)
            live.update(frames)

    with _interrupts() as interrupts:
        while count < most_frames and not interrupts:
            if frames.poll() > count:
                count, last_arrival = live.update(frames), time.monotonic()
                close_parts()
            elif time.monotonic() - last_arrival > idle:
                break
            else:
                time.sleep(_POLL_SECONDS)
            elapsed = time.monotonic() - last_call
            if count > count_at_call and elapsed > every and live.n_frames >= 2:
                rate = (count - count_at_call) / elapsed
                shown(Watched(live.result(), count, rate, last=False, part=part))
                last_call, count_at_call = time.monotonic(), count
        if not interrupts:
            try:
                frames.finish()
            except DetectorFileError as error:
                if count < most_frames:
                    final_error = error
            count = live.update(frames)
            close_parts()
    if live.n_frames >= 2:
        rate = (count - count_at_call) / max(time.monotonic() - last_call, 1e-9)
        try:
            result = live.finish(frames)
        except DetectorFileError as error:  # frames that are read again
            final_error, result = final_error or error, live.result()
        watched = Watched(result, count, rate, last=True, interrupted=bool(interrupts), part=part)
        shown(watched)
    if final_error is not None:
        raise final_error
    return watched


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Yield a list to which the first Ctrl-C adds an item; a second Ctrl-C interrupts.

    Signals are only delivered to the main thread. In other threads, the list remains empty.
    """
    interrupts: list[int] = []

    def handler(number: int, frame: FrameType | None) -> None:
        if interrupts:
            raise KeyboardInterrupt
        interrupts.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, handler)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
