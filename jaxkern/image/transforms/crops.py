"""Crops, borders and flips."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxkern.image.chain.axis import half_to_even, is_static, maximum
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Padding
from jaxkern.image.program.program import Code, Step, program_step
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move, boxed, mirror
from jaxkern.image.transforms.sizes import Resize, filter_of
from jaxkern.image.transforms.transform import (
    BOX,
    TRIES,
    Kind,
    Size,
    Transform,
    as_number,
    sample_box_sizes,
    set_fields,
    uniform_below,
)


def show_window(chain: ChainBuilder, mode: str, start: Any, size: Any, fill: Any) -> None:
    """Show a window of the image that may extend beyond it."""
    if mode == "constant":
        chain.window(start, size, chain.values(fill, "fill"))
    else:
        chain.extend(start, size, Padding[mode.upper()])


def require_constant_padding(transform: Transform, mode: str) -> None:
    """Reject other borders when boxes or keypoints move, as torchvision does."""
    if mode != "constant":
        raise ValueError(f"{transform!r}: expected padding_mode='constant' with boxes or keypoints")


@dataclasses.dataclass(frozen=True)
class Pad(Transform):
    """Add a border, of a constant or of the image's own pixels.

    Args:
      padding: an integer, (left and right, top and bottom), or (left, top, right, bottom).
      fill: a number, or one per channel, in the value space at this position of the chain.
      padding_mode: "constant", "edge" (repeats the outermost pixels), "reflect" (mirrors without
        repeating the edge; padding below the image size) or "symmetric" (mirrors and repeats the
        edge; padding up to the image size). Images of different sizes in one batch are mirrored
        repeatedly if necessary.
    Raises: ValueError for negative or malformed padding, other padding modes, a fill per channel
    with a mode that is not constant, and in `apply` for borders that are too wide to mirror.

    >>> from jaxkern.image import Pad
    >>> Pad(4).output_size((32, 32))
    (40, 40)
    """

    padding: Any
    fill: Any = 0
    padding_mode: str = "constant"

    kind: ClassVar[Kind] = "chain"
    geometric = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            padding=checks.padding_sides(self.padding),
            fill=checks.per_channel(self.fill, "fill"),
            padding_mode=checks.padding_mode(self.padding_mode, self.fill),
        )

    def output_size(self, size: Size) -> Size:
        left, top, right, bottom = self.padding
        added = ((size[0], top + bottom), (size[1], left + right))
        height, width = (None if side is None else side + more for side, more in added)
        return height, width

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, fill=fill if self.padding_mode == "constant" else 0)

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        require_constant_padding(self, self.padding_mode)
        padded = self.output_size(size)
        return [boxed((-self.padding[1], -self.padding[0], *padded), padded)]

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        if any(self.padding):
            left, top, right, bottom = self.padding
            before, after = (top, left), (bottom, right)
            size, limit = self.output_size(chain.size), chain.bounded
            checks.check_mirrored_padding(self.padding_mode, before, after, chain.size, "Pad")
            show_window(chain, self.padding_mode, (-top, -left), size, self.fill)
            chain.bound(None if limit is None else self.output_size(limit))


@dataclasses.dataclass(frozen=True)
class _RandomFlip(Transform):
    p: float = 0.5

    parameters: ClassVar[dict[str, str]] = {"flip": "bool"}
    kind: ClassVar[Kind] = "chain"
    geometric = True

    def __post_init__(self) -> None:
        set_fields(self, p=checks.probability(self.p))

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return self

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"flip": jax.random.uniform(key, dtype=jnp.float32) < self.p}

    def _mirror(self, flip: Any, *coefficients: float) -> list[Step]:
        """Return the flip as a warp without interpolation, for transforms that contain others."""
        return [program_step(Code.WARP, *coefficients, apply=flip)]


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    """Mirror columns with probability p.

    Parameter of an image: flip bool.

    >>> from jaxkern.image import RandomHorizontalFlip
    >>> RandomHorizontalFlip(0.5).p
    0.5
    """

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.flip(0, as_number(params["flip"]))

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [mirror(size, False, params["flip"])]

    def program(self, params: dict[str, Any], size: Size) -> list[Step]:
        return self._mirror(params["flip"], -1.0, 0.0, 0.0, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    """Mirror rows with probability p.

    Parameter of an image: flip bool.

    >>> from jaxkern.image import RandomVerticalFlip
    >>> RandomVerticalFlip(0.5).p
    0.5
    """

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.flip(as_number(params["flip"]), 0)

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [mirror(size, params["flip"], False)]

    def program(self, params: dict[str, Any], size: Size) -> list[Step]:
        return self._mirror(params["flip"], 1.0, 0.0, 0.0, 0.0, -1.0)


class _FixedSizeCrop(Transform):
    size: Any

    kind: ClassVar[Kind] = "chain"
    geometric = True

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
      interpolation: "bilinear", "bicubic" (uint8 levels are clamped to 0 to 255, floats are not),
        or "nearest" (torchvision's nearest-exact).
      antialias: widen the filter where the box shrinks. As in torchvision, the parameter a of the
        bicubic kernel is -1/2 with antialias and -3/4 without.
    Parameters of an image: top, left, height, width i32.
    Raises: ValueError for sizes below 1, invalid ranges and unknown interpolations.

    >>> from jaxkern.image import RandomResizedCrop
    >>> RandomResizedCrop(224, antialias=False).size
    (224, 224)
    """

    size: Any
    scale: Any = (0.08, 1.0)
    ratio: Any = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: str = "bilinear"
    antialias: bool = True

    parameters: ClassVar[dict[str, str]] = BOX

    def __post_init__(self) -> None:
        set_fields(
            self,
            size=checks.size_pair(self.size),
            scale=checks.interval(self.scale, "scale", 0.0, open_low=True),
            ratio=checks.interval(self.ratio, "ratio", 0.0, open_low=True),
            interpolation=checks.choice(self.interpolation, "interpolation", checks.RESAMPLINGS),
            antialias=bool(self.antialias),
        )

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
        """Return a resize of the shorter side to size * 256 / 224, and a central crop."""
        side = round(max(self.size) * 256 / 224)
        resize = Resize(side, self.interpolation, antialias=self.antialias)
        return (resize, CenterCrop(self.size))

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, interpolation="nearest")

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        box = (params["top"], params["left"], params["height"], params["width"])
        return [boxed(box, self.size)]

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        box = (params["top"], params["left"], params["height"], params["width"])
        checks.check_box(box, chain.size, tuple(BOX), "RandomResizedCrop")
        chain.resample(filter_of(self.interpolation, self.antialias), box, self.size)


