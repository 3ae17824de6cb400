"""How the memory of a slot becomes arrays where a ring delivers: without a copy on the CPU."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jaxkern.core import compat
from jaxkern.core.client import default_device
from jaxkern.ring.structure import Structure, packed


class Delivery:
    """How leaves become arrays where the ring delivers."""

    def __init__(self, structure: Structure, device: Any):
        self._structure, self._device = structure, device
        one = one_device(device)
        self.zero_copy = one is not None and one.platform == "cpu"
        self._one = one
        self._arrays = len(structure.leaves)
        self._packed = sum(packed(leaf.dtype) for leaf in structure.leaves)

    def batch(self, leaves: list[Any]) -> tuple[Any, tuple[int, int]]:
        """The pytree of arrays; how many of them are the slot's memory, and how many copies."""
        if self.zero_copy:
            arrays = [self._own(i, leaf) for i, leaf in enumerate(leaves)]
            counts = self._arrays - self._packed, self._packed
        else:
            # JAX keeps the host array, and that the slot, until the transfer has ended.
            arrays = jax.device_put(self._structure.views(leaves), self._device or self._one)
            counts = 0, self._arrays
        return self._structure.treedef.unflatten(arrays), counts

    def _own(self, i: int, leaf: Any) -> jax.Array:
        if isinstance(leaf, np.ndarray):  # a dtype that DLPack has no code for
            struct = self._structure.leaves[i]
            view = leaf.view(struct.dtype).reshape(struct.shape)
            placed: jax.Array = jax.device_put(view, self._one)
            return placed
        return compat.array_from_dlpack(leaf, self._one)


def one_device(device: Any) -> Any:
    """The single device that arrays go to, or None."""
    if device is None:
        return default_device()
    if isinstance(device, jax.sharding.Sharding):
        devices = list(device.device_set)
        return devices[0] if len(devices) == 1 and device.memory_kind is None else None
    return device
