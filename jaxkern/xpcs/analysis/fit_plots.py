"""Plots of a fit (maps, cuts, residuals, parameters, convergence), and helpers for figures."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxkern.xpcs.files.sources import Source, values
from jaxkern.xpcs.fitting.sampling import lag_edges
from jaxkern.xpcs.model.correlation import g2_at
from jaxkern.xpcs.model.models import Model
from jaxkern.xpcs.model.twin import SIGMA_FLOOR

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]

# Largest number of pixels of a map along a side. Longer matrices are averaged over k x k points.
SHOWN_FRAMES = 500
# The run is divided into bands of the sample's age, and each band into parts. Their scatter gives
# the error bars, which therefore include noise that is correlated between neighbouring frames.
AGE_BANDS = 3
_PARTS = 6
_LAGS_PER_DECADE = 12
RESIDUAL_EDGES = np.linspace(-6.0, 6.0, 97)
_SLAB_POINTS = 1 << 19


def new_figure(width: float, height: float) -> Figure:
    """Create a figure without pyplot, which needs a display and has global state."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figures(
    folder: Path, figures: Iterable[tuple[str, Figure]], title: str, dpi: int
) -> list[Path]:
    """Write figures to ``folder/NAME.png``, create the folder if missing, and return the paths."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures:
        if title:
            figure.suptitle(title, fontsize=9)
        figure.set_dpi(dpi)
        paths.append(folder / f"{name}.png")
        # savefig would draw a figure with a layout twice.
        FigureCanvasAgg(figure).print_png(paths[-1])
    return paths


def paired_panels(
    count: int, height: float, ratios: Sequence[float], **options: Any
) -> tuple[Figure, list[tuple[Any, Any]], int]:
    """Return a figure, `count` pairs of axes, one above the other, and the number of columns."""
    columns = min(3, max(count, 1))
    lines = max(-(-count // columns), 1)
    figure = new_figure(4.2 * columns, height * lines + 0.4)
    options |= {"squeeze": False, "height_ratios": [*ratios] * lines}
    grid = figure.subplots(2 * lines, columns, **options)
    pairs = list(zip(grid[::2].ravel(), grid[1::2].ravel(), strict=True))
    for axes in itertools.chain(*pairs[count:]):
        axes.set_axis_off()
    return figure, pairs[:count], columns


def label_axes(axes: Any, x: str, y: str) -> None:
    """Set small axis labels and tick labels."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)


def draw_image(figure: Any, axes: Any, image: Array, label: str = "", **options: Any) -> None:
    """Draw an image with a colour bar."""
    add_colour_bar(figure, axes, axes.imshow(image, interpolation="none", **options), label)


def add_colour_bar(figure: Any, axes: Any, drawn: Any, label: str = "") -> None:
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8)
    bar.set_label(label, fontsize=8)
    bar.ax.tick_params(labelsize=7)


def percentiles(
    image: NDArray[Any], at: Sequence[float], empty: tuple[float, ...]
) -> tuple[float, ...]:
    """Return percentiles of the finite values; `empty` without values or if all are equal."""
    finite = image[np.isfinite(image)]
    values = tuple(float(p) for p in np.percentile(finite, at)) if finite.size else empty
    return values if values[-1] > 0 and len(set((0.0, *values)[-2:])) == 2 else empty


def plot_maps(views: Sequence[AngleView]) -> Figure:
    """Plot data, model and residual of each angle side by side; excluded points are blank."""
    figure = new_figure(10.5, 3.1 * len(views) + 0.3)
    grid = figure.subplots(len(views), 3, squeeze=False)
    for row, view in zip(grid, views, strict=True):
        low, high = percentiles(np.stack([view.data, view.model]), [0.5, 99.5], (0.0, 1.0))
        spread = percentiles(np.abs(view.residual), [99], (1.0,))[0]
        g2 = {"label": "g2", "vmin": low, "vmax": high, "cmap": "viridis"}
        difference = {"label": _residual_label(view), "vmin": -spread, "vmax": spread}
        panels: Any = (
            ("data", view.data, g2),
            ("model", view.model, g2),
            ("residual", view.residual, difference | {"cmap": "RdBu"}),
        )
        for axes, (name, image, options) in zip(row, panels, strict=True):
            draw_image(figure, axes, image, origin="lower", extent=view.edges * 2, **options)
            axes.set_title(f"{name}, {_angle(view)}", fontsize=9)
            label_axes(axes, "t2 (s)", "t1 (s)")
    return figure


