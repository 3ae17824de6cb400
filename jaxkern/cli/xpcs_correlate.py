"""``python -m jaxkern xpcs correlate``: files of frames to files of results and a table."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from jaxkern.cli.output import INTERRUPTED, PATH, choice, combine, option
from jaxkern.cli.xpcs_command import (
    NO_FRAME_TIME,
    XpcsCommand,
    check_output,
    correlation_options,
    numbers,
    print_warnings,
    report,
    selection,
    sigterm_exits,
    written,
)
from jaxkern.core.quantities import format_quantity

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.correlate import CorrelatedFile
    from jaxkern.xpcs.analysis.many import CorrelatedFiles, FileOutcome
    from jaxkern.xpcs.detectors.frames import FrameSource
    from jaxkern.xpcs.detectors.qmap import QMap

_FORMS = "full, t1t2:N (N x N cells), or age-lag:AGES:DECADE:LAGS (lags linear up to a decade)"
_TWOTIME = f"Write two-time correlations too: {_FORMS}; default full."
# Options of several files; with any of them --output is a directory.
_SEVERAL_FILES = ("engine", "scheduler", "workers", "retries", "table")


@click.command(cls=XpcsCommand)
@click.argument("frames", type=PATH, nargs=-1, required=True)
@combine(
    correlation_options,
    option("--end", "N", "Index after the last frame.", int),
    option("--twotime", "[FORM]", _TWOTIME, is_flag=False, flag_value="full"),
    choice("--smoothing", "static|none", "Smoothing for two-time correlations.", "static"),
    option("--parts", "N", "Also write g2 of N equal parts of the run.", default=0),
    option("--groups", "N", "Also write g2 of N groups of pixels, for errors of fits.", default=0),
    choice("--engine", "local|dask", "Several files: one by one, or on a Dask cluster."),
    option("--scheduler", "ADDRESS", "Several files: cluster or scheduler file; default local."),
    option("--workers", "N", "Several files: number of these processes.", int),
    option("--retries", "N", "Several files: repetitions of a file that failed; default 1.", int),
    option("--table", "FILE", "Several files: .csv or .parquet; default OUTPUT/results.csv.", PATH),
)
def correlate(**values: Any) -> int:
    """Correlate files of frames or events, or a directory of them.

    Writes files of results that xpcs-viewer opens. With an option of several files, --output is a
    directory. Exits with 1 if one of several files failed.
    """
    options = SimpleNamespace(**values)
    several = any(getattr(options, name) is not None for name in _SEVERAL_FILES)
    with sigterm_exits():
        if several or len(options.frames) > 1 or options.frames[0].is_dir():
            return _correlate_many(options)
        try:
            return _correlate_one(options)
        except KeyboardInterrupt:
            print(f"interrupted: {options.output} was not written", file=sys.stderr)
            return INTERRUPTED


def _correlate_one(options: SimpleNamespace) -> int:
    from jaxkern.xpcs.analysis.correlate import CorrelationChoices, correlate_file
    from jaxkern.xpcs.detectors.qmap import QMap, masked_map

    frames = options.frames[0]
    choices = CorrelationChoices(**_arguments(options))
    check_output(options, frames, options.qmap, options.metadata, options.mask, options.blemish)
    qmap = masked_map(QMap.read(options.qmap), options.mask, options.blemish)
    choices.check(qmap)
    made = correlate_file(
        frames,
        qmap,
        options.output,
        choices,
        plots=options.plots,
        plot_all=options.plot_all,
        progress=not options.quiet,
        opened=None if options.quiet else lambda source: print(_describe(source, qmap)),
    )
    _report_one(options, frames, made)
    return 0


def _arguments(options: SimpleNamespace) -> dict[str, Any]:
    """Return the arguments of `CorrelationChoices`."""
    same = ("dpl", "normalize", "end", "hot_pixels", "parts", "groups", "smoothing", "frame_time")
    return {
        **selection(options),
        **{name: getattr(options, name) for name in (*same, "dataset", "metadata")},
        "bins": numbers(options.bins, "--bins"),
        "twotime": form(options.twotime),
    }


def form(text: str | None) -> Any:
    """Parse a form of two-time correlations for `twotime`."""
    if text is None or text == "full":
        return text
    name, *sizes = text.split(":")
    count = {"t1t2": 1, "age-lag": 3}.get(name)
    if count != len(sizes) or not all(re.fullmatch("[0-9]{1,6}", size) for size in sizes):
        raise ValueError(f"--twotime: expected {_FORMS}, got {text!r:.60}")
    return (name, *map(int, sizes))


def _describe(source: FrameSource, qmap: QMap) -> str:
    n, height, width = source.shape
    kind = "events" if source.is_sparse else source.dtype.name
    return f"{source.name}: {n:,} frames of {height} x {width} ({kind}); {qmap}"


def _report_one(options: SimpleNamespace, frames: Path, made: CorrelatedFile) -> None:
    source, result, pairs, files, seconds = made
    n, height, width = source.shape
    size = n * height * width * source.dtype.itemsize
    if source.is_sparse:
        size = frames.stat().st_size
    bad = len(result.config["bad_frames"])
    empty = None if pairs is None else pairs.n_empty
    seconds = max(seconds, 1e-9)
    record = {
        "files": files,
        "frames": n,
        "frames_correlated": result.n_frames,
        "bad_frames": bad,
        "hot_pixels": result.config.get("hot_pixels"),
        "warnings": made.warnings,
        "frame_time": result.frame_time,
        "bins": result.bins.tolist(),
        "two_time_bins": None if pairs is None else pairs.bins.tolist(),
        "empty_frames": None if empty is None else empty.tolist(),
        "delays": len(result.delay),
        "seconds": made.seconds,
        "frames_per_second": n / seconds,
        "bytes_per_second": size / seconds,
    }
    import numpy as np

    rate = f"{n / seconds:,.0f} frames/s, {format_quantity(size / seconds, 'B/s')}"
    lines = [f"{result}: {made.seconds:.3g} s ({rate})"]
    if pairs is not None:
        lines.append(f"two-time correlations of {len(pairs.bins)} bins, {list(pairs.c2.shape)}")
    if bad:
        lines.append(f"{bad} bad frames were excluded")
    report(options, record, *lines, written(files))
    print_warnings(made.warnings)
    if bad and not np.isfinite(result.g2).any():
        print_warnings([f"every g2 is NaN: {bad} bad frames of {n} were excluded"])
    if result.frame_time is None and not options.as_json:
        print(NO_FRAME_TIME, file=sys.stderr)


# Options that are arguments of `correlate_files`.
_SAME = ("mask", "blemish", "plots", "plot_all", "scheduler", "workers", "force")


def _correlate_many(options: SimpleNamespace) -> int:
    from jaxkern.xpcs.analysis.many import correlate_files
    from jaxkern.xpcs.analysis.results_table import check_table

    table = options.output / "results.csv" if options.table is None else options.table
    check_table(table)

    def show(outcome: FileOutcome) -> None:
        if not options.quiet:
            print(outcome, flush=True)

    try:
        results = correlate_files(
            options.frames,
            options.qmap,
            options.output,
            **_arguments(options),
            **{name: getattr(options, name) for name in _SAME},
            engine=None if options.engine == "local" else options.engine,
            retries=1 if options.retries is None else options.retries,
            progress=not options.quiet,
            shown=show,
        )
    except KeyboardInterrupt:
        print("interrupted: the same command resumes with the unfinished files", file=sys.stderr)
        return INTERRUPTED
    results.write(table)
    _report_many(options, results, table)
    return 1 if results.errors else 0


def _report_many(options: SimpleNamespace, results: CorrelatedFiles, table: Path) -> None:
    counts = {status: results.count(status) for status in ("done", "skipped", "failed")}
    record = {
        "files": [outcome.output for outcome in results.outcomes if not outcome.error],
        "table": table,
        **counts,
        "errors": {str(path): error for path, error in results.errors.items()},
        "again": {str(o.file): o.rerun_reason for o in results.outcomes if o.rerun_reason},
        "warnings": {str(path): text for path, text in results.warnings.items()},
    }
    text = ", ".join(f"{n} {status}" for status, n in counts.items())
    report(options, record, f"{text}; {written([table])}")
    print_warnings(f"{path}: {warning}" for path, warning in results.warnings.items())
    for path, error in results.errors.items():
        print(f"failed: {path}: {error}", file=sys.stderr)
    rows = [row for row in results.table if row.get("bin") is not None]
    if rows and not options.as_json and all(row["frame_time"] is None for row in rows):
        print(NO_FRAME_TIME, file=sys.stderr)
