"""Results of `fit_g2`: parameters, tables, plots, and power laws over q."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_PANELS = 9
_CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """rate = D q^exponent, fitted to the rates of bins.

    Attributes:
      name: of the rate.
      D: the prefactor; in Angstrom^2/s if the exponent is 2.
      D_err, exponent_err: standard errors, which include the scatter of the rates around the law.
      D_interval, exponent_interval: 95% confidence intervals, (low, high).
      exponent: the power of q.
      reduced_chi2: of the logarithms of the rates.
      q, rate, rate_err: [n] the bins that were used.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> tau, q = np.geomspace(1e-3, 1.0, 40), np.array([0.01, 0.02, 0.03])
      >>> fit = jk.xpcs.fit_g2(tau, 1 + 0.2 * np.exp(-2e4 * q**2 * tau[:, None]), q=q)
      >>> law = fit.tau_q()
      >>> round(law.D), round(law.exponent, 3)
      (10000, 2.0)
    """

    name: str
    D: float
    D_err: float
    D_interval: tuple[float, float]
    exponent: float
    exponent_err: float
    exponent_interval: tuple[float, float]
    reduced_chi2: float
    q: Array
    rate: Array
    rate_err: Array

    def __str__(self) -> str:
        (a, b), (c, d) = self.exponent_interval, self.D_interval
        return (
            f"{self.name} = D q^exponent over {len(self.q)} bins: exponent {self.exponent:.4g} +/- "
            f"{self.exponent_err:.2g} (95%: {a:.4g} to {b:.4g}), D {self.D:.4g} +/- "
            f"{self.D_err:.2g} (95%: {c:.4g} to {d:.4g}), reduced chi2 {self.reduced_chi2:.3g}"
        )

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot 1 / rate against q with the power law, and save the figure if a path is given."""
        figure = _new_figure(5.0, 3.8)
        axes = figure.subplots()
        tau = 1.0 / self.rate
        axes.errorbar(self.q, tau, tau * self.rate_err / self.rate, fmt="o", ms=4, label="fits")
        grid = np.geomspace(self.q.min(), self.q.max(), 100)
        label = f"q^({-self.exponent:.3g} +/- {self.exponent_err:.2g})"
        axes.plot(grid, grid**-self.exponent / self.D, color="k", lw=0.8, label=label)
        axes.set(xscale="log", yscale="log", xlabel="q (1/Angstrom)", ylabel=f"1 / {self.name} (s)")
        axes.legend(frameon=False, fontsize=8)
        return _saved(figure, path)


