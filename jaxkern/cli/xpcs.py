"""``python -m jaxkern xpcs``: correlate frames; simulate, fit and plot two-time correlations."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxkern.cli import xpcs_check, xpcs_correlate, xpcs_watch
from jaxkern.cli.output import exit_code, print_json
from jaxkern.core.progress import ProgressBar

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.run import OpenMeasurement
    from jaxkern.xpcs.analysis.settings import Config

# Flags that stand for a setting: (flag, setting, metavar).
_FLAGS = (
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


def add_parser(commands: Any) -> None:
    """Adds the ``xpcs`` command and those below it."""
    parser = commands.add_parser(
        "xpcs", help="correlate frames; simulate, fit and plot two-time correlations"
    )
    actions = parser.add_subparsers(dest="action", required=True)
    for name, about in (
        ("simulate", "write a simulated data set to an APS file"),
        ("fit", "fit a data set; exits with 1 when it does not converge or does not describe it"),
        ("plot", "draw data, model and residuals of a fit that was made before"),
    ):
        action = actions.add_parser(name, help=about, description=about)
        action.add_argument(
            "--config",
            type=Path,
            required=True,
            metavar="YAML",
            help="settings, of which `python -m jaxkern xpcs config` writes a template",
        )
        action.add_argument(
            "--output-dir",
            type=Path,
            default=Path("results"),
            metavar="DIR",
            help="where files are written; default results",
        )
        for flag, setting, metavar in _FLAGS:
            action.add_argument(flag, dest=setting, metavar=metavar, help=f"instead of {setting}")
        action.add_argument(
            "--set",
            dest="settings",
            action="append",
            default=[],
            metavar="NAME=VALUE",
            help="any other setting, such as analysis.frames.end=500; may be repeated",
        )
        action.add_argument("--json", action="store_true", help="print JSON, and nothing else")
        action.add_argument(
            "--quiet", action="store_true", help="no progress bar, no report; warnings stay"
        )
        if name == "fit":
            action.add_argument("--no-plots", action="store_true", help="only the numbers")
    xpcs_correlate.add_parser(actions)
    xpcs_watch.add_parser(actions)
    xpcs_check.add_parser(actions)
    config = actions.add_parser("config", help="write a commented template of the settings")
    config.add_argument("path", type=Path, nargs="?", default=Path("config.yaml"))
    config.add_argument("--json", action="store_true", help="print JSON")
    config.add_argument("--force", action="store_true", help="replace a file that is there")


def run(chosen: argparse.Namespace) -> int:
    """Runs one action; errors of input are told in a line and give the exit code 2."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "simulate": _simulate,
        "fit": _fit,
        "plot": _plot,
        "config": _config,
        "correlate": xpcs_correlate.correlate,
        "watch": xpcs_watch.watch,
        "check": xpcs_check.check,
    }
    if chosen.json:
        chosen.quiet = True
    try:
        return actions[chosen.action](chosen)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("jaxkern"):
            raise
        print(f"error: {error.name} is not installed; pip install 'jaxkern[xpcs]'", file=sys.stderr)
    except (ValueError, OSError, RuntimeError, MemoryError, ImportError) as error:
        from jaxkern.xpcs.fitting.checkpoint import CheckpointError

        if isinstance(error, RuntimeError) and not isinstance(error, CheckpointError):
            raise
        print(f"error: {error}", file=sys.stderr)
        return exit_code(error)
    return 2


def _config(chosen: argparse.Namespace) -> int:
    from jaxkern.xpcs.analysis.settings import template

    if chosen.path.exists() and not chosen.force:
        raise FileExistsError(f"{chosen.path} is there already; --force replaces it")
    chosen.path.write_text(template(), encoding="utf-8")
    if chosen.json:
        print_json({"files": [chosen.path]})
    else:
        print(f"wrote {chosen.path}")
    return 0


