"""The two-time model as a user of JAX would write it: the arm of comparison of the benchmarks.

Jitted and vmapped over angles, with parameters in the order [contrast..., offset..., physics...].
The fits run in new processes, which import this module first and only the library they measure.
"""

from __future__ import annotations

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

# Of the monotonic clock, which processes share.
JAX_IMPORTED = time.monotonic()

Q, GAP, DT = 0.0054, 2e6, 0.1
SIGMA = 0.02
PHYSICS = np.array([1000.0, -0.3, 12.0, 2e-4, 0.3, 1e-5, 4.0])


def angles_of(count: int) -> Any:
    """Angles over a half circle, in degrees."""
    return np.linspace(-85.0, 85.0, count)


def geometry(angles: int, frames: int) -> Any:
    """The `jaxkern.xpcs.Geometry` of these angles, with a frame every ``DT`` seconds."""
    import jaxkern as jk

    phi = angles_of(angles)
    return jk.xpcs.Geometry(q=Q, gap=GAP, dt=DT, t=DT * np.arange(frames), phi=phi)


def phases(physics: Any, t: Any, phi: Any) -> tuple[Any, Any]:
    """A [n_t] and X [n_phi, n_t] of the laminar flow, in plain JAX."""
    d0, alpha, d_offset, g0, beta, g_offset, phi0 = physics
    ts = jnp.maximum(t, DT / 2)
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


def normal_equations(parameters: Any, t: Any, phi: Any, data: Any, sigma: float) -> Any:
    """J^T J, J^T r and chi2 with the Jacobian of g2 / sigma from `jax.jacfwd`."""
    off = ~jnp.eye(data.shape[-1], dtype=bool)

    def residual(p: Any) -> tuple[Any, Any]:
        r = jnp.where(off, (data - g2(p, t, phi)) / sigma, 0.0).reshape(-1)
        return r, r

    J, r = jax.jacfwd(residual, has_aux=True)(parameters)
    return J.T @ J, -(J.T @ r), r @ r


def simulate(angles: int, frames: int) -> tuple[Any, Any]:
    """True parameters, and symmetric noisy data f64 [angles, frames, frames]."""
    import jaxkern as jk

    random = np.random.default_rng(0)
    flow = jk.xpcs.LaminarFlow(geometry(angles, frames))
    contrast, offset = random.uniform(0.2, 0.4, angles), random.uniform(0.98, 1.02, angles)
    with jax.enable_x64(True):
        data = np.array(jk.xpcs.g2(flow, PHYSICS, contrast, offset))
    for matrix in data:
        noise = np.triu(random.normal(0, SIGMA, matrix.shape), 1)
        matrix += noise + noise.T
    return np.concatenate([contrast, offset, PHYSICS]), data


def fit(path: str) -> dict[str, Any]:
    """Return the result of a fit, its times, and the private memory that it adds."""
    import harness
    import scipy.optimize  # noqa: F401

    import jaxkern as jk

    jax.devices()
    with harness.sampled_memory() as private:
        with np.load(path) as problem:
            data, start, lower, upper = (problem[k] for k in ("data", "start", "lower", "upper"))
        contrast, offset, physics = np.split(start, [len(data), 2 * len(data)])
        result = jk.xpcs.fit(
            jk.xpcs.LaminarFlow(geometry(*data.shape[:2])),
            data,
            SIGMA,
            physics,
            contrast,
            offset,
            bounds=(lower, upper),
            # As nlsq computes them.
            errors=jk.xpcs.ErrorOptions("independent", absolute_sigma=True),
            progress=False,
        )
        end = time.monotonic()
    return {
        "jax_imported": JAX_IMPORTED,
        "result": end,
        "popt": result.popt,
        "perr": result.perr,
        "success": result.success,
        "nfev": result.nfev,
        "compute": result.timings.compute,
        "private": max(private) - private[0],
        "data_bytes": data.nbytes,
    }


def fit_with_nlsq(path: str) -> dict[str, Any]:
    """Return the result of a fit by `nlsq.curve_fit` of the jitted model in float64."""
    jax.config.update("jax_enable_x64", True)
    from nlsq import curve_fit

    with np.load(path) as problem:
        data, start, lower, upper = (problem[k] for k in ("data", "start", "lower", "upper"))
    n, frames, _ = data.shape
    t, phi = jnp.asarray(DT * np.arange(frames)), jnp.asarray(angles_of(n))

    @jax.jit
    def function(x: Any, *parameters: Any) -> Any:
        return g2(jnp.stack(parameters), t, phi).reshape(-1)

    # It cannot exclude points; those of the diagonal have no weight.
    sigma = np.where(np.eye(frames, dtype=bool), 1e6, SIGMA)
    result = curve_fit(
        function,
        np.arange(data.size, dtype=float),
        data.reshape(-1),
        p0=start,
        sigma=np.broadcast_to(sigma, data.shape).reshape(-1),
        absolute_sigma=True,
        bounds=(lower, upper),
        x_scale="jac",
    )
    return {"result": time.monotonic(), "popt": np.asarray(result.popt), "nfev": int(result.nfev)}
