"""``python -m jaxkern xpcs watch``: correlate frames while they are written, and fit them."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from jaxkern.cli.output import PATH, check_new, combine, flag, option
from jaxkern.cli.xpcs_command import (
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

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.settings import Config
    from jaxkern.xpcs.analysis.watching import Watched
    from jaxkern.xpcs.correlators.results import MultiTauResult, TwoTimeResult
    from jaxkern.xpcs.detectors.opening import GrowingFrames

_BLOCKS = " ▁▂▃▄▅▆▇█"
_MAX_ROWS = 16
_SECONDS = click.FloatRange(0)
# A fit, or plots, are repeated after this multiple of their last duration.
_REST = 4.0


@click.command(cls=XpcsCommand)
@click.argument("frames", type=PATH)
@combine(
    correlation_options,
    option("--pattern", "GLOB", "Pattern of file names in the directory.", default="*"),
    option("--idle", "S", "End after this time without a frame.", _SECONDS, default=60.0),
    option("--every", "S", "Interval in seconds between updates.", _SECONDS, default=5.0),
    option("--most-frames", "N", "End after this number of frames.", default=1_000_000),
    option("--rotate", "N", "Close a file of results, NAME-0001.hdf etc., every N frames.", int),
    flag("--twotime", "Write two-time correlations too, at the end."),
    option("--config", "YAML", "Fit two-time correlations with these settings.", PATH),
    option("--output-dir", "DIR", "Directory for the fit.", PATH, default=Path("results")),
)
def watch(**values: Any) -> int:
    """Correlate frames while they are written, show g2 and write a file of results.

    FRAMES is a directory in which files appear, or a growing file. Exits with 1 if a fit does not
    succeed.
    """
    from jaxkern.xpcs.analysis import watching
    from jaxkern.xpcs.analysis.correlate import time_between
    from jaxkern.xpcs.analysis.settings import load_config
    from jaxkern.xpcs.correlators.checks import CorrelationWarning
    from jaxkern.xpcs.correlators.multitau import LiveMultiTau
    from jaxkern.xpcs.correlators.selection import BinLabels
    from jaxkern.xpcs.detectors.opening import GrowingFrames
    from jaxkern.xpcs.detectors.qmap import QMap, masked_map

    options = SimpleNamespace(**values)
    inputs = (options.qmap, options.metadata, options.mask, options.blemish)
    check_output(options, options.frames, *inputs)
    outputs = _outputs(options)
    excluded = [path for path in (*outputs, *inputs) if path is not None]
    bins = numbers(options.bins, "--bins")
    config = None
    if options.config is not None:
        file = {"data_files.file": str(options.output.absolute())}
        config = load_config(options.config, file)
    qmap = masked_map(QMap.read(options.qmap), options.mask, options.blemish)
    BinLabels(qmap, bins)
    frames = GrowingFrames(options.frames, qmap.shape, options.dataset, options.pattern, excluded)
    with frames, sigterm_exits(), warnings.catch_warnings():
        warnings.simplefilter("ignore", CorrelationWarning)  # the results include them
        choices: dict[str, Any] = {
            **selection(options),
            "hot_pixels": options.hot_pixels,
            "bins": None if options.twotime or config else bins,
            "frame_time": time_between(options.frame_time, options.metadata),
        }

        def start(begin: int, end: int) -> LiveMultiTau:
            parts = {**choices, "begin": begin}
            return LiveMultiTau(qmap, end, options.dpl, options.normalize, **parts)

        screen = _Screen(options, frames, bins, config)
        with screen.live or contextlib.nullcontext():
            end = watching.watch(
                frames,
                start,
                options.most_frames,
                screen.show,
                idle=options.idle,
                every=options.every,
                begin=options.begin,
                rotate=options.rotate,
            )
    if end is None:
        raise ValueError(
            f"expected two frames in {options.frames}, got {frames.shape[0] or 'no frames'} within "
            f"{options.idle:g} s (--idle), of which --begin, --stride and --average skip some"
        )
    return screen.report(end)


def _outputs(options: SimpleNamespace) -> list[Path]:
    """Return the file of results, or those of all possible parts; they must not exist."""
    if options.rotate is None:
        return [options.output]
    step = options.stride * options.average
    if options.rotate < 2 * step or options.rotate % step:
        raise ValueError(
            f"--rotate: expected a multiple of {step} (--stride times --average), at least "
            f"{2 * step}, got {options.rotate}"
        )
    paths = [_part(options.output, k) for k in range(options.most_frames // options.rotate + 1)]
    return [check_new(path, options.force) for path in paths]


def _part(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number + 1:04d}{path.suffix}")


@dataclasses.dataclass
class _Screen:
    """Display, files, plots and fits of the frames so far."""

    options: SimpleNamespace
    frames: GrowingFrames
    bins: list[int] | None
    config: Config | None
    pairs: TwoTimeResult | None = None
    fitted: str = ""
    success: bool = True
    next_fit: float = 0.0
    next_plot: float = 0.0
    files: list[Path] = dataclasses.field(default_factory=list)
    closed: list[Path] = dataclasses.field(default_factory=list)  # of complete parts
    live: Any = None

    def __post_init__(self) -> None:
        if not self.options.quiet and sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console
                from rich.live import Live

                self.live = Live(console=Console(), auto_refresh=False)

    def show(self, watched: Watched) -> None:
        """Show, write, plot and fit."""
        from jaxkern.xpcs.analysis.correlation_plots import plot_correlations
        from jaxkern.xpcs.detectors.frames import DetectorFileError
        from jaxkern.xpcs.files.results_writer import write_results

        final = watched.last or watched.closed
        due = final or time.monotonic() >= self.next_fit
        needed = self.config is not None or (self.options.twotime and final)
        self.pairs, unreadable, options = None, None, self.options
        if needed and due:
            try:
                self.pairs = self._two_time(watched)
            except DetectorFileError as error:  # such as a file that is being written
                unreadable, self.fitted = error, f"no two-time correlations yet: {error}"
        results = watched.result, self.pairs
        output, plots, folder = options.output, options.plots, options.output_dir
        if options.rotate is not None:
            output = _part(output, watched.part)
            folder, plots = folder / output.stem, plots and plots / output.stem
        files = [write_results(output, *results, options.metadata, self.frames)]
        if self.pairs is not None and self.config is not None:
            try:
                file = dataclasses.replace(self.config.data_files, file=str(output.absolute()))
                self._fit(dataclasses.replace(self.config, data_files=file), folder)
            except ValueError as error:  # such as missing frames
                if watched.last:
                    raise
                self.fitted = f"no fit yet: {error}"
        if plots and (final or time.monotonic() >= self.next_plot):
            started = time.monotonic()
            title = f"{options.frames.name}, {watched.frames:,} frames"
            files += plot_correlations(plots, *results, title=title, all_bins=options.plot_all)
            self.next_plot = time.monotonic() + _REST * (time.monotonic() - started)
        self.files = files
        if watched.closed:
            self.closed += files
        if not options.quiet:
            self._print(watched)
        if unreadable is not None and watched.last:
            raise unreadable

    def _two_time(self, watched: Watched) -> TwoTimeResult:
        """Correlate all frames so far again, in pairs."""
        from jaxkern.xpcs.analysis.correlate import time_between
        from jaxkern.xpcs.correlators.two_time import twotime

        started, config = time.monotonic(), watched.result.config
        names = ("begin", "end", "stride", "average", "bad_frames")
        pairs = twotime(
            self.frames,
            watched.result.qmap,
            bins=self.bins,
            frame_time=time_between(self.options.frame_time, self.options.metadata),
            progress=False,
            **{name: config[name] for name in names},
        )
        self.next_fit = time.monotonic() + _REST * (time.monotonic() - started)
        return pairs

    def _fit(self, config: Config, folder: Path) -> None:
        from jaxkern.xpcs.analysis import run as analysis

        started = time.monotonic()
        with analysis.open_measurement(config, ".") as measurement, warnings.catch_warnings():
            # The same in each fit.
            warnings.filterwarnings("ignore", ".* are excluded", RuntimeWarning)
            result = analysis.fit_measurement(config, measurement, folder, progress=False)
            analysis.save(config, measurement, result, folder)
        errors = dict(zip(result.names, result.perr, strict=True))
        values = dict(zip(result.names, result.popt, strict=True))
        shown = [name for name in measurement.model.parameter_names if name in values]
        self.success = result.success
        self.fitted = f"fit of {measurement.data.shape[1]:,} frames: " + ", ".join(
            f"{name} {values[name]:.4g} "
            + ("fixed" if name in result.held else f"± {errors[name]:.2g}")
            for name in shown
        )
        if not result.success:
            self.fitted += f" (did not succeed: {result.message})"
        self.next_fit += _REST * (time.monotonic() - started)

    def _print(self, watched: Watched) -> None:
        heading = f"{watched.frames:,} frames, {watched.rate:,.0f} frames/s"
        if self.live is None:
            print(heading + (f"; {self.fitted}" if self.fitted else ""), flush=True)
            return
        from rich.console import Group
        from rich.table import Table

        table = Table(title=heading, title_justify="left")
        for name in ("bin", "q", "phi", "first g2", "g2 over delay"):
            table.add_column(name)
        for row in rows(watched.result):
            table.add_row(*row)
        self.live.update(Group(table, self.fitted), refresh=True)

    def report(self, end: Watched) -> int:
        """Print the end of the run, and return the exit code."""
        pair_warnings = () if self.pairs is None else self.pairs.warnings
        messages = list(dict.fromkeys((*end.result.warnings, *pair_warnings)))
        record = {
            "files": (files := list(dict.fromkeys((*self.closed, *self.files)))),
            "frames": end.frames,
            "frames_correlated": end.result.n_frames,
            "interrupted": end.interrupted,
            "hot_pixels": end.result.config.get("hot_pixels"),
            "warnings": messages,
            "fit": self.fitted or None,
            "success": self.success,
        }
        report(self.options, record, written(files))
        print_warnings(messages)
        if not self.success:
            print(self.fitted, file=sys.stderr)
        return 0 if self.success else 1


def rows(result: MultiTauResult) -> list[tuple[str, ...]]:
    """Return the displayed columns of some bins: number, q, phi, first g2 and a curve."""
    import numpy as np

    count = len(result.bins)
    indices = np.unique(np.linspace(0, count - 1, min(count, _MAX_ROWS)).round()).astype(int)
    return [
        (
            str(result.bins[k]),
            "" if result.q is None else f"{result.q[k]:.4g}",
            "" if result.phi is None else f"{result.phi[k]:.4g}",
            f"{result.g2[0, k]:.4f} ± {result.g2_err[0, k]:.4f}",
            curve(result.g2[:, k]),
        )
        for k in indices
    ]


def curve(values: Any) -> str:
    """Draw numbers as blocks from the smallest to the largest, with blanks for NaN."""
    import numpy as np

    numbers = np.asarray(values, np.float64)
    known = np.isfinite(numbers)
    if not known.any():
        return ""
    low, high = numbers[known].min(), numbers[known].max()
    height = (np.where(known, numbers, low) - low) / max(high - low, 1e-300)
    steps = np.where(known, 1 + np.round(height * (len(_BLOCKS) - 2)), 0).astype(int)
    return "".join(_BLOCKS[step] for step in steps)
