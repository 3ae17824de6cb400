"""Shared parts of the benchmarks: command line, values, interleaved timing, tables, result files.

    python benchmarks/SCRIPT.py            # prints tables, and writes them to benchmarks/results/
    python benchmarks/SCRIPT.py --quick    # a short run that writes no results

Each benchmark first compares the values of its arms. The arms then take turns, so that a machine
whose speed varies slows all of them alike. Results are ratios of medians. Raw samples are written
to the ignored folder ``benchmark-results/``.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import datetime
import json
import os
import pickle
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxkern.benchmarking import Ratio, Samples, compare, environment
from jaxkern.benchmarking.measurement import conditions, plain, ratio_of_medians
from jaxkern.benchmarking.plots import bar_chart
from jaxkern.core.memory import anonymous_bytes
from jaxkern.core.threads import schedulable_cpus

HERE = Path(__file__).parent
RESULTS, RAW = HERE / "results", HERE.parent / "benchmark-results"
IMAGES = HERE.parent / "docs" / "images"
# What `Benchmark.write` adds to the raw results: differences of values by name, samples of all
# arms, and names of libraries that are not installed.
RECORD: dict[str, Any] = {"differences": {}, "samples": [], "missing": []}


class Benchmark:
    """The command line of a script, and its results.

    Args:
      description: the docstring of the script; its first line is the title of the results.
      options: names and keywords for ``argparse.ArgumentParser.add_argument``.
      rounds: default of ``--rounds``, without and with ``--quick``; None for no such option.

    Attributes:
      options: the parsed arguments.
      quick: True for a short run, which writes no results.
      rounds: the number of rounds.
    """

    def __init__(
        self,
        description: str,
        options: Mapping[str, dict[str, Any]] | None = None,
        rounds: tuple[int, int] = (0, 0),
    ) -> None:
        self.title = description.splitlines()[0].removesuffix(".")
        parser = argparse.ArgumentParser(description=self.title)
        parser.add_argument("--quick", action="store_true", help="a short run, without results")
        if rounds[0]:
            parser.add_argument("--rounds", type=int, help=f"default {rounds[0]}")
        for name, keywords in (options or {}).items():
            parser.add_argument(name, **keywords)
        self.options = parser.parse_args()
        self.quick: bool = self.options.quick
        self.rounds: int = getattr(self.options, "rounds", None) or rounds[self.quick]

    def write(
        self,
        lines: Iterable[str],
        packages: Sequence[str] = (),
        note: str = "Medians.",
        name: str | None = None,
        **record: Any,
    ) -> Path | None:
        """Print the tables; unless ``quick``, write them and the raw samples.

        Args:
          lines: the tables, which follow the title, the machine with the versions, and the note.
          packages: packages to name with their versions, in addition to those of every benchmark.
          name: name of the results, by default that of the script.
          record: raw results, in addition to `RECORD`.

        Returns:
          The path of the tables, ``benchmarks/results/<date>-<name>.md``; None for a quick run.
        """
        text = "\n".join([*lines, *(f"\nNot installed: {peer}." for peer in RECORD["missing"])])
        print(text)
        if self.quick:
            return None
        script, *arguments = sys.argv
        where, name = environment(*packages), name or Path(script).stem.replace("_", "-")
        stem = f"{datetime.date.today():%Y-%m-%d}-{name}"
        path, raw = RESULTS / f"{stem}.md", RAW / f"{stem}.json"
        RAW.mkdir(exist_ok=True)
        record |= {"environment": where, **RECORD}
        raw.write_text(json.dumps(plain(record), indent=1) + "\n")
        command = shlex.join(["python", f"benchmarks/{Path(script).name}", *arguments])
        simd = where["settings"]["simd_level"]
        head = f"# {self.title}\n\n{conditions(where)}; SIMD {simd}. `{command}`. {note}"
        path.write_text(f"{head}\n\n{text}\n")
        print(f"wrote {path} and {raw}")
        return path


# Values ------------------------------------------------------------------------------------------


def within(name: str, difference: float, limit: float, unit: str) -> None:
    """Record a difference of values; end the benchmark if it exceeds the limit."""
    if not difference <= limit:
        raise SystemExit(f"{name} differs by {difference:.3g} {unit}; expected at most {limit:g}")
    RECORD["differences"][name] = difference


def check_levels(
    name: str, got: Any, expected: Any, limit: float, mean: bool = False, scale: Any = 1.0
) -> None:
    """End the benchmark if the largest (or mean) difference of images exceeds levels of 255.

    Args:
      scale: levels per unit of the values; 255 times the deviation of normalized images.
    """
    got, expected = np.asarray(got, np.float32), np.asarray(expected, np.float32)
    if got.shape != expected.shape:
        raise SystemExit(f"{name}: expected shape {expected.shape}, got {got.shape}")
    difference = np.abs(got - expected) * scale
    within(name, float(difference.mean() if mean else difference.max()), limit, "levels")


def check_relative(name: str, got: Any, expected: Any, limit: float) -> None:
    """End the benchmark if arrays differ by more than a fraction of the largest value."""
    got, expected = np.asarray(got, np.float64), np.asarray(expected, np.float64)
    largest = float(np.abs(expected).max()) or 1.0
    within(name, float(np.abs(got - expected).max()) / largest, limit, "of the largest value")


@contextlib.contextmanager
def optional(name: str) -> Iterator[None]:
    """Record that a library is not installed if the block raises ImportError."""
    try:
        yield
    except ImportError as error:
        line = f"{name}: {str(error).splitlines()[0]}"
        if line not in RECORD["missing"]:
            RECORD["missing"].append(line)


# Times -------------------------------------------------------------------------------------------


def interleave(
    arms: Mapping[str, Callable[[], Any]],
    rounds: int = 15,
    warmup: int = 3,
    turn_seconds: float = 0.02,
) -> dict[str, Samples]:
    """Return the seconds of arms that take turns, with a pause before each turn.

    During the pause, threads of the previous arm finish spinning or prefetching.
    """
    comparison = compare(
        arms, check=None, rounds=rounds, warmup=warmup, turn_seconds=turn_seconds, pause=0.1
    )
    samples = {name: Samples(arm.seconds) for name, arm in comparison.arms.items()}
    RECORD["samples"].append(samples)
    return samples


def interleave_epochs(
    epochs: Mapping[str, Callable[[], Iterable[Any]]], rounds: int
) -> dict[str, Samples]:
    """Return the seconds of epochs that take turns; every batch is waited for."""

    def drained(epoch: Callable[[], Iterable[Any]]) -> Callable[[], None]:
        def run() -> None:
            for batch in epoch():
                jax.block_until_ready(batch)
                del batch  # the next one may use its memory

        return run

    arms = {name: drained(epoch) for name, epoch in epochs.items()}
    return interleave(arms, rounds, warmup=1, turn_seconds=0)


def progress(items: Any, label: str) -> Iterator[Any]:
    """Yield the items, with a progress bar if rich is installed."""
    with contextlib.suppress(ImportError):
        from rich.progress import track

        items = track(items, label, transient=True)
    yield from items


def call(
    module: str,
    function: str,
    *arguments: Any,
    without: Sequence[str] = (),
    limit: float | None = None,
    **variables: str,
) -> Any:
    """Return the result of a function of a module in this folder, called in a new process.

    The process imports the installed package (``-P``).

    Args:
      arguments: values to pickle, as the result.
      without: prefixes of environment variables to remove.
      limit: seconds, after which ``subprocess.TimeoutExpired`` is raised.
      variables: environment variables to set.
    """
    code = (
        f"import base64, pickle, sys; sys.path.append({str(HERE)!r}); import {module}; "
        f"result = {module}.{function}(*pickle.loads(base64.b64decode(sys.argv[1]))); "
        "print(base64.b64encode(pickle.dumps(result)).decode())"
    )
    sent = base64.b64encode(pickle.dumps(arguments)).decode()
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(tuple(without))}
    output = subprocess.run(
        [sys.executable, "-P", "-c", code, sent],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit,
        env=inherited | variables,
    ).stdout
    return pickle.loads(base64.b64decode(output.splitlines()[-1]))


@contextlib.contextmanager
def sampled_memory(interval: float = 0.002) -> Iterator[list[int]]:
    """Sample the private memory of this process (RssAnon, bytes) in a thread.

    RSS would include the pages of mapped files, which the system can reclaim.
    """
    samples, done = [anonymous_bytes()], threading.Event()

    def sample() -> None:
        while not done.wait(interval):
            samples.append(anonymous_bytes())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


# Tables ------------------------------------------------------------------------------------------


def at_least(value: float, bar: float) -> str:
    return "reached" if value >= bar else "**below**"


def at_most(value: float, bar: float) -> str:
    return "reached" if value <= bar else "**above**"


@dataclasses.dataclass
class Row:
    """A comparison of one arm with the fastest of others, and the required ratio (bar)."""

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

    def cells(self, scale: float = 1.0, form: str = "{:,.0f}", count: float = 0) -> list[str]:
        """Return the name, both rates of ``count`` items (or seconds), and those of `RATIO`."""
        both = (self.samples[name].median for name in (self.fastest, self.ours))
        values = (form.format(scale * (count / s if count else s)) for s in both)
        verdict = at_least(self.ratio.value, self.bar) if self.bar else ""
        return [self.name, *values, str(self.ratio), f"{self.bar:g}" if self.bar else "", verdict]


RATIO = "ratio (95% interval) | bar | "


def table(header: str, align: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table.

    Args:
      header: titles of the columns, separated by " | ".
      align: "l" or "r" for each column.
    """
    assert len(align) == header.count("|") + 1
    rule = "|".join("--:" if side == "r" else "---" for side in align)
    return [f"| {header} |", f"|{rule}|", *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def rates(rows: Sequence[Row], count: int) -> list[str]:
    """Return a table of images per second, for turns that process ``count`` images."""
    header = f"against | theirs, images/s | ours, images/s | {RATIO}"
    return table(header, "lrrrrl", (row.cells(count=count) for row in rows))


def chart_rates(path: Path, samples: Mapping[str, Samples], count: int, title: str) -> None:
    """Draw the images per second of arms that process ``count`` images."""
    speeds = {name: count / times.median for name, times in samples.items()}
    names = sorted(speeds, key=speeds.__getitem__, reverse=True)
    values, cores = [speeds[name] for name in names], schedulable_cpus()
    bar_chart(path, names, values, f"{title} on {cores} cores", "images/s", own="jaxkern")


def save_figure(path: Path, figure: Any) -> None:
    """Write a figure of matplotlib without the frames of its axes."""
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    print(f"wrote {path}")
