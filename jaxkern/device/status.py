"""``get_device_status``: the devices, and the CPUs and memory that this process may use."""

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
from jaxkern.core.machine import cpu_model, last_level_caches
from jaxkern.core.memory import GIB, available_bytes, machine_bytes, memory_limit
from jaxkern.core.threads import cgroup_cpus, num_threads, schedulable_cpus
from jaxkern.core.version import __version__, installed_versions
from jaxkern.device.doctor import cuda_version, format_facts, simd_facts


@dataclass(frozen=True)
class DeviceInfo:
    """One of JAX's devices; bytes are None if its client does not report them (CPU)."""

    id: int
    platform: str
    kind: str
    process_index: int
    memory_bytes: int | None
    memory_in_use_bytes: int | None


@dataclass(frozen=True)
class DeviceStatus:
    """The result of `get_device_status`; its ``str()`` is the report.

    Attributes:
      devices: devices of JAX's default backend, and of the CPU.
      default_backend: ``"cpu"``, ``"gpu"`` or ``"tpu"``; ``"none"`` if JAX cannot start one.
      cpu_model, cpus: the processor, and the number of CPUs of the machine.
      affinity_cpus, cgroup_cpus, slurm_cpus: limits on this process; None for no limit.
      usable_cpus: the smallest of them.
      kernel_threads: limit on the CPU kernels, 0 for no limit; None without kernels.
      cache_bytes: total size of the last-level caches; None if the system does not report it.
      memory_bytes: memory of the machine.
      memory_limit_bytes: limit on this process by its control group, SLURM or
        ``JAXKERN_MEMORY_LIMIT``; None for no limit.
      memory_available_bytes: memory that this process can still allocate.
      simd_level, simd_levels: the level in use, and all that the machine supports.
      cuda_driver: newest CUDA version that the driver supports, such as ``"13.0"``.
      cuda_runtime, cuda_architectures: version and architectures of jaxkern's CUDA library.
      versions: versions of jaxkern, JAX, jaxlib, its GPU plugins and Python.
      problems: problems and their solutions.
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
        """Return all fields for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        facts = [("default backend", self.default_backend)]
        for device in self.devices:
            memory = ""
            if device.memory_bytes is not None:
                used = device.memory_in_use_bytes or 0
                memory = f", {used / GIB:.1f} of {device.memory_bytes / GIB:.1f} GiB in use"
            process = f", process {device.process_index}" if device.process_index else ""
            facts.append((f"{device.platform}:{device.id}", f"{device.kind}{process}{memory}"))
        counts = (self.affinity_cpus, self.cgroup_cpus, self.slurm_cpus)
        names = ("affinity", "control group", "SLURM")
        limits = [f"{n} by {name}" for n, name in zip(counts, names, strict=True) if n is not None]
        limit = "no limit on this process"
        if self.memory_limit_bytes is not None:
            limit = f"limit {self.memory_limit_bytes / GIB:.1f} GiB"
        facts += [
            ("processor", self.cpu_model),
            ("CPUs", f"{self.usable_cpus} usable of {self.cpus} ({', '.join(limits)})"),
            (
                "memory",
                f"{self.memory_available_bytes / GIB:.1f} GiB available of "
                f"{self.memory_bytes / GIB:.1f} ({limit})",
            ),
        ]
        if self.cache_bytes is not None:
            facts.append(("last-level cache", f"{self.cache_bytes / 2**20:.0f} MiB"))
        if self.simd_level is not None:
            threads = self.kernel_threads
            facts += simd_facts(self.simd_level, self.simd_levels, "kernel threads", threads)
        facts.append(("CUDA driver", self.cuda_driver or "none"))
        if self.cuda_runtime is not None:
            code = ", ".join(self.cuda_architectures)
            facts.append(("CUDA kernels", f"runtime {self.cuda_runtime}, code for {code}"))
        facts += [*self.versions.items(), *(("PROBLEM", problem) for problem in self.problems)]
        return "\n".join(["jaxkern device status", "", *format_facts(facts)])


def get_device_status() -> DeviceStatus:
    """Return devices, memory and CPUs that this process may use, SIMD level and versions.

    Limits of SLURM, control groups and the affinity are included. Asks JAX for its devices, which
    starts its backends: call `configure_optimal_device` before.

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
            # JAX_PLATFORMS may exclude the CPU.
            with contextlib.suppress(RuntimeError):
                devices += jax.devices("cpu")
    except BackendError as error:
        backend = "none"
        problems.append(str(error))
    # After the backend has started, which checks the module against the GPUs.
    cuda = registry.module("cuda")
    if native is not None and (problem := native.simd_problem()) is not None:
        problems.append(str(problem))
    has_gpu = any(device.platform == "gpu" for device in devices)
    problems += [
        f"the {library.platform} kernels are not used: {library.problem}"
        for library in registry.libraries()
        if library.problem is not None and library.module.startswith("jaxkern.")
        if library.platform != "cuda" or has_gpu
    ]
    limit = int(min(memory_limit() * GIB, 2**63))
    slurm = os.environ.get("SLURM_CPUS_PER_TASK", "").strip()
    driver = registry.cuda_driver_version()
    without_override = {k: v for k, v in os.environ.items() if k != "JAXKERN_NUM_THREADS"}
    return DeviceStatus(
        devices=tuple(map(_info, devices)),
        default_backend=backend,
        cpu_model=cpu_model(),
        cpus=os.cpu_count() or 1,
        affinity_cpus=schedulable_cpus(),
        cgroup_cpus=cgroup_cpus(),
        slurm_cpus=parse_decimal(slurm) or None,
        usable_cpus=num_threads(without_override),
        kernel_threads=native.max_workers() if native else None,
        cache_bytes=sum(last_level_caches()) or None,
        memory_bytes=machine_bytes(),
        memory_limit_bytes=limit if limit < machine_bytes() else None,
        memory_available_bytes=available_bytes(),
        simd_level=native.simd_level() if native else None,
        simd_levels=tuple(native.simd_levels()) if native else (),
        cuda_driver=None if driver is None else cuda_version(driver),
        cuda_runtime=cuda_version(int(cuda.cuda_runtime())) if cuda else None,
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
    except (RuntimeError, NotImplementedError):  # the client reports no memory statistics
        memory = {}
    return DeviceInfo(
        id=device.id,
        platform=device.platform,
        kind=device.device_kind,
        process_index=device.process_index,
        memory_bytes=memory.get("bytes_limit"),
        memory_in_use_bytes=memory.get("bytes_in_use"),
    )
