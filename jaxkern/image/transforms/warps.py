"""Rotations, affine maps, perspectives and elastic warps: steps of an image program."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.chain.axis import is_static
from jaxkern.image.chain.fold import sizes_differ
from jaxkern.image.program import warp_twin
from jaxkern.image.program.program import (
    MAX_KERNEL,
    Code,
    Step,
    affine_coefficients,
    perspective_coefficients,
    rotated_size,
    sample_seed,
    stacked_step,
    step_values,
    values_with_seed,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.checks import checked
from jaxkern.image.transforms.crops import Pad, RandomCrop
from jaxkern.image.transforms.moves import Move
from jaxkern.image.transforms.transform import (
    Params,
    Parts,
    Size,
    Transform,
    uniform_below,
    uniform_between,
)

NO_FILL = (math.nan,)  # zeros outside the image, without masking by the bilinear weights


_ANGLES = checks.sequence(2, single=lambda x: (-x, x))
_SHEARS = checks.sequence(2, 4, single=lambda x: (-x, x))
_CENTER = checks.optional(checks.sequence(2, ordered=False))
_SHARES = checks.optional(checks.sequence(2, low=0.0, high=1.0, ordered=False))


class _Warp(Transform):
    kind = "program"
    geometric = True
    interpolation: str
    fill: Any

    def _warped(
        self, values: Any, changed: Any = True, code: Code = Code.WARP, **static: Any
    ) -> list[Step]:
        static["fill"] = NO_FILL if self.fill is None else self.fill
        return [stacked_step(code, values, changed, interpolation=self.interpolation, **static)]


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

    >>> RandomRotation(30).degrees
    (-30.0, 30.0)
    >>> RandomRotation((45, 45), expand=True).output_size((20, 30))
    (36, 36)
    """

    degrees: Any = checked(_ANGLES)
    interpolation: str = checked(checks.warping, "nearest")
    expand: bool = checked(checks.flag, False)
    center: Any = checked(_CENTER, None)
    fill: Any = checked(checks.static_fill, 0)

    parameters: ClassVar = {"angle": "number"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.expand and self.degrees[0] != self.degrees[1]:
            raise ValueError(f"degrees: expected (a, a) with expand=True, got {self.degrees}")

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

    def parts(self, params: Params, size: Size) -> Parts:
        """Return with `expand` a pad, a rotation on the padded canvas, and a crop."""
        if not self.expand:
            return [(self, params)]
        out = self.output_size(size)
        margin = (0, 0, max(out[1] - size[1], 0), max(out[0] - size[0], 0))
        rotation = _ExpandedRotation(self, (int(size[0]), int(size[1])), out)
        corner = {"top": 0, "left": 0}
        return [(Pad(margin), {}), (rotation, params), (RandomCrop(out), corner)]

    def moves(self, params: Params, size: Size) -> list[Move]:
        moves = super().moves(params, size)
        if not self.expand:
            return moves
        out = self.output_size(size)
        # The centre maps to the centre.
        margin = np.asarray([out[1] - size[1], out[0] - size[0]], np.float32) / 2
        (move,) = moves
        return [dataclasses.replace(move, forward=lambda points: move.forward(points) + margin)]

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        return self._warped(self._coefficients(params, size))

    def _coefficients(self, params: Params, size: Size) -> jax.Array:
        angle = jnp.atleast_1d(jnp.asarray(params["angle"], jnp.float32))
        # torchvision's rotate has the opposite sense of rotation to its affine.
        return affine_coefficients(-angle, 0.0, 0.0, 1.0, 0.0, 0.0, size=size, center=self.center)


@dataclasses.dataclass(frozen=True)
class _ExpandedRotation(_Warp):
    """Rotates images of `size` at the top left of canvases; the result has the size `output`."""

    rotation: RandomRotation
    size: tuple[int, int]
    output: tuple[int, int]

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
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
      interpolation, fill, center: as in `RandomRotation`.
    Parameters of an image, all f32: angle in degrees; translate_x, translate_y in pixels, drawn as
    integers; scale, of which values not above 0 leave the image unchanged; shear_x, shear_y in
    degrees.

    >>> RandomAffine(10, translate=(0.1, 0.2), shear=5).shear
    (-5.0, 5.0)
    """

    degrees: Any = checked(_ANGLES)
    translate: Any = checked(_SHARES, None)
    scale: Any = checked(checks.optional(checks.positive_interval), None)
    shear: Any = checked(checks.optional(_SHEARS), None)
    interpolation: str = checked(checks.warping, "nearest")
    fill: Any = checked(checks.static_fill, 0)
    center: Any = checked(_CENTER, None)

    parameters = dict.fromkeys(
        ("angle", "translate_x", "translate_y", "scale", "shear_x", "shear_y"), "number"
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

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        arguments = (jnp.atleast_1d(jnp.asarray(params[name])) for name in self.parameters)
        return self._warped(affine_coefficients(*arguments, size=size, center=self.center))


@dataclasses.dataclass(frozen=True)
class RandomPerspective(_Warp):
    """Move the corners of each image inwards, with probability p.

    A corner moves by up to `distortion_scale` times half the width and height.

    Args:
      distortion_scale: from 0 to 1.
      p: probability that an image is changed.
      interpolation, fill: as in `RandomRotation`.
    Parameter of an image: endpoints [4, 2], new (x, y) of the top left, top right, bottom right and
    bottom left pixel. The image is unchanged if they are its own corners, or if the map is not
    finite because three of them are collinear.

    >>> RandomPerspective(0.2).distortion_scale
    0.2
    """

    distortion_scale: float = checked(checks.probability, 0.5)
    p: float = checked(checks.probability, 0.5)
    interpolation: str = checked(checks.warping, "bilinear")
    fill: Any = checked(checks.static_fill, 0)

    parameters: ClassVar = {"endpoints": "number[4,2]"}

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        apply_key, corner_key = jax.random.split(key)
        fraction = jax.random.uniform(corner_key, (4, 2), jnp.float32)
        sides = jnp.stack([jnp.asarray(side, jnp.int32) for side in (size[1], size[0])])
        half = sides // 2
        with jax.enable_x64(True):  # float32 rounds 0.29 * 100 up to the next integer
            share = jnp.asarray(self.distortion_scale, jnp.float64)
            reach = (share * half).astype(jnp.int32) + 1
        inwards = uniform_below(fraction, reach)
        # As in torchvision: 0 to reach - 1 near the first, side - reach to side - 1 near the last.
        last = jnp.asarray(_LAST)
        corners = jnp.where(last, sides - 1 - inwards, inwards)
        unchanged = jnp.where(last, sides - 1, 0)
        apply = jax.random.uniform(apply_key, dtype=jnp.float32) < self.p
        return {"endpoints": jnp.where(apply, corners, unchanged)}

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        endpoints = jnp.asarray(params["endpoints"]).reshape(-1, 4, 2)
        unchanged = np.where(_LAST, np.asarray([size[1] - 1, size[0] - 1]), 0)
        changed = (endpoints != unchanged).any(axis=(1, 2))
        coefficients = perspective_coefficients(endpoints, size=size)
        return self._warped(coefficients, changed, Code.PERSPECTIVE)


# True where the x or y of a corner, in the order of endpoints, is the last one.
_LAST = np.asarray([[False, False], [True, False], [True, True], [False, True]])


_ITERATIONS = 8  # to invert a displacement field


def _pair(low: float) -> checks.Check:
    """Return a check of (x, y) from `low`; a number is for both axes."""
    return checks.sequence(1, 2, low=low, ordered=False, single=lambda x: (x, x))


def _kernel(sigma: tuple[float, float]) -> tuple[int, int]:
    across, down = (int(8 * each + 1) | 1 for each in sigma)
    return across, down


def _field_sigma(value: Any, name: str) -> tuple[float, float]:
    sigma = _pair(0.0)(value, name)
    if 0.0 in sigma and any(sigma):
        expected = "numbers above 0, or 0 along both axes"
        raise ValueError(checks.unexpected(name, expected, value))
    if max(_kernel(sigma)) > MAX_KERNEL:
        expected = f"a kernel of at most {MAX_KERNEL} pixels (a sigma below {MAX_KERNEL // 8})"
        raise ValueError(checks.unexpected(name, expected, _kernel(sigma)))
    return sigma


@dataclasses.dataclass(frozen=True)
class ElasticTransform(_Warp):
    """Displace pixels by a smooth random field.

    The displacement of a pixel is alpha / 2 pixels times a random number. It is uniform from -1 to
    1 for each pixel, and blurred by a Gaussian with an odd kernel of int(8 sigma + 1) pixels, or
    one more.

    Args:
      alpha: scale of the displacement along x and y: a number, or (x, y).
      sigma: standard deviation of the blur along x and y, in pixels; 0 on both axes for no blur.
      interpolation, fill: as in `RandomRotation`.
    Parameter of an image: seed int32 [2], any numbers.

    P. Simard, D. Steinkraus, J. Platt, Best practices for convolutional neural networks applied to
    visual document analysis, 2003.

    >>> ElasticTransform(alpha=30).alpha
    (30.0, 30.0)
    """

    alpha: Any = checked(_pair(-math.inf), 50.0)
    sigma: Any = checked(_field_sigma, 5.0)
    interpolation: str = checked(checks.warping, "bilinear")
    fill: Any = checked(checks.static_fill, 0)

    parameters: ClassVar = {"seed": "int[2]"}

    @property
    def _kernel(self) -> tuple[int, int]:
        return _kernel(self.sigma)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"seed": sample_seed(key)}

    def displacement(self, seed: Any, size: tuple[int, int]) -> jax.Array:
        """Return the displacements f32 [N, H, W, 2], x and y, of images of `size`, in pixels.

        A pixel shows the source at its position plus the displacement. Seeds are int32 [N, 2].

        >>> import numpy as np
        >>> ElasticTransform(sigma=1).displacement(np.zeros((3, 2), np.int32), (20, 30)).shape
        (3, 20, 30, 2)
        """
        height, width = self._checked_size(size)

        def one(values: jax.Array) -> jax.Array:
            key = warp_twin.key_of_parts(values[4:])
            field = warp_twin.field(key, (height, width), values[2:4], self._kernel)
            with jax.enable_x64(True):
                return (field * jnp.asarray(self.alpha) * 0.5).astype(jnp.float32)

        return jax.vmap(one)(self._values(seed))

    def moves(self, params: Params, size: Size) -> list[Move]:
        height, width = self._checked_size(size)
        field = self.displacement(params["seed"], (height, width))

        def forward(points: jax.Array) -> jax.Array:
            # Fixed-point iteration for the position p with p + displacement(p) = point.
            index = points
            for _ in range(_ITERATIONS):
                column = jnp.clip(jnp.floor(index[..., 0]), 0, width - 1).astype(jnp.int32)
                row = jnp.clip(jnp.floor(index[..., 1]), 0, height - 1).astype(jnp.int32)
                index = points - jax.vmap(lambda f, y, x: f[y, x])(field, row, column)
            return index

        return [Move(forward)]

    def _checked_size(self, size: Size) -> tuple[int, int]:
        reach = max(self._kernel) // 2
        if reach >= min(size):
            raise ValueError(f"ElasticTransform: expected over {reach} pixels, got {tuple(size)}")
        return (int(size[0]), int(size[1]))

    def _values(self, seed: Any) -> Any:
        return values_with_seed(seed, *self.alpha, *self.sigma)

    def program(self, params: Params, size: tuple[int, int]) -> list[Step]:
        self._checked_size(size)
        values = self._values(params["seed"])
        return self._warped(values, code=Code.ELASTIC, kernel=self._kernel)
