"""``get_device_status``: devices, and what this process may use of the machine."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from dataclasses import dataclass
from typing import Any

import jax

from jaxkern.core import registry
from jaxkern.core.arguments import parse_decimal
from jaxkern.core.client import BackendError, start_backend
from jaxkern.core.machine import cpu_model, last_level_cache_bytes
from jaxkern.core.memory import GIB, available_bytes, machine_bytes, memory_limit
from jaxkern.core.threads import cgroup_cpus, num_threads, schedulable_cpus
from jaxkern.core.version import __version__, installed_versions


@dataclass(frozen=True)
class DeviceInfo:
    """One of JAX's devices; bytes are None where its client does not tell them (a CPU's)."""

    id: int
    platform: str
    kind: str
    process_index: int
    memory_bytes: int | None
    memory_in_use_bytes: int | None


@dataclass(frozen=True)
class DeviceStatus:
    """What `get_device_status` found; ``str()`` of it is the report.

    Attributes:
      devices: all of JAX's default backend, and the CPU's.
      default_backend: ``"cpu"``, ``"gpu"`` or ``"tpu"``; ``"none"`` where JAX cannot start one.
      cpu_model, cpus: the processor, and how many CPUs the machine has.
      affinity_cpus, cgroup_cpus, slurm_cpus: what bounds this process; None: no such bound.
      usable_cpus: what is left of them; ``kernel_threads``: the cap on the CPU kernels (0: none,
        None: there are no kernels).
      cache_bytes: of the last-level caches together; None where the system does not tell.
      memory_bytes: of the machine; ``memory_limit_bytes``: what this process may use of it, by its
        control group, SLURM or ``JAXKERN_MEMORY_LIMIT``; None: no limit;
        ``memory_available_bytes``: what it may still take now.
      simd_level, simd_levels: in use, and all that the machine can run.
      cuda_driver: the newest CUDA of the driver, such as ``"13.0"``; ``cuda_runtime``: the one in
        jaxkern's CUDA library; ``cuda_architectures``: what its kernels are compiled for.
      versions: of jaxkern, JAX, jaxlib, its GPU plugins and Python.
      problems: what is wrong and what to do.
    """

    devices: tuple[DeviceInfo, ...]
    default_backend: str
    cpu_model: str
    cpus: int
    affinity_cpus: int
    cgroup_cpus: int | None
    slurm_cpus: int | None
    usable_cpus: int
    kernel_threads: int | None
    cache_bytes: int | None
    memory_bytes: int
    memory_limit_bytes: int | None
    memory_available_bytes: int
    simd_level: str | None
    simd_levels: tuple[str, ...]
    cuda_driver: str | None
    cuda_runtime: str | None
    cuda_architectures: tuple[str, ...]
    versions: dict[str, str]
    problems: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        lines = ["jaxkern device status", "", f"  {'default backend':<18}{self.default_backend}"]
        for device in self.devices:
            memory = ""
            if device.memory_bytes is not None:
                used = device.memory_in_use_bytes or 0
                memory = f", {used / GIB:.1f} of {device.memory_bytes / GIB:.1f} GiB in use"
            lines.append(f"  {device.platform + ':' + str(device.id):<18}{device.kind}{memory}")
        bounds = [
            f"{count} by {name}"
            for name, count in (
                ("affinity", self.affinity_cpus),
                ("control group", self.cgroup_cpus),
                ("SLURM", self.slurm_cpus),
            )
            if count is not None
        ]
        limit = self.memory_limit_bytes
        within = "no limit on this process" if limit is None else f"limit {limit / GIB:.1f} GiB"
        lines += [
            f"  {'processor':<18}{self.cpu_model}",
            f"  {'CPUs':<18}{self.usable_cpus} usable of {self.cpus} ({', '.join(bounds)})",
            f"  {'memory':<18}{self.memory_available_bytes / GIB:.1f} GiB available of "
            f"{self.memory_bytes / GIB:.1f} ({within})",
        ]
        if self.cache_bytes is not None:
            lines.append(f"  {'last-level cache':<18}{self.cache_bytes / 2**20:.0f} MiB")
        if self.simd_level is not None:
            cap = self.kernel_threads or "no cap (XLA's thread pool decides)"
            others = ", ".join(self.simd_levels)
            lines.append(f"  {'SIMD level':<18}{self.simd_level} (this machine has {others})")
            lines.append(f"  {'kernel threads':<18}{cap}")
        lines.append(f"  {'CUDA driver':<18}{self.cuda_driver or 'none found'}")
        if self.cuda_runtime is not None:
            code = ", ".join(self.cuda_architectures)
            lines.append(f"  {'CUDA kernels':<18}runtime {self.cuda_runtime}, code for {code}")
        lines += [f"  {name:<18}{version}" for name, version in self.versions.items()]
        lines += [f"  {'PROBLEM':<18}{problem}" for problem in self.problems]
        return "\n".join(lines)


def get_device_status() -> DeviceStatus:
    """Devices, memory and CPUs that this process may use, SIMD level, drivers and versions.

    Limits of SLURM, control groups and affinity are heeded. Asks JAX for its devices, which starts
    its backends: set what they read at their start before (`configure_optimal_device`).

    Example:
      >>> import jaxkern.device
      >>> status = jaxkern.device.get_device_status()
      >>> 1 <= status.usable_cpus <= status.cpus
      True
    """
    native = registry.module("cpu")
    problems = []
    devices: list[jax.Device] = []
    try:
        backend = start_backend()
        devices = list(jax.devices())
        if backend != "cpu":
            # JAX_PLATFORMS may leave the CPU out.
            with contextlib.suppress(RuntimeError):
                devices += jax.devices("cpu")
    except BackendError as error:
        backend = "none"
        problems.append(str(error))
    cuda = registry.module("cuda")  # the started backend tells whether the GPUs can run it
    if native is not None and (problem := native.simd_problem()) is not None:
        problems.append(str(problem))
    problems += [
        f"the {library.platform} kernels are not used: {library.problem}"
        for library in registry.libraries()
        if library.problem is not None and library.module.startswith("jaxkern.")
        # Without a GPU nobody misses its kernels.
        if library.platform != "cuda" or any(d.platform == "gpu" for d in devices)
    ]
    limit = int(min(memory_limit() * GIB, 2**63))
    allotted = os.environ.get("SLURM_CPUS_PER_TASK", "").strip()
    return DeviceStatus(
        devices=tuple(map(_info, devices)),
        default_backend=backend,
        cpu_model=cpu_model(),
        cpus=os.cpu_count() or 1,
        affinity_cpus=schedulable_cpus(),
        cgroup_cpus=cgroup_cpus(),
        slurm_cpus=parse_decimal(allotted) or None,
        usable_cpus=num_threads(
            {k: v for k, v in os.environ.items() if k != "JAXKERN_NUM_THREADS"}
        ),
        kernel_threads=native.max_workers() if native else None,
        cache_bytes=last_level_cache_bytes(),
        memory_bytes=machine_bytes(),
        memory_limit_bytes=limit if limit < machine_bytes() else None,
        memory_available_bytes=available_bytes(),
        simd_level=native.simd_level() if native else None,
        simd_levels=tuple(native.simd_levels()) if native else (),
        cuda_driver=_dotted(registry.cuda_driver_version()),
        cuda_runtime=_dotted(int(cuda.cuda_runtime())) if cuda else None,
        cuda_architectures=tuple(cuda.architectures()) if cuda else (),
        versions={
            "jaxkern": __version__,
            **installed_versions("jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"),
            "Python": platform.python_version(),
            "system": platform.platform(),
        },
        problems=tuple(problems),
    )


def _info(device: jax.Device) -> DeviceInfo:
    try:
        memory = device.memory_stats() or {}
    except (RuntimeError, NotImplementedError):  # a client that keeps no count
        memory = {}
    return DeviceInfo(
        id=device.id,
        platform=device.platform,
        kind=device.device_kind,
        process_index=device.process_index,
        memory_bytes=memory.get("bytes_limit"),
        memory_in_use_bytes=memory.get("bytes_in_use"),
    )


def _dotted(version: int | None) -> str | None:
    return None if version is None else f"{version // 1000}.{version % 1000 // 10}"
