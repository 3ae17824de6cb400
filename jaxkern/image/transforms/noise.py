"""Gaussian blur, noise, and elastic warps."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.program import warp_twin
from jaxkern.image.program.program import (
    Code,
    ProgramStep,
    Step,
    program_step,
    sample_seed,
    values_with_seed,
)
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move
from jaxkern.image.transforms.transform import Kind, Size, Transform, set_fields, uniform_between
from jaxkern.image.transforms.warps import NO_FILL, warp_fill

MAX_KERNEL = 1023  # of a blur: kMaxBlurKernel of csrc/image/blur.h


@dataclasses.dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blur each image by a Gaussian with sigma uniform in `sigma`.

    Weights are exp(-t^2 / (2 sigma^2)) at integer t, normalized. Edges are reflected without
    repeating the edge pixel.

    Args:
      kernel_size: an odd number of pixels, or (x, y), up to 1023; half of it must be smaller than
        the image.
      sigma: (low, high) in pixels, above 0, or a number.
    Parameter of an image: sigma f32; values not above 0 leave the image unchanged.
    Raises: TypeError or ValueError for even sizes and invalid ranges; in `apply` for images not
    larger than half the kernel.

    >>> from jaxkern.image import GaussianBlur
    >>> GaussianBlur(23).sigma
    (0.1, 2.0)
    """

    kernel_size: Any
    sigma: Any = (0.1, 2.0)

    kind: ClassVar[Kind] = "program"
    parameters: ClassVar[dict[str, str]] = {"sigma": "number"}

    def __post_init__(self) -> None:
        kernel = checks.size_pair(self.kernel_size, "kernel_size")
        if not all(size % 2 == 1 and size <= MAX_KERNEL for size in kernel):
            expected = f"odd sizes from 1 to {MAX_KERNEL}"
            raise ValueError(checks.unexpected("kernel_size", expected, self.kernel_size))
        sigma = self.sigma
        if isinstance(sigma, numbers.Real):
            sigma = (sigma, sigma)
        elif isinstance(sigma, list | tuple) and len(sigma) == 1:
            sigma = (sigma[0], sigma[0])
        elif isinstance(sigma, str) or not isinstance(sigma, Sequence | np.ndarray):
            raise TypeError(checks.unexpected("sigma", "a number above 0, or (low, high)", sigma))
        set_fields(
            self, kernel_size=kernel, sigma=checks.interval(sigma, "sigma", 0.0, open_low=True)
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"sigma": uniform_between(jax.random.uniform(key, dtype=jnp.float32), *self.sigma)}

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        across, down = self.kernel_size
        if across // 2 >= size[1] or down // 2 >= size[0]:
            raise ValueError(
                f"GaussianBlur: expected images over half of {self.kernel_size}, got {tuple(size)}"
            )
        return [program_step(Code.BLUR, *[params["sigma"]] * 2, kernel=self.kernel_size)]


_ITERATIONS = 8  # to invert a displacement field


def _finite(value: Any, name: str, low: float = -math.inf) -> float:
    expected = "a finite number" + ("" if low == -math.inf else f" from {low:g}")
    if not isinstance(value, numbers.Real):
        raise TypeError(checks.unexpected(name, expected, value))
    result = float(value)
    if not (math.isfinite(result) and result >= low):
        raise ValueError(checks.unexpected(name, expected, value))
    return result


@dataclasses.dataclass(frozen=True)
class GaussianNoise(Transform):
    """Add normal noise to each value; alpha is unchanged.

    uint8 images get 255 times the noise, truncated to integer levels, as in torchvision.

    Args:
      mean, sigma: mean and standard deviation of the noise, in units of the largest value of an
        image.
      clip: clip sums to the image's range; without it uint8 wraps.
    Parameter of an image: seed int32 [2], any numbers. Images with equal seeds get equal noise. The
    frames of a clip use consecutive seeds (seed[0], seed[1] + frame).
    Raises: TypeError for other types; ValueError for a negative sigma and values that are not
    finite.

    >>> from jaxkern.image import GaussianNoise
    >>> GaussianNoise(sigma=0.05).mean
    0.0
    """

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    kind: ClassVar[Kind] = "program"
    expects_unit_range: ClassVar[bool] = True
    parameters: ClassVar[dict[str, str]] = {"seed": "int[2]"}

    def __post_init__(self) -> None:
        set_fields(
            self,
            mean=_finite(self.mean, "mean"),
            sigma=_finite(self.sigma, "sigma", 0.0),
            clip=bool(self.clip),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"seed": sample_seed(key)}

    def frame_parameters(self, params: dict[str, Any], frame: Any) -> dict[str, Any]:
        first, second = jnp.moveaxis(jnp.asarray(params["seed"], jnp.int32), -1, 0)
        return {"seed": jnp.stack([first, second + frame], axis=-1)}

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        values = values_with_seed(params["seed"], self.mean, self.sigma, self.clip)
        return [(np.full(1, Code.NOISE, np.int32), values, ProgramStep((Code.NOISE,)))]


