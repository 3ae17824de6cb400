"""Plots of a fit (maps, cuts, residuals, parameters, convergence), and helpers for figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.analysis.views import RESIDUAL_EDGES, AngleView, residual_scale, scale
from jaxkern.xpcs.model.models import Model

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, title: str) -> Figure:
    """Create a figure without pyplot, which needs a display and has global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: int) -> Path:
    """Write a PNG file, create its folder if missing, and return the path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(dpi)
    # savefig would draw a figure with a layout twice.
    FigureCanvasAgg(figure).print_png(path)
    return path


def label_axes(axes: Any, x: str, y: str) -> None:
    """Set small axis labels and tick labels."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)


def percentiles(
    image: NDArray[Any], at: Sequence[float], empty: tuple[float, ...]
) -> tuple[float, ...]:
    """Return percentiles of the finite values; `empty` without values or if all are equal."""
    finite = image[np.isfinite(image)]
    values = tuple(float(p) for p in np.percentile(finite, at)) if finite.size else empty
    return values if values[-1] > 0 and len(set((0.0, *values)[-2:])) == 2 else empty


Array = NDArray[Any]


def plot_maps(
    path: str | Path, views: Sequence[AngleView], *, title: str = "", dpi: int = 120
) -> Path:
    """Plot data, model and residual of each angle side by side; excluded points are blank."""
    figure = new_figure(10.5, 3.1 * len(views) + 0.3, title)
    grid = figure.subplots(len(views), 3, squeeze=False)
    for row, view in zip(grid, views, strict=True):
        edge = (*view.edges, *view.edges)
        low, high = percentiles(np.stack([view.data, view.model]), [0.5, 99.5], (0.0, 1.0))
        spread = percentiles(np.abs(view.residual), [99], (1.0,))[0]
        label = _residual_label(view)
        panels = (
            ("data", "g2", view.data, {"vmin": low, "vmax": high, "cmap": "viridis"}),
            ("model", "g2", view.model, {"vmin": low, "vmax": high, "cmap": "viridis"}),
            ("residual", label, view.residual, {"vmin": -spread, "vmax": spread, "cmap": "RdBu"}),
        )
        for axes, (name, unit, image, colours) in zip(row, panels, strict=True):
            drawn = axes.imshow(image, origin="lower", extent=edge, interpolation="none", **colours)
            axes.set_title(f"{name}, {_angle(view)}", fontsize=9)
            label_axes(axes, "t2 (s)", "t1 (s)")
            bar = figure.colorbar(drawn, ax=axes, shrink=0.85)
            bar.set_label(unit, fontsize=8)
            bar.ax.tick_params(labelsize=7)
    return save_figure(figure, path, dpi)


