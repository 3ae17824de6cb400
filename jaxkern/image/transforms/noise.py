"""Transforms with random numbers of their own for each pixel: noise, and elastic warps.

An image's parameter is a seed, from which the kernels make the numbers of its pixels.
"""

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
from jaxkern.image.program.program import Code, ProgramStep, Step, drawn_seed, step_values, with_key
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.moves import Move
from jaxkern.image.transforms.transform import Size, Stage, Transform, between, set_fields
from jaxkern.image.transforms.warps import NO_FILL, warp_fill

MAX_KERNEL = 1023  # of a blur: kMaxBlurKernel of csrc/image/blur.h


@dataclasses.dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blurs each image by a Gaussian with sigma uniform in `sigma`; edges are reflected.

    Weights are exp(-t^2 / (2 sigma^2)) at whole t, normalized; edges are not repeated.

    Args:
      kernel_size: an odd number of pixels, or (x, y), up to 1023; half of one must fit within the
        image.
      sigma: (low, high) in pixels, above 0, or a number.
    Parameter an image: sigma f32; not above 0 leaves an image as it is.
    Raises: TypeError or ValueError for even sizes, ranges that are none, and, in `apply`, images
    that are not larger than half the kernel.

    >>> from jaxkern.image import GaussianBlur
    >>> GaussianBlur(23).sigma
    (0.1, 2.0)
    """

    kernel_size: Any
    sigma: Any = (0.1, 2.0)

    stage: ClassVar[Stage] = "program"
    parameters: ClassVar[dict[str, str]] = {"sigma": "number"}

    def __post_init__(self) -> None:
        kernel = checks.size_pair(self.kernel_size, "kernel_size")
        if not all(size % 2 == 1 and size <= MAX_KERNEL for size in kernel):
            raise ValueError(
                f"kernel_size={self.kernel_size!r}; wanted odd sizes from 1 to {MAX_KERNEL}"
            )
        sigma = self.sigma
        if isinstance(sigma, numbers.Real):
            sigma = (sigma, sigma)
        elif isinstance(sigma, list | tuple) and len(sigma) == 1:
            sigma = (sigma[0], sigma[0])
        elif isinstance(sigma, str) or not isinstance(sigma, Sequence | np.ndarray):
            raise TypeError(f"sigma={sigma!r}; wanted a number above 0, or (low, high)")
        set_fields(
            self, kernel_size=kernel, sigma=checks.interval(sigma, "sigma", 0.0, open_low=True)
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one sigma."""
        return {"sigma": between(jax.random.uniform(key, dtype=jnp.float32), *self.sigma)}

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        across, down = self.kernel_size
        if across // 2 >= size[1] or down // 2 >= size[0]:
            raise ValueError(
                f"GaussianBlur(kernel_size={self.kernel_size}) got images of (height, width) "
                f"{tuple(size)}; half a kernel must be smaller than the image: wanted a smaller "
                "kernel or larger images"
            )
        sigma = params["sigma"]
        static = ProgramStep((Code.BLUR,), kernel=self.kernel_size)
        return [(np.full(1, Code.BLUR, np.int32), step_values(sigma, sigma), static)]


_TURNS = 8  # to find where a pixel went


def _finite(value: Any, name: str, low: float = -math.inf) -> float:
    wanted = "a finite number" + ("" if low == -math.inf else f" from {low:g}")
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}={value!r}; wanted {wanted}")
    found = float(value)
    if not (math.isfinite(found) and found >= low):
        raise ValueError(f"{name}={value!r}; wanted {wanted}")
    return found


@dataclasses.dataclass(frozen=True)
class GaussianNoise(Transform):
    """Adds normal noise to each value; alpha is left alone.

    uint8 images get 255 times the noise, truncated to whole levels, as torchvision's do.

    Args:
      mean, sigma: of the noise, where 1 is the largest value of an image.
      clip: whether sums are clipped to the image's range; without it uint8 wraps.
    Parameter an image: seed int32 [2], any numbers. Another image of the seed has the same noise;
    the frames of a clip have seeds from seed on, (seed[0], seed[1] + frame).
    Raises: TypeError for what is no number; ValueError for a sigma below 0 and what is not finite.

    >>> from jaxkern.image import GaussianNoise
    >>> GaussianNoise(sigma=0.05).mean
    0.0
    """

    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True

    stage: ClassVar[Stage] = "program"
    of_unit_values: ClassVar[bool] = True
    parameters: ClassVar[dict[str, str]] = {"seed": "int[2]"}

    def __post_init__(self) -> None:
        set_fields(
            self,
            mean=_finite(self.mean, "mean"),
            sigma=_finite(self.sigma, "sigma", 0.0),
            clip=bool(self.clip),
        )

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one seed."""
        del size
        return {"seed": drawn_seed(key)}

    def _of_frames(self, params: dict[str, Any], frame: Any) -> dict[str, Any]:
        """The seeds of a clip's frames follow each other, from its own."""
        first, second = jnp.moveaxis(jnp.asarray(params["seed"], jnp.int32), -1, 0)
        return {"seed": jnp.stack([first, second + frame], axis=-1)}

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        del size
        values = with_key(params["seed"], self.mean, self.sigma, self.clip)
        return [(np.full(1, Code.NOISE, np.int32), values, ProgramStep((Code.NOISE,)))]


