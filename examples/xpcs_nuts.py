"""The posterior of a two-time correlation by NumPyro's NUTS, compared with the errors of a fit.

    python examples/xpcs_nuts.py    # needs jaxkern-native[xpcs,mcmc]

Prints a table and writes ``demo-output/xpcs-nuts.png``. The likelihood is
`jaxkern.xpcs.log_likelihood`: value and gradient from one fused pass over the data. With much data
and little noise the posterior is nearly Gaussian, and its spread is that of the fit's `pcov`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, init_to_value

import jaxkern as jk

FRAMES, SIGMA = 64, 0.003
TRUTH = np.array([2e4, 0.3, 50.0])  # D0, alpha, D_offset
CONTRAST, OFFSET = 0.2, 1.0
HELD = "D_offset"  # nearly degenerate with D0 here, so it is fixed in the fit and in NUTS


def simulate(seed: int = 0) -> tuple[jk.xpcs.Static, np.ndarray]:
    """Return a model of one angle, and symmetric noisy data [1, FRAMES, FRAMES]."""
    times = 0.1 * np.arange(FRAMES)
    model = jk.xpcs.Static(jk.xpcs.Geometry(q=0.0054, gap=None, dt=0.1, t=times, phi=[0.0]))
    clean = np.asarray(jk.xpcs.g2(model, TRUTH, CONTRAST, OFFSET), float)
    noise = np.triu(np.random.default_rng(seed).normal(0, SIGMA, clean.shape), 1)
    return model, clean + noise + np.swapaxes(noise, 1, 2)


def sample(
    model: jk.xpcs.Static, data: np.ndarray, found: jk.xpcs.FitResult, draws: int, seed: int = 1
) -> dict[str, np.ndarray]:
    """Sample the posterior of the fitted parameters, with the fit's bounds as flat priors.

    NUTS samples in units of the fit's errors around its optimum, so that one step size suits all
    parameters; it adapts to their correlations (`dense_mass`).
    """
    names = [name for name in found.names if name != HELD]
    limits = {"contrast": (0.0, 1.0), "offset": (0.5, 1.5)}
    limits |= dict(zip(model.parameter_names, map(tuple, np.asarray(model.bounds)), strict=True))
    error = dict(zip(found.names, found.perr, strict=True))
    measured = jnp.asarray(data)

    def posterior() -> None:
        value = {HELD: jnp.asarray(found.as_dict[HELD])}
        for name in names:
            center, unit = found.as_dict[name], error[name]
            low, high = ((bound - center) / unit for bound in limits[plain(name)])
            value[name] = center + unit * numpyro.sample(name, dist.Uniform(low, high))
        params = jnp.stack([value[name] for name in model.parameter_names])
        contrast, offset = (value[name] for name in found.names[:2])
        likelihood = jk.xpcs.log_likelihood(
            model, params, contrast, offset, measured, SIGMA, symmetric=True
        )
        numpyro.factor("correlation", likelihood)

    start = init_to_value(values={name: jnp.zeros(()) for name in names})
    kernel = NUTS(posterior, dense_mass=True, init_strategy=start)
    chain = MCMC(kernel, num_warmup=draws // 2, num_samples=draws, progress_bar=False)
    chain.run(jax.random.key(seed))
    chosen = chain.get_samples()
    return {n: found.as_dict[n] + error[n] * np.asarray(chosen[n]) for n in names}


def plain(name: str) -> str:
    """Return ``contrast`` for ``contrast[0]``."""
    return name.split("[")[0]


def compare(draws: int) -> tuple[jk.xpcs.FitResult, dict[str, np.ndarray]]:
    """Return the fit and posterior samples of the same simulated data."""
    # Flat priors are wide in units of the errors, which needs float64.
    with jax.enable_x64(True):
        model, data = simulate()
        found = jk.xpcs.fit(
            model,
            data,
            SIGMA,
            {HELD: TRUTH[2]},
            hold=[HELD],
            errors=jk.xpcs.ErrorOptions("independent", absolute_sigma=True),
            progress=False,
        )
        return found, sample(model, data, found, draws)


def plot(found: jk.xpcs.FitResult, draws: dict[str, np.ndarray], path: Path) -> None:
    """Plot histograms of the samples and the Gaussians of the fit to a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, row = plt.subplots(1, len(draws), figsize=(3.4 * len(draws), 3.2), squeeze=False)
    for axes, (name, values) in zip(row[0], draws.items(), strict=True):
        center, error = found.as_dict[name], found.perr[found.names.index(name)]
        x = np.linspace(center - 4 * error, center + 4 * error, 200)
        gauss = np.exp(-0.5 * ((x - center) / error) ** 2) / (error * np.sqrt(2 * np.pi))
        axes.hist(values, 40, density=True, color="#8d99ae", label="NUTS")
        axes.plot(x, gauss, color="#d1495b", label="fit")
        axes.set_xlabel(name)
        axes.set_yticks([])
    row[0][0].legend(frameon=False)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def table(found: jk.xpcs.FitResult, draws: dict[str, np.ndarray]) -> list[list[Any]]:
    """Return rows of name, fit, error, and mean and standard deviation of the samples."""
    errors = dict(zip(found.names, found.perr, strict=True))
    return [
        [name, found.as_dict[name], errors[name], values.mean(), values.std(ddof=1)]
        for name, values in draws.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path("demo-output/xpcs-nuts.png"))
    arguments = parser.parse_args()
    found, draws = compare(arguments.draws)
    print(f"{'':<12}{'fit':>12}{'error':>11}{'NUTS mean':>14}{'spread':>11}{'ratio':>8}")
    for name, value, error, mean, spread in table(found, draws):
        print(f"{name:<12}{value:>12.6g}{error:>11.3g}{mean:>14.6g}{spread:>11.3g}", end="")
        print(f"{spread / error:>8.3f}")
    plot(found, draws, arguments.output)
    print(f"wrote {arguments.output}")


if __name__ == "__main__":
    main()
