"""Figures without a display: made, labelled and saved alike by all plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float, title: str) -> Figure:
    """A figure without pyplot: no display, no global state."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    if title:
        figure.suptitle(title, fontsize=9)
    return figure


def save_figure(figure: Figure, path: str | Path, dpi: int) -> Path:
    """Writes a PNG, into a folder that is made where it is missing; returns the path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.set_dpi(dpi)
    # What savefig does, but that draws a figure with a layout twice.
    FigureCanvasAgg(figure).print_png(path)
    return path


def label_axes(axes: Any, x: str, y: str) -> None:
    """Small labels and numbers."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=7)


def percentiles(
    image: NDArray[Any], at: Sequence[float], empty: tuple[float, ...]
) -> tuple[float, ...]:
    """Percentiles of what is finite; `empty` where nothing is, or all is the same."""
    finite = image[np.isfinite(image)]
    found = tuple(float(p) for p in np.percentile(finite, at)) if finite.size else empty
    return found if found[-1] > 0 and len(set((0.0, *found)[-2:])) == 2 else empty
