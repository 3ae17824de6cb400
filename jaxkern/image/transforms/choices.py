"""Containers of colour, warp and policy transforms that draw which of them an image gets."""

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
from jaxkern.image.transforms.transform import Size, Stage, Transform, set_fields


class _Container(Transform):
    """Draws the parameters of all its transforms, and which of them are used."""

    transforms: Any
    stage: ClassVar[Stage] = "program"

    def _own(self) -> dict[str, str]:
        """Kinds of what the container itself draws."""
        raise NotImplementedError

    def _checked_transforms(self) -> tuple[Transform, ...]:
        name = type(self).__name__
        if isinstance(self.transforms, Transform | str) or not isinstance(
            self.transforms, Sequence
        ):
            raise TypeError(f"transforms is {self.transforms!r}; wanted a list of transforms")
        if not self.transforms:
            raise ValueError("transforms is empty; wanted at least one transform")
        for place, inner in enumerate(self.transforms):
            if not isinstance(inner, Transform):
                raise TypeError(
                    f"transforms[{place}] is {inner!r}; wanted a transform of jaxkern.image"
                )
            programs = type(inner)._program is not Transform._program
            if not programs or inner.output_size(_PROBE) != _PROBE:
                raise ValueError(
                    f"transforms[{place}] is {inner!r}; {name} takes colour, warp, noise and "
                    "policy transforms, flips and erasures, which keep an image's size, and "
                    "containers of them: put others beside it in Compose"
                )
        return tuple(self.transforms)

    @property
    def parameters(self) -> dict[str, str]:  # type: ignore[override]
        """Its own, and those of transforms[k] by names with the prefix "k."."""
        return self._own() | {
            f"{place}.{name}": kind
            for place, inner in enumerate(self.transforms)
            for name, kind in inner.parameters.items()
        }

    def _sampled(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """The parameters of all transforms; key 0 is for the container's own."""
        return {
            f"{place}.{name}": value
            for place, inner in enumerate(self.transforms)
            for name, value in inner.sample(jax.random.fold_in(key, place + 1), size).items()
        }

    def _channels(self, channels: int) -> int:
        for place, inner in enumerate(self.transforms):
            left = inner._channels(channels)
            if left != channels:
                raise ValueError(
                    f"transforms[{place}] is {inner!r}, which makes {left} of {channels} channels; "
                    f"{type(self).__name__} leaves some images alone: wanted one that keeps them"
                )
        return channels

    @property
    def geometric(self) -> bool:  # type: ignore[override]
        """Whether one of its transforms is."""
        return any(inner.geometric for inner in self.transforms)

    def _turns(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        """Places in transforms in the order they come, and where they are used: bool or [N]."""
        raise NotImplementedError

    def _given(self, params: dict[str, Any]) -> list[dict[str, Any]]:
        """The parameters of each transform."""
        return [
            {name: params[f"{place}.{name}"] for name in inner.parameters}
            for place, inner in enumerate(self.transforms)
        ]

    def _of_frames(self, params: dict[str, Any], frame: Any) -> dict[str, Any]:
        given = zip(self.transforms, self._given(params), strict=True)
        return params | {
            f"{place}.{name}": value
            for place, (inner, of_inner) in enumerate(given)
            for name, value in inner._of_frames(of_inner, frame).items()
        }

    def _program(self, params: dict[str, Any], size: Size) -> list[Step]:
        given = zip(self.transforms, self._given(params), strict=True)
        programs = [inner._program(of_inner, (size[0], size[1])) for inner, of_inner in given]
        turns = self._turns(params)
        return [step for place, used in turns for step in _where(used, programs[place])]

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        given = zip(self.transforms, self._given(params), strict=True)
        moves = [
            inner._moves(of_inner, size) if inner.geometric else [] for inner, of_inner in given
        ]
        return [move.where(used) for place, used in self._turns(params) for move in moves[place]]


_PROBE = (13, 17)  # a size that no transform gives by chance


def _where(used: Any, steps: Sequence[Step]) -> list[Step]:
    """`steps` in images where `used`, bool or bool [N]."""
    used = jnp.atleast_1d(jnp.asarray(used))
    return [
        (jnp.where(used, code, np.int32(Code.NONE)), values, static)
        for code, values, static in steps
    ]


@dataclasses.dataclass(frozen=True)
class RandomApply(_Container):
    """Applies all of `transforms`, one after another, to an image with probability p.

    Args:
      transforms: colour, warp, noise and policy transforms, flips, erasures, and containers of
        them.
      p: from 0 to 1.
    Parameters an image: apply bool, and those of transforms[k] with the prefix "k.".
    Raises: TypeError for what is no transform; ValueError for an empty list, other transforms and
    p outside [0, 1].

    >>> from jaxkern.image import ColorJitter, RandomApply
    >>> RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8).parameters["0.hue"]
    'float'
    """

    transforms: Any
    p: float = 0.5

    def __post_init__(self) -> None:
        set_fields(self, transforms=self._checked_transforms(), p=checks.probability(self.p))

    def _own(self) -> dict[str, str]:
        return {"apply": "bool"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws whether the transforms are applied to one image, and their parameters."""
        fraction = jax.random.uniform(jax.random.fold_in(key, 0), dtype=jnp.float32)
        return {"apply": fraction < self.p, **self._sampled(key, size)}

    def _turns(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        return [(place, params["apply"]) for place in range(len(self.transforms))]


@dataclasses.dataclass(frozen=True)
class RandomChoice(_Container):
    """Applies one of `transforms` to an image.

    Args:
      transforms: as of `RandomApply`.
      p: their probabilities, divided by their sum; None for all alike.
    Parameters an image: choice i32, a position in transforms (any other: none is applied), and
    those of transforms[k] with the prefix "k.".
    Raises: TypeError for what is no transform; ValueError for an empty list, other transforms and
    probabilities that are negative, not finite, all 0 or of another number.

    >>> from jaxkern.image import RandomChoice, RandomHorizontalFlip, RandomVerticalFlip
    >>> RandomChoice([RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)], p=[3, 1]).p
    (0.75, 0.25)
    """

    transforms: Any
    p: Any = None

    def __post_init__(self) -> None:
        transforms = self._checked_transforms()
        count = len(transforms)
        given = (1.0,) * count if self.p is None else self.p
        if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
            raise TypeError(f"p={given!r}; wanted {count} numbers, one a transform, or None")
        p = np.asarray([checks.number(each, "p", "from 0") for each in given])
        if p.shape != (count,) or not np.isfinite(p).all() or (p < 0).any() or p.sum() == 0:
            raise ValueError(
                f"p={self.p!r}; wanted {count} finite numbers from 0, one a transform, not all 0"
            )
        set_fields(self, transforms=transforms, p=tuple((p / p.sum()).tolist()))

    def _own(self) -> dict[str, str]:
        return {"choice": "int"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws which transform one image gets, and the parameters of all."""
        fraction = jax.random.uniform(jax.random.fold_in(key, 0), dtype=jnp.float32)
        # Bounds between the choices; equal ones, of probability 0, hold no fraction.
        bounds = np.cumsum(self.p)[:-1].astype(np.float32)
        choice = jnp.sum(fraction >= jnp.asarray(bounds), dtype=jnp.int32)
        return {"choice": choice, **self._sampled(key, size)}

    def _turns(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        return [(place, params["choice"] == place) for place in range(len(self.transforms))]


@dataclasses.dataclass(frozen=True)
class RandomOrder(_Container):
    """Applies all of `transforms` in an order of the image's own.

    Args:
      transforms: as of `RandomApply`.
    Parameters an image: order i32 [number of transforms], positions in transforms, and those of
    transforms[k] with the prefix "k.".
    Raises: TypeError for what is no transform; ValueError for an empty list and other transforms.

    >>> from jaxkern.image import RandomAffine, RandomInvert, RandomOrder
    >>> RandomOrder([RandomInvert(), RandomAffine(10)]).parameters["order"]
    'int[2]'
    """

    transforms: Any

    def __post_init__(self) -> None:
        set_fields(self, transforms=self._checked_transforms())

    def _own(self) -> dict[str, str]:
        return {"order": f"int[{len(self.transforms)}]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws the order for one image, and the parameters of all transforms."""
        places = jnp.arange(len(self.transforms), dtype=jnp.int32)
        order = jax.random.permutation(jax.random.fold_in(key, 0), places)
        return {"order": order, **self._sampled(key, size)}

    def _turns(self, params: dict[str, Any]) -> list[tuple[int, Any]]:
        # Each turn has all transforms, of which an image runs one.
        places, order = range(len(self.transforms)), params["order"]
        return [(place, order[:, turn] == place) for turn in places for place in places]
