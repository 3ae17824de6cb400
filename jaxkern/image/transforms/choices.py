"""Containers that draw which of their transforms an image gets, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.program.program import Code, Step
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move
from jaxkern.image.transforms.transform import (
    Kind,
    Size,
    Transform,
    checked_transforms,
    set_fields,
)


class _Container(Transform):
    """Base class: draws the parameters of all its transforms, and which of them are applied."""

    transforms: Any
    kind: ClassVar[Kind] = "program"

    def _own_parameters(self) -> dict[str, str]:
        """Return the kinds of the container's own parameters."""
        raise NotImplementedError

    def _checked_transforms(self) -> tuple[Transform, ...]:
        transforms = checked_transforms(self.transforms)
        for k, inner in enumerate(transforms):
            has_program = type(inner).program is not Transform.program
            if not has_program or inner.output_size(_PROBE) != _PROBE:
                raise ValueError(
                    f"transforms[{k}]: {type(self).__name__} expected a transform with program "
                    f"steps that keeps the image size, got {inner!r}; put it into the Compose"
                )
        return transforms

    @property
    def parameters(self) -> dict[str, str]:  # type: ignore[override]
        return self._own_parameters() | {
            f"{k}.{name}": kind
            for k, inner in enumerate(self.transforms)
            for name, kind in inner.parameters.items()
        }

    def _sample_transforms(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draw the parameters of all transforms; key 0 is the container's."""
        return {
            f"{k}.{name}": value
            for k, inner in enumerate(self.transforms)
            for name, value in inner.sample(jax.random.fold_in(key, k + 1), size).items()
        }

    def output_channels(self, channels: int) -> int:
        for k, inner in enumerate(self.transforms):
            count = inner.output_channels(channels)
            if count != channels:
                raise ValueError(
                    f"transforms[{k}]: {type(self).__name__} expected a transform that keeps "
                    f"{channels} channels, got {inner!r}, which returns {count}"
                )
        return channels

    @property
    def geometric(self) -> bool:  # type: ignore[override]
        return any(inner.geometric for inner in self.transforms)

    def _schedule(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        """Return indices of transforms in order, each with the images that it is applied to."""
        raise NotImplementedError

    def _split(self, params: dict[str, Any]) -> list[tuple[Transform, dict[str, Any]]]:
        """Return each transform with its parameters."""
        return [
            (inner, {name: params[f"{k}.{name}"] for name in inner.parameters})
            for k, inner in enumerate(self.transforms)
        ]

    def frame_parameters(self, params: dict[str, Any], frame: Any) -> dict[str, Any]:
        return params | {
            f"{k}.{name}": value
            for k, (inner, of_inner) in enumerate(self._split(params))
            for name, value in inner.frame_parameters(of_inner, frame).items()
        }

    def program(self, params: dict[str, Any], size: Size) -> list[Step]:
        programs = [inner.program(own, (size[0], size[1])) for inner, own in self._split(params)]
        return [step for k, used in self._schedule(params) for step in _where(used, programs[k])]

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        moves = [
            inner.moves(own, size) if inner.geometric else [] for inner, own in self._split(params)
        ]
        return [move.where(used) for k, used in self._schedule(params) for move in moves[k]]


_PROBE = (13, 17)  # a size that no transform returns by chance


def _where(used: Any, steps: Sequence[Step]) -> list[Step]:
    """Restrict steps to the images where `used`, bool or bool [N], is True."""
    used = jnp.atleast_1d(jnp.asarray(used))
    return [
        (jnp.where(used, code, np.int32(Code.NONE)), values, static)
        for code, values, static in steps
    ]


@dataclasses.dataclass(frozen=True)
class RandomApply(_Container):
    """Apply all of `transforms` in order, to an image with probability p.

    Args:
      transforms: colour, warp, noise and policy transforms, flips, erasures, your own of the kind
        "program", and containers of them.
      p: probability of applying `transforms`, from 0 to 1.
    Parameters of an image: apply bool, and those of transforms[k] with the prefix "k.".
    Raises: TypeError for an invalid type; ValueError for an empty list, other transforms and p
    outside [0, 1].

    >>> from jaxkern.image import ColorJitter, RandomApply
    >>> RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8).parameters["0.hue"]
    'float'
    """

    transforms: Any
    p: float = 0.5

    def __post_init__(self) -> None:
        set_fields(self, transforms=self._checked_transforms(), p=checks.probability(self.p))

    def _own_parameters(self) -> dict[str, str]:
        return {"apply": "bool"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fraction = jax.random.uniform(jax.random.fold_in(key, 0), dtype=jnp.float32)
        return {"apply": fraction < self.p, **self._sample_transforms(key, size)}

    def _schedule(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        return [(k, params["apply"]) for k in range(len(self.transforms))]


@dataclasses.dataclass(frozen=True)
class RandomChoice(_Container):
    """Apply one of `transforms` to an image.

    Args:
      transforms: as in `RandomApply`.
      p: their probabilities, normalized to sum 1; None for equal ones.
    Parameters of an image: choice i32, an index of transforms (any other value applies none), and
    those of transforms[k] with the prefix "k.".
    Raises: TypeError for an invalid type; ValueError for an empty list, other transforms, and
    probabilities that are negative, not finite, all 0 or not one per transform.

    >>> from jaxkern.image import RandomChoice, RandomHorizontalFlip, RandomVerticalFlip
    >>> RandomChoice([RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)], p=[3, 1]).p
    (0.75, 0.25)
    """

    transforms: Any
    p: Any = None

    def __post_init__(self) -> None:
        transforms = self._checked_transforms()
        count = len(transforms)
        p = (1.0,) * count if self.p is None else self.p
        message = checks.unexpected(
            "p", f"{count} finite numbers from 0, not all 0, one per transform, or None", self.p
        )
        if isinstance(p, str) or not isinstance(p, Sequence | np.ndarray):
            raise TypeError(message)
        p = np.asarray([checks.number(each, "p", "from 0") for each in p])
        if p.shape != (count,) or not np.isfinite(p).all() or (p < 0).any() or p.sum() == 0:
            raise ValueError(message)
        set_fields(self, transforms=transforms, p=tuple((p / p.sum()).tolist()))

    def _own_parameters(self) -> dict[str, str]:
        return {"choice": "int"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        fraction = jax.random.uniform(jax.random.fold_in(key, 0), dtype=jnp.float32)
        # Two equal bounds contain no fraction: a transform of probability 0.
        bounds = np.cumsum(self.p)[:-1].astype(np.float32)
        choice = jnp.sum(fraction >= jnp.asarray(bounds), dtype=jnp.int32)
        return {"choice": choice, **self._sample_transforms(key, size)}

    def _schedule(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        return [(k, params["choice"] == k) for k in range(len(self.transforms))]


@dataclasses.dataclass(frozen=True)
class RandomOrder(_Container):
    """Apply all of `transforms` in an order drawn for each image.

    Args:
      transforms: as in `RandomApply`.
    Parameters of an image: order i32 [number of transforms], indices of transforms, and those of
    transforms[k] with the prefix "k.".
    Raises: TypeError for an invalid type; ValueError for an empty list and other transforms.

    >>> from jaxkern.image import RandomAffine, RandomInvert, RandomOrder
    >>> RandomOrder([RandomInvert(), RandomAffine(10)]).parameters["order"]
    'int[2]'
    """

    transforms: Any

    def __post_init__(self) -> None:
        set_fields(self, transforms=self._checked_transforms())

    def _own_parameters(self) -> dict[str, str]:
        return {"order": f"int[{len(self.transforms)}]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        indices = jnp.arange(len(self.transforms), dtype=jnp.int32)
        order = jax.random.permutation(jax.random.fold_in(key, 0), indices)
        return {"order": order, **self._sample_transforms(key, size)}

    def _schedule(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        # Each position lists all transforms; an image runs one of them.
        indices, order = range(len(self.transforms)), params["order"]
        return [(k, order[:, position] == k) for position in indices for k in indices]
