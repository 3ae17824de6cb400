"""The two-time model as a user of JAX would write it: the arm of comparison of the benchmarks.

Jitted and vmapped over angles, with parameters in the order [contrast..., offset..., physics...].
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Q, GAP, DT = 0.0054, 2e6, 0.1
PHYSICS = np.array([1000.0, -0.3, 12.0, 2e-4, 0.3, 1e-5, 4.0])


def angles_of(count: int) -> Any:
    """Angles over a half circle, in degrees."""
    return np.linspace(-85.0, 85.0, count)


def geometry(angles: int, frames: int) -> Any:
    """The `jaxkern.xpcs.Geometry` of these angles, with a frame every ``DT`` seconds."""
    # Here, so that a process which measures another library does not pay for this one.
    import jaxkern as jk

    phi = angles_of(angles)
    return jk.xpcs.Geometry(q=Q, gap=GAP, dt=DT, t=DT * np.arange(frames), phi=phi)


def phases(physics: Any, t: Any, phi: Any) -> tuple[Any, Any]:
    """A [n_t] and X [n_phi, n_t] of the laminar flow, in plain JAX."""
    d0, alpha, d_offset, g0, beta, g_offset, phi0 = physics
    least = jnp.maximum(DT / 2, 1e-8)
    ts = jnp.where(t > least, t, least)
    diffusion = jnp.maximum(d0 * ts**alpha + d_offset, 1e-10)
    shear = jnp.maximum(g0 * ts**beta + g_offset, 1e-10)

    def cumulative(f: Any) -> Any:
        return jnp.concatenate([jnp.zeros(1, f.dtype), jnp.cumsum((f[1:] + f[:-1]) / 2)])

    angle = jnp.cos(jnp.deg2rad(phi0 - phi))
    A = 0.5 * Q**2 * DT * cumulative(diffusion)
    X = Q * GAP * DT / (2 * jnp.pi) * angle[:, None] * cumulative(shear)
    return A, X


def g2(parameters: Any, t: Any, phi: Any) -> Any:
    """g2 [n_phi, n_t, n_t] of parameters [2 n_phi + 7]."""
    n = phi.shape[0]
    A, X = phases(parameters[2 * n :], t, phi)
    decay = jnp.exp(-2 * jnp.abs(A[:, None] - A))

    def one(x: Any, contrast: Any, offset: Any) -> Any:
        d = x[:, None] - x
        safe = jnp.where(jnp.abs(d) < 1e-4, 1.0, d)
        sinc = jnp.where(jnp.abs(d) < 1e-4, 1 - d * d / 6, jnp.sin(safe) / safe)
        return offset + contrast * decay * sinc**4

    return jax.vmap(one)(X, parameters[:n], parameters[n : 2 * n])


def residual(parameters: Any, t: Any, phi: Any, data: Any, sigma: float) -> Any:
    """(data - g2) / sigma, 0 on the diagonal."""
    off = ~jnp.eye(data.shape[-1], dtype=bool)
    return jnp.where(off, (data - g2(parameters, t, phi)) / sigma, 0.0)


def normal_equations(parameters: Any, t: Any, phi: Any, data: Any, sigma: float) -> Any:
    """J^T J, J^T r and chi2 with the Jacobian of g2 / sigma from `jax.jacfwd`."""

    def rows(p: Any) -> tuple[Any, Any]:
        r = residual(p, t, phi, data, sigma).reshape(-1)
        return r, r

    J, r = jax.jacfwd(rows, has_aux=True)(parameters)
    return J.T @ J, -(J.T @ r), r @ r


def simulate(angles: int, frames: int, sigma: float = 0.02, seed: int = 0) -> tuple[Any, Any]:
    """True parameters, and symmetric noisy data f64 [angles, frames, frames]."""
    import jaxkern as jk

    random = np.random.default_rng(seed)
    geom = geometry(angles, frames)
    model = jk.xpcs.LaminarFlow(geom)
    contrast = random.uniform(0.2, 0.4, angles)
    offset = random.uniform(0.98, 1.02, angles)
    with jax.enable_x64(True):
        data = np.array(jk.xpcs.g2(model, PHYSICS, contrast, offset))
    for one in data:
        noise = np.triu(random.normal(0, sigma, one.shape), 1)
        one += noise + noise.T
    return np.concatenate([contrast, offset, PHYSICS]), data
