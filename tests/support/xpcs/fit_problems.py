"""Two-time correlations in NumPy float64, and dense fits of them with SciPy: the oracle of fits.

Written from the equations alone; nothing here comes from the package.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import OptimizeResult, least_squares

# Rates that fall as 1/t towards a constant: 40 frames determine all parameters to a few percent.
Q, GAP, DT = 0.0054, 2e5, 1.0
TRUTH = np.array([20000.0, -1.0, 5000.0, 5e-3, -1.0, 1e-3, 3.0])
START = np.array([15000.0, -0.7, 6000.0, 4e-3, -0.8, 1.5e-3, 1.0])
PHI = np.array([0.0, 40.0, 85.0])


def trapezoid(rate: np.ndarray) -> np.ndarray:
    return np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2)])


def phases(physics: np.ndarray, n: int, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return A [n] and X [n_phi, n] of 7 parameters."""
    t = DT * np.arange(n)
    t = np.where(t > DT / 2, t, DT / 2)
    d0, alpha, d_offset, g0, beta, g_offset, phi0 = physics
    diffusion = np.maximum(d0 * t**alpha + d_offset, 1e-10)
    shear = np.maximum(g0 * t**beta + g_offset, 1e-10)
    along = np.cos(np.deg2rad(phi0 - phi))
    X = Q * GAP * DT / (2 * np.pi) * along[:, None] * trapezoid(shear)
    return 0.5 * Q**2 * DT * trapezoid(diffusion), X


def correlation(physics, contrast, offset, n: int, phi: np.ndarray = PHI) -> np.ndarray:
    """Return g2 [n_phi, n, n]."""
    A, X = phases(physics, n, phi)
    decay = np.exp(-2 * np.abs(A[:, None] - A))
    flow = np.sinc((X[:, :, None] - X[:, None, :]) / np.pi) ** 4
    return np.asarray(offset)[:, None, None] + np.asarray(contrast)[:, None, None] * decay * flow


@dataclass(frozen=True)
class Simulated:
    """Noisy data [n_phi, n, n] and the parameters of their simulation."""

    data: np.ndarray
    physics: np.ndarray
    contrast: np.ndarray
    offset: np.ndarray
    noise: float
    phi: np.ndarray

    @property
    def truth(self) -> np.ndarray:
        return np.concatenate([self.contrast, self.offset, self.physics])


def simulate(
    n: int = 40,
    noise: float = 0.004,
    *,
    seed: int = 0,
    mirrored: bool = True,
    physics: np.ndarray = TRUTH,
    phi: np.ndarray = PHI,
    same_scales: bool = False,
) -> Simulated:
    """Simulate noisy data, mirrored or with independent noise of all points."""
    draw = np.random.default_rng(seed)
    count = len(phi)
    contrast = np.full(count, 0.3) if same_scales else 0.25 + 0.05 * np.arange(count)
    offset = np.ones(count) if same_scales else 1.0 + 0.01 * np.arange(count)
    clean = correlation(physics, contrast, offset, n, phi)
    error = noise * draw.normal(size=clean.shape)
    if mirrored:
        error = np.triu(error, 1)
        error = error + np.swapaxes(error, 1, 2)
    return Simulated(clean + error, physics, contrast, offset, noise, phi)


def dense_fit(
    case: Simulated,
    start: np.ndarray | None = None,
    *,
    sigma=1.0,
    bounds=(-np.inf, np.inf),
    points: np.ndarray | None = None,
    basis: np.ndarray | None = None,
    loss: str = "linear",
    f_scale: float = 1.0,
) -> OptimizeResult:
    """Fit [contrast.., offset.., physics..] to the points above the diagonal with SciPy.

    The default start is the truth. `points` [n, n] chooses others. Contrast and offset of the
    angles are `basis` [n_phi, k] times k fitted coefficients each.
    """
    count, n, _ = case.data.shape
    start = case.truth if start is None else start
    i, j = np.triu_indices(n, 1) if points is None else np.nonzero(points)
    basis = np.eye(count) if basis is None else basis
    scales = basis.shape[1]
    data, sigma = case.data[:, i, j], np.broadcast_to(np.asarray(sigma, float), case.data.shape)
    sigma = sigma[:, i, j]

    def residual(x):
        contrast, offset = basis @ x[:scales], basis @ x[scales : 2 * scales]
        A, X = phases(x[2 * scales :], n, case.phi)
        square = np.sinc((X[:, i] - X[:, j]) / np.pi) ** 2
        f = np.exp(-2 * np.abs(A[i] - A[j])) * square**2
        model = offset[:, None] + contrast[:, None] * f
        return ((model - data) / sigma).ravel()

    return least_squares(
        residual,
        start,
        jac="3-point",
        bounds=bounds,
        x_scale="jac",
        ftol=1e-14,
        xtol=1e-12,
        gtol=1e-14,
        loss=loss,
        f_scale=f_scale,
        max_nfev=2000,
    )
