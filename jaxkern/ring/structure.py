"""What a ring's batches look like: leaves of fixed shapes and dtypes in a fixed tree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# DLPack's type codes, by NumPy's kind. JAX's remaining dtypes go through NumPy arrays.
_DLPACK_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_DLPACK_BFLOAT = 4


class Structure:
    """The tree of a batch, and the checks of one."""

    def __init__(self, struct: Any):
        leaves, treedef = jax.tree.flatten(struct)
        self.treedef: Any = treedef
        self.leaves = [_leaf(i, leaf) for i, leaf in enumerate(leaves)]
        paths = jax.tree_util.tree_flatten_with_path(struct)[0]
        self.names = [f"batch{jax.tree_util.keystr(path)}" for path, _ in paths]

    def native(self) -> list[tuple[str, int, tuple[int, ...], int]]:
        """(dtype, item size, shape, DLPack type code or -1) of each leaf, for the native ring."""
        return [
            (leaf.dtype.name, leaf.dtype.itemsize, leaf.shape, _dlpack_code(leaf.dtype))
            for leaf in self.leaves
        ]

    @property
    def bytes(self) -> int:
        """Of a batch."""
        return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in self.leaves)

    def tree(self) -> Any:
        """The pytree of ``jax.ShapeDtypeStruct``."""
        return self.treedef.unflatten(self.leaves)

    def buffers(self, batch: Any) -> list[Any]:
        """The leaves of a batch as contiguous buffers; raises where it differs from the ring's."""
        return [
            _buffer(name, leaf, want)
            for name, leaf, want in zip(self.names, self._flatten(batch), self.leaves, strict=True)
        ]

    def _flatten(self, batch: Any) -> list[Any]:
        leaves, treedef = jax.tree.flatten(batch)
        if treedef != self.treedef:
            raise ValueError(
                f"the batch has the structure {treedef}; the ring wants {self.treedef}"
            )
        return leaves

    def program_leaves(self, batch: Any) -> list[jax.Array]:
        """The leaves of a batch of a traced program; raises where it differs from the ring's."""
        leaves = [jnp.asarray(leaf) for leaf in self._flatten(batch)]
        for name, leaf, want in zip(self.names, leaves, self.leaves, strict=True):
            if leaf.shape != want.shape or leaf.dtype != want.dtype:
                raise ValueError(
                    f"{name} is {leaf.dtype}{list(leaf.shape)}; the ring wants "
                    f"{want.dtype}{list(want.shape)}"
                )
        return leaves

    def views(self, slots: Sequence[Any]) -> list[np.ndarray]:
        """Arrays of the leaves' shapes and dtypes over bytes."""
        return [
            memory.view(leaf.dtype).reshape(leaf.shape)
            for memory, leaf in zip(slots, self.leaves, strict=True)
        ]


def _leaf(position: int, leaf: Any) -> jax.ShapeDtypeStruct:
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        raise TypeError(
            f"leaf {position} of the ring's structure is {leaf!r}; wanted jax.ShapeDtypeStruct, or "
            "an array of the shape and dtype that each batch has"
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        raise TypeError(
            f"leaf {position} of the ring's structure has dtype {leaf.dtype}, which is not host "
            "memory; put jax.random.key_data(keys) and wrap it again behind the ring"
        )
    number = jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool
    if not number or not np.dtype(leaf.dtype).isnative:
        raise TypeError(
            f"leaf {position} of the ring's structure has dtype {leaf.dtype}; wanted numbers or "
            "bools in the machine's byte order"
        )
    # As jnp.asarray would: 64-bit types only where JAX has them enabled.
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct(tuple(int(n) for n in leaf.shape), dtype)


def packed(dtype: np.dtype) -> bool:
    """Whether JAX keeps several numbers in a byte, which NumPy does not."""
    return dtype.name.endswith(("int4", "uint4", "int2", "uint2", "float4_e2m1fn"))


def _dlpack_code(dtype: np.dtype) -> int:
    if dtype.name == "bfloat16":
        return _DLPACK_BFLOAT
    return _DLPACK_CODES.get(dtype.kind, -1) if dtype.isbuiltin == 1 else -1


def _buffer(name: str, leaf: Any, want: jax.ShapeDtypeStruct) -> Any:
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jnp.issubdtype(dtype, jax.dtypes.extended):
        raise ValueError(f"{name} has dtype {dtype}; the ring wants {want.dtype}")
    array = leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)
    if array.shape != want.shape:
        raise ValueError(f"{name} has shape {array.shape}; the ring wants {want.shape}")
    if array.dtype != want.dtype:
        if jax.dtypes.canonicalize_dtype(array.dtype) != want.dtype:
            raise ValueError(f"{name} has dtype {array.dtype}; the ring wants {want.dtype}")
        array = array.astype(want.dtype)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    # Types beyond NumPy's own do not export a buffer.
    return array if array.dtype.isbuiltin == 1 else array.reshape(-1).view(np.uint8)
