"""What every image transform is: parameters drawn for one image, and how it joins a chain."""

from __future__ import annotations

import math
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxkern.image.chain.axis import Size as Size
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.program.program import Step
from jaxkern.image.transforms.moves import Move, warped

Stage = Literal["image", "program", "batch"]


class Transform:
    """A transform of one image, as torchvision's v2 transforms name and define it.

    Attributes:
      parameters: the parameters of an image with their kind, "int", "bool", "float" or
        "number" (of either), and where they are not scalars their shape, as in "int[4]".
      stage: "image" acts on each image alone and joins a fused chain; "program" is operations
        between chains that are drawn at run time; "batch" mixes the images of a batch.
      linear: whether it is an affine map of each channel, which commutes with mixing.
      per_sample: whether parameters are drawn for each image; otherwise once for a batch, from the
        first record's key.
      of_unit_values: whether it takes the values of float images as lying from 0 to 1.
      geometric: whether it moves pixels, and so masks, boxes and keypoints.
      needs_boxes: whether `sample` also takes the boxes f32 [K, 4] of the image as they are at its
        place, (left, top, right, bottom), and which of them are valid, bool [K].
    """

    parameters: ClassVar[dict[str, str]] = {}
    stage: ClassVar[Stage] = "image"
    linear: ClassVar[bool] = False
    of_unit_values: ClassVar[bool] = False
    per_sample: bool = True
    geometric: bool = False
    needs_boxes: ClassVar[bool] = False

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws the parameters of ONE image of `size` (height, width): a dict of scalars."""
        del key, size
        return {}

    def output_size(self, size: Size) -> Size:
        """(height, width) after the transform; None stands for what is not known."""
        return size

    def _size_after(self, size: Size, params: dict[str, Any]) -> Size:
        """(height, width) after the transform with these parameters, numbers or arrays [N]."""
        del params
        return self.output_size(size)

    def eval(self) -> tuple[Transform, ...]:
        """What stands for this transform when nothing is random: nothing, where it draws all."""
        return () if self.parameters else (self,)

    def _of_frames(self, params: dict[str, Any], frame: Any) -> dict[str, Any]:
        """The parameters of the frames i32 [N] of clips, from those of their clips, repeated."""
        del frame
        return params

    def _spread(self, params: dict[str, Any], size: Size) -> list[tuple[Transform, dict[str, Any]]]:
        """The transforms that it is made of, on images of `size`, with their parameters."""
        del size
        return [(self, params)]

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        """Of the stage "image": adds the transform with these parameters to a chain."""
        raise NotImplementedError(
            f"{type(self).__name__} does not say what it does to an image; wanted a transform of "
            "jaxkern.image, or a subclass of one"
        )

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        """Of the stage "program": its operations on images of `size`, in order."""
        raise NotImplementedError

    def _channels(self, channels: int) -> int:
        """Of the stage "program": how many channels of so many are left behind it."""
        return channels

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        """Of a geometric transform: how it moves points of images of `size`, in order."""
        return warped(self._program(params, (size[0], size[1])), (size[0], size[1]))

    def _for_masks(self, fill: tuple[float, ...]) -> Transform | None:
        """What does to a mask what this transform does to an image; None leaves it as it is.

        It takes the same parameters, picks the nearest label and fills with `fill`.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not say what it does to a mask; wanted a transform of "
            "jaxkern.image"
        )

    def _still_valid(self, boxes: Any, valid: Any, size: Size) -> Any:
        """Which of the valid boxes [N, K, 4], already moved, stay valid in images of `size`."""
        del boxes, size
        return valid

    def _mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        """Of the stage "batch", whose partner is the previous image (a roll by 1).

        Returns lam of the pixels, box i32 [N or 1, 4] of the partner's pixels, lam of the labels.
        """
        raise NotImplementedError


def as_number(flag: Any) -> Any:
    """A bool or bool array as 0/1: an int, or int32 [N]."""
    return flag.astype("int32") if hasattr(flag, "astype") else int(flag)


def set_fields(instance: Any, **fields: Any) -> None:
    """Sets fields of a frozen dataclass, as it checks what it was given."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


TRIES = 10  # of the rejection loops, as in torchvision


def between(fraction: Any, low: float, high: float) -> jax.Array:
    """A number from `low` to `high`, f32."""
    return jnp.asarray(low + (high - low) * fraction, jnp.float32)


def uniform_below(fraction: jax.Array, count: Any) -> jax.Array:
    """A whole number from 0 to count - 1 out of a fraction in [0, 1)."""
    drawn = jnp.floor(fraction * jnp.asarray(count, jnp.float32)).astype(jnp.int32)
    return jnp.clip(drawn, 0, jnp.asarray(count, jnp.int32) - 1)


def drawn_sizes(
    fractions: jax.Array, size: Size, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[jax.Array, jax.Array]:
    """round(sqrt(area r)), round(sqrt(area / r)) for fractions [tries, 2]: area uniform in scale
    times the image's area, log r uniform in log ratio."""
    area = jnp.float32(size[0]) * jnp.float32(size[1])
    target = area * (scale[0] + (scale[1] - scale[0]) * fractions[:, 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = jnp.exp(0.5 * (low + (high - low) * fractions[:, 1]))
    side = jnp.sqrt(target)
    wide, narrow = jnp.round(side * root), jnp.round(side / root)
    return wide.astype(jnp.int32), narrow.astype(jnp.int32)
