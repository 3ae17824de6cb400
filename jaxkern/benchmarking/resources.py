"""CPU time and peak memory of a block of code."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any, ClassVar, Self

import jax

from jaxkern.core.memory import status_bytes


@dataclasses.dataclass(frozen=True)
class Resources:
    """Resources that a block of code used.

    Attributes:
      wall_seconds: duration.
      cpu_seconds: user and system time of all threads of this process.
      peak_bytes: peak resident memory of the process; None if the system does not report it.
      start_bytes: resident memory at the start.
      peak_of_span: True if ``peak_bytes`` is the peak during the block; False if the system cannot
        reset the peak, so that it covers the process since its start.
      device_peak_bytes: peak memory of each device since its start, if its driver reports it.
    """

    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int | None
    start_bytes: int | None
    peak_of_span: bool
    device_peak_bytes: dict[str, int]

    @property
    def cores_busy(self) -> float:
        """CPU seconds per second, the mean number of busy cores."""
        return self.cpu_seconds / self.wall_seconds

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        parts = [f"{self.cpu_seconds:.3g} s CPU in {self.wall_seconds:.3g} s"]
        if self.peak_bytes is not None:
            since = "" if self.peak_of_span else " since the process started"
            parts.append(f"peak {self.peak_bytes / 2**20:,.0f} MiB resident{since}")
        parts += [f"{n} peak {b / 2**20:,.0f} MiB" for n, b in self.device_peak_bytes.items()]
        return ", ".join(parts)


class ResourceMeter:
    """Context that measures the resources of its block; ``.used`` is set at the end.

    The system has one peak per process. Meters can be nested or run in several threads: a meter
    that resets the peak first passes it to the running ones.

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
        devices = {str(device): device.memory_stats() or {} for device in jax.local_devices()}
        name = "peak_bytes_in_use"
        device_peaks = {d: int(stats[name]) for d, stats in devices.items() if name in stats}
        self.used = Resources(wall, cpu, peak, self._resident, self._reset, device_peaks)


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _reset_peak() -> bool:
    try:
        # Sets VmHWM to the current VmRSS, see proc_pid_clear_refs(5).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True
