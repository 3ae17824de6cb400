"""Kernels of the two-component model against the jitted JAX model: g2, and normal equations.

The JAX model follows the formulas of the heterodyne package, and J^T J comes from `jax.jacfwd`.
float64, symmetric data, one constant sigma; contrast and offset of each angle are fitted. All arms
are warm, run in one process in turns under the same allocator state, and are checked to return the
same values first.
"""

from __future__ import annotations

from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import xpcs_model as model

import jaxkern as jk

PHYSICS = np.array([8e3, 0.2, 100.0, 1.2e4, 0.1, 50.0, 800.0, 0.7, 20.0, 0.5, 0.05, 0.1, 0.02, 3.0])


def g2(parameters: Any, t: Any, phi: Any) -> Any:
    """g2 [n_phi, n_t, n_t] of parameters [2 n_phi + 14]."""
    n, p = phi.shape[0], parameters[2 * phi.shape[0] :]

    def law(scale: Any, exponent: Any, offset: Any) -> Any:
        return scale * jnp.where(t > 0, jnp.maximum(t, 1e-10) ** exponent, 0.0) + offset

    def integral(f: Any) -> Any:
        return model.DT * jnp.concatenate([jnp.zeros(1), jnp.cumsum((f[1:] + f[:-1]) / 2)])

    def decay(rate: Any) -> Any:
        table = integral(jnp.where(rate < 0, 0.0, rate))
        distance = jnp.sqrt((table - table[:, None]) ** 2 + 1e-12)
        return jnp.exp(jnp.clip(-(model.Q**2) / 2 * distance, -700.0, 0.0))

    h_r, h_s, V = decay(law(*p[0:3])), decay(law(*p[3:6])), integral(law(*p[6:9]))
    x = p[9] * jnp.exp(jnp.clip(p[10] * (t - p[11]), -700.0, 700.0)) + p[12]
    x = 1 - jax.nn.softplus(50 * (1 - jax.nn.softplus(50 * x) / 50)) / 50
    sample, reference = jnp.outer(x, x), jnp.outer(1 - x, 1 - x)
    norm = x**2 + (1 - x) ** 2
    same = (reference * h_r) ** 2 + (sample * h_s) ** 2
    cross = 2 * reference * sample * h_r * h_s

    def one(angle: Any, contrast: Any, offset: Any) -> Any:
        along = model.Q * jnp.cos(jnp.deg2rad(p[13] + angle))
        f = same + cross * jnp.cos(along * (V - V[:, None]))
        return offset + contrast * f / jnp.outer(norm, norm)

    return jax.vmap(one)(phi, parameters[:n], parameters[n : 2 * n])


def normal_equations(parameters: Any, t: Any, phi: Any, data: Any) -> Any:
    """J^T J, J^T r and chi2 without the diagonal and frame 0."""
    used = ~jnp.eye(data.shape[-1], dtype=bool)
    used = used.at[0].set(False).at[:, 0].set(False)

    def residual(p: Any) -> tuple[Any, Any]:
        r = jnp.where(used, (data - g2(p, t, phi)) / model.SIGMA, 0.0).reshape(-1)
        return r, r

    J, r = jax.jacfwd(residual, has_aux=True)(parameters)
    return J.T @ J, -(J.T @ r), r @ r


def arms_of(angles: int, frames: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arms of g2, and those of the normal equations."""
    two = jk.xpcs.TwoComponent(model.geometry(angles, frames))
    t, phi = jnp.asarray(two.geometry.t), jnp.asarray(two.geometry.phi)
    random = np.random.default_rng(0)
    scales = random.uniform(0.2, 0.4, angles), random.uniform(0.98, 1.02, angles)
    p = jnp.asarray(np.concatenate([*scales, PHYSICS]))
    clean = jax.jit(g2)
    noise = np.triu(random.normal(0, model.SIGMA, (angles, frames, frames)), 1)
    data = jnp.asarray(np.asarray(clean(p, t, phi)) + noise + noise.swapaxes(1, 2))

    @jax.jit
    def ours(p: Any) -> Any:
        return jk.xpcs.g2(two, p[2 * angles :], p[:angles], p[angles : 2 * angles])

    def normal(symmetric: Any) -> Any:
        @jax.jit
        def run(p: Any, data: Any) -> Any:
            contrast, offset, physics = jnp.split(p, [angles, 2 * angles])
            operands = physics, contrast, offset, data, model.SIGMA
            return jk.xpcs.normal_equations(two, *operands, symmetric=symmetric)

        return run

    what = f"{angles} x {frames}^2"
    harness.check_relative(f"g2, {what}", ours(p), clean(p, t, phi), 1e-9)
    theirs, upper, compared = jax.jit(normal_equations), normal(True), normal("auto")
    jtj, jtr, chi2 = theirs(p, t, phi, data)
    scale = 1 / np.sqrt(np.diag(jtj))
    for run in (upper, compared):
        ne, both = run(p, data), scale * scale[:, None]
        for got, expected in ((ne.jtj * both, jtj * both), (ne.jtr * scale, jtr * scale)):
            harness.check_relative(f"normal equations, {what}", got, expected, 1e-7)
        harness.check_relative(f"chi2, {what}", ne.chi2, chi2, 1e-9)
    values = {
        "ours": lambda: ours(p).block_until_ready(),
        "theirs": lambda: clean(p, t, phi).block_until_ready(),
    }
    return values, {
        "ours": lambda: jax.block_until_ready(upper(p, data)),
        "ours, compared": lambda: jax.block_until_ready(compared(p, data)),
        "theirs": lambda: jax.block_until_ready(theirs(p, t, phi, data)),
    }


def main() -> None:
    bench = harness.Benchmark(__doc__)
    jax.config.update("jax_enable_x64", True)
    kept = jk.performance.tune_host_allocator()
    angles, frames = (3, 64) if bench.quick else (23, 400)
    values, normal = arms_of(angles, frames)
    points, rows = angles * frames**2, []
    size = f"{angles} x {frames}^2"
    for name, bar, arms in (
        (f"g2, {size}", 6.0, values),
        (f"normal equations, {size}, {2 * angles + 14} parameters", 300.0, normal),
    ):
        samples = harness.interleave(arms, 3 if bench.quick else 5, 1, turn_seconds=0.3)
        theirs = f"{samples['theirs'].median * 1e3:,.1f}"
        for ours in list(arms)[:-1]:
            row = harness.Row(name + ours.removeprefix("ours"), samples, ours, ["theirs"], bar)
            seconds = samples[ours].median
            cells = [row.name, theirs, f"{seconds * 1e3:,.2f}", f"{points / seconds / 1e6:,.0f}"]
            rows.append([*cells, row.ratio, f"{bar:g}", row.verdict])
    header = "work | JAX, ms | ours, ms | ours, Mpoints/s | ratio (95% interval) | bar | "
    note = f"Medians; every point of a data set counts; freed memory kept for all arms: {kept}."
    bench.write(harness.table(header, "lrrrrrl", rows), note=note)


if __name__ == "__main__":
    main()
