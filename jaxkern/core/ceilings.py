"""The machine's ceilings, bytes and operations a second, measured once and kept on disk."""

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
from jaxkern.core.machine import busy_seconds, cpu_model, last_level_caches
from jaxkern.core.memory import available_bytes
from jaxkern.core.paths import home_path, write_atomically
from jaxkern.core.threads import num_threads
from jaxkern.core.version import __version__

# Of each kind of access and of arithmetic: the CPU has seven kinds, with one thread and with all.
_PROBE_SECONDS = 0.12
_LEAST_BUFFER = 128 << 20
# Nothing of a stream over this many times the caches is still there at the next pass.
_CACHES = 4
_FORMAT = 1
# The share of all CPU time that others may take before the figures are told to be doubtful.
_DISTURBANCE = 0.1


@dataclass(frozen=True)
class Rates:
    """Bytes a second of streams and operations a second; a multiply-add is two.

    A copy's bytes are those read and those written.
    """

    load: float
    store: float
    copy: float
    fma_f32: float
    fma_f64: float

    @property
    def bandwidth(self) -> float:
        """The most bytes a second, of whatever mixture of reading and writing."""
        return max(self.load, self.store, self.copy)

    def flops(self, dtype: str) -> float:
        """The peak for ``"f32"`` or ``"f64"``."""
        return self.fma_f64 if dtype == "f64" else self.fma_f32


@dataclass(frozen=True)
class Ceilings:
    """What one machine, or one GPU, can do at best.

    Attributes:
      platform: ``"cpu"`` or ``"cuda"``.
      device: the processor's or the GPU's name.
      threads: of ``all_threads``: the CPUs that this process may use; 0 on a GPU.
      simd_level: of the loops; None on a GPU.
      one_thread: of one CPU thread; None on a GPU.
      all_threads: of all of them, or of the GPU.
      buffer_bytes: what all threads streamed over; ``cache_bytes``: the last-level caches, None if
        unknown.
      seconds: that the probes took.
      measured: when, as an ISO date and time in UTC.
      source: ``"measured"``, or the file that had the figures.
      notes: what should be known of the figures, such as a cache folder that cannot be written.
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
        """The highest of each rate: one thread can be the faster where others compete for cores."""
        if self.one_thread is None:
            return self.all_threads
        one, every = dataclasses.asdict(self.one_thread), dataclasses.asdict(self.all_threads)
        return Rates(**{name: max(one[name], every[name]) for name in one})

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
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
            f"  {'measured now' if self.source == 'measured' else 'kept in ' + self.source}",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


# What could not be kept in a file, for this process: by the file that it has none of, and identity.
_unwritten: dict[tuple[Path | None, str], Ceilings] = {}

_UNITS = {
    "load": "GB/s",
    "store": "GB/s",
    "copy": "GB/s",
    "fma_f32": "GFLOP/s",
    "fma_f64": "GFLOP/s",
}


def ceilings(device: jax.Device | None = None, *, refresh: bool = False) -> Ceilings:
    """The ceilings of a device, from the cache or by the native probes (under 5 s).

    Streams go over buffers far beyond the last-level cache; arithmetic is chains of multiply-adds
    in registers. The best of many passes counts, since a ceiling is what can be reached.

    The figures are kept in ``$XDG_CACHE_HOME/jaxkern`` (``~/.cache/jaxkern``), in a file for each
    processor or GPU, number of CPUs, SIMD level and version of jaxkern. A file that cannot be read
    is measured anew; a folder that cannot be written, or a user without a home folder, is told in
    ``notes``.

    Args:
      device: JAX's; the first of the default backend when None.
      refresh: measures even if there is a file.

    Raises:
      RuntimeError: when the native library of the platform is not usable, or a probe fails.
      NotImplementedError: for a platform without probes, such as TPU.

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
            f"there are no probes for {name}; wanted a device of {' or '.join(registry.PLATFORMS)},"
            " or the ceilings given as jaxkern.performance.Ceilings"
        )
    native = registry.module(name)
    if native is None:
        problem = registry.missing("", name)
        raise RuntimeError(
            f"the ceilings of {name} are measured by native probes, and they are not usable: "
            f"{problem}; jaxkern.doctor() tells more"
        )
    identity = _cpu_identity(native) if name == "cpu" else _gpu_identity(device)
    folder, digest = cache_folder(), _digest(identity)
    path = None if folder is None else folder / f"ceilings-{digest}.json"
    kept = None if refresh else _read(path, identity) or _unwritten.get((path, digest))
    if kept is not None:
        return kept
    found = _measure_cpu(native, identity) if name == "cpu" else _measure_gpu(native, device)
    return _write(path, identity, found)


