"""``benchmark_device_performance``: the ceilings of a device, and the rate of a g2 kernel."""

from __future__ import annotations

import dataclasses
import statistics
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from jaxkern.core.arguments import check_integer
from jaxkern.core.calls import op_calls
from jaxkern.core.ceilings import Ceilings, ceilings
from jaxkern.core.client import default_device, start_backend
from jaxkern.core.timing import call_seconds


@dataclass(frozen=True)
class DevicePerformance:
    """Ceilings of a device, and the rate of a two-time correlation of ``size`` frames on it.

    Attributes:
      size: number of frames; ``size`` squared points are computed in float32.
      seconds: time of one call.
      points_per_second, bytes_per_second, flops_per_second: by the kernel's cost model.
      ceiling: maximum operations per second at the kernel's intensity.
      native: True if the native kernel ran; else ``reason`` says why the fallback ran.
    """

    ceilings: Ceilings
    size: int
    seconds: float
    points_per_second: float
    bytes_per_second: float
    flops_per_second: float
    ceiling: float
    native: bool
    reason: str | None
    dtype: str = "float32"

    @property
    def efficiency(self) -> float:
        """Operations per second divided by the ceiling; above 1 for data in the caches."""
        return self.flops_per_second / self.ceiling

    def as_dict(self) -> dict[str, Any]:
        """Return all figures for JSON."""
        return dataclasses.asdict(self) | {"efficiency": self.efficiency}

    def __str__(self) -> str:
        how = "native kernel" if self.native else f"pure JAX: {self.reason}"
        return (
            f"{self.ceilings}\n\n"
            f"two-time g2 of {self.size} frames ({how})\n"
            f"  {1e3 * self.seconds:.3g} ms, {self.points_per_second / 1e6:.4g} M points/s\n"
            f"  {self.bytes_per_second / 1e9:.3g} GB/s, {self.flops_per_second / 1e9:.3g} GFLOP/s, "
            f"{100 * self.efficiency:.3g}% of the ceiling"
        )


def benchmark_device_performance(
    device: jax.Device | None = None, *, size: int = 2048, refresh: bool = False
) -> DevicePerformance:
    """Measure a device: memory and arithmetic by native probes, and a g2 kernel of jaxkern.xpcs.

    Args:
      device: device of JAX; None for the default one.
      size: number of frames of the correlation, at least 2.
      refresh: run the probes even if this machine's ceilings are cached.

    Raises:
      ValueError: if the size is below 2.
      RuntimeError, NotImplementedError: if JAX cannot start a device, or it cannot be probed.

    Example:
      >>> import jaxkern.device
      >>> jaxkern.device.benchmark_device_performance(size=128).native
      True
    """
    size = check_integer("size", size, 2)
    start_backend()
    device = default_device() if device is None else device
    roof = ceilings(device, refresh=refresh)
    from jaxkern import xpcs  # imported here because it is slow

    # Arbitrary operands: phases that grow along the frames, a contrast and a baseline.
    phases = jnp.linspace(0.0, 3.0, size, dtype=jnp.float32)
    # Committed to the device; otherwise the program would run on the default device.
    operands = jax.device_put((phases, 2 * phases, jnp.float32(0.3), jnp.float32(1.0)), device)
    run = jax.jit(lambda *x: xpcs.ops.two_time_g2(*x, shear_power=4))
    seconds = statistics.median(call_seconds(run, *operands, calls=5, seconds=0.3))
    (call,) = op_calls(run.trace(*operands).jaxpr)
    (flops, moved), reason = call.cost, call.problem(roof.platform)
    assert flops is not None  # the op declares its cost
    assert moved is not None
    return DevicePerformance(
        ceilings=roof,
        size=size,
        seconds=seconds,
        points_per_second=size**2 / seconds,
        bytes_per_second=moved / seconds,
        flops_per_second=flops / seconds,
        ceiling=min(roof.best.fma_f32, flops / moved * roof.best.bandwidth),
        native=reason is None,
        reason=reason,
    )
