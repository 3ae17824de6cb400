"""How transforms move points: maps of coordinates that follow the pixels of each image.

Coordinates (x, y) count from the corner of the image, so that pixel k of a row reaches from k to
k + 1, and 0 to W lie inside.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import Number, is_static
from jaxkern.image.program.coefficients import forward_coefficients
from jaxkern.image.program.program import Code, Step


@dataclasses.dataclass(frozen=True)
class Move:
    """A map of points of each image, and what else becomes of boxes and keypoints.

    Attributes:
      forward: points f32 [N, P, 2] before to those after; NaN for what goes nowhere.
      used: in which images, a bool or bools [N]; in the others points stay.
      mirrored: bools, or bools [N], along x and y: there keypoints that name pixels move by 1 less.
      crops: whether pixels outside the image after it are lost: boxes are clamped to it.
      within: (top, left, height, width) before the move: boxes with a centre outside it are lost.
    """

    forward: Callable[[jax.Array], jax.Array]
    used: Any = True
    mirrored: tuple[Any, Any] = (False, False)
    crops: bool = True
    within: tuple[Number, Number, Number, Number] | None = None

    def where(self, used: Any) -> Move:
        """The move in images where `used`, too, a bool or bools [N]."""
        both = self.used & used if hasattr(used, "dtype") else (self.used if used else False)
        return dataclasses.replace(self, used=both)


def boxed(
    box: tuple[Number, Number, Number, Number],
    size: tuple[Number, Number],
    crops: bool = True,
    within: bool = False,
    used: Any = True,
) -> Move:
    """The box (top, left, height, width) of an image is resized to `size`."""
    top, left, height, width = box

    def forward(points: jax.Array) -> jax.Array:
        x = _resized(points[..., 0] - of_images(left), width, size[1])
        y = _resized(points[..., 1] - of_images(top), height, size[0])
        return jnp.stack([x, y], axis=-1)

    return Move(forward, used, crops=crops, within=box if within else None)


def _resized(place: jax.Array, length: Number, size: Number) -> Any:
    """Counted from the nearer end, so that both ends go to ends exactly."""
    ratio, last = _ratio(size, length), of_images(length)
    from_end = of_images(size) - (last - place) * ratio
    return jnp.where(2.0 * place > last, from_end, place * ratio)


def mirror(size: tuple[Number, Number], rows: Any, columns: Any) -> Move:
    """Rows, columns or both of images of `size` are mirrored where bools, or bools [N], say so."""

    def forward(points: jax.Array) -> jax.Array:
        x, y = points[..., 0], points[..., 1]
        x = jnp.where(_flags(columns), of_images(size[1]) - x, x)
        y = jnp.where(_flags(rows), of_images(size[0]) - y, y)
        return jnp.stack([x, y], axis=-1)

    return Move(forward, mirrored=(columns, rows), crops=False)


_WARPS = (Code.WARP, Code.PERSPECTIVE, Code.ELASTIC, Code.TURN)


def warps(steps: Sequence[Step]) -> list[Step]:
    """The steps of a program that may warp, which do nothing else.

    Raises:
      ValueError: for a program that takes a mean of differently warped copies.
    """
    if any(Code.KEEP in static.codes for _, _, static in steps):
        raise ValueError(
            "AugMix takes the mean of differently warped copies, in which masks, boxes and "
            "keypoints have no one place; wanted RandAugment, TrivialAugmentWide or colours"
        )
    found = []
    for code, values, static in steps:
        codes = tuple(each for each in static.codes if each in _WARPS)
        if codes:
            found.append((code, values, dataclasses.replace(static, codes=codes)))
    return found


def warped(steps: Sequence[Step], size: tuple[int, int]) -> list[Move]:
    """What the warps of a program on images of `size` move; its other operations move nothing."""
    moves = []
    for code, values, static in warps(steps):
        code, values = jnp.asarray(code), jnp.asarray(values, jnp.float32)
        drawn = [code == int(each) for each in static.codes]
        # A program leaves an image alone whose coefficients are not finite.
        used = functools.reduce(jnp.logical_or, drawn) & jnp.isfinite(values).all(axis=-1)
        moves.append(Move(_through(values, code == int(Code.WARP), size), used))
    return moves


def _through(
    values: jax.Array, affine: jax.Array, size: tuple[int, int]
) -> Callable[[jax.Array], jax.Array]:
    def forward(points: jax.Array) -> jax.Array:
        inverse = forward_coefficients(values, affine, size=size)
        a, b, c, d, e, f, g, h = jnp.moveaxis(inverse, -1, 0)[..., None]
        x, y = points[..., 0], points[..., 1]
        depth = g * x + h * y + 1.0
        # Not above 0: behind who looks at the plane.
        near = 1.0 / jnp.where(depth > 0.0, depth, jnp.nan)
        return jnp.stack([(a * x + b * y + c) * near, (d * x + e * y + f) * near], axis=-1)

    return forward


def of_images(value: Any) -> Any:
    """A number, or one an image, against values [N, P] as float32."""
    return jnp.asarray(value, jnp.float32).reshape(-1, 1)


def _flags(value: Any) -> Any:
    return jnp.asarray(value).astype(bool).reshape(-1, 1)


def _ratio(size: Number, length: Number) -> Any:
    if is_static(size, length):
        return np.float32(size / length) if length else np.float32(np.nan)
    return of_images(size) / of_images(length)


def moved_points(points: jax.Array, move: Move) -> jax.Array:
    """Points f32 [N, P, 2] after a move."""
    if move.used is True:
        return move.forward(points)
    return jnp.where(_flags(move.used)[..., None], move.forward(points), points)
