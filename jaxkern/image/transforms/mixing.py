"""Transforms that mix each image with its neighbour in the batch: MixUp and CutMix."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.transforms import checks
from jaxkern.image.transforms.draws import uniform_below
from jaxkern.image.transforms.transform import Size, Stage, Transform, set_fields


@dataclasses.dataclass(frozen=True)
class MixUp(Transform):
    """lam * image + (1 - lam) * previous image of the batch; labels alike.

    Args:
      alpha: lam is drawn from Beta(alpha, alpha).
      per_sample: draw one lam an image; otherwise one a batch, from the first record's key.
    Parameter an image: lam f32.
    Raises: ValueError for an alpha that is not above 0.

    >>> from jaxkern.image import MixUp
    >>> MixUp(alpha=0.2).per_sample
    False
    """

    alpha: float = 1.0
    per_sample: bool = False

    stage: ClassVar[Stage] = "batch"
    parameters: ClassVar[dict[str, str]] = {"lam": "float"}

    def __post_init__(self) -> None:
        set_fields(
            self, alpha=checks.positive(self.alpha, "alpha"), per_sample=bool(self.per_sample)
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one lam."""
        return {"lam": jax.random.beta(key, self.alpha, self.alpha, dtype=jnp.float32)}

    def _mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        return params["lam"], np.zeros((1, 4), np.int32), params["lam"]


@dataclasses.dataclass(frozen=True)
class CutMix(Transform):
    """Pastes a box of the previous image of the batch; labels follow the box's share.

    The box has sides sqrt(1 - lam) of the image's and a uniform centre, and is clipped to the
    image; lam is then 1 - (clipped area) / (image area), in `sample` and again in `apply`, so that
    pixels and labels always agree.

    Args:
      alpha: lam is drawn from Beta(alpha, alpha).
      per_sample: draw one box an image; otherwise one a batch, from the first record's key.
    Parameters an image: lam f32; top, left, height, width i32.
    Raises: ValueError for an alpha that is not above 0.

    >>> from jaxkern.image import CutMix
    >>> CutMix(alpha=1.0).alpha
    1.0
    """

    alpha: float = 1.0
    per_sample: bool = False

    stage: ClassVar[Stage] = "batch"
    parameters: ClassVar[dict[str, str]] = {
        "lam": "float",
        **dict.fromkeys(("top", "left", "height", "width"), "int"),
    }

    def __post_init__(self) -> None:
        set_fields(
            self, alpha=checks.positive(self.alpha, "alpha"), per_sample=bool(self.per_sample)
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one box, clipped to an image of `size`, and its lam."""
        beta_key, place_key = jax.random.split(key)
        lam = jax.random.beta(beta_key, self.alpha, self.alpha, dtype=jnp.float32)
        fractions = jax.random.uniform(place_key, (2,), jnp.float32)
        half = 0.5 * jnp.sqrt(1.0 - lam)
        box = []
        for fraction, side in zip(fractions, size, strict=True):
            centre = uniform_below(fraction, side)
            reach = jnp.floor(half * side).astype(jnp.int32)
            first, last = jnp.maximum(centre - reach, 0), jnp.minimum(centre + reach, side)
            box.append((first, last - first))
        (top, height), (left, width) = box
        share = _share(height, width, size)
        return {"lam": 1.0 - share, "top": top, "left": left, "height": height, "width": width}

    def _mixture(self, params: dict[str, Any], size: tuple[int, int]) -> tuple[Any, Any, Any]:
        parts = []
        for start, length, side in (
            (params["top"], params["height"], size[0]),
            (params["left"], params["width"], size[1]),
        ):
            start, length = jnp.atleast_1d(start), jnp.atleast_1d(length)
            first = jnp.clip(start, 0, side)
            # Start and length are never added where both are positive: the sum may leave int32.
            inside = jnp.minimum(start, 0) + jnp.maximum(length, 0)
            parts.append((first, jnp.clip(inside, 0, side - first)))
        (top, height), (left, width) = parts
        share = _share(height, width, size)
        box = jnp.stack(jnp.broadcast_arrays(top, left, height, width), axis=-1)
        return np.ones(1, np.float32), box.astype(jnp.int32), 1.0 - share


def _share(height: Any, width: Any, size: tuple[int, int]) -> Any:
    """What part of an image a box takes; in float32, as the number of pixels may leave int32."""
    return height.astype(jnp.float32) * width.astype(jnp.float32) / float(size[0] * size[1])
