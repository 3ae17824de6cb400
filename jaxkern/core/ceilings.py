"""The machine's peak bandwidth and arithmetic rates, measured once and cached on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from jaxkern.core import registry
from jaxkern.core.caches import cache_folder
from jaxkern.core.machine import busy_seconds, cpu_model, last_level_caches
from jaxkern.core.memory import available_bytes
from jaxkern.core.paths import write_atomically
from jaxkern.core.threads import usable_cpus
from jaxkern.core.version import __version__

_PROBE_SECONDS = 0.12  # the CPU has seven probes, each run with one thread and with all
# Buffers of this many times the caches leave nothing cached for the next pass.
_CACHE_MULTIPLE, _MIN_BUFFER_BYTES = 4, 128 << 20
_DISTURBANCE = 0.1  # share of CPU time used by other processes above which a note is added
_FORMAT = 1
_UNITS = {"load": "GB/s", "store": "GB/s", "copy": "GB/s"}
_UNITS |= {"fma_f32": "GFLOP/s", "fma_f64": "GFLOP/s"}
# Figures of this process that could not be written, by path and identity.
_unwritten: dict[tuple[Path | None, str], Ceilings] = {}


@dataclass(frozen=True)
class Rates:
    """Bandwidths in bytes/s and arithmetic rates in FLOP/s; a multiply-add is two operations.

    A copy counts the bytes read and the bytes written.

    Example:
      >>> from jaxkern import performance
      >>> rates = performance.Rates(load=2e10, store=1e10, copy=3e10, fma_f32=1e11, fma_f64=5e10)
      >>> rates.bandwidth, rates.flops("f64")
      (30000000000.0, 50000000000.0)
    """

    load: float
    store: float
    copy: float
    fma_f32: float
    fma_f64: float

    @property
    def bandwidth(self) -> float:
        """Return the highest bandwidth of all access patterns, in bytes/s."""
        return max(self.load, self.store, self.copy)

    def flops(self, dtype: str) -> float:
        """Return the peak rate in FLOP/s for ``"f32"`` or ``"f64"``."""
        return self.fma_f64 if dtype == "f64" else self.fma_f32


@dataclass(frozen=True)
class Ceilings:
    """The peak rates of one machine or one GPU.

    Attributes:
      platform: ``"cpu"`` or ``"cuda"``; ``device``: the processor's or the GPU's name.
      threads: number of threads of ``all_threads``, the CPUs of this process; 0 on a GPU.
      simd_level: instruction set of the loops; None on a GPU.
      one_thread, all_threads: rates of one CPU thread (None on a GPU), and of all or of the GPU.
      buffer_bytes, cache_bytes: sizes of the streamed memory and, if known, of the last-level
        caches.
      seconds, measured: duration of the probes, and their date and time in UTC.
      source: ``"measured"``, or the file from which the figures were read.
      notes: caveats, such as a cache folder that cannot be written.

    Example:
      >>> from jaxkern import performance
      >>> ceilings = performance.ceilings()
      >>> ceilings.best.bandwidth >= ceilings.all_threads.bandwidth
      True
    """

    platform: str
    device: str
    threads: int
    simd_level: str | None
    one_thread: Rates | None
    all_threads: Rates
    buffer_bytes: int
    cache_bytes: int | None
    seconds: float
    measured: str
    source: str = "measured"
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Rates:
        """Return the maximum of each rate; one thread can be faster when cores are contended."""
        if self.one_thread is None:
            return self.all_threads
        one, every = dataclasses.asdict(self.one_thread), dataclasses.asdict(self.all_threads)
        return Rates(**{name: max(one[name], every[name]) for name in one})

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-compatible values."""
        return dataclasses.asdict(self) | {"notes": list(self.notes)}

    def __str__(self) -> str:
        where, columns = self.device, {"GPU": self.all_threads}
        if self.platform == "cpu":
            where += f", {self.threads} threads, SIMD level {self.simd_level}"
            columns = {"one thread": self.one_thread or self.all_threads}
            columns |= {"all threads": self.all_threads}
        lines = [f"ceilings of {where}", "", " " * 22 + "".join(f"{n:>14}" for n in columns)]
        for name, unit in _UNITS.items():
            values = "".join(f"{getattr(rates, name) / 1e9:14.1f}" for rates in columns.values())
            lines.append(f"  {name:<10}{unit:<10}{values}")
        cache = "unknown" if self.cache_bytes is None else f"{self.cache_bytes / 2**20:.0f} MiB"
        source = "measured now" if self.source == "measured" else f"read from {self.source}"
        lines += ["", f"  {self.buffer_bytes / 2**20:.0f} MiB streamed, last-level cache {cache}"]
        lines += [f"  {self.seconds:.1f} s of probes, {self.measured}, {source}"]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


