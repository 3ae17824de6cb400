"""Interleaved timings of arms that do equal work, and the files made of them.

A benchmark is a list of arms. Their values are compared first; then they take turns, so that a
machine whose speed drifts slows all of them alike. Results are ratios of medians.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from jaxkern.core.machine import cpu_model
from jaxkern.core.threads import schedulable_cpus

RESULTS = Path(__file__).parent / "results"


@dataclasses.dataclass
class Arm:
    """One way to do the work: ``run()`` does it once and returns when it is done."""

    name: str
    run: Callable[[], Any]
    seconds: list[float] = dataclasses.field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles."""
        low, _, high = statistics.quantiles(self.seconds, n=4)
        return low, high


def interleave(arms: list[Arm], rounds: int = 15, warmup: int = 3, least: float = 0.02) -> None:
    """Times all arms in turns; a quick arm runs as often as fills ``least`` seconds a turn."""
    repeats = {}
    for arm in arms:
        for _ in range(warmup):
            arm.run()
        start = time.perf_counter()
        arm.run()
        repeats[arm.name] = max(1, round(least / max(time.perf_counter() - start, 1e-7)))
    for _ in progress(range(rounds), "timing"):
        for arm in arms:
            # Threads that another arm left spinning or working ahead come to rest, and the caches
            # forget it.
            time.sleep(0.1)
            arm.run()
            start = time.perf_counter()
            for _ in range(repeats[arm.name]):
                arm.run()
            arm.seconds.append((time.perf_counter() - start) / repeats[arm.name])


def progress(items: Any, label: str) -> Iterator[Any]:
    """The items with a progress bar where rich is installed."""
    with contextlib.suppress(ImportError):
        from rich.progress import track

        yield from track(items, label, transient=True)
        return
    yield from items


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    return {"cpu": cpu_model(), "cores": str(schedulable_cpus())}


def conditions(machine: dict[str, str], versions: dict[str, str]) -> str:
    """Machine and versions in a line: ``AMD EPYC, 2 cores; python 3.12.1, jax 0.10.2``."""
    found = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{machine['cpu']}, {machine['cores']} cores; {found}"


def versions(*packages: str) -> dict[str, str]:
    """The versions of the packages that are installed, and of Python."""
    found = {"python": platform.python_version()}
    for package in packages:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def write(name: str, record: dict[str, Any], markdown: str, suffix: str = "") -> Path:
    """Writes ``results/<date>-<name>.json`` and ``.md``; returns the path of the JSON file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.date.today():%Y-%m-%d}-{name}{suffix}.json"
    path.write_text(json.dumps(record, indent=1) + "\n")
    path.with_suffix(".md").write_text(markdown)
    return path


def bar_chart(path: Path, names: list[str], values: list[float], title: str, label: str) -> None:
    """A horizontal bar chart, the bars of jaxkern highlighted, as PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.55 * len(names) + 1.2))
    colors = ["#d1495b" if name.startswith("jaxkern") else "#8d99ae" for name in names]
    bars = axes.barh(names[::-1], values[::-1], color=colors[::-1])
    axes.bar_label(bars, [f"{v:,.0f}" for v in values[::-1]], padding=4)
    axes.set_xlabel(label)
    axes.set_title(title, loc="left")
    axes.set_xlim(right=max(values) * 1.15)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