def _pair(value: Any, name: str, low: float) -> tuple[float, float]:
    """Return (x, y) of a number for both axes, or of a pair."""
    items = (value,) if isinstance(value, numbers.Real) else value
    message = checks.unexpected(name, "a number, or (x, y)", value)
    if not isinstance(items, tuple | list | np.ndarray):
        raise TypeError(message)
    if len(items) not in (1, 2):
        raise ValueError(message)
    result = [_finite(item, name, low) for item in items]
    return (result[0], result[-1])


@dataclasses.dataclass(frozen=True)
class ElasticTransform(Transform):
    """Displace pixels by a smooth random field.

    The displacement of a pixel is alpha / 2 pixels times a random number. It is uniform from -1 to
    1 for each pixel, and blurred by a Gaussian with an odd kernel of int(8 sigma + 1) pixels, or
    one more.

    Args:
      alpha: scale of the displacement along x and y: a number, or (x, y).
      sigma: standard deviation of the blur along x and y, in pixels; 0 on both axes for no blur.
      interpolation: "nearest" or "bilinear".
      fill: a number, or one per channel, outside the image; None for zeros.
    Parameter of an image: seed int32 [2], any numbers.
    Raises: TypeError or ValueError for invalid values and a sigma that is 0 along one axis only; in
    `apply` for images not larger than half the kernel.

    P. Simard, D. Steinkraus, J. Platt, Best practices for convolutional neural networks applied to
    visual document analysis, 2003.

    >>> from jaxkern.image import ElasticTransform
    >>> ElasticTransform(alpha=30).alpha
    (30.0, 30.0)
    """

    alpha: Any = 50.0
    sigma: Any = 5.0
    interpolation: str = "bilinear"
    fill: Any = 0

    kind: ClassVar[Kind] = "program"
    parameters: ClassVar[dict[str, str]] = {"seed": "int[2]"}
    geometric = True

    def __post_init__(self) -> None:
        sigma = _pair(self.sigma, "sigma", 0.0)
        if (sigma[0] == 0.0) != (sigma[1] == 0.0):
            raise ValueError(
                checks.unexpected("sigma", "numbers above 0, or 0 along both axes", self.sigma)
            )
        set_fields(
            self,
            alpha=_pair(self.alpha, "alpha", -math.inf),
            sigma=sigma,
            interpolation=checks.choice(self.interpolation, "interpolation", checks.INTERPOLATIONS),
            fill=warp_fill(self.fill),
        )
        if max(self._kernel) > MAX_KERNEL:
            expected = f"a kernel of at most {MAX_KERNEL} pixels (a sigma below {MAX_KERNEL // 8})"
            raise ValueError(checks.unexpected("sigma", expected, self._kernel))

    @property
    def _kernel(self) -> tuple[int, int]:
        across, down = (int(8 * each + 1) | 1 for each in self.sigma)
        return across, down

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        return {"seed": sample_seed(key)}

    def displacement(self, seed: Any, size: tuple[int, int]) -> jax.Array:
        """Return the displacements f32 [N, H, W, 2], x and y, of images of `size`, in pixels.

        A pixel shows the source at its position plus the displacement. Seeds are int32 [N, 2].

        >>> import numpy as np
        >>> from jaxkern.image import ElasticTransform
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

    def moves(self, params: dict[str, Any], size: Size) -> list[Move]:
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
            raise ValueError(
                f"ElasticTransform(sigma={self.sigma}): expected images larger than half the "
                f"kernel, {reach} pixels, got (height, width) {tuple(size)}"
            )
        return (int(size[0]), int(size[1]))

    def _values(self, seed: Any) -> Any:
        return values_with_seed(seed, *self.alpha, *self.sigma)

    def program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        self._checked_size(size)
        static = ProgramStep(
            (Code.ELASTIC,),
            interpolation=self.interpolation,
            kernel=self._kernel,
            fill=NO_FILL if self.fill is None else self.fill,
        )
        return [(np.full(1, Code.ELASTIC, np.int32), self._values(params["seed"]), static)]
