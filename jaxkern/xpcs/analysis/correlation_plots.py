"""Plots of correlations: g2, two-time maps, I(t), the mean image with the bins over it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.analysis.fit_plots import (
    add_colour_bar,
    draw_image,
    label_axes,
    new_figure,
    paired_panels,
    percentiles,
    save_figures,
)
from jaxkern.xpcs.correlators.results import MultiTauResult, Overview, TwoTimeResult
from jaxkern.xpcs.detectors.qmap import QMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]

# Number of bins in g2.png, or the largest number of panels with all bins.
FIRST_BINS = 9
MOST_PANELS = 200
# Largest number of angles in a legend.
_MOST_ANGLES = 24
MOST_MAPS = 9
# The last plot of a result with an overview.
LAST_PLOT = "detector.png"
# Largest number of points of a map or a curve along a side. Neighbours are averaged.
_SHOWN = 500


def plot_correlations(
    folder: str | Path,
    multitau: MultiTauResult | None = None,
    twotime: TwoTimeResult | None = None,
    *,
    title: str = "",
    dpi: int = 120,
    all_bins: bool = False,
) -> list[Path]:
    """Plot correlations into a folder, and return the paths.

    g2.png shows g2 with errors of the first 9 bins, in a panel for each q, and a map of g2 of all
    bins; with `all_bins`, a panel for every q (at most 200, evenly spread). twotime.png shows the
    two-time maps (at most 9), and g2 of the whole run and of its five parts. intensity.png shows
    the mean counts over time, and detector.png the mean image with the bins.

    Args:
      folder: folder of the plots, created if missing.
      multitau, twotime: results of the functions of these names, or None.
      title, dpi: title of each plot, and dots per inch.
      all_bins: show all bins in g2.png.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.

    Example:
      >>> import numpy as np, pathlib, tempfile, jaxkern as jk
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> frames = np.random.default_rng(0).poisson(2.0, (40, 4, 4)).astype("u1")
      >>> qmap = jk.xpcs.QMap(np.ones((4, 4), int), q=[0.01])
      >>> paths = jk.xpcs.plot_correlations(folder, jk.xpcs.multitau(frames, qmap), dpi=20)
      >>> [path.name for path in paths]
      ['g2.png']
    """
    figures: list[tuple[str, Figure]] = []
    if multitau is not None:
        figures.append(("g2", plot_g2(multitau, all_bins)))
    if twotime is not None:
        figures.append(("twotime", plot_twotime(twotime)))
    result = multitau or twotime
    if result is not None and (overview := result.overview) is not None:
        figures.append(("intensity", plot_intensity(overview, result.frame_time)))
        figures.append((LAST_PLOT.removesuffix(".png"), plot_detector(overview, result.qmap)))
    return save_figures(Path(folder), figures, title, dpi)


def plot_g2(result: MultiTauResult, all_bins: bool = False) -> Figure:
    """Plot g2 with errors against the delay: a panel for each q, a colour for each phi.

    Unless `all_bins`, only the first 9 bins are plotted, with a map of all bins.
    """
    count = len(result.bins)
    summary = not all_bins and count > FIRST_BINS
    first = FIRST_BINS if summary else count
    rows = _rows(result.bins[:first], None if result.q is None else result.q[:first])
    shown = [rows[k] for k in _spread(len(rows), MOST_PANELS)]
    columns = min(4, max(len(shown), 1))
    lines = max(-(-len(shown) // columns), 1)
    width, height = 3.3 * columns + 0.4, 2.6 * lines + 0.4
    figure = new_figure(max(width, 6.0) if summary else width, height + 3.0 * summary)
    x, delay = result.tau, "delay (s)"
    if x is None:
        x, delay = result.delay.astype(np.float64), "delay (frames)"
    parts: Any = figure.subfigures(2, 1, height_ratios=[height, 3.0]) if summary else [figure]
    above = parts[0]
    phi = np.arange(count) if result.phi is None else result.phi
    angles = np.unique(phi[[k for members in shown for k in members]])
    grid = above.subplots(lines, columns, squeeze=False, sharex=True).ravel()
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    drawn: dict[float, Any] = {}
    for panel, (axes, members) in enumerate(zip(grid, shown, strict=False)):
        for number, k in enumerate(members):
            finite = np.isfinite(result.g2[:, k])
            error = np.nan_to_num(result.g2_err[finite, k])
            colour = _colour(number, len(members))
            if result.phi is not None:
                colour = _colour(int(np.searchsorted(angles, phi[k])), len(angles))
            style = {"fmt": ".-", "ms": 3, "lw": 0.6, "color": colour}
            drawn[float(phi[k])] = axes.errorbar(x[finite], result.g2[finite, k], error, **style)
        axes.set_xscale("log")
        more = "" if len(members) == 1 else f", {len(members)} angles"
        axes.set_title(_label(result, members[0], phi=False) + more, fontsize=8)
        bottom = panel + columns >= len(shown)
        axes.tick_params(labelbottom=bottom)
        label_axes(axes, delay if bottom else "", "" if panel % columns else "g2")
    if result.phi is not None and len(angles) > 1:
        some = [float(angles[k]) for k in _spread(len(angles), _MOST_ANGLES)]
        above.legend(
            [drawn[angle] for angle in some],
            [f"{angle:.4g} deg" for angle in some],
            loc="outside lower center",
            ncols=min(len(some), 2 * columns),
            fontsize=7,
            frameon=False,
        )
    if summary:
        _draw_summary(parts[1], result, x, delay, first)
    return figure


def _draw_summary(figure: Any, result: MultiTauResult, x: Array, delay: str, first: int) -> None:
    """Draw g2 of all bins as a map with a column for each bin."""
    axes = figure.subplots()
    some = _spread(len(result.bins), _SHOWN)
    image = result.g2[:, some]
    low, high = percentiles(image, [2, 98], (0.0, 2.0))
    edges = np.arange(len(some) + 1) + 0.5
    delays = np.concatenate([x[:1] * 0.9, np.sqrt(x[1:] * x[:-1]), x[-1:] * 1.1])
    mesh = axes.pcolormesh(edges, delays, image, vmin=low, vmax=high, cmap="viridis")
    axes.set_yscale("log")
    axes.axvline(first + 0.5, color="w", lw=0.8)
    axes.set_title(f"g2 of all {len(result.bins)} bins (left of the line: above)", fontsize=8)
    add_colour_bar(figure, axes, mesh)
    label_axes(axes, "index of the bin in the result", delay)


def plot_twotime(result: TwoTimeResult) -> Figure:
    """Plot two-time maps, and g2 of the whole run and of its parts below each."""
    chosen = _spread(len(result.bins), MOST_MAPS)
    figure, pairs, columns = paired_panels(len(chosen), 5.4, [2.4, 1])
    step, unit = _time_unit(result.frame_time)
    aged = "age-lag" in str(result.config.get("form", "full"))
    names = ("lag", "age") if aged else ("t2", "t1")
    for panel, (k, (above, below)) in enumerate(zip(chosen, pairs, strict=True)):
        _draw_map(figure, above, result, k, step, aged)
        above.set_title(_label(result, k), fontsize=8)
        label_axes(above, f"{names[0]} ({unit})", f"{names[1]} ({unit})")
        curves = [result.g2[:, k], *result.g2_parts[:, :, k]]
        for number, curve in enumerate(curves):
            style = {"lw": 0.7, "color": f"C{number - 1}", "label": f"part {number}"}
            if number == 0:
                style = {"lw": 1.2, "color": "k", "label": "all"}
            below.plot(np.arange(1, len(curve)) * step, curve[1:], **style)
        if len(result.g2) > 2:
            below.set_xscale("log")
        if panel == 0:
            below.legend(fontsize=6, frameon=False, loc="upper right", ncols=2)
        label_axes(below, f"lag ({unit})", "" if panel % columns else "g2")
    return figure


def plot_intensity(overview: Overview, frame_time: float | None = None) -> Figure:
    """Plot mean counts of a pixel against time, for long runs with the range in each block."""
    figure = new_figure(7.0, 3.2)
    axes = figure.subplots()
    step, unit = _time_unit(frame_time)
    n = len(overview.intensity)
    block = max(-(-n // (4 * _SHOWN)), 1)
    starts = np.arange(0, n, block)
    if n:
        # Mean over the good frames of a block; bad frames are NaN.
        mean = _block_means(overview.intensity, [starts])
        if block > 1:
            least = np.fmin.reduceat(overview.intensity, starts)
            most = np.fmax.reduceat(overview.intensity, starts)
            axes.fill_between(starts * step, least, most, alpha=0.3, lw=0)
            axes.set_title(f"band: range of {block} frames", fontsize=8)
        axes.plot(starts * step, mean, lw=0.8)
    label_axes(axes, f"t ({unit})", "counts per pixel and frame")
    return figure


def plot_detector(overview: Overview, qmap: QMap) -> Figure:
    """Plot the mean image without and with the dynamic bins; masked pixels are blank."""
    from matplotlib.colors import LogNorm, Normalize

    image = np.where(qmap.mask & (overview.mean_image > 0), overview.mean_image, np.nan)
    height, width = qmap.shape
    wide = 4.6 * float(np.clip(width / height, 0.6, 2.5))
    figure = new_figure(2 * wide + 1.6, 4.9)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    low, high = percentiles(image, [1, 99.9], (0.1, 1.0))
    norm = LogNorm(low, high) if 0 < 10 * low < high else Normalize(0, high)
    draw_image(figure, left, image, norm=norm, cmap="viridis")
    left.set_title("mean counts per frame", fontsize=8)
    right.imshow(image, norm=norm, cmap="gray", interpolation="none")
    bins = np.where(qmap.used, qmap.dynamic, 0).astype(np.float64)
    # Consecutive numbers get different colours.
    colours = np.where(bins > 0, (bins * 0.618034) % 1.0, np.nan)
    right.imshow(colours, cmap="hsv", alpha=0.45, vmin=0, vmax=1, interpolation="none")
    right.set_title(f"{qmap.n_dynamic} dynamic bins, {qmap.n_pixels} pixels", fontsize=8)
    for axes in (left, right):
        label_axes(axes, "column", "row")
    return figure


def _draw_map(
    figure: Any, axes: Any, result: TwoTimeResult, k: int, step: float, aged: bool
) -> None:
    matrix = np.asarray(result.c2[k], np.float64)
    if not aged:
        matrix = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    low, high = percentiles(matrix, [1, 99], (0.0, 1.0))
    colours: dict[str, Any] = {"vmin": low, "vmax": high, "cmap": "viridis"}
    if aged:
        mesh = axes.pcolormesh(result.t2 * step, result.t1 * step, matrix, **colours)
        add_colour_bar(figure, axes, mesh)
        if len(result.t2) > 2:
            axes.set_xscale("symlog", linthresh=max(float(result.t2[1]) * step, 1e-12))
        return
    edges = (float(result.t1[0]) * step, float(result.t1[-1]) * step)
    starts = np.arange(0, len(matrix), -(-len(matrix) // _SHOWN))
    means = _block_means(matrix, [starts, starts])
    draw_image(figure, axes, means, origin="lower", extent=edges * 2, **colours)


def _block_means(values: Array, starts: Sequence[Array]) -> Array:
    """Return means without NaN of blocks, which begin at `starts` along each axis."""
    known = np.isfinite(values)
    total, count = np.where(known, values, 0.0), known.astype(np.float64)
    for axis, begins in enumerate(starts):
        total, count = (np.add.reduceat(part, begins, axis) for part in (total, count))
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _time_unit(frame_time: float | None) -> tuple[float, str]:
    return (1.0, "frames") if frame_time is None else (frame_time, "s")


def _rows(bins: Array, q: Array | None) -> list[list[int]]:
    """Return the indices of the bins of each q in increasing order, or of each bin without q."""
    if q is None:
        return [[k] for k in range(len(bins))]
    return [np.flatnonzero(q == value).tolist() for value in np.unique(q)]


def _spread(n: int, most: int) -> list[int]:
    return sorted({int(k) for k in np.linspace(0, n - 1, min(n, most)).round()}) if n else []


def _colour(number: int, count: int) -> Any:
    """Return a colour of the cycle for at most 10 colours, else of a colour map."""
    if count <= 10:
        return f"C{number}"
    from matplotlib import colormaps

    return colormaps["turbo"](number / max(count - 1, 1))


def _label(result: MultiTauResult | TwoTimeResult, k: int, phi: bool = True) -> str:
    """Return the number, q and phi of a bin; without `phi`, q alone if it is known."""
    parts = [f"bin {result.bins[k]}"] if phi or result.q is None else []
    if result.q is not None:
        parts.append(f"q {result.q[k]:.4g} 1/Angstrom")
    if phi and result.phi is not None:
        parts.append(f"{result.phi[k]:.4g} deg")
    return ", ".join(parts)