def plot_cuts(views: Sequence[AngleView]) -> Figure:
    """Plot g2 against the lag in bands of the sample's age, with the residuals below.

    Points are means over all pairs of frames of a band with standard errors; lines are the model.
    """
    figure, pairs, columns = paired_panels(len(views), 4.2, [3, 1], sharex=True)
    limits = scale(views)
    for panel, (view, (above, below)) in enumerate(zip(views, pairs, strict=True)):
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
        first = panel % columns == 0
        label_axes(above, "", "g2" if first else "")
        label_axes(below, "lag t2 - t1 (s)", "data - model" if first else "")
        above.tick_params(labelbottom=False)
        below.tick_params(labelbottom=True)
    return figure


def plot_residuals(views: Sequence[AngleView]) -> Figure:
    """Plot histograms of the residuals at each angle, and the distribution of the noise."""
    figure = new_figure(5.6, 3.9)
    axes = figure.subplots()
    centres, width = (RESIDUAL_EDGES[1:] + RESIDUAL_EDGES[:-1]) / 2, np.diff(RESIDUAL_EDGES)
    for view in views:
        if total := view.residual_counts.sum():
            label = f"{_angle(view)}, mean square {view.mean_square:.3g}"
            axes.step(centres, view.residual_counts / total / width, where="mid", lw=1, label=label)
    if all(view.scaled for view in views):
        normal = np.exp(-(centres**2) / 2) / math.sqrt(2 * math.pi)
        axes.plot(centres, normal, "k--", lw=1, label="normal, 1")
    axes.set_yscale("log")
    axes.set_ylim(bottom=1e-6)
    label_axes(axes, _residual_label(views[0]), "density")
    axes.legend(fontsize=7, frameon=False, loc="upper right")
    return figure