def ceilings(device: jax.Device | None = None, *, refresh: bool = False) -> Ceilings:
    """Return the ceilings of a device, from the cache or from the native probes (under 5 s).

    They are cached in ``$XDG_CACHE_HOME/jaxkern`` (``~/.cache/jaxkern``) for each processor or GPU,
    number of CPUs, SIMD level and version of jaxkern; ``notes`` reports a failure to write.

    Args:
      device: a JAX device; by default the first of the default backend.
      refresh: if True, measure even if a file exists.

    Raises:
      RuntimeError: the native library of the platform is not usable, or a probe fails.
      NotImplementedError: the platform has no probes (TPU, for example).

    Example:
      >>> from jaxkern import performance
      >>> best = performance.ceilings().best
      >>> best.bandwidth > 0 and best.flops("f32") > 0
      True
    """
    device = jax.local_devices()[0] if device is None else device
    name = "cuda" if device.platform == "gpu" else device.platform
    if name not in registry.PLATFORMS:
        expected = " or ".join(registry.PLATFORMS)
        raise NotImplementedError(f"device: expected {expected}, which have probes, got {name}")
    native = registry.module(name)
    if native is None:
        problem = registry.missing("", name)
        raise RuntimeError(f"the native probes of {name} are not usable: {problem}")
    identity = _cpu_identity(native) if name == "cpu" else _gpu_identity(device)
    folder, digest = cache_folder(), _digest(identity)
    path = None if folder is None else folder / f"ceilings-{digest}.json"
    cached = None if refresh else _read(path, identity) or _unwritten.get((path, digest))
    if cached is not None:
        return cached
    measured = _measure_cpu(native, identity) if name == "cpu" else _measure_gpu(native, device)
    return _write(path, identity, measured)


def _cpu_identity(native: Any) -> dict[str, Any]:
    return {
        "platform": "cpu",
        "device": cpu_model(),
        "threads": usable_cpus(),  # independent of the cap on kernel threads
        # The machine's highest level, independent of JAXKERN_SIMD.
        "simd_level": native.simd_levels()[-1],
        "jaxkern": __version__,
    }


def _gpu_identity(device: jax.Device) -> dict[str, Any]:
    return {
        "platform": "cuda",
        "device": device.device_kind,
        "cpu": cpu_model(),
        "driver": registry.cuda_driver_version(),
        "jaxkern": __version__,
    }


def _digest(identity: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def _measure_cpu(native: Any, identity: dict[str, Any]) -> Ceilings:
    threads, level = identity["threads"], identity["simd_level"]
    caches = last_level_caches()
    cache = sum(caches) or None
    notes = []
    # One thread fills only its own last-level cache; streaming over the sum would take seconds.
    one_size = max(_MIN_BUFFER_BYTES, _CACHE_MULTIPLE * max(caches, default=0))
    all_size = max(_MIN_BUFFER_BYTES, _CACHE_MULTIPLE * sum(caches))
    requested = one_size if threads == 1 else all_size
    buffer = min(requested, available_bytes() // 4)
    mib = f"{requested >> 20} MiB"
    if cache is None:
        notes.append(f"the system does not report cache sizes; {mib} may be too small")
    if buffer < requested:
        notes.append(
            f"memory allowed a buffer of {buffer >> 20} MiB instead of {mib}: it may remain cached"
        )
    begun, busy, own = time.perf_counter(), busy_seconds(), time.process_time()

    def rates(count: int) -> Rates:
        size = min(one_size, buffer) if count == 1 else buffer
        memory = native.measure_memory(level, count, max(size, 1), _PROBE_SECONDS)
        return Rates(
            load=memory["load"],
            store=max(memory["store"], memory["store_streaming"]),
            copy=max(memory["copy"], memory["copy_streaming"]),
            **native.measure_compute(level, count, _PROBE_SECONDS),
        )

    one = rates(1)
    every = rates(threads) if threads > 1 else one
    seconds = time.perf_counter() - begun
    after = busy_seconds()
    if busy is not None and after is not None:
        others = (after - busy - (time.process_time() - own)) / (seconds * (os.cpu_count() or 1))
        if others > _DISTURBANCE:
            notes.append(
                f"other processes used {100 * others:.0f}% of the CPUs during the probes, so the "
                "figures may be low; ceilings(refresh=True) measures again"
            )
    device, now = identity["device"], _now()
    figures = Ceilings("cpu", device, threads, level, one, every, buffer, cache, seconds, now)
    return dataclasses.replace(figures, notes=tuple(notes))


def _measure_gpu(native: Any, device: jax.Device) -> Ceilings:
    begun = time.perf_counter()
    ordinal = getattr(device, "local_hardware_id", None)
    figures = native.measure_device(device.id if ordinal is None else ordinal, _PROBE_SECONDS)
    rates = Rates(**{name: figures[name] for name in _UNITS})
    sizes = int(figures["buffer_bytes"]), int(figures["cache_bytes"])
    seconds = time.perf_counter() - begun
    return Ceilings("cuda", device.device_kind, 0, None, None, rates, *sizes, seconds, _now())


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _read(path: Path | None, identity: dict[str, Any]) -> Ceilings | None:
    """Read cached figures; None if the file is missing, damaged or from another machine."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT or content["identity"] != identity:
            return None
        fields = content["ceilings"] | {"source": str(path)}
        fields["notes"] = tuple(fields["notes"])
        fields["all_threads"] = Rates(**fields["all_threads"])
        fields["one_thread"] = fields["one_thread"] and Rates(**fields["one_thread"])
        cached = Ceilings(**fields)
        rates = [dataclasses.astuple(r) for r in (cached.one_thread, cached.all_threads) if r]
        return cached if all(0 < v < math.inf for values in rates for v in values) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _write(path: Path | None, identity: dict[str, Any], measured: Ceilings) -> Ceilings:
    """Write the figures to their file; on failure add a note and remember them."""
    content = {"format": _FORMAT, "identity": identity, "ceilings": measured.as_dict()}
    problem = "this user has no home folder; set XDG_CACHE_HOME"
    if path is not None:
        try:
            write_atomically(path, json.dumps(content, indent=1).encode())
            return measured
        except OSError as error:
            problem = f"{error}; make {path.parent} writable or set XDG_CACHE_HOME"
    note = f"the figures could not be cached for the next process: {problem}"
    measured = dataclasses.replace(measured, notes=(*measured.notes, note))
    _unwritten[path, _digest(identity)] = measured
    return measured
