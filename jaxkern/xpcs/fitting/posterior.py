"""The posterior of the parameters of a fit, sampled by NumPyro's NUTS."""

from __future__ import annotations

import importlib.util
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import npz_bytes
from jaxkern.core.paths import write_atomically
from jaxkern.xpcs.files.sources import LoadedSource, as_source, quantization
from jaxkern.xpcs.fitting.parameters import FitLayout, fit_bounds
from jaxkern.xpcs.fitting.result import FitResult
from jaxkern.xpcs.fitting.sampling import format_frames, mirrored_angles
from jaxkern.xpcs.model.models import Model
from jaxkern.xpcs.model.normal import log_likelihood

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_DIAGNOSTICS = ("diverging", "accept_prob", "num_steps")
# Largest number of parameters of a corner plot.
_MOST_SHOWN = 12


@dataclass(frozen=True, eq=False)
class Posterior:
    """Samples of the posterior of a fit.

    Attributes:
      names, units: of the sampled parameters, those of the fit that were not held.
      samples: [chains, draws, p].
      rhat: [p] split R-hat; above 1.01 the chains have not mixed.
      ess: [p] effective numbers of samples.
      diverging: [chains, draws] True for divergent transitions.
      accept_prob, num_steps: [chains, draws] of NUTS.
      fitted, errors: [p] values and standard errors of the fit.
    """

    names: tuple[str, ...]
    units: tuple[str, ...]
    samples: Array
    rhat: Array
    ess: Array
    diverging: NDArray[np.bool_]
    accept_prob: Array
    num_steps: NDArray[np.int64]
    fitted: Array
    errors: Array

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each parameter: mean, deviation, 68% and 95% intervals, R-hat, ESS, the fit."""
        flat = self.samples.reshape(-1, len(self.names))
        at = (0.5, 0.16, 0.84, 0.025, 0.975)
        titles = ("median", "68% low", "68% high", "95% low", "95% high")
        columns: dict[str, Any] = {
            "mean": flat.mean(0),
            "sd": flat.std(0, ddof=1),
            **dict(zip(titles, np.quantile(flat, at, axis=0), strict=True)),
            "rhat": self.rhat,
            "ess": self.ess,
            "fit": self.fitted,
            "fit error": self.errors,
        }
        return [
            {"parameter": name, **{title: float(x[k]) for title, x in columns.items()}}
            for k, name in enumerate(self.names)
        ]

    def __str__(self) -> str:
        chains, draws, _ = self.samples.shape
        lines = [
            f"posterior: {chains} chains of {draws} draws, {int(self.diverging.sum())} divergent, "
            f"R-hat up to {self.rhat.max():.3f}, at least {self.ess.min():.0f} effective samples"
        ]
        width = max(map(len, self.names))
        for row in self.table:
            lines.append(
                f"  {row['parameter']:<{width}}  {row['mean']: .6g} +/- {row['sd']:.2g} "
                f"(95%: {row['95% low']:.6g} to {row['95% high']:.6g}; fit {row['fit']:.6g} +/- "
                f"{row['fit error']:.2g})"
            )
        return "\n".join(lines)

    def to_arviz(self) -> Any:
        """Return an ArviZ DataTree; `to_netcdf` of it writes a file. Needs arviz-base."""
        from arviz_base import from_dict

        statistics = {
            "diverging": self.diverging,
            "acceptance_rate": self.accept_prob,
            "n_steps": self.num_steps,
        }
        samples = {name: self.samples[:, :, k] for k, name in enumerate(self.names)}
        return from_dict({"posterior": samples, "sample_stats": statistics})

    def save(self, folder: str | Path) -> list[Path]:
        """Write posterior.csv, .npz and .png, and .nc if arviz-base is installed; return the paths.

        The folder is created if missing.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / f"posterior.{suffix}" for suffix in ("csv", "npz", "png", "nc")]
        table = self.table
        lines = [list(table[0]), *(row.values() for row in table)]
        text = "".join(",".join(map(str, line)) + "\n" for line in lines)
        write_atomically(paths[0], text.encode())
        arrays = {name: getattr(self, name) for name in ("samples", "rhat", "ess", *_DIAGNOSTICS)}
        write_atomically(paths[1], npz_bytes(arrays | {"names": np.array(self.names)}))
        image = io.BytesIO()
        self.plot().savefig(image, format="png", dpi=110)
        write_atomically(paths[2], image.getvalue())
        if importlib.util.find_spec("arviz_base") is None:
            return paths[:3]
        with tempfile.TemporaryDirectory() as temporary:
            file = Path(temporary) / "posterior.nc"
            self.to_arviz().to_netcdf(file)
            write_atomically(paths[3], file.read_bytes())
        return paths

    def plot(self, path: str | Path | None = None) -> Figure:
        """Draw a corner plot of up to 12 parameters, the last of which are the model's.

        Lines are the Gaussians of the fit's errors.
        """
        from matplotlib.figure import Figure

        shown = range(len(self.names))[-_MOST_SHOWN:]
        n = len(shown)
        figure = Figure(figsize=(1.6 * n + 0.6, 1.6 * n + 0.6), layout="constrained")
        grid = figure.subplots(n, n, squeeze=False)
        flat = self.samples.reshape(-1, len(self.names))
        for row, k in enumerate(shown):
            for column, j in enumerate(shown):
                axes = grid[row, column]
                axes.tick_params(labelsize=6, labelleft=False, labelbottom=row == n - 1)
                if column > row:
                    axes.set_axis_off()
                elif column < row:
                    axes.plot(flat[:, j], flat[:, k], ",", alpha=0.4, color="C0")
                else:
                    axes.hist(flat[:, k], 40, density=True, histtype="step", color="C0")
                    low, high = axes.get_xlim()
                    x = np.linspace(low, high, 200)
                    error = self.errors[k]
                    if 0 < error < np.inf:
                        gauss = np.exp(-0.5 * ((x - self.fitted[k]) / error) ** 2)
                        axes.plot(x, gauss / (error * np.sqrt(2 * np.pi)), color="k", lw=0.8)
                    axes.set_title(self.names[k], fontsize=7)
                if row == n - 1 and column <= row:
                    axes.set_xlabel(self.names[j], fontsize=7)
                    axes.tick_params(axis="x", rotation=45)
        if path is not None:
            figure.savefig(path, dpi=110)
        return figure


