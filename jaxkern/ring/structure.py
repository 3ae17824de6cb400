"""The structure of a ring's batches, and the delivery of slots as JAX arrays."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core import compat
from jaxkern.core.client import default_device

# DLPack type codes by NumPy kind. Other dtypes of JAX are delivered through NumPy arrays.
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_DLPACK_BFLOAT = 4


class Structure:
    """The pytree of shapes and dtypes of a batch; it checks and delivers batches."""

    def __init__(self, struct: Any, device: Any = None):
        self._device = device
        leaves, treedef = jax.tree.flatten(struct)
        self.treedef: Any = treedef
        self.leaves = [_leaf(i, leaf) for i, leaf in enumerate(leaves)]
        paths = jax.tree_util.tree_flatten_with_path(struct)[0]
        self.names = [f"batch{jax.tree_util.keystr(path)}" for path, _ in paths]

    def native(self) -> list[tuple[str, int, tuple[int, ...], int]]:
        """Return (dtype, item size, shape, DLPack type code or -1) of each leaf."""
        return [
            (leaf.dtype.name, leaf.dtype.itemsize, leaf.shape, _dlpack_code(leaf.dtype))
            for leaf in self.leaves
        ]

    @property
    def bytes(self) -> int:
        """Return the size of a batch in bytes."""
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.leaves)

    def tree(self) -> Any:
        """Return the pytree of ``jax.ShapeDtypeStruct``."""
        return self.treedef.unflatten(self.leaves)

    def buffers(self, batch: Any) -> list[Any]:
        """Return the leaves of a batch as contiguous buffers; raise if they do not match."""
        return [*map(_buffer, self.names, self._flatten(batch), self.leaves)]

    def _flatten(self, batch: Any) -> list[Any]:
        leaves, treedef = jax.tree.flatten(batch)
        if treedef != self.treedef:
            raise ValueError(f"the batch has the structure {treedef}; the ring has {self.treedef}")
        return leaves

    def program_leaves(self, batch: Any) -> list[jax.Array]:
        """Return the leaves of a batch in a traced program; raise if they do not match."""
        leaves = [jnp.asarray(leaf) for leaf in self._flatten(batch)]
        for name, leaf, spec in zip(self.names, leaves, self.leaves, strict=True):
            if leaf.shape != spec.shape or leaf.dtype != spec.dtype:
                kinds = [f"{each.dtype}{list(each.shape)}" for each in (leaf, spec)]
                raise ValueError(f"{name} is {kinds[0]}; the ring has {kinds[1]}")
        return leaves

    def views(self, slots: Sequence[Any]) -> list[np.ndarray]:
        """Return arrays of the leaves' shapes and dtypes that view the bytes of a slot."""
        return [*map(_view, slots, self.leaves)]

    @functools.cached_property
    def _one(self) -> Any:  # lazy, because it initializes the JAX backend
        return one_device(self._device)

    @functools.cached_property
    def zero_copy(self) -> bool:
        """True if arrays share the slot's memory."""
        return self._one is not None and self._one.platform == "cpu"

    @functools.cached_property
    def copied(self) -> int:
        """The number of leaves that `deliver` copies."""
        leaves = self.leaves
        return sum(packed(leaf.dtype) for leaf in leaves) if self.zero_copy else len(leaves)

    def deliver(self, slots: list[Any]) -> Any:
        """Return the pytree of arrays on the device."""
        if self.zero_copy:
            arrays = [*map(self._zero_copy, slots, self.leaves)]
        else:
            # JAX references the host array, and so the slot, until the transfer is complete.
            arrays = jax.device_put(self.views(slots), self._device or self._one)
        return self.treedef.unflatten(arrays)

    def _zero_copy(self, slot: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        if isinstance(slot, np.ndarray):  # a dtype without a DLPack code
            return jax.device_put(_view(slot, leaf), self._one)
        return compat.array_from_dlpack(slot, self._one)


def _view(memory: np.ndarray, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
    return memory.view(leaf.dtype).reshape(leaf.shape)


def one_device(device: Any) -> Any:
    """Return the single device of a device or sharding, or None if there are several."""
    if device is None:
        return default_device()
    if isinstance(device, jax.sharding.Sharding):
        devices = list(device.device_set)
        return devices[0] if len(devices) == 1 and device.memory_kind is None else None
    return device


def _leaf(position: int, leaf: Any) -> jax.ShapeDtypeStruct:
    name = f"leaf {position} of the ring's structure"
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(f"{name} is {leaf!r}; expected an array or jax.ShapeDtypeStruct")
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise TypeError(f"{name} has dtype {leaf.dtype}; put jax.random.key_data(keys) instead")
    number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool
    if not number or not np.dtype(leaf.dtype).isnative:
        raise TypeError(f"{name} has dtype {leaf.dtype}; expected native numbers or bools")
    # As in jnp.asarray: 64-bit types only if JAX has them enabled.
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct(tuple(int(n) for n in leaf.shape), dtype)


def packed(dtype: np.dtype) -> bool:
    """True if JAX packs several numbers of this dtype into a byte, unlike NumPy."""
    return dtype.name.endswith(("int4", "uint4", "int2", "uint2", "float4_e2m1fn"))


def _dlpack_code(dtype: np.dtype) -> int:
    if dtype.name == "bfloat16":
        return _DLPACK_BFLOAT
    return _DLPACK_CODES.get(dtype.kind, -1) if dtype.isbuiltin == 1 else -1


def _buffer(name: str, leaf: Any, spec: jax.ShapeDtypeStruct) -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended):
        raise ValueError(f"{name} has dtype {dtype}; the ring has {spec.dtype}")
    array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    if array.shape != spec.shape:
        raise ValueError(f"{name} has shape {array.shape}; the ring has {spec.shape}")
    if array.dtype != spec.dtype:
        if jax.dtypes.canonicalize_dtype(array.dtype) != spec.dtype:
            raise ValueError(f"{name} has dtype {array.dtype}; the ring has {spec.dtype}")
        array = array.astype(spec.dtype)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    # Only NumPy's own dtypes export a buffer.
    return array if array.dtype.isbuiltin == 1 else array.reshape(-1).view(np.uint8)
