"""The Gaussian blur, a step of an image program."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxkern.image.program.program import Code, ProgramStep, Step, step_values
from jaxkern.image.transforms import checks
from jaxkern.image.transforms.draws import between
from jaxkern.image.transforms.transform import Size, Stage, Transform, set_fields

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
