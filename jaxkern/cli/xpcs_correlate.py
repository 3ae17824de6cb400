"""``python -m jaxkern xpcs correlate``: from files of frames to files of results."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxkern.cli import xpcs_many
from jaxkern.cli.output import print_json
from jaxkern.core.quantities import format_quantity

if TYPE_CHECKING:
    from jaxkern.xpcs.analysis.correlate import CorrelatedFile
    from jaxkern.xpcs.detectors.frames import FrameSource
    from jaxkern.xpcs.detectors.qmap import QMap

_FORMS = "full, t1t2:N (N x N cells), or age-lag:AGES:DECADE:LAGS (lags linear up to a decade)"


def add_parser(actions: Any) -> None:
    """Adds the command to those of ``xpcs``."""
    about = (
        "correlate the frames of files, and write files of results that xpcs-viewer opens; exits "
        "with 1 when one of several files failed"
    )
    correlate = actions.add_parser("correlate", help=about, description=about)
    correlate.add_argument(
        "frames", type=Path, nargs="+", help="frames or events of a detector; files or a folder"
    )
    add_choices(correlate)
    correlate.add_argument("--end", type=int, metavar="N", help="the first frame behind the last")
    correlate.add_argument(
        "--twotime",
        nargs="?",
        const="full",
        metavar="FORM",
        help=f"two-time correlations too; {_FORMS}; default full",
    )
    correlate.add_argument(
        "--smoothing", choices=("static", "none"), default="static", help="of two-time correlations"
    )
    correlate.add_argument(
        "--parts", type=int, default=0, metavar="N", help="g2 of so many equal parts of the run too"
    )
    xpcs_many.add_flags(correlate)


def add_choices(parser: argparse.ArgumentParser) -> None:
    """What `watch` takes too."""
    parser.add_argument(
        "--qmap", type=Path, required=True, metavar="FILE", help="bins of pixels, as simplemask's"
    )
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FILE",
        help="results.hdf; of several files a folder",
    )
    parser.add_argument(
        "--bins",
        metavar="LIST",
        help="dynamic bins, such as 1,5-9; with --twotime those that have a two-time correlation",
    )
    parser.add_argument("--dpl", type=int, default=4, metavar="N", help="delays a level; default 4")
    parser.add_argument("--begin", type=int, default=0, metavar="N", help="the first frame, from 0")
    parser.add_argument("--stride", type=int, default=1, metavar="N", help="every n-th frame")
    parser.add_argument("--average", type=int, default=1, metavar="N", help="neighbours summed")
    parser.add_argument(
        "--bad-frames", metavar="LIST", help="frames to leave out, from 0, such as 7,100-120"
    )
    parser.add_argument(
        "--intensity-cut",
        metavar="LOW,HIGH",
        help="leave out frames with less or more light than so many times the median; watch does "
        "so at the end",
    )
    parser.add_argument(
        "--mask",
        type=Path,
        metavar="FILE",
        help="npy, tif or h5 with [H, W] that is 0 where a pixel is bad, besides the map's mask",
    )
    parser.add_argument(
        "--blemish", type=Path, metavar="FILE", help="the same, of the detector's bad pixels"
    )
    parser.add_argument(
        "--hot-pixels",
        choices=("report", "mask", "ignore"),
        default="report",
        help="pixels whose mean or variance differs from their static bin's; default report",
    )
    parser.add_argument(
        "--normalize", action="store_true", help="divide each frame by its mean counts"
    )
    parser.add_argument(
        "--frame-time",
        type=float,
        metavar="S",
        help="from frame to frame; default the file's",
    )
    parser.add_argument("--dataset", metavar="NAME", help="of an HDF5 file; default: looked for")
    parser.add_argument(
        "--metadata", type=Path, metavar="FILE", help="*_metadata.hdf, of which /entry is copied"
    )
    parser.add_argument(
        "--plots",
        type=Path,
        metavar="DIR",
        help="draw the first 9 bins there, a summary of all, and the intensity",
    )
    parser.add_argument("--plot-all", action="store_true", help="draw g2 of all bins")
    parser.add_argument("--force", action="store_true", help="replace a file that is there")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no report")


def numbers(text: str | None, what: str) -> list[int] | None:
    """A list of numbers and ranges with both ends, such as 1,5-9.

    Raises:
      ValueError: for anything else, and more than ten million numbers.
    """
    if text is None:
        return None
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,12})\s*(?:-\s*([0-9]{1,12})\s*)?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first or last - first + len(found) >= 10**7:
            raise ValueError(f"{what} is {text!r:.60}; wanted numbers and ranges, such as 1,5-9")
        found.extend(range(first, last + 1))
    return found


def form(text: str | None) -> Any:
    """A form of two-time correlations as `twotime` takes it.

    Raises:
      ValueError: for anything that is none.
    """
    if text is None or text == "full":
        return text
    name, *sizes = text.split(":")
    wanted = {"t1t2": 1, "age-lag": 3}.get(name)
    if wanted != len(sizes) or not all(re.fullmatch("[0-9]{1,6}", size) for size in sizes):
        raise ValueError(f"--twotime is {text!r:.60}; wanted {_FORMS}")
    return (name, *map(int, sizes))


def intensity_cut(text: str | None) -> tuple[float | None, float | None] | None:
    """The pair of a flag; None where it is not given.

    Raises:
      ValueError: for anything but one or two numbers with a comma.
    """
    if text is None:
        return None
    try:
        low, high = (float(part) if part.strip() else None for part in text.split(","))
    except ValueError:
        raise ValueError(
            f"--intensity-cut is {text!r:.60}; wanted LOW,HIGH in units of the median, such as "
            "0.5,2 (or ,2)"
        ) from None
    return low, high


def correlate(chosen: argparse.Namespace) -> int:
    """Correlates a file, or several; errors of input are for the caller."""
    with sigterm_exits():
        if len(chosen.frames) > 1 or chosen.frames[0].is_dir() or xpcs_many.wanted(chosen):
            return xpcs_many.correlate_many(chosen, arguments(chosen))
        try:
            return _correlate_one(chosen)
        except KeyboardInterrupt:
            print(f"interrupted: {chosen.output} was not written", file=sys.stderr)
            return xpcs_many.INTERRUPTED


def _correlate_one(chosen: argparse.Namespace) -> int:
    from jaxkern.xpcs.analysis.correlate import CorrelationChoices, correlate_file
    from jaxkern.xpcs.detectors.mask_files import masked_map
    from jaxkern.xpcs.detectors.qmap import QMap

    chosen.frames = chosen.frames[0]
    choices = CorrelationChoices(**arguments(chosen))
    check_output(chosen, chosen.frames, chosen.qmap, chosen.metadata, chosen.mask, chosen.blemish)
    qmap = masked_map(QMap.read(chosen.qmap), chosen.mask, chosen.blemish)
    choices.check(qmap)
    made = correlate_file(
        chosen.frames,
        qmap,
        chosen.output,
        choices,
        plots=chosen.plots,
        plot_all=chosen.plot_all,
        progress=not chosen.quiet,
        opened=None if chosen.quiet else lambda source: print(describe(source, qmap)),
    )
    report(chosen, made)
    return 0


def arguments(chosen: argparse.Namespace) -> dict[str, Any]:
    """What the flags choose, as `CorrelationChoices` and `correlate_files` take it."""
    return {
        **selection(chosen),
        "dpl": chosen.dpl,
        "normalize": chosen.normalize,
        "end": chosen.end,
        "intensity_cut": intensity_cut(chosen.intensity_cut),
        "hot_pixels": chosen.hot_pixels,
        "bins": numbers(chosen.bins, "--bins"),
        "parts": chosen.parts,
        "twotime": form(chosen.twotime),
        "smoothing": chosen.smoothing,
        "frame_time": chosen.frame_time,
        "dataset": chosen.dataset,
        "metadata": chosen.metadata,
    }


# What `watch` does too ---------------------------------------------------------------------------


def selection(chosen: argparse.Namespace) -> dict[str, Any]:
    """Which frames the flags choose."""
    return {
        "begin": chosen.begin,
        "stride": chosen.stride,
        "average": chosen.average,
        "bad_frames": numbers(chosen.bad_frames, "--bad-frames"),
    }


def check_output(chosen: argparse.Namespace, *inputs: Path | None) -> None:
    """Raises before the work what else would be an error behind it.

    An output that is there already and not to be replaced, or is an input or a folder, plots into
    what is no folder, and a file of metadata that has no /entry.
    """
    output = chosen.output
    if output.is_dir():
        raise IsADirectoryError(f"--output {output} is a folder; wanted the name of a file")
    if chosen.plots is not None and chosen.plots.exists() and not chosen.plots.is_dir():
        raise NotADirectoryError(f"--plots {chosen.plots} is a file; wanted a folder")
    if chosen.metadata is not None:
        from jaxkern.xpcs.analysis.correlate import read_metadata

        read_metadata(chosen.metadata)
    if output.exists():
        if any(given is not None and given.exists() and given.samefile(output) for given in inputs):
            raise ValueError(f"--output {output} is one of the files that are read")
        if not chosen.force:
            raise FileExistsError(f"{output} is there already; --force replaces it")


def print_warnings(messages: Iterable[str]) -> None:
    """Prints each in a line on standard error."""
    for message in messages:
        print(f"warning: {message}", file=sys.stderr)


@contextlib.contextmanager
def sigterm_exits() -> Iterator[None]:
    """SIGTERM ends the process by SystemExit, so that unfinished files are deleted."""
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


def describe(source: FrameSource, qmap: QMap) -> str:
    n, height, width = source.shape
    kind = "events" if source.is_sparse else source.dtype.name
    return f"{source.name}: {n:,} frames of {height} x {width} ({kind}); {qmap}"


def report(chosen: argparse.Namespace, made: CorrelatedFile) -> None:
    """Prints what was done."""
    source, found, pairs, files, seconds = made
    n, height, width = source.shape
    size = n * height * width * source.dtype.itemsize
    if source.is_sparse:
        size = chosen.frames.stat().st_size
    bad = len(found.config["bad_frames"])
    empty = None if pairs is None else pairs.n_empty
    if chosen.json:
        print_json(
            {
                "files": files,
                "frames": n,
                "frames_correlated": found.n_frames,
                "bad_frames": bad,
                "hot_pixels": found.config.get("hot_pixels"),
                "warnings": made.warnings,
                "frame_time": found.frame_time,
                "bins": found.bins.tolist(),
                "two_time_bins": None if pairs is None else pairs.bins.tolist(),
                "empty_frames": None if empty is None else empty.tolist(),
                "delays": len(found.delay),
                "seconds": seconds,
                "frames_per_second": n / max(seconds, 1e-9),
                "bytes_per_second": size / max(seconds, 1e-9),
            }
        )
    elif not chosen.quiet:
        spent = max(seconds, 1e-9)
        rate = f"{n / spent:,.0f} frames/s, {format_quantity(size / spent, 'B/s')}"
        print(f"{found}: {seconds:.3g} s ({rate})")
        if pairs is not None:
            print(f"two-time correlations of {len(pairs.bins)} bins, {list(pairs.c2.shape)}")
        if bad:
            print(f"{bad} bad frames were left out")
        print("wrote " + ", ".join(map(str, files)))
    print_warnings(made.warnings)
    if bad and not np.isfinite(found.g2).any():
        print(f"warning: no g2 is a number: {bad} bad frames were left out of {n}", file=sys.stderr)
    if found.frame_time is None and not chosen.json:
        print(
            "note: nothing says the time between frames, so that delays are in frames; a fit needs "
            "--frame-time",
            file=sys.stderr,
        )
