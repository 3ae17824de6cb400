"""The base class of all image transforms, and draws that several transforms share."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxkern.image.chain.axis import Box
from jaxkern.image.chain.axis import Size as Size
from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.program.program import Step
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move, warp_moves

Kind = Literal["chain", "program", "jax", "batch"]
Params = dict[str, Any]  # by name: of one image in `sample`, otherwise of a batch
Parts = list[tuple["Transform", Params]]  # transforms with their parameters, in order


class Transform:
    """Base class of the transforms of `Compose`, and of your own.

    A subclass draws the parameters of one image in `sample` and implements the method of its
    `kind`. Make it a frozen dataclass: its `repr` identifies it in the state of a pipeline.
    Constructors, and `Compose.apply` for images and parameters that do not fit, raise TypeError or
    ValueError with the argument's name and its valid values.

    =========  ==================  ==============================================================
    kind       method              how it runs
    =========  ==================  ==============================================================
    "jax"      ``transform``       a JAX function of one image, between native calls
    "program"  ``program``         steps of the image program, inside the native call
    "chain"    ``fold``            part of a fused chain, inside the native call
    "batch"    ``mixture``         mixes each image with its neighbour in the batch
    =========  ==================  ==============================================================

    Attributes:
      parameters: name and kind of each parameter of an image: "int", "bool", "float" or "number"
        (int or float), with a shape unless it is a scalar, as in "int[4]".
      kind: which method says what the transform does.
      linear: True if it is an affine map of each channel, which commutes with mixing.
      per_sample: True if parameters are drawn for each image; False if they are drawn once for a
        batch, from the key of its first record.
      expects_unit_range: True if values of float images must be from 0 to 1.
      geometric: True if it moves pixels, so that masks, boxes and keypoints must follow.
      needs_boxes: True if `sample` also takes the boxes of the image, f32 [K, 4] (left, top, right,
        bottom) after the preceding transforms, and their validity, bool [K].

    >>> import dataclasses, jax, numpy as np
    >>> from jaxkern.image import Compose, Transform
    >>> @dataclasses.dataclass(frozen=True)
    ... class RandomGamma(Transform):
    ...     low: float = 0.5
    ...     high: float = 2.0
    ...     parameters = {"gamma": "float"}
    ...     def sample(self, key, size):
    ...         return {"gamma": jax.random.uniform(key, minval=self.low, maxval=self.high)}
    ...     def transform(self, image, params):
    ...         return image ** params["gamma"]
    >>> images = np.full((1, 2, 2, 3), 51, np.uint8)
    >>> Compose([RandomGamma()]).apply(images, ({"gamma": 2.0},))[0, 0, 0].tolist()
    [10, 10, 10]
    """

    parameters: ClassVar[dict[str, str]] = {}
    kind: Kind = "jax"
    linear: bool = False
    expects_unit_range: ClassVar[bool] = False
    per_sample: bool = True
    geometric: bool = False
    needs_boxes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Run the checks of the dataclass's fields that are declared with `checked`."""
        for field in getattr(self, "__dataclass_fields__", {}).values():
            if "check" in field.metadata:
                value = field.metadata["check"](getattr(self, field.name), field.name)
                set_fields(self, **{field.name: value})

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draw the parameters of one image of `size` (height, width): a dict of arrays."""
        return {}

    def eval(self) -> tuple[Transform, ...]:
        """Return the transforms that replace this one in `Compose.eval`.

        By default a transform with parameters is dropped, and one without parameters is unchanged.
        """
        return () if self.parameters else (self,)

    def transform(self, image: jax.Array, params: Params) -> jax.Array:
        """Transform one image: the method of the kind "jax".

        Args:
          image: float32 [H, W, C]. uint8 levels are passed as x / 255.
          params: the parameters of this image, as `sample` draws them.

        Returns:
          The new image, of the same shape. For uint8 images it is clamped to 0 to 1 and rounded to
          the nearest level.
        """
        raise NotImplementedError(f"{self!r} must implement transform(image, params), or set kind")

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        """Return the steps on images of `size`, in order: the method of the kind "program".

        Args:
          params: parameters of the whole batch, arrays [N, ...] or [1, ...].
        """
        raise NotImplementedError(f"{self!r} must implement program(params, size)")

    def fold(self, chain: ChainBuilder, params: Params) -> None:
        """Add the transform to a chain: the method of the kind "chain".

        Args:
          params: parameters of the whole batch, Python numbers or arrays [N].
        """
        raise NotImplementedError(f"{type(self).__name__} must implement fold(chain, params)")

    def mixture(self, params: Params, size: tuple[int, int]) -> tuple[Any, Any, Any]:
        """Return how to mix images with their predecessors: the method of the kind "batch".

        Returns:
          lam of the pixels, the box i32 [N or 1, 4] that is copied from the predecessor, and lam of
          the labels.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement mixture(params, size)")

    def parts(self, params: Params, size: Size) -> Parts:
        """Return the transforms, with parameters, that together do what this one does."""
        return [(self, params)]

    def output_size(self, size: Size) -> Size:
        """Return (height, width) after the transform; None for a side that is unknown."""
        return size

    def size_after(self, size: Size, params: Params) -> Size:
        """Return (height, width) after the transform with these parameters, ints or [N]."""
        return self.output_size(size)

    def output_channels(self, channels: int) -> int:
        """Return the number of channels after the transform; kind "program" only."""
        return channels

    def frame_parameters(self, params: Params, frame: Any) -> Params:
        """Return the parameters of frames i32 [N] of clips, from their clips' parameters [N]."""
        return params

    def moves(self, params: Params, size: Size) -> list[Move]:
        """Return how a geometric transform moves points of images of `size`, in order."""
        return warp_moves(self.program(params, (size[0], size[1])), (size[0], size[1]))

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        """Return the transform of masks, for a geometric transform of the kind "chain".

        It takes the same parameters, selects the nearest label and fills with `fill`.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement for_masks(fill)")

    def valid_boxes(self, boxes: Any, valid: Any, size: Size) -> Any:
        """Return which valid boxes [N, K, 4] remain valid; they are already transformed."""
        return valid


class GeometricTransform(Transform):
    """Base class of dataclasses that move pixels as part of a fused chain."""

    kind = "chain"
    geometric = True

    def for_masks(self, fill: tuple[float, ...]) -> Transform:
        constant = getattr(self, "padding_mode", "constant") == "constant"
        changes = {"interpolation": "nearest", "canvas_fill": fill, "fill": fill if constant else 0}
        fields = dataclasses.fields(self)  # type: ignore[arg-type]
        own = {field.name: changes[field.name] for field in fields if field.name in changes}
        return dataclasses.replace(self, **own)  # type: ignore[type-var]


def check_transforms(transforms: Any, name: str = "transforms") -> tuple[Transform, ...]:
    if isinstance(transforms, Transform | str) or not isinstance(transforms, Iterable):
        raise TypeError(checks.unexpected(name, "a list of transforms", transforms))
    listed = tuple(transforms)
    for k, transform in enumerate(listed):
        if not isinstance(transform, Transform):
            raise TypeError(checks.unexpected(f"{name}[{k}]", "a transform", transform))
    if not listed:
        raise ValueError(f"{name}: expected at least one transform, got none")
    return listed


def as_number(flag: Any) -> Any:
    """Return a bool or bool array as 0 or 1."""
    return flag.astype("int32") if hasattr(flag, "astype") else int(flag)


def set_fields(instance: Any, **fields: Any) -> None:
    """Set fields of a frozen dataclass in its `__post_init__`."""
    for name, value in fields.items():
        object.__setattr__(instance, name, value)


TRIES = 10  # of the rejection loops, as in torchvision
BOX = dict.fromkeys(("top", "left", "height", "width"), "int")  # kinds of its parameters


def box_of(params: Params) -> Box:
    return params["top"], params["left"], params["height"], params["width"]


def uniform_between(fraction: Any, low: float, high: float) -> jax.Array:
    """Map a fraction in [0, 1) to a float32 from `low` to `high`."""
    return jnp.asarray(low + (high - low) * fraction, jnp.float32)


def uniform_below(fraction: jax.Array, count: Any) -> jax.Array:
    """Map a fraction in [0, 1) to an int32 from 0 to count - 1."""
    index = jnp.floor(fraction * jnp.asarray(count, jnp.float32)).astype(jnp.int32)
    return jnp.clip(index, 0, jnp.asarray(count, jnp.int32) - 1)


def sample_box_sizes(
    fractions: jax.Array, size: Size, scale: tuple[float, float], ratio: tuple[float, float]
) -> tuple[jax.Array, jax.Array]:
    """Return round(sqrt(area * r)) and round(sqrt(area / r)) for fractions [tries, 2]."""
    area = jnp.float32(size[0]) * jnp.float32(size[1])
    target = area * (scale[0] + (scale[1] - scale[0]) * fractions[:, 0])
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = jnp.exp(0.5 * (low + (high - low) * fractions[:, 1]))
    side = jnp.sqrt(target)
    wide, narrow = jnp.round(side * root), jnp.round(side / root)
    return wide.astype(jnp.int32), narrow.astype(jnp.int32)
