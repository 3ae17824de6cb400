"""Folds a list of image transforms into as few segments as their semantics allow."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.core.axes import on_batch
from jaxkern.image.chain.axis import (
    Axis,
    Box,
    Number,
    Size,
    add,
    clip,
    is_static,
    maximum,
    minimum,
    multiply,
    per_axis,
)
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

Values = Any  # per-channel values [C]: float64 NumPy if known, else a traced float32 array


def sizes_differ(where: str) -> ValueError:
    """Return the error of a transform that needs images of one size."""
    return ValueError(
        f"{where}: expected images of one size, but sizes differ; put RandomResizedCrop, "
        "CenterCrop, RandomCrop or Resize((h, w)) before it"
    )


def equal_values(a: Values, b: Values) -> bool:
    """Return True if both arrays are known to be equal."""
    if a is b:
        return True
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b)


def _is_integral(values: Values) -> bool:
    """Return True if the values are known to be whole numbers."""
    return isinstance(values, np.ndarray) and np.array_equal(values, np.round(values))


class OpenSegment:
    """One segment under construction, in the coordinates of its output."""

    def __init__(self, height: Number, width: Number, channels: int) -> None:
        self.filter = Filter.NONE
        self.rows = Axis.full_size(height)
        self.columns = Axis.full_size(width)
        self.scale: Values = np.ones(channels)
        self.bias: Values = np.zeros(channels)
        self.fill: Values | None = None
        self.may_leave_image = False  # A crop at a run-time position may leave the image.
        self.erasures: list[tuple[Box, Values]] = []
        self.rounding = Rounding.KEEP
        self.padding = Padding.CONSTANT

    def is_identity(self) -> bool:
        """Return True if the segment's output is its input (rounding aside)."""
        axes = (self.rows, self.columns)
        return (
            self.filter is Filter.NONE
            and not self.erasures
            and all(axis.identity for axis in axes)
            and equal_values(self.scale, np.ones_like(self.scale))
            and equal_values(self.bias, np.zeros_like(self.bias))
        )

    def geometry(self) -> list[Number]:
        """Return the fields of plan.h's Geometry, in order."""
        r, c = self.rows, self.columns
        return [
            *(r.box_start, c.box_start, r.box_size, c.box_size, r.resampled, c.resampled),
            *(r.valid_start, c.valid_start, r.valid_stop, c.valid_stop),
            *(r.offset, r.step, c.offset, c.step),
        ]

    def finish(self) -> Segment:
        height, width = int(self.rows.size), int(self.columns.size)
        if max(height, width) > MAX_SIZE or height * width > MAX_PIXELS:
            raise ValueError(f"output: expected up to 2**31 pixels, got {height} x {width}")
        erasures = len(self.erasures)
        return Segment(self.filter, height, width, erasures, self.rounding, self.padding)

    def fill_operand(self) -> Values:
        if self.fill is not None:
            return self.fill
        channels = len(self.scale)
        # If nothing reads the fill, its values are unequal: XLA fills a constant of equal values by
        # a kernel, which takes long to compile.
        return np.zeros(channels) if self.may_leave_image else np.arange(channels)

    def clip_erasures(self) -> None:
        """Clip erasures to the image, so that a later move neither shows nor overflows the rest."""
        size = self.rows.size, self.columns.size
        self.erasures = [(clip_box(box, size), value) for box, value in self.erasures]


def clip_box(box: Box, size: Size) -> Box:
    """Return the part of a box inside an image; other parts must not show in a padded border."""

    def part(start: Number, length: Number, extent: Number) -> tuple[Number, Number]:
        first = clip(start, 0, extent)
        # Start and length are not added if both are positive: the sum may leave int32.
        inside = minimum(start, 0) + maximum(length, 0)
        return first, clip(inside, 0, extent - first)

    return per_axis(part, box[:2], box[2:], size)


