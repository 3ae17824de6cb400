"""Transforms that turn, shear or tilt whole images: steps of an image program."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import is_static
from jaxkern.image.program.coefficients import (
    affine_coefficients,
    perspective_coefficients,
    turned_size,
)
from jaxkern.image.program.program import Code, ProgramStep, Step, drawn_codes, step_values
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.crops import Pad, RandomCrop
from jaxkern.image.transforms.moves import Move
from jaxkern.image.transforms.transform import (
    Size,
    Stage,
    Transform,
    between,
    set_fields,
    uniform_below,
)

NO_FILL = (math.nan,)  # zeros outside, which bilinear weights do not mask


def _numbers(value: Any, name: str, lengths: tuple[int, ...], wanted: str) -> tuple[float, ...]:
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise TypeError(f"{name}={value!r}; wanted {wanted}")
    if len(value) not in lengths:
        raise ValueError(f"{name}={value!r} has length {len(value)}; wanted {wanted}")
    found = tuple(checks.number(item, name, f"each: {wanted}") for item in value)
    if not all(math.isfinite(item) for item in found):
        raise ValueError(f"{name}={value!r} is not finite; wanted {wanted}")
    return found


def _angles(value: Any, name: str, lengths: tuple[int, ...]) -> tuple[float, ...]:
    """Degrees (low, high, ...): a number stands for from minus to plus itself."""
    if isinstance(value, numbers.Real):
        reach = float(value)
        if not 0.0 <= reach < math.inf:
            raise ValueError(
                f"{name}={value!r}; wanted a number from 0 up, for [-{name}, {name}], or a range"
            )
        return (-reach, reach)
    sizes = " or ".join(map(str, lengths))
    found = _numbers(value, name, lengths, f"a number, or {sizes} numbers: low, high of each axis")
    for low, high in zip(found[::2], found[1::2], strict=True):
        if low > high:
            raise ValueError(f"{name}={value!r}; wanted low, high in increasing order")
    return found


def _center(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    found = _numbers(value, "center", (2,), "(x, y) from the top left corner, or None")
    return (found[0], found[1])


def warp_fill(value: Any) -> tuple[float, ...] | None:
    if isinstance(value, jax.core.Tracer):
        raise TypeError("fill is traced, but a compiled program holds it; give numbers or None")
    return None if value is None else checks.per_channel(value, "fill")


@dataclasses.dataclass(frozen=True)
class _Warp(Transform):
    stage: ClassVar[Stage] = "program"
    geometric = True

    def _warped(self, coefficients: Any, moved: Any = True, code: Code = Code.WARP) -> list[Step]:
        fill = self.fill  # type: ignore[attr-defined]
        static = ProgramStep(
            (code,),
            interpolation=self.interpolation,  # type: ignore[attr-defined]
            fill=NO_FILL if fill is None else fill,
        )
        return [(drawn_codes(moved, code), coefficients, static)]


@dataclasses.dataclass(frozen=True)
class RandomRotation(_Warp):
    """Turns each image about its middle by an angle uniform in `degrees`, counter-clockwise.

    Args:
      degrees: (low, high), or a number for (-degrees, degrees).
      interpolation: "nearest" or "bilinear".
      expand: make images as large as the turned one, for which `degrees` must be one angle twice.
      center: (x, y) of the point that stays, from the top left corner; None: the middle.
      fill: a number, or one a channel, for what comes from outside; None: zeros.
    Parameter an image: angle f32, in degrees.
    Raises: TypeError or ValueError for ranges that are none, other words, and expand=True where
    the output's size would depend on the angle: pad first to keep the corners.

    >>> from jaxkern.image import RandomRotation
    >>> RandomRotation(30).degrees
    (-30.0, 30.0)
    >>> RandomRotation((45, 45), expand=True).output_size((20, 30))
    (36, 36)
    """

    degrees: Any
    interpolation: str = "nearest"
    expand: bool = False
    center: Any = None
    fill: Any = 0

    parameters: ClassVar[dict[str, str]] = {"angle": "number"}

    def __post_init__(self) -> None:
        set_fields(
            self,
            degrees=_angles(self.degrees, "degrees", (2,)),
            interpolation=checks.choice(self.interpolation, "interpolation", checks.INTERPOLATIONS),
            expand=bool(self.expand),
            center=_center(self.center),
            fill=warp_fill(self.fill),
        )
        if self.expand and self.degrees[0] != self.degrees[1]:
            raise ValueError(
                f"expand=True with degrees={self.degrees} makes sizes that depend on the angle; "
                "wanted one angle, degrees=(a, a), or expand=False: put a Pad before the rotation "
                "to keep the corners"
            )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one angle."""
        return {"angle": between(jax.random.uniform(key, dtype=jnp.float32), *self.degrees)}

    def output_size(self, size: Size) -> Size:
        """That of the turned image where it is expanded, else `size`."""
        if not self.expand:
            return size
        height, width = size
        if height is None or width is None:
            return (None, None)
        if not is_static(height, width):
            raise ValueError(
                "RandomRotation(expand=True) got images that differ in size; put "
                "RandomResizedCrop, CenterCrop, RandomCrop or Resize((h, w)) before it"
            )
        return turned_size((height, width), self.degrees[0], self.center)

    def _spread(self, params: dict[str, Any], size: Size) -> list[tuple[Transform, dict[str, Any]]]:
        """Where it expands, on a canvas that holds the image and the turned one."""
        if not self.expand:
            return [(self, params)]
        out = self.output_size(size)
        beyond = (0, 0, max(out[1] - size[1], 0), max(out[0] - size[0], 0))
        turn = _ExpandedRotation(self, (int(size[0]), int(size[1])), out)
        corner = {"top": 0, "left": 0}
        return [(Pad(beyond), {}), (turn, params), (RandomCrop(out), corner)]

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        moves = super()._moves(params, size)
        if not self.expand:
            return moves
        out = self.output_size(size)
        # From middle to middle.
        beyond = np.asarray([out[1] - size[1], out[0] - size[0]], np.float32) / 2

        def onto(move: Move) -> Move:
            return dataclasses.replace(move, forward=lambda points: move.forward(points) + beyond)

        return [onto(move) for move in moves]

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        return self._warped(self._coefficients(params, size))

    def _coefficients(self, params: dict[str, Any], size: Size) -> jax.Array:
        angle = jnp.atleast_1d(jnp.asarray(params["angle"], jnp.float32))
        # torchvision's rotate turns the other way than its affine.
        return affine_coefficients(-angle, 0.0, 0.0, 1.0, 0.0, 0.0, size=size, center=self.center)


