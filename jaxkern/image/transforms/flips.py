"""Transforms that mirror images."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxkern.image.chain.fold import ChainBuilder
from jaxkern.image.program.program import Code, ProgramStep, Step, drawn_codes, step_values
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move, mirror
from jaxkern.image.transforms.transform import Size, Transform, as_number, set_fields


@dataclasses.dataclass(frozen=True)
class _RandomFlip(Transform):
    p: float = 0.5

    parameters: ClassVar[dict[str, str]] = {"flip": "bool"}
    geometric = True

    def __post_init__(self) -> None:
        set_fields(self, p=checks.probability(self.p))

    def _for_masks(self, fill: tuple[float, ...]) -> Transform:
        return self

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws whether one image is mirrored."""
        return {"flip": jax.random.uniform(key, dtype=jnp.float32) < self.p}

    def _mirrored(self, flip: Any, *coefficients: float) -> list[Step]:
        """Within a container that draws what is done, a flip is a warp by whole pixels."""
        return [
            (drawn_codes(flip, Code.WARP), step_values(*coefficients), ProgramStep((Code.WARP,)))
        ]


@dataclasses.dataclass(frozen=True)
class RandomHorizontalFlip(_RandomFlip):
    """Mirrors columns with probability p. Parameter an image: flip bool.

    >>> from jaxkern.image import RandomHorizontalFlip
    >>> RandomHorizontalFlip(0.5).p
    0.5
    """

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.flip(0, as_number(params["flip"]))

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [mirror(size, False, params["flip"])]

    def _program(self, params: dict[str, Any], size: Size) -> list[Step]:
        return self._mirrored(params["flip"], -1.0, 0.0, 0.0, 0.0, 1.0)


@dataclasses.dataclass(frozen=True)
class RandomVerticalFlip(_RandomFlip):
    """Mirrors rows with probability p. Parameter an image: flip bool.

    >>> from jaxkern.image import RandomVerticalFlip
    >>> RandomVerticalFlip(0.5).p
    0.5
    """

    def _fold(self, chain: ChainBuilder, params: dict[str, Any]) -> None:
        chain.flip(as_number(params["flip"]), 0)

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        return [mirror(size, params["flip"], False)]

    def _program(self, params: dict[str, Any], size: Size) -> list[Step]:
        return self._mirrored(params["flip"], 1.0, 0.0, 0.0, 0.0, -1.0)
