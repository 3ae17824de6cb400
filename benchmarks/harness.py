"""What the benchmarks share beside `jaxkern.benchmarking`: tables with bars, and result files.

Values are compared by each benchmark first; then its arms take turns, so that a machine whose speed
drifts slows all of them alike. Results are ratios of medians.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxkern.benchmarking import Ratio, Samples, compare, environment
from jaxkern.benchmarking.environment import conditions
from jaxkern.benchmarking.measurement import plain
from jaxkern.benchmarking.samples import ratio_of_medians

RESULTS = Path(__file__).parent / "results"


def interleave(
    arms: Mapping[str, Callable[[], Any]],
    rounds: int = 15,
    warmup: int = 3,
    turn_seconds: float = 0.02,
) -> dict[str, Samples]:
    """Seconds of arms whose values were compared, in turns.

    Before each turn threads that another arm left spinning or working ahead come to rest.
    """
    found = compare(
        arms, check=None, rounds=rounds, warmup=warmup, turn_seconds=turn_seconds, pause=0.1
    )
    return {name: arm.samples for name, arm in found.arms.items()}


@dataclasses.dataclass
class Row:
    """A comparison: ours over the fastest of theirs, and the bar that it has to reach."""

    name: str
    samples: Mapping[str, Samples]
    ours: str
    theirs: Sequence[str]
    bar: float

    @property
    def fastest(self) -> str:
        return min(self.theirs, key=lambda name: self.samples[name].median)

    @property
    def ratio(self) -> Ratio:
        ours, theirs = self.samples[self.ours], self.samples[self.fastest]
        return ratio_of_medians(theirs.seconds, ours.seconds, paired=True)


def rates(rows: Sequence[Row], count: int) -> list[str]:
    """A table of images a second, of turns that make ``count`` of them."""
    lines = [
        "| against | theirs, images/s | ours, images/s | ratio (95% interval) | bar | |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        theirs, ours = (row.samples[name].median for name in (row.fastest, row.ours))
        lines.append(
            f"| {row.name} | {count / theirs:,.0f} | {count / ours:,.0f} | {row.ratio} "
            f"| {row.bar:g} | {at_least(row.ratio.value, row.bar)} |"
        )
    return lines


def at_least(value: float, bar: float) -> str:
    return "reached" if value >= bar else "**below**"


def at_most(value: float, bar: float) -> str:
    return "reached" if value <= bar else "**above**"


def progress(items: Any, label: str) -> Iterator[Any]:
    """The items with a progress bar where rich is installed."""
    with contextlib.suppress(ImportError):
        from rich.progress import track

        yield from track(items, label, transient=True)
        return
    yield from items


def in_new_python(
    *arguments: str, without: Sequence[str] = (), limit: float | None = None, **variables: str
) -> str:
    """What a new Python prints; of the installed package, not of a source tree around it (-P).

    Args:
      without: how the names of environment variables begin that it does not get.
      limit: seconds, after which it is stopped with a ``subprocess.TimeoutExpired``.
      variables: of the environment, that it gets.
    """
    kept = {n: v for n, v in os.environ.items() if not n.startswith(tuple(without))}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit,
        env=kept | variables,
    ).stdout


def write(
    name: str,
    title: str,
    text: str,
    record: Mapping[str, Any],
    packages: Sequence[str] = (),
    note: str = "Medians.",
) -> Path:
    """Writes ``results/<date>-<name>.json`` and ``.md``; returns the path of the JSON file.

    Args:
      text: the tables, behind the title, the machine with the versions, and the note.
      packages: whose versions are told, beside those of every benchmark.
    """
    where = environment(*packages)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.date.today():%Y-%m-%d}-{name}.json"
    path.write_text(json.dumps(plain({"environment": where, **record}), indent=1) + "\n")
    path.with_suffix(".md").write_text(f"# {title}\n\n{conditions(where)}. {note}\n\n{text}\n")
    print(f"wrote {path}")
    return path
