"""``configure_optimal_device``: the default device, its share of memory, and the kernel threads."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import jax

from jaxkern.core import registry
from jaxkern.core.arguments import check_integer
from jaxkern.core.client import (
    BackendError,
    requested_platforms,
    set_memory_fraction,
    start_backend,
)
from jaxkern.core.threads import MAX_THREADS, worker_cap


@dataclass(frozen=True)
class DeviceConfiguration:
    """The result of `configure_optimal_device`.

    Attributes:
      platform, device: the device of new arrays.
      memory_fraction: share of GPU memory that was requested; None for JAX's default.
      cpu_threads: limit on the threads of the CPU kernels; 0 for no limit.
      notes: differences from the request.

    Example:
      >>> import jaxkern.device
      >>> configuration = jaxkern.device.configure_optimal_device(prefer_gpu=False)
      >>> configuration.platform, configuration.memory_fraction
      ('cpu', None)
    """

    platform: str
    device: str
    memory_fraction: float | None
    cpu_threads: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return all fields for JSON."""
        return dataclasses.asdict(self)


def configure_optimal_device(
    prefer_gpu: bool = True,
    memory_fraction: float | None = None,
    cpu_threads: int | None = None,
    *,
    require: Literal["cpu", "gpu"] | None = None,
) -> DeviceConfiguration:
    """Select the device of new arrays: a GPU if there is one, else the CPU.

    Starts JAX's backends. With ``memory_fraction`` it must be called before anything else does.

    Args:
      prefer_gpu: False selects the CPU. Without a GPU the CPU is selected, and ``notes`` says so.
      memory_fraction: share of each GPU's memory that JAX allocates at its start, above 0 and at
        most 1.
      cpu_threads: maximum number of threads of the CPU kernels, 0 for no limit; None for the limit
        of the environment, see `jaxkern.core.threads.num_threads`.
      require: ``"gpu"`` or ``"cpu"``: raise an error if it is not available.

    Raises:
      ValueError: if an argument is invalid, or ``require`` contradicts ``prefer_gpu``.
      RuntimeError: if the required device does not exist, JAX cannot start a device, or a GPU
        started before its memory fraction was set.

    Example:
      >>> import jaxkern.device
      >>> jaxkern.device.configure_optimal_device(prefer_gpu=False).platform
      'cpu'
    """
    if require not in (None, "cpu", "gpu"):
        raise ValueError(f"require: expected 'cpu', 'gpu' or None, got {require!r}")
    if require == "gpu" and not prefer_gpu:
        raise ValueError("require='gpu' contradicts prefer_gpu=False")
    if cpu_threads is not None:
        cpu_threads = check_integer("cpu_threads", cpu_threads, 0, MAX_THREADS)
    if memory_fraction is not None:
        set_memory_fraction(memory_fraction)
    start_backend()
    notes = []
    device = None
    if require != "cpu" and prefer_gpu:
        try:
            # Not jax.devices(), which on a cluster begins with the devices of another process.
            device = jax.local_devices(backend="gpu")[0]
        except RuntimeError as error:
            problem = next(iter(str(error).splitlines()), "without a reason")
            if require == "gpu":
                raise RuntimeError(
                    f"require='gpu', but JAX has no GPU: {problem}; install jax[cuda13], and check "
                    "nvidia-smi and JAX_PLATFORMS"
                ) from error
            notes.append(f"JAX has no GPU ({problem}): the CPU is used")
    if device is None:
        try:
            device = jax.local_devices(backend="cpu")[0]
        except RuntimeError as error:
            platforms = requested_platforms()
            raise BackendError(
                f"the CPU is excluded: JAX_PLATFORMS is {platforms!r}; set "
                f"JAX_PLATFORMS={platforms},cpu, or unset it"
            ) from error
        if memory_fraction is not None:
            notes.append("the memory fraction has no effect, because it applies to GPUs")
    jax.config.update("jax_default_device", device)
    threads = worker_cap() if cpu_threads is None else cpu_threads
    registry.set_max_workers(threads)
    if registry.module("cpu") is None:
        notes.append(f"the CPU kernels are not loaded: {registry.missing('', 'cpu')}")
    name = str(device)
    return DeviceConfiguration(device.platform, name, memory_fraction, threads, tuple(notes))
