"""XPCS kernels against jitted JAX models: g2, and normal equations against J^T J of `jax.jacfwd`.

float64, symmetric data, one constant sigma; contrast and offset of each angle are fitted. All arms
are warm, run in one process in turns under the same allocator state (freed memory is kept), and are
checked to return the same values first.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import harness
import jax
import jax.numpy as jnp
import numpy as np
import xpcs_model as model

import jaxkern as jk

Arms = dict[str, Callable[[], Any]]
# A model's class, the jitted model, parameters, frames that the model excludes, and the largest
# relative differences of g2 and of normal equations.
MODELS: dict[str, tuple[Any, Any, Any, int, float, float]] = {
    "laminar": (jk.xpcs.LaminarFlow, model.g2, model.PHYSICS, 0, 1e-12, 1e-9),
    "two components": (
        jk.xpcs.TwoComponent, model.two_component_g2, model.TWO_COMPONENTS, 1, 1e-9, 1e-7,
    ),
}  # fmt: skip
# The model, angles, frames, and the bars of g2 (None: not compared) and of normal equations.
CASES = [
    ("laminar", 23, 400, 8.0, 500.0),
    ("laminar", 3, 1000, None, 100.0),
    ("two components", 23, 400, 6.0, 300.0),
]


class Problem:
    """A model with parameters of ``angles`` angles."""

    def __init__(self, kind: str, angles: int, frames: int) -> None:
        make, theirs, physics, self.skip, *self.limits = MODELS[kind]
        self.size = f"{kind}, {angles} x {frames}^2"
        self.model, self.shape = make(model.geometry(angles, frames)), (angles, frames, frames)
        self.random = np.random.default_rng(0)
        scales = self.random.uniform(0.2, 0.4, angles), self.random.uniform(0.98, 1.02, angles)
        self.p = jnp.asarray(np.concatenate([*scales, physics]))
        geometry = self.model.geometry
        self.theirs = partial(theirs, t=jnp.asarray(geometry.t), phi=jnp.asarray(geometry.phi))

    def parts(self, p: Any) -> list[Any]:
        contrast, offset, physics = jnp.split(p, [self.shape[0], 2 * self.shape[0]])
        return [physics, contrast, offset]

    def g2(self) -> Arms:
        theirs, p = jax.jit(self.theirs), self.p
        ours = jax.jit(lambda p: jk.xpcs.g2(self.model, *self.parts(p)))
        harness.check_relative(f"g2, {self.size}", ours(p), theirs(p), self.limits[0])
        return {
            "ours": lambda: ours(p).block_until_ready(),
            "theirs": lambda: theirs(p).block_until_ready(),
        }

    def normal_equations(self) -> Arms:
        noise = np.triu(self.random.normal(0, model.SIGMA, self.shape), 1)
        clean = np.asarray(jax.jit(self.theirs)(self.p))
        p, data = self.p, jnp.asarray(clean + noise + noise.swapaxes(1, 2))

        def ours(symmetric: Any) -> Callable[[], Any]:
            def run(p: Any, data: Any) -> Any:
                operands = *self.parts(p), data, model.SIGMA
                return jk.xpcs.normal_equations(self.model, *operands, symmetric=symmetric)

            return partial(jax.jit(run), p, data)

        theirs = jax.jit(partial(model.normal_equations, self.theirs, skip=self.skip))
        jtj, jtr, chi2 = theirs(p, data)
        scale = 1 / np.sqrt(np.diag(jtj))
        arms: Arms = {"ours": ours(True), "ours, compared": ours("auto")}
        for name, run in arms.items():
            ne, both = run(), scale * scale[:, None]
            for got, expected in ((ne.jtj * both, jtj * both), (ne.jtr * scale, jtr * scale)):
                what = f"normal equations, {self.size}, {name}"
                harness.check_relative(what, got, expected, self.limits[1])
            harness.check_relative(f"chi2, {self.size}, {name}", ne.chi2, chi2, 1e-9)
        arms = {name: lambda run=run: jax.block_until_ready(run()) for name, run in arms.items()}
        return {**arms, "theirs": lambda: jax.block_until_ready(theirs(p, data))}


def main() -> None:
    bench = harness.Benchmark(__doc__)
    jax.config.update("jax_enable_x64", True)
    kept = jk.performance.tune_host_allocator()
    rows = []
    for kind, angles, frames, *bars in CASES:
        problem = Problem(kind, angles, 64 if bench.quick else frames)
        points = np.prod(problem.shape)
        work = f"normal equations, {problem.size}, {len(problem.p)} parameters"
        for name, make, bar in (
            (f"g2, {problem.size}", problem.g2, bars[0]),
            (work, problem.normal_equations, bars[1]),
        ):
            if bar is None:
                continue
            arms = make()
            samples = harness.interleave(arms, 3 if bench.quick else 7, 1, turn_seconds=0.3)
            for ours in list(arms)[:-1]:
                row = harness.Row(name + ours.removeprefix("ours"), samples, ours, ["theirs"], bar)
                rate = f"{points / samples[ours].median / 1e6:,.0f}"
                rows.append([*row.cells(1e3, "{:,.2f}"), rate])
    header = f"work | JAX, ms | ours, ms | {harness.RATIO} | ours, Mpoints/s"
    note = f"Medians; every point of a data set counts; freed memory kept for all arms: {kept}."
    bench.write(harness.table(header, "lrrrrlr", rows), note=note)


if __name__ == "__main__":
    main()
