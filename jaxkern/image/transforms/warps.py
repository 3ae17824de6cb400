"""Rotations, affine maps and perspectives: steps of an image program."""

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
from jaxkern.image.chain.fold import sizes_differ
from jaxkern.image.program.coefficients import (
    affine_coefficients,
    perspective_coefficients,
    rotated_size,
)
from jaxkern.image.program.program import Code, ProgramStep, Step, codes_where, step_values
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.crops import Pad, RandomCrop
from jaxkern.image.transforms.moves import Move
from jaxkern.image.transforms.transform import (
    Kind,
    Size,
    Transform,
    set_fields,
    uniform_below,
    uniform_between,
)

NO_FILL = (math.nan,)  # zeros outside the image, without masking by the bilinear weights


def _numbers(value: Any, name: str, lengths: tuple[int, ...], expected: str) -> tuple[float, ...]:
    message = checks.unexpected(name, expected, value)
    if isinstance(value, str) or not isinstance(value, Sequence | np.ndarray):
        raise TypeError(message)
    if len(value) not in lengths:
        raise ValueError(message)
    items = tuple(checks.number(item, name, f"in each item: {expected}") for item in value)
    if not all(math.isfinite(item) for item in items):
        raise ValueError(message)
    return items


def _angles(value: Any, name: str, lengths: tuple[int, ...]) -> tuple[float, ...]:
    """Return degrees (low, high, ...); a number x gives (-x, x)."""
    if isinstance(value, numbers.Real):
        reach = float(value)
        if not 0.0 <= reach < math.inf:
            raise ValueError(
                checks.unexpected(name, "a number x from 0, for (-x, x), or a range", value)
            )
        return (-reach, reach)
    sizes = " or ".join(map(str, lengths))
    ends = _numbers(value, name, lengths, f"a number, or {sizes} numbers: low, high of each axis")
    for low, high in zip(ends[::2], ends[1::2], strict=True):
        if low > high:
            raise ValueError(checks.unexpected(name, "low, high in increasing order", value))
    return ends


