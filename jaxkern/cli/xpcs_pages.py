"""``python -m jaxkern xpcs inspect`` and ``report``: HTML pages about data and results."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click

from jaxkern.cli.output import PATH, check_new, choice, combine, flag, option
from jaxkern.cli.xpcs_command import XpcsCommand, command_options, written
from jaxkern.cli.xpcs_command import report as print_report
from jaxkern.cli.xpcs_fit_g2 import MODELS

_page_options = combine(flag("--force", "Replace an existing page."), command_options)


@click.command(cls=XpcsCommand)
@click.argument("path", type=PATH)
@combine(
    option("--qmap", "FILE", "Bins of the pixels, for files of frames.", PATH),
    option("--mask", "FILE", "npy, tif or h5 file [H, W], 0 for further bad pixels.", PATH),
    option("--blemish", "FILE", "The same for bad pixels of the detector.", PATH),
    option("--frame-shape", "H,W", "Shape of frames whose file does not state it."),
    option("--dataset", "NAME", "Dataset of an HDF5 file; detected by default."),
    option("--frame-time", "S", "Time between frames; by default from the file.", float),
    option("--output", "FILE", "The page; default NAME-inspect.html in this folder.", PATH),
    _page_options,
)
def inspect(path: Path, output: Path | None, force: bool, **values: Any) -> int:
    """Write a page about frames or two-time correlations, to look at before the analysis."""
    from jaxkern.xpcs.analysis.checking import holds_matrices
    from jaxkern.xpcs.analysis.inspect import inspect_frames, inspect_matrices
    from jaxkern.xpcs.detectors.qmap import QMap, masked_map

    page = check_new(output or Path(f"{path.stem}-inspect.html"), force)
    progress = not values["quiet"]
    if values["dataset"] is None and holds_matrices(path):
        inspect_matrices(path, page, progress=progress)
    else:
        qmap = None
        if values["qmap"] is not None:
            qmap = masked_map(QMap.read(values["qmap"]), values["mask"], values["blemish"])
        inspect_frames(
            path, page, qmap, frame_shape=frame_shape(values["frame_shape"]),
            dataset=values["dataset"], frame_time=values["frame_time"], progress=progress,
        )  # fmt: skip
    print_report(SimpleNamespace(**values), {"files": [page]}, written([page]))
    return 0


@click.command(cls=XpcsCommand)
@click.argument("path", type=PATH)
@combine(
    choice("--model", MODELS, "Model of g2(tau).", "exponential"),
    option("--frame-time", "S", "Time between detector frames; by default from the file.", float),
    option("--output", "FILE", "The page; default report.html in the folder of a fit.", PATH),
    _page_options,
)
def report(path: Path, output: Path | None, force: bool, **values: Any) -> int:
    """Write a page about results: the folder of a fit, or a file of correlations."""
    from jaxkern.xpcs.analysis.report import report_correlations, report_fit

    if path.is_dir():
        page = check_new(output or path / "report.html", force)
        report_fit(path, page)
    else:
        page = check_new(output or Path(f"{path.stem}-report.html"), force)
        report_correlations(path, page, values["model"], values["frame_time"])
    print_report(SimpleNamespace(**values), {"files": [page]}, written([page]))
    return 0


def frame_shape(text: str | None) -> tuple[int, int] | None:
    """Parse the H,W of --frame-shape."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*([0-9]{1,9})\s*[,x]\s*([0-9]{1,9})\s*", text)
    if match is None:
        raise ValueError(f"--frame-shape: expected H,W, got {text!r:.40}")
    return int(match[1]), int(match[2])
