"""``python -m jaxkern xpcs fit --many``: fits of many files, rings or windows to one table."""

from __future__ import annotations

import glob
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from jaxkern.cli.output import INTERRUPTED, PATH, choice, combine, flag, option
from jaxkern.cli.xpcs_command import report, sigterm_exits, written

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.fit_many import FitOutcome
    from jaxkern.xpcs.analysis.settings import Config

many_options = combine(
    option("--many", "GLOB", "Fit all files of a pattern such as 'scan_*.hdf' to one table."),
    flag("--rings", "Fit each q of a file to the same table."),
    option("--windows", "N", "Fit N equal windows of the frames to the same table.", default=1),
    option("--table", "FILE", "Table, .csv or .parquet; default OUTPUT_DIR/fits.csv.", PATH),
    choice("--engine", "local|dask", "Table of fits: one by one, or on a Dask cluster."),
    option("--scheduler", "ADDRESS", "Table of fits: cluster or scheduler file; default local."),
    option("--workers", "N", "Table of fits: number of these processes.", int),
    flag("--force", "Table of fits: repeat fits whose results exist."),
)


def is_many(options: SimpleNamespace) -> bool:
    """Return True if options ask for a table of fits."""
    return options.many is not None or options.rings or options.windows != 1


def fit_table(config: Config, options: SimpleNamespace) -> int:
    """Fit the files, and write the table and a plot; 1 if a fit does not succeed."""
    from jaxkern.core.paths import home_path
    from jaxkern.xpcs.analysis.fit_many import fit_files
    from jaxkern.xpcs.analysis.results_table import check_table

    table = options.output_dir / "fits.csv" if options.table is None else options.table
    check_table(table)
    files: list[str | Path] = [options.config.parent / home_path(config.data_files.file)]
    if options.many is not None:
        files = [*glob.glob(str(home_path(options.many)))]
        if not files:
            raise FileNotFoundError(f"--many: no file matches {options.many!r}")

    def show(outcome: FitOutcome) -> None:
        if not options.quiet:
            print(outcome, flush=True)

    try:
        with sigterm_exits():
            fits = fit_files(
                config,
                files,
                options.output_dir,
                rings=options.rings,
                windows=options.windows,
                engine=None if options.engine == "local" else options.engine,
                scheduler=options.scheduler,
                workers=options.workers,
                force=options.force,
                progress=not options.quiet,
                shown=show,
            )
    except KeyboardInterrupt:
        print("interrupted: the same command resumes with the unfinished fits", file=sys.stderr)
        return INTERRUPTED
    paths = [fits.write(table)]
    if config.output.plots and not options.no_plots and fits.params:
        paths.append(options.output_dir / "fits.png")
        fits.plot(paths[-1])
    counts = {status: fits.count(status) for status in ("done", "skipped", "failed")}
    record = {"files": paths, **counts, "fits": fits.table}
    text = ", ".join(f"{n} {status}" for status, n in counts.items())
    report(options, record, f"{text}; {fits.success.sum()} fits succeeded; {written(paths)}")
    for outcome, success in zip(fits.outcomes, fits.success, strict=True):
        if not success:
            print(f"warning: {outcome}", file=sys.stderr)
    return 0 if fits.success.all() else 1
