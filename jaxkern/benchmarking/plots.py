"""Bar charts as image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def bar_chart(
    path: Path, names: Sequence[str], values: Sequence[float], title: str, label: str, own: str = ""
) -> None:
    """Draw horizontal bars with matplotlib; those whose names begin with ``own`` are blue."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.5 * len(names) + 1.3), layout="constrained")
    axes = figure.add_subplot()
    colors = ["#3a6ea5" if name.startswith(own) else "#8d99ae" for name in names]
    # By position, because bars of equal names would overlap.
    bars = axes.barh(range(len(names)), list(values)[::-1], color=colors[::-1])
    axes.set_yticks(range(len(names)), list(names)[::-1])
    axes.bar_label(bars, [f"{v:,.0f}" if v >= 100 else f"{v:.3g}" for v in values][::-1], padding=4)
    axes.set_xlabel(label)
    axes.set_title(title, loc="left")
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