class ChainBuilder:
    """Collects the transforms of one chain. Sizes are ints, or int32 arrays [N] for ragged batches.

    A method changes the open segment, or opens another if it does not commute with it.

    Attributes:
      levels: True if values are uint8 levels, 0 to 255.
      integral: True if values are whole numbers.
      scale: True if levels become x / 255 when a float image is implied.
      bounded: upper bound of sizes that differ, or None. Wherever a common size is needed, images
        are stored at the top left of a canvas of that size, filled with `canvas_fill`.
    `largest` is the upper bound of the sizes of a ragged batch.
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
        self.canvas_fill: Values = np.zeros(channels)
        self._done: list[OpenSegment] = []
        self._open = OpenSegment(height, width, channels)
        self._source_size = (height, width, largest)

    @property
    def size(self) -> Size:
        return self._open.rows.size, self._open.columns.size

    def values(self, value: Any, name: str) -> Values:
        """Return a number or one number per channel as an array [C]."""
        traced, channels = isinstance(value, jax.Array), self.channels
        array = value.astype(jnp.float32) if traced else np.asarray(value, np.float64)
        if array.ndim > 1 or (array.ndim == 1 and array.shape[0] not in (1, channels)):
            raise ValueError(f"{name}: expected 1 number or {channels}, got shape {array.shape}")
        return (jnp if traced else np).broadcast_to(array.reshape(-1), (channels,))

    def _new_segment(self) -> OpenSegment:
        height, width = self.size
        if not is_static(height, width):
            if self.bounded is None:
                raise sizes_differ("a transform")
            self._onto_canvas(self.bounded)
        self._done.append(self._open)
        if len(self._done) >= MAX_SEGMENTS:
            raise ValueError(f"at most {MAX_SEGMENTS} passes fit in one Compose; split it")
        self._open = OpenSegment(height, width, self.channels)
        return self._open

    def resample(self, kind: Filter, box: Box, size: Size) -> None:
        """Resize the box (top, left, height, width) of the current image to `size`."""
        segment, (top, left, height, width) = self._open, box
        if is_static(height, width, *size) and (height, width) == tuple(size):
            self.window((top, left), size, None)
            return
        flips = segment.rows.flipped, segment.columns.flipped
        mirrored = not is_static(*flips) or flips != (0, 0)
        if (
            segment.filter is not Filter.NONE
            or segment.fill is not None
            or segment.erasures
            or segment.rounding is not Rounding.KEEP
            or segment.padding is not Padding.CONSTANT
            or (kind is Filter.NEAREST and mirrored)  # Its ties are not symmetric.
        ):
            segment = self._new_segment()
        segment.filter = kind.for_levels() if self.levels else kind
        segment.rows.resample(top, height, size[0])
        segment.columns.resample(left, width, size[1])
        self.bounded = None
        if kind is not Filter.NEAREST:
            self.integral = False

    def window(self, start: tuple[Number, Number], size: Size, fill: Values | None) -> None:
        """Show `size` pixels from `start`, with `fill` outside; None if all are inside."""
        segment = self._open
        if fill is not None and _window_inside(start, size, self.size):
            fill = None
        if fill is not None:
            differs = segment.fill is not None and not equal_values(segment.fill, fill)
            if differs or segment.rounding is not Rounding.KEEP:
                segment = self._new_segment()
            segment.fill = fill
            self.integral &= _is_integral(fill)
        inside = fill is None
        segment.clip_erasures()
        for k, ((top, left, h, w), value) in enumerate(segment.erasures):
            top, left = add(top, multiply(-1, start[0])), add(left, multiply(-1, start[1]))
            segment.erasures[k] = (top, left, h, w), value
        plain = segment.rows.plain and segment.columns.plain
        segment.may_leave_image |= inside and not plain and not is_static(*start)
        segment.rows.window(start[0], size[0], inside)
        segment.columns.window(start[1], size[1], inside)
        self.bounded = None

    def extend(self, start: tuple[Number, Number], size: Size, padding: Padding) -> None:
        """Show `size` pixels from `start`, with the pixels of `padding` outside."""
        if _window_inside(start, size, self.size):
            self.window(start, size, None)
            return
        segment = self._open
        shows_all = segment.rows.shows_all and segment.columns.shows_all
        extended = segment.padding is not Padding.CONSTANT
        if segment.fill is not None or segment.erasures or extended or not shows_all:
            segment = self._new_segment()
        segment.padding = padding
        segment.rows.extend(start[0], size[0])
        segment.columns.extend(start[1], size[1])

    def flip(self, rows: Number, columns: Number) -> None:
        """Mirror rows and columns where the 0/1 numbers are 1."""
        segment = self._open
        height, width = self.size
        segment.clip_erasures()
        for k, ((top, left, h, w), value) in enumerate(segment.erasures):
            top = add(top, multiply(rows, height - h - 2 * top))
            left = add(left, multiply(columns, width - w - 2 * left))
            segment.erasures[k] = (top, left, h, w), value
        segment.rows.flip(rows)
        segment.columns.flip(columns)

    @property
    def limit(self) -> tuple[int, int] | None:
        """The upper bound of the current height and width, if it is known."""
        height, width = self.size
        of_source, its_width, largest = self._source_size
        if is_static(height, width):
            return height, width
        return largest if height is of_source and width is its_width else self.bounded

    def bound(self, size: tuple[int, int] | None, canvas_fill: Values | None = None) -> None:
        """Set the upper bound of the current height and width, and the fill of the canvas."""
        self.bounded = size
        self.canvas_fill = np.zeros(self.channels) if canvas_fill is None else canvas_fill

    def _onto_canvas(self, size: tuple[int, int]) -> None:
        """Place the image at the top left of a canvas of `size`."""
        segment = self._open
        if segment.padding is not Padding.CONSTANT:
            raise ValueError("padding_mode: expected 'constant', since sizes differ")
        if segment.fill is None:
            segment.fill = self.canvas_fill
        segment.clip_erasures()
        segment.rows.window(0, size[0], False)
        segment.columns.window(0, size[1], False)

    def affine(self, scale: Values, bias: Values) -> None:
        segment = self._open
        if segment.rounding is not Rounding.KEEP:
            segment = self._new_segment()
        segment.scale = segment.scale * scale
        segment.bias = segment.bias * scale + bias
        if segment.fill is not None:
            segment.fill = segment.fill * scale + bias
        segment.erasures = [(box, value * scale + bias) for box, value in segment.erasures]
        self.integral = False

    def erase(self, box: Box, value: Values) -> None:
        if self._open.rounding is not Rounding.KEEP:
            self._new_segment()
        self._open.erasures.append((box, value))
        self.integral &= _is_integral(value)

    def to_float(self, scale: bool) -> None:
        """Convert levels to a float image: x / 255 with `scale`, else unchanged."""
        if self.levels and scale:
            self.affine(np.full(self.channels, 1 / 255.0), np.zeros(self.channels))
        self.levels = self.integral = False

    def to_u8(self, scale: bool) -> None:
        """Convert to levels: float values by trunc(x * 255.999), levels to the nearest."""
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

    def finish(
        self, dtype: Dtype, layout: Layout = Layout.NHWC, scale: bool | None = None
    ) -> tuple[ChainPlan, Operands] | None:
        """Return the plan and its operands, or None if the chain returns its input unchanged.

        `scale` replaces that of the builder.
        """
        scale = self.scale if scale is None else scale
        height, width = self.size
        if not is_static(height, width) and self.bounded is not None:
            self._onto_canvas(self.bounded)
            height, width = self.bounded
        if not is_static(height, width):
            raise ValueError("the output size differs; end with a crop or Resize((h, w))")
        if dtype is Dtype.U8:
            self.to_u8(scale)
            if self._open.rounding is Rounding.KEEP:
                self._open.rounding = Rounding.NEAREST
        else:
            self.to_float(scale)
        opened = [*self._done, self._open]
        unchanged = dtype is self.source_dtype and layout is Layout.NHWC
        unrounded = dtype is Dtype.U8 or self._open.rounding is Rounding.KEEP
        if unchanged and unrounded and len(opened) == 1 and self._open.is_identity():
            return None
        erasures = [erasure for segment in opened for erasure in segment.erasures]
        if len(erasures) > MAX_ERASURES:
            raise ValueError(
                f"at most {MAX_ERASURES} erasures fit in one Compose, got {len(erasures)}"
            )
        segments = tuple(segment.finish() for segment in opened)
        plan = ChainPlan(segments, self.channels, self.source_dtype, dtype, layout)
        affine = _floats([row for s in opened for row in (s.scale, s.bias)], self.channels)
        operands = Operands(
            geometry=_integers([s.geometry() for s in opened], 14),
            affine=affine.reshape(1, -1, 2, self.channels),
            fill=_floats([s.fill_operand() for s in opened], self.channels),
            erase_box=_integers([list(box) for box, _ in erasures], 4),
            erase_value=_floats([value for _, value in erasures], self.channels),
        )
        return plan, operands

    def following(self, channels: int, dtype: Dtype) -> ChainBuilder:
        """Return a builder that continues from the output of the call before."""
        return ChainBuilder(*self.size, channels, dtype, self.scale)


def _window_inside(start: tuple[Number, Number], size: Size, image: Size) -> bool:
    return is_static(*start, *size, *image) and all(
        first >= 0 and first + length <= extent
        for first, length, extent in zip(start, size, image, strict=True)
    )


def _integers(rows: list[list[Number]], fields: int) -> Any:
    """Stack rows of numbers as int32 [N or 1, rows, fields]; constants share one array."""
    flat = [number for row in rows for number in row]
    if all(isinstance(number, int) for number in flat):
        return np.asarray(flat, np.int32).reshape(1, len(rows), fields)
    batch = next(number.shape[0] for number in flat if not isinstance(number, int))
    if all(isinstance(number, int | np.ndarray) for number in flat):
        full = [np.broadcast_to(np.asarray(number, np.int32), (batch,)) for number in flat]
        return np.stack(full, axis=-1).reshape(batch, len(rows), fields)
    constants = [number if isinstance(number, int) else 0 for number in flat]
    per_sample = {
        k: jnp.asarray(n, jnp.int32) for k, n in enumerate(flat) if not isinstance(n, int)
    }

    # Selected field by field: one elementwise loop, which XLA compiles several times faster on CPU
    # than a concatenation of columns.
    def table(*columns: Any) -> Any:
        shape = (batch, len(flat))
        values = jax.lax.broadcast_in_dim(np.asarray(constants, np.int32), shape, (1,))
        field = jax.lax.broadcasted_iota(np.int32, shape, 1)
        for k, column in zip(per_sample, columns, strict=True):
            wide = jax.lax.broadcast_in_dim(column, shape, (0,))
            values = jax.lax.select(field == k, wide, values)
        return values.reshape(batch, len(rows), fields)

    return on_batch(table, 3, *per_sample.values())


def _floats(rows: list[Values], channels: int) -> Any:
    """Stack rows of per-channel values as float32 [1, rows, C]."""
    if all(isinstance(row, np.ndarray) for row in rows):
        return np.asarray(rows, np.float32).reshape(1, len(rows), channels)
    return jnp.stack([jnp.asarray(row, jnp.float32) for row in rows])[None]
