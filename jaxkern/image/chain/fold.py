"""Folds a list of image transforms into as few segments as their semantics allow.

A transform calls the methods of `ChainBuilder` in order. Each either changes the open segment or,
where it does not commute with what the segment already does, closes it and opens another.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.explicit import batch_sharding, explicit_axes, in_auto_mode
from jaxkern.image.chain.axis import Axis, Number, clip, is_static, maximum, minimum, plus, times
from jaxkern.image.chain.plan import (
    MAX_ERASURES,
    MAX_PIXELS,
    MAX_SEGMENTS,
    MAX_SIZE,
    ChainPlan,
    Dtype,
    Filter,
    Layout,
    Operands,
    Padding,
    Rounding,
    Segment,
)

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


class ChainBuilder:
    """Collects transforms of one chain. Sizes are ints, or int32 arrays [N] for ragged batches.

    `levels` says that values are u8 levels, 0 to 255, and `integral` that they are whole numbers.
    `scale` decides whether levels become x / 255 where a float image is implied. Where sizes that
    differ are `bounded`, images lie at the top left of a canvas of that size wherever a common size
    is needed. `largest` is what the sizes of a ragged batch are at most.
    """

    def __init__(
        self,
        height: Number,
        width: Number,
        channels: int,
        dtype: Dtype,
        scale: bool = True,
        largest: tuple[int, int] | None = None,
    ) -> None:
        self.channels = channels
        self.source_dtype = dtype
        self.levels = self.integral = dtype is Dtype.U8
        self.scale = scale
        self.bounded: tuple[int, int] | None = None
        self.beyond: Values = np.zeros(channels)
        self._done: list[OpenSegment] = []
        self._open = OpenSegment(height, width, channels)
        self._of_source = (height, width, largest)

    @property
    def size(self) -> tuple[Number, Number]:
        """Current height and width."""
        return self._open.rows.size, self._open.columns.size

    def values(self, value: Any, name: str) -> Values:
        """A number or one number a channel, as [C]."""
        return channel_values(value, self.channels, name)

    def _new_segment(self) -> OpenSegment:
        height, width = self.size
        if not is_static(height, width):
            if self.bounded is None:
                raise ValueError(
                    "the images still differ in size at a transform that needs a common size; "
                    "put RandomResizedCrop, CenterCrop, RandomCrop or Resize((h, w)) before it"
                )
            self._onto_canvas(self.bounded)
        self._done.append(self._open)
        if len(self._done) >= MAX_SEGMENTS:
            raise ValueError(
                f"the chain needs more than {MAX_SEGMENTS} passes; reorder it so that crops and "
                "resizes come before pads and erasures, or split it into two Compose objects"
            )
        self._open = OpenSegment(height, width, self.channels)
        return self._open

    def resample(
        self,
        kind: Filter,
        box: tuple[Number, Number, Number, Number],
        size: tuple[Number, Number],
    ) -> None:
        """Resizes the box (top, left, height, width) of the current image to `size`."""
        segment, (top, left, height, width) = self._open, box
        if is_static(height, width, *size) and (height, width) == tuple(size):
            self.window((top, left), size, None)
            return
        mirrored = not all(
            is_static(axis.flipped) and axis.flipped == 0
            for axis in (segment.rows, segment.columns)
        )
        if (
            segment.filter is not Filter.NONE
            or segment.fill is not None
            or segment.erasures
            or segment.rounding is not Rounding.KEEP
            or segment.padding is not Padding.CONSTANT
            or (kind is Filter.NEAREST and mirrored)  # its ties are not symmetric
        ):
            segment = self._new_segment()
        segment.filter = kind.of_levels() if self.levels else kind
        segment.rows.resample(top, height, size[0])
        segment.columns.resample(left, width, size[1])
        self.bounded = None
        if kind is not Filter.NEAREST:
            self.integral = False

    def window(
        self, start: tuple[Number, Number], size: tuple[Number, Number], fill: Values | None
    ) -> None:
        """Shows `size` pixels from `start`; outside the image is `fill`, None: never outside."""
        segment = self._open
        if fill is not None and _window_inside(start, size, self.size):
            fill = None
        if fill is not None:
            differs = segment.fill is not None and not equal_values(segment.fill, fill)
            if differs or segment.rounding is not Rounding.KEEP:
                segment = self._new_segment()
            segment.fill = fill
            if self.integral and not (
                isinstance(fill, np.ndarray) and np.array_equal(fill, np.round(fill))
            ):
                self.integral = False
        inside = fill is None
        segment.clip_erasures()
        segment.erasures = [
            ((plus(top, times(-1, start[0])), plus(left, times(-1, start[1])), *sides), value)
            for (top, left, *sides), value in segment.erasures
        ]
        plain = segment.rows.plain and segment.columns.plain
        segment.may_miss |= inside and not plain and not is_static(*start)
        segment.rows.window(start[0], size[0], inside)
        segment.columns.window(start[1], size[1], inside)
        self.bounded = None

    def extend(
        self, start: tuple[Number, Number], size: tuple[Number, Number], padding: Padding
    ) -> None:
        """Shows `size` pixels from `start`; `padding` says which stand for those outside."""
        if _window_inside(start, size, self.size):
            self.window(start, size, None)
            return
        segment = self._open
        shows_all = segment.rows.shows_all and segment.columns.shows_all
        moved = segment.padding is not Padding.CONSTANT
        if segment.fill is not None or segment.erasures or moved or not shows_all:
            segment = self._new_segment()
        segment.padding = padding
        segment.rows.extend(start[0], size[0])
        segment.columns.extend(start[1], size[1])

    def flip(self, rows: Number, columns: Number) -> None:
        """Mirrors rows and columns where the given 0/1 numbers say so."""
        segment = self._open
        height, width = self.size
        segment.clip_erasures()
        segment.erasures = [
            (
                (
                    plus(top, times(rows, height - h - 2 * top)),
                    plus(left, times(columns, width - w - 2 * left)),
                    h,
                    w,
                ),
                v,
            )
            for (top, left, h, w), v in segment.erasures
        ]
        segment.rows.flip(rows)
        segment.columns.flip(columns)

    @property
    def limit(self) -> tuple[int, int] | None:
        """What the current height and width are at most, where that is known."""
        height, width = self.size
        of_source, its_width, largest = self._of_source
        if is_static(height, width):
            return height, width
        return largest if height is of_source and width is its_width else self.bounded

    def bound(self, size: tuple[int, int] | None, beyond: Values | None = None) -> None:
        """Says what the current height and width are at most, and what the canvas then shows."""
        self.bounded = size
        self.beyond = np.zeros(self.channels) if beyond is None else beyond

    def _onto_canvas(self, size: tuple[int, int]) -> None:
        """Shows the image at the top left of `size` pixels."""
        segment = self._open
        if segment.padding is not Padding.CONSTANT:
            raise ValueError(
                "a border repeats the pixels of images that still differ in size, and a canvas of "
                'one size follows; wanted padding_mode="constant", or Resize((h, w)) or a crop to '
                "one size before it"
            )
        if segment.fill is None:
            segment.fill = self.beyond
        segment.clip_erasures()
        segment.rows.window(0, size[0], False)
        segment.columns.window(0, size[1], False)

    def affine(self, scale: Values, bias: Values) -> None:
        """value = scale * value + bias."""
        segment = self._open
        if segment.rounding is not Rounding.KEEP:
            segment = self._new_segment()
        segment.scale = segment.scale * scale
        segment.bias = segment.bias * scale + bias
        if segment.fill is not None:
            segment.fill = segment.fill * scale + bias
        segment.erasures = [(box, value * scale + bias) for box, value in segment.erasures]
        self.integral = False

    def erase(self, box: tuple[Number, Number, Number, Number], value: Values) -> None:
        """Paints the box (top, left, height, width) with `value`."""
        if self._open.rounding is not Rounding.KEEP:
            self._new_segment()
        self._open.erasures.append((box, value))
        if not (isinstance(value, np.ndarray) and np.array_equal(value, np.round(value))):
            self.integral = False

    def to_float(self, scale: bool) -> None:
        """Levels become a float image: x / 255, or as they are."""
        if self.levels and scale:
            self.affine(np.full(self.channels, 1 / 255.0), np.zeros(self.channels))
        self.levels = self.integral = False

    def to_u8(self, scale: bool) -> None:
        """Values become whole levels: float values trunc(x * 255.999), levels to the nearest."""
        if self.levels:
            if not self.integral:
                self._open.rounding = Rounding.NEAREST
        else:
            if self._open.rounding is not Rounding.KEEP:
                self._new_segment()
            if scale:
                self.affine(np.full(self.channels, 255.999), np.zeros(self.channels))
            self._open.rounding = Rounding.TRUNCATE
        self.levels = self.integral = True

    def finish(self, dtype: Dtype, layout: Layout) -> tuple[ChainPlan, Operands] | None:
        """The plan and its operands, or None where the chain returns its input as it is."""
        height, width = self.size
        if not is_static(height, width) and self.bounded is not None:
            self._onto_canvas(self.bounded)
            height, width = self.bounded
        if not is_static(height, width):
            raise ValueError(
                "the output's size differs from image to image; end the chain with a fixed size: "
                "RandomResizedCrop, CenterCrop, RandomCrop or Resize((h, w))"
            )
        if dtype is Dtype.U8:
            self.to_u8(self.scale)
            if self._open.rounding is Rounding.KEEP:
                self._open.rounding = Rounding.NEAREST
        else:
            self.to_float(self.scale)
        opened = [*self._done, self._open]
        unchanged = dtype is self.source_dtype and layout is Layout.NHWC
        unrounded = dtype is Dtype.U8 or self._open.rounding is Rounding.KEEP
        if unchanged and unrounded and len(opened) == 1 and self._open.is_identity():
            return None
        erasures = [erasure for segment in opened for erasure in segment.erasures]
        if len(erasures) > MAX_ERASURES:
            raise ValueError(
                f"the chain has {len(erasures)} erasures, at most {MAX_ERASURES} fit in one call; "
                "split it into two Compose objects"
            )
        segments = tuple(
            Segment(
                s.filter,
                int(s.rows.size),
                int(s.columns.size),
                len(s.erasures),
                s.rounding,
                s.padding,
            )
            for s in opened
        )
        for segment in segments:
            if max(segment.height, segment.width) > MAX_SIZE or (
                segment.height * segment.width > MAX_PIXELS
            ):
                raise ValueError(
                    f"the chain makes images of {segment.height} x {segment.width} pixels; wanted "
                    "at most 2**24 on a side and 2**31 in all"
                )
        plan = ChainPlan(segments, self.channels, self.source_dtype, dtype, layout)
        # Nothing reads the fill of a segment without padding. Its values differ because XLA makes a
        # constant of equal ones by a kernel, which takes longer to compile than all the rest.
        unused, zeros = np.arange(self.channels), np.zeros(self.channels)
        operands = Operands(
            geometry=_integers([s.geometry() for s in opened], 14),
            affine=_floats(
                [row for s in opened for row in (s.scale, s.bias)], self.channels
            ).reshape(1, -1, 2, self.channels),
            fill=_floats(
                [s.fill if s.fill is not None else zeros if s.may_miss else unused for s in opened],
                self.channels,
            ),
            erase_box=_integers([list(box) for box, _ in erasures], 4),
            erase_value=_floats([value for _, value in erasures], self.channels),
        )
        return plan, operands

    def finish_open(self) -> tuple[ChainPlan, Operands] | None:
        """As `finish`, for a chain that another one follows: float32 in the same value space."""
        levels, integral, scale = self.levels, self.integral, self.scale
        self.scale = False
        folded = self.finish(Dtype.F32, Layout.NHWC)
        self.levels, self.integral, self.scale = levels, integral, scale
        return folded

    @property
    def rounded_dtype(self) -> Dtype:
        """What `finish_rounded` makes."""
        return Dtype.U8 if self.levels else Dtype.F32

    def finish_rounded(self) -> tuple[ChainPlan, Operands] | None:
        """As `finish`, for a program between chains: levels as uint8, else float32."""
        if not is_static(*self.size):
            raise ValueError(
                "the images still differ in size at a transform that needs a common size; "
                "put RandomResizedCrop, CenterCrop, RandomCrop or Resize((h, w)) before it"
            )
        return self.finish(self.rounded_dtype, Layout.NHWC)

    def following(self, channels: int, dtype: Dtype) -> ChainBuilder:
        """A builder that goes on from here, on what another call made of images."""
        height, width = self.size
        chain = ChainBuilder(height, width, channels, dtype, self.scale)
        chain.levels = self.levels
        return chain


def _window_inside(
    start: tuple[Number, Number], size: tuple[Number, Number], image: tuple[Number, Number]
) -> bool:
    return is_static(*start, *size, *image) and all(
        first >= 0 and first + length <= whole
        for first, length, whole in zip(start, size, image, strict=True)
    )


def _integers(rows: list[list[Number]], fields: int) -> Any:
    """Rows of numbers as int32 [N or 1, rows, fields]; runs of constants become one constant."""
    flat = [number for row in rows for number in row]
    if all(isinstance(number, int) for number in flat):
        return np.asarray(flat, np.int32).reshape(1, len(rows), fields)
    batch = next(number.shape[0] for number in flat if not isinstance(number, int))
    if all(isinstance(number, int | np.ndarray) for number in flat):
        full = [np.broadcast_to(np.asarray(number, np.int32), (batch,)) for number in flat]
        return np.stack(full, axis=-1).reshape(batch, len(rows), fields)
    known = [number if isinstance(number, int) else 0 for number in flat]
    drawn = {k: jnp.asarray(n, jnp.int32) for k, n in enumerate(flat) if not isinstance(n, int)}

    # Selected field by field: one elementwise loop, which XLA compiles several times faster on CPU
    # than a concatenation of columns.
    def table(*columns: Any) -> Any:
        shape = (batch, len(flat))
        values = jax.lax.broadcast_in_dim(np.asarray(known, np.int32), shape, (1,))
        field = jax.lax.broadcasted_iota(np.int32, shape, 1)
        for k, column in zip(drawn, columns, strict=True):
            wide = jax.lax.broadcast_in_dim(column, shape, (0,))
            values = jax.lax.select(field == k, wide, values)
        return values.reshape(batch, len(rows), fields)

    columns = tuple(drawn.values())
    return in_auto_mode(table, batch_sharding(columns, 3), explicit_axes(columns))(*columns)


def _floats(rows: list[Values], channels: int) -> Any:
    """Rows of per-channel values as float32 [1, rows, C]."""
    if all(isinstance(row, np.ndarray) for row in rows):
        return np.asarray(rows, np.float32).reshape(1, len(rows), channels)
    return jnp.stack([jnp.asarray(row, jnp.float32) for row in rows])[None]