def cache_folder() -> Path | None:
    """Where jaxkern keeps what it measured: ``$XDG_CACHE_HOME/jaxkern``.

    None for a user without a home folder, such as a number given to ``docker run --user``.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    # The standard wants a relative path to be ignored.
    if given and Path(given).is_absolute():
        return Path(given) / "jaxkern"
    try:
        return home_path("~/.cache/jaxkern")
    except ValueError:
        return None


def _threads() -> int:
    # What the process may use, whatever the kernels' own cap is.
    return num_threads({k: v for k, v in os.environ.items() if k != "JAXKERN_NUM_THREADS"})


def _cpu_identity(native: Any) -> dict[str, Any]:
    return {
        "platform": "cpu",
        "device": cpu_model(),
        "threads": _threads(),
        # The machine's best, whatever level JAXKERN_SIMD forces on the kernels.
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
    # One thread fills only the cache that it shares; a large machine's sum would take it seconds.
    for_one = max(_LEAST_BUFFER, _CACHES * max(caches, default=0))
    wanted = for_one if threads == 1 else max(_LEAST_BUFFER, _CACHES * sum(caches))
    buffer = min(wanted, available_bytes() // 4)
    if cache is None:
        notes.append(
            f"the system does not tell the size of its caches; {wanted >> 20} MiB may be too little"
        )
    if buffer < wanted:
        notes.append(
            f"only {buffer >> 20} MiB were streamed, for want of memory, of {wanted >> 20} MiB: "
            "some of it may stay in the caches"
        )
    begun, busy, own = time.perf_counter(), busy_seconds(), time.process_time()

    def rates(count: int) -> Rates:
        size = min(for_one, buffer) if count == 1 else buffer
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
                f"other processes used {100 * others:.0f}% of the CPUs meanwhile, so that the "
                "figures may be low; ceilings(refresh=True) measures anew"
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
    found = native.measure_device(device.id if ordinal is None else ordinal, _PROBE_SECONDS)
    return Ceilings(
        platform="cuda",
        device=device.device_kind,
        threads=0,
        simd_level=None,
        one_thread=None,
        all_threads=Rates(**{f.name: found[f.name] for f in dataclasses.fields(Rates)}),
        buffer_bytes=int(found["buffer_bytes"]),
        cache_bytes=int(found["cache_bytes"]),
        seconds=time.perf_counter() - begun,
        measured=_now(),
    )


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _read(path: Path | None, identity: dict[str, Any]) -> Ceilings | None:
    """What a file has, or None where it is missing, of another machine, or not what was written."""
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT or content["identity"] != identity:
            return None
        fields = content["ceilings"]
        one = fields["one_thread"]
        found = Ceilings(
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
    return found


def _rates(fields: dict[str, float]) -> Rates:
    rates = Rates(**{name: float(value) for name, value in fields.items()})
    if not all(math.isfinite(v) and v > 0 for v in dataclasses.astuple(rates)):
        raise ValueError("a rate is not a positive number")
    return rates


def _write(path: Path | None, identity: dict[str, Any], found: Ceilings) -> Ceilings:
    """Keeps the figures."""
    content = {"format": _FORMAT, "identity": identity, "ceilings": found.as_dict()}
    problem = "this user has no home folder; set XDG_CACHE_HOME"
    if path is not None:
        try:
            write_atomically(path, json.dumps(content, indent=1).encode())
            return found
        except OSError as error:
            problem = f"{error}; make {path.parent} writable or set XDG_CACHE_HOME"
    note = f"the figures are not kept for the next process: {problem}"
    found = dataclasses.replace(found, notes=(*found.notes, note))
    _unwritten[path, _digest(identity)] = found
    return found
