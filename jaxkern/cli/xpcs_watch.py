"""``python -m jaxkern xpcs watch``: correlates frames as they are taken, and fits them again."""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxkern.cli.output import print_json
from jaxkern.cli.xpcs_correlate import (
    add_choices,
    check_output,
    intensity_cut,
    numbers,
    print_warnings,
    selection,
    sigterm_exits,
)

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.settings import Config
    from jaxkern.xpcs.analysis.watching import Watched
    from jaxkern.xpcs.correlators.results import MultiTauResult, TwoTimeResult
    from jaxkern.xpcs.detectors.growing import GrowingFrames
    from jaxkern.xpcs.detectors.qmap import QMap

_BLOCKS = " ▁▂▃▄▅▆▇█"
# Bins that are shown at most.
_SHOWN = 16
# A fit, or plots, begin again when so many times as long as the last ones took has passed.
_REST = 4.0


def add_parser(actions: Any) -> None:
    """Adds the command to those of ``xpcs``."""
    about = (
        "correlate frames as a writer appends them, show g2 as it grows, write a file of results; "
        "exits with 1 when a fit of them is no success"
    )
    parser = actions.add_parser("watch", help=about, description=about)
    parser.add_argument("frames", type=Path, help="a folder that files appear in, or a file")
    add_choices(parser)
    parser.add_argument("--pattern", default="*", metavar="GLOB", help="of names in the folder")
    parser.add_argument(
        "--idle",
        type=float,
        default=60.0,
        metavar="S",
        help="end after so long without a frame; default 60",
    )
    parser.add_argument(
        "--every", type=float, default=5.0, metavar="S", help="show and write so often; default 5"
    )
    parser.add_argument(
        "--most-frames",
        type=int,
        default=1_000_000,
        metavar="N",
        help="end after so many; default 1000000",
    )
    parser.add_argument(
        "--twotime", action="store_true", help="write two-time correlations too, at the end"
    )
    parser.add_argument(
        "--config", type=Path, metavar="YAML", help="fit two-time correlations with these settings"
    )
    parser.add_argument(
        "--output-dir", type=Path, default=Path("results"), metavar="DIR", help="of the fit"
    )


def watch(chosen: argparse.Namespace) -> int:
    """Watches until nothing comes any more; errors of input are for the caller."""
    from jaxkern.xpcs.analysis import watching
    from jaxkern.xpcs.analysis.correlate import time_between
    from jaxkern.xpcs.correlators.bins import BinLabels
    from jaxkern.xpcs.correlators.checks import CorrelationWarning
    from jaxkern.xpcs.correlators.live import LiveMultiTau
    from jaxkern.xpcs.detectors.growing import GrowingFrames
    from jaxkern.xpcs.detectors.mask_files import masked_map
    from jaxkern.xpcs.detectors.qmap import QMap

    for name in ("idle", "every"):
        if not getattr(chosen, name) >= 0:
            raise ValueError(f"--{name} is {getattr(chosen, name)}; wanted seconds, 0 or more")
    inputs = (chosen.qmap, chosen.metadata, chosen.mask, chosen.blemish)
    given = [path for path in (chosen.output, *inputs) if path is not None]
    check_output(chosen, chosen.frames, *inputs)
    bins = numbers(chosen.bins, "--bins")
    config = _settings(chosen)
    qmap = masked_map(QMap.read(chosen.qmap), chosen.mask, chosen.blemish)
    BinLabels(qmap, bins)
    frames = GrowingFrames(chosen.frames, qmap.shape, chosen.dataset, chosen.pattern, given)
    with frames, sigterm_exits(), warnings.catch_warnings():
        warnings.simplefilter("ignore", CorrelationWarning)  # they are in the results
        live = LiveMultiTau(
            qmap,
            chosen.most_frames,
            chosen.dpl,
            chosen.normalize,
            intensity_cut=intensity_cut(chosen.intensity_cut),
            hot_pixels=chosen.hot_pixels,
            bins=None if chosen.twotime or config else bins,
            frame_time=time_between(chosen.frame_time, chosen.metadata, frames),
            **selection(chosen),
        )
        screen = _Screen(chosen, frames, qmap, bins, config)
        with screen:
            end = watching.watch(
                frames,
                live,
                chosen.most_frames,
                screen.show,
                idle=chosen.idle,
                every=chosen.every,
            )
    if end is None:
        came = frames.shape[0]
        fewer = " --begin, --stride and --average leave fewer;" if came > 1 else ""
        raise ValueError(
            f"{came or 'no'} frames came in {chosen.frames} within {chosen.idle:g} s, and two are "
            f"wanted at least;{fewer} --idle waits longer"
        )
    return screen.report(end)


