"""Watches frames as they are taken: g2 grows, is shown and written, until nothing comes."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType

from jaxkern.xpcs.correlators.live import LiveMultiTau
from jaxkern.xpcs.correlators.results import MultiTauResult
from jaxkern.xpcs.detectors.frames import DetectorFileError
from jaxkern.xpcs.detectors.growing import GrowingFrames


@dataclass(frozen=True)
class Watched:
    """How far a watch is.

    Attributes:
      result: g2 of all frames that came.
      frames: how many came.
      rate: frames a second since the last time.
      last: whether nothing comes any more.
      interrupted: whether Ctrl-C ended it.
    """

    result: MultiTauResult
    frames: int
    rate: float
    last: bool
    interrupted: bool = False


def watch(
    frames: GrowingFrames,
    live: LiveMultiTau,
    most_frames: int,
    shown: Callable[[Watched], None],
    *,
    idle: float,
    every: float,
    wait: float = 0.05,
) -> Watched | None:
    """Adds what comes until nothing has for a while, `most_frames` are there, or Ctrl-C.

    Args:
      frames: looked at again and again.
      live: to which they are added.
      shown: called with what there is so far, after new frames and at most so often, and at the
        end; it is left out while there are fewer than two frames.
      idle: seconds without a new frame that are the end.
      every: seconds between two calls of `shown`, counted from the end of the last one.
      wait: seconds between two looks.

    Returns:
      What `shown` was called with at the end; None where hardly any frame came.

    Raises:
      DetectorFileError: see `GrowingFrames`; of what cannot be read at the end, behind the last
        call of `shown`.
    """
    came = told = time.monotonic()
    there = at_last_call = 0
    left: DetectorFileError | None = None
    with _asked_to_stop() as asked:
        while there < most_frames and not asked:
            now = frames.poll()
            if now > there:
                there, came = live.update(frames), time.monotonic()
            elif time.monotonic() - came > idle:
                break
            else:
                time.sleep(wait)
            if there > at_last_call and time.monotonic() - told > every and live.n_frames >= 2:
                rate = (there - at_last_call) / (time.monotonic() - told)
                shown(Watched(live.result(), there, rate, last=False))
                told, at_last_call = time.monotonic(), there
        if not asked and there < most_frames:
            try:
                frames.finish()
            except DetectorFileError as error:
                left = error
            there = live.update(frames)
    watched = None
    if live.n_frames >= 2:
        rate = (there - at_last_call) / max(time.monotonic() - told, 1e-9)
        try:
            result = live.finish(frames)
        except DetectorFileError as error:  # where frames are read again
            left, result = left or error, live.result()
        watched = Watched(result, there, rate, last=True, interrupted=bool(asked))
        shown(watched)
    if left is not None:
        raise left
    return watched


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """A list that Ctrl-C puts something into; a second Ctrl-C interrupts as ever.

    In threads, which signals do not reach, it stays empty.
    """
    asked: list[int] = []

    def ask(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)
