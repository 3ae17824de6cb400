"""``configure_optimal_device``: where arrays are made, and how much of it this process takes."""

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
    """What `configure_optimal_device` chose: ``notes`` says what differs from what was asked."""

    platform: str
    device: str
    memory_fraction: float | None
    cpu_threads: int
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        fraction = "as JAX has it" if self.memory_fraction is None else self.memory_fraction
        lines = [
            f"new arrays go to {self.device}",
            f"GPU memory: {fraction}",
            f"threads of CPU kernels: {self.cpu_threads or 'as many as XLA has'}",
        ]
        return "\n".join([*lines, *(f"note: {note}" for note in self.notes)])


def configure_optimal_device(
    prefer_gpu: bool = True,
    memory_fraction: float | None = None,
    cpu_threads: int | None = None,
    *,
    require: Literal["cpu", "gpu"] | None = None,
) -> DeviceConfiguration:
    """Chooses the device of new arrays: a GPU where there is one, else the CPU, and says which.

    Starts JAX's backends. Call it before anything else does if ``memory_fraction`` is given.

    Args:
      prefer_gpu: takes the CPU when False, or when there is no GPU: the result tells.
      memory_fraction: of each GPU, that JAX takes at its start: above 0 and at most 1.
      cpu_threads: cap on the threads of the CPU kernels, 0 for none; None for what the environment
        says (``JAXKERN_NUM_THREADS``, else SLURM's, the control group's and the affinity's bound).
        XLA's own operations use a pool of the size of the affinity.
      require: ``"gpu"`` or ``"cpu"``: makes it an error where that is not to be had.

    Raises:
      ValueError: for a number out of its range, an unknown ``require``, or one that contradicts
        ``prefer_gpu``.
      RuntimeError: when what is required is not there, when JAX cannot start a device, or when a
        GPU has started before its memory fraction was set.

    Example:
      >>> import jaxkern.device
      >>> jaxkern.device.configure_optimal_device(prefer_gpu=False).platform
      'cpu'
    """
    if require not in (None, "cpu", "gpu"):
        raise ValueError(f"require is {require!r}; wanted 'cpu', 'gpu' or None")
    if require == "gpu" and not prefer_gpu:
        raise ValueError("require is 'gpu' and prefer_gpu is False; wanted one or the other")
    if cpu_threads is not None:
        cpu_threads = check_integer("cpu_threads", cpu_threads, 0, MAX_THREADS)
    if memory_fraction is not None:
        set_memory_fraction(memory_fraction)
    start_backend()
    notes = []
    device = None
    if require != "cpu" and prefer_gpu:
        device, problem = _first_gpu()
        if device is None and require == "gpu":
            raise RuntimeError(
                f"a GPU is required and JAX has none: {problem}; install jax with its CUDA plugin "
                "(pip install 'jax[cuda13]'), look at nvidia-smi and JAX_PLATFORMS, or leave "
                "require away to take the CPU"
            )
        if device is None:
            notes.append(f"a GPU is preferred and JAX has none ({problem}): the CPU is taken")
    if device is None:
        device = _first_cpu()
        if memory_fraction is not None:
            notes.append("the memory fraction is for GPUs: nothing of this process uses one now")
    jax.config.update("jax_default_device", device)
    threads = worker_cap() if cpu_threads is None else cpu_threads
    registry.set_max_workers(threads)
    if registry.module("cpu") is None:
        notes.append(f"there are no CPU kernels to cap: {registry.missing('', 'cpu')}")
    return DeviceConfiguration(
        platform=device.platform,
        device=str(device),
        memory_fraction=memory_fraction,
        cpu_threads=threads,
        notes=tuple(notes),
    )


def _first_cpu() -> jax.Device:
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError as error:
        wanted = requested_platforms()
        raise BackendError(
            f"the CPU is wanted and JAX may not start it: JAX_PLATFORMS is {wanted!r}; set "
            f"JAX_PLATFORMS={wanted},cpu, or unset it"
        ) from error


def _first_gpu() -> tuple[jax.Device | None, str]:
    try:
        # On a cluster jax.devices() begins with those of another process.
        return jax.local_devices(backend="gpu")[0], ""
    except RuntimeError as error:
        lines = str(error).splitlines()
        return None, lines[0] if lines else "no reason is given"