def _settings(chosen: argparse.Namespace) -> Config | None:
    """The settings of fits, of the file that is written."""
    if chosen.config is None:
        return None
    from jaxkern.xpcs.analysis.settings import load_config

    return load_config(chosen.config, {"data_files.file": str(chosen.output.absolute())})


class _Screen:
    """Shows, writes, draws and fits what there is so far."""

    def __init__(
        self,
        chosen: argparse.Namespace,
        frames: GrowingFrames,
        qmap: QMap,
        bins: list[int] | None,
        config: Config | None,
    ) -> None:
        self._chosen, self._frames, self._qmap = chosen, frames, qmap
        self._bins, self._config = bins, config
        self._pairs: TwoTimeResult | None = None
        self._fitted, self._success = "", True
        self._next_fit = self._next_plot = 0.0
        self._files: list[Path] = []
        self._live: Any = None
        if not chosen.quiet and sys.stdout.isatty():
            try:
                from rich.console import Console
                from rich.live import Live
            except ImportError:
                return
            self._live = Live(console=Console(), auto_refresh=False)

    def __enter__(self) -> _Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, watched: Watched) -> None:
        """Shows, writes and fits."""
        from jaxkern.xpcs.analysis.correlation_plots import plot_correlations
        from jaxkern.xpcs.detectors.frames import DetectorFileError
        from jaxkern.xpcs.files.results_writer import write_results

        due = watched.last or time.monotonic() >= self._next_fit
        wanted = self._config is not None or (self._chosen.twotime and watched.last)
        self._pairs, unread, chosen = None, None, self._chosen
        if wanted and due:
            try:
                self._pairs = self._two_time(watched)
            except DetectorFileError as error:  # as of a file that is being written just now
                unread, self._fitted = error, f"no two-time correlations yet: {error}"
        files = [
            write_results(chosen.output, watched.result, self._pairs, chosen.metadata, self._frames)
        ]
        if self._pairs is not None and self._config is not None:
            try:
                self._fit(self._config)
            except ValueError as error:  # as of frames that have not come yet
                if watched.last:
                    raise
                self._fitted = f"no fit yet: {error}"
        if chosen.plots and (watched.last or time.monotonic() >= self._next_plot):
            began = time.monotonic()
            title = f"{chosen.frames.name}, {watched.frames:,} frames"
            files += plot_correlations(
                chosen.plots, watched.result, self._pairs, title=title, all_bins=chosen.plot_all
            )
            self._next_plot = time.monotonic() + _REST * (time.monotonic() - began)
        self._files = files
        if not chosen.quiet:
            self._print(watched)
        if unread is not None and watched.last:
            raise unread

    def _two_time(self, watched: Watched) -> TwoTimeResult:
        """Of all frames that were correlated, read again."""
        from jaxkern.xpcs.analysis.correlate import time_between
        from jaxkern.xpcs.correlators.two_time import twotime

        began, config = time.monotonic(), watched.result.config
        names = ("begin", "end", "stride", "average")
        found = twotime(
            self._frames,
            watched.result.qmap,
            bins=self._bins,
            bad_frames=config["bad_frames"],
            frame_time=time_between(self._chosen.frame_time, self._chosen.metadata, self._frames),
            progress=False,
            **{name: config[name] for name in names},
        )
        self._next_fit = time.monotonic() + _REST * (time.monotonic() - began)
        return found

    def _fit(self, config: Config) -> None:
        from jaxkern.xpcs.analysis import run as analysis

        began = time.monotonic()
        with analysis.open_measurement(config, ".") as measurement, warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* left out", RuntimeWarning)  # which stay the same
            result = analysis.fit_measurement(
                config, measurement, self._chosen.output_dir, progress=False
            )
            analysis.save(config, measurement, result, self._chosen.output_dir)
        errors = dict(zip(result.names, result.perr, strict=True))
        values = dict(zip(result.names, result.popt, strict=True))
        shown = [name for name in measurement.model.parameter_names if name in values]
        self._success = result.success
        self._fitted = f"fit of {measurement.data.shape[1]:,} frames: " + ", ".join(
            f"{name} {values[name]:.4g} "
            + ("held" if name in result.held else f"± {errors[name]:.2g}")
            for name in shown
        )
        if not result.success:
            self._fitted += f" (no success: {result.message})"
        self._next_fit += _REST * (time.monotonic() - began)

    def _print(self, watched: Watched) -> None:
        heading = f"{watched.frames:,} frames, {watched.rate:,.0f} frames/s"
        if self._live is None:
            print(heading + (f"; {self._fitted}" if self._fitted else ""), flush=True)
            return
        from rich.console import Group
        from rich.table import Table

        table = Table(title=heading, title_justify="left")
        for name in ("bin", "q", "phi", "first g2", "g2 over the delay"):
            table.add_column(name)
        for row in rows(watched.result):
            table.add_row(*row)
        self._live.update(Group(table, self._fitted), refresh=True)

    def report(self, end: Watched) -> int:
        """Prints how it ended; returns the exit code."""
        of_pairs = () if self._pairs is None else self._pairs.warnings
        doubts = list(dict.fromkeys((*end.result.warnings, *of_pairs)))
        if self._chosen.json:
            print_json(
                {
                    "files": self._files,
                    "frames": end.frames,
                    "frames_correlated": end.result.n_frames,
                    "interrupted": end.interrupted,
                    "hot_pixels": end.result.config.get("hot_pixels"),
                    "warnings": doubts,
                    "fit": self._fitted or None,
                    "success": self._success,
                }
            )
        elif not self._chosen.quiet:
            print("wrote " + ", ".join(map(str, self._files)))
        print_warnings(doubts)
        if not self._success:
            print(self._fitted, file=sys.stderr)
        return 0 if self._success else 1


def rows(result: MultiTauResult) -> list[tuple[str, ...]]:
    """What is shown of some bins: number, q, phi, g2 at the first delay and a curve."""
    some = np.unique(np.linspace(0, len(result.bins) - 1, min(len(result.bins), _SHOWN)).round())
    found: list[tuple[str, ...]] = []
    for k in some.astype(int):
        found.append(
            (
                str(result.bins[k]),
                "" if result.q is None else f"{result.q[k]:.4g}",
                "" if result.phi is None else f"{result.phi[k]:.4g}",
                f"{result.g2[0, k]:.4f} ± {result.g2_err[0, k]:.4f}",
                curve(result.g2[:, k]),
            )
        )
    return found


def curve(values: Any) -> str:
    """Numbers as a line of blocks, from the least to the most; blank where there is none."""
    numbers = np.asarray(values, np.float64)
    known = np.isfinite(numbers)
    if not known.any():
        return ""
    least, most = numbers[known].min(), numbers[known].max()
    height = (np.where(known, numbers, least) - least) / max(most - least, 1e-300)
    steps = np.where(known, 1 + np.round(height * (len(_BLOCKS) - 2)), 0).astype(int)
    return "".join(_BLOCKS[step] for step in steps)
