"""Shared parts of the benchmarks: command line, interleaved timing, tables with bars, result files.

Each benchmark first compares the values of its arms. The arms then take turns, so that a machine
whose speed varies slows all of them alike. Results are ratios of medians. Tables are written to
``benchmarks/results/``, raw samples to the ignored folder ``benchmark-results/``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from jaxkern.benchmarking import Ratio, Samples, compare, environment
from jaxkern.benchmarking.measurement import conditions, plain, ratio_of_medians
from jaxkern.core.memory import anonymous_bytes

RESULTS = Path(__file__).parent / "results"
RAW = Path(__file__).parents[1] / "benchmark-results"


def parse(
    description: str, *options: tuple[str, dict[str, Any]], rounds: tuple[int, int] | None = None
) -> argparse.Namespace:
    """Parse the command line; every benchmark accepts ``--quick``, which writes no results.

    Args:
      description: the docstring of the script, of which the first line is shown.
      options: names and keywords for ``argparse.ArgumentParser.add_argument``.
      rounds: default of ``--rounds``, without and with ``--quick``; None for no such option.
    """
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a short run that writes no results")
    if rounds is not None:
        parser.add_argument("--rounds", type=int, help=f"default {rounds[0]}")
    for name, keywords in options:
        parser.add_argument(name, **keywords)
    arguments = parser.parse_args()
    if rounds is not None and arguments.rounds is None:
        arguments.rounds = rounds[arguments.quick]
    return arguments


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
    return {name: Samples(arm.seconds) for name, arm in comparison.arms.items()}


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


def table(header: str, align: str, rows: Iterable[Iterable[object]]) -> list[str]:
    """Return the lines of a Markdown table.

    Args:
      header: titles of the columns, separated by " | ".
      align: "l" or "r" for each column.
    """
    assert len(align) == header.count("|") + 1
    rule = "|".join("--:" if side == "r" else "---" for side in align)
    return [f"| {header} |", f"|{rule}|", *(f"| {' | '.join(map(str, row))} |" for row in rows)]


def rates(rows: Sequence[Row], count: int, missing: Iterable[str] = ()) -> list[str]:
    """Return a table of images per second, for turns that process ``count`` images."""
    cells = []
    for row in rows:
        theirs, ours = (count / row.samples[name].median for name in (row.fastest, row.ours))
        verdict = at_least(row.ratio.value, row.bar)
        cells.append(
            (row.name, f"{theirs:,.0f}", f"{ours:,.0f}", row.ratio, f"{row.bar:g}", verdict)
        )
    header = "against | theirs, images/s | ours, images/s | ratio (95% interval) | bar | "
    return table(
        header, "lrrrrl", [*cells, *((name, "missing", "", "", "", "") for name in missing)]
    )


def record(rows: Sequence[Row], **more: Any) -> dict[str, Any]:
    """Return the samples, the ratios and the bars of the rows of one comparison."""
    ratios = {row.name: {"ratio": row.ratio.value, "bar": row.bar} for row in rows}
    return {"samples": rows[0].samples, "ratios": ratios, **more}


def within(name: str, difference: float, limit: float, unit: str) -> float:
    """Return a difference of values; end the benchmark if it exceeds the limit."""
    if not difference <= limit:
        raise SystemExit(f"{name} differs by {difference:.3g} {unit}; expected at most {limit:g}")
    return difference


def drained(epoch: Callable[[], Iterable[Any]]) -> Callable[[], None]:
    """Return an arm that runs an epoch and waits for each batch."""

    def run() -> None:
        for batch in epoch():
            jax.block_until_ready(batch)
            del batch  # the next one may use its memory

    return run


def at_least(value: float, bar: float) -> str:
    return "reached" if value >= bar else "**below**"


def at_most(value: float, bar: float) -> str:
    return "reached" if value <= bar else "**above**"


def progress(items: Any, label: str) -> Iterator[Any]:
    """Yield the items, with a progress bar if rich is installed."""
    with contextlib.suppress(ImportError):
        from rich.progress import track

        yield from track(items, label, transient=True)
        return
    yield from items


def in_new_python(
    *arguments: str, without: Sequence[str] = (), limit: float | None = None, **variables: str
) -> str:
    """Return the output of a new Python process that imports the installed package (``-P``).

    Args:
      without: prefixes of environment variables to remove.
      limit: seconds, after which ``subprocess.TimeoutExpired`` is raised.
      variables: environment variables to set.
    """
    inherited = {n: v for n, v in os.environ.items() if not n.startswith(tuple(without))}
    return subprocess.run(
        [sys.executable, "-P", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=limit,
        env=inherited | variables,
    ).stdout


def call(module: str, function: str, *arguments: Any, **options: Any) -> Any:
    """Return the result of a function of a module in this folder, called in a new process.

    Args:
      arguments: values that JSON can represent, as the result.
      options: those of `in_new_python`.
    """
    code = (
        f"import sys; sys.path.append({str(Path(__file__).parent)!r}); import json, {module}; "
        f"print(json.dumps({module}.{function}(*json.loads(sys.argv[1]))))"
    )
    return json.loads(in_new_python("-c", code, json.dumps(arguments), **options).splitlines()[-1])


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


def write(
    name: str,
    title: str,
    text: str | Iterable[str],
    record: Mapping[str, Any],
    packages: Sequence[str] = (),
    note: str = "Medians.",
    quick: bool = False,
) -> Path | None:
    """Print the tables; unless ``quick``, write them and the raw samples.

    Args:
      text: the tables or their lines, which follow the title, the machine with the versions, and
        the note.
      record: the raw samples.
      packages: packages to name with their versions, in addition to those of every benchmark.

    Returns:
      The path of the tables, ``benchmarks/results/<date>-<name>.md``; None for a quick run.
    """
    text = text if isinstance(text, str) else "\n".join(text)
    print(text)
    if quick:
        return None
    where = environment(*packages)
    RESULTS.mkdir(exist_ok=True)
    RAW.mkdir(exist_ok=True)
    stem = f"{datetime.date.today():%Y-%m-%d}-{name}"
    raw = RAW / f"{stem}.json"
    raw.write_text(json.dumps(plain({"environment": where, **record}), indent=1) + "\n")
    script, *arguments = sys.argv
    command = shlex.join(["python", f"benchmarks/{Path(script).name}", *arguments])
    path = RESULTS / f"{stem}.md"
    path.write_text(f"# {title}\n\n{conditions(where)}. `{command}`. {note}\n\n{text}\n")
    print(f"wrote {path} and {raw}")
    return path
