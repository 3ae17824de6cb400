"""Plots of correlations: g2, two-time maps, I(t), the mean image with the bins over it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from jaxkern.xpcs.analysis.fit_plots import label_axes, new_figure, percentiles, save_figure
from jaxkern.xpcs.correlators.results import MultiTauResult, Overview, TwoTimeResult
from jaxkern.xpcs.detectors.qmap import QMap

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


class _Options(TypedDict):
    title: str
    dpi: int


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
      multitau: result of `multitau`, or None.
      twotime: result of `twotime`, or None.
      title: title of each plot.
      dpi: dots per inch.
      all_bins: show all bins in g2.png.

    Raises:
      ModuleNotFoundError: matplotlib is not installed.
    """
    folder, options = Path(folder), _Options(title=title, dpi=dpi)
    paths = []
    if multitau is not None:
        paths.append(plot_g2(folder / "g2.png", multitau, all_bins=all_bins, **options))
    if twotime is not None:
        paths.append(plot_twotime(folder / "twotime.png", twotime, **options))
    result = next((r for r in (multitau, twotime) if r is not None), None)
    if result is not None and result.overview is not None:
        step = _time_unit(result.frame_time)
        paths.append(plot_intensity(folder / "intensity.png", result.overview, step, **options))
        paths.append(plot_detector(folder / LAST_PLOT, result.overview, result.qmap, **options))
    return paths


def plot_g2(
    path: str | Path,
    result: MultiTauResult,
    *,
    title: str = "",
    dpi: int = 120,
    all_bins: bool = False,
) -> Path:
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
    figure = new_figure(max(width, 6.0) if summary else width, height + 3.0 * summary, title)
    above: Any = figure
    below: Any = None
    if summary:
        halves: Any = figure.subfigures(2, 1, height_ratios=[height, 3.0])
        above, below = halves
    grid = above.subplots(lines, columns, squeeze=False, sharex=True)
    x = result.delay if result.tau is None else result.tau
    unit = "frames" if result.tau is None else "s"
    angles = None if result.phi is None else np.unique(result.phi[[k for r in shown for k in r]])
    drawn: dict[str, Any] = {}
    for panel, axes in enumerate(grid.ravel()):
        if panel >= len(shown):
            axes.set_axis_off()
            continue
        members = shown[panel]
        for number, k in enumerate(members):
            finite = np.isfinite(result.g2[:, k])
            error = np.nan_to_num(result.g2_err[finite, k])
            colour = _colour(number, len(members))
            if angles is not None and result.phi is not None:
                colour = _colour(int(np.searchsorted(angles, result.phi[k])), len(angles))
            label = _angle_label(result, k)
            drawn[label] = axes.errorbar(
                x[finite],
                result.g2[finite, k],
                error,
                fmt=".-",
                ms=3,
                lw=0.6,
                color=colour,
                label=label,
            )
        axes.set_xscale("log")
        axes.set_title(_ring_label(result, members), fontsize=8)
        bottom = panel + columns >= len(shown)
        axes.tick_params(labelbottom=bottom)
        label_axes(axes, f"delay ({unit})" if bottom else "", "" if panel % columns else "g2")
    if angles is not None and len(angles) > 1:
        assert result.phi is not None
        by_angle = {float(result.phi[k]): _angle_label(result, k) for r in shown for k in r}
        labels = [by_angle[float(angles[k])] for k in _spread(len(angles), _MOST_ANGLES)]
        above.legend(
            [drawn[label] for label in labels],
            labels,
            loc="outside lower center",
            ncols=min(len(labels), 2 * columns),
            fontsize=7,
            frameon=False,
        )
    if below is not None:
        _draw_summary(below, result, x, unit, first)
    return save_figure(figure, path, dpi)


