"""Crops, borders and flips."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Box, half_to_even, is_static, maximum, per_axis
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Padding
from jaxkern.image.program.program import Code, Step, program_step
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.moves import Move, box_move, mirror
from jaxkern.image.transforms.sizes import Resize, filter_of
from jaxkern.image.transforms.transform import (
    BOX,
    TRIES,
    GeometricTransform,
    Params,
    Size,
    Transform,
    as_number,
    box_of,
    sample_box_sizes,
    uniform_below,
)


class _Padded(GeometricTransform):
    """Base class: shows a window that may leave the image."""

    fill: Any
    padding_mode: str

    def __post_init__(self) -> None:
        traced = isinstance(self.fill, jax.core.Tracer)
        if self.padding_mode != "constant" and not traced and np.size(self.fill) > 1:
            raise ValueError(
                f"padding_mode: expected 'constant' with fill={self.fill!r}, got "
                f"{self.padding_mode!r}"
            )
        super().__post_init__()

    def _show(self, chain: ChainBuilder, start: Any, size: Any, before: Any, after: Any) -> None:
        name, mode = type(self).__name__, self.padding_mode
        checks.check_mirrored_padding(mode, before, after, chain.size, name)
        if mode == "constant":
            chain.window(start, size, chain.values(self.fill, "fill"))
        else:
            chain.extend(start, size, Padding[mode.upper()])

    def _require_constant(self) -> None:
        """Reject other borders when boxes or keypoints move, as torchvision does."""
        if self.padding_mode != "constant":
            raise ValueError(f"{self!r}: expected padding_mode='constant' with boxes or keypoints")


@dataclasses.dataclass(frozen=True)
class Pad(_Padded):
    """Add a border, of a constant or of the image's own pixels.

    Args:
      padding: an integer, (left and right, top and bottom), or (left, top, right, bottom).
      fill: a number, or one per channel, in the value space at this position of the chain.
      padding_mode: "constant", "edge" (repeats the outermost pixels), "reflect" (mirrors without
        repeating the edge; padding below the image size) or "symmetric" (mirrors and repeats the
        edge; padding up to the image size). Images of different sizes in one batch are mirrored
        repeatedly if necessary.

    >>> Pad(4).output_size((32, 32))
    (40, 40)
    """

    padding: Any = checked(checks.padding_sides)
    fill: Any = checked(checks.per_channel, 0)
    padding_mode: str = checked(checks.padding_mode, "constant")

    def output_size(self, size: Size) -> Size:
        left, top, right, bottom = self.padding
        added = ((size[0], top + bottom), (size[1], left + right))
        height, width = (None if side is None else side + more for side, more in added)
        return height, width

    def moves(self, params: Params, size: Size) -> list[Move]:
        self._require_constant()
        padded = self.output_size(size)
        return [box_move((-self.padding[1], -self.padding[0], *padded), padded)]

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        if any(self.padding):
            left, top, right, bottom = self.padding
            size, limit = self.output_size(chain.size), chain.bounded
            self._show(chain, (-top, -left), size, (top, left), (bottom, right))
            chain.bound(None if limit is None else self.output_size(limit))


@dataclasses.dataclass(frozen=True)
class _RandomFlip(GeometricTransform):
    p: float = checked(checks.probability, 0.5)

    parameters: ClassVar = {"flip": "bool"}
    _mirrors_rows: ClassVar[bool]

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"flip": jax.random.uniform(key, dtype=jnp.float32) < self.p}

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        chain.flip(*self._on_axis(as_number(params["flip"]), 0))

    def moves(self, params: Params, size: Size) -> list[Move]:
        return [mirror(size, *self._on_axis(params["flip"], False))]

    def program(self, params: Params, size: Size) -> list[Step]:
        """Return the flip as a warp without interpolation, for containers."""
        y, x = self._on_axis(-1.0, 1.0)
        return [program_step(Code.WARP, x, 0.0, 0.0, 0.0, y, apply=params["flip"])]

    def _on_axis(self, mirrored: Any, unchanged: Any) -> tuple[Any, Any]:
        """Return the values for rows and columns, of which one is mirrored."""
        return (mirrored, unchanged) if self._mirrors_rows else (unchanged, mirrored)


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    """Mirror columns with probability p.

    Parameter of an image: flip bool.

    >>> RandomHorizontalFlip(0.5).p
    0.5
    """

    _mirrors_rows = False


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    """Mirror rows with probability p.

    Parameter of an image: flip bool.

    >>> RandomVerticalFlip(0.5).p
    0.5
    """

    _mirrors_rows = True


class _FixedSizeCrop(GeometricTransform):
    size: Any

    def output_size(self, size: Size) -> Size:
        return self.size[0], self.size[1]


@dataclasses.dataclass(frozen=True)
class RandomResizedCrop(_FixedSizeCrop):
    """Resize a random box of each image to `size`.

    Ten boxes are drawn with area uniform in `scale` (fractions of the image's area) and log aspect
    ratio uniform in log `ratio`. The first that fits is used, else the central crop clamped to the
    ratio. Filter taps never leave the box.

    Args:
      size: height and width of the output, or one integer for a square.
      scale, ratio: increasing pairs above 0.
      interpolation, antialias: as in `Resize`.
    Parameters of an image: top, left, height, width i32.

    >>> RandomResizedCrop(224, antialias=False).size
    (224, 224)
    """

    size: Any = checked(checks.size_pair)
    scale: Any = checked(checks.positive_interval, (0.08, 1.0))
    ratio: Any = checked(checks.positive_interval, (3.0 / 4.0, 4.0 / 3.0))
    interpolation: str = checked(checks.resampling, "bilinear")
    antialias: bool = checked(checks.flag, True)

    parameters = BOX

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        height, width = (jnp.asarray(side, jnp.int32) for side in size)
        fractions = jax.random.uniform(key, (TRIES + 1, 2), jnp.float32)
        tried_w, tried_h = sample_box_sizes(fractions[:TRIES], size, self.scale, self.ratio)
        fits = (tried_w > 0) & (tried_w <= width) & (tried_h > 0) & (tried_h <= height)
        first = jnp.argmax(fits)
        # The fallback: the largest central crop whose ratio is within bounds.
        low, high = self.ratio
        central_w = jnp.round(height.astype(jnp.float32) * high).astype(jnp.int32)
        central_h = jnp.round(width.astype(jnp.float32) / low).astype(jnp.int32)
        central_w, central_h = jnp.minimum(width, central_w), jnp.minimum(height, central_h)
        central_w, central_h = jnp.maximum(central_w, 1), jnp.maximum(central_h, 1)
        box_w = jnp.where(fits[first], tried_w[first], central_w)
        box_h = jnp.where(fits[first], tried_h[first], central_h)
        room_h, room_w = height - box_h, width - box_w
        down, across = fractions[TRIES]
        top = jnp.where(fits[first], uniform_below(down, room_h + 1), room_h // 2)
        left = jnp.where(fits[first], uniform_below(across, room_w + 1), room_w // 2)
        return {"top": top, "left": left, "height": box_h, "width": box_w}

    def eval(self) -> tuple[Transform, ...]:
        side = round(max(self.size) * 256 / 224)
        resize = Resize(side, self.interpolation, antialias=self.antialias)
        return (resize, CenterCrop(self.size))

    def moves(self, params: Params, size: Size) -> list[Move]:
        return [box_move(box_of(params), self.size)]

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        box = box_of(params)
        checks.check_box(box, chain.size, tuple(BOX), "RandomResizedCrop")
        chain.resample(filter_of(self.interpolation, self.antialias), box, self.size)


@dataclasses.dataclass(frozen=True)
class CenterCrop(_FixedSizeCrop):
    """Crop the central `size` pixels; a smaller image is padded with zeros first.

    >>> CenterCrop(224).output_size((256, 300))
    (224, 224)
    """

    size: Any = checked(checks.size_pair)

    _fill = 0.0

    def _start(self, size: Size) -> tuple[Any, Any]:
        return _center(size[0], self.size[0]), _center(size[1], self.size[1])

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return _FilledCenterCrop(self.size, fill)

    def moves(self, params: Params, size: Size) -> list[Move]:
        return [box_move((*self._start(size), *self.size), self.size)]

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        chain.window(self._start(chain.size), self.size, chain.values(self._fill, "fill"))


@dataclasses.dataclass(frozen=True)
class _FilledCenterCrop(CenterCrop):
    _fill: Any = 0.0


def _center(length: Any, size: int) -> Any:
    """Return the first index of the central window; an odd missing pixel is added at the end."""
    spare = length - size
    if is_static(spare):
        return half_to_even(spare) if spare >= 0 else -(-spare // 2)
    return half_to_even(maximum(spare, 0)) - maximum(-spare, 0) // 2


@dataclasses.dataclass(frozen=True)
class RandomCrop(_Padded, _FixedSizeCrop):
    """Crop `size` pixels at a random position, with optional padding.

    Args:
      size: height and width, or one integer for a square.
      padding: as in `Pad`; None for no padding.
      pad_if_needed: pad both sides of an image smaller than the crop by the missing pixels.
      fill: a number, or one per channel, for constant padding.
      padding_mode: as in `Pad`.
    Parameters of an image: top, left i32, relative to the padded image.

    >>> RandomCrop(32, padding=4).output_size((32, 32))
    (32, 32)
    """

    size: Any = checked(checks.size_pair)
    padding: Any = checked(checks.optional(checks.padding_sides), None)
    pad_if_needed: bool = checked(checks.flag, False)
    fill: Any = checked(checks.per_channel, 0)
    padding_mode: str = checked(checks.padding_mode, "constant")

    parameters: ClassVar = {"top": "int", "left": "int"}

    def _padded(self, size: Size) -> Box:
        """Return the padding before the first row and column, and the padded size."""

        def padded(length: Any, target: int, before: int, after: int) -> tuple[Any, Any]:
            length = length + (before + after)
            if self.pad_if_needed:
                missing = maximum(target - length, 0)
                return before + missing, length + 2 * missing
            if is_static(length) and length < target:
                raise ValueError(
                    f"RandomCrop: expected at least {self.size}, got ({size[0]}, {size[1]}) before "
                    "padding; set pad_if_needed=True"
                )
            return before, length

        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        return per_axis(padded, size, self.size, (top, left), (bottom, right))

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        padded = self._padded(size)[2:]
        fractions = jax.random.uniform(key, (2,), jnp.float32)
        room = [maximum(p - s, 0) + 1 for p, s in zip(padded, self.size, strict=True)]
        top, left = (uniform_below(fractions[k], room[k]) for k in range(2))
        return {"top": top, "left": left}

    def eval(self) -> tuple[Transform, ...]:
        return (CenterCrop(self.size),)

    def moves(self, params: Params, size: Size) -> list[Move]:
        if self.padding is not None or self.pad_if_needed:
            self._require_constant()
        above, before, _, _ = self._padded(size)
        return [box_move((params["top"] - above, params["left"] - before, *self.size), self.size)]

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        box = self._padded(chain.size)
        before, padded = box[:2], box[2:]
        top, left = params["top"], params["left"]
        names = ("top", "left", "size", "size")
        checks.check_box((top, left, *self.size), padded, names, "RandomCrop")
        start = (top - before[0], left - before[1])
        if is_static(*before) and not any((*before, *(self.padding or ()))):
            chain.window(start, self.size, None)
            return
        height, width = chain.size
        after = (padded[0] - before[0] - height, padded[1] - before[1] - width)
        self._show(chain, start, self.size, before, after)
