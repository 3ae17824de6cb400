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
TWO_COMPONENTS = np.array(
    [8e3, 0.2, 100.0, 1.2e4, 0.1, 50.0, 800.0, 0.7, 20.0, 0.5, 0.05, 0.1, 0.02, 3.0]
)


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


def two_component_g2(parameters: Any, t: Any, phi: Any) -> Any:
    """g2 [n_phi, n_t, n_t] of parameters [2 n_phi + 14], by heterodyne's formulas."""
    n, p = phi.shape[0], parameters[2 * phi.shape[0] :]

    def law(scale: Any, exponent: Any, offset: Any) -> Any:
        return scale * jnp.where(t > 0, jnp.maximum(t, 1e-10) ** exponent, 0.0) + offset

    def integral(f: Any) -> Any:
        return DT * jnp.concatenate([jnp.zeros(1), jnp.cumsum((f[1:] + f[:-1]) / 2)])

    def decay(rate: Any) -> Any:
        table = integral(jnp.where(rate < 0, 0.0, rate))
        distance = jnp.sqrt((table - table[:, None]) ** 2 + 1e-12)
        return jnp.exp(jnp.clip(-(Q**2) / 2 * distance, -700.0, 0.0))

    h_r, h_s, V = decay(law(*p[0:3])), decay(law(*p[3:6])), integral(law(*p[6:9]))
    x = p[9] * jnp.exp(jnp.clip(p[10] * (t - p[11]), -700.0, 700.0)) + p[12]
    x = 1 - jax.nn.softplus(50 * (1 - jax.nn.softplus(50 * x) / 50)) / 50
    sample, reference = jnp.outer(x, x), jnp.outer(1 - x, 1 - x)
    norm = x**2 + (1 - x) ** 2
    same = (reference * h_r) ** 2 + (sample * h_s) ** 2
    cross = 2 * reference * sample * h_r * h_s

    def one(angle: Any, contrast: Any, offset: Any) -> Any:
        along = Q * jnp.cos(jnp.deg2rad(p[13] + angle))
        f = same + cross * jnp.cos(along * (V - V[:, None]))
        return offset + contrast * f / jnp.outer(norm, norm)

    return jax.vmap(one)(phi, parameters[:n], parameters[n : 2 * n])


def normal_equations(g2: Any, parameters: Any, data: Any, skip: int) -> Any:
    """J^T J, J^T r and chi2, without the diagonal and the first frames, by `jax.jacfwd`.

    g2: function of the parameters. skip: number of frames that are not used.
    """
    used = ~jnp.eye(data.shape[-1], dtype=bool)
    used = used.at[:skip].set(False).at[:, :skip].set(False)

    def residual(p: Any) -> tuple[Any, Any]:
        r = jnp.where(used, (data - g2(p)) / SIGMA, 0.0).reshape(-1)
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
