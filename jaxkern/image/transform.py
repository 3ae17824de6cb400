"""What every image transform is: parameters drawn for one image, and how it joins a chain."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import jax

from jaxkern.image.fold import ChainBuilder
from jaxkern.image.program import Step

Stage = Literal["image", "program", "batch"]
Size = tuple[Any, Any]  # height and width: ints, int32 scalars or arrays [N], or None if unknown


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
    """

    parameters: ClassVar[dict[str, str]] = {}
    stage: ClassVar[Stage] = "image"
    linear: ClassVar[bool] = False
    per_sample: bool = True

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws the parameters of ONE image of `size` (height, width): a dict of scalars."""
        del key, size
        return {}

    def output_size(self, size: Size) -> Size:
        """(height, width) after the transform; None stands for what is not known."""
        return size

    def eval(self) -> tuple[Transform, ...]:
        """What stands for this transform when nothing is random: nothing, where it draws all."""
        return () if self.parameters else (self,)

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

    def _mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        """Of the stage "batch", whose partner is the previous image (a roll by 1).

        Returns lam of the pixels, box i32 [N or 1, 4] of the partner's pixels, lam of the labels.
        """
        raise NotImplementedError


def as_number(flag: Any) -> Any:
    """A bool or bool array as 0/1: an int, or int32 [N]."""
    return flag.astype("int32") if hasattr(flag, "astype") else int(flag)