def posterior(
    model: Model,
    data: Any,
    fit: FitResult,
    sigma: Any = None,
    *,
    bounds: Any = None,
    chains: int = 4,
    warmup: int = 200,
    draws: int = 500,
    seed: int = 0,
    progress: bool = True,
) -> Posterior:
    """Sample the posterior of a fit's parameters with NumPyro's NUTS.

    The prior is uniform within the bounds. The likelihood is `log_likelihood` with the fit's
    `inflation`, so that the posterior is as wide as the fit's errors if it is Gaussian. Chains
    start around the fit, and their mass matrix comes from its covariance.

    Args:
      model, data: as in `fit`; the data are loaded into memory.
      fit: the result of `fit`, which also names the held parameters and the used frames.
      sigma: noise, as in `fit`; None for that of the fit.
      bounds: as in `fit`.
      chains, warmup, draws: numbers of chains, and of steps of each before and after adaptation.
      seed: of the random numbers.
      progress: show a progress bar for each chain.

    Returns:
      A `Posterior` of the parameters that the fit did not hold.

    Raises:
      ModuleNotFoundError: NumPyro is not installed.
      ValueError: the data do not determine a parameter, or hold NaN at used frames; sigma is
        unknown; the fit is of another model, outside of the bounds, or has a robust loss.

    Example:
      >>> import jaxkern as jk, numpy as np
      >>> model = jk.xpcs.Static(jk.xpcs.Geometry(.0054, None, .1, .1 * np.arange(40), 0.))
      >>> noise = np.triu(np.random.default_rng(0).normal(0, .01, (40, 40)), 1)
      >>> data = np.asarray(jk.xpcs.g2(model, [2e4, .3, 50.], .2, 1.)) + noise + noise.T
      >>> found = jk.xpcs.fit(model, data, .01, hold=["D_offset"], progress=False)
      >>> sampled = jk.xpcs.posterior(model, data, found, chains=2, draws=50, progress=False)
      >>> sampled.names, sampled.samples.shape
      (('contrast[0]', 'offset[0]', 'D0', 'alpha'), (2, 50, 4))
    """
    import numpyro
    from numpyro import distributions
    from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
    from numpyro.infer import MCMC, NUTS

    check_integer("chains", chains, 1)
    check_integer("warmup", warmup, 1)
    check_integer("draws", draws, 4)  # of the diagnostics
    noise = fit.sigma if sigma is None else sigma
    if noise is None:
        raise ValueError("sigma: expected the noise of each point, since the fit used it; got None")
    if fit.cost != fit.chi2:
        raise ValueError(
            "fit: expected a fit with the loss 'linear', since the likelihood is Gaussian; got one "
            "with a robust loss"
        )
    basis = fit.scale_basis
    labels = tuple(name.removeprefix("contrast") for name in fit.names[: basis.shape[1]])
    layout = FitLayout(basis, labels, model.parameter_names, model.units, fit.contrast, fit.offset)
    if layout.names != tuple(fit.names):
        raise ValueError(
            f"fit: expected a fit of the model with {', '.join(layout.names)}, got one with "
            f"{', '.join(fit.names)}"
        )
    free = np.array([name not in fit.held for name in fit.names])
    with jax.enable_x64(True):
        loaded = LoadedSource(as_source(data))
        scale = quantization(loaded)
        symmetric = True if mirrored_angles(loaded).all() else "auto"
        chosen = fit_bounds(bounds, layout, model)
        for name, x, low, high in zip(fit.names, fit.popt, *chosen.solver, strict=True):
            if not low <= x <= high and name not in fit.held:
                raise ValueError(
                    f"bounds of {name}: expected bounds that include the fit, {x:.6g}, got {low:g} "
                    f"and {high:g}"
                )
        if not isinstance(noise, np.ndarray) and np.ndim(noise):
            noise = LoadedSource(as_source(noise, name="sigma")).array
        _check_finite(loaded.array, np.asarray(noise), fit)
        space = _Space(model, fit, free, *chosen.solver)
        arrays = (loaded.array, np.asarray(noise, np.float64))

        def sampled(measured: Any, deviations: Any) -> None:
            count = (int(free.sum()),)
            anywhere = distributions.ImproperUniform(distributions.constraints.real, count, ())
            z = numpyro.sample("z", anywhere.to_event(1))
            x, log_volume = space(z)
            at = layout.split(x)
            likelihood = log_likelihood(
                model, at.physics, at.contrast, at.offset, measured, deviations,
                symmetric=symmetric, keep=fit.keep, inflation=fit.inflation,
                quantization=scale if measured.dtype == jnp.uint16 else None,
            )  # fmt: skip
            numpyro.factor("likelihood", likelihood + log_volume)

        start, run = jax.random.split(jax.random.key(seed))
        first = 0.5 * jax.random.normal(start, (chains, int(free.sum())))
        mcmc = MCMC(
            NUTS(sampled), num_warmup=warmup, num_samples=draws, num_chains=chains,
            chain_method="sequential", progress_bar=progress, jit_model_args=True,
        )  # fmt: skip
        mcmc.run(
            run, *map(jnp.asarray, arrays), extra_fields=_DIAGNOSTICS,
            init_params={"z": first[0] if chains == 1 else first},
        )  # fmt: skip
        z = mcmc.get_samples(group_by_chain=True)["z"]
        x = np.asarray(jax.jit(jax.vmap(jax.vmap(lambda z: space(z)[0])))(z))[:, :, free]
        extra = {k: np.asarray(v) for k, v in mcmc.get_extra_fields(group_by_chain=True).items()}
    kept = np.flatnonzero(free)
    return Posterior(
        names=tuple(fit.names[k] for k in kept),
        units=tuple(fit.units[k] for k in kept),
        samples=x,
        rhat=np.asarray(split_gelman_rubin(x)),
        ess=np.asarray(effective_sample_size(x)),
        fitted=fit.popt[kept],
        errors=fit.perr[kept],
        **extra,
    )


