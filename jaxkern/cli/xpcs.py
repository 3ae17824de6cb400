"""``python -m jaxkern xpcs``: simulate, fit and plot two-time correlations, and check files."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from jaxkern.cli.output import (
    INTERRUPTED,
    PATH,
    check_new,
    combine,
    flag,
    json_option,
    option,
    print_json,
)
from jaxkern.cli.xpcs_average import average
from jaxkern.cli.xpcs_command import XpcsCommand, command_options, print_warnings, report, written
from jaxkern.cli.xpcs_correlate import correlate
from jaxkern.cli.xpcs_fit_g2 import fit_g2
from jaxkern.cli.xpcs_fit_many import fit_table, is_many, many_options
from jaxkern.cli.xpcs_pages import frame_shape as parse_frame_shape
from jaxkern.cli.xpcs_pages import inspect
from jaxkern.cli.xpcs_pages import report as report_page
from jaxkern.cli.xpcs_watch import watch
from jaxkern.core.progress import ProgressBar

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.run import OpenMeasurement
    from jaxkern.xpcs.analysis.settings import Config

# Options that replace a setting: (option, setting, metavar).
_SETTINGS = (
    ("--data", "data_files.file", "FILE"),
    ("--q", "data_files.q", "Q"),
    ("--layout", "data_files.layout", "LAYOUT"),
    ("--model", "analysis.model", "MODEL"),
    ("--scaling", "scaling", "SCALING"),
    ("--strategy", "optimization.strategy", "NAME"),
    ("--loss", "optimization.loss", "LOSS"),
    ("--max-nfev", "optimization.max_nfev", "N"),
    ("--threads", "optimization.threads", "N"),
    ("--memory-limit", "optimization.memory_limit", "GB"),
    ("--checkpoint-dir", "optimization.streaming.checkpoint_dir", "DIR"),
)
_config_options = combine(
    option("--config", "YAML", "Settings; `xpcs config` writes a template.", PATH, required=True),
    option("--output-dir", "DIR", "Directory for the files.", PATH, default=Path("results")),
    *(option(name, metavar, f"Replace {setting}.") for name, setting, metavar in _SETTINGS),
    option("--set", "NAME=VALUE", "Replace any setting; can be repeated.", multiple=True),
    command_options,
)


@click.group()
def xpcs() -> None:
    """Correlate frames; simulate, fit and plot two-time correlations."""


xpcs.add_command(average)
xpcs.add_command(correlate)
xpcs.add_command(fit_g2)
xpcs.add_command(inspect)
xpcs.add_command(report_page)
xpcs.add_command(watch)


@xpcs.command(cls=XpcsCommand)
@click.argument("path", type=PATH, default=Path("config.yaml"))
@json_option
@flag("--force", "Replace an existing file.")
def config(path: Path, as_json: bool, force: bool) -> int:
    """Write a template of the settings with comments."""
    from jaxkern.xpcs.analysis.settings import template

    check_new(path, force).write_text(template(), encoding="utf-8")
    options = SimpleNamespace(as_json=as_json, quiet=False)
    report(options, {"files": [path]}, written([path]))
    return 0


@xpcs.command("import-config", cls=XpcsCommand)
@click.argument("old", type=PATH)
@click.argument("new", type=PATH)
@flag("--force", "Replace an existing file.")
@command_options
def import_config(**values: Any) -> int:
    """Translate a YAML file of homodyne, xpcsjax or heterodyne, and list the outcome of each key.

    Exits with 1, without a new file, if a key is unknown or has no equivalent.
    """
    from jaxkern.core.paths import write_atomically
    from jaxkern.xpcs.analysis.import_settings import import_settings
    from jaxkern.xpcs.analysis.settings import parse_yaml, template

    options = SimpleNamespace(**values)
    check_new(options.new, options.force)
    config, keys = import_settings(parse_yaml(options.old.read_bytes(), str(options.old)))
    wide = max(len(key.key) for key in keys)
    lines = [f"{key.key:<{wide}}  {key.outcome:<10}  {key.text}" for key in keys]
    if config is not None:
        write_atomically(options.new, template(config).encode())
        lines.append(written([options.new]))
    files = [] if config is None else [options.new]
    report(options, {"keys": [vars(key) for key in keys], "files": files}, *lines)
    errors = [f"{key.key}: {key.text}" for key in keys if key.outcome == "error"]
    if errors:
        print(f"error: {len(errors)} keys of {options.old}:", *errors, sep="\n", file=sys.stderr)
    return 1 if errors else 0


@xpcs.command(cls=XpcsCommand)
@click.argument("path", metavar="YAML", type=PATH)
@option("--data", "FILE", "Replace data_files.file.", PATH)
@command_options
def validate(path: Path, data: Path | None, as_json: bool, quiet: bool) -> int:
    """Check all settings and files of a fit, and list every problem; nothing is fitted.

    Exits with 1 if there are problems.
    """
    from jaxkern.xpcs.analysis.settings import parse_yaml
    from jaxkern.xpcs.analysis.validation import find_config_problems

    tree = parse_yaml(path.read_bytes(), str(path)) or {}
    files = tree.setdefault("data_files", {}) if isinstance(tree, dict) else None
    if data is not None and isinstance(files, dict):
        files["file"] = str(data.absolute())
    problems = find_config_problems(tree, path.parent)
    lines = problems or [f"{path}: no problem found"]
    options = SimpleNamespace(as_json=as_json, quiet=quiet and not problems)
    report(options, {"problems": problems}, *lines)
    return 1 if problems else 0


@xpcs.command(cls=XpcsCommand)
@_config_options
def simulate(**values: Any) -> int:
    """Write a simulated data set to an APS file."""
    from jaxkern.core.paths import write_atomically
    from jaxkern.xpcs.analysis import run as analysis

    options = SimpleNamespace(**values)
    config = _load_settings(options)
    with ProgressBar(not options.quiet, "simulating", "rows") as bar:
        path, truth = analysis.simulate_data(config, options.config.parent, bar.update)
    file = options.output_dir / "truth.json"
    write_atomically(file, json.dumps(truth, indent=2).encode() + b"\n")
    conditions = f"dt {truth['dt']:.6g} s, gap {truth['gap']:.6g} Angstrom"
    text = f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB; {conditions}) and {file}"
    report(options, {"files": [path, file], "truth": truth}, text)
    return 0


@xpcs.command(cls=XpcsCommand)
@flag("--no-plots", "Write no plots.")
@many_options
@_config_options
def fit(**values: Any) -> int:
    """Fit a data set, or many with --many, --rings or --windows.

    Exits with 1 if a fit does not converge or does not describe the data.
    """
    from jaxkern.xpcs.analysis import run as analysis
    from jaxkern.xpcs.fitting.result import FitInterrupted

    options = SimpleNamespace(**values)
    saved = "nothing was saved"
    try:
        config = _load_settings(options)
        if is_many(options):
            return fit_table(config, options)
        with analysis.open_measurement(config, options.config.parent) as measurement:
            _print_measurement(measurement, options.quiet)
            with warnings.catch_warnings():
                # The report includes them.
                warnings.filterwarnings("ignore", ".* are excluded", RuntimeWarning)
                try:
                    result = analysis.fit_measurement(
                        config, measurement, options.output_dir, progress=not options.quiet
                    )
                except FitInterrupted as stop:
                    if stop.result is None:
                        raise
                    result = stop.result
            paths = analysis.save(config, measurement, result, options.output_dir)
            saved = written(paths)
            if config.output.plots and not options.no_plots and not result.interrupted:
                paths += analysis.plot_measurement(config, measurement, options.output_dir)
    except KeyboardInterrupt:
        print(f"interrupted; {saved}", file=sys.stderr)
        return INTERRUPTED
    if options.as_json:
        # The record that the fit has written, with the paths of all files.
        record = json.loads((options.output_dir / "results.json").read_text())
        print_json({**record, "files": paths})
    if result.interrupted:
        print(f"{result.message}; {saved}, the best result so far", file=sys.stderr)
        return INTERRUPTED
    if options.quiet:
        print_warnings(result.warnings)  # which are part of the report
    else:
        print(result, written(paths), sep="\n")
    if not result.success:
        print(f"the fit did not succeed: {result.message}", file=sys.stderr)
    if not result.success or any("counted from 0" in line for line in result.warnings):
        first = config.analysis.frames.start
        print(f"(frame 0 of the fit is number {first} of analysis.frames)", file=sys.stderr)
    return 0 if result.success else 1


@xpcs.command(cls=XpcsCommand)
@option("--chains", "N", "Number of chains.", default=4)
@option("--warmup", "N", "Steps of adaptation of each chain.", default=200)
@option("--draws", "N", "Draws of each chain.", default=500)
@option("--seed", "N", "Seed of the chains.", default=0)
@_config_options
def posterior(chains: int, warmup: int, draws: int, seed: int, **values: Any) -> int:
    """Fit a data set, and sample the posterior of its parameters with NumPyro's NUTS.

    Writes a table, the samples, a corner plot, and with arviz-base a file for ArviZ. Exits with 1
    if the fit fails or the chains do not mix (R-hat above 1.05).
    """
    import numpyro  # noqa: F401  # before the fit

    from jaxkern.xpcs.analysis import run as analysis

    options = SimpleNamespace(**values)
    config = _load_settings(options)
    if config.optimization.loss != "linear":
        loss = config.optimization.loss
        raise ValueError(f"optimization.loss: expected linear for a posterior, got {loss}")
    with analysis.open_measurement(config, options.config.parent) as measurement:
        _print_measurement(measurement, options.quiet)
        result = analysis.fit_measurement(
            config, measurement, options.output_dir, progress=not options.quiet
        )
        paths = analysis.save(config, measurement, result, options.output_dir)
        if not result.success:
            print(f"the fit did not succeed: {result.message}", file=sys.stderr)
            return 1
        sampled = analysis.sample_posterior(
            config, measurement, result, chains=chains, warmup=warmup, draws=draws, seed=seed,
            progress=not options.quiet,
        )  # fmt: skip
    paths += sampled.save(options.output_dir)
    report(options, {"table": sampled.table, "files": paths}, sampled, written(paths))
    if sampled.rhat.max() <= 1.05:
        return 0
    print("the chains do not mix: use more --warmup and --draws", file=sys.stderr)
    return 1


@xpcs.command(cls=XpcsCommand)
@_config_options
def plot(**values: Any) -> int:
    """Draw data, model and residuals of an earlier fit."""
    from jaxkern.xpcs.analysis import run as analysis

    options = SimpleNamespace(**values)
    config = _load_settings(options)
    with analysis.open_measurement(config, options.config.parent) as measurement:
        _print_measurement(measurement, options.quiet)
        paths = analysis.plot_measurement(config, measurement, options.output_dir)
    report(options, {"files": paths}, written(paths))
    return 0


@xpcs.command(cls=XpcsCommand)
@click.argument("files", type=PATH, nargs=-1, required=True)
@option("--frame-shape", "H,W", "Shape of frames whose file does not state it.")
@option("--dataset", "NAME", "Dataset of an HDF5 file; detected by default.")
@command_options
def check(
    files: tuple[Path, ...],
    frame_shape: str | None,
    dataset: str | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Read files of frames, bins, correlations or results, each in its own process.

    Exits with 1 if one is damaged, also if it crashes the HDF5 library.
    """
    from jaxkern.xpcs.analysis.checking import check_file

    shape = parse_frame_shape(frame_shape)
    results = []
    for file in files:
        result = check_file(file, shape, dataset)
        results.append(result)
        if result.error is not None and not as_json:
            print(f"{file}: damaged: {result.error}", flush=True)
        elif not quiet:
            print(f"{file}: no damage found; {result.holds}", flush=True)
    damaged = sum(result.error is not None for result in results)
    if as_json:
        print_json({"files": [vars(result) for result in results], "damaged": damaged})
    return 1 if damaged else 0


