"""Growth of the time of correlations with frames, pixels and the part of pixels with light.

Multi-tau of dense frames in memory and of events; random counts, 8 dynamic bins of 5 static ones.
The figure is written to docs/images/xpcs-growth.png.
"""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
from xpcs_correlators import dense_frames, random_events, rings

import jaxkern as jk

CENTRE = {"frames": 8192, "pixels": 256**2, "occupancy": 0.005}
SWEEPS: dict[str, list[float]] = {
    "frames": [1024, 2048, 4096, 8192, 16384, 32768],
    "pixels": [64**2, 128**2, 256**2, 512**2],
    "occupancy": [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2],
}
QUICK_CENTRE = {"frames": 512, "pixels": 64**2, "occupancy": 0.005}
QUICK = {"frames": [256, 512], "pixels": [32**2, 64**2], "occupancy": [1e-3, 1e-2]}
KINDS = {"dense": "#8d99ae", "events": "#d1495b"}


def medians(frames: int, pixels: int, occupancy: float, rounds: int) -> dict[str, float]:
    """Return the seconds of both methods for the same g2."""
    shape = (round(pixels**0.5), round(pixels**0.5))
    events, qmap = random_events(frames, pixels, occupancy), rings(shape)
    dense = dense_frames(events, frames, shape)
    arms = {
        "dense": lambda: jk.xpcs.multitau(dense, qmap, progress=False),
        "events": lambda: jk.xpcs.multitau_events(*events, frames, qmap, progress=False),
    }
    if not np.array_equal(arms["dense"]().g2, arms["events"]().g2, equal_nan=True):
        raise SystemExit("dense and events give other values; nothing is timed")
    samples = harness.interleave(arms, rounds, warmup=0, turn_seconds=0)
    return {name: times.median for name, times in samples.items()}


def power(values: list[float], seconds: list[float]) -> float:
    """Return the exponent of the last step; 1 is linear."""
    return float(np.log(seconds[-1] / seconds[-2]) / np.log(values[-1] / values[-2]))


def figure(sweeps: dict[str, list[float]], seconds: dict[str, dict[str, list[float]]]) -> Any:
    """Return a figure of the seconds over each axis."""
    from matplotlib.figure import Figure

    chart = Figure(figsize=(10, 3.2), layout="constrained")
    panels = chart.subplots(1, len(sweeps), sharey=True)
    titles = {"frames": "frames", "pixels": "pixels", "occupancy": "part of pixels with light"}
    for axes, (axis, values) in zip(panels, sweeps.items(), strict=True):
        for kind, color in KINDS.items():
            times = seconds[axis][kind]
            label = f"{kind} (power {power(values, times):.2f})"
            axes.loglog(values, times, "o-", color=color, label=label)
        axes.set(xlabel=titles[axis])
        axes.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("seconds")
    return chart


def main() -> None:
    bench = harness.Benchmark(__doc__, rounds=(5, 2))
    sweeps, centre = (QUICK, QUICK_CENTRE) if bench.quick else (SWEEPS, CENTRE)
    seconds, rows = {}, []
    for axis, values in sweeps.items():
        times = [
            medians(**{**centre, axis: value}, rounds=bench.rounds)
            for value in harness.progress(values, axis)
        ]
        seconds[axis] = {kind: [time[kind] for time in times] for kind in KINDS}
        by_kind = seconds[axis].values()
        ends = [f"{t[0]:.3g} to {t[-1]:.3g}" for t in by_kind]
        powers = [f"{power(values, t):.2f}" for t in by_kind]
        rows.append([axis, f"{values[0]:g}", f"{values[-1]:g}", *ends, *powers])
    header = "axis | from | to | dense, s | events, s | last power, dense | events"
    lines = harness.table(header, "lrrrrrr", rows)
    note = "Medians. Around 8,192 frames of 256 x 256 pixels at 0.5%."
    if bench.write(lines, note=note, seconds=seconds):
        harness.save_figure(harness.IMAGES / "xpcs-growth.png", figure(sweeps, seconds))


if __name__ == "__main__":
    main()
