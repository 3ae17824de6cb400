"""``get_device_status`` and ``doctor``: devices, CPUs, memory and kernels of this process."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
from dataclasses import dataclass
from typing import Any

import jax

from jaxkern.core import registry
from jaxkern.core.backend import current_backend
from jaxkern.core.client import BackendError, start_backend
from jaxkern.core.machine import cpu_model, last_level_caches
from jaxkern.core.memory import GIB, available_bytes, machine_bytes, memory_limit
from jaxkern.core.op import ops
from jaxkern.core.threads import cgroup_cpus, schedulable_cpus, slurm_cpus, usable_cpus
from jaxkern.core.version import __version__, installed_versions


@dataclass(frozen=True)
class DeviceInfo:
    """One of JAX's devices; bytes are None if its client does not report them (CPU).

    Example:
      >>> import jaxkern.device
      >>> info = jaxkern.device.get_device_status().devices[0]
      >>> info.platform, info.process_index
      ('cpu', 0)
    """

    id: int
    platform: str
    kind: str
    process_index: int
    memory_bytes: int | None
    memory_in_use_bytes: int | None

    def __str__(self) -> str:
        text = f"{self.platform}:{self.id} {self.kind}"
        if self.memory_bytes is None:
            return text
        used = self.memory_in_use_bytes or 0
        return f"{text} ({used / GIB:.1f} of {self.memory_bytes / GIB:.1f} GiB in use)"


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

    Example:
      >>> import jaxkern.device
      >>> status = jaxkern.device.get_device_status()
      >>> status.default_backend, "jax" in status.versions
      ('cpu', True)
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
        return "\n".join(["jaxkern device status", "", *self._lines()])

    def _lines(self) -> list[str]:
        lines = []
        for field in dataclasses.fields(DeviceStatus):
            name, value = field.name.replace("_", " "), getattr(self, field.name)
            if name.endswith(" bytes") and value is not None:
                name, value = name.removesuffix(" bytes"), f"{value / GIB:.2f} GiB"
            elif isinstance(value, dict):
                value = ", ".join(f"{package} {version}" for package, version in value.items())
            elif isinstance(value, tuple):
                value = ", ".join(map(str, value)) or None
            if value is not None:
                lines.append(f"  {name:<20}{value}")
        return lines


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
    limit, driver = memory_limit() * GIB, registry.cuda_driver_version()
    return DeviceStatus(
        devices=tuple(map(_info, devices)),
        default_backend=backend,
        cpu_model=cpu_model(),
        cpus=os.cpu_count() or 1,
        affinity_cpus=schedulable_cpus(),
        cgroup_cpus=cgroup_cpus(),
        slurm_cpus=slurm_cpus(),
        usable_cpus=usable_cpus(),
        kernel_threads=native.max_workers() if native else None,
        cache_bytes=sum(last_level_caches()) or None,
        memory_bytes=machine_bytes(),
        memory_limit_bytes=int(limit) if limit < machine_bytes() else None,
        memory_available_bytes=available_bytes(),
        simd_level=native.simd_level() if native else None,
        simd_levels=tuple(native.simd_levels()) if native else (),
        cuda_driver=None if driver is None else registry.cuda_version_text(driver),
        cuda_runtime=registry.cuda_version_text(cuda.cuda_runtime()) if cuda else None,
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


@dataclass(frozen=True)
class OpStatus:
    """How an op runs on a platform: by the native ``target``, or in pure JAX for a ``reason``."""

    op: str
    platform: str
    target: str
    native: bool
    reason: str


@dataclass(frozen=True)
class Diagnosis(DeviceStatus):
    """The result of ``doctor()``: the status of the devices, and how each op runs."""

    backend: str
    abi_running: tuple[int, int]
    libraries: tuple[registry.Library, ...]
    ops: tuple[OpStatus, ...]
    jpeg_decoder: str

    @property
    def default_platform(self) -> str:
        """JAX's default platform, as in ``ops``; ``"none"`` if JAX cannot start one."""
        return "cuda" if self.default_backend == "gpu" else self.default_backend

    @property
    def ok(self) -> bool:
        """True if every op runs natively on JAX's default platform."""
        mine = [s for s in self.ops if s.platform == self.default_platform]
        return not self.problems and bool(mine) and all(s.native for s in mine)

    def as_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        # A library's loaded module cannot be converted.
        libraries = [{k: v for k, v in vars(x).items() if k != "loaded"} for x in self.libraries]
        names = {"ok": self.ok, "default_platform": self.default_platform}
        return {**names, **vars(self), "libraries": libraries}

    def __str__(self) -> str:
        lines = ["jaxkern doctor", "", *self._lines()]
        lines += [f"  {'backend':<20}{self.backend}", f"  {'JPEG decoder':<20}{self.jpeg_decoder}"]
        lines += ["", "libraries (XLA FFI {}.{} is running)".format(*self.abi_running)]
        for library in self.libraries:
            built = "built for FFI {}.{}".format(*library.abi) if library.abi else "not loaded"
            state = library.problem or f"in use, {len(library.targets)} targets"
            lines.append(f"  {library.module} [{library.platform}] {built}: {state}")
        lines += ["", "ops"]
        for status in self.ops:
            how = f"native {status.target}" if status.native else f"pure JAX ({status.reason})"
            lines.append(f"  {status.op} on {status.platform}: {how}")
        lines += ["", "FFI targets. After 'No FFI handler registered for NAME' import its package."]
        lines += [f"  {target} [{x.platform}]" for x in self.libraries for target in x.targets]
        return "\n".join(lines)

    __repr__ = __str__


def doctor() -> Diagnosis:
    """Report for every op and platform which implementation runs, and why.

    Asks JAX for its default platform, which starts its backends.

    Returns:
      A `Diagnosis`: printable, and structured (``.ok``, ``.ops``, ``.libraries``, ...).

    Example:
      >>> import jaxkern as jk
      >>> jk.doctor().backend
      'auto'
    """
    from jaxkern import image  # noqa: F401 (declares its ops)
    from jaxkern.pipeline.sources.images.decoding import jpeg_decoding

    # First, because it starts the backend, which checks the CUDA module against the GPUs.
    status, backend = get_device_status(), current_backend()
    statuses = []
    for op in ops().values():
        for name in op.platforms:
            missing = registry.missing(op.target, name)
            if backend == "jax":
                missing = "the backend is 'jax'"
            statuses.append(OpStatus(op.name, name, op.target, missing is None, missing or ""))
    decoder, is_native, reason = jpeg_decoding()
    return Diagnosis(
        **vars(status),
        backend=backend,
        abi_running=registry.running_abi(),
        libraries=tuple(registry.libraries()),
        ops=tuple(statuses),
        jpeg_decoder=f"{decoder}, linked"
        if is_native
        else f"not native: {reason}; {decoder} decodes in worker threads",
    )
