"""A segment of a chain that is still open: what it does so far, before it is an op's operands."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Axis, Number, clip, maximum, minimum
from jaxkern.image.chain.plan import Filter, Padding, Rounding

Values = Any  # per-channel values [C]: float64 NumPy where known, else a traced float32 array


def channel_values(value: Any, channels: int, name: str) -> Values:
    """`value` (a number, or one per channel) as an array [channels]."""
    if isinstance(value, jax.Array):
        array: Any = value.astype(jnp.float32)
    else:
        array = np.asarray(value, np.float64)
    if array.ndim > 1 or (array.ndim == 1 and array.shape[0] not in (1, channels)):
        raise ValueError(
            f"{name} has shape {array.shape}, but the images have {channels} channels; "
            f"give one number or {channels}"
        )
    if isinstance(array, np.ndarray):
        return np.broadcast_to(array.reshape(-1), (channels,))
    return jnp.broadcast_to(array.reshape(-1), (channels,))


def equal_values(a: Values, b: Values) -> bool:
    """Whether both are known to be the same."""
    if a is b:
        return True
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)


class OpenSegment:
    """One segment under construction, with everything in the coordinates of its output."""

    def __init__(self, height: Number, width: Number, channels: int) -> None:
        self.filter = Filter.NONE
        self.rows = Axis.whole(height)
        self.columns = Axis.whole(width)
        self.scale: Values = np.ones(channels)
        self.bias: Values = np.zeros(channels)
        self.fill: Values | None = None
        self.may_miss = False  # a crop at run-time places of what is not plain may leave it
        self.erasures: list[tuple[tuple[Number, Number, Number, Number], Values]] = []
        self.rounding = Rounding.KEEP
        self.padding = Padding.CONSTANT

    def is_identity(self) -> bool:
        """Whether the segment's output is its input (rounding aside)."""
        axes = (self.rows, self.columns)
        return (
            self.filter is Filter.NONE
            and not self.erasures
            and all(axis.identity for axis in axes)
            and equal_values(self.scale, np.ones_like(self.scale))
            and equal_values(self.bias, np.zeros_like(self.bias))
        )

    def geometry(self) -> list[Number]:
        """The fields of plan.h's Geometry, in order."""
        r, c = self.rows, self.columns
        return [
            *(r.box_start, c.box_start, r.box_size, c.box_size, r.resampled, c.resampled),
            *(r.valid_start, c.valid_start, r.valid_stop, c.valid_stop),
            *(r.offset, r.step, c.offset, c.step),
        ]

    def clip_erasures(self) -> None:
        """Before the image moves: what lies outside must not move in, nor out of int32."""
        size = self.rows.size, self.columns.size
        self.erasures = [(_clipped(box, size), value) for box, value in self.erasures]


def _clipped(
    box: tuple[Number, Number, Number, Number], size: tuple[Number, Number]
) -> tuple[Number, Number, Number, Number]:
    """The part of a box inside an image; parts outside must not show where the image is padded."""
    sides = []
    for start, length, whole in ((box[0], box[2], size[0]), (box[1], box[3], size[1])):
        first = clip(start, 0, whole)
        # Start and length are never added where both are positive: the sum may leave int32.
        inside = minimum(start, 0) + maximum(length, 0)
        sides.append((first, clip(inside, 0, whole - first)))
    (top, height), (left, width) = sides
    return top, left, height, width
