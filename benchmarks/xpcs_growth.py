"""How the time of correlations grows with frames, pixels and the part of pixels with light.

    python benchmarks/xpcs_growth.py            # writes results and docs/images/xpcs-growth.png
    python benchmarks/xpcs_growth.py --quick    # small, and writes nothing

Multi-tau of dense frames in memory and of events; random counts, 8 dynamic bins of 5 static ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
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


def seconds(run: Callable[[], Any], rounds: int) -> list[float]:
    """Of each call but the first."""
    run()
    found = []
    for _ in range(rounds):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return found


def measured(n: int, pixels: int, occupancy: float, rounds: int) -> dict[str, Any]:
    """Seconds of both ways to the same g2, and how many events there were."""
    side = round(pixels**0.5)
    shape = (side, side)
    events, qmap = random_events(n, pixels, occupancy), rings(shape)
    frames = dense_frames(events, n, shape)

    def dense() -> Any:
        return jk.xpcs.multitau(frames, qmap, progress=False)

    def sparse() -> Any:
        return jk.xpcs.multitau_events(*events, n, qmap, progress=False)

    if not np.array_equal(dense().g2, sparse().g2, equal_nan=True):
        raise SystemExit("dense and events give other values; nothing is timed")
    return {
        "dense": seconds(dense, rounds),
        "events": seconds(sparse, rounds),
        "n_events": len(events[0]),
    }


def sweep(values: dict[str, list[float]], n: int, pixels: int, rounds: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for axis, given in values.items():
        found[axis] = {}
        for value in harness.progress(given, axis):
            chosen = {"frames": n, "pixels": pixels, "occupancy": OCCUPANCY, axis: value}
            found[axis][f"{value:g}"] = measured(
                int(chosen["frames"]), int(chosen["pixels"]), chosen["occupancy"], rounds
            )
    return found


def power(record: dict[str, Any], kind: str) -> float:
    """The exponent of the last doubling or so: 1 is linear."""
    (x0, y0), (x1, y1) = [
        (float(value), float(np.median(runs[kind]))) for value, runs in record.items()
    ][-2:]
    return float(np.log(y1 / y0) / np.log(x1 / x0))


def figure(path: Path, found: dict[str, Any]) -> None:
    """Seconds over each axis, with lines of their linear growth, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    chart, panels = plt.subplots(1, len(found), figsize=(10, 3.2), sharey=True)
    titles = {"frames": "frames", "pixels": "pixels", "occupancy": "part of pixels with light"}
    for axes, (axis, record) in zip(panels, found.items(), strict=True):
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
    chosen = harness.parse(__doc__, rounds=(5, 3))
    if chosen.quick:
        found = sweep(QUICK, 512, 64**2, 1)
    else:
        found = sweep(SWEEPS, FRAMES, SIDE**2, chosen.rounds)
    lines = ["| axis | from | to | dense, s | events, s | last power, dense | events |",
             "|---|--:|--:|--:|--:|--:|--:|"]  # fmt: skip
    for axis, record in found.items():
        first, *_, last = record
        took = {
            kind: " to ".join(f"{np.median(record[at][kind]):.3g}" for at in (first, last))
            for kind in ("dense", "events")
        }
        lines.append(
            f"| {axis} | {first} | {last} | {took['dense']} | {took['events']} "
            f"| {power(record, 'dense'):.2f} | {power(record, 'events'):.2f} |"
        )
    path = harness.write(
        "xpcs-growth", "How correlations grow", "\n".join(lines), found,
        note=f"Medians. Around {FRAMES:,} frames of {SIDE} x {SIDE} pixels at {OCCUPANCY:.1%}.",
        quick=chosen.quick)  # fmt: skip
    if path is not None:
        figure(FIGURE, found)


if __name__ == "__main__":
    main()
