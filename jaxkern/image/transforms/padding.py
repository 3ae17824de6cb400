"""Borders: `Pad`, and windows of an image that may leave it."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.chain.plan import Padding
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move, boxed
from jaxkern.image.transforms.transform import Size, Transform, set_fields


def show(chain: ChainBuilder, mode: str, start: Any, size: Any, fill: Any) -> None:
    """A window of the image that may leave it."""
    if mode == "constant":
        chain.window(start, size, chain.values(fill, "fill"))
    else:
        chain.extend(start, size, Padding[mode.upper()])


def constant_padding(transform: Transform, mode: str) -> None:
    """torchvision, too, moves boxes and keypoints into constant borders only."""
    if mode != "constant":
        raise ValueError(
            f"{transform!r} repeats pixels in its border, and with them what boxes and keypoints "
            'name; wanted padding_mode="constant" beside boxes or keypoints'
        )


@dataclasses.dataclass(frozen=True)
class Pad(Transform):
    """Adds a border, of a constant or of the image's own pixels.

    Args:
      padding: an integer, (left and right, top and bottom), or (left, top, right, bottom).
      fill: a number, or one a channel, in the value space at this point of the chain.
      padding_mode: "constant", "edge" (the outermost pixels), "reflect" (the image mirrored about
        them; less padding than pixels) or "symmetric" (mirrored with them twice; at most as much).
        Images of different sizes in one batch are mirrored as often as it takes.
    Raises: ValueError for negative or ill-shaped padding, other padding modes, a fill of channels
      beside one that is not constant, and in `apply` for borders that are too wide to mirror.

    >>> from jaxkern.image import Pad
    >>> Pad(4).output_size((32, 32))
    (40, 40)
    """

    padding: Any
    fill: Any = 0
    padding_mode: str = "constant"

    geometric = True

    def __post_init__(self) -> None:
        set_fields(
            self,
            padding=checks.padding_sides(self.padding),
            fill=checks.per_channel(self.fill, "fill"),
            padding_mode=checks.padding_mode(self.padding_mode, self.fill),
        )

    def output_size(self, size: Size) -> Size:
        """Height and width with the border."""
        left, top, right, bottom = self.padding
        height, width = size
        return (
            None if height is None else height + (top + bottom),
            None if width is None else width + (left + right),
        )

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return dataclasses.replace(self, fill=fill if self.padding_mode == "constant" else 0)

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        constant_padding(self, self.padding_mode)
        padded = self.output_size(size)
        return [boxed((-self.padding[1], -self.padding[0], *padded), padded)]

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        if any(self.padding):
            left, top, right, bottom = self.padding
            before, after = (top, left), (bottom, right)
            size, limit = self.output_size(chain.size), chain.bounded
            checks.mirrored_padding(self.padding_mode, before, after, chain.size, "Pad")
            show(chain, self.padding_mode, (-top, -left), size, self.fill)
            chain.bound(None if limit is None else self.output_size(limit))
