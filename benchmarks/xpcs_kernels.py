"""XPCS kernels against the jitted, vmapped JAX model: g2, and normal equations against J^T J.

float64, symmetric data, one constant sigma. All arms are warm, run in one process in turns under
the same allocator state (freed memory is kept), and are checked to return the same values first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import xpcs_model as model

import jaxkern as jk

Arms = dict[str, Callable[[], Any]]


def g2_arms(angles: int, frames: int) -> Arms:
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    p = jnp.asarray(model.simulate(angles, 8)[0])
    t, phi = jnp.asarray(flow.geometry.t), jnp.asarray(flow.geometry.phi)
    theirs = jax.jit(model.g2)
    ours = jax.jit(lambda p: jk.xpcs.g2(flow, p[2 * angles :], p[:angles], p[angles : 2 * angles]))
    harness.check_relative(f"g2, {angles} x {frames}^2", ours(p), theirs(p, t, phi), 1e-12)
    return {
        "ours": lambda: ours(p).block_until_ready(),
        "theirs": lambda: theirs(p, t, phi).block_until_ready(),
    }


def normal_arms(angles: int, frames: int) -> Arms:
    """Normal equations of 2 n_phi + 7 parameters."""
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    p, data = map(jnp.asarray, model.simulate(angles, frames))
    t, phi = jnp.asarray(flow.geometry.t), jnp.asarray(flow.geometry.phi)
    theirs = jax.jit(model.normal_equations)

    def with_symmetric(symmetric: Any) -> Any:
        @jax.jit
        def run(p: Any, data: Any) -> Any:
            contrast, offset, physics = jnp.split(p, [angles, 2 * angles])
            return jk.xpcs.normal_equations(
                flow, physics, contrast, offset, data, model.SIGMA, symmetric=symmetric
            )

        return run

    upper, compared = with_symmetric(True), with_symmetric("auto")
    jtj, jtr, chi2 = theirs(p, t, phi, data, model.SIGMA)
    scale = 1 / np.sqrt(np.diag(jtj))
    for name, run in (("symmetric", upper), ("compared", compared)):
        ne = run(p, data)
        for got, expected in (
            (ne.jtj * scale * scale[:, None], jtj * scale * scale[:, None]),
            (ne.jtr * scale, jtr * scale),
            (ne.chi2, chi2),
        ):
            what = f"normal equations, {angles} x {frames}^2, {name}"
            harness.check_relative(what, got, expected, 1e-9)
    return {
        "ours": lambda: upper(p, data),
        "ours, compared": lambda: compared(p, data),
        "theirs": lambda: theirs(p, t, phi, data, model.SIGMA),
    }


def main() -> None:
    bench = harness.Benchmark(__doc__)
    jax.config.update("jax_enable_x64", True)
    kept = jk.performance.tune_host_allocator()
    # A name, the points, the bar, the arms and the rounds.
    work = [
        ("g2, 23 x 400^2", 23 * 400**2, 8.0, g2_arms(23, 400), 15),
        ("normal equations, 23 x 400^2, 53 parameters", 23 * 400**2, 500.0,
         normal_arms(23, 400), 5),
        ("normal equations, 3 x 1000^2, 13 parameters", 3 * 1000**2, 100.0,
         normal_arms(3, 1000), 7),
    ]  # fmt: skip
    rows = []
    for name, points, bar, arms, rounds in work:
        samples = harness.interleave(arms, 3 if bench.quick else rounds, 1, turn_seconds=0.3)
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