def _draw_summary(figure: Any, result: MultiTauResult, x: Array, unit: str, first: int) -> None:
    """Draw g2 of all bins as a map with a column for each bin."""
    axes = figure.subplots()
    some = _spread(len(result.bins), _SHOWN)
    image = result.g2[:, some]
    low, high = percentiles(image, [2, 98], (0.0, 2.0))
    edges = np.arange(len(some) + 1) + 0.5
    steps = np.sqrt(x[1:] * x[:-1]) if len(x) > 1 else np.zeros(0)
    delays = np.concatenate([x[:1] * 0.9, steps, x[-1:] * 1.1])
    mesh = axes.pcolormesh(edges, delays, image, vmin=low, vmax=high, cmap="viridis")
    axes.set_yscale("log")
    axes.axvline(first + 0.5, color="w", lw=0.8)
    axes.set_title(f"g2 of all {len(result.bins)} bins (left of the line: above)", fontsize=8)
    figure.colorbar(mesh, ax=axes).ax.tick_params(labelsize=7)
    label_axes(axes, "index of the bin in the result", f"delay ({unit})")


def plot_twotime(
    path: str | Path, result: TwoTimeResult, *, title: str = "", dpi: int = 120
) -> Path:
    """Plot two-time maps, and g2 of the whole run and of its parts below each."""
    chosen = _spread(len(result.bins), MOST_MAPS)
    columns = min(3, max(len(chosen), 1))
    lines = max(-(-len(chosen) // columns), 1)
    figure = new_figure(4.0 * columns + 0.4, 5.4 * lines + 0.4, title)
    ratios = [2.4, 1] * lines
    grid = figure.subplots(2 * lines, columns, squeeze=False, height_ratios=ratios)
    step, unit = _time_unit(result.frame_time)
    aged = str(result.config.get("form", "full")).find("age-lag") >= 0
    names = ("lag", "age") if aged else ("t2", "t1")
    for panel in range(lines * columns):
        above, below = grid[2 * (panel // columns) : 2 * (panel // columns) + 2, panel % columns]
        if panel >= len(chosen):
            above.set_axis_off()
            below.set_axis_off()
            continue
        k = chosen[panel]
        _draw_map(figure, above, result, k, step, aged)
        above.set_title(_bin_label(result, k), fontsize=8)
        label_axes(above, f"{names[0]} ({unit})", f"{names[1]} ({unit})")
        lag = np.arange(1, len(result.g2))
        below.plot(lag * step, result.g2[1:, k], "k-", lw=1.2, label="all")
        parts = result.g2_parts[:, 1:, k]
        for number, part in enumerate(parts):
            colour = _colour(number, len(parts))
            name = f"part {number + 1}"
            below.plot(np.arange(1, len(part) + 1) * step, part, lw=0.7, color=colour, label=name)
        if len(lag) > 1:
            below.set_xscale("log")
        if panel == 0:
            below.legend(fontsize=6, frameon=False, loc="upper right", ncols=2)
        label_axes(below, f"lag ({unit})", "" if panel % columns else "g2")
    return save_figure(figure, path, dpi)


def plot_intensity(
    path: str | Path,
    overview: Overview,
    step: tuple[float, str] = (1.0, "frames"),
    *,
    title: str = "",
    dpi: int = 120,
) -> Path:
    """Plot mean counts of a pixel against time, for long runs with the range in each block.

    Args:
      step: time between frames, and its unit.
    """
    figure = new_figure(7.0, 3.2, title)
    axes = figure.subplots()
    n = len(overview.intensity)
    block = max(-(-n // (4 * _SHOWN)), 1)
    starts = np.arange(0, n, block)
    x = starts * step[0]
    if n:
        # Mean over the good frames of a block; bad frames are NaN.
        good = np.add.reduceat(np.isfinite(overview.intensity), starts, dtype=np.int64)
        total = np.add.reduceat(np.nan_to_num(overview.intensity), starts)
        mean = np.where(good > 0, total / np.maximum(good, 1), np.nan)
        if block > 1:
            least = np.fmin.reduceat(overview.intensity, starts)
            most = np.fmax.reduceat(overview.intensity, starts)
            axes.fill_between(x, least, most, alpha=0.3, lw=0)
            axes.set_title(f"band: range of {block} frames", fontsize=8)
        axes.plot(x, mean, lw=0.8)
    label_axes(axes, f"t ({step[1]})", "counts per pixel and frame")
    return save_figure(figure, path, dpi)


def plot_detector(
    path: str | Path, overview: Overview, qmap: QMap, *, title: str = "", dpi: int = 120
) -> Path:
    """Plot the mean image without and with the dynamic bins; masked pixels are blank."""
    from matplotlib.colors import LogNorm, Normalize

    image = np.where(qmap.mask & (overview.mean_image > 0), overview.mean_image, np.nan)
    height, width = qmap.shape
    wide = 4.6 * float(np.clip(width / height, 0.6, 2.5))
    figure = new_figure(2 * wide + 1.6, 4.9, title)
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    low, high = percentiles(image, [1, 99.9], (0.1, 1.0))
    norm = LogNorm(low, high) if 0 < 10 * low < high else Normalize(0, high)
    drawn = left.imshow(image, norm=norm, cmap="viridis", interpolation="none")
    left.set_title("mean counts per frame", fontsize=8)
    figure.colorbar(drawn, ax=left, shrink=0.8).ax.tick_params(labelsize=7)
    right.imshow(image, norm=norm, cmap="gray", interpolation="none")
    bins = np.where(qmap.used, qmap.dynamic, 0).astype(np.float64)
    # Consecutive numbers get different colours.
    colours = np.where(bins > 0, (bins * 0.618034) % 1.0, np.nan)
    right.imshow(colours, cmap="hsv", alpha=0.45, vmin=0, vmax=1, interpolation="none")
    right.set_title(f"{qmap.n_dynamic} dynamic bins, {qmap.n_pixels} pixels", fontsize=8)
    for axes in (left, right):
        label_axes(axes, "column", "row")
    return save_figure(figure, path, dpi)


def _draw_map(
    figure: Any, axes: Any, result: TwoTimeResult, k: int, step: float, aged: bool
) -> None:
    matrix = np.asarray(result.c2[k], np.float64)
    if not aged:
        matrix = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    low, high = percentiles(matrix, [1, 99], (0.0, 1.0))
    colours = {"vmin": low, "vmax": high, "cmap": "viridis"}
    if aged:
        drawn = axes.pcolormesh(result.t2 * step, result.t1 * step, matrix, **colours)
        if len(result.t2) > 2:
            axes.set_xscale("symlog", linthresh=max(float(result.t2[1]) * step, 1e-12))
    else:
        block = -(-len(matrix) // _SHOWN)
        first, last = float(result.t1[0]) * step, float(result.t1[-1]) * step
        edges = (first, last, first, last)
        reduced = _block_means(matrix, block)
        drawn = axes.imshow(reduced, origin="lower", extent=edges, interpolation="none", **colours)
    figure.colorbar(drawn, ax=axes, shrink=0.8).ax.tick_params(labelsize=7)


def _block_means(matrix: Array, block: int) -> Array:
    """Return means of block x block points without NaN."""
    if block <= 1:
        return matrix
    starts = np.arange(0, len(matrix), block)
    known = np.isfinite(matrix)
    total, count = (
        np.add.reduceat(np.add.reduceat(part, starts, axis=0), starts, axis=1)
        for part in (np.where(known, matrix, 0.0), known.astype(np.float64))
    )
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


def _ring_label(result: MultiTauResult, members: list[int]) -> str:
    if result.q is None:
        return f"bin {result.bins[members[0]]}"
    more = "" if len(members) == 1 else f", {len(members)} angles"
    return f"q {result.q[members[0]]:.4g} 1/Angstrom{more}"


def _angle_label(result: MultiTauResult, k: int) -> str:
    return f"bin {result.bins[k]}" if result.phi is None else f"{result.phi[k]:.4g} deg"


def _bin_label(result: TwoTimeResult, k: int) -> str:
    parts = [f"bin {result.bins[k]}"]
    if result.q is not None:
        parts.append(f"q {result.q[k]:.4g} 1/Angstrom")
    if result.phi is not None:
        parts.append(f"{result.phi[k]:.4g} deg")
    return ", ".join(parts)
