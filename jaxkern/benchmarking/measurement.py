"""A named measurement: times, resources and conditions, and conversion to and from JSON."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

import jax
import numpy as np

from jaxkern.benchmarking.samples import Samples
from jaxkern.core.memory import status_bytes
from jaxkern.core.quantities import format_duration

Kind = Literal["call", "batch", "arm"]


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

    The system has one peak per process, so the blocks of two meters must not overlap.

    >>> import numpy as np
    >>> with ResourceMeter() as meter:
    ...     _ = np.ones(8_000_000).sum()
    >>> meter.used.peak_bytes >= 64_000_000
    True
    """

    used: Resources

    def __enter__(self) -> Self:
        try:
            # Sets VmHWM to the current VmRSS, see proc_pid_clear_refs(5).
            Path("/proc/self/clear_refs").write_text("5")
            self._reset = True
        except OSError:
            self._reset = False
        self._resident = status_bytes("VmRSS")
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        devices = {str(device): device.memory_stats() or {} for device in jax.local_devices()}
        name = "peak_bytes_in_use"
        device_peaks = {d: int(stats[name]) for d, stats in devices.items() if name in stats}
        peak = status_bytes("VmHWM")
        self.used = Resources(wall, cpu, peak, self._resident, self._reset, device_peaks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measurement(Samples):
    """Repeated measurements of a time; figures are attributes and items, ``result["median"]``.

    Attributes:
      name: name of the measured function or stream.
      kind: unit of a sample: a call, a batch, or a turn of an arm of a comparison.
      seconds: times, one per unit.
      environment: machine, versions and settings.
      dimensions: size of the work.
      methodology: sentences that describe the measurement.
      resources: CPU time and memory; None if not measured.
      rounds: identifier shared by arms whose i-th samples were measured in the same round, or "".
    """

    name: str
    kind: Kind
    environment: dict[str, Any]
    dimensions: dict[str, Any] = dataclasses.field(default_factory=dict)
    methodology: tuple[str, ...] = ()
    resources: Resources | None = None
    rounds: str = ""

    def figures(self) -> dict[str, Any]:
        """Return all figures by name; times in seconds."""
        names = ("median", "mean", "std", "min", "max", "p90")
        return {"count": len(self), **{name: getattr(self, name) for name in names}}

    def __getitem__(self, name: str) -> Any:
        figures = self.figures()
        if name not in figures:
            raise KeyError(f"no figure {name!r}; the figures are {', '.join(figures)}")
        return figures[name]

    def as_dict(self) -> dict[str, Any]:
        """Return the record that `save` writes."""
        return {
            "name": self.name,
            "kind": self.kind,
            "figures": self.figures(),
            "seconds": list(self.seconds),
            "dimensions": self.dimensions,
            "methodology": list(self.methodology),
            "resources": self.resources.as_dict() if self.resources is not None else None,
            "environment": self.environment,
            "rounds": self.rounds,
        }

    def __str__(self) -> str:
        figures = (self.median, self.p90, self.min, self.max, self.mean, self.std)
        median, p90, low, high, mean, std = map(format_duration, figures)
        used = f"\n  {self.resources}" if self.resources else ""
        return (
            f"{self.name}: {len(self)} samples, one per {self.kind}\n"
            f"  median {median}, p90 {p90}, {low} to {high}\n  mean {mean}, std {std}{used}"
        )


def from_dict(record: dict[str, Any]) -> Measurement:
    """Return the measurement of a record; figures of a subclass are only in the record.

    Raises:
      ValueError: if the record is not one of a measurement.
    """
    try:
        used = record["resources"]
        return Measurement(
            name=record["name"],
            kind=record["kind"],
            seconds=tuple(record["seconds"]),
            environment=record["environment"],
            dimensions=record["dimensions"],
            methodology=tuple(record["methodology"]),
            resources=Resources(**used) if used is not None else None,
            rounds=record["rounds"],
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"expected the record of a measurement: {error!r}") from error


def plain(value: Any) -> Any:
    """Convert a value to types of JSON, so that a saved value equals an unsaved one.

    Numbers of NumPy become Python numbers, arrays and tuples lists, NaN and infinity None, and
    other objects text.

    >>> plain({"shape": (2, np.int64(3)), "std": float("nan"), "dtype": np.dtype("f4")})
    {'shape': [2, 3], 'std': None, 'dtype': 'float32'}
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, (np.generic, np.ndarray, jax.Array)):
        return plain(np.asarray(value).tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)
