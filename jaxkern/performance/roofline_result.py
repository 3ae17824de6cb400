"""What a roofline analysis found: the figures, as text, as data and as a plot."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from jaxkern.core.ceilings import Ceilings
from jaxkern.core.quantities import format_duration, format_quantity

Bottleneck = Literal["compute", "memory"]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Where some work stands under a roofline.

    Attributes:
      flops, bytes: of the work; None where unknown.
      time: its seconds.
      intensity: operations a byte; None where either is unknown, infinite where no byte moves.
      bottleneck: what the ceiling is made of: ``'memory'`` left of the roof's corner.
      achieved: operations a second, or bytes a second where no operations are known (`unit`).
      ceiling: the most of that at this intensity.
      efficiency: ``achieved / ceiling``. Not clamped: above 1 where data stay in the caches.
      unit: ``"FLOP/s"`` or ``"B/s"``.
    """

    flops: float | None
    bytes: float | None
    time: float
    intensity: float | None
    bottleneck: Bottleneck
    achieved: float | None
    ceiling: float
    efficiency: float | None
    unit: str

    @property
    def placement(self) -> Placement:
        """These figures alone."""
        names = [field.name for field in dataclasses.fields(Placement)]
        return Placement(**{name: getattr(self, name) for name in names})


def place(
    flops: float | None, moved: float | None, seconds: float, peak: float, bandwidth: float
) -> Placement:
    """Puts work under the roof of a peak (operations a second) and a bandwidth (bytes a second)."""
    intensity = None
    if flops is not None and moved is not None:
        intensity = flops / moved if moved else math.inf if flops else 0.0
    if flops:
        # Without the bytes only the peak is known to bound it.
        ceiling = peak if intensity is None else min(peak, intensity * bandwidth)
        bottleneck: Bottleneck = "memory" if ceiling < peak else "compute"
        achieved, unit = flops / seconds, "FLOP/s"
    else:
        ceiling, bottleneck, unit = bandwidth, "memory", "B/s"
        achieved = math.nan if moved is None else moved / seconds
    known = not math.isnan(achieved)
    return Placement(
        flops=flops,
        bytes=moved,
        time=seconds,
        intensity=intensity,
        bottleneck=bottleneck,
        achieved=achieved if known else None,
        ceiling=ceiling,
        efficiency=achieved / ceiling if known else None,
        unit=unit,
    )


@dataclass(frozen=True, kw_only=True)
class OpRow(Placement):
    """One op of the program, timed alone.

    As a `Placement` it is that of all its ``count`` calls in one run of the compiled program (None:
    unknown, then of one call; 0, in a branch that does less than another: of one); ``seconds`` of
    one. ``share`` is their part of the program's time. ``reason`` says why the op runs in pure JAX;
    None where its native kernel runs. ``operands`` is ``"its own"`` where it was timed on the
    values of this program (in a loop the first step's), else ``"made up"``.
    """

    name: str
    shapes: tuple[str, ...]
    count: int | None
    seconds: float
    share: float | None
    reason: str | None
    operands: str


@dataclass(frozen=True, kw_only=True)
class Roofline(Placement):
    """What bounds a function or a pipeline on this machine, and how near it is to that.

    As a `Placement` it is that of all the work: of one run, or of one batch.

    Attributes:
      name: of what was analyzed.
      samples: that one run handles.
      dtype: the precision of the peak: ``"f32"`` or ``"f64"``.
      counted: where operations and bytes come from, such as ``"XLA and the ops' models"``.
      rows: the ops inside, each timed alone.
      ceilings: the machine's.
      devices: that run it at once.
      times: seconds of every timed run; `time` is their ``statistic``: the median of a function's
        calls, the mean of a pipeline's batches.
      notes: what is missing or surprising in the figures.
    """

    name: str
    samples: int
    dtype: str
    counted: str
    rows: tuple[OpRow, ...]
    ceilings: Ceilings
    devices: int
    times: tuple[float, ...]
    statistic: str
    notes: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON; an infinite intensity is the string ``"inf"``."""
        return {
            **_with_finite_intensity(self),
            "ceilings": self.ceilings.as_dict(),
            "rows": [_with_finite_intensity(row) for row in self.rows],
        }

    def __str__(self) -> str:
        rates = self.ceilings.best
        where = f"{self.devices} devices" if self.devices > 1 else self.ceilings.platform
        lines = [
            f"roofline of {self.name} on {where} ({self.ceilings.device})",
            "",
            f"  {'time':<12}{format_duration(self.time)} ({self.statistic} of {len(self.times)})",
            f"  {'operations':<12}{format_quantity(self.flops, 'FLOP')}",
            f"  {'bytes':<12}{format_quantity(self.bytes, 'B')}",
            f"  {'intensity':<12}{_number(self.intensity)} FLOP/B; the roof's corner is at "
            f"{rates.flops(self.dtype) / rates.bandwidth:.3g}",
            f"  {'bottleneck':<12}{self.bottleneck}",
            f"  {'achieved':<12}{format_quantity(self.achieved, self.unit)}",
            f"  {'ceiling':<12}{format_quantity(self.ceiling, self.unit)}",
            f"  {'efficiency':<12}{_percent(self.efficiency)}",
            f"  {'counted by':<12}{self.counted}",
        ]
        if self.rows:
            lines += ["", *_table(self.rows)]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def plot(self, path: str | PathLike[str]) -> Path:
        """Draws the roofs, the whole and its ops on logarithmic axes; the suffix tells the format.

        Raises:
          ImportError: without matplotlib.
        """
        return _drawn(self, Path(path))


def _with_finite_intensity(placement: Placement) -> dict[str, Any]:
    found = dataclasses.asdict(placement)
    if placement.intensity is not None and math.isinf(placement.intensity):
        found["intensity"] = "inf"
    return found


def _table(rows: Sequence[OpRow]) -> list[str]:
    head = ("op", "calls", "s a call", "share", "FLOP/B", "achieved", "of ceiling", "bound", "runs")
    body = [
        (
            row.name,
            "unknown" if row.count is None else str(row.count),
            format_duration(row.seconds),
            _percent(row.share),
            _number(row.intensity),
            format_quantity(row.achieved, row.unit),
            _percent(row.efficiency),
            row.bottleneck,
            "native" if row.reason is None else "in pure JAX",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    return [
        "  "
        + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (head, *body)
    ]


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.3g}%"


def _drawn(roofline: Roofline, path: Path) -> Path:
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
