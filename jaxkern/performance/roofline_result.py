"""The result of a roofline analysis, as text, as data and as a plot."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from jaxkern.core.ceilings import Ceilings
from jaxkern.core.quantities import format_duration, format_quantity

Bottleneck = Literal["compute", "memory"]


@dataclass(frozen=True, kw_only=True)
class Placement:
    """Position of some work under a roofline.

    Attributes:
      flops, bytes: operations and bytes of the work; None if unknown.
      time: duration in seconds.
      intensity: operations per byte; None if either is unknown, infinite if no bytes are moved.
      bottleneck: ``'memory'`` to the left of the ridge point, else ``'compute'``.
      achieved: operations per second, or bytes per second if no operations are known (`unit`).
      ceiling: maximum of ``achieved`` at this intensity.
      efficiency: ``achieved / ceiling``, not clamped: above 1 if data stay in the caches.
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


def place(
    flops: float | None, moved: float | None, seconds: float, peak: float, bandwidth: float
) -> Placement:
    """Place work under the roof of ``peak`` (operations/s) and ``bandwidth`` (bytes/s).

    Source: Williams, Waterman and Patterson, "Roofline", Commun. ACM 52 (2009) 65.
    """
    intensity = None
    if flops is not None and moved is not None:
        intensity = flops / moved if moved else math.inf if flops else 0.0
    achieved: float | None
    if flops:
        # If the bytes are unknown, the only known bound is the peak.
        ceiling = peak if intensity is None else min(peak, intensity * bandwidth)
        bottleneck: Bottleneck = "memory" if ceiling < peak else "compute"
        achieved, unit = flops / seconds, "FLOP/s"
    else:
        ceiling, bottleneck, unit = bandwidth, "memory", "B/s"
        achieved = None if moved is None else moved / seconds
    return Placement(
        flops=flops,
        bytes=moved,
        time=seconds,
        intensity=intensity,
        bottleneck=bottleneck,
        achieved=achieved,
        ceiling=ceiling,
        efficiency=None if achieved is None else achieved / ceiling,
        unit=unit,
    )


@dataclass(frozen=True, kw_only=True)
class OpRow(Placement):
    """One op of the program, timed alone.

    The fields of `Placement` cover all ``count`` calls in one run, or one call if it is None.

    Attributes:
      name: name of the op; ``shapes``: dtypes and shapes of its operands.
      count: calls in the traced program, all branches included; None in a loop of unknown length.
      seconds: time of one call.
      share: fraction of the program's time; None if ``count`` is unknown.
      reason: why the op runs in pure JAX; None if its native kernel runs.
      operands: ``"its own"`` if it was timed on the values of this program (in a loop, on those of
        the first iteration), else ``"synthetic"``.
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
    """The bottleneck of a function or a pipeline on this machine, and its efficiency.

    The fields of `Placement` cover one run, or one batch.

    Attributes:
      name: name of the function or pipeline.
      samples: number of samples per run.
      dtype: precision of the peak, ``"f32"`` or ``"f64"``.
      counted: source of operations and bytes, such as ``"XLA and the ops' models"``.
      rows: the ops inside, each timed alone.
      ceilings: the machine's ceilings.
      devices: number of devices that run it.
      times: seconds of every timed run; `time` is their ``statistic``: the median of a function's
        calls, the mean of a pipeline's batches.
      notes: what the figures do not include, and unexpected figures.
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
        """Return all figures for JSON; an infinite intensity is the string ``"inf"``."""
        return {
            **_json_fields(self),
            "ceilings": self.ceilings.as_dict(),
            "rows": [_json_fields(row) for row in self.rows],
        }

    def __str__(self) -> str:
        rates = self.ceilings.best
        where = f"{self.devices} devices" if self.devices > 1 else self.ceilings.platform
        ridge = rates.flops(self.dtype) / rates.bandwidth
        figures = {
            "time": f"{format_duration(self.time)} ({self.statistic} of {len(self.times)})",
            "operations": format_quantity(self.flops, "FLOP"),
            "bytes": format_quantity(self.bytes, "B"),
            "intensity": f"{_number(self.intensity)} FLOP/B; ridge point at {ridge:.3g}",
            "bottleneck": self.bottleneck,
            "achieved": format_quantity(self.achieved, self.unit),
            "ceiling": format_quantity(self.ceiling, self.unit),
            "efficiency": _percent(self.efficiency),
            "counted by": self.counted,
        }
        lines = [f"roofline of {self.name} on {where} ({self.ceilings.device})", ""]
        lines += [f"  {name:<12}{value}" for name, value in figures.items()]
        if self.rows:
            lines += ["", *self._table()]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def _table(self) -> list[str]:
        columns: dict[str, list[str]] = {
            "op": [row.name for row in self.rows],
            "calls": ["unknown" if row.count is None else str(row.count) for row in self.rows],
            "per call": [format_duration(row.seconds) for row in self.rows],
            "share": [_percent(row.share) for row in self.rows],
            "FLOP/B": [_number(row.intensity) for row in self.rows],
            "achieved": [format_quantity(row.achieved, row.unit) for row in self.rows],
            "of ceiling": [_percent(row.efficiency) for row in self.rows],
            "bound": [str(row.bottleneck) for row in self.rows],
            "runs": ["in pure JAX" if row.reason else "native" for row in self.rows],
        }
        padded = []
        for name, cells in columns.items():
            width = max(map(len, [name, *cells]))
            padded.append([cell.ljust(width) for cell in [name, *cells]])
        return [("  " + "  ".join(line)).rstrip() for line in zip(*padded, strict=True)]

    def plot(self, path: str | PathLike[str]) -> Path:
        """Draw the roofs, the total and its ops on logarithmic axes; the suffix is the format.

        Raises:
          ImportError: if matplotlib is not installed.
        """
        return _draw(self, Path(path))


