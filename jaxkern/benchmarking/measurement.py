"""A named measurement: times with their statistics, resources, and conditions on the machine."""

from __future__ import annotations

import dataclasses
import datetime
import math
import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import jax
import numpy as np

from jaxkern.core import registry
from jaxkern.core.arguments import check_number
from jaxkern.core.backend import current_backend
from jaxkern.core.machine import cpu_model
from jaxkern.core.memory import memory_limit, status_bytes
from jaxkern.core.quantities import format_duration
from jaxkern.core.threads import num_threads, schedulable_cpus
from jaxkern.core.version import __version__, installed_versions

Kind = Literal["call", "batch", "arm"]
Outcome = Literal["faster", "slower", "no difference shown"]
MIN_SAMPLES = 5
_STATISTICS = ("median", "mean", "std", "min", "max", "p90")


@dataclasses.dataclass(frozen=True)
class Samples:
    """Measured times in seconds, one per measurement, and their statistics.

    Example:
      >>> import jaxkern as jk
      >>> samples = jk.benchmarking.Samples((0.1, 0.2, 0.4))
      >>> samples.median, samples.max, len(samples)
      (0.2, 0.4, 3)
    """

    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        values = np.asarray(self.seconds, dtype=np.float64)
        if values.ndim != 1 or not values.size or not np.isfinite(values).all() or values.min() < 0:
            raise ValueError(f"seconds: expected finite numbers >= 0, got {self.seconds!r:.80}")

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    @property
    def mean(self) -> float:
        return float(np.mean(self.seconds))

    @property
    def std(self) -> float:
        """Sample standard deviation (n - 1); NaN for a single sample."""
        return float(np.std(self.seconds, ddof=1)) if len(self.seconds) > 1 else float("nan")

    @property
    def min(self) -> float:
        return min(self.seconds)

    @property
    def max(self) -> float:
        return max(self.seconds)

    @property
    def p90(self) -> float:
        return self.percentile(90)

    def percentile(self, q: float) -> float:
        """Return the q-th percentile, with linear interpolation."""
        return float(np.percentile(self.seconds, q))


@dataclasses.dataclass(frozen=True)
class Resources:
    """Resources that a block of code used.

    Attributes:
      wall_seconds, cpu_seconds: duration, and user and system time of all threads of this process.
      peak_bytes, start_bytes: resident memory of the process, at most and at the start; None if the
        system does not report it.
      peak_of_span: False if the system cannot reset the peak, so that ``peak_bytes`` covers the
        process since its start.
      device_peak_bytes: peak memory of each device since its start, if its driver reports it.

    Example:
      >>> import jaxkern as jk
      >>> with jk.benchmarking.ResourceMeter() as meter:
      ...     _ = sum(range(1000))
      >>> meter.used.wall_seconds > 0
      True
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
      name, dimensions: name of the measured function or stream, and size of the work.
      kind: unit of a sample: a call, a batch, or a turn of an arm of a comparison.
      environment, methodology: machine, versions and settings; sentences on the measurement.
      resources: CPU time and memory; None if not measured.
      rounds: identifier shared by arms whose i-th samples were measured in the same round, or "".
      extra: further figures by name: ``compile_seconds`` of `profile_fn`, and rates, counts and
        percentiles of `PipelineBenchmark`.

    Example:
      >>> import jaxkern as jk
      >>> measured = jk.benchmarking.profile_fn(sum, (1, 2, 3), calls=5, seconds=0)
      >>> measured.name, len(measured), measured["median"] == measured.median
      ('sum', 5, True)
    """

    name: str
    kind: Kind
    environment: dict[str, Any]
    dimensions: dict[str, Any] = dataclasses.field(default_factory=dict)
    methodology: tuple[str, ...] = ()
    resources: Resources | None = None
    rounds: str = ""
    extra: dict[str, float] = dataclasses.field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """Return all figures by name; times in seconds."""
        statistics = {name: getattr(self, name) for name in _STATISTICS}
        return {"count": len(self)} | statistics | self.extra

    def __getitem__(self, name: str) -> float:
        figures = self.figures()
        if name not in figures:
            raise KeyError(f"no figure {name!r}; the figures are {', '.join(figures)}")
        return figures[name]

    def __getattr__(self, name: str) -> float:
        # `copy` reads attributes of an instance that has no fields yet.
        figures: dict[str, float] = self.__dict__.get("extra", {})
        if name not in figures:
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}")
        return figures[name]

    def described(self) -> dict[str, str]:
        """Return all figures by name, as text with units."""
        texts = {}
        for name, value in self.figures().items():
            if name.endswith("_per_second"):
                texts[name] = f"{value:,.1f}"
            elif isinstance(value, int):
                texts[name] = f"{value:,}"
            else:
                texts[name.removesuffix("_seconds")] = format_duration(value)
        return texts

    def as_dict(self) -> dict[str, Any]:
        """Return the record that `save` writes."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {"figures": self.figures()} | fields

    def __str__(self) -> str:
        _, *figures = (f"{name} {text}" for name, text in self.described().items())
        lines = [f"{self.name}: {len(self):,} samples, one per {self.kind}"]
        split = len(_STATISTICS)
        lines += [", ".join(part) for part in (figures[:split], figures[split:]) if part]
        lines += [str(self.resources)] if self.resources else []
        return "\n  ".join(lines)


def plain(value: Any) -> Any:
    """Convert a value to types of JSON, so that a saved value equals an unsaved one.

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


