"""``profile SCRIPT``: runs a script under JAX's profiler and tells where its time went."""

from __future__ import annotations

import argparse
import contextlib
import os
import runpy
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxkern.cli.output import bar_chart, print_json, print_table


def add_parser(commands: Any) -> None:
    about = "run a script and tell which operations of its compiled programs took how long"
    parser = commands.add_parser("profile", help=about, description=about)
    parser.add_argument(
        "--output-dir",
        type=Path,
        metavar="DIR",
        help="by default ./benchmark-results/profile-SCRIPT",
    )
    parser.add_argument("--top", type=int, default=15, metavar="N", help="rows of the table")
    parser.add_argument("--python", action="store_true", help="record every Python call too")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the longest operations")
    parser.add_argument(
        "--json", action="store_true", help="print JSON; the script's own output goes to stderr"
    )
    parser.add_argument("script", type=Path)
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="of the script")


def run(chosen: argparse.Namespace) -> int:
    from jaxkern.benchmarking.saved import DIRECTORY
    from jaxkern.benchmarking.trace import trace
    from jaxkern.core.compile_clock import CompileClock

    script: Path = chosen.script
    if not script.is_file():
        raise FileNotFoundError(f"there is no script {script}")
    if chosen.top < 1:
        raise ValueError(f"--top is {chosen.top}; wanted 1 or more")
    # The script may change the working directory.
    folder = (chosen.output_dir or DIRECTORY / f"profile-{script.stem}").absolute()
    plot = chosen.plot.absolute() if chosen.plot is not None else None
    shown = _stdout_to_stderr() if chosen.json else contextlib.nullcontext()
    with trace(folder, top=0, python=chosen.python) as recorded, CompileClock() as compiling, shown:
        started = time.perf_counter()
        code = _execute(script, chosen.arguments)
        wall = time.perf_counter() - started
    shares = {
        "wall_seconds": wall,
        "compile_seconds": compiling.seconds,
        "op_seconds": recorded.seconds,
    }
    if plot is not None and recorded.ops:
        longest = recorded.ops[: chosen.top]
        bar_chart(
            plot,
            [f"{op.name}\n{_ending(op.scope or op.program)}" for op in longest],
            [1e3 * op.seconds for op in longest],
            f"Where the time of {script.name} goes",
            "ms in the operation, all threads together",
        )
    if chosen.json:
        print_json({"script": str(script), "exit_code": code, **shares, **recorded.as_dict()})
        return code
    _print(script, shares, recorded, chosen.top)
    return code


def _ending(text: str, most: int = 44) -> str:
    return text if len(text) <= most else "\N{HORIZONTAL ELLIPSIS}" + text[1 - most :]


def _execute(script: Path, arguments: list[str]) -> int:
    """Runs a script as ``python SCRIPT ARGUMENTS`` would; returns its exit code."""
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, os.path.dirname(script.absolute()))
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except Exception:
        # The script's own error, which is none of the command's input.
        traceback.print_exc()
        return 1
    finally:
        sys.argv, sys.path[:] = argv, path
    return 0


@contextlib.contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """What Python, native code and child processes print goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    try:
        os.dup2(2, 1)
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(script: Path, shares: dict[str, float], recorded: Any, top: int) -> None:
    from jaxkern.benchmarking.measurement import duration

    total = recorded.seconds
    rows = [
        [
            op.scope or op.program,
            op.name,
            f"{op.calls:,}",
            duration(op.seconds),
            duration(op.seconds / op.calls),
            f"{100 * op.seconds / total:.1f}%",
        ]
        for op in recorded.ops[:top]
    ]
    if rows:
        columns = ["from", "operation", "calls", "total", "a call", "share"]
        print_table(f"Where the time of {script.name} goes: compiled programs", columns, rows)
    if (rest := len(recorded.ops) - len(rows)) > 0:
        left = sum(op.seconds for op in recorded.ops[top:])
        print(f"and {rest:,} more operations: {duration(left)}, {100 * left / total:.1f}%")
    print(
        f"the script took {duration(shares['wall_seconds'])}, of which its main thread traced and "
        f"compiled for {duration(shares['compile_seconds'])}; operations of compiled programs took "
        f"{duration(total)} of all threads together"
    )
    print(f"open {recorded.perfetto} in https://ui.perfetto.dev,")
    print(f"or {recorded.directory} in TensorBoard's profiler")
