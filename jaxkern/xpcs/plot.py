"""Plots of a fit as PNG: data, model and residual maps, cuts along the lag, convergence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from numpy.typing import ArrayLike, NDArray

from jaxkern.xpcs.correlation import g2_at
from jaxkern.xpcs.models import Model
from jaxkern.xpcs.sources import Source, values

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Array = NDArray[Any]

# Frames that a map shows at most: of longer matrices, every k-th.
SHOWN_FRAMES = 500
_SLAB = 256


@dataclass(frozen=True)
class AngleView:
    """What is drawn of one angle; every `step`-th frame.

    Attributes:
      phi: degrees.
      t: [m] seconds.
      data, model: [m, m]; residual: [m, m] in units of sigma, NaN where nothing counts.
    """

    phi: float
    t: Array
    data: Array
    model: Array
    residual: Array


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
    """Data and model of some angles, spread over all of them, at most `SHOWN_FRAMES` frames each.

    Args:
      data: [n_phi, n_t, n_t], read in slabs of rows.
      model: with the data's geometry.
      params: [p]; contrast and offset: [n_phi].
      sigma: a number or [n_phi]; None: residuals as they are.
      keep: [n_t], 0 at frames that do not count.
      angles: how many.
    """
    n_phi, n_t, _ = data.shape
    frames = np.arange(0, n_t, -(-n_t // SHOWN_FRAMES))
    counts = np.ones(n_t, bool) if keep is None else np.asarray(keep, bool)
    noise = np.broadcast_to(np.asarray(1.0 if sigma is None else sigma, np.float64), (n_phi,))
    chosen = np.unique(np.linspace(0, n_phi - 1, min(angles, n_phi)).round().astype(int))
    views = []
    with jax.enable_x64(True):
        scales = [np.broadcast_to(np.asarray(s, np.float64), (n_phi,)) for s in (contrast, offset)]
        evaluate = jax.jit(lambda index: g2_at(model, params, scales[0], scales[1], index))
        i, j = np.meshgrid(frames, frames, indexing="ij")
        for angle in chosen:
            measured = np.concatenate(
                [
                    values(data, data.read(int(angle), first, min(first + _SLAB, n_t)))[
                        np.ix_(frames[(frames >= first) & (frames < first + _SLAB)] - first, frames)
                    ]
                    for first in range(0, n_t, _SLAB)
                ]
            )
            index = np.stack([np.full_like(i, angle), i, j], -1).reshape(-1, 3).astype(np.int32)
            expected = np.asarray(evaluate(index)).reshape(i.shape)
            residual = (measured - expected) / noise[angle]
            residual[(i == j) | ~counts[i] | ~counts[j]] = np.nan
            phi, t = float(model.geometry.phi[angle]), model.geometry.t[frames]
            views.append(AngleView(phi, t, measured, expected, residual))
    return views


def plot_maps(path: str | Path, views: Sequence[AngleView], *, dpi: int = 120) -> Path:
    """Data, model and residual of each angle, side by side."""
    figure = _figure(10.5, 3.1 * len(views))
    grid = figure.subplots(len(views), 3, squeeze=False)
    for row, view in zip(grid, views, strict=True):
        edge = (view.t[0], view.t[-1], view.t[0], view.t[-1])
        off = ~np.eye(len(view.t), dtype=bool)
        low, high = np.nanpercentile(np.stack([view.data[off], view.model[off]]), [0.5, 99.5])
        spread = float(np.nanpercentile(np.abs(view.residual), 99))
        shown = (
            ("data", view.data, {"vmin": low, "vmax": high, "cmap": "viridis"}),
            ("model", view.model, {"vmin": low, "vmax": high, "cmap": "viridis"}),
            ("residual / sigma", view.residual, {"vmin": -spread, "vmax": spread, "cmap": "RdBu"}),
        )
        for axes, (title, image, how) in zip(row, shown, strict=True):
            drawn = axes.imshow(image, origin="lower", extent=edge, interpolation="none", **how)
            axes.set_title(f"{title}, {view.phi:g} deg", fontsize=9)
            axes.set_xlabel("t2 (s)", fontsize=8)
            axes.set_ylabel("t1 (s)", fontsize=8)
            axes.tick_params(labelsize=7)
            figure.colorbar(drawn, ax=axes, shrink=0.85).ax.tick_params(labelsize=7)
    return _save(figure, path, dpi)


def plot_cuts(path: str | Path, views: Sequence[AngleView], *, dpi: int = 120) -> Path:
    """g2 over the lag at three ages of the sample: points measured, lines fitted."""
    columns = min(3, len(views))
    rows = -(-len(views) // columns)
    figure = _figure(4.2 * columns, 3.2 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes in grid.flat[len(views) :]:
        axes.set_axis_off()
    for axes, view in zip(grid.flat, views, strict=False):
        frames = len(view.t)
        for colour, part in zip(("C0", "C1", "C2"), (0.02, 0.35, 0.65), strict=True):
            row = int(part * frames)
            lag = view.t[row + 1 :] - view.t[row]
            label = f"t1 = {view.t[row]:.3g} s"
            axes.plot(lag, view.data[row, row + 1 :], ".", ms=2.5, color=colour, alpha=0.5)
            axes.plot(lag, view.model[row, row + 1 :], "-", lw=1.4, color=colour, label=label)
        axes.set_xscale("log")
        axes.set_title(f"{view.phi:g} deg", fontsize=9)
        axes.set_xlabel("lag t2 - t1 (s)", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.legend(fontsize=7, frameon=False)
    for axes in grid[:, 0]:
        axes.set_ylabel("g2(t1, t2)", fontsize=8)
    return _save(figure, path, dpi)


def plot_convergence(path: str | Path, costs: Sequence[float], *, dpi: int = 120) -> Path:
    """What is left of the cost above its minimum, over the passes of the fit."""
    figure = _figure(5.6, 3.6)
    axes = figure.subplots()
    found = np.asarray(costs, np.float64)
    if found.size:
        best = float(found.min())
        floor = max(abs(best) * 1e-15, math.ulp(0.0))
        axes.semilogy(np.arange(1, found.size + 1), np.maximum(found - best, floor), ".-")
        axes.set_title(f"lowest cost {best:.8g}", fontsize=9)
    axes.set_xlabel("pass over the data", fontsize=8)
    axes.set_ylabel("cost above the lowest", fontsize=8)
    axes.tick_params(labelsize=7)
    return _save(figure, path, dpi)


def _figure(width: float, height: float) -> Figure:
    """A figure without pyplot: no display, no global state."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: str | Path, dpi: int) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi)
    return path
