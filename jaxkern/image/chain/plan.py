"""The plan of a fused image chain: what one call computes (the mirror of csrc/image/plan.h)."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

MAX_SEGMENTS = 8
MAX_ERASURES = 16
MAX_SIZE = 1 << 24  # largest height or width of sources, crops and outputs
MAX_PIXELS = 1 << 31  # of an output
CHANNEL_COUNTS = (1, 3, 4)


class Dtype(enum.IntEnum):
    """Pixel types of a chain, numbered as in plan.h."""

    U8 = 0
    F16 = 1
    BF16 = 2
    F32 = 3


_DTYPES: dict[Any, Dtype] = {
    np.dtype(np.uint8): Dtype.U8,
    np.dtype(np.float16): Dtype.F16,
    np.dtype(jnp.bfloat16): Dtype.BF16,
    np.dtype(np.float32): Dtype.F32,
}
_JAX_DTYPES = {code: dtype for dtype, code in _DTYPES.items()}


def checked_dtype(dtype: Any, name: str = "dtype", more: str = "") -> Dtype:
    """Return the code of a NumPy-style dtype; raise TypeError for one that a chain lacks."""
    code = _DTYPES.get(np.dtype(dtype))
    if code is None:
        raise TypeError(f"{name}: expected {more}uint8, float16, bfloat16 or float32, got {dtype}")
    return code


def jax_dtype(code: Dtype) -> np.dtype[Any]:
    return _JAX_DTYPES[code]


class Layout(enum.IntEnum):
    NHWC = 0
    NCHW = 1


class Filter(enum.IntEnum):
    """Resampling of a segment's box."""

    NONE = 0
    NEAREST = 1
    BILINEAR = 2
    ANTIALIAS = 3
    BICUBIC = 4
    BICUBIC_ANTIALIAS = 5
    BICUBIC_LEVELS = 6
    BICUBIC_ANTIALIAS_LEVELS = 7

    @property
    def bicubic(self) -> bool:
        return self >= Filter.BICUBIC

    @property
    def widened(self) -> bool:
        """True if the filter widens where the box shrinks."""
        return "ANTIALIAS" in self.name

    def for_levels(self) -> Filter:
        """Return the filter for uint8 levels: bicubic ones clamp after each pass."""
        return Filter.__members__.get(f"{self.name}_LEVELS", self)


class Padding(enum.IntEnum):
    """Pixels that a segment shows outside its resampled image; names as in numpy.pad."""

    CONSTANT = 0
    EDGE = 1
    REFLECT = 2
    SYMMETRIC = 3


class Rounding(enum.IntEnum):
    KEEP = 0
    NEAREST = 1
    TRUNCATE = 2


@dataclasses.dataclass(frozen=True)
class Segment:
    """One pass of a chain: crop, resample, map, affine, erase, round. Sizes are the output's."""

    filter: Filter
    height: int
    width: int
    erasures: int = 0
    rounding: Rounding = Rounding.KEEP
    padding: Padding = Padding.CONSTANT

    @property
    def sampling(self) -> int:
        """Filter and padding in one number, the encoding of the ops' attribute `filter`."""
        return self.filter + 16 * self.padding


@dataclasses.dataclass(frozen=True)
class ChainPlan:
    """The structure of a call, the same for all samples; hashable, to be a static argument."""

    segments: tuple[Segment, ...]
    channels: int
    source_dtype: Dtype
    output_dtype: Dtype
    layout: Layout = Layout.NHWC

    def output(self) -> jax.ShapeDtypeStruct:
        """Return shape and dtype of one sample's output, in the plan's layout."""
        height, width = self.segments[-1].height, self.segments[-1].width
        shape = (height, width, self.channels)
        if self.layout is Layout.NCHW:
            shape = (self.channels, height, width)
        return jax.ShapeDtypeStruct(shape, jax_dtype(self.output_dtype))


class Operands(NamedTuple):
    """Per-sample arrays of one call; the leading axis is the batch, of size N or 1 (shared).

    geometry i32 [N, S, 14], affine f32 [1, S, 2, C] (scale, bias), fill f32 [1, S, C],
    erase_box i32 [N, K, 4], erase_value f32 [1, K, C].
    """

    geometry: Any
    affine: Any
    fill: Any
    erase_box: Any
    erase_value: Any
