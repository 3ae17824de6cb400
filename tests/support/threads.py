"""Waiting until threads wait."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path


def wait_until_blocked(threads: Iterable[threading.Thread], *functions: str) -> None:
    """Wait until each thread sleeps in one of these functions of `jaxkern.ring.Ring`."""
    for thread in threads:
        assert thread.ident is not None
        while (frame := sys._current_frames().get(thread.ident)) is None or (
            frame.f_code.co_name not in functions
            or not is_sleeping(f"self/task/{thread.native_id}")
        ):
            assert thread.is_alive()
            time.sleep(0.001)


def is_sleeping(task: str) -> bool:
    """True if a process or thread, a path in ``/proc``, waits for an event."""
    text = Path(f"/proc/{task}/stat").read_text()
    return text[text.rindex(")") + 2] == "S"
