"""Batch axes of an op's operands: the leading axes, each of full size or of size 1 (broadcast)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

Struct = jax.ShapeDtypeStruct


def as_tuple(x: Any) -> tuple[Any, ...]:
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def nbytes(x: Any) -> int:
    return int(math.prod(x.shape) * np.dtype(x.dtype).itemsize)


def core_structs(operands: Sequence[Any], batch_dims: int) -> list[Struct]:
    for i, x in enumerate(operands):
        if len(x.shape) < batch_dims:
            raise ValueError(
                f"operand {i} has shape {tuple(x.shape)}, which lacks the {batch_dims} leading "
                "batch axes; use axes of size 1 for an operand that all samples share"
            )
    return [Struct(x.shape[batch_dims:], x.dtype) for x in operands]


def batch_shape(operands: Sequence[Any], batch_dims: int) -> tuple[int, ...]:
    shape = []
    for axis in range(batch_dims):
        sizes = {x.shape[axis] for x in operands}
        full = sizes - {1} or {1}
        if len(full) > 1:
            raise ValueError(
                f"batch axis {axis} has sizes {[x.shape[axis] for x in operands]} over the "
                "operands; expected equal sizes, or size 1 for an operand that all samples share"
            )
        shape.append(full.pop())
    return tuple(shape)
