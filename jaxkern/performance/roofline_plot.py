"""Draws a roofline: the machine's roofs on logarithmic axes, with the program and its ops."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxkern.performance.roofline_result import Placement, Roofline


def draw(roofline: Roofline, path: Path) -> Path:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "plot needs matplotlib; install it with pip install 'jaxkern[xpcs]', or matplotlib"
        ) from error

    figure = Figure(figsize=(7.5, 5), layout="constrained")
    FigureCanvasAgg(figure)  # a figure of its own leaves the user's pyplot state alone
    axes: Any = figure.add_subplot()
    points = [("the whole", roofline.placement)]
    points += [(row.name, row.placement) for row in roofline.rows]
    shown = [(name, here) for name, here in points if _can_be_shown(here)]
    rates, scale = roofline.ceilings.best, roofline.devices
    if roofline.ceilings.platform == "cpu":
        scale = 1  # devices of a CPU share it
    corner = rates.flops(roofline.dtype) / rates.bandwidth
    middles = [corner, *(float(here.intensity or corner) for _, here in shown)]
    low, high = min(middles) / 10, max(middles) * 10
    for dtype, style in (("f32", "-"), ("f64", "--")):
        peak, bandwidth = rates.flops(dtype) * scale, rates.bandwidth * scale
        edges = [low, peak / bandwidth, max(high, 2 * peak / bandwidth)]
        roof = [min(peak, x * bandwidth) / 1e9 for x in edges]
        label = f"{dtype}: {peak / 1e9:.3g} GFLOP/s, {bandwidth / 1e9:.3g} GB/s"
        axes.plot(edges, roof, "k" + style, linewidth=1.2, label=label)
    for name, here in shown:
        whole = name == "the whole"
        axes.plot(
            [here.intensity],
            [here.achieved / 1e9 if here.achieved is not None else math.nan],
            "o" if whole else "s",
            markersize=9 if whole else 6,
            linestyle="none",
            label=f"{roofline.name if whole else name}: {100 * (here.efficiency or 0):.3g}%",
        )
    missing = [name for name, here in points if not _can_be_shown(here)]
    if missing:
        axes.set_xlabel(f"operations a byte (not shown, without known ones: {', '.join(missing)})")
    else:
        axes.set_xlabel("operations a byte")
    axes.set(xscale="log", yscale="log", ylabel="GFLOP/s", title=roofline.ceilings.device)
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    return path


def _can_be_shown(here: Placement) -> bool:
    return bool(here.flops) and here.intensity is not None and math.isfinite(here.intensity)
