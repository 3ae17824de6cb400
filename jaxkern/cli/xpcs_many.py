"""``python -m jaxkern xpcs correlate`` of several files: a file of results each, and one table."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxkern.cli.output import print_json

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.many import CorrelatedFiles, FileOutcome

#: the exit code of a program that Ctrl-C ended.
INTERRUPTED = 130


def add_flags(parser: argparse.ArgumentParser) -> None:
    """What several files have besides."""
    flags = parser.add_argument_group(
        "several files",
        "--output is a folder then; with any of these one file is taken as several are",
    )
    flags.add_argument(
        "--engine",
        choices=("local", "dask"),
        help="one file after the other (default), or on the workers of a dask.distributed cluster",
    )
    flags.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="of the cluster, or the file that it wrote; default: processes on this machine",
    )
    flags.add_argument("--workers", type=int, metavar="N", help="how many such processes")
    flags.add_argument(
        "--retries", type=int, metavar="N", help="how often a file that failed is tried again; 1"
    )
    flags.add_argument(
        "--table", type=Path, metavar="FILE", help=".csv or .parquet; default results.csv in OUTPUT"
    )


def wanted(chosen: argparse.Namespace) -> bool:
    """Whether one of the flags is there."""
    names = ("engine", "scheduler", "workers", "retries", "table")
    return any(getattr(chosen, name) is not None for name in names)


def correlate_many(chosen: argparse.Namespace, arguments: dict[str, Any]) -> int:
    """Correlates the files; errors of input are for the caller."""
    from jaxkern.xpcs.analysis.many import correlate_files
    from jaxkern.xpcs.analysis.results_table import check_table

    table = chosen.output / "results.csv" if chosen.table is None else chosen.table
    check_table(table)

    def shown(outcome: FileOutcome) -> None:
        if not chosen.quiet:
            print(outcome, flush=True)

    try:
        found = correlate_files(
            chosen.frames,
            chosen.qmap,
            chosen.output,
            **arguments,
            mask=chosen.mask,
            blemish=chosen.blemish,
            plots=chosen.plots,
            plot_all=chosen.plot_all,
            engine=None if chosen.engine in (None, "local") else chosen.engine,
            scheduler=chosen.scheduler,
            workers=chosen.workers,
            retries=1 if chosen.retries is None else chosen.retries,
            force=chosen.force,
            progress=not chosen.quiet,
            shown=shown,
        )
    except KeyboardInterrupt:
        print("interrupted: the same command does what is not finished", file=sys.stderr)
        return INTERRUPTED
    found.write(table)
    _report(chosen, found, table)
    return 1 if found.errors else 0


def _report(chosen: argparse.Namespace, found: CorrelatedFiles, table: Path) -> None:
    counts = {status: found.count(status) for status in ("done", "skipped", "failed")}
    if chosen.json:
        outputs = [outcome.output for outcome in found.outcomes if not outcome.error]
        errors = {str(path): error for path, error in found.errors.items()}
        again = {str(o.file): o.rerun_reason for o in found.outcomes if o.rerun_reason}
        doubts = {str(path): text for path, text in found.warnings.items()}
        print_json(
            {
                "files": outputs,
                "table": table,
                **counts,
                "errors": errors,
                "again": again,
                "warnings": doubts,
            }
        )
    elif not chosen.quiet:
        print(", ".join(f"{n} {status}" for status, n in counts.items()) + f"; wrote {table}")
    for path, warning in found.warnings.items():
        print(f"warning: {path}: {warning}", file=sys.stderr)
    for path, error in found.errors.items():
        print(f"failed: {path}: {error}", file=sys.stderr)
    rows = [row for row in found.table if row.get("bin") is not None]
    if rows and not chosen.json and all(row["frame_time"] is None for row in rows):
        print(
            "note: nothing says the time between frames, so that delays are in frames; a fit needs "
            "--frame-time",
            file=sys.stderr,
        )
