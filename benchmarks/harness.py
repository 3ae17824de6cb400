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
import functools
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

import jaxkern as jk
from jaxkern.benchmarking import Ratio, Samples, compare, environment
from jaxkern.benchmarking.measurement import conditions, plain, ratio_of_medians

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


def rates(rows: Sequence[Row], count: int) -> list[str]:
    """Return a table of images per second, for turns that process ``count`` images."""
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


def ratios(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """Return the ratio and the bar of each row."""
    return {row.name: {"ratio": row.ratio.value, "bar": row.bar} for row in rows}


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


def write(
    name: str,
    title: str,
    text: str,
    record: Mapping[str, Any],
    packages: Sequence[str] = (),
    note: str = "Medians.",
    quick: bool = False,
) -> Path | None:
    """Print the tables; unless ``quick``, write them and the raw samples.

    Args:
      text: the tables, which follow the title, the machine with the versions, and the note.
      record: the raw samples.
      packages: packages to name with their versions, in addition to those of every benchmark.

    Returns:
      The path of the tables, ``benchmarks/results/<date>-<name>.md``; None for a quick run.
    """
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


@dataclasses.dataclass
class GpuCase:
    """An op on several sets of operands, for a benchmark on a GPU."""

    name: str
    fn: Callable[..., Any]
    sets: list[Any]
    moved: int  # lower bound of the bytes that a call reads and writes
    tolerance: float


def compile_case(case: GpuCase, device: Any, backend: str, sets: int) -> tuple[Any, Any]:
    """Return one program that runs the op on each set, and its operands on the device."""
    operands = jax.device_put(case.sets[:sets], device)
    with jk.backend(backend):  # type: ignore[arg-type]
        program = jax.jit(lambda sets: [case.fn(*one) for one in sets]).lower(operands).compile()
    return program, operands


def time_on_gpu(
    case: GpuCase, gpu: Any, cpu: Any, check: Callable[[GpuCase, str, Any, Any], None], quick: bool
) -> dict[str, float]:
    """Compare the values of three backends, then return seconds per call, and the bytes.

    Programs are enqueued without waiting until the end of a turn.
    """
    sets = len(case.sets)
    runs = {
        "gpu": (*compile_case(case, gpu, "native", sets), sets),
        "gpu_pure_jax": (*compile_case(case, gpu, "jax", sets), sets),
        "cpu": (*compile_case(case, cpu, "native", 1), 1),
    }
    native, *others = (run(operands)[0] for run, operands, _ in runs.values())
    for name, other in zip(("pure JAX on the GPU", "the CPU kernel"), others, strict=True):
        check(case, name, native, other)
    del native, others, other
    comparison = compare(
        {name: functools.partial(run, operands) for name, (run, operands, _) in runs.items()},
        check=None,
        rounds=3 if quick else 9,
        turn_seconds=0.01 if quick else 0.1,
        back_to_back=True,
    )
    seconds = {name: comparison[name].median / calls for name, (_, _, calls) in runs.items()}
    return {**seconds, "bytes": case.moved}


def copy_rate(device: Any, megabytes: int) -> float:
    """Return the bytes per second that a large elementwise program reads and writes."""
    x = jax.device_put(np.ones(megabytes << 18, np.float32), device)
    program = jax.jit(lambda x: x * 2).lower(x).compile()
    # compare() needs two arms; the faster of two equal ones is closer to the peak.
    arms = {name: functools.partial(program, x) for name in ("first", "second")}
    comparison = compare(arms, check=None, rounds=7, turn_seconds=0.05, back_to_back=True)
    return 2 * x.nbytes / comparison[comparison.fastest].median


def write_gpu(
    name: str, title: str, gpu: Any, text: str, record: dict[str, Any], note: str, quick: bool
) -> None:
    """Write the results of a GPU, whose name is part of the file name."""
    chip = re.sub(r"[^a-z0-9]+", "-", gpu.device_kind.lower()).strip("-")
    record = {"gpu": gpu.device_kind, **record}
    title = f"{title} on {gpu.device_kind}"
    write(f"{name}-{chip}", title, text, record, ["jax-cuda13-plugin"], note, quick)