def _pair(value: Any, name: str, low: float) -> tuple[float, float]:
    """A number for both axes, or (x, y)."""
    given = (value,) if isinstance(value, numbers.Real) else value
    if isinstance(given, str) or not isinstance(given, tuple | list | np.ndarray):
        raise TypeError(f"{name}={value!r}; wanted a number, or (x, y)")
    if len(given) not in (1, 2):
        raise ValueError(f"{name}={value!r} has length {len(given)}; wanted a number, or (x, y)")
    found = [_finite(item, name, low) for item in given]
    return (found[0], found[-1])


@dataclasses.dataclass(frozen=True)
class ElasticTransform(Transform):
    """Moves each pixel a little, and its neighbours alike: as seen through water.

    The displacement of a pixel is alpha / 2 pixels times a random number, uniform from -1 to 1 at
    each pixel and blurred by a Gaussian whose kernel has int(8 sigma + 1) pixels, or one more.

    Args:
      alpha: how far pixels move along x and y: a number, or (x, y).
      sigma: how wide the blur is along x and y, in pixels; 0 for none on both axes.
      interpolation: "nearest" or "bilinear".
      fill: a number, or one a channel, for what comes from outside; None: zeros.
    Parameter an image: seed int32 [2], any numbers.
    Raises: TypeError or ValueError for values that are none, a sigma that is 0 along one axis
    only, other words, and, in `apply`, images that are not larger than half the kernel.

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

    stage: ClassVar[Stage] = "program"
    parameters: ClassVar[dict[str, str]] = {"seed": "int[2]"}
    geometric = True

    def __post_init__(self) -> None:
        sigma = _pair(self.sigma, "sigma", 0.0)
        if (sigma[0] == 0.0) != (sigma[1] == 0.0):
            raise ValueError(f"sigma={self.sigma!r}; wanted numbers above 0, or 0 along both axes")
        set_fields(
            self,
            alpha=_pair(self.alpha, "alpha", -math.inf),
            sigma=sigma,
            interpolation=checks.choice(self.interpolation, "interpolation", checks.INTERPOLATIONS),
            fill=warp_fill(self.fill),
        )
        if max(self._kernel) > MAX_KERNEL:
            raise ValueError(
                f"sigma={self.sigma!r} needs kernels of {max(self._kernel)} pixels; wanted at most "
                f"{MAX_KERNEL}: a sigma below {MAX_KERNEL // 8}"
            )

    @property
    def _kernel(self) -> tuple[int, int]:
        sides = [int(8 * each + 1) for each in self.sigma]
        return (sides[0] + (sides[0] + 1) % 2, sides[1] + (sides[1] + 1) % 2)

    def sample(self, key: jax.Array, size: Size) -> dict[str, jax.Array]:
        """Draws one seed."""
        del size
        return {"seed": drawn_seed(key)}

    def displacement(self, seed: Any, size: tuple[int, int]) -> jax.Array:
        """Where the pixels of images of `size` come from: f32 [N, H, W, 2], x and y.

        In pixels, to be added to a pixel's place, for seeds int32 [N, 2].

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

    def _moves(self, params: dict[str, Any], size: Size) -> list[Move]:
        height, width = self._checked_size(size)
        field = self.displacement(params["seed"], (height, width))

        def forward(points: jax.Array) -> jax.Array:
            # Of the place y from which y + displacement(y) shows a point, by iteration.
            place = points
            for _ in range(_TURNS):
                column = jnp.clip(jnp.floor(place[..., 0]), 0, width - 1).astype(jnp.int32)
                row = jnp.clip(jnp.floor(place[..., 1]), 0, height - 1).astype(jnp.int32)
                place = points - jax.vmap(lambda f, y, x: f[y, x])(field, row, column)
            return place

        return [Move(forward)]

    def _checked_size(self, size: Size) -> tuple[int, int]:
        reach = max(self._kernel) // 2
        if reach >= min(size):
            raise ValueError(
                f"ElasticTransform(sigma={self.sigma}) got images of (height, width) "
                f"{tuple(size)}; half a kernel, {reach} pixels, must be smaller than the image: "
                "wanted a smaller sigma or larger images"
            )
        return (int(size[0]), int(size[1]))

    def _values(self, seed: Any) -> Any:
        return with_key(seed, *self.alpha, *self.sigma)

    def _program(self, params: dict[str, Any], size: tuple[int, int]) -> list[Step]:
        self._checked_size(size)
        static = ProgramStep(
            (Code.ELASTIC,),
            interpolation=self.interpolation,
            kernel=self._kernel,
            fill=NO_FILL if self.fill is None else self.fill,
        )
        return [(np.full(1, Code.ELASTIC, np.int32), self._values(params["seed"]), static)]
