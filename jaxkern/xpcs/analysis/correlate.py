"""Correlation of one file of frames into one file of results with its provenance."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxkern.core.arguments import check_integer
from jaxkern.core.arrays import digest
from jaxkern.core.version import __version__
from jaxkern.xpcs.analysis.correlation_plots import plot_correlations
from jaxkern.xpcs.correlators.checks import CorrelationWarning, HotPixels, check_hot_pixels
from jaxkern.xpcs.correlators.frame_sums import intensity_limits
from jaxkern.xpcs.correlators.multitau import multitau
from jaxkern.xpcs.correlators.results import MAX_DELAYS, MultiTauResult, TwoTimeResult, check_groups
from jaxkern.xpcs.correlators.selection import BinLabels, FrameSelection, check_frame_time
from jaxkern.xpcs.correlators.two_time import twotime
from jaxkern.xpcs.correlators.two_time_reduction import check_form, check_smoothing, form_edges
from jaxkern.xpcs.detectors.frames import DetectorFileError, FrameSource
from jaxkern.xpcs.detectors.hdf5 import detector_metadata
from jaxkern.xpcs.detectors.hdf5_access import find_object, hdf5_errors, open_hdf5
from jaxkern.xpcs.detectors.opening import open_frames
from jaxkern.xpcs.detectors.qmap import QMap
from jaxkern.xpcs.files.provenance import file_stamp, link_stamps
from jaxkern.xpcs.files.results_writer import write_results

# Provenance stores longer lists as a digest.
_LISTED = 20
# Choices of g2 only.
_MULTITAU = ("dpl", "normalize", "intensity_cut", "hot_pixels", "parts", "groups")


@dataclass(frozen=True)
class CorrelationChoices:
    """Arguments of a correlation, see `multitau` and `twotime`.

    Attributes:
      twotime: form of two-time correlations, see `twotime`; None to compute g2 only. With a form,
        `bins` are the bins with two-time correlations, and g2 is computed for all bins.
      metadata: a ``*_metadata.hdf``, whose /entry is copied into the results.
    """

    dpl: int = 4
    normalize: bool = False
    bad_frames: Sequence[int] | NDArray[Any] | None = None
    begin: int = 0
    end: int | None = None
    stride: int = 1
    average: int = 1
    intensity_cut: tuple[float | None, float | None] | None = None
    hot_pixels: HotPixels = "report"
    bins: Sequence[int] | NDArray[Any] | None = None
    parts: int = 0
    twotime: Any = None
    smoothing: Literal["static", "none"] = "static"
    frame_time: float | None = None
    dataset: str | None = None
    metadata: Path | None = None
    groups: int = 0

    def check(self, qmap: QMap) -> None:
        """Raise the errors of arguments that do not depend on the frames."""
        check_integer("dpl", self.dpl, 1, MAX_DELAYS)
        for name, least in (("begin", 0), ("stride", 1), ("average", 1), ("parts", 0)):
            check_integer(name, getattr(self, name), least)
        check_groups(self.groups)
        if self.end is not None:
            check_integer("end", self.end, self.begin)
        if self.frame_time is not None:
            check_frame_time(self.frame_time)
        intensity_limits(self.intensity_cut)
        check_hot_pixels(self.hot_pixels)
        BinLabels(qmap, self.bins)
        check_smoothing(self.smoothing)
        check_form("full" if self.twotime is None else self.twotime)
        if self.metadata is not None:
            read_metadata(self.metadata)

    def provenance(self, qmap: QMap) -> dict[str, Any]:
        """Return the provenance of results, without the files of frames."""
        choices = {field.name: _as_json(getattr(self, field.name)) for field in fields(self)}
        if self.metadata is not None:
            choices["metadata"] = file_stamp(self.metadata)
        labels = [x for x in (qmap.q, qmap.phi) if x is not None]
        bins = digest(qmap.dynamic, qmap.static, qmap.mask, *labels)
        return {"qmap": bins, **choices, "jaxkern": __version__}


class CorrelatedFile(NamedTuple):
    """Result of `correlate_file`."""

    source: FrameSource  # closed
    multitau: MultiTauResult
    twotime: TwoTimeResult | None
    files: list[Path]  # all that were written
    seconds: float  # of the correlations

    @property
    def warnings(self) -> list[str]:
        """The different warnings about the correlations."""
        two_time = () if self.twotime is None else self.twotime.warnings
        return list(dict.fromkeys((*self.multitau.warnings, *two_time)))


def correlate_file(
    path: Path,
    qmap: QMap,
    output: Path,
    choices: CorrelationChoices,
    *,
    plots: Path | None = None,
    plot_all: bool = False,
    progress: bool = False,
    opened: Callable[[FrameSource], None] | None = None,
) -> CorrelatedFile:
    """Correlate a file of frames or events, write its results atomically, and plot them.

    `opened` is called with the open file before the correlation.
    """
    provenance = {"file": file_stamp(path), **choices.provenance(qmap)}
    start = time.monotonic()
    with open_frames(path, qmap.shape, choices.dataset) as source, warnings.catch_warnings():
        warnings.simplefilter("ignore", CorrelationWarning)  # the results have them
        provenance["linked"] = link_stamps(path, source.linked)
        same = ("begin", "end", "stride", "average", "bad_frames")
        common: dict[str, Any] = {name: getattr(choices, name) for name in same}
        common["frame_time"] = time_between(choices.frame_time, choices.metadata)
        common["progress"] = progress
        if choices.twotime is not None:
            selection = FrameSelection(
                source.shape[0], choices.begin, choices.end, choices.stride, choices.average
            )
            form_edges(check_form(choices.twotime), max(selection.n, 1))  # raises early
        if opened is not None:
            opened(source)
        own = {name: getattr(choices, name) for name in _MULTITAU}
        bins = choices.bins if choices.twotime is None else None
        g2 = multitau(source, qmap, bins=bins, overview=True, **own, **common)
        c2 = None
        if choices.twotime is not None:
            common["bad_frames"] = g2.config["bad_frames"]
            masked = g2.config["hot_pixels"] if choices.hot_pixels == "mask" else []
            if masked:
                qmap = qmap.without(np.array(masked, np.int64).reshape(-1, 2))
            common |= {"smoothing": choices.smoothing, "form": choices.twotime}
            c2 = twotime(source, qmap, bins=choices.bins, **common)
        seconds = time.monotonic() - start
        files = [write_results(output, g2, c2, choices.metadata, source, provenance)]
        if plots is not None:
            files += plot_correlations(plots, g2, c2, title=path.name, all_bins=plot_all)
    return CorrelatedFile(source, g2, c2, files, seconds)


def time_between(frame_time: float | None, metadata: Path | None) -> float | None:
    """Return the time between frames in s: `frame_time`, or that of a file, or None."""
    if frame_time is None and metadata is not None:
        return read_metadata(metadata).get("frame_time")
    return frame_time


def read_metadata(path: Path) -> dict[str, Any]:
    """Read a file of metadata."""
    with open_hdf5(str(path)) as file, hdf5_errors(str(path)):
        if not hasattr(find_object(file, "entry"), "keys"):
            raise DetectorFileError(f"{path}: expected a file of metadata with a group /entry")
        return detector_metadata(file)


def _as_json(value: Any) -> Any:
    """Convert a value to JSON types, and long lists to a digest."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple | range):
        if len(value) > _LISTED:
            return f"{len(value)} numbers ({digest(np.asarray(value))})"
        return [_as_json(item) for item in value]
    return value
