"""Programs that tests run in another process, and the memory of this one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.threads import is_sleeping


def run(
    code: str, *arguments: str, interrupt_after: str | None = None, timeout: float = 120
) -> str:
    """Return what a program prints; interrupt it when it waits after it has printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-u", "-c", code, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONWARNINGS": "ignore"},
    )
    if interrupt_after is not None:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == interrupt_after
        while not is_sleeping(str(process.pid)):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail(f"the process hangs; it printed {process.communicate()[0]!r}")
    assert process.returncode == 0, output
    return output


def growth(use: Callable[[int], object]) -> int:
    """Return by how many bytes this process grows in `use(1000)`, after a first use."""
    sizes = []
    for count in (100, 1000):
        use(count)
        gc.collect()
        pages = Path("/proc/self/statm").read_text().split()[1]
        sizes.append(int(pages) * os.sysconf("SC_PAGE_SIZE"))
    return sizes[1] - sizes[0]
