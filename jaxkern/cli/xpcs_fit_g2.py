"""``python -m jaxkern xpcs fit-g2``: fit g2(tau) of all bins of a file of results."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import click

from jaxkern.cli.output import PATH, check_new, choice, combine, flag, option
from jaxkern.cli.xpcs_command import XpcsCommand, command_options, print_warnings, report, written

MODELS = "exponential|stretched|double|shear-gaussian|shear-sinc"
_LOSSES = "linear|soft_l1|huber|cauchy|arctan"


@click.command("fit-g2", cls=XpcsCommand)
@click.argument("results", type=PATH)
@combine(
    choice("--model", MODELS, "Model of g2(tau).", "exponential"),
    option("--share", "NAMES", "Parameters of all bins, such as D,exponent or stretch."),
    option("--bounds", "NAME=LOW,HIGH", "Bounds of a parameter; can be repeated.", multiple=True),
    choice("--loss", _LOSSES, "Loss, as in SciPy.", "linear"),
    option("--frame-time", "S", "Time between detector frames; by default from the file.", float),
    option("--output", "FILE", "Write the table as CSV.", PATH),
    option("--plots", "DIR", "Directory for plots of the fits and of 1 / rate against q.", PATH),
    flag("--force", "Replace an existing file."),
    command_options,
)
def fit_g2(**values: Any) -> int:
    """Fit g2(tau) of all bins of a file of results.

    Errors come from groups of pixels or parts of the run, if the file has them: see --groups and
    --parts of correlate. Exits with 1 if the fit of no bin succeeds.
    """
    from jaxkern.xpcs.files.results_reader import read_summary

    options = SimpleNamespace(**values)
    output, plots = options.output, options.plots
    if plots is not None and plots.exists() and not plots.is_dir():
        raise NotADirectoryError(f"--plots: expected a folder, got the file {plots}")
    drawn = [] if plots is None else [plots / "g2-fit.png", plots / "tau-q.png"]
    for path in (*([] if output is None else [output]), *drawn):
        check_new(path, options.force)
    bounds = _bounds(options.bounds)
    result = read_summary(options.results)[0]
    if result is None:
        raise ValueError(f"{options.results}: expected g2 in xpcs/multitau, got a file without it")
    if options.frame_time is not None:
        if not options.frame_time > 0:
            raise ValueError(f"--frame-time: expected seconds > 0, got {options.frame_time}")
        result = result.with_frame_time(options.frame_time)
    if result.tau is None:
        raise ValueError(f"{options.results}: the time between frames is unknown; use --frame-time")
    share = [name.strip() for name in (options.share or "").split(",") if name.strip()]
    fit = result.fit_g2(options.model, share=share, bounds=bounds, loss=options.loss)
    files, law, note = [], None, []
    try:
        law = fit.tau_q()
    except ValueError as error:
        note = [f"no power law over q: {error}"]
        if "D" in fit.shared:
            power = [name for name in ("D", "exponent") if name in fit.shared]
            found = (f"{n} {fit.params[n][0]:.5g} +/- {fit.errors[n].min():.2g}" for n in power)
            note = [f"rate = D q^{'exponent' if power[1:] else 2} in all bins: {', '.join(found)}"]
    if output is not None:
        files.append(fit.to_csv(output))
    if plots is not None:
        plots.mkdir(parents=True, exist_ok=True)
    for path, item in zip(drawn, (fit, law), strict=False):
        if item is not None:
            files.append(path)
            item.plot(path)
    record = {
        "model": fit.model,
        "errors": fit.error_method,
        "bins": fit.table,
        "tau_q": None if law is None else dataclasses.asdict(law),
        "files": files,
    }
    lines = [str(fit), *([str(law)] if law else note), *([written(files)] if files else [])]
    report(options, record, *lines)
    if not fit.jackknife.all():
        print_warnings(
            [
                f"{(~fit.jackknife).sum()} of {len(fit.jackknife)} bins have neither groups of "
                "pixels nor parts of the run, so the errors are those of independent noise, which "
                "are too small; use --groups 32 of correlate, or fewer for bins of few pixels"
            ]
        )
    return 0 if fit.success.any() else 1


def _bounds(texts: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Parse bounds such as rate=1,100."""
    bounds = {}
    for text in texts:
        name, _, pair = text.partition("=")
        try:
            low, high = map(float, pair.split(","))
        except ValueError:
            message = f"--bounds: expected NAME=LOW,HIGH such as rate=1,100, got {text!r:.60}"
            raise ValueError(message) from None
        bounds[name.strip()] = (low, high)
    return bounds