def _load_settings(options: SimpleNamespace) -> Config:
    """Load the file's settings, replaced by options; apply those of threads and memory."""
    from jaxkern import performance
    from jaxkern.core.paths import home_path
    from jaxkern.xpcs.analysis.settings import ConfigError, load_config

    # A file may be called 5.
    texts = ("data_files.file", "optimization.streaming.checkpoint_dir")
    overrides: dict[str, Any] = {}
    for flag_name, setting, _ in _SETTINGS:
        value = getattr(options, flag_name.removeprefix("--").replace("-", "_"))
        if value is not None:
            overrides[setting] = value if setting in texts else _parse(setting, value)
    if "optimization.streaming.checkpoint_dir" in overrides:
        overrides["optimization.streaming.enable_checkpoints"] = True
    for item in options.set:
        name, separator, text = (part.strip() for part in item.partition("="))
        if not separator:
            raise ConfigError(f"--set: expected NAME=VALUE, got {item}")
        overrides[name] = _parse(name, text)
    # Paths on the command line are relative to the working directory, as the shell completes them;
    # those in the YAML file are relative to that file.
    file = overrides.get("data_files.file")
    if isinstance(file, str):
        overrides["data_files.file"] = str(home_path(file).absolute())
    config = load_config(options.config, overrides)
    if config.optimization.threads is not None:
        performance.set_num_threads(config.optimization.threads)
    if config.optimization.memory_limit is not None:
        os.environ["JAXKERN_MEMORY_LIMIT"] = str(config.optimization.memory_limit)
    return config


def _parse(name: str, text: str) -> Any:
    """Parse an option's text as YAML."""
    from jaxkern.xpcs.analysis.settings import parse_yaml

    return parse_yaml(text, f"{name} is {text!r:.60}, which")


def _print_measurement(measurement: OpenMeasurement, quiet: bool) -> None:
    """Print the selected data, and notes on them even if quiet."""
    if not quiet:
        print(measurement.describe())
    for note in measurement.notes:
        print(f"note: {note}", file=sys.stderr)
