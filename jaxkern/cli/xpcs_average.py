"""``python -m jaxkern xpcs average``: average repeats of one measurement."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from jaxkern.cli.output import PATH, check_new, combine, flag, option
from jaxkern.cli.xpcs_command import XpcsCommand, command_options, report, written


@click.command(cls=XpcsCommand)
@click.argument("results", type=PATH, nargs=-1, required=True)
@combine(
    option("--output", "FILE", "File of results with the average.", PATH, required=True),
    flag("--keep-outliers", "Average all files."),
    flag("--force", "Replace an existing file."),
    command_options,
)
def average(results: tuple[Path, ...], **values: Any) -> int:
    """Average g2 of repeats of one measurement, without outliers.

    The files must have the same bins, delays and geometry. Two-time correlations are not averaged.
    """
    from jaxkern.xpcs.analysis.averaging import average_results
    from jaxkern.xpcs.files.results_writer import write_results

    options = SimpleNamespace(**values)
    output = check_new(options.output, options.force, results)
    averaged = average_results(results, reject=not options.keep_outliers)
    write_results(output, averaged.result, metadata=averaged.metadata)
    rejected = {str(file): reason for file, reason in averaged.rejected.items()}
    record = {
        "files": [output],
        "used": [file for file, used in zip(averaged.files, averaged.used, strict=True) if used],
        "rejected": rejected,
        "deviations": averaged.deviations.tolist(),
        "scores": averaged.scores.tolist(),
    }
    lines = [f"left out: {file}: {reason}" for file, reason in rejected.items()]
    count = f"average of {averaged.used.sum()} of {len(averaged.files)} files"
    report(options, record, *lines, f"{count}; {written([output])}")
    return 0
