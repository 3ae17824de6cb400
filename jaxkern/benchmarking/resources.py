"""What work takes of the machine: CPU time, and the peak of the process's memory."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, Self

import jax

from jaxkern.core.memory import status_bytes

_RESET_PEAK = "5"  # clear_refs: VmHWM becomes the present VmRSS (proc_pid_clear_refs(5))


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a span of work took.

    Attributes:
      wall_seconds: from beginning to end.
      cpu_seconds: user and system time of all threads of this process.
      peak_bytes: the highest resident memory of the process; None where the system does not tell.
      start_bytes: the resident memory at the beginning.
      peak_of_span: whether ``peak_bytes`` is of this span alone; where the system does not let the
        mark be reset, it is of the whole life of the process.
      device_peak_bytes: the highest memory of each device since its start, where its driver
        reports that; a CPU does not.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int | None
    start_bytes: int | None
    peak_of_span: bool
    device_peak_bytes: dict[str, int]

    @property
    def cores_busy(self) -> float:
        """CPU seconds a second: how many cores were at work on average."""
        return self.cpu_seconds / self.wall_seconds

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        parts = [f"{self.cpu_seconds:.3g} s CPU in {self.wall_seconds:.3g} s"]
        if self.peak_bytes is not None:
            since = "" if self.peak_of_span else " since the process started"
            parts.append(f"peak {self.peak_bytes / 2**20:,.0f} MiB resident{since}")
        parts += [f"{n} peak {b / 2**20:,.0f} MiB" for n, b in self.device_peak_bytes.items()]
        return ", ".join(parts)


class ResourceMeter:
    """Measures the resources of a ``with`` block; ``.used`` is there after it.

    The system keeps one mark a process. Meters may be inside each other or in several threads:
    whoever resets the mark first hands it to the others.

    >>> import numpy as np
    >>> with ResourceMeter() as meter:
    ...     _ = np.ones(8_000_000).sum()
    >>> meter.used.peak_bytes >= 64_000_000
    True
    """

    used: Resources
    _reached = 0
    _running: ClassVar[set[ResourceMeter]] = set()
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __enter__(self) -> Self:
        with self._lock:
            self._reached, reached = 0, status_bytes("VmHWM") or 0
            for meter in self._running:
                meter._reached = max(meter._reached, reached)
            self._reset = _reset_peak()
            self._running.add(self)
        self._resident = status_bytes("VmRSS")
        self._cpu, self._wall = _cpu_seconds(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = time.perf_counter() - self._wall, _cpu_seconds() - self._cpu
        with self._lock:
            self._running.discard(self)
            peak = status_bytes("VmHWM")
        if peak is not None:
            peak = max(peak, self._reached)
        self.used = Resources(wall, cpu, peak, self._resident, self._reset, _device_peaks())


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _reset_peak() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return False
    return True


def _device_peaks() -> dict[str, int]:
    found = {}
    for device in jax.local_devices():
        stats = device.memory_stats() or {}
        if "peak_bytes_in_use" in stats:
            found[str(device)] = int(stats["peak_bytes_in_use"])
    return found