def plot_cuts(
    path: str | Path, views: Sequence[AngleView], *, title: str = "", dpi: int = 120
) -> Path:
    """Plot g2 against the lag in bands of the sample's age, with the residuals below.

    Points are means over all pairs of frames of a band with standard errors; lines are the model.
    """
    columns = min(3, len(views))
    rows = -(-len(views) // columns)
    figure = new_figure(4.2 * columns, 4.2 * rows + 0.3, title)
    grid = figure.subplots(
        2 * rows, columns, squeeze=False, sharex=True, height_ratios=[3, 1] * rows
    )
    limits = scale(views)
    for place in range(rows * columns):
        above, below = grid[2 * (place // columns) : 2 * (place // columns) + 2, place % columns]
        if place >= len(views):
            above.set_axis_off()
            below.set_axis_off()
            continue
        view = views[place]
        for number, cut in enumerate(view.cuts):
            colour = f"C{number}"
            label = f"age {cut.ages[0]:.3g} to {cut.ages[1]:.3g} s"
            points = {"fmt": ".", "ms": 3, "lw": 0.7, "color": colour}
            above.errorbar(cut.lag, cut.data, cut.error, alpha=0.6, **points)
            above.plot(cut.lag, cut.model, "-", lw=1.4, color=colour, label=label)
            below.errorbar(cut.lag, cut.data - cut.model, cut.error, alpha=0.8, **points)
        below.axhline(0, color="0.4", lw=0.8)
        below.set_ylim(*residual_scale(view))
        above.set_ylim(*limits)
        above.set_xscale("log")
        above.set_title(_angle(view), fontsize=9)
        above.legend(fontsize=7, frameon=False, loc="upper right")
        first = place % columns == 0
        label_axes(above, "", "g2" if first else "")
        label_axes(below, "lag t2 - t1 (s)", "data - model" if first else "")
        above.tick_params(labelbottom=False)
        below.tick_params(labelbottom=True)
    return save_figure(figure, path, dpi)


def plot_residuals(
    path: str | Path, views: Sequence[AngleView], *, title: str = "", dpi: int = 120
) -> Path:
    """Plot histograms of the residuals at each angle, and the distribution of the noise."""
    figure = new_figure(5.6, 3.9, title)
    axes = figure.subplots()
    centres, width = (RESIDUAL_EDGES[1:] + RESIDUAL_EDGES[:-1]) / 2, np.diff(RESIDUAL_EDGES)
    for view in views:
        total = view.residual_counts.sum()
        if total == 0:
            continue
        label = f"{_angle(view)}, mean square {view.mean_square:.3g}"
        axes.step(centres, view.residual_counts / total / width, where="mid", lw=1, label=label)
    if all(view.scaled for view in views):
        normal = np.exp(-(centres**2) / 2) / math.sqrt(2 * math.pi)
        axes.plot(centres, normal, "k--", lw=1, label="normal, 1")
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-6)
    label_axes(axes, _residual_label(views[0]) if views else "residual", "density")
    axes.legend(fontsize=7, frameon=False, loc="upper right")
    return save_figure(figure, path, dpi)


def plot_parameters(
    path: str | Path,
    model: Model,
    physics: Array,
    names: Sequence[str],
    popt: Array,
    pcov: Array,
    *,
    title: str = "",
    dpi: int = 120,
) -> Path:
    """Plot the parameters and the rates with standard errors, and the parameter correlations.

    Args:
      model: model with the geometry of the data.
      physics: its parameters [p].
      names, popt, pcov: names, values and covariance of all fitted parameters, [q], [q], [q, q].
    """
    rates = rate_bands(model, physics, names, pcov)
    figure = new_figure(10.5, 3.4 + 3.2 * max(1, -(-len(rates) // 2)), title)
    halves: Any = figure.subfigures(1, 2, width_ratios=[1, 1.25])
    left, right = halves
    column = left.subplots(1 + len(rates), 1, squeeze=False)[:, 0]
    errors = np.sqrt(np.clip(np.diag(pcov), 0, None))
    physical = [k for k, name in enumerate(names) if name in model.parameter_names]
    units = dict(zip(model.parameter_names, model.units, strict=True))
    lines = [
        f"{names[k]:<18} {popt[k]: .5g} "
        + (f"± {errors[k]:.2g} {units[names[k]]}" if errors[k] > 0 else f"{units[names[k]]} (held)")
        for k in physical
    ]
    column[0].set_axis_off()
    column[0].text(0, 1, "\n".join(lines), va="top", family="monospace", fontsize=9)
    for axes, (name, (rate, error)) in zip(column[1:], rates.items(), strict=True):
        t = model.geometry.t
        axes.plot(t, rate, lw=1.4)
        axes.fill_between(t, rate - error, rate + error, alpha=0.3, lw=0)
        axes.set_title("band: one standard error", fontsize=8)
        label_axes(axes, "t (s)", name)
    shown = list(range(len(names))) if len(names) <= 24 else physical
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = (pcov / np.outer(errors, errors))[np.ix_(shown, shown)]
    axes = right.subplots()
    drawn = axes.imshow(correlation, vmin=-1, vmax=1, cmap="RdBu")
    axes.set_xticks(range(len(shown)), [names[k] for k in shown], rotation=90, fontsize=7)
    axes.set_yticks(range(len(shown)), [names[k] for k in shown], fontsize=7)
    axes.set_title("blank: held or undetermined", fontsize=8)
    right.colorbar(drawn, ax=axes, shrink=0.7).set_label("correlation", fontsize=8)
    return save_figure(figure, path, dpi)


def rate_bands(
    model: Model, physics: Array, names: Sequence[str], pcov: Array
) -> dict[str, tuple[Array, Array]]:
    """Return the model's rates [n_t] and their standard errors [n_t], to first order.

    Errors that the data do not determine are NaN.
    """
    indices = [list(names).index(name) for name in model.parameter_names]
    covariance = pcov[np.ix_(indices, indices)]
    with jax.enable_x64(True):
        values = np.asarray(physics, np.float64)
        rates, slopes = jax.jit(lambda p: (model.rates(p), jax.jacfwd(model.rates)(p)))(values)
        bands = {}
        for name, rate in rates.items():
            slope = np.asarray(slopes[name])
            with np.errstate(invalid="ignore"):
                square = np.einsum("ta,ab,tb->t", slope, covariance, slope)
            error = np.sqrt(np.where(np.isfinite(square), np.maximum(square, 0), np.nan))
            bands[name] = (np.asarray(rate), error)
    return bands


def plot_convergence(
    path: str | Path, costs: Sequence[float], *, title: str = "", dpi: int = 120
) -> Path:
    """Plot the cost above its minimum against the passes of the fit."""
    figure = new_figure(5.6, 3.6, title)
    axes = figure.subplots()
    values = np.asarray(costs, np.float64)
    if values.size:
        best = float(values.min())
        floor = max(abs(best) * 1e-15, math.ulp(0.0))
        axes.semilogy(np.arange(1, values.size + 1), np.maximum(values - best, floor), ".-")
        axes.set_title(f"lowest cost {best:.8g}", fontsize=9)
    label_axes(axes, "pass over the data", "cost above the lowest")
    return save_figure(figure, path, dpi)


def _angle(view: AngleView) -> str:
    return f"{view.phi:g} deg" + (", nearest the flow" if view.along_flow else "")


def _residual_label(view: AngleView) -> str:
    return "(data - model) / sigma" if view.scaled else "data - model"