# Ratios of two samples ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Ratio:
    """A ratio of medians with its bootstrap interval, which is NaN for too few samples.

    Example:
      >>> import jaxkern as jk
      >>> ratio = jk.benchmarking.Ratio(value=2.0, low=1.5, high=2.5, confidence=0.95, samples=20)
      >>> ratio.inverse.value, ratio.outcome()
      (0.5, 'slower')
    """

    value: float
    low: float
    high: float
    confidence: float
    samples: int

    def outcome(self, least_change: float = 0.0) -> Outcome:
        """Judge a ratio of times after / before: its entire interval must exceed the change."""
        if self.high < 1 - least_change:
            return "faster"
        return "slower" if self.low > 1 + least_change else "no difference shown"

    @property
    def inverse(self) -> Ratio:
        """The inverse ratio: a speedup from a ratio of times."""
        return Ratio(1 / self.value, 1 / self.high, 1 / self.low, self.confidence, self.samples)

    def __str__(self) -> str:
        interval = f" ({self.low:.3g} to {self.high:.3g})" if math.isfinite(self.low) else ""
        return f"{self.value:.3g}{interval}"


def ratio_of_medians(
    after: Sequence[float],
    before: Sequence[float],
    *,
    paired: bool = False,
    confidence: float = 0.95,
    resamples: int = 4000,
    block: int | None = None,
) -> Ratio:
    """Return ``median(after) / median(before)`` with a percentile bootstrap interval (Efron 1979).

    Successive samples are correlated, and therefore drawn in circular blocks of neighbors (Politis
    and Romano 1992). With fewer than `MIN_SAMPLES` samples there is no interval.

    If the i-th samples of both were measured in the same round (``paired``), rounds are drawn, so
    that a slowdown of an entire round cancels. By default a block has as many neighbors as the
    square root of the number of samples, and one if paired.
    """
    confidence = check_number("confidence", confidence, 0, 1)
    over, under = np.asarray(after, np.float64), np.asarray(before, np.float64)
    for name, values in (("after", over), ("before", under)):
        if values.ndim != 1 or not values.size or not (0 < values.min() <= values.max() < np.inf):
            raise ValueError(f"{name}: expected finite seconds above 0, got {values!r:.80}")
    if paired and len(over) != len(under):
        raise ValueError(f"paired samples: expected one length, got {len(over)} and {len(under)}")
    value, samples = float(np.median(over) / np.median(under)), min(len(over), len(under))
    if samples < MIN_SAMPLES:
        return Ratio(value, math.nan, math.nan, confidence, samples)
    generator = np.random.default_rng(0)
    block = 1 if paired and block is None else block
    indices = draw_blocks(generator, resamples, len(over), block)
    other = indices if paired else draw_blocks(generator, resamples, len(under), block)
    ratios = np.median(over[indices], axis=1) / np.median(under[other], axis=1)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(ratios, [tail, 100 - tail])
    return Ratio(value, float(low), float(high), confidence, samples)


def draw_blocks(
    generator: np.random.Generator, resamples: int, count: int, block: int | None
) -> np.ndarray:
    """Draw indices [resamples, count] of samples in circular blocks, so that all are as likely."""
    length = round(count**0.5) if block is None else min(block, count)
    starts = generator.integers(count, size=(resamples, -(-count // length)))
    blocks = (starts[:, :, None] + np.arange(length)) % count
    return blocks.reshape(resamples, -1)[:, :count]


# Conditions ---------------------------------------------------------------------------------------


def environment(*packages: str) -> dict[str, Any]:
    """Return machine, versions (also of ``packages``) and settings, for JSON. Starts JAX.

    Example:
      >>> import jaxkern as jk
      >>> sorted(jk.benchmarking.environment("numpy"))
      ['date', 'machine', 'settings', 'versions']
    """
    native = registry.module("cpu")
    kinds = [device.device_kind for device in jax.devices()]
    machine = {
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": schedulable_cpus(),
        "memory_gib": round(memory_limit(), 2),
        "devices": ", ".join(f"{kinds.count(kind)} x {kind}" for kind in sorted(set(kinds))),
    }
    settings = {
        "backend": current_backend(),
        "simd_level": native.simd_level() if native is not None else None,
        "threads": num_threads(),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "").strip(),
    }
    versions = {"python": platform.python_version(), "jaxkern": __version__}
    versions |= installed_versions("jax", "jaxlib", "numpy", *packages)
    date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    return {"date": date, "machine": machine, "versions": versions, "settings": settings}


def conditions(where: dict[str, Any]) -> str:
    """Return an environment as one line: ``AMD EPYC, 2 cores, 2 x cpu; python 3.12.1, ...``."""
    machine = where["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['devices']}; {versions}"


def differences(mine: dict[str, Any], other: dict[str, Any], part: str) -> list[str]:
    """Return the differences in one part of two environments, such as ``cores: 2, was 64``."""
    now, before = mine.get(part, {}), other.get(part, {})
    return [
        f"{name}: {now.get(name)}, was {before.get(name)}"
        for name in sorted({*now, *before})
        if now.get(name) != before.get(name)
    ]
