"""``benchmark_device_performance``: the machine's ceilings, and a g2 kernel under them."""

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
from jaxkern.core.client import start_backend
from jaxkern.core.op import ops
from jaxkern.core.timing import call_seconds


@dataclass(frozen=True)
class DevicePerformance:
    """Ceilings of a device and the two-time correlation of ``size`` frames on it.

    Attributes:
      seconds: of one call that makes ``size`` squared points in ``dtype``.
      points_per_second, bytes_per_second, flops_per_second: by the kernel's own cost model.
      ceiling: the most operations a second that the ceilings allow at its intensity.
      native: whether the kernel ran; else pure JAX did, for the ``reason``.
    """

    ceilings: Ceilings
    size: int
    dtype: str
    seconds: float
    points_per_second: float
    bytes_per_second: float
    flops_per_second: float
    ceiling: float
    native: bool
    reason: str | None

    @property
    def efficiency(self) -> float:
        """Operations a second as a share of the ceiling; above 1 for data in the caches."""
        return self.flops_per_second / self.ceiling

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        found = dataclasses.asdict(self)
        return found | {"ceilings": self.ceilings.as_dict(), "efficiency": self.efficiency}

    def __str__(self) -> str:
        how = "native kernel" if self.native else f"pure JAX: {self.reason}"
        return "\n".join(
            [
                str(self.ceilings),
                "",
                f"two-time g2 of {self.size} frames in {self.dtype} ({how})",
                f"  {1e3 * self.seconds:.3g} ms, {self.points_per_second / 1e6:.4g} M points/s",
                f"  {self.bytes_per_second / 1e9:.3g} GB/s, {self.flops_per_second / 1e9:.3g} "
                f"GFLOP/s, {100 * self.efficiency:.3g}% of the ceiling",
            ]
        )


def benchmark_device_performance(
    device: jax.Device | None = None, *, size: int = 2048, refresh: bool = False
) -> DevicePerformance:
    """Measures a device: memory and arithmetic by the probes, and a g2 kernel of jaxkern.xpcs.

    Args:
      device: JAX's; the default one when None.
      size: frames of the correlation, 2 or more: ``size`` squared points.
      refresh: runs the probes even where this machine's figures are kept on disk.

    Raises:
      ValueError: for a size below 2.
      RuntimeError, NotImplementedError: where JAX cannot start a device, or it cannot be probed.

    Example:
      >>> import jaxkern.device
      >>> jaxkern.device.benchmark_device_performance(size=128).native
      True
    """
    size = check_integer("size", size, 2)
    if device is None:
        start_backend()
        (device,) = jnp.zeros(()).devices()
    roof = ceilings(device, refresh=refresh)
    from jaxkern import xpcs  # noqa: F401, declares the op; here, since its import takes a while

    op = ops()["jaxkern.two_time_g2"]
    # A made-up sample: phases that grow along the frames, a contrast and an offset.
    phases = jnp.linspace(0.0, 3.0, size, dtype=jnp.float32)
    # Committed: a program of others runs on the default device, wherever they are.
    operands = jax.device_put((phases, 2 * phases, jnp.float32(0.3), jnp.float32(1.0)), device)
    run = jax.jit(lambda *x: op(*x, shear_power=4))
    seconds = statistics.median(call_seconds(run, *operands, calls=5, seconds=0.3))
    (call,) = op_calls(run.trace(*operands).jaxpr)
    cost, reason = call.cost, call.problem(roof.platform)
    if cost.flops is None or cost.bytes is None:
        raise RuntimeError(f"{op.name} declares no cost")
    peak, bandwidth = roof.best.fma_f32, roof.best.bandwidth
    return DevicePerformance(
        ceilings=roof,
        size=size,
        dtype="float32",
        seconds=seconds,
        points_per_second=size**2 / seconds,
        bytes_per_second=cost.bytes / seconds,
        flops_per_second=cost.flops / seconds,
        ceiling=min(peak, cost.flops / cost.bytes * bandwidth),
        native=reason is None,
        reason=reason,
    )