def plot_parameters(
    model: Model, physics: Array, names: Sequence[str], popt: Array, pcov: Array
) -> Figure:
    """Plot the parameters and the rates with standard errors, and the parameter correlations.

    `names`, `popt` and `pcov` are those of all fitted parameters, `physics` of the model's.
    """
    rates = rate_bands(model, physics, names, pcov)
    figure = new_figure(10.5, 3.4 + 3.2 * max(1, -(-len(rates) // 2)))
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
    draw_image(right, axes, correlation, "correlation", vmin=-1, vmax=1, cmap="RdBu")
    labels = [names[k] for k in shown]
    axes.set_xticks(range(len(shown)), labels, rotation=90, fontsize=7)
    axes.set_yticks(range(len(shown)), labels, fontsize=7)
    axes.set_title("blank: held or undetermined", fontsize=8)
    return figure


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


def plot_convergence(costs: ArrayLike) -> Figure:
    """Plot the cost above its minimum against the passes of the fit."""
    figure = new_figure(5.6, 3.6)
    axes = figure.subplots()
    values = np.asarray(costs, np.float64)
    if values.size:
        best = float(values.min())
        floor = max(abs(best) * 1e-15, math.ulp(0.0))
        axes.semilogy(np.arange(1, values.size + 1), np.maximum(values - best, floor), ".-")
        axes.set_title(f"lowest cost {best:.8g}", fontsize=9)
    label_axes(axes, "pass over the data", "cost above the lowest")
    return figure


def _angle(view: AngleView) -> str:
    return f"{view.phi:g} deg" + (", nearest the flow" if view.along_flow else "")


def _residual_label(view: AngleView) -> str:
    return "(data - model) / sigma" if view.scaled else "data - model"


@dataclass(frozen=True)
class Cut:
    """Means over all pairs of frames of one band of ages, by lag."""

    ages: tuple[float, float]  # first and last, s; the age of a pair is (t1 + t2) / 2
    lag: Array  # [k] s, the mean of each bin; single lags up to a decade, then logarithmic bins
    data: Array  # [k] means
    model: Array  # [k] means over the same pairs
    # [k] standard errors of the mean of data, from the scatter of the band's parts; NaN if only one
    # part has pairs.
    error: Array


@dataclass(frozen=True)
class AngleView:
    """Data of one angle for plots.

    Points on the diagonal, at bad frames and with NaN are excluded. An angle without sigma, which
    the fit left out, has only NaN.
    """

    phi: float  # degrees
    along_flow: bool  # true for the angle nearest to the flow
    edges: tuple[float, float]  # first and last time of the maps, s
    data: Array  # [m, m] means of k x k points, NaN if all are excluded
    model: Array
    residual: Array  # the same for (data - model) / sigma, or data - model without sigma
    scaled: bool  # true if sigma is known
    cuts: tuple[Cut, ...]  # one for each band of ages
    residual_counts: Array  # histogram of the upper triangle, clipped to `RESIDUAL_EDGES`
    mean_square: float  # mean of residual^2 over the upper triangle


def view_angles(
    data: Source,
    model: Model,
    params: ArrayLike,
    contrast: ArrayLike,
    offset: ArrayLike,
    sigma: ArrayLike | None = None,
    *,
    keep: ArrayLike | None = None,
    angles: int = 6,
) -> list[AngleView]:
    """Return the data of evenly spread angles, including the angle nearest to the flow.

    Every point of the upper triangle of these angles is read once, in slabs of rows.

    Args:
      data: [n_phi, n_t, n_t], symmetric.
      model: model with the geometry of the data; its params [p], contrast and offset [n_phi].
      sigma: a number or [n_phi]; None for residuals that are not scaled.
      keep: [n_t] or [n_phi, n_t], 0 at frames to exclude.
      angles: number of angles.
    """
    n_phi, n_t, _ = data.shape
    counts = np.broadcast_to(True if keep is None else np.asarray(keep, bool), (n_phi, n_t))
    noise = np.broadcast_to(np.asarray(1.0 if sigma is None else sigma, np.float64), (n_phi,))
    along = angle_along_flow(model, np.asarray(params, np.float64))
    with jax.enable_x64(True):
        evaluate = jax.jit(lambda index: g2_at(model, params, contrast, offset, index))
        how = (sigma is not None, along)
        return [
            _view(angle, data, model, evaluate, noise[angle], counts[angle], *how)
            for angle in chosen_angles(n_phi, angles, along)
        ]


def angle_along_flow(model: Model, params: Array) -> int | None:
    """Return the index of the angle nearest to phi0 modulo 180 degrees; None without phi0."""
    if "phi0" not in model.parameter_names:
        return None
    phi0 = params[model.parameter_names.index("phi0")]
    away = (np.asarray(model.geometry.phi) - phi0 + 90.0) % 180.0 - 90.0
    return int(np.argmin(np.abs(away)))


def chosen_angles(n_phi: int, angles: int, along: int | None) -> list[int]:
    """Return at most `angles` evenly spread indices; `along` replaces the nearest of them."""
    spread = np.linspace(0, n_phi - 1, min(angles, n_phi)).round().astype(int)
    if along is not None and along not in spread:
        spread[np.argmin(np.abs(spread - along))] = along
    return sorted({int(angle) for angle in spread})


def lag_bins(n_t: int) -> Array:
    """Return the bin of each lag 0 .. n_t - 1: single lags up to a decade, then logarithmic."""
    edges = lag_edges(n_t, 10 ** (1 / _LAGS_PER_DECADE))
    bins: Array = np.searchsorted(edges, np.arange(n_t), side="right") - 1
    return np.maximum(bins, 0)


def _view(
    angle: int,
    data: Source,
    model: Model,
    evaluate: Any,
    sigma: float,
    counts: Array,
    scaled: bool,
    along: int | None,
) -> AngleView:
    n_t = data.shape[1]
    block = -(-n_t // SHOWN_FRAMES)
    starts = np.arange(0, n_t, block)
    maps = np.zeros((4, len(starts), len(starts)))  # points, and sums of data, model, residual
    bins = lag_bins(n_t)
    n_bins, parts = int(bins.max()) + 1, AGE_BANDS * _PARTS
    part_of = np.minimum(np.arange(2 * n_t) * parts // (2 * n_t - 1), parts - 1)
    sums = np.zeros((4, parts * n_bins))  # pairs, and sums of the lag, data, model
    histogram = np.zeros(len(RESIDUAL_EDGES) - 1, np.int64)
    square = 0.0
    weighted = SIGMA_FLOOR < sigma < np.inf
    slab = max(_SLAB_POINTS // n_t // block, 1) * block
    for first in range(0, n_t, slab):
        stop = min(first + slab, n_t)
        measured = values(data, data.read(angle, first, stop))
        i, j = np.mgrid[first:stop, :n_t].astype(np.int32)
        index = np.stack([np.full_like(i, angle), i, j], -1).reshape(-1, 3)
        expected = np.asarray(evaluate(index)).reshape(i.shape)
        used = (i < j) & counts[i] & counts[j] & np.isfinite(measured) & weighted
        measured, expected = np.where(used, measured, 0.0), np.where(used, expected, 0.0)
        residual = (measured - expected) / (sigma if weighted else 1.0)
        rows = starts[(starts >= first) & (starts < stop)] - first
        at = first // block
        for total, part in zip(maps, (used, measured, expected, residual), strict=True):
            reduced = np.add.reduceat(part, rows, axis=0, dtype=np.float64)
            total[at : at + len(rows)] = np.add.reduceat(reduced, starts, axis=1)
        flat = (part_of[i + j] * n_bins + bins[j - i])[used]
        for total, weights in zip(sums, (used, j - i, measured, expected), strict=True):
            total += np.bincount(flat, weights[used], minlength=parts * n_bins)
        counted = np.clip(residual[used], RESIDUAL_EDGES[0], RESIDUAL_EDGES[-1])
        histogram += np.histogram(counted, RESIDUAL_EDGES)[0]
        square += float(np.sum(residual[used] ** 2))
    maps += maps.transpose(0, 2, 1) * (1 - np.eye(len(starts)))
    t = model.geometry.t
    with np.errstate(invalid="ignore"):
        means = np.where(maps[0] > 0, maps[1:] / np.maximum(maps[0], 1), np.nan)
    bands = itertools.pairwise(np.linspace(t[0], t[-1], AGE_BANDS + 1).tolist())
    step = (t[-1] - t[0]) / (n_t - 1)
    band_sums = np.split(sums.reshape(4, parts, n_bins), AGE_BANDS, axis=1)
    return AngleView(
        phi=float(model.geometry.phi[angle]),
        along_flow=angle == along,
        edges=(float(t[0]), float(t[-1])),
        data=means[0],
        model=means[1],
        residual=means[2],
        scaled=scaled,
        cuts=tuple(_cut(part, ages, step) for part, ages in zip(band_sums, bands, strict=True)),
        residual_counts=histogram,
        mean_square=square / max(int(histogram.sum()), 1),
    )


def _cut(sums: Array, ages: tuple[float, float], step: float) -> Cut:
    """Return the means of a band from the sums [4, parts, bins] of its parts."""
    sums = sums[:, :, sums[0].sum(0) > 0]
    pairs, parts = sums[0].sum(0), (sums[0] > 0).sum(0)
    lag, data, model = sums[1:].sum(1) / pairs
    # Use the scatter of the parts about the model, so that aging does not count as noise.
    with np.errstate(invalid="ignore", divide="ignore"):
        deviation, weight = (sums[2] - sums[3]) / sums[0], sums[0] / pairs
        mean = np.nansum(weight * deviation, 0)
        variance = np.nansum((weight * (deviation - mean)) ** 2, 0) * parts / (parts - 1)
        error = np.where(parts > 1, np.sqrt(variance), np.nan)
    return Cut(ages, lag * step, data, model, error)


def scale(views: Sequence[AngleView]) -> tuple[float, float]:
    """Return the common range of g2 of all cuts."""
    points = _finite(x for view in views for cut in view.cuts for x in (cut.data, cut.model))
    if not points.size:
        return 0.0, 1.0
    low, high = map(float, np.percentile(points, [0.5, 99.5]))
    margin = 0.06 * max(high - low, 1e-12)
    return low - margin, high + margin


def residual_scale(view: AngleView) -> tuple[float, float]:
    """Return the range of data - model in an angle's cuts, of points with an error."""
    points = _finite(np.abs(cut.data - cut.model) + cut.error for cut in view.cuts)
    most = 1.1 * float(points.max(initial=0.0)) or 1.0
    return -most, most


def _finite(arrays: Iterable[Array]) -> Array:
    points: Array = np.concatenate([np.zeros(0), *arrays])
    return points[np.isfinite(points)]