def _settings(chosen: argparse.Namespace) -> Config:
    """The file's settings with the flags' on top; threads and memory take effect here."""
    from jaxkern import performance
    from jaxkern.core.paths import home_path
    from jaxkern.xpcs.analysis.settings import ConfigError, load_config

    overrides: dict[str, Any] = {}
    for _, setting, _ in _FLAGS:
        given = getattr(chosen, setting)
        if given is not None:
            # A file may be called 5.
            texts = ("data_files.file", "optimization.streaming.checkpoint_dir")
            overrides[setting] = given if setting in texts else _parsed(setting, given)
    if "optimization.streaming.checkpoint_dir" in overrides:
        overrides["optimization.streaming.enable_checkpoints"] = True
    for item in chosen.settings:
        name, separator, value = (part.strip() for part in item.partition("="))
        if not separator:
            raise ConfigError(f"--set {item}; wanted NAME=VALUE")
        overrides[name] = _parsed(name, value)
    # Paths on the command line are relative to the working directory, as the shell completes them;
    # those in the YAML file are relative to that file.
    file = overrides.get("data_files.file")
    if isinstance(file, str):
        overrides["data_files.file"] = str(home_path(file).absolute())
    config = load_config(chosen.config, overrides)
    if config.optimization.threads is not None:
        performance.set_num_threads(config.optimization.threads)
    if config.optimization.memory_limit is not None:
        os.environ["JAXKERN_MEMORY_LIMIT"] = str(config.optimization.memory_limit)
    return config


def _parsed(name: str, text: str) -> Any:
    """What a flag's text means as YAML."""
    from jaxkern.xpcs.analysis.settings import parse_yaml

    shown = text if len(text) <= 60 else text[:57] + "..."
    return parse_yaml(text, f"{name} is {shown!r}, which")


def _simulate(chosen: argparse.Namespace) -> int:
    from jaxkern.xpcs.analysis import run as analysis

    config = _settings(chosen)
    with ProgressBar(not chosen.quiet, "simulating", "rows") as bar:
        path, truth = analysis.simulate_data(config, chosen.config.parent, bar.update)
    chosen.output_dir.mkdir(parents=True, exist_ok=True)
    written = analysis.save_truth(chosen.output_dir, truth)
    if chosen.json:
        print_json({"files": [path, written], "truth": truth})
    if not chosen.quiet:
        conditions = f"dt {truth['dt']:.6g} s, gap {truth['gap']:.6g} Angstrom"
        print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB; {conditions}) and {written}")
    return 0


def _fit(chosen: argparse.Namespace) -> int:
    from jaxkern.xpcs.analysis import run as analysis
    from jaxkern.xpcs.fitting.result import FitInterrupted

    saved = "nothing was saved"
    try:
        config = _settings(chosen)
        with analysis.open_measurement(config, chosen.config.parent) as measurement:
            _print_measurement(measurement, chosen.quiet)
            with warnings.catch_warnings():
                # The report has this too.
                warnings.filterwarnings("ignore", ".* left out", RuntimeWarning)
                try:
                    result = analysis.fit_measurement(
                        config, measurement, chosen.output_dir, progress=not chosen.quiet
                    )
                except FitInterrupted as stop:
                    if stop.result is None:
                        raise
                    result = stop.result
            paths = analysis.save(config, measurement, result, chosen.output_dir)
            saved = "wrote " + ", ".join(map(str, paths))
            if config.output.plots and not chosen.no_plots and not result.interrupted:
                paths += analysis.plot_measurement(config, measurement, chosen.output_dir)
    except KeyboardInterrupt:
        print(f"interrupted; {saved}", file=sys.stderr)
        return 130
    if chosen.json:
        # What the fit has just written, with the paths of all files.
        record = json.loads((chosen.output_dir / "results.json").read_text())
        print_json({**record, "files": paths})
    if result.interrupted:
        print(f"{result.message}; {saved}, the best so far", file=sys.stderr)
        return 130
    if not chosen.quiet:
        print(result)
        print("wrote " + ", ".join(str(path) for path in paths))
    else:
        # Quiet is the report, not what is wrong.
        for line in result.warnings:
            print(f"warning: {line}", file=sys.stderr)
    if not result.success:
        print(f"the fit is no success: {result.message}", file=sys.stderr)
    if not result.success or any("counted from 0" in line for line in result.warnings):
        first = config.analysis.frames.start
        print(f"(frame 0 of the fit is number {first} of analysis.frames)", file=sys.stderr)
    return 0 if result.success else 1


def _plot(chosen: argparse.Namespace) -> int:
    from jaxkern.xpcs.analysis import run as analysis

    config = _settings(chosen)
    with analysis.open_measurement(config, chosen.config.parent) as measurement:
        _print_measurement(measurement, chosen.quiet)
        paths = analysis.plot_measurement(config, measurement, chosen.output_dir)
    if chosen.json:
        print_json({"files": paths})
    if not chosen.quiet:
        print("wrote " + ", ".join(str(path) for path in paths))
    return 0


def _print_measurement(measurement: OpenMeasurement, quiet: bool) -> None:
    """What was chosen of the file; what a user must know of it, also when the rest is quiet."""
    if not quiet:
        print(measurement.describe())
    for note in measurement.notes:
        print(f"note: {note}", file=sys.stderr)