@dataclasses.dataclass(frozen=True)
class _ExpandedRotation(_Warp):
    """Turns the images of `size` at the top left of canvases, which show the `output` there."""

    rotation: RandomRotation
    size: tuple[int, int]
    output: tuple[int, int]

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        found = self.rotation._coefficients(params, self.size)
        c = [found[:, k] for k in range(6)]
        # From the middle of the canvas, not of the output.
        down, across = (
            (of_canvas - side) / 2 for of_canvas, side in zip(size, self.output, strict=True)
        )
        c[2] = c[2] + (c[0] * across + c[1] * down)
        c[5] = c[5] + (c[3] * across + c[4] * down)
        values = step_values(*c, self.size[1], self.size[0])
        ((_, _, static),) = self.rotation._warped(found)
        return [
            (
                np.full(1, Code.TURN, np.int32),
                values,
                dataclasses.replace(static, codes=(Code.TURN,)),
            )
        ]


@dataclasses.dataclass(frozen=True)
class RandomAffine(_Warp):
    """Turns (clockwise), shears, scales and shifts each image.

    Args:
      degrees: (low, high) of the angle, or a number for (-degrees, degrees).
      translate: the largest shift along x and y, as shares of the width and height, or None.
      scale: (low, high) above 0, or None.
      shear: degrees (low, high) along x, or four numbers for x and y, or a number, or None.
      interpolation: "nearest" or "bilinear".
      fill: a number, or one a channel, for what comes from outside; None: zeros.
      center: (x, y) of the point about which all is done, from the top left corner; None: the
        middle.
    Parameters an image, all f32: angle in degrees; translate_x, translate_y in pixels, drawn whole;
    scale, which leaves an image as it is unless above 0; shear_x, shear_y in degrees.
    Raises: TypeError or ValueError for ranges that are none and other words.

    >>> from jaxkern.image import RandomAffine
    >>> RandomAffine(10, translate=(0.1, 0.2), shear=5).shear
    (-5.0, 5.0)
    """

    degrees: Any
    translate: Any = None
    scale: Any = None
    shear: Any = None
    interpolation: str = "nearest"
    fill: Any = 0
    center: Any = None

    parameters: ClassVar[dict[str, str]] = dict.fromkeys(
        ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y"), "number"
    )

    def __post_init__(self) -> None:
        translate = self.translate
        if translate is not None:
            wanted = "two shares of the width and height, from 0 to 1, or None"
            translate = _numbers(translate, "translate", (2,), wanted)
            if not all(0.0 <= share <= 1.0 for share in translate):
                raise ValueError(f"translate={self.translate!r}; wanted {wanted}")
        set_fields(
            self,
            degrees=_angles(self.degrees, "degrees", (2,)),
            translate=translate,
            scale=None
            if self.scale is None
            else checks.interval(self.scale, "scale", 0.0, open_low=True),
            shear=None if self.shear is None else _angles(self.shear, "shear", (2, 4)),
            interpolation=checks.choice(self.interpolation, "interpolation", checks.INTERPOLATIONS),
            fill=warp_fill(self.fill),
            center=_center(self.center),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one angle, shift, scale and shear for an image of `size`."""
        fraction = jax.random.uniform(key, (6,), jnp.float32)
        height, width = (jnp.asarray(side, jnp.float32) for side in size)
        share_x, share_y = self.translate or (0.0, 0.0)
        shear = (*(self.shear or (0.0, 0.0)), 0.0, 0.0)
        return {
            "angle": between(fraction[0], *self.degrees),
            "translate_x": jnp.round((2.0 * fraction[1] - 1.0) * share_x * width),
            "translate_y": jnp.round((2.0 * fraction[2] - 1.0) * share_y * height),
            "scale": between(fraction[3], *(self.scale or (1.0, 1.0))),
            "shear_x": between(fraction[4], *shear[:2]),
            "shear_y": between(fraction[5], *shear[2:4]),
        }

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        given = (jnp.atleast_1d(jnp.asarray(params[name])) for name in self.parameters)
        return self._warped(affine_coefficients(*given, size=size, center=self.center))


@dataclasses.dataclass(frozen=True)
class RandomPerspective(_Warp):
    """Moves the corners of each image inwards, with probability p.

    A corner moves by up to `distortion_scale` times half the width and height.

    Args:
      distortion_scale: from 0 to 1.
      p: the probability that an image is changed at all.
      interpolation: "nearest" or "bilinear".
      fill: a number, or one a channel, for what comes from outside; None: zeros.
    Parameter an image: endpoints [4, 2], (x, y) to which the top left, top right, bottom right
    and bottom left pixel go; those of an unchanged image are where they are. Points of which
    three are on a line leave it unchanged where the map is not finite.
    Raises: ValueError for values out of range and other words.

    >>> from jaxkern.image import RandomPerspective
    >>> RandomPerspective(0.2).distortion_scale
    0.2
    """

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: str = "bilinear"
    fill: Any = 0

    parameters: ClassVar[dict[str, str]] = {"endpoints": "number[4,2]"}

    def __post_init__(self) -> None:
        set_fields(
            self,
            distortion_scale=checks.probability(self.distortion_scale, "distortion_scale"),
            p=checks.probability(self.p),
            interpolation=checks.choice(self.interpolation, "interpolation", checks.INTERPOLATIONS),
            fill=warp_fill(self.fill),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws where the four corners of one image go."""
        apply_key, corner_key = jax.random.split(key)
        fraction = jax.random.uniform(corner_key, (4, 2), jnp.float32)
        sides = jnp.stack([jnp.asarray(side, jnp.int32) for side in (size[1], size[0])])
        with jax.enable_x64(True):  # of 0.29 and 200 pixels a float32 would make one more
            share = jnp.asarray(self.distortion_scale, jnp.float64)
            reach = (share * (sides // 2)).astype(jnp.int32) + 1
        inwards = uniform_below(fraction, reach)
        # As torchvision's: 0 to reach - 1 from the first, side - reach to side - 1 from the last.
        last = jnp.asarray(_LAST)
        moved = jnp.where(last, sides - 1 - inwards, inwards)
        still = jnp.where(last, sides - 1, 0)
        apply = jax.random.uniform(apply_key, dtype=jnp.float32) < self.p
        return {"endpoints": jnp.where(apply, moved, still)}

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        endpoints = jnp.asarray(params["endpoints"]).reshape(-1, 4, 2)
        still = np.where(_LAST, np.asarray([size[1] - 1, size[0] - 1]), 0)
        moved = (endpoints != still).any(axis=(1, 2))
        coefficients = perspective_coefficients(endpoints, size=size)
        return self._warped(coefficients, moved, Code.PERSPECTIVE)


# Whether the x and y of the corners, in the order of endpoints, are the last ones.
_LAST = np.asarray([[False, False], [True, False], [True, True], [False, True]])
