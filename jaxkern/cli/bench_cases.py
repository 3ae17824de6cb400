"""Small cases of the package's ops for ``bench`` and ``roofline``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Case(NamedTuple):
    """A function that calls an op, with its arguments and tolerances."""

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    rtol: float
    atol: float


def image_crops() -> Case:
    """Random resized crops with flips and normalization, within half a level of 255."""
    from jaxkern import image, random

    crop, flip = image.RandomResizedCrop(160, antialias=True), image.RandomHorizontalFlip(0.5)
    chain, images = image.Compose([crop, flip, image.Normalize(_MEAN, _STD)]), _images()
    params = chain.sample(random.record_keys(0, 0, np.arange(len(images))), images.shape[1:3])
    return Case(chain.apply, (images, params), rtol=0, atol=0.5 / (255 * min(_STD)))


def image_normalize() -> Case:
    """Normalization of uint8 images, within the rounding of f32."""
    from jaxkern import image

    chain = image.Compose([image.Normalize(_MEAN, _STD)])
    return Case(chain.apply, (_images(), ({},)), rtol=1e-5, atol=1e-5)


def _images() -> jax.Array:
    coarse = np.random.default_rng(0).integers(0, 256, (16, 24, 24, 3), np.uint8)
    return jnp.asarray(np.repeat(np.repeat(coarse, 8, 1), 8, 2))


def xpcs_g2() -> Case:
    """Two-time correlation of laminar flow in f64."""
    from jaxkern import xpcs

    model, *parameters = _flow()
    return Case(functools.partial(xpcs.g2, model), tuple(parameters), rtol=1e-9, atol=1e-12)


def xpcs_normal_equations() -> Case:
    """Fused normal equations of a fit to simulated data in f64."""
    from jaxkern import xpcs

    model, *parameters = _flow()
    noise = np.random.default_rng(1).normal(0, 0.01, (4, 300, 300))
    data = xpcs.g2(model, *parameters) + (noise + noise.swapaxes(1, 2)) / 2

    def normal(parameters: Any, contrast: Any, baseline: Any, data: Any) -> Any:
        sums = xpcs.normal_equations(model, parameters, contrast, baseline, data, 0.02)
        # Sums with terms of either sign are scaled by their bound (Cauchy-Schwarz inequality).
        scale = 1 / jnp.sqrt(jnp.diagonal(sums.jtj))
        return sums.jtj * scale * scale[:, None], sums.jtr * scale / jnp.sqrt(sums.chi2)

    return Case(normal, (*parameters, data), rtol=0, atol=1e-8)


def _flow() -> tuple[Any, Any, Any, Any]:
    from jaxkern import xpcs

    t, phi = np.arange(300) * 0.1, np.array([0.0, 30.0, 60.0, 90.0])
    model = xpcs.LaminarFlow(xpcs.Geometry(q=0.0054, gap=2e6, dt=0.1, t=t, phi=phi))
    return model, jnp.asarray(model.defaults, jnp.float64), jnp.full(4, 0.3), jnp.ones(4)


@contextmanager
def prepare_case(name: str) -> Iterator[Case]:
    """Create the case of the function with this name; XPCS cases run with x64 enabled."""
    make: Callable[[], Case] = globals()[name.replace("-", "_")]
    with jax.enable_x64(name.startswith("xpcs")):
        yield make()
