"""Two-time correlations from simulated photons: speckles of a model, counted and correlated."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxkern.xpcs.model.correlation import g2
from jaxkern.xpcs.model.models import Model


def simulate_photons(
    model: Model,
    params: ArrayLike,
    *,
    photons: float = 1.0,
    pixels: int = 1000,
    modes: int = 3,
    seed: int = 0,
) -> NDArray[np.float64]:
    """Two-time correlations [n_phi, n_t, n_t] as a detector would give them, noise included.

    Each pixel sees `modes` speckle patterns that do not interfere, complex Gaussian fields with the
    model's g1 between frames, and counts photons (Poisson) of their intensity. Frames are
    correlated as in a measurement, C(t, t') = P sum I I' / (sum I sum I') over the P pixels of an
    angle. The contrast is 1 / modes and the offset 1 (to 1 / pixels). Unlike the noise of
    `simulate`, that of this one is correlated from point to point, as it is in measured data.

    Args:
      model: `Static`, `LaminarFlow` or one of your own.
      params: [p] of the model.
      photons: mean count of a pixel in a frame.
      pixels: of each angle.
      modes: speckle patterns that add up, 1 / contrast.
      seed: of fields and counts.

    Raises:
      ValueError: for numbers that are not above 0, and a model whose g1 is no correlation function.

    Example:
      >>> import numpy as np
      >>> from jaxkern import xpcs
      >>> t = 0.1 * np.arange(20)
      >>> model = xpcs.Static(xpcs.Geometry(q=0.01, gap=None, dt=0.1, t=t, phi=[0.0, 90.0]))
      >>> xpcs.simulate_photons(model, model.defaults, photons=0.5).shape
      (2, 20, 20)
    """
    for name, value in (("photons", photons), ("pixels", pixels), ("modes", modes)):
        if not value > 0:
            raise ValueError(f"{name} is {value!r}; wanted a number above 0")
    n_t = model.geometry.n_t
    with jax.enable_x64(True):
        squared = np.asarray(g2(model, params, 1.0, 0.0))
    draw = np.random.default_rng(seed)
    correlations = np.empty(squared.shape)
    for angle, matrix in enumerate(squared):
        mix = covariance_root(np.sqrt(np.clip(matrix, 0.0, None)))
        intensity = np.zeros((n_t, pixels))
        for _ in range(modes):
            parts = mix @ draw.standard_normal((n_t, 2 * pixels))
            intensity += parts[:, :pixels] ** 2 + parts[:, pixels:] ** 2
        counts = draw.poisson(intensity * (photons / (2 * modes))).astype(np.float64)
        total = counts.sum(axis=1)
        total[total == 0] = 1.0
        correlations[angle] = pixels * (counts @ counts.T) / np.outer(total, total)
    return correlations


def covariance_root(g1: NDArray[Any]) -> NDArray[Any]:
    """A matrix whose product with independent numbers has the correlations g1 [n, n]."""
    values, vectors = np.linalg.eigh(g1)
    if values[0] < -1e-6 * values[-1]:
        raise ValueError(
            f"g1 has the eigenvalue {values[0]:.3g} (largest {values[-1]:.3g}); wanted "
            "a correlation function, which has none below 0"
        )
    root: NDArray[Any] = vectors * np.sqrt(np.clip(values, 0.0, None))
    return root
