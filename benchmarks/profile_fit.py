"""Profile of a fit by phase and function: ``profile_fit.py nlsq`` and ``profile_fit.py mcmc``.

``make profile-nlsq`` profiles a fit of simulated data, ``make profile-mcmc`` a NUTS run on
the same model through `jaxkern.xpcs.log_likelihood`. Both print seconds by phase and the functions
that took longest, and write the profile (for snakeviz or pstats) to ``benchmark-results/``.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from pathlib import Path
from typing import Any

import numpy as np
import xpcs_model as model

import jaxkern as jk

OUTPUT = Path("benchmark-results")


def nlsq(angles: int, frames: int) -> dict[str, float]:
    """Return the seconds of a fit by phase."""
    truth, data = model.simulate(angles, frames)
    start = truth[2 * angles :] * 1.1
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    result = jk.xpcs.fit(flow, data, 0.02, start, progress=False)
    print(result)
    timings = result.timings
    other = timings.total - timings.compile - timings.compute
    return {"compile": timings.compile, "compute": timings.compute, "other": other}


def mcmc(angles: int, frames: int) -> dict[str, float]:
    """Return the seconds of a NUTS run by phase: the first call compiles, the second does not."""
    import jax
    import jax.numpy as jnp
    import numpyro
    from numpyro.infer import MCMC, NUTS

    truth, data = model.simulate(angles, frames)
    flow = jk.xpcs.LaminarFlow(model.geometry(angles, frames))
    contrast, offset = truth[:angles], truth[angles : 2 * angles]
    physics = truth[2 * angles :]
    scale = np.abs(physics) * 0.02

    def posterior() -> None:
        z = numpyro.sample("z", numpyro.distributions.Normal(0, 1).expand([2]).to_event(1))
        parameters = jnp.asarray(physics).at[:2].add(z * jnp.asarray(scale[:2]))
        value = jk.xpcs.log_likelihood(flow, parameters, contrast, offset, data, 0.02)
        numpyro.factor("likelihood", value)

    seconds = {}
    sampler = MCMC(NUTS(posterior), num_warmup=50, num_samples=50, progress_bar=False)
    for name in ("first run, with compiling", "second run"):
        begin = time.perf_counter()
        sampler.run(jax.random.key(0))
        jax.block_until_ready(sampler.get_samples())
        seconds[name] = time.perf_counter() - begin
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["nlsq", "mcmc"])
    parser.add_argument("--angles", type=int, default=3)
    parser.add_argument("--frames", type=int)
    chosen = parser.parse_args()
    frames = chosen.frames or (1000 if chosen.kind == "nlsq" else 200)
    runs: dict[str, Any] = {"nlsq": nlsq, "mcmc": mcmc}
    if chosen.kind == "mcmc":
        import jax

        jax.config.update("jax_enable_x64", True)
    profile = cProfile.Profile()
    seconds = profile.runcall(runs[chosen.kind], chosen.angles, frames)
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / f"profile-{chosen.kind}.prof"
    profile.dump_stats(path)
    pstats.Stats(profile).sort_stats("tottime").print_stats(15)
    print(f"{chosen.angles} angles of {frames} frames")
    for name, value in seconds.items():
        print(f"  {name:<28} {value:8.3f} s")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