def _json_fields(placement: Placement) -> dict[str, Any]:
    fields = dataclasses.asdict(placement)
    if placement.intensity is not None and math.isinf(placement.intensity):
        fields["intensity"] = "inf"
    return fields


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.3g}%"


def _draw(roofline: Roofline, path: Path) -> Path:
    try:
        from matplotlib.figure import Figure  # not pyplot, whose state belongs to the user
    except ImportError as error:
        raise ImportError("plot needs matplotlib: pip install 'jaxkern[cli]'") from error
    figure = Figure(figsize=(7.5, 5), layout="constrained")
    axes: Any = figure.add_subplot()
    works: list[tuple[str, Placement]] = [("total", roofline)]
    works += [(row.name, row) for row in roofline.rows]
    shown = [(n, w) for n, w in works if w.flops and w.intensity and math.isfinite(w.intensity)]
    missing = [name for name, work in works if (name, work) not in shown]
    # Devices of a CPU share its cores and memory.
    scale = 1 if roofline.ceilings.platform == "cpu" else roofline.devices
    rates = roofline.ceilings.best
    ridge = rates.flops(roofline.dtype) / rates.bandwidth
    intensities = [ridge, *(work.intensity or ridge for _, work in shown)]
    low, high = min(intensities) / 10, max(intensities) * 10
    for dtype, style in (("f32", "-"), ("f64", "--")):
        peak, bandwidth = rates.flops(dtype) * scale, rates.bandwidth * scale
        edges = [low, peak / bandwidth, max(high, 2 * peak / bandwidth)]
        roof = [min(peak, x * bandwidth) / 1e9 for x in edges]
        label = f"{dtype}: {peak / 1e9:.3g} GFLOP/s, {bandwidth / 1e9:.3g} GB/s"
        axes.plot(edges, roof, "k" + style, linewidth=1.2, label=label)
    for name, work in shown:
        marker, size = ("o", 9) if work is roofline else ("s", 6)
        label = f"{roofline.name if work is roofline else name}: {_percent(work.efficiency)}"
        rate = (work.achieved or math.nan) / 1e9
        axes.plot(work.intensity, rate, marker, markersize=size, label=label)
    omitted = f" (not shown, because unknown: {', '.join(missing)})" if missing else ""
    axes.set(xscale="log", yscale="log", xlabel=f"operations per byte{omitted}")
    axes.set(ylabel="GFLOP/s", title=roofline.ceilings.device)
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
    return path
