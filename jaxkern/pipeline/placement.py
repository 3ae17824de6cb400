"""Where batches go: a device, or a sharding over a mesh."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import jax

from jaxkern.pipeline.prefetch import Prefetcher, prefetch_to_device


def cpu_device() -> jax.Device | None:
    """The CPU; None where JAX was told to do without (``JAX_PLATFORMS=cuda``)."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


@dataclass(frozen=True)
class DevicePlacement:
    """Puts pytrees of arrays on a device or over a mesh.

    Attributes:
      target: a ``jax.Device``, a ``jax.sharding.Sharding``, or a pytree of them that is a prefix of
        the batches; None for JAX's default device.

    Example:
      >>> import jax, numpy as np, jaxkern as jk
      >>> placement = jk.DevicePlacement(jax.devices()[0])
      >>> [int(x) for x in placement.prefetch_to_device(iter([np.int32(1), np.int32(2)]))]
      [1, 2]
    """

    target: Any = None

    def put(self, batch: Any) -> Any:
        """The pytree as ``jax.Array`` at the target; may return before the transfer has ended."""
        return jax.device_put(batch, self.target)

    def prefetch_to_device(self, iterator: Iterable[Any], buffer_size: int = 2) -> Prefetcher:
        """`jaxkern.prefetch_to_device` with this placement."""
        return prefetch_to_device(iterator, buffer_size, self.target)
