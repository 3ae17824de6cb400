"""Options, errors and checks that the commands of ``xpcs`` share."""

from __future__ import annotations

import contextlib
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

from jaxkern.cli.output import (
    PATH,
    Command,
    check_new,
    choice,
    combine,
    flag,
    json_option,
    option,
    print_json,
)

NO_FRAME_TIME = (
    "note: the time between frames is unknown, so delays are in frames; a fit needs --frame-time"
)


class XpcsCommand(Command):
    """A command of ``xpcs``."""

    extra = "xpcs"

    def is_expected(self, error: Exception) -> bool:
        if super().is_expected(error):
            return True
        from jaxkern.xpcs.fitting.evaluation import CheckpointError

        return isinstance(error, CheckpointError)


command_options = combine(
    json_option, flag("--quiet", "Print no progress bar and no report, only warnings.")
)
# Options of `correlate` and `watch`.
correlation_options = combine(
    option("--qmap", "FILE", "Bins of the pixels, such as of simplemask.", PATH, required=True),
    option("--output", "FILE", "File of results; for several a folder.", PATH, required=True),
    option("--bins", "LIST", "Dynamic bins, such as 1,5-9; by default the bins of --twotime."),
    option("--dpl", "N", "Delays per level.", default=4),
    option("--begin", "N", "Index of the first frame.", default=0),
    option("--stride", "N", "Use every n-th frame.", default=1),
    option("--average", "N", "Sum N successive frames.", default=1),
    option("--bad-frames", "LIST", "Indices of frames to exclude, such as 7,100-120."),
    option("--intensity-cut", "LOW,HIGH", "Exclude frames of other intensities (median = 1)."),
    option("--mask", "FILE", "npy, tif or h5 file [H, W], 0 for further bad pixels.", PATH),
    option("--blemish", "FILE", "The same for bad pixels of the detector.", PATH),
    choice("--hot-pixels", "report|mask|ignore", "Pixels unlike their static bin.", "report"),
    flag("--normalize", "Divide each frame by its mean counts."),
    option("--frame-time", "S", "Time between frames; by default from the file.", float),
    option("--dataset", "NAME", "Dataset of an HDF5 file; detected by default."),
    option("--metadata", "FILE", "*_metadata.hdf file to copy /entry from.", PATH),
    option("--plots", "DIR", "Directory for plots of bins, a summary, and the intensity.", PATH),
    flag("--plot-all", "Plot g2 of all bins instead of the first 9."),
    flag("--force", "Replace an existing file."),
    command_options,
)


def numbers(text: str | None, name: str) -> list[int] | None:
    """Parse a list of numbers and inclusive ranges, such as 1,5-9."""
    if text is None:
        return None
    result: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,12})\s*(?:-\s*([0-9]{1,12})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first + len(result) >= 10**7:
            raise ValueError(f"{name}: expected numbers and ranges such as 1,5-9, got {text!r:.60}")
        result.extend(range(first, last + 1))
    return result


def intensity_cut(text: str | None) -> tuple[float | None, float | None] | None:
    """Parse the pair of --intensity-cut; one of its two numbers may be missing."""
    if text is None:
        return None
    try:
        low, high = (float(part) if part.strip() else None for part in text.split(","))
    except ValueError:
        message = f"--intensity-cut: expected LOW,HIGH such as 0.5,2 or ,2, got {text!r:.60}"
        raise ValueError(message) from None
    return low, high


def selection(options: SimpleNamespace) -> dict[str, Any]:
    """Return the selection of frames as keyword arguments."""
    same = {name: getattr(options, name) for name in ("begin", "stride", "average")}
    cut, bad = intensity_cut(options.intensity_cut), numbers(options.bad_frames, "--bad-frames")
    return {**same, "bad_frames": bad, "intensity_cut": cut}


def check_output(options: SimpleNamespace, *inputs: Path | None) -> None:
    """Check the output before the work begins."""
    output = options.output
    if output.is_dir():
        raise IsADirectoryError(f"--output: expected the name of a file, got the folder {output}")
    if options.plots is not None and options.plots.exists() and not options.plots.is_dir():
        raise NotADirectoryError(f"--plots: expected a folder, got the file {options.plots}")
    if options.metadata is not None:
        from jaxkern.xpcs.analysis.correlate import read_metadata

        read_metadata(options.metadata)
    check_new(output, options.force, inputs)


def print_warnings(messages: Iterable[str]) -> None:
    """Print each warning as a line on standard error."""
    for message in messages:
        print(f"warning: {message}", file=sys.stderr)


def written(paths: Iterable[Path]) -> str:
    """Return a line with the paths of written files."""
    return "wrote " + ", ".join(map(str, paths))


def report(options: SimpleNamespace, record: dict[str, Any], *lines: Any) -> None:
    """Print the record with --json, else the lines, unless --quiet."""
    if options.as_json:
        print_json(record)
    elif not options.quiet:
        print(*lines, sep="\n")


@contextlib.contextmanager
def sigterm_exits() -> Iterator[None]:
    """Raise SystemExit on SIGTERM, so that unfinished files are deleted."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
