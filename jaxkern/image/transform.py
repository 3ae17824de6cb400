"""What every image transform is: parameters drawn for one image, and how it joins a chain."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

import jax

from jaxkern.image.fold import ChainBuilder

Size = tuple[Any, Any]  # height and width: ints, int32 scalars or arrays [N], or None if unknown


class Transform(abc.ABC):
    """A transform of one image, as torchvision's v2 transforms name and define it.

    `parameters` lists the per-image parameters with their kind, "int", "bool" or "float".
    """

    parameters: ClassVar[dict[str, str]] = {}
    linear: ClassVar[bool] = False  # a per-channel affine map, which commutes with mixing

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws the parameters of ONE image of `size` (height, width): a dict of scalars."""
        del key, size
        return {}

    def output_size(self, size: Size) -> Size:
        """(height, width) after the transform; None stands for what is not known."""
        return size

    def eval(self) -> tuple[Transform, ...]:
        """What stands for this transform when nothing is random."""
        return (self,)

    @abc.abstractmethod
    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        """Adds the transform with these parameters to a chain."""


def as_number(flag: Any) -> Any:
    """A bool or bool array as 0/1: an int, or int32 [N]."""
    return flag.astype("int32") if hasattr(flag, "astype") else int(flag)