def _check_finite(data: Any, sigma: Any, fit: FitResult) -> None:
    """Raise ValueError for NaN at points with weight, whose rows the fit has excluded."""
    if data.dtype.kind != "f":
        return
    for angle, matrix in enumerate(data):
        keep = fit.keep[angle] if fit.keep.ndim == 2 else fit.keep
        used = np.outer(keep, keep) & ~np.eye(len(keep), dtype=bool)
        if sigma.ndim:
            used &= np.abs(sigma[angle]) > 1e-10
        rows = np.flatnonzero((used & ~np.isfinite(matrix)).any(axis=1))
        if rows.size:
            raise ValueError(
                f"data: expected finite numbers, got others at angle {angle} in the frames "
                f"{format_frames(rows.tolist())} (counted from 0); fit again without them (`keep`)"
            )


class _Space:
    """Standardized coordinates z of the free parameters, in which a Gaussian posterior is round.

    The distance of parameters from a single bound is exp(u). Between two bounds, their share of the
    range is (softplus(k u) - softplus(k (u - 1))) / k, which is u except near the bounds: sums that
    the data determine remain linear. Other parameters are u.

    Power laws scale t^exponent + offset have the coordinates y = (log a, a exponent, a + offset),
    where a = scale T^exponent is the first term at the mean time T: the value and the slope there
    are determined best. Otherwise y is u. And y is y_0 + L z, where L L^T is the covariance at the
    fit, limited by the width of the prior.
    """

    def __init__(
        self, model: Model, fit: FitResult, free: NDArray[np.bool_], lower: Array, upper: Array
    ) -> None:
        covariance = fit.pcov_independent[np.ix_(free, free)]
        unknown = np.array(fit.names)[free][~(np.diag(covariance) < np.inf)]
        if unknown.size:
            raise ValueError(f"fit: the data do not determine {', '.join(unknown)}; hold some")
        # The covariance of the likelihood with `inflation`, which sigma cancels out of.
        first = len(fit.names) - len(model.parameters)
        chosen = np.array([k for k in np.flatnonzero(free) if k >= first] or np.flatnonzero(free))
        covariance = covariance * np.mean(
            np.diag(fit.pcov)[chosen] / np.diag(fit.pcov_independent)[chosen]
        )
        errors = np.sqrt(np.diag(covariance))
        self._free, self._base = np.flatnonzero(free), fit.popt
        low, high = lower[free], upper[free]
        x, below, above = fit.popt[free], np.isfinite(low), np.isfinite(high)
        self._both, self._single = below & above, below ^ above
        self._only_bound = np.where(below, low, np.where(above, high, 0.0))
        self._sign = np.where(below, 1.0, -1.0)
        self._low = np.where(self._both, low, 0.0)
        self._width = np.where(self._both, high - self._low, 1.0)
        # A fit at a bound is at infinity of these functions.
        margin = np.minimum(0.5 * errors / self._width, 0.1)
        share = np.where(
            self._both, np.clip((x - self._low) / self._width, margin, 1 - margin), 0.5
        )
        distance = np.where(self._single, self._sign * (x - self._only_bound), 1.0)
        distance = np.maximum(distance, 0.5 * errors)
        u = np.where(self._single, np.log(distance), x)
        # Bounds are felt within about a standard error.
        self._k = k = np.clip(self._width / np.maximum(errors, 1e-300), 4.0, 1e3)
        bend = np.log(-np.expm1(-k * share)) - np.log(-np.expm1(-k * (1.0 - share)))
        u = np.where(self._both, share + bend / k, u)
        slope = np.where(self._single, distance, 1.0)
        slope = np.where(self._both, self._width * np.exp(_log_slope(np, u, k)), slope)
        spread = covariance / np.outer(slope, slope)
        # The product with the prior of u, whose mean is 1/2.
        root = np.where(self._both, (1 / 12 + (np.pi / k) ** 2 / 3) ** -0.5, 0.0)
        inner = np.eye(len(u)) + root[:, None] * spread * root
        gain = np.linalg.solve(inner, root[:, None] * spread).T
        u = u - gain @ (root * (u - 0.5))
        spread -= gain @ (root[:, None] * spread)
        count = np.cumsum(free) - 1
        self._time, self._laws = float(model.geometry.times.mean()), []
        y = u.copy()
        for law, _ in model.power_laws:
            members = slice(first + law, first + law + 3)
            i = int(count[members.start])
            if free[members].all() and self._both[i : i + 3].all():
                self._laws.append(i)
                scale, exponent, offset = (self._low + self._width * u)[i : i + 3]
                size = max(scale, 1e-6 * self._width[i]) * self._time**exponent
                y[i : i + 3] = np.log(size), size * exponent, size + offset
        self._y = y
        change = np.linalg.inv(jax.jacfwd(lambda y: self._to_u(y)[0])(jnp.asarray(y)))
        self._factor = np.linalg.cholesky(change @ spread @ change.T)

    def _to_u(self, y: jax.Array) -> tuple[jax.Array, Any]:
        """Return u, and the logarithm of the volume of dy up to a constant."""
        u, volume = y, jnp.zeros(())
        for i in self._laws:
            size = jnp.exp(y[i])
            exponent = y[i + 1] / size
            law = jnp.stack([size * self._time**-exponent, exponent, y[i + 2] - size])
            part = slice(i, i + 3)
            u = u.at[part].set((law - self._low[part]) / self._width[part])
            volume = volume - exponent * np.log(self._time)
        return u, volume

    def __call__(self, z: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return all parameters [p] of the fit, and the logarithm of the volume of dz."""
        u, volume = self._to_u(self._y + self._factor @ z)
        k = self._k
        share = (jax.nn.softplus(k * u) - jax.nn.softplus(k * (u - 1.0))) / k
        inside = self._low + self._width * share
        log_distance = jnp.where(self._single, u, 0.0)  # without overflow of the others
        distant = self._only_bound + self._sign * jnp.exp(log_distance)
        values = jnp.where(self._both, inside, jnp.where(self._single, distant, u))
        x = jnp.asarray(self._base).at[self._free].set(values)
        return x, volume + jnp.where(self._both, _log_slope(jnp, u, k), log_distance).sum()


def _log_slope(xp: Any, u: Any, k: Array) -> Any:
    """Return the logarithm of the derivative of a share of the range by u."""
    return np.log(-np.expm1(-k)) - xp.logaddexp(0.0, -k * u) - xp.logaddexp(0.0, k * (u - 1.0))
