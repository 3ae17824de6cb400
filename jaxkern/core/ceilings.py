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
from jaxkern.core.threads import num_threads
from jaxkern.core.version import __version__

# Duration of each probe. The CPU has seven probes, each run with one thread and with all.
_PROBE_SECONDS = 0.12
_MIN_BUFFER_BYTES = 128 << 20
# A buffer of this many times the caches leaves nothing cached for the next pass.
_CACHE_MULTIPLE = 4
_FORMAT = 1
# The share of CPU time used by other processes above which a note is added.
_DISTURBANCE = 0.1


@dataclass(frozen=True)
class Rates:
    """Bandwidths in bytes/s and arithmetic rates in FLOP/s; a multiply-add is two operations.

    A copy counts the bytes read and the bytes written.
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
      platform: ``"cpu"`` or ``"cuda"``.
      device: the processor's or the GPU's name.
      threads: number of threads in ``all_threads``: the CPUs that this process may use; 0 on a
        GPU.
      simd_level: instruction set of the loops; None on a GPU.
      one_thread: rates of one CPU thread; None on a GPU.
      all_threads: rates of all CPU threads, or of the GPU.
      buffer_bytes: size of the memory that all threads streamed over.
      cache_bytes: total size of the last-level caches; None if unknown.
      seconds: duration of the probes.
      measured: date and time in UTC, in ISO format.
      source: ``"measured"``, or the file from which the figures were read.
      notes: caveats, such as a cache folder that cannot be written.
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
        where = self.device
        if self.platform == "cpu":
            where += f", {self.threads} threads, SIMD level {self.simd_level}"
        columns = [("all threads" if self.platform == "cpu" else "GPU", self.all_threads)]
        if self.one_thread is not None:
            columns.insert(0, ("one thread", self.one_thread))
        lines = [f"ceilings of {where}", "", " " * 22 + "".join(f"{n:>14}" for n, _ in columns)]
        for name, unit in _UNITS.items():
            values = "".join(f"{getattr(rates, name) / 1e9:14.1f}" for _, rates in columns)
            lines.append(f"  {name:<10}{unit:<10}{values}")
        cache = "unknown" if self.cache_bytes is None else f"{self.cache_bytes / 2**20:.0f} MiB"
        lines += [
            "",
            f"  {self.buffer_bytes / 2**20:.0f} MiB streamed, last-level cache {cache}, "
            f"{self.seconds:.1f} s of probes, {self.measured}",
            f"  {'measured now' if self.source == 'measured' else 'read from ' + self.source}",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


# Figures of this process that could not be written, by path and identity.
_unwritten: dict[tuple[Path | None, str], Ceilings] = {}

_UNITS = {
    "load": "GB/s",
    "store": "GB/s",
    "copy": "GB/s",
    "fma_f32": "GFLOP/s",
    "fma_f64": "GFLOP/s",
}


def ceilings(device: jax.Device | None = None, *, refresh: bool = False) -> Ceilings:
    """Return the ceilings of a device, from the cache or from the native probes (under 5 s).

    The best of many passes over buffers much larger than the last-level cache, and of multiply-adds
    in registers. Cached in ``$XDG_CACHE_HOME/jaxkern`` (``~/.cache/jaxkern``) for each processor or
    GPU, number of CPUs, SIMD level and version of jaxkern; ``notes`` reports a failure to write.

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
        raise NotImplementedError(
            f"{name} has no probes; expected a device of {' or '.join(registry.PLATFORMS)}, or "
            "ceilings passed as jaxkern.performance.Ceilings"
        )
    native = registry.module(name)
    if native is None:
        problem = registry.missing("", name)
        raise RuntimeError(
            f"the ceilings of {name} need native probes, which are not usable: {problem}; see "
            "jaxkern.doctor()"
        )
    identity = _cpu_identity(native) if name == "cpu" else _gpu_identity(device)
    folder, digest = cache_folder(), _digest(identity)
    path = None if folder is None else folder / f"ceilings-{digest}.json"
    cached = None if refresh else _read(path, identity) or _unwritten.get((path, digest))
    if cached is not None:
        return cached
    measured = _measure_cpu(native, identity) if name == "cpu" else _measure_gpu(native, device)
    return _write(path, identity, measured)


def _threads() -> int:
    # The process's CPUs, independent of the cap on kernel threads.
    return num_threads({k: v for k, v in os.environ.items() if k != "JAXKERN_NUM_THREADS"})


def _cpu_identity(native: Any) -> dict[str, Any]:
    return {
        "platform": "cpu",
        "device": cpu_model(),
        "threads": _threads(),
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
    if cache is None:
        notes.append(
            f"the system does not report cache sizes; {requested >> 20} MiB may be too small"
        )
    if buffer < requested:
        notes.append(
            f"memory allowed a buffer of only {buffer >> 20} MiB instead of {requested >> 20} MiB: "
            "part of it may remain cached"
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
    return Ceilings(
        platform="cpu",
        device=identity["device"],
        threads=threads,
        simd_level=level,
        one_thread=one,
        all_threads=every,
        buffer_bytes=buffer,
        cache_bytes=cache,
        seconds=seconds,
        measured=_now(),
        notes=tuple(notes),
    )


def _measure_gpu(native: Any, device: jax.Device) -> Ceilings:
    begun = time.perf_counter()
    ordinal = getattr(device, "local_hardware_id", None)
    figures = native.measure_device(device.id if ordinal is None else ordinal, _PROBE_SECONDS)
    return Ceilings(
        platform="cuda",
        device=device.device_kind,
        threads=0,
        simd_level=None,
        one_thread=None,
        all_threads=Rates(**{f.name: figures[f.name] for f in dataclasses.fields(Rates)}),
        buffer_bytes=int(figures["buffer_bytes"]),
        cache_bytes=int(figures["cache_bytes"]),
        seconds=time.perf_counter() - begun,
        measured=_now(),
    )


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
        fields = content["ceilings"]
        one = fields["one_thread"]
        return Ceilings(
            **{
                **fields,
                "one_thread": None if one is None else _rates(one),
                "all_threads": _rates(fields["all_threads"]),
                "source": str(path),
                "notes": tuple(fields["notes"]),
            }
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _rates(fields: dict[str, float]) -> Rates:
    rates = Rates(**{name: float(value) for name, value in fields.items()})
    if not all(math.isfinite(v) and v > 0 for v in dataclasses.astuple(rates)):
        raise ValueError("a rate is not a positive number")
    return rates


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