@dataclasses.dataclass(frozen=True)
class CenterCrop(_FixedSizeCrop):
    """Crop the central `size` pixels; a smaller image is padded with zeros first.

    >>> from jaxkern.image import CenterCrop
    >>> CenterCrop(224).output_size((256, 300))
    (224, 224)
    """

    size: Any

    def __post_init__(self) -> None:
        set_fields(self, size=checks.size_pair(self.size))

    def _start(self, size: Size) -> tuple[Any, Any]:
        return _center(size[0], self.size[0]), _center(size[1], self.size[1])

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return _FilledCenterCrop(self.size, fill)

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [boxed((*self._start(size), *self.size), self.size)]

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.window(self._start(chain.size), self.size, chain.values(0.0, "fill"))


@dataclasses.dataclass(frozen=True)
class _FilledCenterCrop(CenterCrop):
    fill: Any

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.window(self._start(chain.size), self.size, chain.values(self.fill, "fill"))


def _center(length: Any, size: int) -> Any:
    """Return the first index of the central window; an odd missing pixel is added at the end."""
    spare = length - size
    if is_static(spare):
        return half_to_even(spare) if spare >= 0 else -(-spare // 2)
    return half_to_even(maximum(spare, 0)) - maximum(-spare, 0) // 2


@dataclasses.dataclass(frozen=True)
class RandomCrop(_FixedSizeCrop):
    """Crop `size` pixels at a random position, with optional padding.

    Args:
      size: height and width, or one integer for a square.
      padding: as in `Pad`; None for no padding.
      pad_if_needed: pad both sides of an image smaller than the crop by the missing pixels.
      fill: a number, or one per channel, for constant padding.
      padding_mode: as in `Pad`.
    Parameters of an image: top, left i32, relative to the padded image.
    Raises: ValueError for invalid sizes and modes, and in `apply` for images smaller than the crop.

    >>> from jaxkern.image import RandomCrop
    >>> RandomCrop(32, padding=4).output_size((32, 32))
    (32, 32)
    """

    size: Any
    padding: Any = None
    pad_if_needed: bool = False
    fill: Any = 0
    padding_mode: str = "constant"

    parameters: ClassVar[dict[str, str]] = {"top": "int", "left": "int"}

    def __post_init__(self) -> None:
        set_fields(
            self,
            size=checks.size_pair(self.size),
            padding=None if self.padding is None else checks.padding_sides(self.padding),
            pad_if_needed=bool(self.pad_if_needed),
            fill=checks.per_channel(self.fill, "fill"),
            padding_mode=checks.padding_mode(self.padding_mode, self.fill),
        )

    def _padded(self, size: Size) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """Return the padding before the first row and column, and the padded size."""
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        before, padded = [], []
        for length, target, first, second in (
            (size[0], self.size[0], top, bottom),
            (size[1], self.size[1], left, right),
        ):
            length = length + (first + second)
            if self.pad_if_needed:
                missing = maximum(target - length, 0)
                first, length = first + missing, length + 2 * missing
            elif is_static(length) and length < target:
                raise ValueError(
                    f"RandomCrop: expected an image of at least {self.size}, got "
                    f"({size[0]}, {size[1]}) before padding; set pad_if_needed=True or resize first"
                )
            before.append(first)
            padded.append(length)
        return (before[0], before[1]), (padded[0], padded[1])

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        _, padded = self._padded(size)
        fractions = jax.random.uniform(key, (2,), jnp.float32)
        room = [maximum(p - s, 0) + 1 for p, s in zip(padded, self.size, strict=True)]
        top, left = (uniform_below(fractions[k], room[k]) for k in range(2))
        return {"top": top, "left": left}

    def eval(self) -> tuple[Transform, ...]:
        """Return the central crop, without padding."""
        return (CenterCrop(self.size),)

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, fill=fill if self.padding_mode == "constant" else 0)

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        if self.padding is not None or self.pad_if_needed:
            require_constant_padding(self, self.padding_mode)
        before, _ = self._padded(size)
        start = (params["top"] - before[0], params["left"] - before[1])
        return [boxed((*start, *self.size), self.size)]

    def fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        before, padded = self._padded(chain.size)
        top, left = params["top"], params["left"]
        checks.check_box(
            (top, left, *self.size), padded, ("top", "left", "size", "size"), "RandomCrop"
        )
        pads = not is_static(*before) or any(before) or bool(self.padding and any(self.padding))
        start = (top - before[0], left - before[1])
        if not pads:
            chain.window(start, self.size, None)
            return
        height, width = chain.size
        after = (padded[0] - before[0] - height, padded[1] - before[1] - width)
        checks.check_mirrored_padding(self.padding_mode, before, after, chain.size, "RandomCrop")
        show_window(chain, self.padding_mode, start, self.size, self.fill)
