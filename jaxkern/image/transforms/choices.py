"""Containers that draw which of their transforms an image gets, and in which order."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.program.program import Code, Step
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.moves import Move
from jaxkern.image.transforms.transform import (
    Params,
    Parts,
    Size,
    Transform,
    check_transforms,
    set_fields,
)

_PROBE = (13, 17)  # a size that no transform returns by chance


def _contained(value: Any, name: str) -> tuple[Transform, ...]:
    transforms = check_transforms(value, name)
    for k, inner in enumerate(transforms):
        has_program = type(inner).program is not Transform.program
        if not has_program or inner.output_size(_PROBE) != _PROBE:
            raise ValueError(
                f"{name}[{k}]: RandomApply, RandomChoice and RandomOrder expected program steps "
                f"that keep the size, got {inner!r}"
            )
    return transforms


class _Container(Transform):
    """Base class: draws the parameters of all its transforms, and which of them are applied."""

    transforms: Any
    kind = "program"

    def _set_parameters(self, **own: str) -> None:
        """Set the parameters, `own` and those of all transforms, and `geometric`."""
        of_transforms = {
            f"{k}.{name}": kind
            for k, inner in enumerate(self.transforms)
            for name, kind in inner.parameters.items()
        }
        geometric = any(inner.geometric for inner in self.transforms)
        set_fields(self, parameters=own | of_transforms, geometric=geometric)

    def _draw(self, key: jax.Array) -> dict[str, jax.Array]:
        """Draw the container's own parameters."""
        raise NotImplementedError

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return self._draw(jax.random.fold_in(key, 0)) | {
            f"{k}.{name}": value
            for k, inner in enumerate(self.transforms)
            for name, value in inner.sample(jax.random.fold_in(key, k + 1), size).items()
        }

    def output_channels(self, channels: int) -> int:
        for k, inner in enumerate(self.transforms):
            if inner.output_channels(channels) != channels:
                raise ValueError(f"transforms[{k}]: expected {channels} channels from {inner!r}")
        return channels

    def _schedule(self, params: Params) -> list[tuple[int, Any]]:
        """Return indices of transforms in order, each with the images that it is applied to."""
        raise NotImplementedError

    def _split(self, params: Params) -> Parts:
        return [
            (inner, {name: params[f"{k}.{name}"] for name in inner.parameters})
            for k, inner in enumerate(self.transforms)
        ]

    def frame_parameters(self, params: Params, frame: Any) -> Params:
        return params | {
            f"{k}.{name}": value
            for k, (inner, of_inner) in enumerate(self._split(params))
            for name, value in inner.frame_parameters(of_inner, frame).items()
        }

    def program(self, params: Params, size: Size) -> list[Step]:
        programs = [inner.program(own, (size[0], size[1])) for inner, own in self._split(params)]
        return [step for k, used in self._schedule(params) for step in _where(used, programs[k])]

    def moves(self, params: Params, size: Size) -> list[Move]:
        moves = [
            inner.moves(own, size) if inner.geometric else [] for inner, own in self._split(params)
        ]
        return [move.where(used) for k, used in self._schedule(params) for move in moves[k]]


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

    >>> from jaxkern.image import ColorJitter, RandomApply
    >>> RandomApply([ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8).parameters["0.hue"]
    'float'
    """

    transforms: Any = checked(_contained)
    p: float = checked(checks.probability, 0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_parameters(apply="bool")

    def _draw(self, key: jax.Array) -> dict[str, jax.Array]:
        return {"apply": jax.random.uniform(key, dtype=jnp.float32) < self.p}

    def _schedule(self, params: Params) -> list[tuple[int, Any]]:
        return [(k, params["apply"]) for k in range(len(self.transforms))]


@dataclasses.dataclass(frozen=True)
class RandomChoice(_Container):
    """Apply one of `transforms` to an image.

    Args:
      transforms: as in `RandomApply`.
      p: their probabilities, normalized to sum 1; None for equal ones.
    Parameters of an image: choice i32, an index of transforms (any other value applies none), and
    those of transforms[k] with the prefix "k.".

    >>> from jaxkern.image import RandomChoice, RandomHorizontalFlip, RandomVerticalFlip
    >>> RandomChoice([RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)], p=[3, 1]).p
    (0.75, 0.25)
    """

    transforms: Any = checked(_contained)
    p: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.transforms)
        p = (1.0,) * count if self.p is None else self.p
        message = checks.unexpected(
            "p", f"{count} finite numbers from 0, not all 0, one per transform, or None", self.p
        )
        if isinstance(p, str) or not isinstance(p, Sequence | np.ndarray):
            raise TypeError(message)
        p = np.asarray([checks.number(each, "p", "from 0") for each in p])
        if p.shape != (count,) or not np.isfinite(p).all() or (p < 0).any() or p.sum() == 0:
            raise ValueError(message)
        set_fields(self, p=tuple((p / p.sum()).tolist()))
        self._set_parameters(choice="int")

    def _draw(self, key: jax.Array) -> dict[str, jax.Array]:
        fraction = jax.random.uniform(key, dtype=jnp.float32)
        # Two equal bounds contain no fraction: a transform of probability 0.
        bounds = np.cumsum(self.p)[:-1].astype(np.float32)
        return {"choice": jnp.sum(fraction >= jnp.asarray(bounds), dtype=jnp.int32)}

    def _schedule(self, params: Params) -> list[tuple[int, Any]]:
        return [(k, params["choice"] == k) for k in range(len(self.transforms))]


@dataclasses.dataclass(frozen=True)
class RandomOrder(_Container):
    """Apply all of `transforms` in an order drawn for each image.

    Args:
      transforms: as in `RandomApply`.
    Parameters of an image: order i32 [number of transforms], indices of transforms, and those of
    transforms[k] with the prefix "k.".

    >>> from jaxkern.image import RandomAffine, RandomInvert, RandomOrder
    >>> RandomOrder([RandomInvert(), RandomAffine(10)]).parameters["order"]
    'int[2]'
    """

    transforms: Any = checked(_contained)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set_parameters(order=f"int[{len(self.transforms)}]")

    def _draw(self, key: jax.Array) -> dict[str, jax.Array]:
        indices = jnp.arange(len(self.transforms), dtype=jnp.int32)
        return {"order": jax.random.permutation(key, indices)}

    def _schedule(self, params: Params) -> list[tuple[int, Any]]:
        # Each position lists all transforms; an image runs one of them.
        indices, order = range(len(self.transforms)), params["order"]
        return [(k, order[:, position] == k) for position in indices for k in indices]