@dataclass(frozen=True, eq=False)
class G2Fit(Table):
    """Fits of g2(tau) of all bins.

    Attributes:
      model: name of the model.
      params, errors: name -> [n_bins] values and standard errors; rates in 1/s. A shared parameter
        is the same in all bins. Errors are infinite where the data do not determine a parameter.
      chi2: [n_bins] sums of squared residuals in units of g2_err.
      reduced_chi2: [n_bins] the same, divided by the degrees of freedom of each bin.
      n_points: [n_bins] number of delays that were used.
      success: [n_bins] True where the fit converged and determines its parameters.
      messages: reasons for each bin without success; empty otherwise.
      error_method: "independent", or the jackknife in words. Errors of independent noise are too
        small, since the noise of neighbouring delays is correlated.
      jackknife: [n_bins] True where errors come from the jackknife, False where they are those of
        independent noise.
      shared: names of shared parameters.
      tau, g2, g2_err: the data; g2_err may be None.
      curve: [n_tau, n_bins] the fitted model.
      iterations: [n_bins] of the solver.
      q, phi, bins: [n_bins] or None.

    Example:
      >>> import numpy as np, jaxkern as jk
      >>> tau, q = np.geomspace(1e-3, 1.0, 40), np.array([0.01, 0.02, 0.03])
      >>> fit = jk.xpcs.fit_g2(tau, 1 + 0.2 * np.exp(-2e4 * q**2 * tau[:, None]), q=q)
      >>> sorted(fit.params), fit.success.tolist()
      (['baseline', 'contrast', 'rate'], [True, True, True])
    """

    model: str
    params: Mapping[str, Array]
    errors: Mapping[str, Array]
    chi2: Array
    reduced_chi2: Array
    n_points: NDArray[np.int64]
    success: NDArray[np.bool_]
    messages: tuple[str, ...]
    error_method: str
    jackknife: NDArray[np.bool_]
    shared: tuple[str, ...]
    tau: Array
    g2: Array
    g2_err: Array | None
    curve: Array
    iterations: NDArray[np.int64]
    q: Array | None = None
    phi: Array | None = None
    bins: NDArray[np.int64] | None = None

    @property
    def table(self) -> list[dict[str, Any]]:
        """A row for each bin: labels, parameters and errors, chi2, success and message."""
        columns: dict[str, Any] = {"bin": np.arange(1, len(self.chi2) + 1)}
        if self.bins is not None:
            columns["bin"] = self.bins
        columns |= {n: x for n, x in (("q", self.q), ("phi", self.phi)) if x is not None}
        for name, values in self.params.items():
            columns |= {name: values, f"{name}_err": self.errors[name]}
        columns |= {"chi2": self.chi2, "reduced_chi2": self.reduced_chi2}
        columns |= {"points": self.n_points, "jackknife": self.jackknife, "success": self.success}
        rows = zip(*(column.tolist() for column in columns.values()), self.messages, strict=True)
        return [dict(zip((*columns, "message"), row, strict=True)) for row in rows]

    def __str__(self) -> str:
        lines = [
            f"{self.model} fit of g2: {self.success.sum()} of {len(self.success)} bins succeeded; "
            f"errors: {self.error_method}"
        ]
        for row in self.table[:_PANELS]:
            values = ", ".join(
                f"{name} {row[name]:.5g} +/- {row[f'{name}_err']:.2g}" for name in self.params
            )
            label = f"bin {row['bin']}" + (f", q {row['q']:.4g}" if "q" in row else "")
            more = f" ({row['message']})" if row["message"] else ""
            lines.append(f"  {label}: {values}, reduced chi2 {row['reduced_chi2']:.3g}{more}")
        if len(self.success) > _PANELS:
            lines.append(f"  ... and {len(self.success) - _PANELS} more bins")
        return "\n".join(lines)

    def tau_q(self, name: str = "rate") -> PowerLaw:
        """Fit the power law rate = D q^exponent to the rates of bins whose fits succeeded.

        The logarithms of the rates are fitted with their errors; intervals use Student's
        distribution.

        Args:
          name: the parameter, such as "slow_rate".

        Raises:
          ValueError: the rates are shared, q is unknown, or fewer than 3 bins or 2 different q are
            usable.
        """
        if name not in self.params:
            known = ", ".join(self.params)
            raise ValueError(f"name: expected one of the parameters {known}, got {name!r}")
        law = "D" if name == "rate" and "D" in self.shared else name
        if law in self.shared:
            raise ValueError(
                f"tau_q: expected rates of each bin, got shared {law}; see params[{law!r}]"
                " and its errors" + " or those of 'exponent'" * ("exponent" in self.shared)
            )
        if self.q is None:
            raise ValueError("q: expected [n_bins] in 1/Angstrom, got None; pass q to fit_g2")
        rate, error = self.params[name], self.errors[name]
        used = self.success & (self.q > 0) & (rate > 0) & (error > 0) & np.isfinite(error)
        q, rate, error = np.asarray(self.q, np.float64)[used], rate[used], error[used]
        if len(q) < 3 or len(np.unique(q)) < 2:
            raise ValueError(
                f"tau_q: expected at least 3 bins of 2 different q whose fits succeeded, got "
                f"{len(q)} bins of {len(np.unique(q))} q"
            )
        from scipy.special import stdtrit

        weight = rate / error
        design = np.stack([np.ones(len(q)), np.log(q)], axis=1) * weight[:, None]
        target = np.log(rate) * weight
        solution, *_ = np.linalg.lstsq(design, target, rcond=None)
        reduced = float(((target - design @ solution) ** 2).sum() / (len(q) - 2))
        covariance = np.linalg.inv(design.T @ design) * max(reduced, 1.0)
        log_err, exponent_err = np.sqrt(np.diag(covariance)).tolist()
        (log_D, exponent), D = solution.tolist(), float(np.exp(solution[0]))
        width = float(stdtrit(len(q) - 2, 0.5 + _CONFIDENCE / 2))
        low, high = np.exp(log_D + width * log_err * np.array([-1.0, 1.0])).tolist()
        interval = exponent - width * exponent_err, exponent + width * exponent_err
        return PowerLaw(
            name, D, D * log_err, (low, high), exponent, exponent_err, interval, reduced,
            q, rate, error,
        )  # fmt: skip

    def plot(self, path: str | Path | None = None) -> Figure:
        """Plot data and fits of up to 9 bins, and save the figure if a path is given."""
        count = len(self.success)
        shown = np.unique(np.linspace(0, count - 1, min(count, _PANELS)).round().astype(int))
        columns = min(3, len(shown))
        rows = -(-len(shown) // columns)
        figure = _new_figure(3.3 * columns + 0.4, 2.5 * rows + 0.4)
        grid = figure.subplots(rows, columns, squeeze=False, sharex=True).ravel()
        for axes in grid[len(shown) :]:
            axes.set_axis_off()
        order = np.argsort(self.tau)
        for axes, k in zip(grid, shown, strict=False):
            error = None if self.g2_err is None else np.nan_to_num(self.g2_err[:, k])
            axes.errorbar(self.tau, self.g2[:, k], error, fmt=".", ms=3, lw=0.6)
            axes.plot(self.tau[order], self.curve[order, k], color="k", lw=0.8)
            row = k + 1 if self.bins is None else self.bins[k]
            label = f"bin {row}" + ("" if self.q is None else f", q {self.q[k]:.4g}")
            axes.set_title(label + ("" if self.success[k] else " (failed)"), fontsize=8)
            axes.set_xscale("log")
            axes.tick_params(labelsize=7)
        grid[0].set_ylabel("g2", fontsize=8)
        grid[len(shown) - 1].set_xlabel("delay (s)", fontsize=8)
        return _saved(figure, path)


def _new_figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Figure, path: str | Path | None) -> Figure:
    if path is not None:
        figure.savefig(path)
    return figure
