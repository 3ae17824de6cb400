"""XPCS kernels against the jitted, vmapped JAX model: g2, and normal equations against J^T J.

    python benchmarks/xpcs_kernels.py            # prints, and writes benchmarks/results/
    python benchmarks/xpcs_kernels.py --quick    # fewer rounds, writes nothing

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

SIGMA = 0.02


def close(got: Any, expected: Any, name: str, relative: float = 1e-9) -> None:
    """End the benchmark if two arms differ by more than ``relative`` of the largest value."""
    got, expected = np.asarray(got), np.asarray(expected)
    worst = float(np.abs(got - expected).max() / np.abs(expected).max())
    harness.within(name, worst, relative, "of the largest value")


Arms = dict[str, Callable[[], Any]]


def g2_arms(angles: int, frames: int) -> Arms:
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    parameters, _ = model.simulate(angles, 8)
    t, phi = jnp.asarray(flow.geometry.t), jnp.asarray(flow.geometry.phi)
    p = jnp.asarray(parameters)
    theirs = jax.jit(model.g2)
    ours = jax.jit(lambda p: jk.xpcs.g2(flow, p[2 * angles :], p[:angles], p[angles : 2 * angles]))
    close(ours(p), theirs(p, t, phi), f"g2, {angles} x {frames}^2", 1e-12)
    return {
        "ours": lambda: ours(p).block_until_ready(),
        "theirs": lambda: theirs(p, t, phi).block_until_ready(),
    }


def normal_arms(angles: int, frames: int, scaling: str) -> Arms:
    """Individual scaling: 2 n_phi + 7 parameters; constant or 3 angles alike: the same columns."""
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    parameters, data = model.simulate(angles, frames)
    t, phi = jnp.asarray(flow.geometry.t), jnp.asarray(flow.geometry.phi)
    p, measured = jnp.asarray(parameters), jnp.asarray(data)
    theirs = jax.jit(model.normal_equations)

    def with_symmetric(symmetric: Any) -> Any:
        @jax.jit
        def run(p: Any, measured: Any) -> Any:
            n = angles
            return jk.xpcs.normal_equations(
                flow, p[2 * n :], p[:n], p[n : 2 * n], measured, SIGMA,
                scaling=scaling, symmetric=symmetric,
            )  # fmt: skip

        return run

    upper, compared = with_symmetric(True), with_symmetric("auto")
    jtj, jtr, chi2 = theirs(p, t, phi, measured, SIGMA)
    for name, run in (("symmetric", upper), ("compared", compared)):
        ne = run(p, measured)
        what = f"normal equations, {angles} x {frames}^2, {name}"
        scale = 1 / np.sqrt(np.diag(jtj))
        close(ne.jtj * scale * scale[:, None], jtj * scale * scale[:, None], what)
        close(ne.jtr * scale, jtr * scale, what)
        close(ne.chi2, chi2, what)
    return {
        "ours": lambda: upper(p, measured),
        "ours, compared": lambda: compared(p, measured),
        "theirs": lambda: theirs(p, t, phi, measured, SIGMA),
    }


def main() -> None:
    quick = harness.parse(__doc__).quick
    jax.config.update("jax_enable_x64", True)
    kept = jk.performance.tune_host_allocator()
    work = [
        ("g2, 23 x 400^2", 23 * 400**2, 8.0, g2_arms(23, 400), 15),
        ("normal equations, 23 x 400^2, 53 parameters", 23 * 400**2, 500.0,
         normal_arms(23, 400, "individual"), 5),
        ("normal equations, 3 x 1000^2, 13 parameters", 3 * 1000**2, 100.0,
         normal_arms(3, 1000, "individual"), 7),
    ]  # fmt: skip
    rows, record = [], {}
    for name, points, bar, arms, rounds in work:
        samples = harness.interleave(arms, 3 if quick else rounds, warmup=1, turn_seconds=0.3)
        theirs = f"{samples['theirs'].median * 1e3:,.1f}"
        for ours in list(arms)[:-1]:
            row = harness.Row(name + ours.removeprefix("ours"), samples, ours, ["theirs"], bar)
            seconds, verdict = samples[ours].median, harness.at_least(row.ratio.value, bar)
            cells = [row.name, theirs, f"{seconds * 1e3:,.2f}", f"{points / seconds / 1e6:,.0f}"]
            rows.append([*cells, row.ratio, f"{bar:g}", verdict])
        record[name] = {"points": points, "samples": samples}
    header = "work | JAX, ms | ours, ms | ours, Mpoints/s | ratio (95% interval) | bar | "
    lines = harness.table(header, "lrrrrrl", rows)
    note = f"Medians; every point of a data set counts; freed memory kept for all arms: {kept}."
    harness.write("xpcs-kernels", "XPCS kernels", lines, record, note=note, quick=quick)


if __name__ == "__main__":
    main()
