"""How the time of correlations grows with frames, pixels and the part of pixels with light.

    python benchmarks/xpcs_growth.py            # writes results and docs/images/xpcs-growth.png
    python benchmarks/xpcs_growth.py --quick    # small, and writes nothing

Multi-tau of dense frames in memory and of events; random counts, 8 dynamic bins of 5 static ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import numpy as np
from xpcs_correlators import dense_frames, random_events, rings

import jaxkern as jk

FIGURE = Path(__file__).parents[1] / "docs" / "images" / "xpcs-growth.png"
FRAMES, SIDE, OCCUPANCY = 8192, 256, 0.005
SWEEPS: dict[str, list[float]] = {
    "frames": [1024, 2048, 4096, 8192, 16384, 32768],
    "pixels": [64**2, 128**2, 256**2, 512**2],
    "occupancy": [5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2],
}
QUICK = {"frames": [256, 512], "pixels": [32**2, 64**2], "occupancy": [1e-3, 1e-2]}


def measured(n: int, pixels: int, occupancy: float, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of both ways to the same g2."""
    shape = (round(pixels**0.5), round(pixels**0.5))
    events, qmap = random_events(n, pixels, occupancy), rings(shape)
    frames = dense_frames(events, n, shape)
    arms = {
        "dense": lambda: jk.xpcs.multitau(frames, qmap, progress=False),
        "events": lambda: jk.xpcs.multitau_events(*events, n, qmap, progress=False),
    }
    if not np.array_equal(arms["dense"]().g2, arms["events"]().g2, equal_nan=True):
        raise SystemExit("dense and events give other values; nothing is timed")
    samples = harness.interleave(arms, rounds, warmup=0, turn_seconds=0)
    return {name: list(times.seconds) for name, times in samples.items()}


def sweep(values: dict[str, list[float]], n: int, pixels: int, rounds: int) -> dict[str, Any]:
    seconds: dict[str, Any] = {}
    for axis in values:
        seconds[axis] = {}
        for value in harness.progress(values[axis], axis):
            case = {"frames": n, "pixels": pixels, "occupancy": OCCUPANCY, axis: value}
            seconds[axis][f"{value:g}"] = measured(
                int(case["frames"]), int(case["pixels"]), case["occupancy"], rounds
            )
    return seconds


def power(record: dict[str, Any], kind: str) -> float:
    """Return the exponent of the last step; 1 is linear."""
    (x0, y0), (x1, y1) = [
        (float(value), float(np.median(runs[kind]))) for value, runs in record.items()
    ][-2:]
    return float(np.log(y1 / y0) / np.log(x1 / x0))


def figure(path: Path, seconds: dict[str, Any]) -> None:
    """Draw the seconds over each axis as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chart, panels = plt.subplots(1, len(seconds), figsize=(10, 3.2), sharey=True)
    titles = {"frames": "frames", "pixels": "pixels", "occupancy": "part of pixels with light"}
    for axes, (axis, record) in zip(panels, seconds.items(), strict=True):
        x = np.array([float(value) for value in record])
        for kind, color in (("dense", "#8d99ae"), ("events", "#d1495b")):
            y = [float(np.median(runs[kind])) for runs in record.values()]
            axes.loglog(x, y, "o-", color=color, label=f"{kind} (power {power(record, kind):.2f})")
        axes.set(xlabel=titles[axis])
        axes.legend(frameon=False, fontsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0].set_ylabel("seconds")
    chart.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, dpi=110)
    plt.close(chart)


def main() -> None:
    options = harness.parse(__doc__, rounds=(5, 2))
    sizes = (QUICK, 512, 64**2) if options.quick else (SWEEPS, FRAMES, SIDE**2)
    seconds = sweep(*sizes, options.rounds)
    rows = []
    for axis, record in seconds.items():
        first, *_, last = record
        times = [
            " to ".join(f"{np.median(record[at][kind]):.3g}" for at in (first, last))
            for kind in ("dense", "events")
        ]
        powers = [f"{power(record, kind):.2f}" for kind in ("dense", "events")]
        rows.append([axis, first, last, *times, *powers])
    header = "axis | from | to | dense, s | events, s | last power, dense | events"
    note = f"Medians. Around {FRAMES:,} frames of {SIDE} x {SIDE} pixels at {OCCUPANCY:.1%}."
    path = harness.write(
        "xpcs-growth", "How correlations grow", harness.table(header, "lrrrrrr", rows), seconds,
        note=note, quick=options.quick,
    )  # fmt: skip
    if path is not None:
        figure(FIGURE, seconds)


if __name__ == "__main__":
    main()