def _center(value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    x, y = _numbers(value, "center", (2,), "(x, y) from the top left corner, or None")
    return (x, y)


def warp_fill(value: Any) -> tuple[float, ...] | None:
    if isinstance(value, jax.core.Tracer):
        raise TypeError("fill: expected numbers or None, since it is static, got a traced array")
    return None if value is None else checks.per_channel(value, "fill")


class _Warp(Transform):
    kind: ClassVar[Kind] = "program"
    geometric = True
    interpolation: str
    fill: Any

    def _warped(self, coefficients: Any, changed: Any = True, code: Code = Code.WARP) -> list[Step]:
        fill = NO_FILL if self.fill is None else self.fill
        static = ProgramStep((code,), self.interpolation, fill=fill)
        return [(codes_where(changed, code), coefficients, static)]


@dataclasses.dataclass(frozen=True)
class RandomRotation(_Warp):
    """Rotate each image about its centre by an angle uniform in `degrees`, counter-clockwise.

    Args:
      degrees: (low, high), or a number for (-degrees, degrees).
      interpolation: "nearest" or "bilinear".
      expand: enlarge the output to hold the rotated image; requires `degrees=(a, a)`.
      center: (x, y) of the fixed point, from the top left corner; None for the image centre.
      fill: a number, or one per channel, outside the image; None for zeros.
    Parameter of an image: angle f32, in degrees.
    Raises: TypeError or ValueError for invalid ranges, unknown interpolations, and expand=True with
    several angles, since the output size would depend on the angle.

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
                f"degrees: expected one angle, (a, a), with expand=True, got {self.degrees}"
            )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"angle": uniform_between(jax.random.uniform(key, dtype=jnp.float32), *self.degrees)}

    def output_size(self, size: Size) -> Size:
        if not self.expand:
            return size
        height, width = size
        if height is None or width is None:
            return (None, None)
        if not is_static(height, width):
            raise sizes_differ("RandomRotation(expand=True)")
        return rotated_size((height, width), self.degrees[0], self.center)

    def parts(self, params: dict[str, Any], size: Size) -> list[tuple[Transform, dict[str, Any]]]:
        """Return with `expand` a pad, a rotation on the padded canvas, and a crop."""
        if not self.expand:
            return [(self, params)]
        out = self.output_size(size)
        margin = (0, 0, max(out[1] - size[1], 0), max(out[0] - size[0], 0))
        rotation = _ExpandedRotation(self, (int(size[0]), int(size[1])), out)
        corner = {"top": 0, "left": 0}
        return [(Pad(margin), {}), (rotation, params), (RandomCrop(out), corner)]

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        moves = super().moves(params, size)
        if not self.expand:
            return moves
        out = self.output_size(size)
        # The centre maps to the centre.
        margin = np.asarray([out[1] - size[1], out[0] - size[0]], np.float32) / 2
        (move,) = moves
        return [dataclasses.replace(move, forward=lambda points: move.forward(points) + margin)]

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        return self._warped(self._coefficients(params, size))

    def _coefficients(self, params: dict[str, Any], size: Size) -> jax.Array:
        angle = jnp.atleast_1d(jnp.asarray(params["angle"], jnp.float32))
        # torchvision's rotate has the opposite sense of rotation to its affine.
        return affine_coefficients(-angle, 0.0, 0.0, 1.0, 0.0, 0.0, size=size, center=self.center)


@dataclasses.dataclass(frozen=True)
class _ExpandedRotation(_Warp):
    """Rotates images of `size` at the top left of canvases; the result has the size `output`."""

    rotation: RandomRotation
    size: tuple[int, int]
    output: tuple[int, int]

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        coefficients = self.rotation._coefficients(params, self.size)
        c = [coefficients[:, k] for k in range(6)]
        # Relative to the centre of the canvas, not of the output.
        down, across = ((size[k] - self.output[k]) / 2 for k in range(2))
        c[2] = c[2] + (c[0] * across + c[1] * down)
        c[5] = c[5] + (c[3] * across + c[4] * down)
        values = step_values(*c, self.size[1], self.size[0])
        return self.rotation._warped(values, code=Code.TURN)


@dataclasses.dataclass(frozen=True)
class RandomAffine(_Warp):
    """Rotate (clockwise), shear, scale and translate each image.

    Args:
      degrees: (low, high) of the angle, or a number for (-degrees, degrees).
      translate: largest shift along x and y, as fractions of the width and height, or None.
      scale: (low, high) above 0, or None.
      shear: degrees (low, high) along x, or four numbers for x and y, or a number, or None.
      interpolation: "nearest" or "bilinear".
      fill: a number, or one per channel, outside the image; None for zeros.
      center: (x, y) of the fixed point, from the top left corner; None for the image centre.
    Parameters of an image, all f32: angle in degrees; translate_x, translate_y in pixels, drawn as
    integers; scale, of which values not above 0 leave the image unchanged; shear_x, shear_y in
    degrees.
    Raises: TypeError or ValueError for invalid ranges and unknown interpolations.

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
            expected = "two fractions of the width and height, from 0 to 1, or None"
            translate = _numbers(translate, "translate", (2,), expected)
            if not all(0.0 <= share <= 1.0 for share in translate):
                raise ValueError(checks.unexpected("translate", expected, self.translate))
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
        fraction = jax.random.uniform(key, (6,), jnp.float32)
        height, width = (jnp.asarray(side, jnp.float32) for side in size)
        share_x, share_y = self.translate or (0.0, 0.0)
        shear = (*(self.shear or (0.0, 0.0)), 0.0, 0.0)
        return {
            "angle": uniform_between(fraction[0], *self.degrees),
            "translate_x": jnp.round((2.0 * fraction[1] - 1.0) * share_x * width),
            "translate_y": jnp.round((2.0 * fraction[2] - 1.0) * share_y * height),
            "scale": uniform_between(fraction[3], *(self.scale or (1.0, 1.0))),
            "shear_x": uniform_between(fraction[4], *shear[:2]),
            "shear_y": uniform_between(fraction[5], *shear[2:4]),
        }

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        arguments = (jnp.atleast_1d(jnp.asarray(params[name])) for name in self.parameters)
        return self._warped(affine_coefficients(*arguments, size=size, center=self.center))


@dataclasses.dataclass(frozen=True)
class RandomPerspective(_Warp):
    """Move the corners of each image inwards, with probability p.

    A corner moves by up to `distortion_scale` times half the width and height.

    Args:
      distortion_scale: from 0 to 1.
      p: probability that an image is changed.
      interpolation: "nearest" or "bilinear".
      fill: a number, or one per channel, outside the image; None for zeros.
    Parameter of an image: endpoints [4, 2], new (x, y) of the top left, top right, bottom right and
    bottom left pixel. The image is unchanged if they are its own corners, or if the map is not
    finite because three of them are collinear.
    Raises: ValueError for values out of range and unknown interpolations.

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
        apply_key, corner_key = jax.random.split(key)
        fraction = jax.random.uniform(corner_key, (4, 2), jnp.float32)
        sides = jnp.stack([jnp.asarray(side, jnp.int32) for side in (size[1], size[0])])
        with jax.enable_x64(True):  # float32 rounds 0.29 * 100 up to the next integer
            share = jnp.asarray(self.distortion_scale, jnp.float64)
            reach = (share * (sides // 2)).astype(jnp.int32) + 1
        inwards = uniform_below(fraction, reach)
        # As in torchvision: 0 to reach - 1 near the first, side - reach to side - 1 near the last.
        last = jnp.asarray(_LAST)
        corners = jnp.where(last, sides - 1 - inwards, inwards)
        unchanged = jnp.where(last, sides - 1, 0)
        apply = jax.random.uniform(apply_key, dtype=jnp.float32) < self.p
        return {"endpoints": jnp.where(apply, corners, unchanged)}

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        endpoints = jnp.asarray(params["endpoints"]).reshape(-1, 4, 2)
        unchanged = np.where(_LAST, np.asarray([size[1] - 1, size[0] - 1]), 0)
        changed = (endpoints != unchanged).any(axis=(1, 2))
        coefficients = perspective_coefficients(endpoints, size=size)
        return self._warped(coefficients, changed, Code.PERSPECTIVE)


# True where the x or y of a corner, in the order of endpoints, is the last one.
_LAST = np.asarray([[False, False], [True, False], [True, True], [False, True]])
